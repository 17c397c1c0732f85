# SPDX-License-Identifier: Apache-2.0
"""Scores on held-out views, with the protocol that makes them comparable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit import ops
from nerfkit.config import Config
from nerfkit.data.cameras import Cameras
from nerfkit.data.pixels import blend
from nerfkit.data.scene import Views
from nerfkit.device import device_name
from nerfkit.files import atomic_write
from nerfkit.metrics import SSIM_DEFINITION, psnr, ssim
from nerfkit.model.renderer import Renderer
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.images import error_sheet, save_png
from nerfkit.training import run
from nerfkit.version import versions


def evaluate(
    renderer: Renderer, config: Config, views: Views, state: dict[str, Any], folder: Path, device: torch.device
) -> dict[str, Any]:
    """Render every view of a split, compare it with the truth, and write scores and sheets to `run.scores_places`.

    `state` is the checkpoint's: steps and training time.
    """
    images = views.load()  # [V, H, W, 3 or 4]
    background = run.background_color(config, device)
    picture_of = ImageRenderer(renderer, background)
    cameras = views.cameras.to(device)
    scores, sheets = run.scores_places(folder, config.eval.split)
    n_sheets = len(cameras) if config.eval.sheets < 0 else config.eval.sheets
    rows = []
    bar = tqdm(range(len(cameras)), desc=f"evaluating {config.eval.split}", unit="view", dynamic_ncols=True)
    for view in bar:
        rows.append(_score(picture_of, cameras, view, images[view], background.cpu()))
        rows[-1]["view"] = views.files[view].stem
        bar.set_postfix_str(f"PSNR {rows[-1]['psnr']:.2f} dB")
        if view < n_sheets:
            save_png(sheets / f"{views.files[view].stem}.png", rows[-1].pop("sheet"))
        rows[-1].pop("sheet", None)
    metrics = {
        "psnr": sum(row["psnr"] for row in rows) / len(rows),
        "ssim": sum(row["ssim"] for row in rows) / len(rows),
        "n_views": len(rows),
        "train_seconds": round(state["seconds"], 2),
        "steps": state["step"],
        "backend": state.get("backend", {}),  # of the training; that of the scoring is in the protocol
        "protocol": protocol(config, cameras, background, device),
        "views": rows,
    }
    atomic_write(scores, json.dumps(metrics, indent=1) + "\n")
    return metrics


def _score(picture_of: ImageRenderer, cameras: Cameras, view: int, pixels: Tensor, background: Tensor) -> dict:
    truth = blend(pixels, background)  # [H, W, 3]
    render = picture_of(cameras, view)["rgb"]
    return {"psnr": psnr(render, truth), "ssim": ssim(render, truth), "sheet": error_sheet(truth, render)}


def protocol(config: Config, cameras: Cameras, background: Tensor, device: torch.device) -> dict[str, Any]:
    """Everything that changes a score without changing the field."""
    return {
        "split": config.eval.split,
        "background": background.tolist(),
        "width": cameras.width,
        "height": cameras.height,
        "downscale": config.data.downscale,
        "downscale_filter": "area, colors weighted by alpha",
        "color_space": "sRGB values as stored",
        "quantisation": "truth 8 bit, render float32 clamped to [0, 1]",
        "psnr": "-10 log10(MSE) per view, mean over views",
        "ssim": SSIM_DEFINITION,
        "versions": versions(),
        "device": device_name(device),
        "backend": {op: resolved.backend for op, resolved in ops.resolved(device).items()},
    }
