# SPDX-License-Identifier: Apache-2.0
"""Scores: what stands in metrics.json, worked out anew from the images, and the images that are to be looked at."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.load import load_scene
from nerfkit.metrics import ssim
from nerfkit.training.evaluator import evaluate
from tests.trainers import make_trainer

STATE = {"seconds": 12.345, "step": 7, "backend": {"lltm": "torch"}}


@pytest.fixture
def scored(small_config, tmp_path):
    """A field of three steps, over black, its scores and its folder; the model that gave them, and the truth."""
    small_config.data.background, small_config.trainer.steps = "black", 3
    small_config.eval.comparisons = 1
    trainer = make_trainer(small_config)
    trainer.train(tmp_path / "run")
    views = load_scene(small_config.data.path).split("test")
    metrics = evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))
    pixels = views.load().stack().double() / 255
    return metrics, trainer, views, pixels[..., :3] * pixels[..., 3:]  # over black


def rendered(trainer, cameras, view: int) -> torch.Tensor:
    """The image by the model itself, all rays at once."""
    with torch.no_grad():
        color = trainer.model(cameras.image_rays(view), torch.zeros(3)).color
    return color.clamp(0, 1).unflatten(0, (cameras.height, cameras.width))


def test_scores_are_means_over_the_views(scored):
    metrics, trainer, views, truth = scored
    images = [rendered(trainer, views.cameras, view) for view in range(2)]
    scores = [-10 * math.log10((image.double() - truth[view]).square().mean()) for view, image in enumerate(images)]
    assert [row["psnr"] for row in metrics["views"]] == pytest.approx(scores, abs=1e-3)
    assert abs(scores[0] - scores[1]) > 0.01, "they differ, so that a mean is no maximum"
    assert metrics["psnr"] == pytest.approx(sum(scores) / 2, abs=1e-3)
    similar = [ssim(image, truth[view].float()) for view, image in enumerate(images)]
    assert [row["ssim"] for row in metrics["views"]] == pytest.approx(similar, abs=1e-5)
    assert metrics["ssim"] == pytest.approx(sum(similar) / 2, abs=1e-5)
    assert [row["view"] for row in metrics["views"]] == ["r_0", "r_1"]


def test_what_is_written_of_a_run(scored):
    metrics, trainer, views, _ = scored
    assert json.loads((trainer.folder.path / "metrics.json").read_text()) == metrics
    assert (
        metrics["n_views"] == 2
        and metrics["steps"] == 7
        and metrics["train_seconds"] == pytest.approx(12.345, abs=0.01)
    )
    assert metrics["backend"] == {"lltm": "torch"}
    protocol = metrics["protocol"]
    assert protocol["split"] == "test" and protocol["background"] == [0, 0, 0] and protocol["downscale"] == 1
    assert protocol["size"] == f"{views.cameras.width}x{views.cameras.height}"
    assert protocol["lens"] == "pinhole" and protocol["ignored_pixels"] == 0
    assert set(protocol["backend"]) == set(trainer.model.used_ops)


def test_a_comparison_is_truth_render_and_error_side_by_side(scored):
    _, trainer, views, truth = scored
    (file,) = (trainer.folder.path / "eval").glob("*.png")
    image = np.asarray(Image.open(file)).astype(float) / 255
    width, render = views.cameras.width, rendered(trainer, views.cameras, 0)
    assert file.stem == "r_0" and image.shape == (views.cameras.height, 3 * width, 3)
    np.testing.assert_allclose(image[:, :width], truth[0].numpy(), atol=0.5 / 255 + 1e-6)
    np.testing.assert_allclose(image[:, width : 2 * width], render.numpy(), atol=0.5 / 255 + 1e-6)
    error, brightness = (render - truth[0]).abs().mean(-1).numpy(), image[:, 2 * width :].sum(-1)
    assert brightness[error < 0.002].max() < 0.2 and brightness[error > 0.25].min() > 2.2
    assert np.corrcoef(error.clip(max=0.25).ravel(), brightness.ravel())[0, 1] > 0.9


def test_as_many_comparisons_as_asked_for_spread_over_the_views(small_config, tmp_path):
    small_config.eval.comparisons, small_config.eval.split = 3, "train"
    trainer = make_trainer(small_config)
    trainer.save(tmp_path / "run")
    views = load_scene(small_config.data.path).split("train")
    metrics = evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))
    names = [row["view"].split("/")[-1] for row in metrics["views"]]
    third = len(names) / 3
    written = {file.stem for file in (tmp_path / "run").rglob("*.png")}
    assert written == {names[0], names[int(third)], names[int(2 * third)]}
    (tmp_path / "run/eval/train/mine.png").write_bytes(b"")
    for asked, wanted in ((2, {names[0], names[len(names) // 2]}), (0, set()), (-1, set(names))):
        small_config.eval.comparisons = asked
        evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))
        left = {file.stem for file in (tmp_path / "run").rglob("*.png")}
        assert left == wanted | {"mine"}, "of this scoring alone, and what nerfkit did not write"
