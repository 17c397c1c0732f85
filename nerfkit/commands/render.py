# SPDX-License-Identifier: Apache-2.0
"""`nerfkit render`: novel views of a run, PNG frames as they finish, then a video. Needs the run folder alone."""

import json
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.commands.options import RenderOptions
from nerfkit.crop import CROP, active_crop
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.readers.transforms.cameras_json import to_json
from nerfkit.device import check_memory
from nerfkit.errors import RunError, UserError
from nerfkit.export.writing import in_files
from nerfkit.files import OwnFolder
from nerfkit.model.cropping import cropped
from nerfkit.parallel import SINGLE_PROCESS, Processes
from nerfkit.rendering import images, paths
from nerfkit.rendering.camera_path import read_path
from nerfkit.rendering.image_renderer import ImageRenderer, foretold
from nerfkit.safe_io import chosen, did_you_mean, read_json
from nerfkit.training.evaluator import evenly_chosen
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.run.load import Run, load_run

PATH_FILE = "path.json"  # in the frame of the scene's files
SPAN_FRAMES, SPAN_SIDE = 8, 96  # that are rendered for the range of the depth colors, pixels of their longer side
OUTER = 0.01  # share of depths beyond each end of it
LEGEND = "legend_"  # in an image of its own: those of depths are read by programs, too
FRAMES, FRAMES_PER_VIEW = 60, 4  # of paths; of one through views
BYTES_PER_PIXEL = 40  # of an output: values, previews and files in memory, about
FILES = {
    "rgb": ("rgb",),
    "depth": ("depth_ray", "depth_z"),
    "median_depth": ("depth_median_ray", "depth_median_z"),
    "opacity": ("opacity",),
    "normal": ("normal",),
}


def main(options: RenderOptions, processes: Processes = SINGLE_PROCESS) -> int:
    outputs = chosen("--outputs", options.outputs, FILES)
    run = load_run(options.run, processes.join(options.device), options.module, options.ops)
    cameras = choose_cameras(options, run)
    width, height = max(cameras.sizes(), key=lambda size: size[0] * size[1])
    n_bytes = width * height * BYTES_PER_PIXEL * len(outputs)
    check_memory(n_bytes, f"a frame of {width}x{height}", torch.device("cpu"))
    crop = active_crop(options.run, run.transform) if options.crop == "run" else None
    stems = [f"{frame:04d}" for frame in range(len(cameras))]
    if options.cameras in run.scene.splits:
        stems = images.file_stems(run.scene.names(options.cameras))
    path = to_json(paths.in_files_world(cameras, run.transform), stems)
    path |= {"checkpoint_step": run.state["step"], "checkpoint_seconds": run.state["seconds"]}
    path |= {"crop": json.loads(crop.to_json())} if crop is not None else {}
    kinds = [name for output in outputs for name in FILES[output]]
    frames = {name: [f"{stem}.png" if name == "rgb" else f"{name}_{stem}.png" for stem in stems] for name in kinds}
    folder = processes.rank0_first(lambda: open_folder(options, json.dumps(path), frames, processes))
    no_video = images.probe_video()
    if no_video:
        print(f"no video will be written ({no_video}); the frames will be kept")
    if crop is not None:
        print(f"cropped as {options.run / CROP} says; --crop none renders all")
    try:
        with cropped(run.model, crop):
            render_frames(run, cameras.to(run.device), frames, folder, options.resume, processes)
    except KeyboardInterrupt:
        if processes.is_first:
            print(f"\nwhat is done is in {folder.path}; the same command with --resume goes on")
        raise
    processes.barrier()
    print(f"{len(cameras)} frames: {folder.path}")
    if not no_video and processes.is_first:
        for name, files in frames.items():
            video = images.video_bytes([folder.path / file for file in files], options.fps)
            folder.write(f"{name}.mp4", images.as_panoramas(video) if options.lens == "equirectangular" else video)
            print(f"video: {folder.path / name}.mp4")
    return 0


def choose_cameras(options: RenderOptions, run: Run) -> Cameras:
    """Cameras of --cameras in the size of --size; sets options.cameras to what `auto` means for the run."""
    like, n_frames, splits = run.cameras("train"), options.frames or FRAMES, run.scene.splits
    target, up = torch.tensor(run.config.data.box).view(2, 3).mean(0), torch.tensor(run.scene.up)
    if options.cameras == "auto":
        looks_around = any(lens.is_panorama for lens in run.lenses("train"))
        is_around = not looks_around and paths.views_surround(like, target, up)
        options.cameras = "orbit" if is_around else "interpolate"
        others = ", ".join(sorted({"orbit", "spiral", "interpolate", *splits, *run.scene.paths} - {options.cameras}))
        why = "surround a subject" if is_around else "look around" if looks_around else "do not surround a subject"
        print(f"rendering --cameras {options.cameras}: the views {why}; others are {others}")
    path, is_file = options.cameras, options.cameras.endswith(".json")
    with_cameras = [*splits, *run.scene.paths]
    if options.frames and (is_file or path in with_cameras):
        raise UserError(f"{path} has cameras of its own; leave out --frames, or choose another --cameras")
    if is_file:
        cameras = read_path(Path(path), like.size(0), options.size, run.transform)
    elif path in with_cameras:
        cameras = run.cameras(path)
    elif path == "orbit":
        kind = "object" if run.transform is None else run.transform.kind
        if kind in ("inward", "forward") and not paths.views_surround(like, target, up):
            print("the views stand on one side: the orbit is an ellipse among them, for nothing is known behind")
            cameras = paths.sway(like, target, up, n_frames)
        else:
            elevation = paths.ELEVATION if kind == "object" else paths.mean_elevation(like, target, up)
            cameras = paths.orbit(like, target, up, n_frames, elevation)
    elif path == "spiral":
        cameras = paths.spiral(like, target, up, n_frames)
    elif path == "interpolate":
        through = run.cameras("test" if "test" in splits else "train")
        cameras = paths.interpolate(through, options.frames or max(FRAMES, FRAMES_PER_VIEW * len(through)))
    else:
        known = ["auto", "orbit", "spiral", "interpolate", *with_cameras]
        use = f"use {', '.join(known)} or a FILE.json"
        raise UserError(f"--cameras: {path!r} is unknown; {use}{did_you_mean(path, known)}")
    if options.lens != "pinhole":
        return paths.seen_around(cameras, options.lens, options.size, up)
    return cameras if options.size is None else paths.with_size(cameras, *options.size)


