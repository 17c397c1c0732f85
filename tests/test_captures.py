# SPDX-License-Identifier: Apache-2.0
"""Captures of every format from their files to rays and scores: lenses, images turned or missing, alpha, masks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.commands import inspect
from nerfkit.data.capture import Points
from nerfkit.data.load import load_scene
from nerfkit.data.scene_transform.diagnostics import image_diagnostics
from nerfkit.data.sfm.photos import find_photos
from nerfkit.errors import SceneError
from nerfkit.training.evaluator import evaluate
from nerfkit.training.trainer import Trainer
from tests import posed_captures as posed
from tests.camera_layouts import ring
from tests.naming import assert_names, raises_mentioning
from tests.processes import run_main
from tests.toy_scene import BALLS, RADII


@pytest.mark.parametrize("origin", [0, np.array([4201793.6, 172346.2, 4780160.1])], ids=["near", "ECEF"])
@pytest.mark.parametrize("format", posed.WRITERS)
def test_every_format_gives_the_same_rays(tmp_path, format: str, origin):
    lens = posed.WIDE if format in ("nerfstudio", "colmap", "colmap text") else posed.PINHOLE
    capture = posed.capture_in(tmp_path, [lens] * 20)
    for image in capture.images:
        image.camera_to_world[:, 3] += origin
    posed.WRITERS[format](tmp_path, capture)
    scene = load_scene(str(tmp_path))
    local = lens.direction_map().directions.double()
    wanted = {image.name: image.camera_to_world for image in capture.images}
    found = 0
    for views in scene.views.values():
        for view, file in enumerate(views.files):
            rays, pose = views.cameras.image_rays(view), wanted[file.name]
            origins = scene.transform.to_input(rays.origins.double().numpy())
            directions = scene.transform.directions_to_input(rays.directions.double().numpy())
            np.testing.assert_allclose(origins, np.broadcast_to(pose[:, 3], origins.shape), rtol=0, atol=1e-5)
            np.testing.assert_allclose(directions, local.numpy() @ pose[:, :3].T, atol=1e-5)
            np.testing.assert_array_equal(views.load().image(view).numpy(), np.asarray(Image.open(file)))
            found += 1
    assert found == 20, "all of them"
    assert format == "nerf_synthetic" or len(scene.split("test").files) == 3


@pytest.mark.parametrize("starts, splits", [("001", ["train", "test"]), ("012", ["train", "val", "test"])])
def test_names_of_nsvf_say_which_views_are_trained(tmp_path, starts: str, splits: list[str]):
    capture, images = posed.capture_in(tmp_path, [posed.PINHOLE] * 3), []
    for start, image in zip(starts, capture.images, strict=True):
        name = f"{start}_{image.name}"
        images.append(replace(image, name=name, file=image.file.rename(image.file.with_name(name))))
    posed.write_nsvf(tmp_path, replace(capture, images=images))
    scene = load_scene(str(tmp_path))
    assert {split: views.names[0][0] for split, views in scene.views.items()} == dict(zip(splits, "012", strict=False))


def test_views_of_several_sizes_are_scored(tmp_path, small_config):
    lenses = ([posed.PINHOLE, posed.LARGE, posed.PINHOLE] * 7)[:20]
    scene = load_scene(str(posed.colmap_in(tmp_path / "scene", lenses)), box=posed.BOX)
    views = scene.split("test")
    assert [file.name for file in views.files] == ["r_00.png", "r_08.png", "r_16.png"], "none of which is trained"
    trainer = Trainer(small_config, scene=scene)
    trainer.save(tmp_path / "run")
    metrics = evaluate(trainer.model, small_config, views, posed.STATE, trainer.folder, torch.device("cpu"))
    assert_names(metrics["protocol"]["size"], "26x22", "52x44")
    assert metrics["n_views"] == 3 and all(row["psnr"] > 5 for row in metrics["views"])


def test_an_image_on_its_side_gives_the_same_pixels_and_is_counted(tmp_path, capsys):
    """Where the lens is of the image as EXIF turns it; of the stored pixels where that is the lens's shape."""
    folder = posed.colmap_in(tmp_path, [posed.PINHOLE] * 5)
    scene = load_scene(str(folder))
    plain = scene.split("train").load().stack()
    assert not any("EXIF" in note.text for note in scene.notes)
    for number, orientation, degrees in ((1, 6, 90), (2, 3, 180), (3, 6, 0)):  # the last tag is a lie
        tags, image = Image.Exif(), Image.open(file := folder / "images" / f"r_0{number}.png")
        tags[274] = orientation
        image.rotate(degrees, expand=True).save(file, exif=tags)
    scene = load_scene(str(folder))
    assert torch.equal(scene.split("train").load().stack(), plain)
    (note,) = [note.text for note in scene.notes if "EXIF" in note.text]
    assert_names(note, "2 of 5", "r_01.png")
    run_main(inspect, str(folder), "-v")
    assert "EXIF orientation: 2" in capsys.readouterr().out


