# SPDX-License-Identifier: Apache-2.0
"""Parts of training images that show what no other view has, such as people who walk by: their rays count less."""

import torch
from torch import Tensor, nn

from nerfkit.data.images.batch import Batch
from nerfkit.data.images.pixels import blend
from nerfkit.model.compositing import Rendering

SIDE = 32  # parts of an image, both ways
VISITS = 3.0  # rays of a part, about, after which its error is forgotten
USUAL, RATE = 0.8, 0.5  # share of the rays whose parts have less than the usual error, and how fast it follows
TIMES = 3.0  # the usual error, at which a ray counts half
FROM = 0.05  # share of the schedule, before which all count: nothing is known yet


class Outliers(nn.Module):
    r"""Of each part of V images the mean squared error of the last rays, by which the next rays count.

    With e the error around a ray, a mean over its part and the eight beside it, and u what four of five rays are below,

    .. math:: w = \frac{1}{1 + (e / 3u)^4}

    What is hard to learn everywhere raises u, and still counts; what is in one image alone stays far above it, for the
    field has what the other views see there. Nine parts, for details err on single pixels, and passers-by have small
    errors, as well.

    Source: robust weights by patches, as in RobustNeRF (arXiv:2302.00833), there of the rays of one step.
    """

    def __init__(self, n_views: int):
        super().__init__()
        side = SIDE + 2  # with a border, so that all parts have others around them
        self.register_buffer("error", torch.zeros(n_views * side**2))  # sums over rays, of which the old fade
        self.register_buffer("rays", torch.zeros(n_views * side**2))
        self.register_buffer("usual", torch.tensor(0.01))
        around = torch.arange(3) - 1
        self.register_buffer("around", (around[:, None] * side + around).flatten(), persistent=False)

    # It runs inside the recorded step: static shapes, and nothing waits for a value.

    @torch.no_grad()
    def forward(self, rendering: Rendering, batch: Batch) -> Tensor:
        """How much each ray of a batch counts, [R] in [0, 1]; their errors count in the next steps."""
        row, column = (1 + batch.place * SIDE).long().unbind(-1)
        part = (batch.view * (SIDE + 2) + row) * (SIDE + 2) + column
        near = part[:, None] + self.around  # [R, 9]
        error = self.error[near].sum(-1) / self.rays[near].sum(-1).clamp(min=1e-6)
        own = (rendering.color - blend(batch.pixels, batch.background)).square().mean(-1)
        own = own.nan_to_num(0.0, 1.0)  # in half precision a step may fail, and the next ones not
        n_rays = batch.weight.sum()
        kept = (1 - n_rays / (VISITS * len(self.rays))).clamp(min=0)
        self.error.mul_(kept).index_add_(0, part, own * batch.weight)
        self.rays.mul_(kept).index_add_(0, part, batch.weight)
        above = ((error > self.usual) * batch.weight).sum() / n_rays.clamp(min=1e-6)
        self.usual.mul_(torch.exp(RATE * (above - (1 - USUAL)))).clamp_(1e-9, 1)
        weight = 1 / (1 + (error / (TIMES * self.usual)) ** 4)
        return weight if batch.progress is None else torch.where(batch.progress < FROM, 1, weight)