def open_folder(options: RenderOptions, path: str, frames: dict[str, list[str]], processes: Processes) -> OwnFolder:
    """The folder of the frames; the first of several processes prepares it, and lists all frames as nerfkit's."""
    if options.out:
        folder = OwnFolder(options.out, "rendering")
        folder.claim()
    else:
        seen_as = "" if options.lens == "pinhole" else f"_{options.lens}"
        folder = RunFolder.existing(options.run).child(f"render/{Path(options.cameras).stem}{seen_as}", "rendering")
    if processes.is_first:
        pngs = {file for files in frames.values() for file in files}
        files = {f"{name}.mp4" for name in frames} | pngs | {f"{Path(file).stem}.npz" for file in pngs}
        files |= {f"{LEGEND}{name}.png" for name in frames}
        folder.lock()
        try:
            prepare(folder, path, files, options)
        except RunError:
            folder.unlock()
            raise
        for name in sorted(files) if processes.size > 1 else ():
            folder.note(name)
    return folder


def prepare(folder: OwnFolder, path: str, files: set[str], options: RenderOptions) -> None:
    """Write the path, JSON with the state of the model; remove `files`, or all of another path or state."""
    file = folder.path / PATH_FILE
    if folder.owns(PATH_FILE) and file.read_text(encoding="utf-8", errors="replace") == path:
        folder.clear(() if options.resume else files)
    else:
        earlier = list(filter(folder.owns, folder.names - {PATH_FILE}))
        if earlier and not options.overwrite:
            raise RunError(
                f"{folder.path} holds another rendering ({len(earlier)} files{differing(file, path)}). --overwrite "
                "removes them, --out FOLDER keeps both"
            )
        if earlier:
            print(f"{len(earlier)} files of an earlier rendering are removed from {folder.path}")
        folder.clear()
    folder.write(PATH_FILE, path)


def differing(file: Path, path: str) -> str:
    """What tells the rendering of a path's file from that of `path`, as far as the file can be read."""
    try:
        there, asked = (
            f"{len(of['frames'])} frames of step {of['checkpoint_step']:d}"
            for of in (read_json(file, RunError), json.loads(path))
        )
    except (RunError, KeyError, TypeError, ValueError):  # of the viewer, or changed by others
        return ""
    what = "another training, cameras, size or crop" if there == asked else f"{there}, and {asked} are asked for"
    return f": {what}"


def render_frames(
    run: Run, cameras: Cameras, frames: dict[str, list[str]], folder: OwnFolder, resume: bool, processes: Processes
) -> None:
    outputs = tuple(output for output, names in FILES.items() if names[0] in frames)
    image_of = ImageRenderer(run.model, run.background)
    span = depth_span(image_of, cameras) if {"depth", "median_depth"} & {*outputs} else (0.0, 1.0)
    ends = span if run.transform is None else [run.transform.distance_to_input(end) for end in span]
    for name in frames if processes.is_first else ():
        if name.startswith("depth"):
            bar = images.color_bar("turbo", *ends, f"{name} [units of the scene's files]")
            folder.write(f"{LEGEND}{name}.png", images.png_bytes(bar))
    views, hidden = processes.shard(len(cameras)), not processes.is_first
    for view in foretold(tqdm(views, desc="rendering", unit="frame", disable=hidden)):
        if resume and all(folder.owns(files[view]) for files in frames.values()):
            continue
        rendered: dict[str, Tensor] = image_of(cameras, view, outputs)
        values = in_files({name: rendered[name].numpy() for name in frames}, run.transform)
        for name, files in frames.items():
            if name != "rgb":  # before the image, which marks the frame as done
                folder.write(f"{Path(files[view]).stem}.npz", images.npz_bytes(**{name: values[name]}))
            folder.write(files[view], images.png_bytes(images.preview(name, rendered, span)))


def depth_span(image_of: ImageRenderer, cameras: Cameras) -> tuple[float, float]:
    """The range of the depth colors: nearly all depths of a few frames, rendered small; alike for every process."""
    found = []
    for view in evenly_chosen(len(cameras), SPAN_FRAMES):
        one = cameras[[view]]
        scale = min(1.0, SPAN_SIDE / max(one.size(0)))
        small = one.resized(*(max(1, round(scale * side)) for side in one.size(0)))
        values = image_of(small, 0, ("depth", "opacity"))
        found.append(values["depth_ray"][values["opacity"] > 0.5].cpu())
    depths = torch.cat(found)
    if not len(depths):
        return 0.0, 1.0
    low, high = torch.quantile(depths, torch.tensor([OUTER, 1 - OUTER])).tolist()
    return low, max(high, 1.01 * low)
