#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pictures of README and docs/photos.md, of trainings on the shipped scenes.

python scripts/pictures.py training      # docs/training.webp: the camera goes around the Orrery while it trains
python scripts/pictures.py captures      # docs/captures.webp: what good photos of the room give, and bad ones
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the commands do; read when torch is imported

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nerfkit  # noqa: E402
from nerfkit.config import load  # noqa: E402
from nerfkit.data.images.batch import ImagePool  # noqa: E402
from nerfkit.data.load import scene_of  # noqa: E402
from nerfkit.metrics import psnr  # noqa: E402
from nerfkit.rendering.images import beside, moving_bytes, to_uint8  # noqa: E402
from nerfkit.rendering.paths import orbit, with_size  # noqa: E402

DOCS = Path("docs")
FRAMES, SIDE, FIRST = 72, 300, 4  # of the moving picture: frames, pixels a side, step of the first
STEPS, VIEW, BLUR = 1500, 4, 9  # of captures: steps of each training, test view that is shown, pixels of motion


def training() -> Iterator[Tensor]:
    """Frames at steps that grow by a factor, of a camera on a circle."""
    config = load(["orrery_cpu"])
    config.trainer.max_seconds = 0.0
    trainer = nerfkit.Trainer(config, scene=scene_of(config))
    cameras = orbit(trainer.cameras[[0]], torch.tensor([0.0, 0, 0.05]), torch.tensor([0.0, 0, 1]), FRAMES, 15.0)
    image_of, drawn = nerfkit.ImageRenderer(trainer.model, torch.ones(3)), 0
    for step in trainer.steps():
        if drawn < FRAMES and step >= FIRST * (config.trainer.steps / FIRST) ** (drawn / (FRAMES - 1)):
            yield beside([(f"step {step}", image_of(with_size(cameras, SIDE, SIDE), drawn)["rgb"])])
            drawn += 1


def captures() -> Tensor:
    """Three captures of the room side by side: some of their photos, and a test view after training on them."""
    config = load(["room_cpu"])
    config.trainer.steps, config.trainer.max_seconds, config.data.downscale = STEPS, 0.0, 2
    scene = scene_of(config)
    test, all_views = scene.split("test"), scene.split("train")
    few, columns = all_views[range(0, len(all_views.cameras), 9)], []
    for name, views in ("sharp photos", all_views), ("photos", few), ("photos that moved", all_views):
        pool = views.load()
        pool = moved(pool) if "moved" in name else pool
        trainer = nerfkit.Trainer(config, views.cameras, pool, scene=scene)
        trainer.train()
        image_of = nerfkit.ImageRenderer(trainer.model, torch.zeros(3))
        score = psnr(image_of(test.cameras, VIEW)["rgb"], test.load().image(VIEW) / 255)
        photos = torch.cat([pool.image(0), pool.image(1)], dim=1) / 255  # [H, 2 W, 3]
        large = image_of(with_size(test.cameras[[VIEW]], photos.shape[1], 2 * photos.shape[0]), 0)["rgb"]
        columns.append((f"{len(pool)} {name}: {score:.1f} dB", torch.cat([photos, large])))
    return beside(columns)


def moved(pool: ImagePool) -> ImagePool:
    """The images as a camera takes them that turned to the side while the shutter was open."""
    images = pool.stack().permute(0, 3, 1, 2).float()  # [V, 3, H, W]
    images = F.avg_pool2d(F.pad(images, (BLUR // 2, BLUR // 2, 0, 0), mode="replicate"), (1, BLUR), stride=1)
    return replace(pool, pixels=images.round().to(torch.uint8).permute(0, 2, 3, 1).flatten(0, 2))


if __name__ == "__main__":
    if sys.argv[1:] == ["training"]:
        frames = [to_uint8(frame) for frame in training()]
        (DOCS / "training.webp").write_bytes(moving_bytes("WEBP", frames, fps=12, last=3))
    elif sys.argv[1:] == ["captures"]:
        (DOCS / "captures.webp").write_bytes(moving_bytes("WEBP", [to_uint8(captures())], fps=1))
    else:
        sys.exit(__doc__)
