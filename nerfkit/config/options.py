# SPDX-License-Identifier: Apache-2.0
"""Every option, once: its name, default, range, unit and help.

An option that scene, device or model decide is None, written auto: `Config.resolved` decides by the table of
`nerfkit.config.recipe`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args

import msgspec
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from nerfkit.config.recipe import UNLIMITED, rule, value_text
from nerfkit.config.resolve import Decision, decide
from nerfkit.limits import COORDINATE_LIMIT, MAX_LEVELS, MAX_RESOLUTION, of_all_ops
from nerfkit.option_types import AUTO, Auto, Flag, Options, Range, Words, integer, number

Backend = Literal["auto", "torch", "cpp", "cuda"]
Box = tuple[float, float, float, float, float, float]


SHAPES = {bool: "true|false", int: "INT", float: "FLOAT", str: "STR", Box: "X Y Z X Y Z"}  # in the help


def auto(option: str, kind: Any, low: float | None = None, high: float | None = None) -> Any:
    """The type of an option that is a `kind` from `low` to `high`, or None, which is written auto."""
    is_real = kind in (float, Box)
    limits = None if low is None else Range(float(low), float(high)) if is_real else Range(low, high)
    shape = SHAPES.get(kind) or ",".join(get_args(kind))  # of a Literal

    def read(words: list[str]) -> Any:
        try:
            return None if words == [AUTO] else msgspec.convert(words if kind is Box else words[0], kind, strict=False)
        except msgspec.ValidationError:
            raise ValueError(f"expected {AUTO} or {shape}, got {' '.join(words)!r}") from None

    spec = PrimitiveConstructorSpec(
        nargs="*" if kind is Box else 1,
        metavar=f"{{{AUTO}{'|' if kind in SHAPES else ','}{shape}}}",
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [AUTO] if value is None else value_text(value).split(" "),
    )

    def hint(default: Any) -> str:
        decided = f"auto: {rule(option)}" if default in (None, AUTO) else default
        return f"(default: {decided}{'' if limits is None else f'; {limits}'})"

    extras = (Auto(option), spec, tyro.conf.arg(help_behavior_hint=hint))
    return Annotated[(kind | None, *((limits,) if limits else ()), *extras)]


@dataclass
class DataConfig:
    """The scene and how its images are read."""

    path: str = ""  # folder of the scene, or of plain photos, or a video
    sfm_dir: str = ""  # folder to write poses into that are found for photos or a video; beside these if unset
    format: str = "auto"  # scene format; auto recognises it from the files
    downscale: number(0.1, 1000) = 1.0  # divide the image size by this, averaging areas
    masks: Literal["ignore", "alpha"] = "ignore"  # ignore: masked pixels do not count; alpha: they are transparent
    depth_unit: number(0, 1e9) = 0.0  # length of 1 in depth images; 0: the file's, or 0.001 of whole numbers, else 1
    background: auto("data.background", Literal["white", "black", "random"]) = None  # behind transparent pixels
    # lowest and highest corner, in the coordinates of the files
    box: auto("data.box", Box, -COORDINATE_LIMIT, COORDINATE_LIMIT) = None
    appearance: Literal["none", "affine"] = "none"  # affine: each training image has its own color transform
    pose_optimization: Flag = False  # learn where each training image was taken


@dataclass
class ModelConfig:
    """The radiance field."""

    kind: str = "field"  # registered model that is trained
    module: str = ""  # Python module that registers a model of your own, e.g. mypackage.mymodel; imported if given
    options: Options = field(default_factory=dict)  # of a model of your own, e.g. width 32 soft true
    levels: auto("model.levels", int, 1, MAX_LEVELS) = None  # grid levels
    features_per_level: auto("model.features_per_level", int, 1, 128) = None  # features per level and vertex
    log2_hashmap_size: auto("model.log2_hashmap_size", int, 1, 30) = None  # log2 of the maximum table size per level
    base_resolution: integer(1, MAX_RESOLUTION - 1) = 16  # cells per side, coarsest level
    max_resolution: auto("model.max_resolution", int, 1, MAX_RESOLUTION - 1) = None  # cells per side, finest level
    mlp_width: auto("model.mlp_width", int, 1, 4096) = None  # width of the decoder's hidden layers
    encoder: Flag = True  # depthwise convolution along the ray, added to color
    aggregator: auto("model.aggregator", bool) = None  # LLTM along the ray, added to color


@dataclass
class SamplingConfig:
    """Where samples are put along a ray."""

    kind: auto("sampling.kind", Literal["box", "contracted"]) = None  # contracted: space beyond data.box counts as well
    step_size: auto("sampling.step_size", float, 1e-9, 1e6) = None  # of samples; contracted: least [scene units]
    cone_angle: auto("sampling.cone_angle", float, 0, 1) = None  # contracted: interval length per distance
    near: auto("sampling.near", float, 0, 1e10) = None  # no samples nearer than this [scene units]
    far: auto("sampling.far", float, 0, 1e30) = None  # no samples farther than this [scene units]
    occupancy_resolution: auto("sampling.occupancy_resolution", int, 1, 1024) = None  # occupancy cells per side
    alpha_threshold: auto("sampling.alpha_threshold", float, 0, 1) = None  # least opacity that is rendered


@dataclass
class TrainerConfig:
    """Optimisation."""

    steps: auto("trainer.steps", int, 1, UNLIMITED) = None  # optimisation steps
    max_seconds: auto("trainer.max_seconds", float, 0, 1e9) = None  # training and schedule end after this [s]; 0: never
    samples_per_step: auto("trainer.samples_per_step", int, 1, 2**26) = None  # rays, if a model has no samples
    optimizer: auto("trainer.optimizer", Literal["adam", "lazy_adam"]) = None  # lazy: skips what has no gradient
    learning_rate: auto("trainer.learning_rate", float, 1e-12, 100) = None  # after the warm-up
    final_learning_rate: auto("trainer.final_learning_rate", float, 1e-12, 100) = None  # at the last step
    distortion: auto("trainer.distortion", float, 0, 100) = None  # weight of the distortion loss of mip-NeRF 360
    depth: auto("trainer.depth", float, 0, 100) = None  # weight of the loss on depth images, or else on sparse points
    loss: str = ""  # package.module:function that replaces the squared error; see docs/python.md
    deterministic: Flag = False  # the same bits from the same seed, on a CPU and on a GPU; slower on a GPU
    save_every: auto("trainer.save_every", int, 0, 10**9) = None  # steps between two checkpoints; 0: only at the end
    preview_every: integer(-1, 10**9) = -1  # steps between images in previews/; 0: none; -1: about 30
    tensorboard: Flag = False  # curves and images also for TensorBoard; needs nerfkit[tensorboard]


@dataclass
class EvalConfig:
    """Evaluation on held-out views."""

    split: auto("eval.split", str) = None  # views to evaluate on
    after_training: Flag = True  # evaluate when training is done
    every: integer(0, 10**9) = 0  # steps between scores of some views, for the log and loss.png; 0: none
    comparison_images: integer(-1, 10**6) = 8  # evenly spread views, saved as truth, render and error; -1: all
    lpips: str = ""  # file of torchvision's VGG-16 weights, which LPIPS needs; without it LPIPS is null


@dataclass
class OpsConfig:
    """Which implementation of each op runs: the one that is named; auto: the fused one where it is built."""

    backend: Backend = "auto"  # of all ops
    overrides: Words = field(default_factory=dict)  # for single ops, e.g. lltm cpp mlp torch

    def choices(self) -> dict[str, str]:
        """The backend of each op that is chosen by name."""
        named = of_all_ops(self.backend) | self.overrides
        return {op: backend for op, backend in named.items() if backend != AUTO}


@dataclass
class Config:
    """All options of a run."""

    out: str = ""  # run folder; runs/<scene> if unset
    device: str = "auto"  # cpu, cuda, cuda:1, ...; auto takes a GPU if there is one
    seed: integer(0, 2**32 - 1) = 0  # of every random choice
    size: auto("size", Literal["small", "large"]) = None  # of model, steps and samples
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    ops: OpsConfig = field(default_factory=OpsConfig)

    def resolved(self, scene: Any = None, device: Any = None, model_class: Any = None) -> ResolvedConfig:
        """The options that run: none is auto. Nothing else decides, whoever asks.

        Args:
            scene: a `nerfkit.Scene`; None: nothing is known of it, as of an object in the default box.
            device: of the training; config.device if None.
            model_class: whose `recipe` holds; None: that of the model "field".

        Returns a new configuration, whose `decisions` tell value, who decided, and why. With a scene or device, what
        was decided before is decided anew. Raises ConfigError for options that contradict each other
        or the scene.
        """
        new = ResolvedConfig(**{f.name: deepcopy(getattr(self, f.name)) for f in fields(Config)})
        new.decisions = decide(self, new, scene, device, model_class)
        return new


@dataclass
class ResolvedConfig(Config):
    """Options of which none is auto."""

    decisions: dict[str, Decision] = field(default_factory=dict)  # by the option's full name