@pytest.mark.parametrize("aside", [1.0, 4.0])
def test_a_default_box_beside_what_is_looked_at(tmp_path, capsys, aside: float):
    """The default box of NeRF-synthetic scenes is around the origin, which is not where every such file looks; without
    alpha, nothing says how large another one has to be."""
    capture = posed.capture_in(tmp_path, [posed.PINHOLE] * 20)
    for image in capture.images:
        Image.open(image.file).convert("RGB").save(image.file)
        image.camera_to_world[0, 3] += aside
    posed.write_synthetic(tmp_path, capture)
    run_main(inspect, str(tmp_path))
    said = capsys.readouterr().out
    assert ("data.box" in said) == (aside > 1.5) == (f"({aside:g}, " in said)
    assert not load_scene(str(tmp_path), box=(aside - 1, -1, -1, aside + 1, 1, 1)).transform.warnings()


def test_the_page_is_printed_where_headers_are_damaged(tmp_path, capsys):
    broken = {"r_05.png": b"", "r_06.png": b"\0" * 50, "r_07.png": b"\x89PNG\r\n\x1a\n", "r_33.png": b""}
    folder = posed.colmap_in(tmp_path / "colmap", [posed.PINHOLE] * 40)
    for name, content in broken.items():
        (folder / "images" / name).write_bytes(content)
    lying = Image.open(folder / "images" / "r_02.png").transpose(Image.Transpose.ROTATE_90)
    lying.save(folder / "images" / "r_02.png")
    assert run_main(inspect, str(folder), "-v") == 1
    verdict, page = capsys.readouterr().out.split("\n\n")
    assert_names(page, "40 listed, 40 exist, 0 missing", "cannot be used (image or mask): 5")
    assert_names(verdict, *broken, "r_02.png is 22x26, turned", "empty (0 bytes)", "copy it again")
    assert "missing (" not in verdict


def test_missing_images_are_left_out_with_a_count(tmp_path):
    folder = posed.colmap_in(tmp_path, [posed.PINHOLE] * 20)
    names = [f"r_{index:02d}.png" for index in range(20)]
    for name in names[:10]:
        (folder / "images" / name).unlink()
    scene = load_scene(str(folder))
    assert {split: len(views.files) for split, views in scene.views.items()} == {"train": 10}, "too few for a test view"
    (note,) = [note for note in scene.notes if "missing" in note.text]
    assert_names(note.text, "10 of 20", "10", names[0])
    assert sorted(file.name for file in scene.split("train").files) == names[10:]
    (folder / "images" / names[10]).unlink()
    with raises_mentioning(SceneError, "9 of 20", "11", names[0]):
        load_scene(str(folder))


@pytest.mark.parametrize("smaller", [(13, 11), (9, 8)])
def test_reduced_images_stand_in_for_missing_ones(tmp_path, smaller: tuple[int, int]):
    folder = posed.colmap_in(tmp_path, [posed.PINHOLE] * 5)
    (folder / "images").rename(folder / "images_2")
    for file in (folder / "images_2").iterdir():
        Image.open(file).resize(smaller, Image.Resampling.BOX).save(file)
    cameras = load_scene(str(folder)).split("train").cameras
    assert (cameras.width, cameras.height) == smaller
    factors = torch.tensor(smaller) / torch.tensor(posed.SIZE)
    torch.testing.assert_close(cameras.focal[0], posed.FOCAL * factors)


