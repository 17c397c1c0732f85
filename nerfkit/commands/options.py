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
from nerfkit.option_types import BOOLEANS, Switch, Words, integer, number, ranged
from nerfkit.safe_io import ALIKE, did_you_mean, printable, shell_join
from nerfkit.training.run.files import read_config
from nerfkit.viewer.page import TrainingViewerOptions, ViewerOptions

LEVEL = 0.2  # measured on the Orrery (docs/export.md): 0.5 is inside of thin parts, 0.1 outside of thick ones
TYRO = {"use_underscores": True, "config": (tyro.conf.ConsolidateSubcommandArgs, tyro.conf.FlagCreatePairsOff)}
Source = Annotated[Literal["depth", "density"], tyro.conf.arg(name="from")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Verbose = Annotated[bool, tyro.conf.arg(aliases=["-v"])]
Scene = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[SCENE]")]


@dataclass
class TrainOptions(Config):
    """Train a radiance field. A later --config overrides an earlier one, the command line overrides both."""

    scene: Scene = ""  # folder of the scene, or of photos, or a video; the same as --data.path
    config: tuple[str, ...] = ()  # TOML files that change the defaults, or names of presets, e.g. lego
    resume: str = ""  # run folder to go on with
    overwrite: Switch = False  # replace a run that the run folder holds already
    verbose: Verbose = False  # print all that was found of the scene and decided, such as options left as auto
    viewer: TrainingViewerOptions = field(default_factory=TrainingViewerOptions)


@dataclass
class RunOps:
    """Which implementation of each op runs: the one that is named; auto: the fused one where it is built."""

    backend: Literal["same", "auto", "torch", "cpp", "cuda"] = "same"  # of all ops; same: as the run was trained
    overrides: Words = field(default_factory=dict)  # for single ops, e.g. lltm cpp mlp torch


@dataclass
class RunOptions:
    """What all commands share that compute something with a run."""

    run: Run  # run folder
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    module: str = ""  # Python module that registers the run's kind of model, if it is one of your own
    ops: RunOps = field(default_factory=RunOps)


@dataclass
class RenderOptions(RunOptions):
    """Render novel views of a run."""

    cameras: str = "auto"  # orbit, spiral, interpolate, a split (test), FILE.json; auto: orbit or interpolate
    # equirectangular: level panoramas of 360 degrees; fisheye: circles of 180 degrees
    lens: Literal["pinhole", "equirectangular", "fisheye"] = "pinhole"
    frames: ranged(int | None, 1, 100_000) = None  # number; if unset: 60 of orbit and spiral, 4 per view of interpolate
    size: ranged(tuple[int, int] | None, 1, 2**16) = None  # width and height; if unset, those of training
    fps: integer(1, 1000) = 20  # frames per second of the video
    outputs: str = "rgb"  # rgb,depth,median_depth,opacity,normal; others than rgb also as .npz, depth in scene units
    out: str = ""  # folder of frames and videos: new, empty or of an earlier rendering; RUN/render/<cameras> if unset
    crop: Literal["run", "none"] = "run"  # run: only the part that the viewer kept in RUN/crop.json; none: all
    resume: bool = False  # keep frames of these cameras and this size that are there already
    overwrite: bool = False  # replace an earlier rendering of other cameras, size or crop


@dataclass
class ViewOptions(RunOptions):
    """Look at a run in a browser, until Ctrl-C."""

    data: str = ""  # folder of the scene, if it has moved; renderings are compared with its images
    viewer: ViewerOptions = field(default_factory=ViewerOptions)


@dataclass
class EvalOptions(RunOptions):
    """Score a run on held-out views."""

    split: str = ""  # views to evaluate on; the run's own choice if unset
    data: str = ""  # folder of the scene, if it has moved, or of another scene
    comparison_images: ranged(int | None, -1, 10**6) = None  # views saved as images; -1: all; as the run if left out
    lpips: str | None = None  # file of torchvision's VGG-16 weights, which LPIPS needs; as the run if unset


@dataclass
class InspectOptions:
    """Check a folder: what it holds, what to mend, how to train it and how long; exit status 0 if ready, else 1."""

    scene: Scene = ""  # folder of the scene, or of photos, or a video; the same as --data.path
    verbose: Verbose = False  # print all numbers
    out: str = ""  # folder for a report and a drawing of the cameras: new, empty or of an earlier inspection
    data: DataConfig = field(default_factory=DataConfig)


@dataclass
class ExportOptions(RunOptions):
    """Write a run's mesh, points, cameras, depth or splats for other programs, or a page that shows it."""

    out: str = ""  # file or folder to write; in RUN/export if unset
    overwrite: bool = False  # replace an earlier export
    frame: Literal["files", "model"] = "files"  # coordinates of the scene's files, in their units, or of the model


@dataclass
class GeometryOptions(ExportOptions):
    """What exports of geometry share."""

    crop: Box | None = None  # lowest, then highest corner, in the coordinates of --frame; RUN/crop.json if unset


@dataclass
class MeshOptions(GeometryOptions):
    """Export a mesh with colors and normals, as PLY or GLB."""

    source: Source = "density"  # density: where it reaches --level; depth: fused from depths of training views
    resolution: integer(2, 8192) = 256  # cells along the longest side
    level: number(0.001, 0.999) = LEVEL  # opacity of a cell on the surface, with --from density
    min_part: number(0, 0.5) = 0.001  # connected parts with a smaller share of the faces are left out
    formats: str = "ply"  # of ply,glb; an --out that ends in one of them decides


@dataclass
class PointsOptions(GeometryOptions):
    """Export points with colors and normals, as PLY."""

    count: integer(1, 10**9) = 1_000_000  # points at most


@dataclass
class SplatsOptions(GeometryOptions):
    """Export points as flat Gaussians, as PLY: a start for programs that optimise those."""

    count: integer(1, 10**9) = 300_000  # splats at most
    sh_degree: integer(0, 3) = 3  # degree of the spherical harmonics that the file has room for


@dataclass
class WebOptions(GeometryOptions):
    """Export the field itself as one HTML file, which any browser shows without a network."""

    size: number(0.1, 1000) = 10.0  # of the file [MB]; a model that does not fit teaches a smaller one
    seconds: number(1, 1e6) = 60.0  # that the smaller one is trained for
    metres: number(0, 1e6) = 0.0  # of a unit of the scene's files, for a scale bar; 0: not known, and no bar


@dataclass
class CamerasOptions(ExportOptions):
    """Export cameras, for nerfstudio and COLMAP."""

    split: str = "all"  # views: train, test, ...; or all
    formats: str = "auto"  # transforms,colmap,path; auto: all that can hold every camera


@dataclass
class DepthOptions(ExportOptions):
    """Export colors, depths and normals of views, float32."""

    split: str = "train"  # views: train, test, ...
    formats: str = "exr"  # of exr,npz
    depth: Literal["mean", "median"] = "mean"  # which depth is Z in an EXR file; an NPZ file has both


@dataclass
class DemoOptions:
    """Train the small scene of the package, score it and render a turntable: about a minute on two cores."""

    out: str = ""  # run folder; runs/demo if unset, or runs/demo_2, ... where that is taken
    device: str = "auto"  # cpu, cuda, cuda:1, ...
    steps: ranged(int | None, 1, 10**6) = None  # training steps; if left out, as many as fit into half a minute
    frames: integer(2, 1000) = 48  # of the turntable


@dataclass
class SummaryOptions:
    """Print a run's scores and where its images are."""

    run: Run  # run folder


@dataclass
class ReportOptions(SummaryOptions):
    """Write RUN/report.html: one page of a run's scores, images, curves and decisions, and how to repeat it."""


@dataclass
class DoctorOptions:
    """Print what this installation can do, with a verdict; exit status 0 if training works, else 1."""


OPTIONS: dict[str, type] = {  # of each command; those of an export are of its kind
    "demo": DemoOptions,
    "inspect": InspectOptions,
    "train": TrainOptions,
    "render": RenderOptions,
    "view": ViewOptions,
    "export": ExportOptions,
    "eval": EvalOptions,
    "summary": SummaryOptions,
    "report": ReportOptions,
    "doctor": DoctorOptions,
}
KINDS: dict[str, type[ExportOptions]] = {
    "mesh": MeshOptions,
    "points": PointsOptions,
    "cameras": CamerasOptions,
    "depth": DepthOptions,
    "splats": SplatsOptions,
    "web": WebOptions,
}


def usage() -> str:
    """What there is to type."""
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
        said = said or [f"error: the word {printable(left[0])!r} belongs to no option"]
        print(*said, f"nerfkit {command} --help shows all options", sep="\n", file=sys.stderr)
        sys.exit(2)
    check_values(options, "--")
    return options


def meant(option: str, kind: type) -> str:
    """The end of a message: at most three options, whose names are spelt like the one that was typed, or are a part of
    it or the other way round."""
    name = option.lstrip("-").replace("-", "_").rpartition(".")[2]

    def alike(other: str) -> float:
        last = other.lstrip("-").rpartition(".")[2]
        is_part = len(name) > 2 and (name in last or last in name or other.startswith(f"--{name}."))
        return is_part + difflib.SequenceMatcher(None, name, last).ratio()

    near = sorted((other for other in option_names(kind) if alike(other) >= ALIKE), key=alike, reverse=True)[:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def option_names(kind: type, prefix: str = "--") -> Iterator[str]:
    """The options that stand for the fields of a dataclass."""
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
        return parsed(KINDS[kind], f"export RUN {kind}", rest)
    asked = arguments[:1] in (["-h"], ["--help"])
    if arguments and not asked:
        named = [did_you_mean(word, KINDS) for word in arguments[:2] if not os.path.exists(word)]
        meant = next(filter(None, named), "")
        got = f"{', '.join(KINDS)}; got {arguments[:2]!r:.80}{meant}"
        raise UserError(f"give what to export after the run folder: {got}")
    kinds = "|".join(KINDS)
    print(f"usage: nerfkit export RUN {kinds} [options]   (nerfkit export RUN mesh --help shows a kind's options)")
    sys.exit(0 if asked else 2)


def train_options(arguments: list[str]) -> TrainOptions:
    """Options of `nerfkit train`: defaults < run resumed < files < command line."""
    known = first_look(arguments)
    resumed = None
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
    """Lines on what was meant by arguments that the parser has refused."""
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
    """What decides the defaults of all other options."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", nargs="*", action="extend")
    first.add_argument("--resume", default="")
    first.add_argument("--data.path", nargs="?", dest="data_path")
    return first.parse_known_args(arguments)[0]
