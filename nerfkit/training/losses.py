# SPDX-License-Identifier: Apache-2.0
"""Losses: functions of a rendering and its batch that return terms by name, whose sum is minimised."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nerfkit.data.batch import Batch
from nerfkit.data.pixels import blend
from nerfkit.model.compositing import Rendering

LossFn = Callable[[Rendering, Batch], dict[str, Tensor]]


def squared_error(rendering: Rendering, batch: Batch) -> dict[str, Tensor]:
    """The weighted mean of the squared error of the colors, as the term "mse".

    batch.weight [R] is 0 for rays beyond the capacity, and for padding of static shapes: every loss has to use it.
    """
    error = (rendering.color - blend(batch.pixels, batch.background)).square().mean(-1)  # [R]
    return {"mse": weighted_mean(error, batch.weight)}


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Mean of `values` [R] with weights [R]; 0 where all weights are."""
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)
