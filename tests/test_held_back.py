# SPDX-License-Identifier: Apache-2.0
"""A training that paints each of its views, whatever stands there, is noticed by two views that count late."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nerfkit
from nerfkit.commands import summary
from nerfkit.data.images import batch
from nerfkit.data.images.batch import WindowOfPixels
from nerfkit.model.registry import MODELS
from nerfkit.training.run.files import read_lines
from tests.posed_captures import write_capture
from tests.processes import call, in_processes, run_main
from tests.rigs import ring
from tests.trainers import state_of

ALARM = "warning: before they were drawn"
KEYS = ("held_back_psnr", "drawn_psnr")


class Fog(nerfkit.Model):
    """Before each camera stands a color of its own; only light from black to white."""

    ops = ()

    def __init__(self, config):
        super().__init__(config)
        self.colors, self.eyes = nn.Parameter(torch.full((40, 3), 0.5)), None

    def observe(self, cameras, all_at_once=True):
        self.eyes = cameras.positions

    def forward(self, rays, background, jitter=None, capacity=None):
        color = self.colors[self.seen(rays)]
        return nerfkit.Rendering(color, torch.ones_like(color[:, 0]), torch.ones_like(color[:, 0]))

    def seen(self, rays):
        return torch.cdist(rays.origins, self.eyes).argmin(1)


class Wall(Fog):
    """One color is before all of them."""

    def seen(self, rays):
        return torch.zeros_like(rays.origins[:, 0]).long()


def trainer_of(folder: Path, model=Fog, n_views: int = 20, kind: str = "contracted", **options) -> nerfkit.Trainer:
    """Of a capture of images that are black or white as a whole, of which every eighth is a test view."""
    if not folder.exists():
        write_capture(folder, ring(n_views), lambda i: np.full((16, 24, 3), 255 * (i // 2 % 2), np.uint8))
    config = nerfkit.Config(device="cpu")
    config.sampling.kind, config.trainer.samples, config.trainer.max_seconds = kind, 256, 0.0
    config.trainer.steps, config.trainer.learning_rate = 200, 0.05
    return nerfkit.Trainer(config, scene=nerfkit.load_scene(str(folder)), model=model, **options)


def window(pool, device, n_steps) -> WindowOfPixels:
    """Of eight images."""
    return WindowOfPixels(pool, device, 8 * pool.bytes() // len(pool))


CASES = {  # options, whether it is noticed, and steps of the checks
    "fog": ({}, True, [5, 10, 15, 20]),
    "fog_in_a_window": ({"source": window}, True, [5, 10, 15, 20]),
    "wall": ({"model": Wall}, False, [5, 10, 15, 20]),
    "box": ({"kind": "box"}, False, []),
    "few": ({"n_views": 7}, False, []),
}


@pytest.mark.parametrize("name", CASES)
def test_fog_before_each_camera_is_noticed(name: str, tmp_path: Path, monkeypatch, capsys):
    options, is_noticed, steps = CASES[name]
    monkeypatch.setattr(batch, "pixel_source", options.get("source", batch.pixel_source))
    trainer = trainer_of(tmp_path / "scene", **{key: value for key, value in options.items() if key != "source"})
    trainer.train(tmp_path / "run")
    run_main(summary, tmp_path / "run")
    assert capsys.readouterr().out.count(ALARM) == 2 * is_noticed, "on the way, and afterwards"
    checks = read_lines(tmp_path / "run", *KEYS)
    assert [line["step"] for line in checks] == steps
    if is_noticed:
        assert checks[-1]["held_back_psnr"] == pytest.approx(6, abs=0.1) and checks[-1]["drawn_psnr"] > 20
        n_painted = int((trainer.model.colors != 0.5).any(1).sum())
        assert n_painted == len(trainer.cameras), "in the end all views have been drawn"


def test_the_command_says_so_on_the_way_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "fog", Fog)
    trainer_of(tmp_path / "scene")
    options = (
        "--device cpu --model.kind fog --sampling.kind contracted --trainer.samples 256 --trainer.steps 200".split()
    )
    rest = ("--trainer.learning_rate", 0.05, "--trainer.max_seconds", 0, "--eval.after_training", "false")
    printed = call("train", tmp_path / "scene", "--out", tmp_path / "run", *options, *rest)
    assert printed.count(ALARM) == 2 and printed.index(ALARM) < printed.index("trained 200 steps")


@pytest.mark.parametrize("stop", [10, 30])
def test_a_training_that_goes_on_is_as_one_that_was_not_stopped(stop: int, tmp_path: Path):
    whole, first, second = (trainer_of(tmp_path / "scene") for _ in range(3))
    whole.train(tmp_path / "whole")
    first.train(tmp_path / "parts", should_stop=lambda: first.step == stop)
    second.restore(tmp_path / "parts")
    second.train(tmp_path / "parts")
    assert all(torch.equal(state_of(second)[name], x) for name, x in state_of(whole).items())
    found = [[[line[key] for key in KEYS] for line in read_lines(tmp_path / run, *KEYS)] for run in ("whole", "parts")]
    assert found[0] == found[1] and len(found[0]) == 4


def test_of_several_processes_the_first_looks(tmp_path: Path):
    trainer_of(tmp_path / "scene")

    def train(processes):
        trainer = trainer_of(tmp_path / "scene", processes=processes)
        trainer.train(tmp_path / "run")
        return trainer.model.colors.data

    one, other = in_processes(2, tmp_path, train)
    assert torch.equal(one, other) and [line["step"] for line in read_lines(tmp_path / "run", *KEYS)] == [3, 5, 8, 10]
