# SPDX-License-Identifier: Apache-2.0
"""What follows from the scene for options that are left as they are: its box or unbounded space, near, far, sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from nerfkit.config import Config, check
from nerfkit.data.cameras import Cameras
from nerfkit.data.scene import Scene
from nerfkit.errors import ConfigError
from nerfkit.training.adjustments import radius_of

FIELDS = ("field", "images")  # kinds of models that are, or have, a field as it is known here
CUBE = (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0)  # of the model's frame, whose radius is 1: what is not contracted
FAR_RADII = 256.0  # beyond that nothing moves in contracted space

# Options of unbounded space where neither the user nor a preset says anything: space is four radii wide instead of a
# box, most of it far away and empty. Cameras around a scene, or within, see all sides of a surface, whose samples then
# have to be as close along a ray as across; before one that all of them face, rays are worth more than samples.
UNBOUNDED = {
    "model.max_resolution": 8192,
    "sampling.occupancy_resolution": 256,
    "trainer.distortion": 0.003,
}
SEEN_FROM_ALL_SIDES = {
    "sampling.step": 0.0025,  # radii
    "sampling.cone": 1 / 256,
    "sampling.occupancy_threshold": 0.001,
    "sampling.candidates_per_sample": 8.0,
}

BESIDE_THE_ENCODER = {"model.aggregator": False}  # of a field in unbounded space: docs/ray_context.md, "On captures"

# Of a field, in a box or not: docs/benchmarks.md, "The recipe".
RECIPE = {"trainer.learning_rate": 0.02, "trainer.table_decay": 0.1}
BOXED = {"trainer.distortion": 0.0003}  # of a field in a box, whose thin haze gets no gradient where it is not rendered
CELLS_A_PIXEL = 1.25  # of an object's finest level, at the middle of the box: finer ones take time, and learn noise


def resolved_background(kind: str, scene: Scene | None) -> str:
    """data.background; auto is random for a place, whose every pixel is opaque, and white where nothing is known."""
    if kind != "auto":
        return kind
    return "random" if _is_place(scene) else "white"


def _is_place(scene: Scene | None) -> bool:
    """Whether what was photographed surrounds the object, or there is none."""
    return scene is not None and scene.frame is not None and scene.frame.kind != "object"


def box_is_given(options: Config, given: Collection[str]) -> bool:
    """Whether data.box was `given`, or is not the default; it is meant in the files' own coordinates."""
    return "data.box" in given or options.data.box != Config().data.box


def fit_to_scene(options: Config, scene: Scene, given: Collection[str] = ()) -> None:
    """Set what the scene decides, in place, but for options that were `given` or differ from the default; raises
    ConfigError if options contradict each other then."""
    data, sampling, has_box = options.data, options.sampling, box_is_given(options, given)
    data.background = resolved_background(data.background, scene)
    if sampling.kind == "auto":
        # A model of one's own may know boxes alone.
        sampling.kind = "contracted" if _is_place(scene) and options.model.kind in FIELDS else "box"
    if scene.frame is not None:
        data.box = tuple(scene.frame.box.flatten().tolist())
        found = {"sampling.near": scene.frame.near}
        if sampling.kind == "box" or scene.frame.kind != "object":  # an object's ends at its box
            found |= {"sampling.far": min(scene.frame.far, sampling.far)}
        _set_unless(given, options, found)
    if sampling.kind == "contracted":
        _fit_unbounded(options, scene, given, has_box)
    elif options.model.kind in FIELDS and not _is_place(scene):
        _fit_cells(options, scene, given)
    if options.model.kind in FIELDS:
        _fit_recipe(options, given)
        if sampling.kind == "box":
            _set_unless(given, options, BOXED)
    _check_near_and_far(options, scene, given)
    check(options)  # the step may be too long or too short for the space that was found


def _check_near_and_far(options: Config, scene: Scene, given: Collection[str]) -> None:
    """Raise ConfigError if near is not below far, one of which the user may never have heard of."""
    near, far = options.sampling.near, options.sampling.far
    if near < far:
        return
    texts = [
        f"sampling.{name} ({value:g}{'' if f'sampling.{name}' in given else ', as the scene has it'})"
        for name, value in (("near", near), ("far", far))
    ]
    unit = f", of which one is {1 / scene.frame.scale:.4g} in the files" if scene.frame is not None else ""
    raise ConfigError(f"{texts[0]} must be below {texts[1]}, in the model's units{unit}; lower near, or raise far")


def _fit_unbounded(options: Config, scene: Scene, given: Collection[str], has_box: bool) -> None:
    data = options.data
    if _is_place(scene) and not has_box:
        data.box = CUBE
    is_forward = scene.frame is not None and scene.frame.kind == "forward"
    radius = radius_of(data.box)
    values = dict(UNBOUNDED)
    if not is_forward:
        values |= SEEN_FROM_ALL_SIDES
        values["sampling.step"] *= radius
    if options.model.kind in FIELDS and options.model.encoder:
        values |= BESIDE_THE_ENCODER
    _set_unless(given, options, values | {"sampling.far": FAR_RADII * radius})


def _fit_cells(options: Config, scene: Scene, given: Collection[str]) -> None:
    if "train" in scene.views:
        cells = round(CELLS_A_PIXEL * _pixels_across(scene.views["train"].cameras, options.data.box))
        lowest, highest = options.model.base_resolution, Config().model.max_resolution
        _set_unless(given, options, {"model.max_resolution": min(max(cells, lowest), highest)})


def _fit_recipe(options: Config, given: Collection[str]) -> None:
    """Rate and decay belong together: both are set, or what the user says of one of them stands.

    With that rate, where a preset states it as that for a CPU does, goes the decay.
    """
    rate = options.trainer.learning_rate
    is_unset = RECIPE.keys().isdisjoint(given) and rate == Config().trainer.learning_rate
    if is_unset or rate == RECIPE["trainer.learning_rate"]:
        _set_unless(given, options, RECIPE)


def _pixels_across(cameras: Cameras, box: Sequence[float]) -> float:
    """Pixels that the longest side of a box is wide at its middle, in half of the images at least."""
    lowest, highest = torch.tensor(box).view(2, 3)
    distance = torch.linalg.vector_norm(cameras.positions - (lowest + highest) / 2, dim=-1)  # [V]
    pixels = cameras.focal.mean(-1) / distance.clamp(min=1e-6)  # [V] of a scene unit
    return (pixels.median() * (highest - lowest).max()).item()


def _set_unless(given: Collection[str], options: Config, values: dict[str, Any]) -> None:
    """Set those of the options that were not given and have their default values."""
    for name, value in values.items():
        group, _, key = name.partition(".")
        target, default = getattr(options, group), getattr(Config(), group)
        if name not in given and getattr(target, key) == getattr(default, key):
            setattr(target, key, value)
