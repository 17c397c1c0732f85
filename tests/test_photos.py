# SPDX-License-Identifier: Apache-2.0
"""Photos and videos without poses: when they are looked for, of what, and what is left where that fails."""

from pathlib import Path
from types import SimpleNamespace

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image, ImageFilter

from nerfkit import load_run
from nerfkit.commands import eval as eval_command
from nerfkit.commands import export, inspect, train
from nerfkit.data import sfm
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.load import load_capture
from nerfkit.data.readers.colmap.writer import write_model
from nerfkit.data.sfm import extract_frames, solve
from nerfkit.data.sfm.photos import choose_pairs, find_photos
from nerfkit.errors import SceneError
from nerfkit.viewer.scene import ViewerScene
from tests.naming import assert_names, raises_mentioning
from tests.posed_captures import PINHOLE, SMALL, call, capture_in, colmap_in
from tests.processes import run_main
from tests.toy_scene import look_at

TURNED, MODEL = 274, 272  # tags of EXIF


def photos_in(folder: Path) -> Path:
    """Of one phone, upright, turned and cropped; of another one; drawings without EXIF."""
    (folder / "more").mkdir(parents=True)
    for name, size, turn, model in (
        ("a.jpg", (40, 60), 1, "one"), ("b.jpg", (60, 40), 6, "one"), ("more/c 10.jpg", (40, 60), 3, "one"),
        ("d.jpg", (30, 60), 1, "one"), ("e.jpg", (40, 60), 1, "two"), ("f.png", (40, 60), 1, ""),
        ("g.webp", (60, 40), 8, ""),
    ):  # fmt: skip
        image, exif = Image.new("RGB", size, "white"), Image.Exif()
        image.paste("red", (0, 0, size[0] // 2, size[1] // 4))
        exif[TURNED], exif[MODEL] = turn, model
        image.save(folder / name, exif=exif if model or turn != 1 else None)
    return folder


@pytest.fixture
def registers(monkeypatch) -> list[int]:
    """How many photos get a pose, the next time last; without a number it is as with Ctrl-C."""
    counts = []

    def largest_model(folder, found, *others):
        if not counts:
            raise KeyboardInterrupt
        images = [SimpleNamespace(name=photo.name, has_pose=True) for photo in found[: counts.pop()]]
        return SimpleNamespace(
            images=dict(enumerate(images)),
            write=lambda place: write_model(place, capture_in(place / "made", [PINHOLE] * 3)),
            num_points3D=lambda: 9,
            compute_mean_reprojection_error=lambda: 0.5,
        )

    monkeypatch.setattr("nerfkit.data.sfm.largest_model", largest_model)
    return counts


def test_poses_are_looked_for_where_there_are_none(tmp_path, registers):
    for place in (photos_in(tmp_path / "photos"), photos_in(tmp_path / "scene" / "images").parent):
        with pytest.raises(KeyboardInterrupt):
            load_capture(str(place))
    posed = colmap_in(tmp_path / "several" / "posed", [PINHOLE] * 3)
    assert load_capture(str(posed)).format == "colmap"
    with raises_mentioning(SceneError, posed / "images", posed):
        load_capture(str(posed / "images"))
    with raises_mentioning(SceneError, posed.parent, f"did you mean {posed}?"):
        load_capture(str(posed.parent))
    capture_in(tmp_path / "deep/b/c", [PINHOLE] * 3)
    with raises_mentioning(SceneError, "did you mean", "b/c/images"):
        load_capture(str(tmp_path / "deep"))
    (tmp_path / "phone").mkdir()
    with raises_mentioning(SceneError, tmp_path / "phone", "empty"):
        load_capture(str(tmp_path / "phone"))
    (tmp_path / "phone" / "a.HEIC").touch()
    with raises_mentioning(SceneError, tmp_path / "phone", "1 .heic", "JPEG"):
        load_capture(str(tmp_path / "phone"))


def test_photos_of_one_size_and_camera_share_a_lens_and_are_matched_upright(tmp_path):
    folder = photos_in(tmp_path / "photos")
    found = find_photos(folder, print)
    groups = [" ".join(photo.name for photo in found if photo.lens == lens) for lens in {photo.lens for photo in found}]
    assert sorted(groups) == ["a.jpg b.jpg more/c 10.jpg", "d.jpg", "e.jpg", "f.png g.webp"]
    red = {"b.jpg": (38, 2), "more/c 10.jpg": (38, 58), "g.webp": (2, 58)}  # where the stored first corner is seen
    for name, photo in sfm._readable(folder, found, tmp_path / "upright").items():
        with Image.open(tmp_path / "upright" / name) as image:
            assert image.size == photo.lens[:2] and image.getexif().get(TURNED, 1) == 1
            assert image.getexif().get(MODEL, "") == "".join(photo.lens[2:]), "by which COLMAP knows focal lengths"
            assert image.convert("RGB").getpixel(red.get(photo.name, (2, 2)))[1] < 40, photo.name


def test_what_is_matched_with_what():
    walk = [f"img_{number}.jpg" for number in range(1000)]
    assert len(choose_pairs(walk[:120], False)) == 120 * 119 / 2
    assert (0, 512) in choose_pairs(walk, False) and len(choose_pairs(walk, False)) < 17_000
    assert len(choose_pairs([f"{n * 977:x}.jpg" for n in range(300)], False)) == 300 * 299 / 2, "in no order"


def test_a_model_is_made_once_and_only_of_the_same_photos(tmp_path, registers, capsys):
    photos, out = photos_in(tmp_path / "photos"), tmp_path / "out"
    registers.append(4)
    for _ in range(2):  # making it the second time would be a KeyboardInterrupt
        assert len(load_capture(str(photos), sfm_dir=str(out)).images) == 3
    assert_names(capsys.readouterr().out, "4 of 7", "more/c 10.jpg")
    (photos / "f.png").unlink()
    for folder in (out / "sparse", colmap_in(tmp_path / "other", [PINHOLE] * 3) / "images"):
        before = sorted(folder.parent.rglob("*"))
        with raises_mentioning(SceneError, folder, "--data.sfm_dir"):
            solve(photos, folder.parent)
        assert sorted(folder.parent.rglob("*")) == before


def test_poses_of_a_run_are_never_found_anew(tmp_path, registers, capsys, monkeypatch):
    """Those would be in another frame. Where they are is kept whole, and may be said anew."""
    capture_in(tmp_path / "photos", [PINHOLE] * 3)
    photos, kept, run, gone = (tmp_path / name for name in ("photos/images", "kept", "run", "poses/sparse"))
    monkeypatch.chdir(tmp_path)
    registers.append(3)
    call(train, photos, *SMALL, "--data.sfm_dir", "poses", "--out", run)
    monkeypatch.chdir("/")  # the folder was said from where it was trained
    call(eval_command, run, "--split", "train")
    (tmp_path / "poses").rename(kept)
    before = sorted(tmp_path.rglob("*.*"))
    loaded = load_run(run, "cpu")
    with raises_mentioning(SceneError, gone, "gone", "--data", "other coordinates"):
        eval_command.find_scene("", loaded.config, loaded.transform)
    with raises_mentioning(SceneError, gone, "gone"):
        run_main(train, "--resume", run, "--trainer.steps", 3)
    assert_names(str(ViewerScene.from_run(loaded).notes), gone)
    call(export, run, "cameras", "--out", tmp_path / "cameras")
    assert_names(capsys.readouterr().out, "cannot be used", gone)
    assert [file for file in sorted(tmp_path.rglob("*.*")) if tmp_path / "cameras" not in file.parents] == before
    call(eval_command, run, "--split", "train", "--data", kept)
    call(train, "--resume", run, "--trainer.steps", 3, "--data.sfm_dir", kept)


def test_inspection_looks_for_poses_only_where_a_folder_is_named(tmp_path, registers, capsys, monkeypatch):
    monkeypatch.setattr(inspect, "find_spec", lambda name: True)  # `registers` stands for pycolmap
    capture_in(photos := tmp_path / "my photos", [PINHOLE] * 3)
    (film := tmp_path / "film.mp4").write_bytes(b"not read yet")
    before = sorted(tmp_path.rglob("*"))
    for source, *what in ((photos, "3 photos", "seconds", f"train '{photos}'"), (film, "150 frames", "minutes")):
        assert run_main(inspect, source) == 0
        assert_names(capsys.readouterr().out, source, *what, "without camera poses", "--data.sfm_dir DIR")
    assert sorted(tmp_path.rglob("*")) == before
    registers.append(3)
    for _ in range(2):  # the second time they are there
        run_main(inspect, photos, "--data.sfm_dir", tmp_path / "poses")
        assert_names(capsys.readouterr().out, "3 images of", "3 to train on", f"--data.sfm_dir {tmp_path / 'poses'}")
    assert sorted(photos.rglob("*")) == [file for file in before if photos in file.parents]


def test_what_is_stopped_or_fails_leaves_nothing(tmp_path, registers):
    photos = photos_in(tmp_path / "my photos")
    before = sorted(photos.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        solve(photos)
    registers.append(3)
    with raises_mentioning(SceneError, "3 of 7", "f.png", "colmap mapper", f"--output_path '{photos}/sparse'"):
        solve(photos)
    assert sorted(photos.rglob("*")) == before


def test_a_video_gives_its_sharpest_frames(tmp_path, monkeypatch):
    film, folder = tmp_path / "film.mp4", tmp_path / "frames" / "images"
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8))
    sharp = noise.resize((384, 256), Image.Resampling.NEAREST)
    writer = imageio_ffmpeg.write_frames(str(film), sharp.size, quality=9)
    writer.send(None)
    for index in range(12):  # of four, one is sharp
        writer.send(np.ascontiguousarray(sharp if index % 4 == 2 else sharp.filter(ImageFilter.GaussianBlur(8))))
    writer.close()
    monkeypatch.setattr("nerfkit.data.sfm.FRAMES", 3)
    frames = sorted(extract_frames(film, folder, print).glob("*.jpg"))
    assert len(frames) == 3 and all(np.asarray(Image.open(frame).convert("L")).std() > 25 for frame in frames)


PAINT = np.random.default_rng(0).integers(0, 256, (6, 64, 64), np.uint8)  # of the walls of a room, 5 units wide
CORNER = Lens("SIMPLE_PINHOLE", (240, 120, 90), 240, 180)
AROUND = Lens("EQUIRECTANGULAR", (512, 256), 512, 256)


def walk_in_a_room(folder: Path, lens: Lens) -> np.ndarray:
    """Photos of a painted room, and where they were taken, [6, 3]."""
    folder.mkdir()
    local = lens.direction_map().directions.unflatten(0, (lens.height, lens.width)).double().numpy()
    poses = [look_at(np.array([2.46 - 0.25 * k, 1.29 + 0.25 * k, 2 + 0.1 * k])) for k in range(6)]
    for index, pose in enumerate(poses):
        directions = local @ pose[:3, :3].T
        distances = np.where(directions < 0, -pose[:3, 3] / directions, (5 - pose[:3, 3]) / directions)
        axis = distances.argmin(axis=-1)[..., None]
        places = pose[:3, 3] + directions * distances.min(axis=-1, keepdims=True)
        cells = (lens.focal[0] / 20 * places).astype(int) % 64
        one, two = (np.take_along_axis(cells, (axis + i) % 3, axis=-1) for i in (1, 2))
        wall = axis + 3 * (np.take_along_axis(directions, axis, axis=-1) > 0)
        Image.fromarray(PAINT[wall, one, two][..., 0]).save(folder / f"{index}.png")
    return np.array([pose[:3, 3] for pose in poses])


@pytest.mark.parametrize("lens", [CORNER, pytest.param(AROUND, marks=pytest.mark.slow)], ids=lambda lens: lens.model)
def test_poses_of_a_walk_in_a_room(tmp_path, capsys, lens: Lens):
    """Pinhole images of a corner of it, or panoramas, of which nothing says so."""
    pytest.importorskip("pycolmap")
    true = walk_in_a_room(tmp_path / "photos", lens)
    images = load_capture(str(tmp_path / "photos")).images
    found = np.array([image.camera_to_world[:, 3] for image in images])
    found, true = (np.linalg.norm(centers[1:] - centers[0], axis=1) for centers in (found, true))  # [5]
    np.testing.assert_allclose(found / found[-1], true / true[-1], rtol=0.03)
    if lens is AROUND:
        assert {image.lens for image in images} == {lens} and "6 of 6 photos are panoramas" in capsys.readouterr().out
    else:
        assert images[0].lens.params[0] == pytest.approx(240, rel=0.03)


def test_panoramas_are_told_from_other_photos_of_twice_the_height(tmp_path, capsys):
    """By what their file says, or by their edges; parts of panoramas, as phones take them, are left out."""
    walk_in_a_room(folder := tmp_path / "photos", AROUND)
    keys = '<rdf:Description GPano:ProjectionType="equirectangular" GPano:FullPanoWidthPixels="{}" />'
    for index in range(3):
        part = Image.open(folder / f"{index}.png").crop((100, 50, 300, 150))
        part.save(folder / f"part {index}.jpg")
    part.resize((80, 40)).save(folder / "said.jpg", xmp=keys.format(80).encode())
    wide = f"{keys.format(160)}<GPano:CroppedAreaImageWidthPixels>80</GPano:CroppedAreaImageWidthPixels>"
    part.resize((80, 30)).save(folder / "sweep.jpg", xmp=wide.encode())
    found = {photo.name: photo.is_panorama for photo in find_photos(folder, print)}
    assert found == {file: not file.startswith("part") for file in found} and len(found) == 10
    assert_names(capsys.readouterr().out, "7 of 10 photos are panoramas", "3 photos are twice as wide", "sweep.jpg")