# ---- what pixels decide


LEFT = np.arange(posed.WIDTH)[None].repeat(posed.HEIGHT, 0) < 10


def rgba(index: int, alpha: np.ndarray | int) -> np.ndarray:
    return np.dstack([posed.noise(index), np.full((posed.HEIGHT, posed.WIDTH), alpha, np.uint8)])


def multiplied(index: int) -> np.ndarray:
    alpha = np.full((posed.HEIGHT, posed.WIDTH), np.arange(posed.WIDTH) * 10)
    return np.dstack([posed.noise(index) * (alpha[..., None] / 255), alpha]).astype(np.uint8)


def written(folder: Path, image) -> str:
    return str(posed.write_capture(folder, ring(20), image))


@pytest.mark.parametrize(
    ("image", "channels", "said"),
    [
        (posed.noise, 3, ()),
        (lambda k: rgba(k, 255), 3, ("alpha", "20 images")),
        (lambda k: rgba(k, 255) if k == 5 else posed.noise(k), 3, ("alpha", "1 images")),
        (lambda k: rgba(k, 255 * LEFT), 4, ()),
        (lambda k: rgba(k, 255 * LEFT if k == 8 else 255), 4, ()),  # a test view
        (multiplied, 4, ("straight alpha",)),
    ],
)
def test_alpha_that_is_opaque_is_none(tmp_path, image, channels: int, said: tuple):
    scene = load_scene(written(tmp_path, image))
    assert scene.split("train").channels == channels and scene.is_place == (channels == 3)
    notes = [note.text for note in scene.notes if "alpha" in note.text]
    assert len(notes) == bool(said)
    if said:
        assert_names(notes[0], *said)


def test_alpha_that_shows_nothing_or_would_be_lost_is_refused(tmp_path):
    with raises_mentioning(SceneError, "alpha", "1 of 255", "RGB"):
        load_scene(written(tmp_path, lambda k: rgba(k, 1)))
    scene = load_scene(written(tmp_path, lambda k: rgba(k, 255)))
    file = scene.split("train").files[-1]
    Image.fromarray(rgba(0, 255 * LEFT)).save(file)
    with raises_mentioning(SceneError, file.name, "transparent"):
        scene.split("train").load()


def palette(labels: np.ndarray) -> Image.Image:
    image = Image.fromarray(labels.astype(np.uint8), "P")
    image.putpalette([0, 0, 0, 128, 0, 0, 0, 0, 200])
    return image


@pytest.mark.parametrize(
    "mask",
    [
        lambda keep, k: Image.fromarray(keep),
        lambda keep, k: Image.fromarray(keep * np.uint8(1 + k % 3)),
        *(lambda keep, k, top=top: Image.fromarray(keep * np.uint16(top)) for top in (1, 255, 1023, 65535)),
        lambda keep, k: Image.fromarray(rgba(k, 255 * keep)),
        lambda keep, k: palette(keep * (1 + k % 2)),
        lambda keep, k: Image.fromarray(np.dstack([255 * keep] * 3 + [255 - np.eye(*keep.shape, dtype=np.uint8)])),
    ],
    ids="0/1,labels,0/1 in 16,8 in 16,10 in 16,16 bits,alpha,palette,alpha that hardly varies".split(","),
)
def test_masks_keep_what_is_white_of_all(tmp_path, mask):
    """The first of them is all black, and the last all white."""
    folder, keeps = written(tmp_path, posed.noise), [LEFT & (k != 0) | (k == 19) for k in range(20)]
    (tmp_path / "masks").mkdir()
    for k, keep in enumerate(keeps):
        mask(keep.astype(np.uint8), k).save(tmp_path / "masks" / f"{k:03d}.png")
    views = load_scene(folder).split("train")
    images = views.load()
    for view, file in enumerate(views.files):
        assert images.mask(view).equal(torch.from_numpy(~keeps[int(file.stem)])), file


