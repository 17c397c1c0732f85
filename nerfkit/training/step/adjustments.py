# SPDX-License-Identifier: Apache-2.0
"""What is learned of each training view besides the field: the light of its image, and where its camera stood."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from nerfkit.config import DEFAULT_BOX, DataConfig
from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.data.images.batch import Batch
from nerfkit.errors import UserError
from nerfkit.model.base import Model
from nerfkit.model.compositing import Rendering

SMALLEST_ANGLE = 1e-6  # radians, below which a rotation's derivative is taken as that of none
APPEARANCE_RATE, POSE_RATE = 1e-3, 5e-4  # of Adam, at first; poses at 1e-3 stray by half a degree in short runs
LAST_SHARE = 0.01  # of them, at the end of the schedule
POSES_START, POSES_FULL = 0.02, 0.1  # shares of the schedule between which the rate of poses rises from 0


class ViewAdjustments(nn.Module):
    r"""Of V training views: an affine color transform and a correction of the pose, each where `data` asks for it.

    Appearance. Of a ray of view v with color c (without background) and opacity a, the image has

    .. math:: A_v c + a b_v + (1 - a)\, background, \quad A_v = I + X_v - \bar X, \quad b_v = x_v - \bar x

    with X [V, 3, 3] and x [V, 3] learned, at first 0, and the bar their mean over the views.

    Poses. The ray from o along d becomes the one from :math:`o + s (t_v - \bar t)` along
    :math:`\exp([w_v - \bar w]_\times) d`, with w and t [V, 3] learned, at first 0, in world axes; s is the radius of
    data.box, so that a learning rate means the same in any scene.

    Field, light and cameras are known up to a common transform: the mean is held at the identity, and so a novel view
    is rendered without one. The common scale of all poses is not held.

    Source: affine transforms of each image as in Urban Radiance Fields (arXiv:2111.14643), there from a latent code;
    poses as in BARF (arXiv:2104.06405) and NeRF-- (arXiv:2102.07064).
    """

    def __init__(self, data: DataConfig, n_views: int):
        super().__init__()
        self.unit = radius_of(data.box or DEFAULT_BOX)
        self.appearance = nn.Parameter(torch.zeros(n_views, 3, 4)) if data.appearance == "affine" else None
        self.poses = nn.Parameter(torch.zeros(n_views, 6)) if data.pose_optimization else None

    # Both run inside the recorded step: static shapes, and nothing waits for a value.

    def rays(self, rays: Rays) -> Rays:
        """Rays of training views, from where their cameras are thought to have stood."""
        if self.poses is None:
            return rays
        rotation, translation = self._moves().index_select(0, rays.view).split(3, -1)  # [R, 3] each
        return moved(rays, rotation, translation)

    def rendering(self, rendering: Rendering, batch: Batch) -> Rendering:
        """The rendering of a batch with the colors that its images would have."""
        if self.appearance is None:
            return rendering
        transforms = centered(self.appearance).index_select(0, batch.view)  # [R, 3, 4]
        color = in_light(rendering.color, rendering.opacity, batch.background, transforms)
        return rendering._replace(color=color)

    def check_gradients(self, model: Model) -> None:
        """After a backward pass: raise UserError if the colors of `model` do not depend on where rays are."""
        if self.poses is not None and self.poses.grad is None:
            raise without_gradients(model)

    @torch.no_grad()
    def cameras(self, cameras: Cameras) -> Cameras:
        if self.poses is None:
            return cameras
        return moved_cameras(cameras, self._moves())

    def groups(self, device: torch.device) -> list[dict]:
        """Groups of the optimiser, in the order of `parameters`."""
        return [{"params": [p], "lr": torch.zeros((), device=device)} for p in self.parameters()]

    def rates(self, progress: float) -> list[float]:
        """Learning rate of each group at a share of the schedule; poses wait for a field to align them with."""
        fall = LAST_SHARE ** min(progress, 1.0)
        rise = min(max((progress - POSES_START) / (POSES_FULL - POSES_START), 0.0), 1.0)
        rates = {"appearance": APPEARANCE_RATE * fall, "poses": POSE_RATE * rise * fall}
        return [rates[name] for name, _ in self.named_parameters()]

    @torch.no_grad()
    def stats(self) -> dict[str, float]:
        """How far cameras were moved, as roots of mean squares: degrees, and model units."""
        if self.poses is None:
            return {}
        turned, shifted = (x.square().sum(-1).mean().sqrt().item() for x in self._moves().split(3, -1))
        return {"cameras_turned": math.degrees(turned), "cameras_shifted": shifted}

    def _moves(self) -> Tensor:
        """Axis-angle [radians] and translation [model units] of each view, [V, 6]."""
        scale = torch.cat([self.poses.new_ones(3), self.poses.new_full((3,), self.unit)])
        return centered(self.poses) * scale


def without_gradients(model: Model) -> UserError:
    """Of a model of one's own, with which poses cannot be refined."""
    return UserError(
        f"colors of the model {type(model).__name__} have no gradients in the rays, which data.pose_optimization "
        "needs; leave data.pose_optimization false"
    )


def centered(values: Tensor) -> Tensor:
    return values - values.mean(0)


def radius_of(box: tuple[float, ...]) -> float:
    """Half a side of a cube; of another box, of the cube whose diagonal is as long."""
    return math.dist(box[:3], box[3:]) / math.sqrt(12)


def moved(rays: Rays, rotation: Tensor, translation: Tensor) -> Rays:
    """Rays whose cameras are turned about themselves by `rotation`, axis-angle [R, 3], and shifted by `translation`."""
    return rays._replace(origins=rays.origins + translation, directions=rotated(rays.directions, rotation))


def moved_cameras(cameras: Cameras, moves: Tensor) -> Cameras:
    """Cameras that are turned about themselves and shifted by `moves` [V, 6], axis-angle and translation."""
    axes, position = cameras.camera_to_world.mT.split((3, 1), dim=1)  # [V, 3, 3] an axis a row, [V, 1, 3]
    rotation, translation = moves.to(position)[:, None].split(3, -1)  # [V, 1, 3] each
    pose = torch.cat([rotated(axes, rotation), position + translation], dim=1).mT
    return replace(cameras, camera_to_world=pose.contiguous())


def rotated(vectors: Tensor, rotation: Tensor) -> Tensor:
    r"""Vectors [..., 3] turned by `rotation`, axis-angle [..., 3] in radians: Rodrigues' formula,

    .. math:: v + \frac{\sin a}{a}\, w \times v + \frac{1 - \cos a}{a^2}\, w \times (w \times v), \quad a = |w|
    """
    # The root has no derivative at 0; with so small an angle added, both factors keep their values.
    angle = (rotation.square().sum(-1, keepdim=True) + SMALLEST_ANGLE**2).sqrt()  # [..., 1]
    once = torch.linalg.cross(*torch.broadcast_tensors(rotation, vectors))
    twice = torch.linalg.cross(*torch.broadcast_tensors(rotation, once))
    half = torch.sin(angle / 2) / angle  # 1 - cos a would be lost in rounding
    return vectors + torch.sin(angle) / angle * once + 2 * half.square() * twice


def in_light(color: Tensor, opacity: Tensor, background: Tensor, transforms: Tensor) -> Tensor:
    """Colors [R, 3] over a known background [R, 3] or [3] as images show them whose `transforms` [R, 3, 4] are the
    changes (A - I, b) of what is not background."""
    behind = (1 - opacity)[:, None] * background  # [R, 3]
    own = torch.cat([color - behind, opacity[:, None]], dim=-1)  # [R, 4]
    return color + (transforms * own[:, None]).sum(-1)
