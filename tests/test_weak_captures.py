# SPDX-License-Identifier: Apache-2.0
"""Captures whose light changes and whose poses are off: what `data.appearance` and `data.poses` are worth."""

import json

import pytest
import torch

from nerfkit import load_run
from nerfkit.training import alignment
from nerfkit.training.run.files import METRICS
from nerfkit.viewer.scene import ViewerScene
from tests.naming import assert_names
from tests.processes import call
from tests.weak_captures import capture, pixels_off, score, trained

pytestmark = pytest.mark.slow


def test_changing_light_does_not_spoil_the_field(small_config):
    of = capture(0, gains=0.3)
    without = score(trained(small_config, of), of)
    small_config.data.appearance = "affine"
    trainer = trained(small_config, of)
    raw, corrected = score(trainer, of), score(trainer, of, "cc")
    assert raw > without + 0.4, f"{without:.2f} dB without, {raw:.2f} dB with"
    assert corrected > raw + 0.2


def test_poses_that_are_off_are_found(small_config):
    of = capture(0, degrees=1.0)
    without = score(trained(small_config, of), of)
    small_config.data.poses = "refine"
    trainer = trained(small_config, of)
    raw, fitted = score(trainer, of), score(trainer, of, "aligned")
    before, after = pixels_off(of.given, of.true), pixels_off(trainer.adjustments.cameras(of.given), of.true)
    assert after < 0.6 * before, f"{before:.2f} pixels before, {after:.2f} after"
    assert raw > without + 2, f"{without:.2f} dB without, {raw:.2f} dB with"
    assert fitted > raw


def test_commands_train_score_and_report_them(toy_scene, tmp_path, monkeypatch):
    monkeypatch.setattr(alignment, "STEPS", 3)
    run = tmp_path / "run"
    small = (
        "--data.box -0.8 -0.8 -0.8 0.8 0.8 0.8 --model.levels 2 --model.log2_table 10 --model.max_resolution 32 "
        "--model.hidden 16 --sampling.step 0.05 --sampling.occupancy_resolution 16 --trainer.steps 30 "
        "--trainer.samples 2048 --device cpu"
    ).split()
    both = ("--data.appearance", "affine", "--data.poses", "refine")
    printed = call("train", "--data.path", toy_scene, "--out", run, *small, *both)
    assert_names(printed, "its light and its pose", "cameras moved by", "with pose and light fitted")
    metrics = json.loads((run / METRICS).read_text())
    names = ("psnr", "psnr_cc", "psnr_aligned", "psnr_aligned_cc")
    assert all(5 < metrics[name] < 60 and metrics["views"][1][name] > 5 for name in names)
    assert {"psnr_cc", "psnr_aligned"} <= metrics["protocol"].keys()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["cameras_turned"] > 0 and lines[-1]["cameras_shifted"] > 0
    again = call("eval", run, "--device", "cpu")
    assert f"{metrics['psnr_aligned']:.2f} dB with its pose fitted" in again
    assert "is not the scene" not in call("eval", run, "--split", "train", "--device", "cpu")
    call("export", run, "cameras", "--formats", "transforms")
    (exported,) = run.rglob("transforms.json")
    frames = json.loads(exported.read_text())["frames"]
    loaded = load_run(run, "cpu")
    refined, given = (cameras("train").camera_to_world for cameras in (loaded.cameras, loaded.given_cameras))
    written = torch.tensor([frame["transform_matrix"] for frame in frames])[: len(refined), :3]
    torch.testing.assert_close(written, refined, rtol=1e-5, atol=1e-5)
    assert (refined - given).abs().max() > 1e-4
    subject = ViewerScene.from_run(loaded)
    assert subject.photo is not None and torch.equal(subject.cameras.camera_to_world, refined)
