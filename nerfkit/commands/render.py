# SPDX-License-Identifier: Apache-2.0
"""`nerfkit render`: novel views of a run, PNG frames as they finish, then a video. Needs the run folder alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import tyro
from torch import Tensor
from tqdm import tqdm

from nerfkit import ops
from nerfkit.commands.options import TYRO
from nerfkit.config import Config, OpsConfig
from nerfkit.data.cameras import Cameras
from nerfkit.data.readers.transforms import parse_cameras, read_json, to_json
from nerfkit.device import check_memory
from nerfkit.errors import RunError, UserError
from nerfkit.files import OwnFolder
from nerfkit.rendering import paths
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.images import npz_bytes, png_bytes, preview
from nerfkit.rendering.video import probe_video, video_bytes
from nerfkit.training.run import Run, load_run
from nerfkit.training.run_folder import RunFolder

PATH_FILE = "path.json"
BYTES_PER_PIXEL = {"rgb": 24, "depth": 40, "opacity": 24, "normal": 48}  # of values, previews and files in memory
FILES = {"rgb": ("rgb",), "depth": ("depth_ray", "depth_z"), "opacity": ("opacity",), "normal": ("normal",)}


@dataclass
class RenderOptions:
    """Render novel views of a run."""

    run: Annotated[Path, tyro.conf.Positional]  # run folder
    path: str = "orbit"  # orbit, spiral, interpolate, a split (test, train), or a transforms FILE.json
    frames: int | None = None  # frames of orbit, spiral and interpolate, at most 100000; 60 if left out
    size: tuple[int, int] = (0, 0)  # width and height [pixels]; 0 0: as trained
    fps: int = 20  # frames per second of the video, at most 1000
    outputs: str = "rgb"  # of rgb,depth,opacity,normal; all but rgb as float32 (.npz) too, depth in scene units
    out: str = ""  # folder of frames and videos: new, empty or of an earlier rendering; RUN/render/<path> if empty
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    resume: bool = False  # keep frames of this path and size that are there already
    module: str = ""  # Python module that registers the run's kind of model, if it is one of your own
    ops: OpsConfig = field(default_factory=OpsConfig)


def main(arguments: list[str]) -> int:
    options = tyro.cli(RenderOptions, args=arguments, prog="nerfkit render", **TYRO)
    outputs = choose_outputs(options.outputs)
    check_numbers(options)
    run = load_run(options.run, options.device, options.module)
    ops.set_backend(options.ops.backend, options.ops.overrides())
    run.model.resolved(run.device)
    cameras = choose_cameras(options, run)
    if options.size != (0, 0):
        cameras = cameras.resized(*options.size)
    width, height = max(cameras.sizes(), key=lambda size: size[0] * size[1])
    n_bytes = width * height * sum(BYTES_PER_PIXEL[name] for name in outputs)
    check_memory(n_bytes, f"a frame of {width}x{height}", torch.device("cpu"))
    folder = open_folder(options)
    prepare(folder, cameras, run.state["step"], outputs, options.resume)
    no_video = probe_video()
    if no_video:
        print(f"no video will be written ({no_video}); the frames will be kept")

    image_of = ImageRenderer(run.model, run.background)
    span = depth_range(run.cameras("train"), run.config)
    frames = render_frames(image_of, cameras.to(run.device), outputs, folder, span, options.resume)
    print(f"{len(cameras)} frames: {folder.path}")
    if not no_video:
        for name, files in frames.items():
            folder.write(f"{name}.mp4", video_bytes([folder.path / file for file in files], options.fps))
            print(f"video: {folder.path / name}.mp4")
    return 0


def choose_outputs(names: str) -> tuple[str, ...]:
    """Outputs from their names, with commas between."""
    outputs = tuple(name.strip() for name in names.split(",") if name.strip())
    unknown = [name for name in outputs if name not in FILES]
    if unknown or not outputs:
        raise UserError(f"--outputs {names!r}: unknown {unknown or 'nothing'}; choose of {','.join(FILES)}")
    return outputs


def check_numbers(options: RenderOptions) -> None:
    """Raise UserError for a number out of its range."""
    if options.size != (0, 0) and not all(1 <= side <= 2**16 for side in options.size):
        width, height = options.size
        raise UserError(f"--size must be 1 to {2**16} pixels each way, got {width} {height}")
    for name, number, most in (("frames", options.frames, 100_000), ("fps", options.fps, 1000)):
        if number is not None and not 1 <= number <= most:
            raise UserError(f"--{name} must be from 1 to {most}, got {number}")


def choose_cameras(options: RenderOptions, run: Run) -> Cameras:
    """Cameras of --path."""
    like, n_frames = run.cameras("train"), options.frames or 60
    if options.frames and (options.path.endswith(".json") or options.path in run.scene.splits):
        raise UserError(f"{options.path} has cameras of its own; leave out --frames, or choose another --path")
    if options.path.endswith(".json"):
        file = Path(options.path)
        size = like.size(0) if options.size == (0, 0) else options.size
        return parse_cameras({"w": size[0], "h": size[1], **read_json(file)}, file)
    if options.path in run.scene.splits:
        return run.cameras(options.path)
    box = torch.tensor(run.config.data.box).view(2, 3)
    target, up = box.mean(0), torch.tensor(run.scene.up)
    if options.path == "orbit":
        return paths.orbit(like, target, up, n_frames)
    if options.path == "spiral":
        return paths.spiral(like, target, up, n_frames)
    if options.path == "interpolate":
        through = run.cameras("test" if "test" in run.scene.splits else "train")
        return paths.interpolate(through, n_frames)
    raise UserError(
        f"--path {options.path!r} is unknown; use orbit, spiral, interpolate, "
        f"{', '.join(run.scene.splits)} or a FILE.json"
    )


def open_folder(options: RenderOptions) -> OwnFolder:
    """The folder of the frames; raises RunError if it holds files that nerfkit did not write."""
    if options.out:
        folder = OwnFolder(Path(options.out), "rendering")
        folder.claim()
    else:
        folder = RunFolder.existing(options.run).child(f"render/{Path(options.path).stem}", "rendering")
    folder.lock()
    return folder


def prepare(folder: OwnFolder, cameras: Cameras, step: int, outputs: tuple[str, ...], resume: bool) -> None:
    """Write the path, and remove frames that are not of it."""
    file = folder.path / PATH_FILE
    names = [f"{view:04d}" for view in range(len(cameras))]
    path = json.dumps(to_json(cameras, names) | {"checkpoint_step": step})
    was = file.read_text(encoding="utf-8", errors="replace") if folder.owns(PATH_FILE) else None
    if resume and was is not None and was != path:
        raise RunError(
            f"{folder.path} holds frames of another path, size or checkpoint; render all again without --resume, "
            "or choose another folder with --out"
        )
    if was != path:
        folder.clear()
    elif not resume:
        again = frame_names(range(len(cameras)), outputs)
        folder.clear(keep=tuple(folder.names() - again))
    folder.remove_leftovers()
    folder.write(PATH_FILE, path)


def frame_names(views: range, outputs: tuple[str, ...]) -> set[str]:
    """Names of all files of `outputs`, the videos' too."""
    names = {f"{name}.mp4" for output in outputs for name in FILES[output]}
    for view in views:
        for file in frame_files(view, outputs).values():
            names |= {file, str(Path(file).with_suffix(".npz"))}
    return names


