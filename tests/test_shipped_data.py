# SPDX-License-Identifier: Apache-2.0
"""The shipped scene and capture: they load, and their images, cameras, lens, ranges and surfaces agree."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from nerfkit.data.load import load_scene
from nerfkit.data.scene import Scene
from scripts.measure import true_surface

ROOT = Path(__file__).resolve().parent.parent

COUNTS = {"orrery": {"train": 100, "val": 10, "test": 20}, "room": {"train": 63, "test": 9}}
SIZES = {"orrery": (200, 200), "room": (240, 160)}  # at which there are true ranges


def needs_images_of(folder: Path) -> None:
    """An sdist, which has no .git, holds no images of the scenes; a checkout without them is broken."""
    if not folder.exists() and not (ROOT / ".git").exists():
        pytest.skip(f"the images in {folder}, megabytes, are not in the sdist")


@cache
def scene(name: str) -> Scene:
    needs_images_of(ROOT / "data" / name / ("train" if name == "orrery" else "images"))
    return load_scene(str(ROOT / "data" / name), downscale=2.0 if name == "orrery" else 1.0)


@cache
def ranges(name: str, split: str, view: int) -> torch.Tensor:
    """True ranges [H, W] in the model's units."""
    folder, frame = ROOT / "data" / name / "depth" / (split if name == "orrery" else ""), scene(name).frame
    file = folder / f"{scene(name).split(split).names[view]}.npz"
    return torch.from_numpy(np.load(file)["depth_ray"].astype(np.float32)) * (frame.scale if frame else 1.0)


def to_ranges(name: str, split: str, view: int, points: np.ndarray) -> torch.Tensor:
    """Of points [P, 3] of the files that lie in a view, the distance as a share of the range that is there, [K]."""
    cameras, true, frame = scene(name).split(split).cameras, ranges(name, split, view), scene(name).frame
    points = torch.from_numpy(frame.to_model(points) if frame else points).float()
    pixels, depth = cameras.project(points, view)
    inside = (depth > 0) & ((pixels >= 0) & (pixels < torch.tensor(SIZES[name]))).all(-1)  # NaN is not
    column, row = pixels[inside].long().unbind(-1)
    return (points - cameras.positions[view]).norm(dim=-1)[inside] / true[row, column]


@pytest.mark.parametrize("name", COUNTS)
def test_all_images_are_there(name):
    assert {split: len(views.files) for split, views in scene(name).views.items()} == COUNTS[name]
    for split, n_views in COUNTS[name].items():
        images = scene(name).split(split).load()
        assert set(images.sizes) == {SIZES[name]}
        for view in range(n_views):
            assert images.image(view).float().std() > 20
            assert split == "val" or ranges(name, split, view).shape == SIZES[name][::-1]


@pytest.mark.parametrize("name, split, view", [("orrery", "train", 60), ("room", "test", 3)])
def test_the_true_surface_is_where_ranges_end(name, split, view):
    _, visible, to_files = true_surface(ROOT / "data" / name)
    share = to_ranges(name, split, view, visible @ to_files[:3, :3].T + to_files[:3, 3])
    assert ((share - 1).abs() < 0.01).float().mean() > 0.3  # the others are hidden
    assert ((share < 0.97) & (share > 0)).float().mean() < 0.03


def test_colors_of_the_room_agree_between_views_through_ranges_and_lens():
    test, train = scene("room").split("test")[[3]], scene("room").split("train")
    beside = train[[train.names.index("frame_00026")]]
    rays = test.cameras.image_rays(0)
    points = rays.origins + rays.directions * ranges("room", "test", 3).flatten()[:, None]
    pixels, _ = beside.cameras.project(points, 0)
    inside = ((pixels >= 0) & (pixels < torch.tensor([240, 160]))).all(-1)  # NaN is not
    column, row = pixels[inside].long().unbind(-1)
    seen, here = beside.load().image(0).float()[row, column], test.load().image(0).float().view(-1, 3)[inside]
    assert inside.float().mean() > 0.5 and (seen - here).abs().mean(-1).median() < 8
