#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far a run's depth is from true ranges, as JSON. For captures with a folder `depth`, such as data/room.

    python scripts/measure_depth.py runs/room

DATA/depth/<name>.npz holds `depth_ray` [H, W] of a view: the distance along the ray of each pixel's center to the
first surface, in the units of the capture's files, infinite where there is none. So does what
`nerfkit render --outputs depth` writes. Errors are |rendered - true| / true; pixels without a surface do not count.
`inside_box` is of surfaces in the run's box alone: a sampler in a box has no samples on others.
"""

from __future__ import annotations

import json
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from torch import Tensor
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nerfkit.commands import status_of  # noqa: E402
from nerfkit.commands.eval import find_scene  # noqa: E402
from nerfkit.data.scene import Views  # noqa: E402
from nerfkit.errors import RunError, SceneError  # noqa: E402
from nerfkit.files import atomic_write  # noqa: E402
from nerfkit.rendering.image_renderer import ImageRenderer  # noqa: E402
from nerfkit.training.run import Run, load_run  # noqa: E402


@dataclass
class DepthOptions:
    """Compare a run's depth with the true one. See the top of scripts/measure_depth.py."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    data: str = ""  # folder of the capture, if it has moved
    split: str = "test"  # views to compare
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    out: str = ""  # JSON file to write, new; printed only if empty


def main(arguments: list[str]) -> int:
    options = tyro.cli(DepthOptions, args=arguments, prog="scripts/measure_depth.py", use_underscores=True)
    if options.out and Path(options.out).exists():
        raise RunError(f"--out {options.out} exists already; choose another file")
    run = load_run(options.run, options.device)
    views = find_scene(options.data, run.config, run.frame).split(options.split)
    truth = true_ranges(Path(options.data or run.config.data.path), views)
    measured = {
        "run": str(options.run),
        "split": options.split,
        "steps": run.state["step"],
        **compare(run, views, truth),
    }
    text = json.dumps(measured, indent=1)
    print(text)
    if options.out:
        atomic_write(Path(options.out), text.encode() + b"\n")
    return 0


def true_ranges(data: Path, views: Views) -> list[Tensor]:
    """True ranges [H, W] float32 of each view, in the files' units; raises SceneError if one is missing or unusable."""
    found = []
    for name, (width, height) in zip(views.names, views.cameras.sizes(), strict=True):
        file = data / "depth" / f"{name}.npz"
        if not file.exists():
            raise SceneError(f"{file} is missing: depth can be compared where every view of the split has its truth")
        try:
            with np.load(file) as content:
                ranges = content["depth_ray"].astype(np.float32)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise SceneError(f"{file} is no NPZ file with 'depth_ray': {error}") from None
        if ranges.shape != (height, width) or not (ranges > 0).all():  # nor NaN
            wanted = f"{height} rows of {width} distances above 0"
            raise SceneError(f"{file}: 'depth_ray' must be {wanted}, got {list(ranges.shape)}")
        found.append(torch.from_numpy(ranges))
    return found


def compare(run: Run, views: Views, truth: list[Tensor]) -> dict[str, Any]:
    """Quantiles of relative errors over all pixels of all views, and of each view."""
    image_of, cameras = ImageRenderer(run.model, run.background), views.cameras.to(run.device)
    errors, inside, opacity, rows = [], [], [], []
    for view, true in enumerate(tqdm(truth, desc="depth", unit="view", dynamic_ncols=True)):
        images = image_of(cameras, view, ("depth",))
        rendered = images["depth_ray"] if run.frame is None else run.frame.distance_to_input(images["depth_ray"])
        surface = true.isfinite()  # [H, W]
        errors.append(((rendered - true).abs() / true)[surface])
        inside.append(in_box(run, views, view, true)[surface])
        opacity.append(images["opacity"][~surface])
        rows.append({"view": views.names[view], **quantiles(errors[-1])})
    together, kept = torch.cat(errors), torch.cat(inside)
    beyond = torch.cat(opacity)
    return {
        **quantiles(together),
        "inside_box": quantiles(together[kept]),
        "without_surface": {"pixels": len(beyond), "mean_opacity": beyond.mean().item() if len(beyond) else None},
        "views": rows,
    }


def in_box(run: Run, views: Views, view: int, true: Tensor) -> Tensor:
    """Whether the surface that each pixel sees lies in the run's box, [H, W] bool."""
    rays = views.cameras.image_rays(view)
    scale = 1.0 if run.frame is None else run.frame.scale
    points = rays.origins + rays.directions * (true.flatten() * scale)[:, None]  # [H * W, 3]
    low, high = torch.tensor(run.config.data.box).view(2, 3)
    return ((points >= low) & (points <= high)).all(-1).view_as(true)


def quantiles(errors: Tensor) -> dict[str, float | int | None]:
    """Median and 90 % quantile of relative errors [N], and how many there are."""
    if not len(errors):
        return {"median": None, "quantile_90": None, "pixels": 0}
    median, high = np.quantile(errors.numpy(), (0.5, 0.9))
    return {"median": round(float(median), 5), "quantile_90": round(float(high), 5), "pixels": len(errors)}


if __name__ == "__main__":
    sys.exit(status_of(lambda: main(sys.argv[1:])))
