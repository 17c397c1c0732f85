# SPDX-License-Identifier: Apache-2.0
"""Every option, once: its name, default, range, unit and help.

A TOML file changes some of them (`configs/*.toml` are such differences), the command line overrides the file. An
unknown name, a wrong type or a value out of range is an error that names the option and its range.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec
import tomli_w

from nerfkit.contraction import exponential_ladder
from nerfkit.errors import ConfigError
from nerfkit.files import atomic_write
from nerfkit.ops.grid_encode import MAX_LEVELS, MAX_RESOLUTION
from nerfkit.ops.march import BLOCK, MAX_BLOCKS
from nerfkit.option_types import LARGEST, Flag, Options, Range, integer, number, one_line, ranged
from nerfkit.reading import read_text_utf8, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_ROWS = 2**31  # of all grid levels: row indices have 32 bits
MAX_INTERVALS = MAX_BLOCKS * BLOCK - 1  # of a ray
MAX_TEXT = 4096  # characters of an option; the longest path
MAX_BYTES = 2**15  # of a TOML file; reading one takes time that grows with the square of its length

Background = Literal["auto", "white", "black", "random"]
Backend = Literal["auto", "torch", "cpp", "cuda"]
OpBackend = Literal["same", "auto", "torch", "cpp", "cuda"]
Box = ranged(tuple[float, float, float, float, float, float], -1e6, 1e6)
Steps = integer(0, 10**9)


@dataclass
class DataConfig:
    """The scene and how its images are read."""

    path: str = ""  # folder of the scene, or of plain photographs, or a video
    sfm: str = ""  # folder of camera poses that are found for photographs or a video; beside them if empty
    format: str = "auto"  # scene format; auto recognises it from the files
    downscale: number(0.1, 1000) = 1.0  # divide the image size by this, averaging areas
    max_views: integer(0, 10**9) = 0  # train on so many of the training views at most, evenly spaced; 0: on all
    masks: Literal["ignore", "cutout"] = "ignore"  # masked pixels do not count, or are transparent: an object cut out
    background: Background = "auto"  # behind transparent pixels; random: in training; auto: that for places, or white
    box: Box = (-1.5, -1.5, -1.5, 1.5, 1.5, 1.5)  # lowest, then highest corner [scene units]; a capture's is found
    appearance: Literal["same", "affine"] = "same"  # affine: each training image has its own color transform
    poses: Literal["given", "refine"] = "given"  # refine: where each training image was taken is learned, too


@dataclass
class ModelConfig:
    """The radiance field."""

    kind: str = "field"  # registered model that is trained
    module: str = ""  # Python module that registers a model of your own, e.g. mypackage.mymodel; imported if given
    options: Options = field(default_factory=dict)  # of a model of your own, e.g. width 32 soft true
    levels: integer(1, MAX_LEVELS) = 16  # grid levels
    features: integer(1, 128) = 2  # features per level and vertex
    log2_table: integer(1, 30) = 20  # log2 of the most rows of a level; larger levels are hashed
    base_resolution: integer(1, MAX_RESOLUTION - 1) = 16  # cells a side of the coarsest level
    max_resolution: integer(1, MAX_RESOLUTION - 1) = 2048  # cells a side of the finest level
    hidden: integer(1, 4096) = 64  # width of the decoder's hidden layers
    embedding: integer(1, 1024) = 16  # outputs of the density network: first the density; the color network sees all
    encoder: Flag = True  # depthwise convolution along the ray, a residual on color
    kernel: integer(1, 255) = 3  # taps of that convolution (odd)
    aggregator: Flag = True  # LLTM along the ray, a residual on color
    state: integer(1, 1024) = 16  # size of the LLTM's state
    density_bias: number(-20, 20) = -1.0  # logarithm of the density where the network's output is 0, as at first
    precision: Literal["float16", "float32"] = "float16"  # of features and networks on a GPU; on a CPU float32


@dataclass
class SamplingConfig:
    """Where samples are put along a ray."""

    kind: str = "auto"  # box: nothing is outside of data.box; contracted: unbounded space; auto: by the kind of scene
    step: number(1e-9, 1e6) = 0.005  # interval length; contracted: of the shortest one [scene units]
    cone: number(0, 1) = 0.0078125  # contracted: interval length per distance from the camera
    near: number(0, 1e10) = 0.0  # no samples nearer than this [scene units]
    far: number(0, 1e30) = 1e10  # no samples farther than this [scene units]
    occupancy_resolution: integer(1, 1024) = 128  # cells a side of the occupancy grid
    occupancy_every: integer(1, 10**9) = 16  # training steps between two updates of the occupancy grid
    occupancy_warmup: Steps = 256  # training steps in which an update visits every cell
    occupancy_threshold: number(0, 1) = 0.01  # a cell is occupied above this opacity of an interval as long as step
    candidates_per_sample: number(1, 16) = 3.0  # of a CUDA graph: capacity for marched samples per visible one
    min_transmittance: number(0, 0.99) = 1e-4  # a ray ends where its transmittance falls to this


@dataclass
class TrainerConfig:
    """Optimisation."""

    steps: integer(1, 10**9) = 20000  # optimisation steps
    max_seconds: number(0, 1e9) = 0.0  # end, with the schedule, after this training time [s]; 0: no limit
    samples: integer(1, 2**26) = 262144  # per step, by the number of rays; the capacity of a CUDA graph
    max_rays: integer(1, 2**24) = 65536  # rays per step at most
    optimizer: Literal["adam", "lazy_adam"] = "adam"  # lazy: skips what has no gradient; for large batches
    learning_rate: number(1e-12, 100) = 0.01  # of the optimiser, after the warm-up; of an object 0.02
    final_learning_rate: number(1e-12, 100) = 0.0003  # at the last step
    warmup: Steps = 100  # steps in which the learning rate rises
    schedule: Literal["linear", "cosine", "exponential"] = "linear"  # how it falls to its final value
    table_decay: number(0, 100) = 0.0  # a step shrinks the feature table by learning rate x this; of an object 0.1
    distortion: number(0, 100) = 0.0  # weight of the distortion loss, which makes a ray's samples one surface
    background_warmup: Steps = 500  # first steps, with random backgrounds behind images with alpha: no fog is learned
    capture: Flag = True  # record a step as a CUDA graph, where all ops run on the cuda backend
    deterministic: Flag = False  # the same bits from the same seed, on a CPU and on a GPU; slower on a GPU
    save_every: Steps = 2000  # steps between two checkpoints; 0: only at the end
    log_every: integer(1, 10**9) = 50  # steps between two lines of metrics.jsonl
    preview_every: integer(-1, 10**9) = -1  # nerfkit train: steps between pictures in previews/; 0: none; -1: about 30
    tensorboard: Flag = False  # nerfkit train: curves and pictures for TensorBoard, too; needs nerfkit[tensorboard]


@dataclass
class EvalConfig:
    """Evaluation on held-out views."""

    split: str = "test"  # views to evaluate on
    after_training: Flag = True  # evaluate when training is done
    every: Steps = 0  # nerfkit train: steps between scores of some views, in metrics.jsonl and loss.png; 0: none
    every_views: integer(0, 10**6) = 8  # how many views that is, evenly spread over the split; 0: all
    comparisons: integer(-1, 10**6) = 8  # views whose truth, render and error are saved as images; -1: all
    lpips: str = ""  # file of torchvision's weights of VGG-16, by which LPIPS compares; without it LPIPS is null


@dataclass
class ParallelConfig:
    """Training on several GPUs, with a process each that torchrun starts; one process heeds none of it."""

    steps_scale: number(0, 1) = 0.0  # share of trainer.steps that are trained; 0: 1 / processes, as many rays in all
    graph: Literal["auto", "true", "false"] = "auto"  # add gradients inside the CUDA graph of a step, or beside it
    precision: Literal["float32", "float16"] = "float32"  # in which gradients are added


@dataclass
class OpsConfig:
    """Which implementation of each op runs. By name it never falls back; auto takes the fused one where built."""

    backend: Backend = "auto"  # for all ops
    grid_encode: OpBackend = "same"
    depthwise_conv1d: OpBackend = "same"
    lltm: OpBackend = "same"
    mlp: OpBackend = "same"
    march: OpBackend = "same"
    count_visible: OpBackend = "same"
    compact_samples: OpBackend = "same"
    spherical_harmonics: OpBackend = "same"
    composite: OpBackend = "same"
    distortion: OpBackend = "same"
    lazy_adam: OpBackend = "same"

    def overrides(self) -> dict[str, str]:
        """Ops whose backend differs from `backend`."""
        chosen = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "backend"}
        return {op: choice for op, choice in chosen.items() if choice != "same"}


@dataclass
class Config:
    """All options of a run."""

    out: str = ""  # run folder; runs/<scene> if empty
    device: str = "auto"  # cpu, cuda, cuda:1, ...; auto takes a GPU if there is one
    seed: integer(0, 2**32 - 1) = 0  # of every random choice
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    ops: OpsConfig = field(default_factory=OpsConfig)


def to_dict(config: Config) -> dict[str, Any]:
    """`config` as nested dictionaries, the form of its TOML file."""
    plain = Config(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Config)})
    return msgspec.to_builtins(plain)


def from_dict(values: dict[str, Any], source: str) -> Config:
    """Config from nested dictionaries; raises ConfigError naming `source` and the key."""
    config = _converted(values, source)
    check(config)
    return config


def _converted(values: dict[str, Any], source: str) -> Config:
    """Config from nested dictionaries, each value checked by itself."""
    _check_names(values, Config, source, prefix="")
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        message, _, key = str(error).partition(" - at `$.")
        raise ConfigError(f"{source}: {key.rstrip('`')}: {one_line(message)}") from None
    _check_values(config, f"{source}: ")
    return config


def _check_names(values: dict[str, Any], table: type, source: str, prefix: str) -> None:
    known = {f.name: f for f in dataclasses.fields(table)}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"{source}: unknown option {prefix}{one_line(name)}; {hint}")
        factory = known[name].default_factory
        if dataclasses.is_dataclass(factory) and isinstance(value, dict):
            _check_names(value, factory, source, f"{prefix}{name}.")


RENAMED = {  # old name of an option, in files of earlier versions -> current name
    "sampling.candidates": "sampling.candidates_per_sample",
    "eval.sheets": "eval.comparisons",
    "ops.visible": "ops.count_visible",
    "ops.place": "ops.compact_samples",
}


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a file under current names; where it has both, the current one's."""
    for old, new in RENAMED.items():
        (old_group, _, old_key), (group, _, key) = old.rpartition("."), new.rpartition(".")
        table = values.get(old_group) if old_group else values
        if not isinstance(table, dict) or old_key not in table:
            continue
        value = table.pop(old_key)
        if not table:
            del values[old_group]
        target = values.setdefault(group, {}) if group else values
        if isinstance(target, dict):
            target.setdefault(key, value)
    return values


