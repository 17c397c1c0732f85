# SPDX-License-Identifier: Apache-2.0
"""Whether training still learns: the shipped object and room, whose files agree, and captures of changing light."""

import json
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d

from nerfkit import config as config_module
from nerfkit import load_run
from nerfkit.config import Config
from nerfkit.data.images.pixels import blend
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Scene
from nerfkit.metrics import psnr
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training import evaluator
from nerfkit.training.run.files import METRICS
from nerfkit.training.trainer import Trainer
from nerfkit.viewer.scene import ViewerScene
from scripts.measure import true_surface
from tests.naming import assert_names
from tests.noisy_captures import capture, pixels_off, score, trained
from tests.panoramas import write_room
from tests.processes import ROOT, call

COUNTS = {"orrery": {"train": 100, "val": 10, "test": 20}, "room": {"train": 63, "test": 9}}
SIZES = {"orrery": (200, 200), "room": (240, 160)}  # at which there are true ranges
DOWNSCALE = {"orrery": 2.0, "room": 1.0}


def needs_images_of(folder: Path) -> None:
    """An sdist, which has no .git, holds no images of the scenes; a checkout without them is broken."""
    if not folder.exists() and not (ROOT / ".git").exists():
        pytest.skip(f"the images in {folder}, megabytes, are not in the sdist")


@cache
def scene(name: str, downscale: float) -> Scene:
    needs_images_of(ROOT / "data" / name / ("images" if name == "room" else "train"))
    return load_scene(str(ROOT / "data" / name), downscale=downscale)


def shipped(name: str) -> Scene:
    return scene(name, DOWNSCALE[name])


@cache
def ranges(name: str, split: str, view: int) -> torch.Tensor:
    """True ranges [H, W] in the model's units."""
    folder, frame = ROOT / "data" / name / "depth" / (split if name == "orrery" else ""), shipped(name).transform
    file = folder / f"{shipped(name).split(split).names[view]}.npz"
    return torch.from_numpy(np.load(file)["depth_ray"].astype(np.float32)) * (frame.scale if frame else 1.0)


def to_ranges(name: str, split: str, view: int, points: np.ndarray) -> torch.Tensor:
    """Of points [P, 3] of the files that lie in a view, the distance as a share of the range that is there, [K]."""
    cameras, true, frame = shipped(name).split(split).cameras, ranges(name, split, view), shipped(name).transform
    points = torch.from_numpy(frame.to_model(points) if frame else points).float()
    pixels, depth = cameras.project(points, view)
    inside = (depth > 0) & ((pixels >= 0) & (pixels < torch.tensor(SIZES[name]))).all(-1)  # NaN is not
    column, row = pixels[inside].long().unbind(-1)
    return (points - cameras.positions[view]).norm(dim=-1)[inside] / true[row, column]


@pytest.mark.parametrize("name", COUNTS)
def test_all_images_are_there(name):
    assert {split: len(views.files) for split, views in shipped(name).views.items()} == COUNTS[name]
    for split, n_views in COUNTS[name].items():
        images = shipped(name).split(split).load()
        assert set(images.sizes) == {SIZES[name]}
        for view in range(n_views):
            assert images.image(view).float().std() > 20
            assert split == "val" or ranges(name, split, view).shape == SIZES[name][::-1]


@pytest.mark.parametrize("name, split, view", [("orrery", "train", 60), ("room", "test", 3)])
def test_the_true_surface_is_where_ranges_end(name, split, view):
    needs_images_of(ROOT / "data" / name / "surface.npz")
    _, visible, to_files = true_surface(ROOT / "data" / name)
    share = to_ranges(name, split, view, visible @ to_files[:3, :3].T + to_files[:3, 3])
    assert ((share - 1).abs() < 0.01).float().mean() > 0.3  # the others are hidden
    assert ((share < 0.97) & (share > 0)).float().mean() < 0.03


def test_colors_of_the_room_agree_between_views_through_ranges_and_lens():
    test, train = shipped("room").split("test")[[3]], shipped("room").split("train")
    beside = train[[train.names.index("frame_00026")]]
    rays = test.cameras.image_rays(0)
    points = rays.origins + rays.directions * ranges("room", "test", 3).flatten()[:, None]
    pixels, _ = beside.cameras.project(points, 0)
    inside = ((pixels >= 0) & (pixels < torch.tensor([240, 160]))).all(-1)  # NaN is not
    column, row = pixels[inside].long().unbind(-1)
    seen, here = beside.load().image(0).float()[row, column], test.load().image(0).float().view(-1, 3)[inside]
    assert inside.float().mean() > 0.5 and (seen - here).abs().mean(-1).median() < 8


