# SPDX-License-Identifier: Apache-2.0
"""Every option, once: its name, default, range, unit and help."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from nerfkit.ops.grid_encode import MAX_LEVELS, MAX_RESOLUTION
from nerfkit.option_types import Flag, Options, integer, number, ranged

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
    aggregator: Flag = True  # LLTM along the ray, a residual on color; off in unbounded space unless it is given
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
    occupancy_threshold: number(0, 1) = 0.003  # opacity below which an interval is not rendered, a cell empty
    candidates_per_sample: number(1, 16) = 6.0  # of a CUDA graph: capacity for marched samples per rendered one
    min_transmittance: number(0, 0.99) = 1e-3  # a ray ends where its transmittance falls to this


@dataclass
class TrainerConfig:
    """Optimisation."""

    steps: integer(1, 10**9) = 20000  # optimisation steps
    max_seconds: number(0, 1e9) = 0.0  # end, with the schedule, after this training time [s]; 0: no limit
    samples: integer(1, 2**26) = 262144  # per step, by the number of rays; the capacity of a CUDA graph
    max_rays: integer(1, 2**24) = 65536  # rays per step at most
    optimizer: Literal["adam", "lazy_adam"] = "adam"  # lazy: skips what has no gradient; for large batches
    learning_rate: number(1e-12, 100) = 0.01  # of the optimiser, after the warm-up; of a field 0.02
    final_learning_rate: number(1e-12, 100) = 0.0003  # at the last step
    warmup: Steps = 100  # steps in which the learning rate rises
    schedule: Literal["linear", "cosine", "exponential"] = "linear"  # how it falls to its final value
    table_decay: number(0, 100) = 0.0  # a step shrinks the feature table by learning rate x this; of a field 0.1
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
    comparisons: integer(-1, 10**6) = 8  # views, evenly spread, saved as images of truth, render and error; -1: all
    lpips: str = ""  # file of torchvision's weights of VGG-16, by which LPIPS compares; without it LPIPS is null


@dataclass
class ParallelConfig:
    """Training on several GPUs, with a process each that torchrun starts; one process heeds none of it."""

    steps_scale: number(0, 1) = 0.0  # share of trainer.steps that are trained; 0: 1 / processes, as many rays in all
    precision: Literal["float32", "float16"] = "float32"  # in which the gradients of tables are added


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
