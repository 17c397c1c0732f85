# SPDX-License-Identifier: Apache-2.0
"""What the commands take, and how arguments become that. Nothing here imports torch, so that --help answers at once."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from inspect import cleandoc
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from nerfkit import config as config_module
from nerfkit.config import Box, Config, DataConfig
from nerfkit.config.files import read_decisions
from nerfkit.config.resolve import check_values
from nerfkit.errors import ConfigError, UserError
from nerfkit.option_types import BOOLEANS, METERS, Switch, Text, Texts, Words, integer, number, unset
from nerfkit.safe_io import ALIKE, did_you_mean, printable, shell_join
from nerfkit.training.run.files import read_config
from nerfkit.viewer.page import TrainingViewerOptions, ViewerOptions

ELSEWHERE = {"lr": "learning_rate", "iterations": "steps", "iters": "steps", "max_num_iterations": "steps"}
LEVEL = 0.2  # measured on the Orrery (docs/export.md): 0.5 is inside of thin parts, 0.1 outside of thick ones
TYRO = {"use_underscores": True, "config": (tyro.conf.ConsolidateSubcommandArgs, tyro.conf.FlagCreatePairsOff)}
Source = Annotated[Literal["auto", "depth", "density"], tyro.conf.arg(name="from")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Verbose = Annotated[bool, tyro.conf.arg(aliases=["-v"])]
Scene = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[SCENE]", help_behavior_hint="")]
Meters = unset(float, "METERS", "the scale in that file", METERS.low, METERS.high)
Measured = unset(tuple[float, float, float, float, float, float, float], "X Y Z X Y Z METERS", "none")
Corners = unset(Box | Literal["none"], "X Y Z X Y Z", "the viewer's crop, if it saved one", word="none")


@dataclass
class TrainOptions(Config):
    """Train a radiance field from a scene, photos or a video, into a run folder, to render, view, score or export."""

    scene: Scene = ""  # folder of a scene or of photos, or a video; the same as --data.path
    # TOML files of options, or names of configurations (quick, best, demo, ...); later ones override earlier ones
    config: Texts = ()
    resume: Text = ""  # run folder of a training to continue
    overwrite: Switch = False  # replace the run that is in --out already
    verbose: Verbose = False  # print all that was found of the scene, and the values of options left at auto
    viewer: TrainingViewerOptions = field(default_factory=TrainingViewerOptions)


@dataclass
class RunOps:
    """Which implementation of each op to use. auto: the compiled one where it is built, else torch."""

    backend: Literal["same", "auto", "torch", "cpp", "cuda"] = "same"  # implementation of all ops; same: as in training
    overrides: Words = field(default_factory=dict)  # pairs of an op and its implementation, e.g. lltm cpp mlp torch


@dataclass
class RunOptions:
    run: Run  # run folder
    device: str = "auto"  # cpu, cuda, cuda:1, ...; auto: a GPU if there is one
    module: Text = ""  # Python module that registers your own model, if the run has one
    ops: RunOps = field(default_factory=RunOps)


@dataclass
class RenderOptions(RunOptions):
    """Render novel views of a run."""

    # orbit, spiral, interpolate, train, test, FILE.json; auto: orbit if views surround the scene, else interpolate
    cameras: str = "auto"
    # equirectangular: panoramas of 360 degrees, the horizon level; fisheye: circles of 180 degrees
    lens: Literal["pinhole", "equirectangular", "fisheye"] = "pinhole"
    # number of frames
    frames: unset(int, "INT", "60; interpolate: 4 per view, if that is more", 1, 100_000) = None
    size: unset(tuple[int, int], "WIDTH HEIGHT", "as in training", 1, 2**16) = None  # size of a frame in pixels
    fps: integer(1, 1000) = 20  # frames per second of the video
    outputs: str = "rgb"  # rgb,depth,median_depth,opacity,normal, with commas; all but rgb also as .npz
    # new or empty folder for frames and videos, or that of an earlier rendering (default: RUN/render/CAMERAS)
    out: Text = ""
    crop: Literal["run", "none"] = "run"  # run: the crop that the viewer saved in RUN/crop.json; none: everything
    resume: bool = False  # skip frames of the same cameras and size that are there already
    overwrite: bool = False  # replace even a rendering of other cameras, size, crop or checkpoint


@dataclass
class ViewOptions(RunOptions):
    """Look at a run in a browser, until Ctrl-C."""

    data: Text = ""  # scene folder, if it has moved; renderings are compared with its images
    viewer: ViewerOptions = field(default_factory=ViewerOptions)


@dataclass
class EvalOptions(RunOptions):
    """Score a run on held-out views."""

    split: Text = ""  # views to score, e.g. test or train (default: that of eval.split, usually test)
    data: Text = ""  # scene folder, if it has moved, or that of another scene to score on
    # number of views saved as truth, render and error; -1: all
    comparison_images: unset(int, "INT", "as in training", -1, 10**6) = None
    lpips: unset(str, "STR", "as in training") = None  # file of torchvision's VGG-16 weights, which LPIPS needs


@dataclass
class InspectOptions:
    """Check a folder before training, and name the command to train it. Exits with 1 if something needs mending."""

    scene: Scene = ""  # folder of a scene or of photos, or a video; the same as --data.path
    verbose: Verbose = False  # print all that was found of cameras, lenses, points and units
    out: Text = ""  # folder for the report and a drawing of the cameras: new, empty, or of an earlier inspection
    data: DataConfig = field(default_factory=DataConfig)


@dataclass
class ExportOptions(RunOptions):
    """Export a run as mesh, points, cameras, depth or splats for other programs, or as a web page."""

    out: Text = ""  # file or folder to write (default: inside RUN/export)
    overwrite: bool = False  # replace an earlier export
    frame: Literal["files", "model"] = "files"  # coordinates; files: as in the scene's files; model: as in training


@dataclass
class GeometryOptions(ExportOptions):
    # export only this box: lowest and highest corner, in the coordinates of --frame; none: ignore the viewer's crop
    crop: Corners = None
    scale: Meters = None  # meters per unit of the scene's files; saved in RUN/scale.json
    measure: Measured = None  # instead of --scale: two points, as in the scene's files, and their distance [m]


@dataclass
class MeshOptions(GeometryOptions):
    """Export a mesh with colors and normals, as PLY or GLB, or with a texture, as GLB or OBJ."""

    # the surface; density: where opacity reaches --level; depth: fused depth of the training views; auto: density if
    # you give another --level or if the mesh from it misses at most 5 % of what the photos show, else what misses less
    source: Source = "auto"
    resolution: integer(2, 8192) = 256  # cells along the longest side
    level: number(0.001, 0.999) = LEVEL  # opacity, on the surface, of a layer 1/256 of the box thick
    min_part: number(0, 0.5) = 0.001  # smallest loose part that is kept, as a share of all faces
    holes: number(0, 1000) = 4.0  # longest edge of the triangles that close a hole [cells]; 0: none is closed
    faces: integer(0, 10**9) = 0  # approximate limit of faces; 0: none, or with --texture one face for every 32 texels
    # side of a texture painted from the training images [pixels], at least 16; 0: colors of vertices
    texture: integer(0, 16384) = 0
    # ply, glb or ply,glb; if --texture is given: glb, obj or glb,obj (default: the ending of --out, else the first)
    formats: Text = ""


@dataclass
class PointsOptions(GeometryOptions):
    """Export points with colors and normals, as PLY."""

    count: integer(1, 10**9) = 1_000_000  # maximum number of points


@dataclass
class SplatsOptions(GeometryOptions):
    """Export points as flat Gaussians, as PLY: a start for programs that optimise splats."""

    count: integer(1, 10**9) = 300_000  # maximum number of splats
    sh_degree: integer(0, 3) = 3  # degree of spherical harmonics in the file; coefficients above degree 0 are zeros


@dataclass
class WebOptions(GeometryOptions):
    """Export the model as one HTML file, which any browser with WebGL 2 shows offline."""

    size: number(0.5, 1000) = 10.0  # largest file [MB]; if the model does not fit, a smaller one is trained from it
    seconds: number(1, 1e6) = 60.0  # training time of the smaller model [s]


@dataclass
class CamerasOptions(ExportOptions):
    """Export cameras, for nerfstudio and COLMAP."""

    split: str = "all"  # views to export: train, test, ... or all
    # transforms, colmap, path (a file for render --cameras), with commas; auto: all that can express the lenses
    formats: str = "auto"


@dataclass
class DepthOptions(ExportOptions):
    """Export colors, depths and normals of views, float32."""

    split: str = "train"  # views to export: train, test, ...
    formats: str = "exr"  # exr, npz or both (exr,npz)
    depth: Literal["mean", "median"] = "mean"  # depth in channel Z of an EXR file; an NPZ file has both


@dataclass
class DemoOptions:
    """Train the small scene that comes with nerfkit, score it and render a turntable: about a minute on two cores."""

    out: Text = ""  # run folder (default: runs/demo, or if that exists runs/demo_2, ...)
    device: str = "auto"  # cpu, cuda, cuda:1, ...; auto: a GPU if there is one
    steps: unset(int, "INT", "as many as fit into half a minute", 1, 10**6) = None  # number of training steps
    frames: integer(2, 1000) = 48  # number of frames of the turntable


@dataclass
class SummaryOptions:
    """Print a run's scores and where its images are."""

    run: Run  # run folder


