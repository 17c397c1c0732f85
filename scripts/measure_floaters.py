#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of a run's views is hidden by floaters: density in the air right before the camera, as JSON.

    python scripts/measure_floaters.py runs/room

Renders a path, `auto` as that of `nerfkit render`, with samples from the camera on instead of from sampling.near on,
and reports the share of pixels whose median depth (where the transmittance falls to 0.5) is less than sampling.near:
the training cameras stand farther than that from everything. So does a path among them, unless it leads through
something: look at its frames before blaming the field.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nerfkit.commands import status_of  # noqa: E402
from nerfkit.commands.render import RenderOptions, check_numbers, sized_cameras  # noqa: E402
from nerfkit.data.cameras import Cameras  # noqa: E402
from nerfkit.errors import RunError  # noqa: E402
from nerfkit.files import atomic_write  # noqa: E402
from nerfkit.model.base import Model  # noqa: E402
from nerfkit.model.registry import build_model  # noqa: E402
from nerfkit.rendering.image_renderer import ImageRenderer  # noqa: E402
from nerfkit.training.run import Run, load_run  # noqa: E402

BAR = 0.005  # share of pixels above which floaters are seen at a glance


@dataclass
class FloaterOptions:
    """Measure how many pixels of a path show something nearer than sampling.near. See scripts/measure_floaters.py."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    path: str = "auto"  # as of nerfkit render
    frames: int = 20  # of orbit, spiral and interpolate
    size: tuple[int, int] = (0, 0)  # width and height [pixels]; 0 0: as trained
    near: float = 0.0  # distance in the model's units below which nothing is; 0: the run's sampling.near
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    module: str = ""  # Python module that registers the run's kind of model, if it is one of your own
    out: str = ""  # JSON file to write, new; printed only if empty


def main(arguments: list[str]) -> int:
    options = tyro.cli(FloaterOptions, args=arguments, prog="scripts/measure_floaters.py", use_underscores=True)
    if options.out and Path(options.out).exists():
        raise RunError(f"--out {options.out} exists already; choose another file")
    run = load_run(options.run, options.device, options.module)
    near = options.near or run.config.sampling.near
    if near <= 0:
        raise RunError(f"sampling.near of {options.run} is {near:g}: nothing is too near; give a distance by --near")
    path, cameras = cameras_of(options, run)
    measured = {"run": str(options.run), "steps": run.state["step"], "path": path, "near": near}
    measured |= shares(from_the_camera_on(run), run, cameras, near)
    text = json.dumps(measured, indent=1)
    print(text)
    share = measured["share"]
    print(
        f"floaters: {share:.2%} of {measured['pixels']} pixels of {path} are nearer than {near:.4g}, "
        f"{'more than' if share > BAR else 'within'} the bar of {BAR:.1%}"
    )
    if options.out:
        atomic_write(Path(options.out), text.encode() + b"\n")
    return 0


def cameras_of(options: FloaterOptions, run: Run) -> tuple[str, Cameras]:
    """Name of the path, and its cameras."""
    has_own = options.path.endswith(".json") or options.path in run.scene.splits
    rendered = RenderOptions(options.run, options.path, None if has_own else options.frames, options.size)
    check_numbers(rendered)
    cameras = sized_cameras(rendered, run)
    return rendered.path, cameras


def from_the_camera_on(run: Run) -> Model:
    """The run's model with samples from distance 0 on."""
    model = build_model(replace(run.config, sampling=replace(run.config.sampling, near=0.0)))
    model.load_state_dict(run.model.state_dict())
    return model.to(run.device).eval()


def shares(model: Model, run: Run, cameras: Cameras, near: float) -> dict[str, Any]:
    """Share of pixels nearer than `near`, of all frames and of each."""
    image_of, cameras = ImageRenderer(model, run.background), cameras.to(run.device)
    frames, n_near, n_pixels = [], 0, 0
    for view in tqdm(range(len(cameras)), desc="floaters", unit="view", dynamic_ncols=True):
        depth = image_of(cameras, view, ("median_depth",))["depth_median_ray"]  # [H, W], 0 where it is transparent
        is_near = (depth > 0) & (depth < near)
        frames.append(round(is_near.float().mean().item(), 6))
        n_near, n_pixels = n_near + int(is_near.sum()), n_pixels + is_near.numel()
    return {"share": n_near / n_pixels, "bar": BAR, "pixels": n_pixels, "frames": frames}


if __name__ == "__main__":
    sys.exit(status_of(lambda: main(sys.argv[1:])))
