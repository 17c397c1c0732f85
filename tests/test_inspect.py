# SPDX-License-Identifier: Apache-2.0
"""The page about a capture, and its drawing."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nerfkit.commands.inspect import FEW_IMAGES, MAX_CAMERAS, MAX_LENSES, Inspection, OnDisk, draw
from nerfkit.data.cameras.cameras import MAX_DIRECTIONS
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Note, PosedImage, notes_of
from nerfkit.data.scene_transform.find_frame import find_frame
from nerfkit.data.scene_transform.frame import identity_frame
from tests.naming import assert_names
from tests.rigs import RIGS, cloud, ring

LENS = Lens("OPENCV", (90.0, 91.0, 50.0, 40.0, 0.01, -0.02, 0.0, 0.0), 100, 80)
WIDE = Lens("OPENCV_FISHEYE", (30.0, 30.0, 50.0, 40.0, 0.1, 0.0, 0.0, 0.0), 100, 80)
RULE = "every 8th of the sorted names is a test image"


def capture_of(poses: np.ndarray, lenses: tuple[Lens, ...] = (LENS,), **values) -> Capture:
    """A capture of `poses` [V, 3, 4], whose lenses take turns."""
    images = [
        PosedImage(f"images/{k:04d}.jpg", Path(f"images/{k:04d}.jpg"), pose, lenses[k % len(lenses)])
        for k, pose in enumerate(poses)
    ]
    return Capture("toy", "colmap", images, **values)


def splits_of(capture: Capture) -> dict[str, list[str]]:
    names = [image.name for image in capture.images]
    return {"train": [name for k, name in enumerate(names) if k % 8], "test": names[::8]}


def inspected(capture: Capture, found: list[OnDisk | None], splits: dict | None = None) -> Inspection:
    names = splits_of(capture)
    return Inspection(capture, find_frame(capture), found, names if splits is None else splits, RULE)


def page(capture: Capture, found: list[OnDisk | None]) -> str:
    return inspected(capture, found).page()


def test_the_page_says_what_was_found():
    poses = RIGS["corridor"]
    notes = notes_of("sparse/1 of 2 was read")
    capture = capture_of(poses, (LENS, WIDE), points=cloud((0, 2, 0), 0.3, 40), notes=notes, white_ignores=True)
    found: list = [OnDisk(50, 40, ignored=0.25)] * 40
    found[3] = found[9] = None
    text = page(capture, found)
    assert_names(text, "toy", "colmap", "sparse/1 of 2 was read", RULE, "white is ignored", "25.0%")
    assert_names(text, "40 listed", "38 exist", "2 missing", "images/0003.jpg, images/0009.jpg", "sizes: 50x40")
    assert_names(text, "OPENCV 100x80", "58 x 47 degrees", "fy 91 cx 50 cy 40 k1 0.01 k2 -0.02 p1 0 p2 0: 20 images")
    assert_names(text, "OPENCV_FISHEYE 100x80", "k4 0: 20 images", "kind walk-through", "test: 5 (images/0000.jpg")
    assert all(note.text in text for note in find_frame(capture).notes)
    n_bytes = 38 * 50 * 40 * 4 + 2 * 50 * 40 * 12
    assert f"about {n_bytes / 2**20:.0f} MB" in text


def test_every_lens_is_named_or_counted_and_so_is_its_table_of_directions():
    """Of many lenses together no more than a table may have."""
    lenses = tuple(replace(LENS, params=(100.0 + k, *LENS.params[1:])) for k in range(60))
    text = page(capture_of(ring(60), lenses), [OnDisk(4000, 3200)] * 60)
    assert all(f"fx {100 + k} " in text for k in range(MAX_LENSES))
    assert f"{60 - MAX_LENSES} more of OPENCV" in text and "to 159" in text
    directions = text.split("directions of 60 lenses ")[1]
    assert 0 < int(directions.split(" MB")[0]) <= MAX_DIRECTIONS * 12 / 2**20


def problems(found: list[OnDisk | None], splits: dict | None = None, **values) -> str:
    return "\n".join(inspected(capture_of(ring(len(found)), **values), found, splits).problems())


def test_verdict():
    fine = [OnDisk(100, 80)] * 30
    assert not problems(fine) and page(capture_of(ring(30)), fine).endswith("ready to train")
    assert not problems([OnDisk(33, 27)] * 30)  # a third, rounded
    for broken, named in (
        ([None] * 16 + fine[16:], ("16 of 30", "more than half", "and 13 more")),
        ([*fine[:-1], OnDisk(80, 100)], ("side", "images/0029.jpg")),
        ([*fine[:-2], OnDisk(90, 80), OnDisk(100, 80)], ("shape", "images/0028.jpg")),
        ([*fine[:-1], OnDisk(100, 80, has_alpha=True)], ("1 images have alpha",)),
        ([*fine[:-3], *[OnDisk(100, 80, ignored=0.1)] * 3], ("27 of 30", "mask")),
        ([OnDisk(100, 80, ignored=0.9)] * 30, ("90%", "black", "white", "--data.masks cutout")),
        (fine[: FEW_IMAGES - 1], (f"{FEW_IMAGES - 1 - 2} training images",)),
    ):
        assert_names(problems(broken), *named)
    noted = problems(fine, notes=notes_of("warning: of no kind", Note("warning", "mend this")))
    assert noted == "mend this", "by what a note is, not by what it says"
    assert "test" in problems(fine, {"train": ["images/0000.jpg"] * 30, "test": []})
    assert "training" in problems(fine, {})
    stray = cloud((50, 0, 0), 10, 30)
    assert "outside of the box" in problems(fine, points=stray)


def test_report_is_printable_whatever_names_there_are():
    capture = capture_of(ring(20), notes=notes_of("a\nb\x1b[31m"))
    images = [replace(image, name=f"\n{k}\x1b" + "n" * 500) for k, image in enumerate(capture.images)]
    text = page(replace(capture, name="x\n\x1by" * 300, images=images), [None] * 20)
    assert all(line.isprintable() for line in text.split("\n")) and len(text) < 8000


HARD = {
    "one": capture_of(ring(1)),
    "many": capture_of(np.tile(ring(50), (3 * MAX_CAMERAS // 50, 1, 1))),
    "named": replace(capture_of(ring(1)), name="$\\frac{\\ \u706b \n"),
    "usual": capture_of(ring(), (LENS, WIDE), points=cloud((0, 2, 0), 0.3, 30)),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.filterwarnings("error")
def test_drawing(name: str):
    capture = HARD[name]
    splits = splits_of(capture) if name == "usual" else {"$_": [capture.images[0].name]}
    for frame in (find_frame(capture), identity_frame(np.array([[-1e6] * 3, [1e6] * 3]), up=(0, 1, 0))):
        with Image.open(io.BytesIO(draw(capture, frame, splits))) as image:
            assert (image.format, image.size) == ("PNG", (1500, 600))
            pixels = np.asarray(image.convert("RGB")).astype(int)
        for third in np.split(pixels, 3, axis=1):
            assert (third < 200).any(-1).sum() > 300
        for color in ((31, 119, 180), (255, 127, 14), (214, 39, 40)) if name == "usual" else ():  # train, test, up
            assert (np.abs(pixels - color).max(-1) < 20).sum() > 20, color
