# SPDX-License-Identifier: Apache-2.0
"""What an option is that was left as `auto`: one table, which `Config.resolved` and the help read.

Each option has cases, of which the first whose condition holds decides. A class of models has such a table as
`Model.recipe`, which its subclasses inherit; one of your own changes entries: `recipe = {**nerfkit.Renderer.recipe,
"trainer.learning_rate": ((0.005, OTHERWISE),)}`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

CUBE = (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0)  # of the model's frame, whose radius is 1: what is not contracted
DEFAULT_BOX = (-1.5, -1.5, -1.5, 1.5, 1.5, 1.5)  # of NeRF-synthetic scenes
FAR_RADII = 256.0  # beyond that nothing moves in contracted space
FARTHEST = 1e10  # model units
DECAY, DECAYS = 8.0, (0.03, 3.0)  # weight decay times millions of pixels; the lowest and the highest
CELLS_A_PIXEL = 1.25  # of an object's finest level, at the middle of the box: finer ones take time, and learn noise


@dataclass
class Facts:
    """What cases look at: the options as far as they are decided, the scene if there is one, and the device."""

    config: Any  # nerfkit.Config
    scene: Any  # nerfkit.Scene, or None
    on_gpu: bool

    @property
    def transform(self) -> Any:
        return None if self.scene is None else self.scene.transform

    @property
    def is_place(self) -> bool:
        return self.scene is not None and self.scene.is_place

    @property
    def radius(self) -> float:
        """Half a side of data.box if that is a cube; of another box, of the cube whose diagonal is as long."""
        return math.dist(self.config.data.box[:3], self.config.data.box[3:]) / math.sqrt(12)

    @property
    def cells(self) -> int | None:
        """Cells a side of an object's finest level, as many as its pixels are worth; None where nothing tells."""
        across = None if self.is_place or self.scene is None else self.scene.pixels_across(self.config.data.box)
        model = self.config.model
        return None if across is None else min(max(round(CELLS_A_PIXEL * across), model.base_resolution), 2048)

    @property
    def decay(self) -> float | None:
        """trainer.weight_decay of a capture, by the pixels of its training images; None where there are none."""
        views = None if self.scene is None else self.scene.views.get("train")
        return None if views is None else min(max(DECAY * 1e6 / views.n_pixels(), DECAYS[0]), DECAYS[1])


class Condition(NamedTuple):
    """When a case decides."""

    text: str  # in the help: "6 if size is small"
    by: str  # what decides then: scene, device, size, time or model
    holds: Callable[[Facts], bool]


class Found(NamedTuple):
    """A value that is computed."""

    text: str  # in the help
    of: Callable[[Facts], Any]


