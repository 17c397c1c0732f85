# SPDX-License-Identifier: Apache-2.0
"""A small field that learns from images, with alpha, that a run's own field shows training cameras and ones between."""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import replace
from itertools import count

import torch
from tqdm import tqdm

from nerfkit.config import ModelConfig, OpsConfig, ResolvedConfig
from nerfkit.config.recipe import UNLIMITED
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.images.batch import ImagePool
from nerfkit.ops.grid_encode import level_entries
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.paths import along
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.run.load import Run, load_run
from nerfkit.training.trainer import Trainer

LEVELS, FEATURES, WIDTH = 8, 4, 32  # of a student
RESOLUTIONS = {"box": (16, 1024), "contracted": (32, 2048)}  # cells a side of its coarsest level, and of its finest
OCCUPANCY = 128  # cells a side, at most
COARSER = 2.0  # its steps, in the teacher's: each is a sample that the page computes
PAGE_BYTES, OTHER_BYTES = 1.0, 4e5  # of a page: for a byte of the table, deflated and in base64; for all other
MOST_VIEWS = {"cpu": 100, "cuda": 600}  # of the training cameras, evenly spread
MOST_PIXELS = {"cpu": 2**21, "cuda": 2**28}  # that the teacher renders
SAMPLES = {"cpu": 2**13, "cuda": 2**18}  # of a step


def distilled(run: Run, megabytes: float, seconds: float) -> Run:
    """A run in a new folder beside the run's, of a field whose page has about so many megabytes, trained so long."""
    beside = run.folder.absolute()
    names = (f"{beside.name}_web" + (f"_{number}" if number > 1 else "") for number in count(1))
    folder = next(path for path in map(beside.with_name, names) if not path.exists())
    own = RunFolder.for_new_run(folder)
    cameras = lesson_cameras(run)
    images = taught(run, cameras)
    trainer = Trainer(student(run, megabytes, seconds), cameras, images, device=run.device)
    try:
        own.start(trainer.config, run.scene)
        trainer.train(own, progress_bar=True)
    except KeyboardInterrupt:  # a page begins anew, so half of a student is of no use
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return load_run(folder, str(run.device))


def student(run: Run, megabytes: float, seconds: float) -> ResolvedConfig:
    config, on = deepcopy(run.config), run.device.type
    coarsest, finest = RESOLUTIONS[config.sampling.kind]
    finest = max(coarsest, min(finest, config.model.max_resolution))
    growth = (finest / coarsest) ** (1 / (LEVELS - 1))

    def fits(log2: int) -> bool:
        rows = sum(level_entries(round(coarsest * growth**level), 2**log2) for level in range(LEVELS))
        return rows * FEATURES * PAGE_BYTES + OTHER_BYTES <= megabytes * 1e6

    log2 = max(filter(fits, range(10, 20)), default=10)
    config.model = ModelConfig("field", "", {}, LEVELS, FEATURES, log2, coarsest, finest, WIDTH, True, True)
    config.data = replace(config.data, appearance="none", pose_optimization=False)
    sampling = config.sampling
    sampling.step_size, sampling.cone_angle = COARSER * sampling.step_size, min(COARSER * sampling.cone_angle, 1.0)
    sampling.occupancy_resolution = min(OCCUPANCY, sampling.occupancy_resolution)
    sampling.alpha_threshold = max(0.005, sampling.alpha_threshold)
    config.trainer = replace(
        config.trainer, steps=UNLIMITED, max_seconds=seconds, samples_per_step=SAMPLES[on], optimizer="adam",
        learning_rate=0.02, final_learning_rate=0.001, weight_decay=0.1, loss="", save_every=0, depth=0.0,
    )  # fmt: skip
    config.ops, config.decisions = OpsConfig(), {}
    return config


def lesson_cameras(run: Run) -> Cameras:
    """Training cameras, evenly spread, and as many half-way from each to its neighbour; fewer pixels on a CPU."""
    known = run.seeing_cameras("train")
    chosen = known[list(range(0, len(known), -(-len(known) // MOST_VIEWS[run.device.type])))]
    poses = chosen.camera_to_world
    apart = torch.cdist(chosen.positions, chosen.positions) + torch.eye(len(chosen)) * 1e30
    nearest = apart.argmin(1).tolist()
    between = [along(poses[[view, other]], torch.tensor([0.5]), False) for view, other in enumerate(nearest)]
    both = list(range(len(chosen))) * 2
    cameras = replace(chosen[both], camera_to_world=torch.cat([poses, *between]))
    n_pixels = sum(width * height for width, height in cameras.sizes())
    scale = min(1.0, (MOST_PIXELS[run.device.type] / n_pixels) ** 0.5)
    width, height = cameras.sizes()[0]
    if scale < 1:
        cameras = cameras.resized(max(round(width * scale), 16), max(round(height * scale), 16))
    return cameras


def taught(run: Run, cameras: Cameras) -> ImagePool:
    """The teacher's images of cameras, with its opacity as alpha."""
    image_of, on_device, pixels = ImageRenderer(run.model, run.background), cameras.to(run.device), []
    for view in tqdm(range(len(cameras)), desc="teacher", unit="view"):
        rendered = image_of(on_device, view, ("rgb", "opacity"))
        opacity = rendered["opacity"][..., None]  # [H, W, 1]
        color = (rendered["rgb"] - (1 - opacity) * run.background.cpu()) / opacity.clamp(min=1e-3)
        pixels.append((torch.cat([color.clamp(0, 1), opacity], dim=-1) * 255 + 0.5).to(torch.uint8).flatten(0, 1))
    sizes = tuple(cameras.sizes())
    counts = torch.tensor([width * height for width, height in sizes])
    return ImagePool(torch.cat(pixels), counts.cumsum(0) - counts, sizes)