@dataclass
class ReportOptions(SummaryOptions):
    """Write RUN/report.html: one page of a run's scores, images, curves and decisions, and how to repeat it."""


@dataclass
class DoctorOptions:
    """Check this installation, and say what is missing. The exit status is 1 if training cannot run."""


def by_name(*kinds: type) -> dict[str, type]:
    return {kind.__name__.removesuffix("Options").lower(): kind for kind in kinds}


OPTIONS = by_name(
    DemoOptions, InspectOptions, TrainOptions, RenderOptions, ViewOptions, ExportOptions, EvalOptions, SummaryOptions,
    ReportOptions, DoctorOptions,
)  # fmt: skip
KINDS = by_name(MeshOptions, PointsOptions, CamerasOptions, DepthOptions, SplatsOptions, WebOptions)  # of an export


def usage() -> str:
    return "\n".join(
        (
            "usage: nerfkit COMMAND ...   (nerfkit COMMAND --help shows its options)\n",
            *(f"  {name:<10} {cleandoc(kind.__doc__)}" for name, kind in OPTIONS.items()),
            "\n  --version  print the version",
        )
    )


def parse(command: str, arguments: list[str]) -> Any:
    """Options of `command`; ends the process after --help, and with status 2 after a line on what is refused."""
    try:
        if command == "train":
            return train_options(arguments)
        if command == "export":
            return export_options(arguments)
        options = parsed(OPTIONS[command], command, arguments)
        if command == "inspect":
            take_scene(options, options.data.path or None)
        return options
    except SystemExit as end:
        for line in hints(command, arguments) if end.code == 2 else ():
            print(line, file=sys.stderr)
        raise


