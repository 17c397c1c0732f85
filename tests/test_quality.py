# SPDX-License-Identifier: Apache-2.0
"""Whether training still learns: the shipped object and room, captures of changing light, and with passers-by."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.data.cameras.cameras import Rays
from nerfkit.data.images.batch import Batch, ImagePool
from nerfkit.data.images.pixels import blend
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Scene
from nerfkit.metrics import psnr
from nerfkit.model.compositing import Rendering
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training import evaluator
from nerfkit.training.run.files import METRICS
from nerfkit.training.step.outliers import Outliers
from nerfkit.training.trainer import Trainer
from tests.naming import assert_names
from tests.noisy_captures import capture, pixels_off, score, trained
from tests.processes import ROOT, call
from tests.trainers import make_trainer


def needs_images_of(folder: Path) -> None:
    """An sdist, which has no .git, holds no images of the scenes; a checkout without them is broken."""
    if not folder.exists() and not (ROOT / ".git").exists():
        pytest.skip(f"the images in {folder}, megabytes, are not in the sdist")


@cache
def scene(name: str, downscale: float) -> Scene:
    needs_images_of(ROOT / "data" / name / ("images" if name == "room" else "train"))
    return load_scene(str(ROOT / "data" / name), downscale=downscale)


WHITE = torch.ones(3)

# PSNR of the object's test views at 50x50, seeds 0 to 7, measured on a CPU: 23.14 dB of the field, 23.78 dB with both
# stages along the ray. The deviation of one run is 0.46, that of a mean of three seeds 0.27.
MARGIN = 0.8  # three deviations of a mean of three
FLOOR = 21.5  # three and a half deviations of one run below the field's mean
VARIANTS = {"field": (False, False), "both": (True, True)}

# PSNR of the room's test views at 120x80 and median relative error of their depth, after 1200 small steps: 20.2 dB to
# 20.3 dB and 0.050 to 0.056 with seeds 0 to 2; in a box 19.13 and 0.246; with the lens turned over 19.10 and 0.116.
ROOM_FLOOR, ROOM_MOST_OFF = 19.8, 0.075  # between the seeds and the faults

# configs/room_cpu.toml at full size, 2000 steps: 20.37 dB and 0.024 with seed 0, 20.66 dB and 0.023 with seed 1.
WHOLE_FLOOR, WHOLE_MOST_OFF = 19.7, 0.045


def options(preset: str, steps: int, downscale: float) -> Config:
    config = config_module.load([preset])
    config.seed, config.device, config.data.downscale = 0, "cpu", downscale
    config.trainer.steps, config.trainer.max_seconds = steps, 0
    return config


@pytest.fixture
def short_warmup(monkeypatch):
    monkeypatch.setattr(OccupancyGrid, "warmup_steps", 64)


def small_object(steps: int, downscale: float) -> Config:
    """The object's recipe in miniature."""
    config = options("orrery_cpu", steps, downscale)
    config.model.log2_hashmap_size, config.model.base_resolution, config.model.max_resolution = 14, 16, 96
    config.model.mlp_width = 16
    config.sampling.step_size, config.sampling.occupancy_resolution = 0.04, 24
    config.trainer.samples_per_step = 4096
    return config


def score_of_object(config: Config, changed: Callable[[ImagePool], ImagePool] = lambda images: images) -> float:
    """Mean PSNR of the test views after a training on `changed` images."""
    train, test = (scene("orrery", config.data.downscale).split(split) for split in ("train", "test"))
    trainer = Trainer(config, train.cameras, changed(train.load()))
    trainer.train()
    image_of, images = ImageRenderer(trainer.model.eval(), WHITE), test.load()
    views = range(len(test.cameras))
    return mean(psnr(image_of(test.cameras, view)["rgb"], blend(images.image(view), WHITE)) for view in views)


@cache
def object_score(variant: str, seed: int) -> float:
    config = small_object(400, 8)
    config.seed = seed
    config.model.encoder, config.model.aggregator = VARIANTS[variant]
    return score_of_object(config)


def test_the_shipped_scene_is_learned(short_warmup):
    assert object_score("both", 0) > FLOOR


@pytest.mark.slow
def test_no_stage_along_the_ray_costs_quality(short_warmup):
    """Means of three seeds; see above what is chance."""
    field, both = ([object_score(variant, seed) for seed in (0, 1, 2)] for variant in ("field", "both"))
    assert min(*field, *both) > FLOOR
    assert mean(both) > mean(field) - MARGIN, (field, both)


