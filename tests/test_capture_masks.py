# SPDX-License-Identifier: Apache-2.0
"""What masks, and what is behind an image, do to training and scores."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.commands.inspect import InspectData, examine
from nerfkit.data.assemble import CUT_OUT
from nerfkit.data.images.batch import TrainingViews
from nerfkit.data.load import load_capture, load_scene
from nerfkit.data.readers.colmap.writer import write_model
from nerfkit.data.scene_transform.doubts import doubts_of_images
from nerfkit.errors import SceneError
from nerfkit.model.compositing import Rendering
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.evaluator import evaluate
from nerfkit.training.step.losses import squared_error
from nerfkit.training.trainer import Trainer
from tests.naming import assert_names, raises_naming
from tests.posed_captures import (
    BOX,
    LEFT,
    PINHOLE,
    STATE,
    capture_in,
    colmap_in,
    masks_in,
    trained,
    write_nerfstudio,
)


@pytest.fixture
def masked(tmp_path) -> Path:
    """A COLMAP folder whose masks are black, which ignores, on the left."""
    colmap_in(tmp_path / "scene", [PINHOLE] * 20)
    masks_in(tmp_path / "scene", ~LEFT)
    return tmp_path / "scene"


def spoilt(folder: Path) -> None:
    """Other colors where the masks are black."""
    for file in (folder / "images").iterdir():
        pixels = np.asarray(Image.open(file)).copy()
        pixels[LEFT] = 255, 0, 255, 255
        Image.fromarray(pixels).save(file)


def test_ignored_pixels_never_change_the_loss(masked):
    views = load_scene(str(masked), box=BOX).split("train")
    images = views.load()
    assert images.mask(3).equal(torch.from_numpy(LEFT))
    losses, weights = [], []
    for change in (lambda folder: None, spoilt):
        change(masked)
        torch.manual_seed(0)
        batch = TrainingViews(views.cameras, views.load(), "white").draw(500)
        losses.append(squared_error(Rendering(torch.full((500, 3), 0.3), torch.ones(500), torch.ones(500)), batch))
        weights.append(batch.weight)
    assert losses[0]["mse"].equal(losses[1]["mse"]) and losses[0]["mse"] > 0.01
    assert weights[0].unique().tolist() == [0, 1] and weights[0].mean() == pytest.approx(16 / 26, abs=0.08)
    seen = views.cameras.project(batch.rays.origins + batch.rays.directions, 0)  # of view 0 alone
    columns = seen[0][batch.view == 0, 0].floor()
    assert torch.equal(batch.weight[batch.view == 0], (columns >= 10).float())


def test_masks_that_leave_little_are_doubted(masked):
    assert doubts_of_images(load_scene(str(masked)).split("train").load()) == [], "10 of 26 columns"
    masks_in(masked, np.arange(26)[None].repeat(22, 0) >= 20)
    views = load_scene(str(masked)).split("train")
    (line,) = doubts_of_images(views.load(), views.white_ignores)
    assert_names(line, "77%", "the black ones", "white", "--data.masks cutout")
    for file in list((masked / "masks").iterdir())[:10]:
        file.unlink()
    (line,) = doubts_of_images(load_scene(str(masked)).split("train").load())
    assert_names(line, "77%")  # of images with a mask
    masks_in(masked, ~LEFT)
    cut = load_scene(str(masked), cutout=True)
    assert doubts_of_images(cut.split("train").load()) == []
    assert any("cutout" in note.text for note in cut.notes)


def test_inspection_of_what_is_cut_out(masked):
    """Masks are alpha then; what training would refuse is in the verdict, with status 1."""
    for file in (masked / "images").iterdir():
        Image.open(file).convert("RGB").save(file)
    capture = load_capture(str(masked))
    whole, _, _ = examine(capture, InspectData())
    cut, is_ready, _ = examine(capture, InspectData(masks="cutout"))
    assert_names(whole, "with alpha: 0, with mask: 20", "black is ignored")
    assert_names(cut, "with alpha: 20, with mask: 0", CUT_OUT, "kind object")
    assert is_ready and cut.endswith("ready to train")
    next(iter((masked / "masks").iterdir())).unlink()
    cut, is_ready, _ = examine(load_capture(str(masked)), InspectData(masks="cutout"))
    assert not is_ready
    assert_names(cut, "1 of 20 images have neither mask nor alpha")
    with raises_naming(SceneError, "data.masks", "1 of 20"):
        load_scene(str(masked), cutout=True)


def test_masked_pixels_are_transparent_where_an_object_is_cut_out(masked):
    scene = load_scene(str(masked), cutout=True)
    views = scene.split("train")
    images = views.load()
    assert scene.frame.kind == "object" and views.channels == 4 and images.ignored is None
    assert views.bytes() == images.bytes()
    plain = load_scene(str(masked), box=BOX).split("train").load()
    for view in range(len(images)):
        image = images.image(view)
        assert torch.equal(image[..., 3], plain.image(view)[..., 3] * ~torch.from_numpy(LEFT))
        assert torch.equal(image[..., :3], plain.image(view)[..., :3])
    batch = TrainingViews(views.cameras, images, "white").draw(500)
    assert (batch.weight == 1).all() and 0 < (batch.pixels[:, 3] == 0).float().mean() < 1


def test_ignored_pixels_leave_the_scores_alone(masked, tmp_path, small_config):
    scene = load_scene(str(masked), box=BOX)
    trainer = trained(small_config, scene.split("train").cameras, scene.split("train").load(), 3)
    trainer.save(tmp_path / "run")

    def scores() -> dict:
        views = load_scene(str(masked), box=BOX).split("test")
        return evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))

    before = scores()
    spoilt(masked)
    after = scores()
    assert [row["psnr"] for row in before["views"]] == [row["psnr"] for row in after["views"]]
    assert after["protocol"]["ignored_pixels"] == 3 * LEFT.sum()
    assert after["share_of_pixels"] == pytest.approx(1 - LEFT.mean(), abs=1e-4)
    render, truth = rendered_and_truth(trainer, load_scene(str(masked), box=BOX).split("test"))
    error = (render - truth).square()[~torch.from_numpy(LEFT)].mean().item()
    assert after["views"][0]["psnr"] == pytest.approx(-10 * math.log10(error), abs=1e-3)


def rendered_and_truth(trainer: Trainer, views) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the first view, over white, [H, W, 3] each."""
    truth = views.load().image(0).float() / 255
    render = ImageRenderer(trainer.model, torch.ones(3))(views.cameras, 0)["rgb"]
    return render, truth[..., :3] * truth[..., 3:] + 1 - truth[..., 3:]


