# SPDX-License-Identifier: Apache-2.0
"""Pixels decide, not headers: whether alpha is one, how many bits there are, what masks keep, where an object is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.capture import Points
from nerfkit.data.load import load_scene
from nerfkit.data.scene_transform.doubts import doubts_of_images
from nerfkit.data.sfm.photographs import find_photographs
from nerfkit.errors import SceneError
from tests.naming import assert_names, raises_naming
from tests.posed_captures import (
    HEIGHT,
    PINHOLE,
    WIDTH,
    capture_in,
    masks_in,
    noise,
    write_capture,
    write_colmap,
    write_synthetic,
)
from tests.rigs import ring
from tests.toy_scene import BALLS, RADII

LEFT = np.arange(WIDTH)[None].repeat(HEIGHT, 0) < 10
ORRERY = Path(__file__).parents[1] / "data" / "orrery"


def rgba(index: int, alpha: np.ndarray | int) -> np.ndarray:
    return np.dstack([noise(index), np.full((HEIGHT, WIDTH), alpha, np.uint8)])


def multiplied(index: int) -> np.ndarray:
    alpha = np.arange(WIDTH) * 10
    return np.dstack([noise(index) * (alpha[:, None] / 255), np.full((HEIGHT, WIDTH), alpha)]).astype(np.uint8)


def written(folder: Path, picture) -> str:
    return str(write_capture(folder, ring(20), picture))


@pytest.mark.parametrize(
    ("picture", "channels", "said"),
    [
        (noise, 3, ()),
        (lambda k: rgba(k, 255), 3, ("alpha", "16 of 17")),
        (lambda k: rgba(k, 254), 3, ("alpha", "16 of 17")),
        (lambda k: rgba(k, 255) if k == 5 else noise(k), 3, ("alpha", "1 of 1")),
        (lambda k: rgba(k, 255 * LEFT), 4, ()),
        (lambda k: rgba(k, np.arange(WIDTH) * 10), 4, ()),
        (multiplied, 4, ("straight alpha",)),
    ],
)
def test_alpha_that_is_opaque_is_none(tmp_path, picture, channels: int, said: tuple):
    scene = load_scene(written(tmp_path, picture))
    assert scene.split("train").channels == channels and scene.is_place == (channels == 3)
    notes = [note.text for note in scene.notes if "alpha" in note.text]
    assert len(notes) == bool(said)
    if said:
        assert_names(notes[0], *said)


@pytest.mark.parametrize("alpha", [0, 1])
def test_images_of_which_alpha_shows_nothing_are_refused(tmp_path, alpha: int):
    with raises_naming(SceneError, "alpha", f"{alpha} of 255", "RGB"):
        load_scene(written(tmp_path, lambda k: rgba(k, alpha)))


def test_an_image_whose_alpha_would_be_lost_is_named(tmp_path):
    scene = load_scene(written(tmp_path, lambda k: rgba(k, 255)))
    file = scene.split("train").files[-1]
    Image.fromarray(rgba(0, 255 * LEFT)).save(file)
    with raises_naming(SceneError, file.name, "transparent"):
        scene.split("train").load()


def palette(labels: np.ndarray) -> Image.Image:
    image = Image.fromarray(labels.astype(np.uint8), "P")
    image.putpalette([0, 0, 0, 128, 0, 0, 0, 0, 200])
    return image


@pytest.mark.parametrize(
    "mask",
    [
        lambda keep, k: Image.fromarray(255 * keep),
        lambda keep, k: Image.fromarray(keep),
        lambda keep, k: Image.fromarray(keep * np.uint8(1 + k % 3)),
        lambda keep, k: Image.fromarray(keep.astype(np.uint16)),
        *(lambda keep, k, top=top: Image.fromarray(keep * np.uint16(top)) for top in (255, 1023, 4095, 65535)),
        lambda keep, k: Image.fromarray(rgba(k, 255 * keep)),
        lambda keep, k: palette(keep * (1 + k % 2)),
    ],
    ids=["8 bits", "0/1", "labels", "0/1 in 16", "8 in 16", "10 in 16", "12 in 16", "16 bits", "alpha", "palette"],
)
def test_masks_keep_what_is_white_of_all(tmp_path, mask):
    """The first of them is all black, and the last all white."""
    folder, keeps = written(tmp_path, noise), [LEFT & (k != 0) | (k == 19) for k in range(20)]
    (tmp_path / "masks").mkdir()
    for k, keep in enumerate(keeps):
        mask(keep.astype(np.uint8), k).save(tmp_path / "masks" / f"{k:03d}.png")
    views = load_scene(folder).split("train")
    images = views.load()
    for view, file in enumerate(views.files):
        assert images.mask(view).equal(torch.from_numpy(~keeps[int(file.stem)])), file


def test_masks_that_leave_nothing_are_refused(tmp_path):
    folder = written(tmp_path, noise)
    masks_in(tmp_path, np.zeros_like(LEFT))
    with raises_naming(SceneError, "masks", "17 images", "black"):
        load_scene(folder).split("train").load()


def test_masks_of_an_object_in_the_middle_are_no_mistake(tmp_path):
    folder, middle = written(tmp_path, noise), np.zeros_like(LEFT)
    middle[4:12, 6:18] = True
    masks_in(tmp_path, middle)
    assert not doubts_of_images(load_scene(folder).split("train").load())


@pytest.mark.parametrize(
    ("top", "bits", "factor"),
    [(200, 8, 1), (1000, 10, 1), (3408, 12, 1), (16000, 14, 1), (60000, 16, 1), (40 * 257, 16, 257)],
)
def test_the_largest_level_of_all_gray_images_says_how_many_bits_there_are(tmp_path, top: int, bits: int, factor: int):
    """But of levels of 8 bits that were made 16, however dark."""
    levels = [
        noise(k)[..., 0].astype(np.uint32) * top // (255 if k == 3 else 400) // factor * factor for k in range(20)
    ]
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
    capture = capture_in(tmp_path, [PINHOLE] * 20)
    for image in capture.images:
        image.camera_to_world[:, 3] = unit * (image.camera_to_world[:, 3] + [aside, 0, 0])
    write_synthetic(tmp_path, capture)
    frame = load_scene(str(tmp_path)).frame
    assert (frame.scale == 1) == ((unit, aside) == (1, 0)) and not frame.warnings()
    if frame.scale != 1:
        low, high = frame.to_input(frame.box) / unit - [aside, 0, 0]
        assert (low < LOWEST + 0.02).all() and (high > HIGHEST - 0.02).all()
        assert np.ptp(frame.box, axis=0).max() == pytest.approx(2.4)
        assert (high - low).max() < 1.3 * (HIGHEST - LOWEST).max()


def test_a_box_of_points_on_a_part_of_an_object_is_not_that_of_the_object(tmp_path):
    capture = capture_in(tmp_path, [PINHOLE] * 20)
    positions = BALLS[1] + 0.1 * np.random.default_rng(0).normal(size=(50, 3))
    points = Points(positions, np.zeros((50, 3), np.uint8), np.full(50, 4), np.tile(np.arange(4), 50))
    write_colmap(tmp_path, replace(capture, points=points))
    frame = load_scene(str(tmp_path)).frame
    away = np.abs(frame.to_model(BALLS) - frame.box.mean(0)) + frame.scale * RADII[:, None] / 2
    assert (away < np.ptp(frame.box, axis=0) / 2).all()


def test_what_ships_keeps_the_usual_box():
    assert load_scene(str(ORRERY), downscale=4).frame.scale == 1


def test_depth_and_masks_beside_photographs_are_none(tmp_path, capsys):
    for k in range(3):
        Image.fromarray(noise(k)).save(tmp_path / f"frame-{k}.color.png")
        Image.fromarray(noise(k)[..., 0]).save(tmp_path / f"frame-{k}.depth.png")
        Image.fromarray(noise(k)[..., 0]).save(tmp_path / f"{k}_mask.png")
        Image.fromarray(noise(k)[..., 0].astype(np.uint16)).save(tmp_path / f"far{k}.png")
    found = find_photographs(tmp_path, print)
    assert [photo.name for photo in found] == [f"frame-{k}.color.png" for k in range(3)]
    assert_names(capsys.readouterr().out, "9", "depth")
    for photo in found:
        (tmp_path / photo.name).unlink()
        (tmp_path / f"{photo.name[6]}_mask.png").unlink()
        (tmp_path / f"far{photo.name[6]}.png").unlink()
    assert len(find_photographs(tmp_path, print)) == 3, "all of a kind are what is meant"
