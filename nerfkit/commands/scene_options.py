# SPDX-License-Identifier: Apache-2.0
"""What follows from the scene for options that are left as they are: its box or unbounded space, near, far, sizes."""

from __future__ import annotations

import math
from typing import Any

from nerfkit.config import Config, check
from nerfkit.data.scene import Scene
from nerfkit.training.trainer import resolved_background

CUBE = (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0)  # of the model's frame, whose radius is 1: what is not contracted
FAR_RADII = 256.0  # beyond that nothing moves in contracted space

# Options of unbounded space where the user and the presets leave the default: space is four radii wide instead of a
# box, most of it far away and empty at first.
UNBOUNDED = {
    "model.max_resolution": 8192,
    "model.density_bias": -4.6,  # a hundredth per radius: a ray passes hundreds of radii of what is not learned yet
    "sampling.occupancy_resolution": 256,
    "sampling.candidates_per_sample": 4.0,
    "trainer.samples": 2**19,
    "trainer.distortion": 0.002,
}


def fit_to_scene(options: Config, scene: Scene) -> None:
    """Set what the scene decides, in place; raises ConfigError if options contradict each other then."""
    data, sampling = options.data, options.sampling
    data.background = resolved_background(data.background, scene)
    if sampling.kind == "auto":
        is_place = scene.frame is not None and scene.frame.kind != "object"
        sampling.kind = "contracted" if is_place else "box"
    if scene.frame is not None:
        data.box = tuple(scene.frame.box.flatten().tolist())
        _set_default(options, "sampling.near", scene.frame.near)
        _set_default(options, "sampling.far", min(scene.frame.far, sampling.far))
    if sampling.kind == "contracted":
        _fit_unbounded(options, scene)
    check(options)  # the step may be too long or too short for the space that was found


def _fit_unbounded(options: Config, scene: Scene) -> None:
    data = options.data
    if scene.frame is not None and scene.frame.kind != "object":
        data.box = CUBE
    _set_default(options, "sampling.far", FAR_RADII / 2 * math.dist(data.box[:3], data.box[3:]) / math.sqrt(3))
    for name, value in UNBOUNDED.items():
        _set_default(options, name, value)


def _set_default(options: Config, name: str, value: Any) -> None:
    """Set an option that has its default value."""
    group, _, key = name.partition(".")
    if getattr(getattr(options, group), key) == getattr(getattr(Config(), group), key):
        setattr(getattr(options, group), key, value)
