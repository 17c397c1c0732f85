# SPDX-License-Identifier: Apache-2.0
"""A training that paints each of its views, whatever stands there, is noticed by two views that count late."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nerfkit
from nerfkit.commands.options import train_options
from nerfkit.data.images import batch
from nerfkit.data.images.batch import StreamingPixels
from nerfkit.model.registry import MODELS
from nerfkit.training.run.files import read_lines
from tests.camera_layouts import ring
from tests.posed_captures import write_capture
from tests.processes import call
from tests.trainers import state_of

ALARM = "warning: two training views had"
KEYS = ("held_back_psnr", "drawn_psnr")
OPTIONS = (
    "--device cpu --sampling.kind contracted --trainer.samples_per_step 256 --trainer.steps 200 "
    "--trainer.max_seconds 0 --trainer.learning_rate 0.05 --eval.after_training false"
).split()


class Fog(nerfkit.Model):
    """Before each camera stands a color of its own."""

    ops = ()
    seen_from = staticmethod(lambda origins, eyes: torch.cdist(origins, eyes).argmin(1))

    def __init__(self, config):
        super().__init__(config)
        self.colors = nn.Parameter(torch.full((40, 3), 0.5))

    def set_training_cameras(self, cameras, all_at_once=True):
        self.eyes = cameras.positions

    def forward(self, rays, background, jitter=None, capacity=None):
        color = self.colors[self.seen_from(rays.origins, self.eyes)]
        return nerfkit.Rendering(color, torch.ones_like(color[:, 0]), torch.ones_like(color[:, 0]))


class Wall(Fog):
    """One color is before all of them."""

    seen_from = staticmethod(lambda origins, eyes: torch.zeros_like(origins[:, 0]).long())


def capture(folder: Path, n_views: int = 20) -> str:
    """Images that are black or white as a whole, of which every eighth is a test view."""
    return str(write_capture(folder / "scene", ring(n_views), lambda i: np.full((16, 24, 3), 255 * (i // 2 % 2), "u1")))


def window(pool, device, n_steps) -> StreamingPixels:
    return StreamingPixels(pool, device, 8 * pool.bytes() // len(pool))


CASES = {  # model, views, source of pixels, other options; whether it is noticed, and steps of the checks
    "fog": (Fog, 20, batch.pixel_source, (), True, [5, 10, 15, 20]),
    "fog_in_a_window": (Fog, 20, window, (), True, [5, 10, 15, 20]),
    "wall": (Wall, 20, batch.pixel_source, (), False, [5, 10, 15, 20]),
    "box": (Fog, 20, batch.pixel_source, ("--sampling.kind", "box"), False, []),
    "few": (Fog, 7, batch.pixel_source, (), False, []),
}


@pytest.mark.parametrize("name", CASES)
def test_fog_before_each_camera_is_noticed(name: str, tmp_path: Path, monkeypatch):
    model, n_views, source, options, is_noticed, steps = CASES[name]
    monkeypatch.setattr(batch, "pixel_source", source)
    monkeypatch.setitem(MODELS, "own", model)
    run, options = tmp_path / "run", (*OPTIONS, "--model.kind", "own", *options)
    printed = call("train", capture(tmp_path, n_views), *options, "--out", run)
    on_the_way, end = printed.split("trained 200 steps")
    found = [text.count(ALARM) for text in (on_the_way, end, call("summary", run))]
    assert found == [int(is_noticed)] * 3
    checks = read_lines(run, *KEYS)
    assert [line["step"] for line in checks] == steps
    if is_noticed:
        assert checks[-1]["held_back_psnr"] == pytest.approx(6, abs=0.1) and checks[-1]["drawn_psnr"] > 20
        seen = nerfkit.load_run(run, "cpu").model.colors != 0.5
        assert seen.any(1).sum() == n_views - 3, "in the end all training views have been drawn"


def trainer_of(scene: str, **options) -> nerfkit.Trainer:
    return nerfkit.Trainer(train_options([scene, *OPTIONS]), scene=nerfkit.load_scene(scene), model=Fog, **options)


@pytest.mark.parametrize("stop", [10, 30])
def test_a_training_that_goes_on_is_as_one_that_was_not_stopped(stop: int, tmp_path: Path):
    scene = capture(tmp_path)
    whole, first, second = (trainer_of(scene) for _ in range(3))
    whole.train(tmp_path / "whole")
    first.train(tmp_path / "parts", should_stop=lambda: first.step == stop)
    second.restore(tmp_path / "parts")
    second.train(tmp_path / "parts")
    assert all(torch.equal(state_of(second)[name], x) for name, x in state_of(whole).items())
    found = [[[line[key] for key in KEYS] for line in read_lines(tmp_path / run, *KEYS)] for run in ("whole", "parts")]
    assert found[0] == found[1] and len(found[0]) == 4