# ---- what held-out views score, and the depth


WHITE = torch.ones(3)

# The object: PSNR of its 20 test views at 50x50 in dB, seeds 0 to 7, measured on a CPU:
#
#             mean  deviation  lowest  highest
#     field  23.14       0.42   22.46    23.65
#   encoder  24.02       0.35   23.30    24.34
#      lltm  23.45       0.64   22.68    24.54
#      both  23.78       0.38   23.21    24.34
#
# The deviation of one run is 0.46 over all, that of a mean of three seeds 0.27.
MARGIN = 0.8  # three deviations of a mean of three
FLOOR = 21.5  # three and a half deviations of one run below the field's mean
VARIANTS = {"field": (False, False), "both": (True, True)}

# The room: PSNR of its 9 test views at 120x80 and median relative error of their depth, 1200 small steps, on a CPU:
#
#              seed 0   20.22 dB  0.056
#              seed 1   20.31 dB  0.050
#              seed 2   20.24 dB  0.052
#            in a box   19.13 dB  0.246
#    lens turned over   19.10 dB  0.116   the distortion's sign is wrong, in training and in scoring
#        near ignored   is not seen here: see tests/test_captures.py
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


@cache
def object_score(variant: str, seed: int) -> float:
    """Mean PSNR of the test views after three seconds of training in miniature."""
    config = options("orrery_cpu", 400, 8)
    config.seed = seed
    config.model.encoder, config.model.aggregator = VARIANTS[variant]
    config.model.log2_hashmap_size, config.model.base_resolution, config.model.max_resolution = 14, 16, 96
    config.model.mlp_width = 16
    config.sampling.step_size, config.sampling.occupancy_resolution = 0.04, 24
    config.trainer.samples_per_step = 4096
    train, test = (scene("orrery", 8).split(split) for split in ("train", "test"))
    trainer = Trainer(config, train.cameras, train.load())
    trainer.train()
    image_of, images = ImageRenderer(trainer.model.eval(), WHITE), test.load()
    assert (test.cameras.width, test.cameras.height) == (50, 50)
    views = range(len(test.cameras))
    return mean(psnr(image_of(test.cameras, view)["rgb"], blend(images.image(view), WHITE)) for view in views)


def test_the_shipped_scene_is_learned(short_warmup):
    assert object_score("both", 0) > FLOOR


@pytest.mark.slow
def test_no_stage_along_the_ray_costs_quality(short_warmup):
    """Means of three seeds; see the table above for what is chance."""
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
        true = avg_pool2d(ranges("room", "test", view)[None], int(config.data.downscale))[0]  # infinite: no surface
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


@pytest.mark.long
def test_panoramas_are_worth_as_many_pixels_of_pinholes(tmp_path, short_warmup):
    """On the same test panoramas: 25.28 and 25.07 dB, 25.25 and 25.43, 25.02 and 25.40 with seeds 0, 1 and 2, of a CPU.
    With rows that are equally likely, panoramas lose 0.2 dB of 22.8 after half of the steps."""
    needs_images_of(ROOT / "data/room/images")
    found = {}
    for pinholes in (False, True):
        room = load_scene(str(write_room(tmp_path / str(pinholes), pinholes)))
        trainer = Trainer(small_room(2400, 1), scene=room)
        trainer.train()
        image_of, test = ImageRenderer(trainer.model.eval(), WHITE), room.split("test")
        truth, views = test.load(), range(len(test.cameras))
        renders = (image_of(test.cameras, view)["rgb"] for view in views)
        scores = [psnr(rgb, truth.image(view) / 255, ~truth.mask(view)) for view, rgb in enumerate(renders)]
        found[pinholes] = mean(scores)
    assert found[False] > max(found[True] - 1, 23), found


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
def test_commands_train_score_and_report_them(toy_scene, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "STEPS", 3)
    run = tmp_path / "run"
    small = (
        "--data.box -0.8 -0.8 -0.8 0.8 0.8 0.8 --model.levels 2 --model.log2_hashmap_size 10 --model.max_resolution 32 "
        "--model.mlp_width 16 --sampling.step_size 0.05 --sampling.occupancy_resolution 16 --trainer.steps 30 "
        "--trainer.samples_per_step 2048 --device cpu"
    ).split()
    both = ("--data.appearance", "affine", "--data.pose_optimization", "true")
    printed = call("train", "--data.path", toy_scene, "--out", run, *small, *both)
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