def small_room(steps: int, downscale: float) -> Config:
    """The room's recipe in miniature: few intervals, so that a step has many rays."""
    config = options("room_cpu", steps, downscale)
    config.model.log2_hashmap_size, config.model.mlp_width = 16, 16
    config.sampling.occupancy_resolution = 64
    config.sampling.step_size = config.sampling.cone_angle = 0.06
    config.trainer.samples_per_step = 4096
    return config


def room_scores(config: Config) -> tuple[float, float]:
    """Mean PSNR of the test views in dB, and the median relative error of their depth where there is a surface."""
    room = scene("room", config.data.downscale)
    trainer = Trainer(config, scene=room)
    trainer.train()
    image_of, test = ImageRenderer(trainer.model.eval(), WHITE), room.split("test")
    truth, errors, scores = test.load(), [], []
    for view in range(len(test.cameras)):
        images = image_of(test.cameras, view, ("rgb", "depth"))
        scores.append(psnr(images["rgb"], truth.image(view) / 255))
        ranges = np.load(ROOT / f"data/room/depth/{test.names[view]}.npz")["depth_ray"].astype(np.float32)
        true = room.transform.scale * torch.from_numpy(ranges)  # [H, W], infinite: no surface
        true = avg_pool2d(true[None], int(config.data.downscale))[0]
        errors.append(((images["depth_ray"] - true).abs() / true)[true.isfinite()])
    return mean(scores), torch.cat(errors).median().item()


@pytest.mark.slow
def test_the_room_is_learned(short_warmup):
    """At half its size, in steps."""
    score, error = room_scores(small_room(1200, 2))
    assert score > ROOM_FLOOR and error < ROOM_MOST_OFF, (score, error)


@pytest.mark.long
def test_the_rooms_recipe_in_a_quarter_of_its_steps():
    score, error = room_scores(options("room_cpu", 2000, 1))
    assert score > WHOLE_FLOOR and error < WHOLE_MOST_OFF, (score, error)


# ---- what `data.appearance` and `data.pose_optimization` are worth


def compared(config, of, option: str, value: str, fitted: str):
    """A trainer with an option of data; the scores without it, with it, and with it fitted to each test view."""
    without = score(trained(config, of), of)
    setattr(config.data, option, value)
    trainer = trained(config, of)
    return trainer, without, score(trainer, of), score(trainer, of, fitted)


@pytest.mark.slow
def test_changing_light_does_not_spoil_the_field(small_config):
    """Means of three captures, of which one may gain nothing."""
    found = []
    for seed in (0, 1, 2):
        small_config.data.appearance = "none"
        found.append(compared(small_config, capture(seed, gains=0.3), "appearance", "affine", "cc")[1:])
    without, raw, corrected = np.mean(found, axis=0)
    assert raw > without + 0.4, f"{without:.2f} dB without, {raw:.2f} dB with"
    assert corrected > raw + 0.2


@pytest.mark.slow
def test_poses_that_are_off_are_found(small_config):
    of = capture(0, degrees=1.0)
    trainer, without, raw, fitted = compared(small_config, of, "pose_optimization", True, "aligned")
    before, after = pixels_off(of.given, of.true), pixels_off(trainer.adjustments.cameras(of.given), of.true)
    assert after < 0.6 * before, f"{before:.2f} pixels before, {after:.2f} after"
    assert raw > without + 2, f"{without:.2f} dB without, {raw:.2f} dB with"
    assert fitted > raw


@pytest.mark.slow
def test_commands_train_score_and_report_them(options, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "STEPS", 3)
    run = tmp_path / "run"
    both = ("--data.appearance", "affine", "--data.pose_optimization", "true")
    printed = call("train", "--config", options, "--out", run, *both)
    assert_names(printed, "cameras moved by", "with pose and light fitted")
    metrics = json.loads((run / METRICS).read_text())
    names = ("psnr", "psnr_cc", "psnr_aligned", "psnr_aligned_cc")
    assert all(5 < metrics[name] < 60 and metrics["views"][1][name] > 5 for name in names)
    assert {"psnr_cc", "psnr_aligned"} <= metrics["protocol"].keys()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["cameras_turned"] > 0 and lines[-1]["cameras_shifted"] > 0
    again = call("eval", run, "--device", "cpu")
    assert f"{metrics['psnr_aligned']:.2f} dB with its pose fitted" in again
    assert "is not the scene" not in call("eval", run, "--split", "train", "--device", "cpu")


