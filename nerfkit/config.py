# SPDX-License-Identifier: Apache-2.0
"""Every option, once: its name, default, unit and help.

A TOML file changes some of them (`configs/*.toml` are such differences), the command line beats the file. An unknown
name or a wrong type is an error that suggests the nearest name.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w

from nerfkit.errors import ConfigError
from nerfkit.files import atomic_write

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Backend = Literal["auto", "torch", "cpp", "cuda"]
OpBackend = Literal["same", "auto", "torch", "cpp", "cuda"]
Box = tuple[float, float, float, float, float, float]


@dataclass
class DataConfig:
    """The scene and how its pictures are read."""

    path: str = ""  # folder of the scene
    format: str = "auto"  # scene format; auto recognises it from the files
    downscale: float = 1.0  # divide the picture size by this, averaging areas
    background: Literal["white", "black", "random"] = "white"  # behind transparent pixels; random: training only
    box: Box = (-1.5, -1.5, -1.5, 1.5, 1.5, 1.5)  # x, y, z of the lowest, then highest corner [scene units]


@dataclass
class ModelConfig:
    """The radiance field."""

    kind: str = "field"  # registered model that is trained
    module: str = ""  # Python module that registers a model of your own, e.g. mypackage.mymodel
    options: dict[str, str | int | float | bool] = field(default_factory=dict)  # of a model of your own
    levels: int = 16  # grid levels
    features: int = 2  # features per level and vertex
    log2_table: int = 20  # log2 of the most rows of a level; larger levels are hashed
    base_resolution: int = 16  # cells a side of the coarsest level
    max_resolution: int = 2048  # cells a side of the finest level
    hidden: int = 64  # width of the decoder's hidden layers
    embedding: int = 16  # outputs of the density network: the first is the density, the color network sees all
    encoder: bool = True  # depthwise convolution along the ray, a residual on color
    kernel: int = 3  # taps of that convolution (odd)
    aggregator: bool = True  # LLTM along the ray, a residual on color
    state: int = 16  # size of the LLTM's state
    precision: Literal["float16", "float32"] = "float16"  # of features and networks on a GPU; on a CPU float32


@dataclass
class SamplingConfig:
    """Where samples are put along a ray."""

    kind: str = "box"  # sampler
    step: float = 0.005  # interval length [scene units]
    near: float = 0.0  # no samples nearer than this [scene units]
    far: float = 1e10  # no samples farther than this [scene units]
    occupancy_resolution: int = 128  # cells a side of the occupancy grid
    occupancy_every: int = 16  # training steps between two updates of the occupancy grid
    occupancy_warmup: int = 256  # training steps in which an update visits every cell
    occupancy_threshold: float = 0.01  # a cell is occupied above this opacity per interval
    candidates: float = 3.0  # room in a step's graph for samples in occupied cells, to one that light reaches
    min_transmittance: float = 1e-4  # samples behind less light than this are dropped


@dataclass
class TrainerConfig:
    """Optimisation."""

    steps: int = 20000  # optimisation steps
    max_seconds: float = 0.0  # end, with the schedule, after this training time [s]; 0: no limit
    samples: int = 262144  # samples per step that the number of rays is steered to; at most that many in a graph
    max_rays: int = 65536  # rays per step at most
    optimizer: Literal["adam", "lazy_adam"] = "adam"  # lazy: no step for what has no gradient, faster on many samples
    learning_rate: float = 0.01  # of the optimiser, after the warm-up
    final_learning_rate: float = 0.0003  # at the last step
    warmup: int = 100  # steps in which the learning rate rises
    background_warmup: int = 500  # first steps, with random backgrounds behind pictures with alpha: no fog is learned
    deterministic: bool = False  # the same bits from the same seed, on a GPU too, where a step then takes longer
    capture: bool = True  # record a step as a CUDA graph, where all ops run on the cuda backend
    save_every: int = 2000  # steps between two checkpoints; 0: only at the end
    log_every: int = 50  # steps between two lines of metrics.jsonl


@dataclass
class EvalConfig:
    """Evaluation on held-out views."""

    split: str = "test"  # views to evaluate on
    after_training: bool = True  # evaluate when training is done
    sheets: int = 8  # views whose truth, render and error are saved as pictures; -1: all


@dataclass
class OpsConfig:
    """Which implementation of each op runs. By name it never falls back; auto takes the fused one where built."""

    backend: Backend = "auto"  # for all ops
    grid_encode: OpBackend = "same"
    depthwise_conv1d: OpBackend = "same"
    lltm: OpBackend = "same"
    mlp: OpBackend = "same"
    march: OpBackend = "same"
    visible: OpBackend = "same"
    place: OpBackend = "same"
    spherical_harmonics: OpBackend = "same"
    composite: OpBackend = "same"
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
    seed: int = 0  # of every random choice
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    ops: OpsConfig = field(default_factory=OpsConfig)


def to_dict(config: Config) -> dict[str, Any]:
    """`config` as nested dictionaries, the form of its TOML file."""
    plain = Config(**{f.name: getattr(config, f.name) for f in dataclasses.fields(Config)})
    return msgspec.to_builtins(plain)


def from_dict(values: dict[str, Any], source: str) -> Config:
    """Config from nested dictionaries; raises ConfigError naming `source` and the key."""
    _check_names(values, Config, source, prefix="")
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        message, _, key = str(error).partition(" - at `$.")
        raise ConfigError(f"{source}: {key.rstrip('`')}: {message}") from None
    check(config)
    return config


def _check_names(values: dict[str, Any], table: type, source: str, prefix: str) -> None:
    known = {f.name: f for f in dataclasses.fields(table)}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"{source}: unknown option {prefix}{name}; {hint}")
        factory = known[name].default_factory
        if dataclasses.is_dataclass(factory) and isinstance(value, dict):
            _check_names(value, factory, source, f"{prefix}{name}.")


def read_toml(path: str | Path) -> dict[str, Any]:
    """Values of a TOML file; raises ConfigError if it is missing or broken."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def load(paths: list[str] | list[Path], base: Config | None = None) -> Config:
    """Defaults (or `base`), changed by each file in turn; each file is checked by itself, to name it in errors."""
    values = to_dict(base or Config())
    for path in paths:
        changes = read_toml(path)
        from_dict(changes, str(path))
        for name, value in changes.items():
            values[name] = values[name] | value if isinstance(value, dict) else value
    return from_dict(values, "configuration")