OTHERWISE = Condition("", "model", lambda facts: True)
ON_A_CPU = Condition("the device is a CPU", "device", lambda facts: not facts.on_gpu)
ON_A_GPU = Condition("the device is a GPU", "device", lambda facts: facts.on_gpu)
SMALL = Condition("size is small", "size", lambda facts: facts.config.size == "small")
AN_OBJECT = Condition("the scene is an object", "scene", lambda facts: not facts.is_place)
A_PLACE = Condition("the scene is a place", "scene", lambda facts: facts.is_place)
CONTRACTED = "sampling.kind is contracted"
UNBOUNDED = Condition(CONTRACTED, "scene", lambda facts: facts.config.sampling.kind == "contracted")
# Cameras around a scene, or within, see all sides of a surface, whose samples then have to be as close along a ray as
# across; before one that all of them face, rays are worth more than samples.
ONE_SIDE = Condition(
    f"{CONTRACTED} and all cameras face one way", "scene",
    lambda facts: UNBOUNDED.holds(facts) and facts.transform is not None and facts.transform.kind == "forward",
)  # fmt: skip
ALL_SIDES = Condition(
    f"{CONTRACTED} and cameras do not all face one way", "scene",
    lambda facts: UNBOUNDED.holds(facts) and not ONE_SIDE.holds(facts),
)  # fmt: skip
OF_PIXELS = Condition(CONTRACTED, "scene", lambda facts: UNBOUNDED.holds(facts) and facts.decay is not None)
UNBOUNDED_PLACE = Condition(CONTRACTED, "scene", lambda facts: facts.is_place and UNBOUNDED.holds(facts))
ITS_PIXELS = Condition("the scene is an object", "scene", lambda facts: facts.cells is not None)
FRAMED = Condition("there is a scene", "scene", lambda facts: facts.transform is not None)
# An object's far end, in unbounded space, is not that of its box.
ENDS_THERE = Condition(
    "there is a scene", "scene",
    lambda facts: FRAMED.holds(facts) and not (UNBOUNDED.holds(facts) and facts.transform.kind == "object"),
)  # fmt: skip
TIMED = Condition("you give a trainer.max_seconds", "time", lambda facts: bool(facts.config.trainer.max_seconds))
IN_MINUTES = Condition(
    "the device is a GPU and trainer.deterministic is false", "device",
    lambda facts: facts.on_gpu and facts.config.trainer.max_seconds is None and not facts.config.trainer.deterministic,
)  # fmt: skip
UNCOUNTED = Condition("trainer.steps has no limit", "time", lambda facts: facts.config.trainer.steps == UNLIMITED)
WITH_DEPTH = Condition("the scene has depth images", "scene", lambda facts: bool(facts.scene and facts.scene.has_depth))
COARSE_WITH_DEPTH = Condition(  # whose colors do not know better than a hundredth of a distance
    "the scene is a place with depth images and size is small", "scene",
    lambda facts: WITH_DEPTH.holds(facts) and A_PLACE.holds(facts) and SMALL.holds(facts),
)  # fmt: skip
CHANGING_LIGHT = Condition(
    "exposure or white balance changes from image to image", "scene",
    lambda facts: bool(facts.scene and facts.scene.light_changes),
)  # fmt: skip
UNLIMITED = 10**9  # steps: the time ends the training
NO_LIMIT = Found("no limit", lambda facts: UNLIMITED)

Recipe = dict[str, tuple[tuple[Any, Condition], ...]]

# Of any model; in the order in which they are decided.
BASE: Recipe = {
    "size": (("small", ON_A_CPU), ("large", ON_A_GPU)),
    "sampling.kind": (("box", OTHERWISE),),  # a model of one's own may know boxes alone
    "data.background": (("white", AN_OBJECT), ("random", A_PLACE)),
    "data.box": (
        (Found("the cube from -1 to 1 in model units", lambda facts: CUBE), UNBOUNDED_PLACE),
        (Found("the box of the scene", lambda facts: tuple(facts.transform.box.flatten().tolist())), FRAMED),
        (DEFAULT_BOX, OTHERWISE),
    ),
    "data.appearance": (("affine", CHANGING_LIGHT), ("none", OTHERWISE)),
    "sampling.near": ((Found("found from the scene", lambda facts: facts.transform.near), FRAMED), (0.0, OTHERWISE)),
    "sampling.far": (
        (Found("found from the scene", lambda facts: min(facts.transform.far, FARTHEST)), ENDS_THERE),
        (Found(f"{FAR_RADII:g} times half the side of data.box", lambda facts: FAR_RADII * facts.radius), UNBOUNDED),
        (FARTHEST, OTHERWISE),
    ),
    "sampling.step_size": (
        (0.03, SMALL),
        (Found("0.0025 times half the side of data.box", lambda facts: 0.0025 * facts.radius), ALL_SIDES),
        (0.005, OTHERWISE),
    ),
    "sampling.cone_angle": ((1 / 64, SMALL), (1 / 256, ALL_SIDES), (1 / 128, OTHERWISE)),
    "sampling.occupancy_resolution": ((96, SMALL), (256, UNBOUNDED), (128, OTHERWISE)),
    "sampling.alpha_threshold": ((0.01, SMALL), (0.001, ALL_SIDES), (0.003, OTHERWISE)),
    "model.levels": ((6, SMALL), (16, OTHERWISE)),
    "model.features_per_level": ((4, SMALL), (2, OTHERWISE)),
    "model.log2_hashmap_size": ((18, SMALL), (20, OTHERWISE)),
    "model.max_resolution": ((512, SMALL), (4096, UNBOUNDED), (2048, OTHERWISE)),
    "model.mlp_width": ((32, SMALL), (64, OTHERWISE)),
    "model.aggregator": ((True, OTHERWISE),),
    "trainer.steps": ((NO_LIMIT, TIMED), (8000, SMALL), (20000, OTHERWISE)),
    "trainer.max_seconds": ((480.0, SMALL), (120.0, UNCOUNTED), (0.0, OTHERWISE)),
    "trainer.samples_per_step": ((6144, SMALL), (262144, OTHERWISE)),
    "trainer.optimizer": (("lazy_adam", ON_A_GPU), ("adam", OTHERWISE)),
    "trainer.learning_rate": ((0.01, OTHERWISE),),
    "trainer.final_learning_rate": ((0.001, SMALL), (0.0003, OTHERWISE)),
    "trainer.weight_decay": ((0.0, OTHERWISE),),
    "trainer.distortion": ((0.0, OTHERWISE),),
    "trainer.depth": ((0.0, OTHERWISE),),
    "trainer.save_every": ((1000, SMALL), (2000, OTHERWISE)),
    "eval.split": (("test", OTHERWISE),),
}  # fmt: skip