def parsed(kind: type, command: str, arguments: list[str], default: Any = None) -> Any:
    """An instance of the dataclass `kind`; ends the process for words that are left over."""
    given = {} if default is None else {"default": default}
    options, left = tyro.cli(kind, args=arguments, prog=f"nerfkit {command}", return_unknown_args=True, **given, **TYRO)
    if left:
        typed = [word.partition("=")[0] for word in left if word.startswith("-")]
        said = [f"error: there is no option {printable(option)}{meant(option, kind)}" for option in typed]
        said = said or [f"error: {printable(left[0])!r} is one word too many: it belongs to no option"]
        print(*said, f"nerfkit {command} --help shows all options", sep="\n", file=sys.stderr)
        sys.exit(2)
    check_values(options, "--")
    return options


def meant(option: str, kind: type) -> str:
    """The end of a message: at most three options, whose names are spelt like the one that was typed, or are a part of
    it or the other way round."""
    name = option.lstrip("-").replace("-", "_").rpartition(".")[2]
    name = ELSEWHERE.get(name, name)

    def alike(other: str) -> float:
        last = other.lstrip("-").rpartition(".")[2]
        is_part = len(name) > 2 and (name in last or last in name or other.startswith(f"--{name}."))
        return is_part + difflib.SequenceMatcher(None, name, last).ratio()

    near = sorted((other for other in option_names(kind) if alike(other) >= ALIKE), key=alike, reverse=True)[:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def option_names(kind: type, prefix: str = "--") -> Iterator[str]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        own = [f"--{mark.name}" for mark in marks if getattr(mark, "name", None)]
        if is_dataclass(hint):
            yield from option_names(hint, f"{prefix}{name}.")
        elif tyro.conf.Positional not in marks:
            yield own[0] if own else f"{prefix}{name}"


def take_scene(options: Any, path: str | None) -> None:
    """Make the SCENE that was typed, if one was, data.path; raises ConfigError if --data.path is another one."""
    scene = options.scene
    if scene and path is not None and os.path.realpath(path) != os.path.realpath(scene):
        raise ConfigError(
            f"the scene is given twice, {printable(scene)} and --data.path {printable(path)}; leave out one of them"
        )
    options.data.path = scene or options.data.path


def export_options(arguments: list[str]) -> ExportOptions:
    """Options of `nerfkit export`, whose kind stands before or after the run folder."""
    kind = next((word for word in arguments[:2] if word in KINDS), None)
    if kind is not None:
        rest = list(arguments)
        rest.remove(kind)
        return parsed(KINDS[kind], f"export {kind}", rest)
    asked = arguments[:1] in (["-h"], ["--help"])
    if arguments and not asked:
        words = [word for word in arguments[:2] if not word.startswith("-")]
        unknown = [word for word in words if not os.path.exists(word)]
        meant = next(filter(None, (did_you_mean(word, KINDS) for word in unknown)), "")
        is_kind = unknown and (meant or words[1:])
        said = f"cannot export {unknown[-1]!r:.80}" if is_kind else "what to export is not said"
        raise UserError(f"{said}; after the run folder comes one of {', '.join(KINDS)}{meant}")
    kinds = "|".join(KINDS)
    print(f"usage: nerfkit export RUN {kinds} [OPTIONS]   (options of each, e.g.: nerfkit export mesh --help)")
    sys.exit(0 if asked else 2)


def train_options(arguments: list[str]) -> TrainOptions:
    known = first_look(arguments)
    resumed = None
    if known.resume == "":
        raise ConfigError("--resume takes the folder of a run: --resume runs/scene")
    if known.resume:  # Python code of the run's is not imported unless it is given again
        before = read_config(Path(known.resume))
        resumed = replace(before, model=replace(before.model, module=""), trainer=replace(before.trainer, loss=""))
        if "eval.split" in read_decisions(Path(known.resume)):  # not asked for: the scene may have no such views
            resumed.eval = replace(before.eval, split=None)
    config = config_module.merged(known.config or [], resumed)
    if known.resume:
        config = replace(config, out=known.resume)  # out in a file is for new runs
    default = TrainOptions(**{f.name: getattr(config, f.name) for f in fields(Config)})
    options = parsed(TrainOptions, "train", arguments, default)
    take_scene(options, known.data_path)
    if not known.resume and config.data.path not in ("", options.data.path):  # a run's options for another scene
        from nerfkit.data.load import elsewhere  # which imports torch

        other = elsewhere(config.data, options.data.path)
        for name in ("format", "sfm_dir"):
            if getattr(options.data, name) == getattr(config.data, name):  # it was not typed
                setattr(options.data, name, getattr(other, name))
    options.model.options = config.model.options | options.model.options
    config_module.check(options)
    if options.resume and options.overwrite:
        raise ConfigError("--resume goes on with a run, --overwrite replaces it; leave out one of them")
    if options.resume and os.path.realpath(options.out) != os.path.realpath(options.resume):
        raise ConfigError(
            f"--resume goes on in {options.resume}, out is {options.out}; leave out --out to go on, "
            "or --resume to train a new run"
        )
    return options


def hints(command: str, arguments: list[str]) -> list[str]:
    found = []
    for place, word in enumerate(arguments):
        option = word.partition("=")[0]
        values = list(takewhile(lambda word: not word.startswith("--"), arguments[place + 1 :]))
        if option == "--size" and command == "render" and not (len(values) == 2 and all(map(str.isdecimal, values))):
            found.append("--size takes a width and a height: --size 640 360")
        elif option == "--outputs" and len(values) > 1:
            found.append(f"--outputs takes names with commas between: --outputs {shell_join(','.join(values))}")
        elif command == "train" and option in ("--viewer", "--overwrite") and values and values[0] not in BOOLEANS:
            found.append(f"the scene comes first: nerfkit train {shell_join(values[0])} {option}")
    return found


def first_look(arguments: list[str]) -> argparse.Namespace:
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", nargs="*", action="extend")
    first.add_argument("--resume", nargs="?", const="")
    first.add_argument("--data.path", nargs="?", dest="data_path")
    return first.parse_known_args(arguments)[0]
