# SPDX-License-Identifier: Apache-2.0
"""The shipped scene: its files, and that its cameras mean what the format says. Mitsuba is not needed."""

import json
import math
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
SCENE = ROOT / "data" / "orrery"
COUNTS = {"train": 100, "val": 10, "test": 20}
SIZE = 400  # pixels

sys.path.insert(0, str(ROOT / "scripts"))

from orrery import cameras, model, render  # noqa: E402

from tests.shipped_scene import needs_images  # noqa: E402


@cache
def transforms(split: str) -> dict:
    return json.loads((SCENE / f"transforms_{split}.json").read_text())


@cache
def vertices() -> np.ndarray:
    """All vertices of the model, [V, 3] in the world."""
    return np.concatenate([part.mesh.vertices for part in model.build()])


def covered(split: str, index: int) -> np.ndarray:
    """Where a shipped image shows anything, bool [H, W]."""
    needs_images()
    file = SCENE / f"{transforms(split)['frames'][index]['file_path']}.png"
    return np.asarray(Image.open(file))[..., 3] > 0


def project(points: np.ndarray, camera_to_world: np.ndarray, angle_x: float) -> tuple[np.ndarray, ...]:
    """Pixel coordinates (right, down) of points [P, 3], from the corner of the image, and depths, each [P].

    A pinhole that looks down -z, with x to the right and y up.
    """
    rotation, position = camera_to_world[:3, :3], camera_to_world[:3, 3]
    x, y, z = ((points - position) @ rotation).T
    focal = SIZE / 2 / math.tan(angle_x / 2)
    return SIZE / 2 + focal * x / -z, SIZE / 2 - focal * y / -z, -z


def miss_rate(right: np.ndarray, down: np.ndarray, depth: np.ndarray, mask: np.ndarray) -> float:
    """Share of projected points that are behind the camera, outside the image or where it shows nothing."""
    column, row = np.floor(right).astype(int), np.floor(down).astype(int)
    inside = (depth > 0) & (column >= 0) & (column < SIZE) & (row >= 0) & (row < SIZE)
    hit = np.zeros(len(depth), bool)
    hit[inside] = mask[row[inside], column[inside]]
    return 1 - hit.mean()


@pytest.mark.parametrize("split", COUNTS)
def test_files_of_the_scene(split):
    needs_images()
    frames = transforms(split)["frames"]
    assert [frame["file_path"] for frame in frames] == [f"./{split}/r_{i}" for i in range(COUNTS[split])]
    assert len(list((SCENE / split).iterdir())) == COUNTS[split]
    for frame in frames:
        with Image.open(SCENE / f"{frame['file_path']}.png") as image:
            assert (image.mode, image.size) == ("RGBA", (SIZE, SIZE))
            image.load()  # a truncated file raises


@pytest.mark.parametrize("split", COUNTS)
def test_cameras_are_the_shipped_ones(split):
    content = transforms(split)
    shipped = np.array([frame["transform_matrix"] for frame in content["frames"]])
    assert content["camera_angle_x"] == cameras.CAMERA_ANGLE_X
    np.testing.assert_allclose(cameras.cameras()[split], shipped, rtol=0, atol=1e-12)


def test_views_are_seeded_in_the_order_of_the_splits():
    views = {view.name: view for view in cameras.views()}
    assert len(views) == sum(COUNTS.values())
    assert [views[name].seed for name in ("train/0", "val/0", "test/0", "test/19")] == [1, 101, 111, 130]
    assert views["test/5"].file_stem == "test/r_5"


@pytest.mark.parametrize(("split", "index"), [("test", 5), ("train", 60)])
def test_model_projects_onto_the_image(split, index):
    pose = np.array(transforms(split)["frames"][index]["transform_matrix"])
    mask = covered(split, index)
    right, down, depth = project(vertices(), pose, transforms(split)["camera_angle_x"])
    assert miss_rate(right, down, depth, mask) < 0.001
    rows, columns = np.nonzero(mask)
    expected = [columns.min(), rows.min(), columns.max(), rows.max()]
    box = [np.floor(edge) for edge in (right.min(), down.min(), right.max(), down.max())]
    np.testing.assert_allclose(box, expected, atol=2)


@pytest.mark.parametrize(("split", "index"), [("test", 5), ("train", 60)])
@pytest.mark.parametrize(
    "axes",
    [
        pytest.param((1, -1, -1), id="opencv"),  # y down, looking down +z
        pytest.param((1, -1, 1), id="y_down"),
        pytest.param((-1, 1, 1), id="x_left"),
    ],
)
def test_other_axes_miss_the_image(split, index, axes):
    pose = np.array(transforms(split)["frames"][index]["transform_matrix"])
    wrong = pose @ np.diag([*axes, 1.0])
    projected = project(vertices(), wrong, transforms(split)["camera_angle_x"])
    assert miss_rate(*projected, covered(split, index)) > 0.1


def test_parts_of_the_model_are_sound():
    parts = model.build()
    assert len({part.name for part in parts}) == len(parts)
    for part in parts:
        points, faces, uv, normals = part.mesh
        for values in (points, uv, normals):
            assert values is None or np.isfinite(values).all(), part.name
        assert faces.min() == 0 and faces.max() == len(points) - 1, part.name
        assert uv is None or uv.shape == (len(points), 2), part.name
        assert normals is None or normals.shape == points.shape, part.name


def test_image_has_straight_alpha_in_srgb():
    half_covered = [0.25, 0.5, 0.0, 0.5]  # linear, premultiplied: of color (0.5, 1, 0)
    image = render.to_image(np.array([[half_covered, [0.1, 0.1, 0.1, 0.0]]], np.float32))
    assert image.mode == "RGBA"
    np.testing.assert_array_equal(np.asarray(image), [[[188, 255, 0, 128], [0, 0, 0, 0]]])
