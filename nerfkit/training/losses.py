# SPDX-License-Identifier: Apache-2.0
"""Losses: functions of a rendering and its batch that return terms by name, whose sum is minimised."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.batch import Batch
from nerfkit.data.pixels import blend
from nerfkit.model.compositing import Rendering
from nerfkit.ops import distortion

LossFn = Callable[[Rendering, Batch], dict[str, Tensor]]


def squared_error(rendering: Rendering, batch: Batch) -> dict[str, Tensor]:
    """The weighted mean of the squared error of the colors, as the term "mse".

    batch.weight [R] is 0 for rays beyond the capacity, and for padding of static shapes: every loss has to use it.
    """
    error = (rendering.color - blend(batch.pixels, batch.background)).square().mean(-1)  # [R]
    return {"mse": weighted_mean(error, batch.weight)}


def default_loss(config: Config) -> LossFn:
    """The squared error and, with `trainer.distortion`, the distortion loss as the term "distortion"."""
    if config.trainer.distortion == 0:
        return squared_error
    near, far, linear = spacing(config)

    def loss(rendering: Rendering, batch: Batch) -> dict[str, Tensor]:
        samples, weights = rendering.samples, rendering.weights
        of_rays = distortion(weights, samples.t_starts, samples.t_ends, samples.ray_offsets, near, far, linear)
        of_rays = of_rays[: len(rendering.color)]  # [R], without the padding rays
        term = config.trainer.distortion * weighted_mean(of_rays, batch.weight)
        return squared_error(rendering, batch) | {"distortion": term}

    return loss


def spacing(config: Config) -> tuple[float, float, float]:
    """near, far and linear of `nerfkit.ops.distortion`: how distances count, as the intervals are long.

    In unbounded space the unit is the distance up to which intervals have one length, wherever near and far are: so a
    weight means the same in a scene of a narrow range.
    """
    sampling, box = config.sampling, config.data.box
    if sampling.kind == "contracted":
        linear = sampling.step / sampling.cone if sampling.cone else sampling.far
        return 0.0, linear, linear
    diagonal = math.dist(box[:3], box[3:])
    return 0.0, diagonal, diagonal


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Mean of `values` [R] with weights [R]; 0 where all weights are."""
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)
