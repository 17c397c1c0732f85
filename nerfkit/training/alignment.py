# SPDX-License-Identifier: Apache-2.0
"""The pose of a view that was not trained, found on its own image with the field frozen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.model.base import Model
from nerfkit.rendering.image_renderer import in_eval_mode
from nerfkit.training.step.adjustments import in_light, moved, moved_cameras, radius_of, without_gradients

STEPS, RAYS = 100, 1024  # of Adam, and of random pixels in each
FIRST_RATE, LAST_RATE = 2e-3, 2e-5  # radians a step, about, and shares of the radius of data.box
LIGHT_RATE = 1e-2

ALIGNED_DEFINITION = (
    f"psnr after {STEPS} steps of Adam on the view's pose, from the given one, each on {RAYS} random pixels of its own "
    "image, with the field frozen (as in BARF, arXiv:2104.06405)"
)


def aligned(
    model: Model, config: Config, cameras: Cameras, view: int, truth: Tensor, counts: Tensor | None, background: Tensor
) -> Cameras:
    """The camera of one view [1], from where a frozen field looks most like its image.

    Where poses are refined, field and given poses may differ by what refinement did: a score at the given pose of a
    test view then measures that pose, too. The search starts at the given pose: the mean of the corrections is 0.

    Args:
        model: on the device of `cameras`.
        truth: [H, W, 3] over `background` [3].
        counts: [H, W] bool, pixels that count; None if all do.

    With data.appearance the light of the image is fitted beside the pose, and then forgotten. Global random numbers
    are not used. Source: BARF (arXiv:2104.06405), section 4: test-time photometric pose optimization.
    """
    device, unit = cameras.focal.device, radius_of(config.data.box)
    scale = torch.tensor([1.0] * 3 + [unit] * 3, device=device)  # of a move, in radians and scene units
    width, _ = cameras.size(view)
    colors = truth.flatten(0, 1)
    pixels = torch.arange(len(colors)) if counts is None else counts.flatten().nonzero()[:, 0]  # [P] row by row
    generator = torch.Generator().manual_seed(view)
    move = torch.zeros(6, device=device, requires_grad=True)  # axis-angle, translation in radii
    light = torch.zeros(3, 4, device=device, requires_grad=config.data.appearance == "affine")
    optimizer = torch.optim.Adam([{"params": [move]}, {"params": [light], "lr": LIGHT_RATE}], FIRST_RATE, eps=1e-15)
    with frozen(model), in_eval_mode(model), torch.enable_grad():
        for step in range(STEPS):
            drawn = pixels[torch.randint(len(pixels), (RAYS,), generator=generator)]  # [R]
            pixel = drawn.to(device)
            rays = cameras.rays(torch.full_like(pixel, view), pixel % width, pixel // width)
            rotation, translation = (scale * move).expand(RAYS, 6).split(3, -1)  # [R, 3] each
            rendering = model(moved(rays, rotation, translation), background)
            color = in_light(rendering.color, rendering.opacity, background, light.expand(RAYS, 3, 4))
            if not rendering.color.requires_grad:
                raise without_gradients(model)
            optimizer.zero_grad()
            # The sum, not the mean: gradients in half precision would underflow.
            (color - colors[drawn].to(device)).square().sum().backward()
            fall = (LAST_RATE / FIRST_RATE) ** (step / STEPS)
            for group, rate in zip(optimizer.param_groups, (FIRST_RATE, LIGHT_RATE), strict=True):
                group["lr"] = rate * fall
            optimizer.step()
    return moved_cameras(cameras[[view]], (scale * move.detach())[None])


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """No parameter of `model` takes a gradient inside."""
    trained = [p for p in model.parameters() if p.requires_grad]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)
