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
from nerfkit.option_types import AUTO, Flag, Options, Range, Text, Words, integer, number

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
            raise ValueError(f"expected {AUTO} or {shape.replace(',', ' or ')}, got {' '.join(words)!r}") from None

    spec = PrimitiveConstructorSpec(
        nargs="*" if kind is Box else 1,
        metavar=f"{{{AUTO}{'|' if kind in SHAPES else ','}{shape}}}",
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [AUTO] if value is None else value_text(value).split(" "),
    )

    def hint(default: Any) -> str:
        decided = f"auto, which is {rule(option)}" if default in (None, AUTO) else default
        return f"(default: {decided}{'' if limits is None else f'; range {limits}'})"

    return Annotated[(kind | None, *((limits,) if limits else ()), spec, tyro.conf.arg(help_behavior_hint=hint))]


@dataclass
class DataConfig:
    """The scene and its images. docs/photos.md says what an object is, and what a place."""

    path: Text = ""  # folder of a scene or of plain photos, or a video
    # folder for the camera poses that are found (default: that of the photos; for a video, VIDEO_frames beside it)
    sfm_dir: Text = ""
    # scene format: auto, nerf_synthetic, transforms, colmap, llff, polycam, record3d, nsvf or idr
    format: str = "auto"
    downscale: number(0.1, 1000) = 1.0  # 2: images of half the width and height, pixels averaged
    masks: Literal["ignore", "alpha"] = "ignore"  # masked pixels; ignore: not trained on; alpha: transparent
    # length of a value of 1 in a depth image, in poses' units; 0: as files say, else 0.001 for integers, 1 for floats
    depth_unit: number(0, 1e9) = 0.0
    # color behind transparent pixels; random: another one for each ray
    background: auto("data.background", Literal["white", "black", "random"]) = None
    # box to reconstruct: lowest and highest corner, in the files' coordinates; auto is a box in model units
    box: auto("data.box", Box, -COORDINATE_LIMIT, COORDINATE_LIMIT) = None
    # affine: exposure and white balance learned for each training image
    appearance: auto("data.appearance", Literal["none", "affine"]) = None
    pose_optimization: Flag = False  # refinement of the camera poses while training


@dataclass
class ModelConfig:
    """The radiance field."""

    kind: str = "field"  # name of the model; your own may have other defaults
    module: Text = ""  # Python module that registers a model of your own, e.g. mypackage.mymodel
    options: Options = field(default_factory=dict)  # options of a model of your own, e.g. width 32 soft true
    levels: auto("model.levels", int, 1, MAX_LEVELS) = None  # number of grid levels
    features_per_level: auto("model.features_per_level", int, 1, 128) = None  # features per level and vertex
    log2_hashmap_size: auto("model.log2_hashmap_size", int, 1, 30) = None  # log2 of the maximum table size per level
    base_resolution: integer(1, MAX_RESOLUTION - 1) = 16  # cells per side of the coarsest level
    # cells per side of the finest level
    max_resolution: auto("model.max_resolution", int, 1, MAX_RESOLUTION - 1) = None
    mlp_width: auto("model.mlp_width", int, 1, 4096) = None  # width of the decoder's hidden layers
    encoder: Flag = True  # depthwise convolution along the ray, as an input of the color network
    # LLTM, a recurrent cell along the ray, as an input of the color network
    aggregator: auto("model.aggregator", bool) = None


@dataclass
class SamplingConfig:
    """Where samples are put along a ray; lengths are in model units (docs/how_it_works.md)."""

    # space that is reconstructed; box: the inside of data.box; contracted: also its surroundings
    kind: auto("sampling.kind", Literal["box", "contracted"]) = None
    # distance between samples [model units]; if contracted: the smallest
    step_size: auto("sampling.step_size", float, 1e-9, 1e6) = None
    # if contracted: distance between samples divided by their distance from the camera
    cone_angle: auto("sampling.cone_angle", float, 0, 1) = None
    near: auto("sampling.near", float, 0, 1e10) = None  # distance from the camera where samples begin [model units]
    far: auto("sampling.far", float, 0, 1e30) = None  # distance from the camera where samples end [model units]
    # cells per side of the grid that tells where space is occupied
    occupancy_resolution: auto("sampling.occupancy_resolution", int, 1, 1024) = None
    alpha_threshold: auto("sampling.alpha_threshold", float, 0, 1) = None  # largest opacity of a sample that is skipped


@dataclass
class TrainerConfig:
    """Optimisation."""

    steps: auto("trainer.steps", int, 1, UNLIMITED) = None  # number of optimisation steps
    max_seconds: auto("trainer.max_seconds", float, 0, 1e9) = None  # time limit of the training [s]; 0: none
    # samples in a step, of all rays together; rays in a step if the model has no samples
    samples_per_step: auto("trainer.samples_per_step", int, 1, 2**26) = None
    # optimiser; lazy_adam: Adam that leaves out parameters without a gradient
    optimizer: auto("trainer.optimizer", Literal["adam", "lazy_adam"]) = None
    learning_rate: auto("trainer.learning_rate", float, 1e-12, 100) = None  # at the start; it falls from there
    final_learning_rate: auto("trainer.final_learning_rate", float, 1e-12, 100) = None  # learning rate at the end
    # in each step the feature grid is multiplied by 1 - weight_decay x learning rate
    weight_decay: auto("trainer.weight_decay", float, 0, 10) = None
    distortion: auto("trainer.distortion", float, 0, 100) = None  # weight of the distortion loss of mip-NeRF 360
    # weight at the start, lower later, of the loss on depth images, or on sparse points if there are none
    depth: auto("trainer.depth", float, 0, 100) = None
    loss: Text = ""  # color loss of your own instead of the squared error, package.module:function; see docs/python.md
    robust: Flag = False  # less weight for what one image shows and the others do not, such as passers-by
    deterministic: Flag = False  # exactly the same result from the same seed; slower on a GPU
    save_every: auto("trainer.save_every", int, 0, 10**9) = None  # steps between two checkpoints; 0: only at the end
    preview_every: integer(-1, 10**9) = -1  # steps between images in previews/; 0: none; -1: about 30 images in all
    tensorboard: Flag = False  # curves and images for TensorBoard, too; needs nerfkit[tensorboard]


@dataclass
class EvalConfig:
    """Evaluation on held-out views."""

    split: auto("eval.split", str) = None  # views to score, e.g. test or train
    after_training: Flag = True  # scoring at the end of the training
    every: integer(0, 10**9) = 0  # steps between scores of some test views, for the log and loss.png; 0: none
    comparison_images: integer(-1, 10**6) = 8  # number of views saved as truth, render and error; -1: all
    lpips: Text = ""  # file of torchvision's VGG-16 weights, which LPIPS needs (default: LPIPS is not measured)


@dataclass
class OpsConfig:
    """Which implementation of each op to use. auto: the compiled one where it is built, else torch."""

    backend: Backend = "auto"  # implementation of all ops
    overrides: Words = field(default_factory=dict)  # pairs of an op and its implementation, e.g. lltm cpp mlp torch

    def choices(self) -> dict[str, str]:
        """The backend of each op that is chosen by name."""
        named = of_all_ops(self.backend) | self.overrides
        return {op: backend for op, backend in named.items() if backend != AUTO}


@dataclass
class Config:
    """All options of a run."""

    out: Text = ""  # run folder (default: runs/SCENE)
    device: str = "auto"  # cpu, cuda, cuda:1, ...; auto: a GPU if there is one
    seed: integer(0, 2**32 - 1) = 0  # seed of all random numbers
    size: auto("size", Literal["small", "large"]) = None  # preset for options left at auto
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
