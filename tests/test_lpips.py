# SPDX-License-Identifier: Apache-2.0
"""LPIPS, with random weights in the file's place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torchmetrics.functional.image.lpips
from torch import nn

from nerfkit.data.load import load_scene
from nerfkit.errors import UserError
from nerfkit.metrics import CONVOLUTIONS, LPIPS_MIN_SIDE, Lpips
from nerfkit.training.evaluator import evaluate
from tests.naming import raises_naming
from tests.trainers import make_trainer

CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A file as torchvision's, of random weights that keep features from dying out."""
    torch.manual_seed(0)
    state = {}
    for n, n_in, n_out in zip(CONVOLUTIONS, CHANNELS[:-1], CHANNELS[1:], strict=True):
        state[f"features.{n}.weight"] = torch.randn(n_out, n_in, 3, 3) * (2 / (9 * n_in)) ** 0.5
        state[f"features.{n}.bias"] = 0.1 * torch.randn(n_out)
    file = tmp_path_factory.mktemp("vgg") / "vgg16.pth"
    torch.save(state, file)
    return file


def images() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    truth = torch.rand(40, 33, 3)
    return truth, truth + 0.1 * torch.randn_like(truth)


def test_equal_images_have_no_distance_and_more_noise_a_larger_one(weights):
    lpips = Lpips(weights)
    truth, noisy = images()
    assert lpips(truth, truth) == 0
    distances = [lpips(truth + share * (noisy - truth), truth) for share in (0.1, 0.3, 1.0, 3.0)]
    assert distances == sorted(distances) and distances[0] > 0
    assert lpips(noisy, truth) == pytest.approx(lpips(truth, noisy), rel=1e-5)
    assert lpips(truth[: LPIPS_MIN_SIDE - 1], truth[: LPIPS_MIN_SIDE - 1]) is None


def test_values_are_those_of_the_equation(weights):
    """VGG-16 as its authors draw it, pixel by pixel over lengths and weights."""
    blocks, layers = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)), []
    widths, compared = iter(zip(CHANNELS[:-1], CHANNELS[1:], strict=True)), []
    for block in blocks:
        layers += [layer for _ in block for layer in (nn.Conv2d(*next(widths), 3, padding=1), nn.ReLU())]
        compared.append(len(layers) - 1)
        layers.append(nn.MaxPool2d(2))
    state = torch.load(weights, weights_only=True)
    features = nn.Sequential(*layers[:-1])
    features.load_state_dict({name.removeprefix("features."): value for name, value in state.items()})
    linear = Path(torchmetrics.functional.image.lpips.__file__).parent / "lpips_models" / "vgg.pth"
    fitted = torch.load(linear, map_location="cpu", weights_only=True)
    mean, deviation = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    truth, noisy = images()
    x, y = (((image * 2 - 1 - mean) / deviation).movedim(-1, 0)[None] for image in (truth, noisy))
    wanted = 0.0
    with torch.no_grad():
        for index, layer in enumerate(features):
            x, y = layer(x), layer(y)
            if index in compared:
                difference = x / x.norm(dim=1, keepdim=True) - y / y.norm(dim=1, keepdim=True)
                weight = fitted[f"lin{compared.index(index)}.model.1.weight"]
                wanted += (weight * difference.nan_to_num() ** 2).sum(1).mean().item()
    assert Lpips(weights)(noisy, truth) == pytest.approx(wanted, rel=1e-4)


def test_a_file_without_such_weights_is_refused(weights, tmp_path):
    (tmp_path / "text.pth").write_text("no weights")
    os.mkfifo(tmp_path / "pipe.pth")  # that nobody writes to
    for name in ("none.pth", "text.pth", "pipe.pth"):
        with raises_naming(UserError, "eval.lpips", tmp_path / name):
            Lpips(tmp_path / name)
    state = torch.load(weights, weights_only=True)
    torch.save({name: value for name, value in state.items() if "21" not in name}, tmp_path / "part.pth")
    with raises_naming(UserError, "eval.lpips", "features.21.weight"):
        Lpips(tmp_path / "part.pth")


@pytest.mark.parametrize("given", [False, True])
def test_scores_hold_it_or_null(weights, small_config, tmp_path, given: bool):
    trainer = make_trainer(small_config)
    trainer.save(tmp_path / "run")
    small_config.eval.lpips = str(weights) if given else ""
    views = load_scene(small_config.data.path).split("test")
    state = {"seconds": 1.0, "step": 0}
    metrics = evaluate(trainer.model, small_config, views, state, trainer.folder, torch.device("cpu"))
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written["lpips"] == metrics["lpips"]
    assert (metrics["lpips"] is not None) == given and (metrics["protocol"]["lpips"] is not None) == given
    if given:
        assert metrics["lpips"] == pytest.approx(sum(row["lpips"] for row in metrics["views"]) / len(views.files))
