# SPDX-License-Identifier: Apache-2.0
"""Captures from their files to rays and scores: one scene in every format, lenses, images of several sizes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.images.batch import TrainingViews
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Scene
from nerfkit.training.evaluator import evaluate
from tests.naming import assert_names
from tests.posed_captures import (
    BOX,
    LARGE,
    PINHOLE,
    SIZE,
    STATE,
    WIDE,
    WRITERS,
    capture_in,
    colmap_in,
    psnr_of,
    trained,
)


@pytest.mark.parametrize("lenses", [[PINHOLE] * 20, [PINHOLE] * 5], ids=["20 images", "5 images"])
@pytest.mark.parametrize("format", WRITERS)
def test_every_format_gives_the_same_rays(tmp_path, format: str, lenses: list[Lens]):
    """After each one's frame is taken out, they are those that the images were traced along."""
    capture = capture_in(tmp_path, lenses)
    WRITERS[format](tmp_path, capture)
    scene = load_scene(str(tmp_path))
    local = PINHOLE.direction_map().directions.double()
    wanted = {image.name: image.camera_to_world for image in capture.images}
    found = 0
    for views in scene.views.values():
        for view, file in enumerate(views.files):
            rays, pose = views.cameras.image_rays(view), wanted[file.name]
            origins = scene.frame.to_input(rays.origins.double().numpy())
            directions = scene.frame.directions_to_input(rays.directions.double().numpy())
            np.testing.assert_allclose(origins, np.broadcast_to(pose[:, 3], origins.shape), atol=1e-5)
            np.testing.assert_allclose(directions, local.numpy() @ pose[:, :3].T, atol=1e-5)
            np.testing.assert_array_equal(views.load().image(view).numpy(), np.asarray(Image.open(file)))
            found += 1
    assert found == len(lenses), "all of them"
    if format != "nerf_synthetic":
        assert len(scene.views.get("test", views).files) == (3 if len(lenses) == 20 else 5)


def test_a_lens_that_is_heeded_scores_higher(tmp_path, small_config):
    colmap_in(tmp_path, [WIDE] * 24, distance=1.2)
    scene = load_scene(str(tmp_path), box=BOX)
    views, held_out = scene.split("train"), scene.split("test")
    assert views.cameras.lenses[0] == WIDE and scene.split("test").cameras.table is not None
    heeded, ignored = (
        psnr_of(trained(small_config, change(views.cameras), views.load()), change(held_out.cameras), held_out.load())
        for change in (lambda cameras: cameras, Cameras.pinhole)
    )
    assert heeded > ignored + 2.5, (heeded, ignored)


def mixed(folder: Path) -> Scene:
    return load_scene(str(colmap_in(folder, [PINHOLE, LARGE] * 10)), box=BOX)


def test_pixels_of_several_sizes_are_drawn_equally(tmp_path):
    views = mixed(tmp_path).split("train")
    images = views.load()
    assert set(images.sizes) == {SIZE, (52, 44)}
    training = TrainingViews(views.cameras, images, "white")
    view, row, column, color, _ = training.source.draw(200_000)
    pixel = images.first[view] + row * torch.tensor([width for width, _ in images.sizes])[view] + column
    for index, (width, height) in enumerate(images.sizes):
        share = (view == index).float().mean().item()
        assert share == pytest.approx(width * height / len(images.pixels), rel=0.08)
        drawn = view == index
        assert column[drawn].max() == width - 1 and row[drawn].max() == height - 1 and row.min() == column.min() == 0
        assert torch.equal(color[drawn], images.image(index)[row[drawn], column[drawn]])
    counts = pixel.bincount(minlength=len(images.pixels))
    assert counts.float().var() / counts.float().mean() == pytest.approx(1, abs=0.1), "as of a Poisson process"
    batch = training.draw(300)
    for ray in range(300):
        seen, _ = views.cameras.project((batch.rays.origins + batch.rays.directions)[ray : ray + 1], batch.view[ray])
        column, row = seen[0].floor().long().tolist()
        assert torch.equal(batch.pixels[ray], images.image(batch.view[ray])[row, column])


def test_views_of_several_sizes_are_scored(tmp_path, small_config):
    scene = mixed(tmp_path / "scene")
    views = scene.split("test")
    assert [file.name for file in views.files] == ["r_00.png", "r_08.png", "r_16.png"], "none of which is trained"
    trainer = trained(small_config, scene.split("train").cameras, scene.split("train").load(), 3)
    trainer.save(tmp_path / "run")
    metrics = evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))
    assert_names(metrics["protocol"]["size"], *{f"{width}x{height}" for width, height in views.cameras.sizes()})
    assert metrics["n_views"] == 3 and all(row["psnr"] > 5 for row in metrics["views"])