# Of the radiance field, nerfkit.Renderer: docs/how_it_works.md. Beside the encoder the LLTM pays on
# objects and in small models, and not in unbounded space. A thin haze gets no gradient where it is not rendered, so
# distortion is on in boxes, as well.
FIELD: Recipe = BASE | {
    "sampling.kind": (("box", AN_OBJECT), ("contracted", A_PLACE)),
    "model.max_resolution": (
        (512, SMALL), (4096, UNBOUNDED),
        (Found(f"{CELLS_A_PIXEL:g} times the pixels across the box", lambda facts: facts.cells), ITS_PIXELS),
        (2048, OTHERWISE),
    ),
    "model.features_per_level": ((4, SMALL), (4, UNBOUNDED), (2, OTHERWISE)),
    "model.aggregator": ((True, SMALL), (False, UNBOUNDED), (True, OTHERWISE)),
    "trainer.steps": ((NO_LIMIT, TIMED), (8000, SMALL), (NO_LIMIT, IN_MINUTES), (20000, OTHERWISE)),
    "trainer.samples_per_step": ((6144, SMALL), (524288, UNBOUNDED), (262144, OTHERWISE)),
    "trainer.learning_rate": ((0.02, OTHERWISE),),
    "trainer.weight_decay": (
        (0.1, SMALL),
        (Found(f"{DECAY:g} / megapixels of the training images (0.03 to 3)", lambda facts: facts.decay), OF_PIXELS),
        (0.1, OTHERWISE),
    ),
    "trainer.distortion": ((0.003, UNBOUNDED), (0.0003, OTHERWISE)),
    "trainer.depth": ((0.1, COARSE_WITH_DEPTH), (0.01, WITH_DEPTH), (0.0, OTHERWISE)),
}  # fmt: skip


def rule(option: str) -> str:
    """How an option of the model "field" is decided that is left as auto, for the help.

    >>> rule("model.levels")
    '6 if size is small, else 16'
    >>> rule("model.features_per_level")
    '4 if size is small or sampling.kind is contracted, else 2'
    >>> rule("sampling.alpha_threshold")
    '0.01 if size is small, else 0.001 if sampling.kind is contracted and cameras do not all face one way, else 0.003'
    >>> rule("size")
    'small if the device is a CPU, large if the device is a GPU'
    """
    parts = []
    for text, cases in groupby(FIELD[option], lambda case: value_text(case[0])):
        conditions = [condition.text for _, condition in cases]  # that of the last case, OTHERWISE, has no text
        parts.append(text + f" if {' or '.join(conditions)}" * all(conditions))
    return (", else " if FIELD[option][-1][1] is OTHERWISE else ", ").join(parts)


def value_text(value: Any) -> str:
    """A value of an option as text of the help and of decisions."""
    if isinstance(value, Found):
        return value.text
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