def preset_path(name: str) -> Path:
    """The TOML file `name`, or else the preset of that name."""
    installed = Path(__file__).parent / "configs"
    folder = installed if installed.is_dir() else Path(__file__).parents[1] / "configs"
    presets = {file.stem: file for file in sorted(folder.glob("*.toml"))}
    if os.path.exists(name) and not (name in presets and os.path.isdir(name)):
        return Path(name)
    if name not in presets:
        raise ConfigError(
            f"no configuration {one_line(name)!r}; give the path of a TOML file, or one of {', '.join(presets)}"
        )
    return presets[name]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Values of a TOML file; raises ConfigError if it is missing or broken."""
    name = shown(path)
    text = read_text_utf8(Path(path), ConfigError, "the configuration", MAX_BYTES)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply; options are [group] and name = value") from None
    except ValueError as error:
        raise ConfigError(f"{name} is not valid TOML: {one_line(str(error))}") from None


def load(paths: list[str] | list[Path], base: Config | None = None) -> Config:
    """Defaults (or `base`), changed by each file in turn."""
    config = merged(paths, base)
    check(config)
    return config


def merged(paths: list[str] | list[Path], base: Config | None = None) -> Config:
    """As `load`, without checking values against each other: `check` does, once the command line is known.

    Each file is checked by itself, to name it in errors.
    """
    values = to_dict(base or Config())
    for path in paths:
        changes = changes_of(path)
        _converted(changes, one_line(str(preset_path(str(path)))))
        values = _changed(values, changes)
    return _converted(values, "configuration")


def changes_of(path: str | Path) -> dict[str, Any]:
    """What a file, or the preset of that name, says, under current names of options."""
    return _renamed(read_toml(preset_path(str(path))))


def _changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    inner = {name: _changed(values.get(name, {}), new) for name, new in changes.items() if isinstance(new, dict)}
    return values | changes | inner


def dumps(config: Config) -> str:
    """Every option, as the text of a TOML file."""
    return tomli_w.dumps(to_dict(config))


def dump(config: Config, path: Path) -> None:
    """Write every option to a TOML file."""
    atomic_write(path, dumps(config))


# Options that may change on resume: all others shape the checkpoint or what the field was trained for.
FREE_ON_RESUME = (
    "out", "device", "data.path", "model.module", "trainer.steps", "trainer.max_seconds", "trainer.learning_rate",
    "trainer.final_learning_rate", "trainer.schedule", "trainer.table_decay", "trainer.save_every",
    "trainer.log_every", "trainer.capture", "trainer.deterministic", "trainer.preview_every", "trainer.tensorboard",
    "eval.", "parallel.", "ops.",
)  # fmt: skip


def fixed_differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """Name, old and new value of every option that differs and must not change on resume."""
    before, after = flat(to_dict(old)), flat(to_dict(new))
    names = [name for name in before | after if not name.startswith(FREE_ON_RESUME)]  # of model.options, any
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of nested dictionaries by their full names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def check(config: Config) -> None:
    """Raise ConfigError for a value out of its range, and for values that contradict each other."""
    _check_values(config, "")
    _check_box(config.data.box)
    _check_model(config.model)
    _check_sampling(config)
    _check_decay(config.trainer)
    n_bytes = len(dumps(config).encode())
    if n_bytes > MAX_BYTES:  # the run could not be read again
        raise ConfigError(f"the options take {n_bytes} bytes as TOML, more than {MAX_BYTES}; shorten model.options")


def _check_values(options: Any, prefix: str) -> None:
    hints = get_type_hints(type(options), include_extras=True)
    for name in vars(options).keys() - hints.keys():  # set in Python, where a dataclass takes any name
        near = difflib.get_close_matches(name, hints, n=1, cutoff=0.5)
        raise ConfigError(f"unknown option {prefix}{name}" + (f"; did you mean {prefix}{near[0]}?" if near else ""))
    for name, kind in hints.items():
        value, full_name = getattr(options, name), f"{prefix}{name}"
        if dataclasses.is_dataclass(value):
            _check_values(value, f"{full_name}.")
        elif isinstance(value, dict):
            for key, own in value.items():
                _check_text(f"a name in {full_name}", key)
                _check_value(f"{full_name}.{one_line(key)}", own, (Range(-LARGEST, LARGEST),))
        else:
            _check_value(full_name, value, getattr(kind, "__metadata__", ()))


def _check_value(name: str, value: Any, metadata: tuple) -> None:
    if isinstance(value, str):
        _check_text(name, value)
    else:
        for limits in metadata:
            if isinstance(limits, Range):
                limits.check(name, value)


def _check_text(name: str, text: str) -> None:
    """Require text that a TOML file can hold and, as most of it is a path, the system accepts as one."""
    is_unicode = text.encode(errors="replace").decode() == text
    if len(text) > MAX_TEXT or "\0" in text or not is_unicode:
        raise ConfigError(
            f"{name} must be text in UTF-8 of at most {MAX_TEXT} characters without NUL, got {one_line(text)!r:.60}"
        )


def _check_box(box: tuple[float, ...]) -> None:
    low, high = box[:3], box[3:]
    for a, b in zip(low, high, strict=True):
        if b - a < 1e-6 * max(1.0, abs(a), abs(b)):  # float32 would not tell them apart
            raise ConfigError(f"data.box: the lowest corner {low} must be below the highest {high} along x, y and z")


def _check_model(model: ModelConfig) -> None:
    if model.kernel % 2 == 0:
        raise ConfigError(f"model.kernel must be odd, got {model.kernel}")
    if model.max_resolution < model.base_resolution:
        raise ConfigError(
            f"model.max_resolution ({model.max_resolution}) must be at least "
            f"model.base_resolution ({model.base_resolution})"
        )
    if model.levels * 2**model.log2_table > MAX_ROWS:
        raise ConfigError(
            f"model.log2_table ({model.log2_table}) is too large for {model.levels} levels: together they may have "
            f"2^{MAX_ROWS.bit_length() - 1} rows; lower it, or model.levels"
        )


def _check_sampling(config: Config) -> None:
    near, far, step = config.sampling.near, config.sampling.far, config.sampling.step
    if near >= far:
        raise ConfigError(f"sampling.near ({near}) must be below sampling.far ({far})")
    if config.sampling.kind == "contracted":
        return _check_ladder(config.sampling) if far < SamplingConfig.far else None  # else the scene sets it yet
    longest = min(math.dist(config.data.box[:3], config.data.box[3:]), far - near)
    if step > longest:
        raise ConfigError(f"sampling.step ({step:g}) is longer than the longest ray in data.box, {longest:g}; lower it")
    if longest / step > MAX_INTERVALS:
        raise ConfigError(
            f"sampling.step ({step:g}) cuts the longest ray in data.box, {longest:g}, into more than {MAX_INTERVALS} "
            "intervals; raise it, or make the box smaller"
        )


def _check_decay(trainer: TrainerConfig) -> None:
    rate = max(trainer.learning_rate, trainer.final_learning_rate)
    if rate * trainer.table_decay >= 1:
        raise ConfigError(
            f"trainer.table_decay ({trainer.table_decay:g}) times the learning rate, up to {rate:g}, must be below 1, "
            "or a step would turn the features round; lower one of them"
        )


def _check_ladder(sampling: SamplingConfig) -> None:
    """Of unbounded space."""
    try:
        exponential_ladder(sampling.near, sampling.far, sampling.step, sampling.cone)
    except ValueError as error:
        raise ConfigError(f"sampling.near, far, step, cone: {error}") from None