# ---- people who walk through the pictures: what one image shows and the others do not have counts less


V = 8  # views of the made-up errors


def drawn(n_rays: int, device: str = "cpu") -> tuple[Rendering, Batch]:
    """Rays of views whose lower halves are hard everywhere, and in the first of which somebody stands."""
    view, place = torch.randint(V, (n_rays,), device=device), torch.rand(n_rays, 2, device=device)
    is_hard, is_passing = place[:, 0] > 0.5, (view == 0) & (place[:, 1] < 0.3)
    off = (0.3 * is_passing + 0.05 * is_hard + 0.02)[:, None].expand(-1, 3)
    nothing = torch.zeros(n_rays, 3, device=device)
    rays, ones = Rays(nothing, nothing, view), torch.ones(n_rays, device=device)
    batch = Batch(rays, torch.full_like(nothing, 204, dtype=torch.uint8), ones, nothing, ones, place=place)
    return Rendering(0.8 - off * (0.5 + torch.rand(n_rays, 1, device=device)), ones, ones), batch


def test_what_one_image_alone_shows_counts_less(device):
    """But not what is hard in all of them, nor anything in the first twentieth of a training."""
    outliers = Outliers(V).to(device)
    for _ in range(60):
        rendering, batch = drawn(2000, device)
        weight = outliers(rendering, batch)
    near_edge = (batch.place[:, 1] - 0.3).abs() < 0.07
    is_passing = (batch.view == 0) & (batch.place[:, 1] < 0.3)
    assert weight[is_passing & ~near_edge].max() < 0.1 and weight[~is_passing & ~near_edge].min() > 0.8
    for progress in (0.04, 0.06):
        weight = outliers(rendering, batch._replace(progress=torch.tensor(progress, device=device)))
        assert (weight == 1).all() == (progress < 0.05)


def test_rays_tell_where_in_their_images_they_are(small_config):
    views = make_trainer(small_config).views
    batch = views.draw(50)
    for view, place, pixel in zip(batch.view.tolist(), batch.place, batch.pixels, strict=True):
        image = views.source.pool.image(view)
        row, column = (place * torch.tensor(image.shape[:2])).round().long().tolist()
        assert torch.equal(image[row, column], pixel)


def test_a_step_that_is_not_finite_is_forgotten():
    outliers = Outliers(V)
    rendering, batch = drawn(2000)
    outliers(rendering._replace(color=torch.full_like(rendering.color, torch.nan)), batch)
    assert all(outliers(*drawn(2000)).isfinite().all() for _ in range(3))


def with_figures(pool: ImagePool, share: float = 0.3, area: float = 0.1) -> ImagePool:
    """Striped figures over so much of the `area` of a `share` of the images, elsewhere in each."""
    pool, draw = replace(pool, pixels=pool.pixels.clone()), np.random.default_rng(0)
    for view in draw.permutation(len(pool))[: round(share * len(pool))].tolist():
        image = pool.image(view).numpy()
        height, width = image.shape[:2]
        row, column = np.mgrid[:height, :width] + 0.5
        covered = np.zeros((height, width), bool)
        while covered.mean() < area:
            tall = height * draw.uniform(0.25, 0.4)
            down, across = (row - height * draw.uniform(0.2, 0.9)) / tall, (column - width * draw.uniform()) / tall
            figure = (2 * down) ** 2 + (6 * across) ** 2 < 1
            colors = draw.integers(0, 256, (2, 3))
            image[figure, :3] = colors[(3 * down[figure]).astype(int) % 2]
            image[figure, 3:] = 255
            covered |= figure
    return pool


def score_among_passers_by(passing: bool, robust: bool) -> float:
    """Mean PSNR of the test views, which nobody walks through, after a training in miniature."""
    config = small_object(800, 4)
    config.trainer.robust, config.model.log2_hashmap_size = robust, 15
    return score_of_object(config, with_figures if passing else lambda pool: pool)


@pytest.mark.slow
def test_an_object_is_learned_in_spite_of_passers_by(monkeypatch):
    monkeypatch.setattr(OccupancyGrid, "warmup_steps", 64)
    clean, plain, robust = (score_among_passers_by(*how) for how in ((False, False), (True, False), (True, True)))
    assert plain < clean - 0.5 and robust > clean - 0.3, (clean, plain, robust)  # 25.9, 25.1, 25.8 dB
