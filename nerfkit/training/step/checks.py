# SPDX-License-Identifier: Apache-2.0
"""What is asked of the cameras before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.scene_transform.doubts import NEXT_TO_NONE
from nerfkit.errors import SceneError
from nerfkit.model.base import Model

CHECKED_VIEWS = 256  # whose rays are asked whether they see anything
CHECKED_SIDE = 17  # rays of such a view, each way


def check_seen(model: Model, cameras: Cameras, box: Sequence[float]) -> None:
    """Raise SceneError if the model has nowhere to put a sample, but on next to no ray of the views."""
    device = cameras.focal.device
    views = torch.arange(0, len(cameras), max(len(cameras) // CHECKED_VIEWS, 1), device=device)
    parts = torch.arange(CHECKED_SIDE, device=device)
    view, row, column = (x.flatten() for x in torch.meshgrid(views, parts, parts, indexing="ij"))
    width, height = torch.tensor(cameras.sizes(), device=device)[view].unbind(-1)
    row, column = row * height // CHECKED_SIDE, column * width // CHECKED_SIDE
    rotation = cameras.camera_to_world[:, :, :3]
    error = (rotation @ rotation.mT - torch.eye(3, device=device, dtype=rotation.dtype)).abs().amax()
    if not error < 1e-2 or not cameras.positions.isfinite().all():  # NaN is not
        raise SceneError("camera_to_world holds matrices that are not rigid: scaled, skewed or not finite")
    seen = model.sees(cameras.rays(view, column, row))
    if seen.double().mean() < NEXT_TO_NONE or not seen.any():
        low, high = cameras.positions.amin(0).tolist(), cameras.positions.amax(0).tolist()
        raise SceneError(
            f"next to no ray of the training views meets the box {list(box)} between sampling.near and far; the "
            f"cameras stand between {[round(x, 3) for x in low]} and {[round(x, 3) for x in high]}. "
            "Set data.box around what they look at (and check that poses are camera-to-world, OpenGL axes)"
        )