def frame_files(view: int, outputs: tuple[str, ...]) -> dict[str, str]:
    """PNG files of one frame by name; values, of all but rgb, are beside them (.npz)."""
    names = [name for output in outputs for name in FILES[output]]
    return {name: f"{view:04d}.png" if name == "rgb" else f"{name}_{view:04d}.png" for name in names}


def depth_range(cameras: Cameras, config: Config) -> tuple[float, float]:
    """Nearest and farthest distance from the training cameras into the box: the ends of the depth colors."""
    box = torch.tensor(config.data.box).view(2, 3)
    distance = (cameras.positions - box.mean(0)).norm(dim=-1).mean().item()
    radius = (box[1] - box[0]).norm().item() / 2
    return max(distance - radius, 0.0), distance + radius


def render_frames(
    image_of: ImageRenderer,
    cameras: Cameras,
    outputs: tuple[str, ...],
    folder: OwnFolder,
    span: tuple[float, float],
    resume: bool,
) -> dict[str, list[str]]:
    """Render and save every frame; the PNG files by output."""
    frames: dict[str, list[str]] = {name: [] for output in outputs for name in FILES[output]}
    for view in tqdm(range(len(cameras)), desc="rendering", unit="frame", dynamic_ncols=True):
        files = frame_files(view, outputs)
        for name, file in files.items():
            frames[name].append(file)
        if resume and all(folder.owns(file) for file in files.values()):
            continue
        images: dict[str, Tensor] = image_of(cameras, view, outputs)
        for name, file in files.items():
            if name != "rgb":  # before the image, which marks the frame as done
                folder.write(str(Path(file).with_suffix(".npz")), npz_bytes(**{name: images[name].numpy()}))
            folder.write(file, png_bytes(preview(name, images, span)))
    return frames