def dumps(config: Config) -> str:
    """Every option, as the text of a TOML file."""
    return tomli_w.dumps(to_dict(config))


def dump(config: Config, path: Path) -> None:
    """Write every option to a TOML file."""
    atomic_write(path, dumps(config))


# What a resumed run may be given anew: all else is in the checkpoint, or what the field was trained for.
FREE_ON_RESUME = (
    "out", "device", "data.path", "trainer.steps", "trainer.max_seconds", "trainer.learning_rate",
    "trainer.final_learning_rate", "trainer.save_every", "trainer.log_every", "trainer.capture", "eval.", "ops.",
)  # fmt: skip


def fixed_differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """Name, old and new value of every option that differs, and must not when a run is resumed."""
    before, after = _flat(to_dict(old)), _flat(to_dict(new))
    changed = [name for name in before if before[name] != after[name] and not name.startswith(FREE_ON_RESUME)]
    return [(name, before[name], after[name]) for name in changed]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


POSITIVE = (
    "data.downscale", "model.levels", "model.features", "model.log2_table", "model.base_resolution", "model.hidden",
    "model.embedding", "model.kernel", "model.state", "sampling.step", "sampling.occupancy_resolution",
    "sampling.occupancy_every", "trainer.steps", "trainer.samples", "trainer.max_rays",
    "trainer.learning_rate", "trainer.final_learning_rate", "trainer.log_every",
)  # fmt: skip


def check(config: Config) -> None:
    """Raise ConfigError for values that cannot work together."""
    for name in POSITIVE:
        group, key = name.split(".")
        value = getattr(getattr(config, group), key)
        if not value > 0:
            raise ConfigError(f"{name} must be positive, got {value}")
    low, high = config.data.box[:3], config.data.box[3:]
    if not all(a < b for a, b in zip(low, high, strict=True)):
        raise ConfigError(f"data.box: the lowest corner {low} must be below the highest {high} along x, y and z")
    if config.model.kernel % 2 == 0:
        raise ConfigError(f"model.kernel must be odd, got {config.model.kernel}")
    if config.model.max_resolution < config.model.base_resolution:
        raise ConfigError(
            f"model.max_resolution ({config.model.max_resolution}) must be at least "
            f"model.base_resolution ({config.model.base_resolution})"
        )
    if config.sampling.candidates < 1:
        raise ConfigError(f"sampling.candidates must be at least 1, got {config.sampling.candidates}")
    if config.sampling.near >= config.sampling.far:
        raise ConfigError(f"sampling.near ({config.sampling.near}) must be below sampling.far ({config.sampling.far})")
