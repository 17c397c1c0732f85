# SPDX-License-Identifier: Apache-2.0
"""A point on each ray -> what the K training images see there that look from the most similar directions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.data.cameras import Rays
from nerfkit.model.images.depth_maps import DepthMaps
from nerfkit.model.images.sources import Sources

UNSEEN, OWN = 4.0, 8.0  # taken from the cosine of an image that does not have the point, and of the ray's own image


class LookUps(NamedTuple):
    """K look-ups of each of R rays, the most similar direction last."""

    color: Tensor  # [R, K, 3]
    direction: Tensor  # [R, K, 4] difference of the unit directions to the point, and 1 - their cosine
    valid: Tensor  # [R, K] bool; where False, the others say nothing
    agreement: Tensor  # [R, K] with the depth that the image's camera sees there, 0 to 1; 0 where not valid
    view: Tensor  # [R, K] int64


@torch.no_grad()
def look_up(
    sources: Sources, depth_maps: DepthMaps, rays: Rays, points: Tensor, background: Tensor, n_views: int
) -> LookUps:
    """Look `points` [R, 3] up in the `n_views` nearest images. A ray never sees the image of its own `rays.view`.

    Images count as near by the angle between their own direction to the point and the ray's. Shapes are static, and
    nothing synchronizes.
    """
    pixels, inside = sources.project(points)  # [R, V, 2], [R, V]
    offset = points[:, None] - sources.cameras.positions  # [R, V, 3]
    distance = offset.norm(dim=-1)  # [R, V]
    to_point = offset / distance[..., None].clamp(min=1e-12)
    cosine = (to_point * rays.directions[:, None]).sum(-1)  # [R, V]
    if rays.view is not None:
        own = rays.view[:, None] == torch.arange(len(sources), device=points.device)  # [R, V]
        inside, cosine = inside & ~own, cosine - OWN * own
    _, view = (cosine - UNSEEN * ~inside).topk(min(n_views, len(sources)), dim=1)
    view = view.flip(1)  # [R, K] the nearest last
    valid = inside.gather(1, view)
    chosen = view[..., None].expand(*view.shape, 3)
    pixels = pixels.gather(1, chosen[..., :2])
    color, counts = sources.colors(view, pixels, background)
    valid = valid & counts
    agreement = depth_maps.agreement(view, pixels, distance.gather(1, view)) * valid
    towards = to_point.gather(1, chosen)
    difference = towards - rays.directions[:, None]
    direction = torch.cat([difference, difference.square().sum(-1, keepdim=True) / 2], dim=-1)
    shown = valid[..., None]
    return LookUps(torch.where(shown, color, 0), torch.where(shown, direction, 0), valid, agreement, view)
