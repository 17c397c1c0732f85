# SPDX-License-Identifier: Apache-2.0
"""Small depth maps of the training views, by which a point is seen by a camera or hidden from it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nerfkit.config import SamplingConfig
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.model.compositing import Rendering

SIDE = 64  # depths of a view, each way
EVERY = 16  # steps between two views whose maps are rendered anew


class DepthMaps(nn.Module):
    """Expected depths of V views at SIDE x SIDE of their pixels; none of a view that was not rendered yet.

    They are rendered one at a time as the field changes, so they are part of a checkpoint.
    """

    ops = ()

    def __init__(self, cameras: Cameras, sampling: SamplingConfig):
        super().__init__()
        device = cameras.focal.device
        self.step, self.cone = sampling.step, sampling.cone if sampling.kind == "contracted" else 0.0
        sizes = torch.tensor(cameras.sizes(), device=device)  # [V, 2]
        self.register_buffer("depths", torch.zeros(len(cameras), SIDE, SIDE, device=device))  # 0: nothing is there
        self.register_buffer("texel", sizes / SIDE, persistent=False)  # [V, 2] pixels between two depths
        self.register_buffer("angle", (sizes / SIDE / cameras.focal).amax(-1), persistent=False)  # [V] of that, about

    @torch.no_grad()
    def update(self, cameras: Cameras, step: int, render: Callable[[Rays], Rendering]) -> None:
        """Called before each step: renders the next view at some of them."""
        if step % EVERY:
            return
        view = step // EVERY % len(cameras)
        place = (torch.arange(SIDE, device=self.depths.device) + 0.5)[:, None] * self.texel[view]  # [SIDE, 2]
        row, column = torch.meshgrid(place[:, 1].long(), place[:, 0].long(), indexing="ij")
        rays = cameras.rays(torch.full_like(row.flatten(), view), column.flatten(), row.flatten())
        seen = render(rays._replace(view=None))
        # In place, for a CUDA graph of the step reads it; this itself is outside of the graph, and may synchronize.
        self.depths[view] = torch.where(seen.opacity > 0.5, seen.depth, 0.0).view(SIDE, SIDE)

    def agreement(self, view: Tensor, pixels: Tensor, distance: Tensor) -> Tensor:
        r"""How far the views [R, K] see points at their pixels [R, K, 2] and a distance [R, K] from them: [R, K], 0 to 1.

        .. math::
            \sum_i s_i \exp(-|distance - depth_i| / \tau)

        over the four depths around, with their bilinear shares s; tau is the size of a texel there and the length of
        an interval together, the error that a depth has.
        """  # noqa: E501
        place = (pixels / self.texel[view] - 0.5).clamp(0, SIDE - 1)  # [R, K, 2]
        low = place.long().clamp(max=SIDE - 2)
        (right, down), (column, row) = (place - low).unbind(-1), low.unbind(-1)
        tolerance = distance * self.angle[view] + (distance * self.cone).clamp(min=self.step)  # [R, K]
        total = torch.zeros_like(distance)
        for y, share_y in ((row, 1 - down), (row + 1, down)):
            for x, share_x in ((column, 1 - right), (column + 1, right)):
                depth = self.depths[view, y, x]
                agrees = torch.exp(-(distance - depth).abs() / tolerance) * (depth > 0)
                total = total + share_x * share_y * agrees
        return total