@pytest.mark.parametrize("dialect, white_ignores", [("nerfstudio", False), ("instant-ngp", True), ("colmap", False)])
def test_what_masks_ignore_is_the_dialects_affair(tmp_path, dialect: str, white_ignores: bool):
    capture = capture_in(tmp_path, [PINHOLE] * 6)
    if dialect == "instant-ngp":  # which looks for masks beside the images, by name
        write_nerfstudio(tmp_path, capture)
        content = json.loads((tmp_path / "transforms.json").read_text())
        content = {key: value for key, value in content.items() if key not in ("camera_model", "up")}
        (tmp_path / "transforms.json").write_text(json.dumps(content | {"aabb_scale": 4}))
        for image in capture.images:
            mask = image.file.with_name(f"dynamic_mask_{image.name}")
            Image.fromarray((LEFT * 255).astype(np.uint8)).save(mask)
    else:
        masks_in(tmp_path, ~LEFT)
        if dialect == "colmap":
            write_model(tmp_path / "sparse" / "0", capture)
        else:
            masks = [replace(image, mask=tmp_path / "masks" / image.name) for image in capture.images]
            write_nerfstudio(tmp_path, replace(capture, images=masks))
    views = load_scene(str(tmp_path), box=BOX).split("train")
    assert views.white_ignores == white_ignores
    assert all(views.load().mask(view).equal(torch.from_numpy(LEFT)) for view in range(6))