def test_masks_that_leave_nothing_or_lie_around_an_object(tmp_path):
    folder, middle = written(tmp_path, posed.noise), np.zeros_like(LEFT)
    posed.masks_in(tmp_path, middle)
    with raises_mentioning(SceneError, "masks", "17 images", "black"):
        load_scene(folder).split("train").load()
    middle[4:12, 6:18] = True
    posed.masks_in(tmp_path, middle)
    [line] = image_diagnostics(load_scene(folder).split("train").load())
    assert_names(line, "around an object", "--data.masks alpha")


@pytest.mark.parametrize(
    ("top", "bits", "factor"),
    [(200, 8, 1), (1000, 10, 1), (16000, 14, 1), (60000, 16, 1), (40 * 257, 16, 257)],
)
def test_the_largest_level_of_all_gray_images_says_how_many_bits_there_are(tmp_path, top: int, bits: int, factor: int):
    """But of levels of 8 bits that were made 16, however dark."""
    gray = [posed.noise(k)[..., 0].astype(np.uint32) for k in range(20)]
    levels = [image * top // (255 if k == 3 else 400) // factor * factor for k, image in enumerate(gray)]
    scene = load_scene(written(tmp_path, lambda k: levels[k].astype(np.uint16)))
    images = scene.split("train").load()
    for view, file in enumerate(scene.split("train").files):
        wanted = np.rint(levels[int(file.stem)] * (255 / (2**bits - 1)))
        np.testing.assert_allclose(images.image(view)[..., 0], wanted, atol=1)
    assert any(f"{bits} bits in 16" in note.text for note in scene.notes) == (bits < 16)


LOWEST, HIGHEST = (BALLS - RADII[:, None]).min(0), (BALLS + RADII[:, None]).max(0)


@pytest.mark.parametrize("aside", [0.0, 4.0])
@pytest.mark.parametrize("unit", [1.0, 0.02, 3.0, 1000.0])
def test_the_box_of_an_object_holds_it_in_any_unit(tmp_path, unit: float, aside: float):
    capture = posed.capture_in(tmp_path, [posed.PINHOLE] * 20)
    for image in capture.images:
        image.camera_to_world[:, 3] = unit * (image.camera_to_world[:, 3] + [aside, 0, 0])
    posed.write_synthetic(tmp_path, capture)
    frame = load_scene(str(tmp_path)).transform
    assert (frame.scale == 1) == ((unit, aside) == (1, 0)) and not frame.warnings()
    if frame.scale != 1:
        low, high = frame.to_input(frame.box) / unit - [aside, 0, 0]
        assert (low < LOWEST + 0.02).all() and (high > HIGHEST - 0.02).all()
        assert np.ptp(frame.box, axis=0).max() == pytest.approx(2.4)
        assert (high - low).max() < 1.3 * (HIGHEST - LOWEST).max()


def test_a_box_of_points_on_a_part_of_an_object_is_not_that_of_the_object(tmp_path):
    capture = posed.capture_in(tmp_path, [posed.PINHOLE] * 20)
    positions = BALLS[1] + 0.1 * np.random.default_rng(0).normal(size=(50, 3))
    points = Points(positions, np.zeros((50, 3), np.uint8), np.full(50, 4), np.tile(np.arange(4), 50))
    posed.write_colmap(tmp_path, replace(capture, points=points))
    frame = load_scene(str(tmp_path)).transform
    away = np.abs(frame.to_model(BALLS) - frame.box.mean(0)) + frame.scale * RADII[:, None] / 2
    assert (away < np.ptp(frame.box, axis=0) / 2).all()


def test_depth_and_masks_beside_photos_are_none(tmp_path, capsys):
    for k in range(3):
        image = Image.fromarray(posed.noise(k))
        for name in ("frame-{}.color.png", "frame-{}.depth.png", "{}_mask.png"):
            image.save(tmp_path / name.format(k))
        Image.fromarray(posed.noise(k)[..., 0].astype(np.uint16)).save(tmp_path / f"far{k}.png")
    assert [photo.name for photo in find_photos(tmp_path, print)] == [f"frame-{k}.color.png" for k in range(3)]
    assert_names(capsys.readouterr().out, "9", "depth")
    for file in {*tmp_path.iterdir()} - {*tmp_path.glob("*.depth.png")}:
        file.unlink()
    assert len(find_photos(tmp_path, print)) == 3, "all of a kind are what is meant"
