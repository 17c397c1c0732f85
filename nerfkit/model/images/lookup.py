# SPDX-License-Identifier: Apache-2.0
"""A point on each ray -> what the K training images see there that look from the most similar directions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.data.cameras import Rays
from nerfkit.model.images.depth_maps import DepthMaps
from nerfkit.model.images.sources import Sources

CANDIDATES, LEAST = 4, 16  # images that a point is projected into, for each that it is looked up in, and at least
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

    Images count as near by the angle between their own direction to the point and the ray's; of many, only the
    candidates that are nearest by that are asked whether they have the point. Shapes are static, and nothing
    synchronizes.
    """
    n_candidates = max(CANDIDATES * n_views, LEAST)
    if n_candidates * max(len(sources.lenses), 1) < len(sources):  # each lens projects all candidates
        candidates = _candidates(sources, rays, points, n_candidates)  # [R, M]
        pixels, inside = sources.project(points, candidates)  # [R, M, 2], [R, M]
    else:
        candidates = torch.arange(len(sources), device=points.device).expand(len(points), -1)
        pixels, inside = sources.project_into_all(points)
    offset = points[:, None] - sources.cameras.positions[candidates]  # [R, M, 3]
    distance = offset.norm(dim=-1)  # [R, M]
    to_point = offset / distance[..., None].clamp(min=1e-12)
    cosine = (to_point * rays.directions[:, None]).sum(-1)  # [R, M]
    if rays.view is not None:
        own = candidates == rays.view[:, None]
        inside, cosine = inside & ~own, cosine - OWN * own
    _, nearest = (cosine - UNSEEN * ~inside).topk(min(n_views, candidates.shape[1]), dim=1)
    nearest = nearest.flip(1)  # [R, K] of the candidates, the nearest last
    view = candidates.gather(1, nearest)
    valid = inside.gather(1, nearest)
    chosen = nearest[..., None].expand(*nearest.shape, 3)
    pixels = pixels.gather(1, chosen[..., :2])
    color, counts = sources.colors(view, pixels, background)
    valid = valid & counts
    agreement = depth_maps.agreement(view, pixels, distance.gather(1, nearest)) * valid
    towards = to_point.gather(1, chosen)
    difference = towards - rays.directions[:, None]
    direction = torch.cat([difference, difference.square().sum(-1, keepdim=True) / 2], dim=-1)
    shown = valid[..., None]
    return LookUps(torch.where(shown, color, 0), torch.where(shown, direction, 0), valid, agreement, view)


def _candidates(sources: Sources, rays: Rays, points: Tensor, n_candidates: int) -> Tensor:
    """Images [R, M] whose directions to the points [R, 3] are most similar to the rays', also where they lack them."""
    middle = sources.cameras.positions.mean(0)
    points, positions = points - middle, sources.cameras.positions - middle  # less is lost in the differences
    # By products and not by cdist, which on a GPU takes a block of threads for each pair of a ray and a view.
    along = (points * rays.directions).sum(-1, keepdim=True)  # [R, 1], then [R, V]
    along = torch.addmm(along, rays.directions, positions.T, alpha=-1)
    squared = torch.addmm(positions.square().sum(-1), points, positions.T, alpha=-2)  # [R, V]
    squared += points.square().sum(-1, keepdim=True)
    cosine = along * squared.clamp_(min=1e-12).rsqrt_()
    if rays.view is not None:
        cosine = cosine - OWN * (rays.view[:, None] == torch.arange(len(sources), device=points.device))
    return cosine.topk(n_candidates, dim=1, sorted=False).indices
