# SPDX-License-Identifier: Apache-2.0
"""Whether exposure or white balance changes from image to image: what looks alike in views that stand close together
is compared. Small patches whose pattern is the same show the same thing, whatever the light of their images.

Letters: V views, P patches of a view.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.data.scene_transform.rig import evenly

SIDE, PATCH = 96, 9  # pixels of the shorter side of an image as it is compared, and of a patch, both ways
LONGEST = 4 * SIDE  # pixels of the longer side
SOME, NEAR, ASKED = 12, 3, 400  # views, with so many near each; patches of a view that are looked for in those
ALIKE, TEXTURE = 0.9, 0.15  # correlation of two patches; deviation of one [stops]
DARK, BRIGHT = 0.03, 0.97  # levels beyond which an image is cut off
GAMMA = 2.2  # stops of light in one of stored levels
FOUND, LEAST = 10, 6  # patches of a pair and views, fewer of which tell nothing
MOST = 0.75  # of the views differ less than `difference`
CHANGES = 0.3  # stops; steady photographs: 0.02 to 0.14, metal and what turns in its light: 0.2


def difference(images: Sequence[Tensor], counts: Sequence[Tensor], neighbours: list[list[int]]) -> float:
    """By how many stops V images [3, H, W] in [0, 1] differ from their neighbours in brightness, or in red or blue
    against green; most of them by less. 0 where nothing tells. Of pixels `counts` [H, W] bool tells which do, each of
    the neighbours is a view and those beside it."""
    patches = [_patches(image, ok) for image, ok in zip(images, counts, strict=True)]
    differ = []
    for view, *near in neighbours:
        shapes, levels = patches[view]
        some = torch.from_numpy(evenly(len(shapes), ASKED))
        found = []
        for others, their_levels in (patches[other] for other in near if len(some) and len(patches[other][0])):
            alike, place = (shapes[some] @ others.T).max(1)
            off = (levels[some] - their_levels[place])[alike > ALIKE]  # [K, 3]
            found += [off.median(0).values] if len(off) >= FOUND else []
        differ += [torch.stack(found).quantile(0.5, dim=0)] if found else []
    if len(differ) < LEAST:
        return 0.0
    red, green, blue = torch.stack(differ).unbind(1)
    kinds = torch.stack([(red + green + blue) / 3, red - green, blue - green])
    return kinds.abs().quantile(MOST, dim=1).max().item()


def neighbours(poses: Tensor, some: int = SOME, near: int = NEAR) -> list[list[int]]:
    """Some of the views at `poses` [V, 3, 4], camera-to-world, each followed by those that stand and look most alike:
    by distance, in units of how far all are from their middle, and by direction."""
    chosen = torch.from_numpy(evenly(len(poses), some))
    eyes, looks = poses[:, :, 3], poses[:, :, 2]
    unit = torch.linalg.vector_norm(eyes - eyes.mean(0), dim=-1).mean().clamp(min=1e-9)
    apart = torch.cdist(eyes[chosen], eyes) / unit + 1 - looks[chosen] @ looks.T  # [S, V]
    apart[torch.arange(len(chosen)), chosen] = -torch.inf
    return apart.topk(min(1 + near, len(poses)), largest=False).indices.tolist()


def _patches(image: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Patterns [P, PATCH**2] of length 1 and mean levels [P, 3] in stops, of the patches that tell."""
    stops = GAMMA * image.clamp(DARK, BRIGHT).log2()
    if min(counts.shape) < PATCH:
        return torch.zeros(0, PATCH**2), torch.zeros(0, 3)
    brightest = image.amax(0)
    usable = (counts & (brightest > DARK) & (brightest < BRIGHT)).float()
    whole = F.avg_pool2d(usable[None], PATCH, 1).flatten() > 0.999
    shapes = F.unfold(stops.mean(0)[None, None], PATCH)[0].T
    shapes = shapes - shapes.mean(1, keepdim=True)
    length = torch.linalg.vector_norm(shapes, dim=1)
    some = whole & (length > TEXTURE * PATCH)
    levels = F.avg_pool2d(stops, PATCH, 1).flatten(1).T
    return shapes[some] / length[some, None], levels[some]
