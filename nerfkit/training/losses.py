# SPDX-License-Identifier: Apache-2.0
"""What is minimised: a loss is any function of a rendering and its batch that gives terms by name, which are added."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nerfkit.data.batch import Batch
from nerfkit.data.pixels import blend
from nerfkit.model.compositing import Rendering

LossFn = Callable[[Rendering, Batch], dict[str, Tensor]]


def squared_error(rendering: Rendering, batch: Batch) -> dict[str, Tensor]:
    """The weighted mean of the squared error of the colors, as the term "mse".

    batch.weight [R] is 0 for rays that were cut off, or drawn to fill a step of fixed size: every loss has to use it.
    """
    error = (rendering.color - blend(batch.pixels, batch.background)).square().mean(-1)  # [R]
    return {"mse": weighted_mean(error, batch.weight)}


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Mean of `values` [R] with weights [R]; 0 where all weights are."""
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)
