#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Render novel views of a run: PNG frames as they finish, then a video. Needs the run folder alone.

python scripts/render.py runs/lego --path spiral --outputs rgb,depth
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tqdm import tqdm

from nerfkit import ops
from nerfkit.commands import options as cli
from nerfkit.config import Config, OpsConfig
from nerfkit.data.cameras import Cameras
from nerfkit.data.readers.transforms import parse_cameras, read_json, to_json
from nerfkit.device import pick_device
from nerfkit.errors import RunError, UserError
from nerfkit.files import atomic_write
from nerfkit.rendering import paths
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.images import preview, save_npz, save_png
from nerfkit.rendering.video import probe_video, write_video
from nerfkit.training import run

FILES = {"rgb": ("rgb",), "depth": ("depth_ray", "depth_z"), "opacity": ("opacity",), "normal": ("normal",)}


@dataclass
class RenderOptions:
    """Render novel views of a run."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    path: str = "orbit"  # orbit, spiral, interpolate, a split (test, train), or a transforms FILE.json
    frames: int = 60  # frames of orbit, spiral and interpolate
    size: tuple[int, int] | None = None  # width and height [pixels]; as trained if left out
    fps: int = 20  # frames per second of the video
    outputs: str = "rgb"  # of rgb,depth,opacity,normal; all but rgb as float32 (.npz) too, depth in scene units
    out: str = ""  # folder of frames and videos; RUN/render/<path> if empty
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    resume: bool = False  # keep frames of this path and size that are there already
    ops: OpsConfig = field(default_factory=OpsConfig)


def main(arguments: list[str]) -> int:
    options = tyro.cli(RenderOptions, args=arguments, prog="scripts/render.py", **cli.TYRO)
    device = pick_device(options.device)
    outputs = choose_outputs(options.outputs)
    check_numbers(options)
    renderer, config, _ = run.load_renderer(options.run, device)
    ops.set_backend(options.ops.backend, options.ops.overrides())
    ops.resolved(device)
    cameras = choose_cameras(options, config)
    if options.size is not None:
        cameras = cameras.resized(*options.size)
    folder = Path(options.out or options.run / "render" / Path(options.path).stem)
    prepare(folder, cameras, outputs, options.resume)
    no_video = probe_video(folder)
    if no_video:
        print(f"no video will be written ({no_video}); the frames will be kept")

    picture_of = ImageRenderer(renderer, run.background_color(config, device))
    span = depth_range(options.run, config)
    frames = render_frames(picture_of, cameras.to(device), outputs, folder, span, options.resume)
    print(f"{len(cameras)} frames: {folder}")
    if not no_video:
        for name, files in frames.items():
            video = folder / f"{name}.mp4"
            write_video(video, files, options.fps)
            print(f"video: {video}")
    return 0


def choose_outputs(names: str) -> tuple[str, ...]:
    """Outputs from their names, with commas between."""
    outputs = tuple(name.strip() for name in names.split(",") if name.strip())
    unknown = [name for name in outputs if name not in FILES]
    if unknown or not outputs:
        raise UserError(f"--outputs {names!r}: unknown {unknown or 'nothing'}; choose of {','.join(FILES)}")
    return outputs


def check_numbers(options: RenderOptions) -> None:
    """Raise UserError for a number that nothing can be rendered with."""
    if options.size is not None and min(options.size) < 1:
        width, height = options.size
        raise UserError(f"--size must be at least 1 pixel each way, got {width} {height}")
    for name in ("frames", "fps"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} must be at least 1, got {getattr(options, name)}")


def choose_cameras(options: RenderOptions, config: Config) -> Cameras:
    """Cameras of the path that was asked for."""
    if options.path.endswith(".json"):
        file = Path(options.path)
        trained = run.read_cameras(options.run, "train")
        size = options.size or (trained.width, trained.height)
        content = read_json(file)
        return parse_cameras({"w": size[0], "h": size[1], **content}, file)
    scene = run.read_scene(options.run)
    if options.path in scene["splits"]:
        return run.read_cameras(options.run, options.path)
    like = run.read_cameras(options.run, "train")
    box = torch.tensor(config.data.box).view(2, 3)
    target, up = box.mean(0), torch.tensor(scene["up"])
    if options.path == "orbit":
        return paths.orbit(like, target, up, options.frames)
    if options.path == "spiral":
        return paths.spiral(like, target, up, options.frames)
    if options.path == "interpolate":
        through = run.read_cameras(options.run, "test" if "test" in scene["splits"] else "train")
        return paths.interpolate(through, options.frames)
    raise UserError(
        f"--path {options.path!r} is unknown; use orbit, spiral, interpolate, "
        f"{', '.join(scene['splits'])} or a FILE.json"
    )


def prepare(folder: Path, cameras: Cameras, outputs: tuple[str, ...], resume: bool) -> None:
    """Make the folder, write the path, and remove frames that must not pass for this path's."""
    file = folder / "path.json"
    path = json.dumps(to_json(cameras, [f"{view:04d}" for view in range(len(cameras))]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        same = file.exists() and file.read_text() == path
        if resume and file.exists() and not same:
            raise RunError(
                f"{folder} holds frames of another path or size; render all anew without --resume, "
                "or choose another folder with --out"
            )
        if not resume:
            remove_frames(folder, len(cameras), outputs if same else tuple(FILES))
        atomic_write(file, path)
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None


def remove_frames(folder: Path, n_frames: int, outputs: tuple[str, ...]) -> None:
    for view in range(n_frames):
        for file in frame_files(folder, view, outputs).values():
            file.unlink(missing_ok=True)
            file.with_suffix(".npz").unlink(missing_ok=True)


def frame_files(folder: Path, view: int, outputs: tuple[str, ...]) -> dict[str, Path]:
    """PNG files of one frame by name; values, of all but rgb, are beside them (.npz)."""
    names = [name for output in outputs for name in FILES[output]]
    return {name: folder / (f"{view:04d}.png" if name == "rgb" else f"{name}_{view:04d}.png") for name in names}


def depth_range(folder: Path, config: Config) -> tuple[float, float]:
    """Nearest and farthest distance from the training cameras into the box: the ends of the depth colors."""
    box = torch.tensor(config.data.box).view(2, 3)
    distance = (run.read_cameras(folder, "train").positions - box.mean(0)).norm(dim=-1).mean().item()
    radius = (box[1] - box[0]).norm().item() / 2
    return max(distance - radius, 0.0), distance + radius


def render_frames(
    picture_of: ImageRenderer,
    cameras: Cameras,
    outputs: tuple[str, ...],
    folder: Path,
    span: tuple[float, float],
    resume: bool,
) -> dict[str, list[Path]]:
    """Render and save every frame; the PNG files by output."""
    frames: dict[str, list[Path]] = {name: [] for output in outputs for name in FILES[output]}
    for view in tqdm(range(len(cameras)), desc="rendering", unit="frame", dynamic_ncols=True):
        files = frame_files(folder, view, outputs)
        for name, file in files.items():
            frames[name].append(file)
        if resume and all(file.exists() for file in files.values()):
            continue
        pictures = picture_of(cameras, view, outputs)
        for name, file in files.items():
            if name != "rgb":  # before the picture, which says that the frame is done
                save_npz(file.with_suffix(".npz"), **{name: pictures[name].numpy()})
            save_png(file, preview(name, pictures, span))
    return frames


if __name__ == "__main__":
    cli.main(main)
