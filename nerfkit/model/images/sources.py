# SPDX-License-Identifier: Apache-2.0
"""The training images as sources of color: where points of space appear in them, and what is there."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit.data.cameras import Cameras
from nerfkit.data.pixels import blend
from nerfkit.data.pool import ImagePool


class Sources(nn.Module):
    """V images with their cameras. Its buffers move with the model, and are in no checkpoint."""

    ops = ()

    def __init__(self, cameras: Cameras, images: ImagePool):
        super().__init__()
        device = images.pixels.device
        self.cameras = cameras.to(device)
        first, sizes = images.first, torch.tensor(images.sizes, device=device)
        self.lenses = tuple(dict.fromkeys(cameras.lenses))  # distinct ones; none of pinholes
        fisheyes = [lens.is_fisheye for lens in cameras.lenses] or [False] * len(cameras)
        sees_behind = torch.tensor(fisheyes, device=device)
        lens_of = torch.tensor([self.lenses.index(lens) for lens in cameras.lenses], device=device)
        for name, tensor in (
            ("pixels", images.pixels),  # [P, 3 or 4] uint8
            ("ignored", images.ignored),  # [P] bool, or None
            ("first", first),  # [V]
            ("sizes", sizes),  # [V, 2] width and height
            ("sees_behind", sees_behind),  # [V] bool
            ("lens_of", lens_of),  # [V] number of each view's lens
        ):
            self.register_buffer(name, tensor, persistent=False)

    def __len__(self) -> int:
        return self.sizes.shape[0]

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.cameras = self.cameras.to(self.pixels.device)
        return self

    def project_into_all(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """`project` into all V images, one after the other."""
        places = [self.cameras.project(points, view) for view in range(len(self))]
        pixels = torch.stack([pixel for pixel, _ in places], dim=1)  # [R, V, 2]
        depth = torch.stack([depth for _, depth in places], dim=1)  # [R, V]
        return _where_inside(pixels, self.sizes, (depth > 0) | self.sees_behind)

    def project(self, points: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
        """Pixel coordinates [R, M, 2] of points [R, 3] in images `view` [R, M], and whether they lie in it [R, M].

        Where they do not, the coordinates are those of the image's first pixel.
        """
        cameras = self.cameras
        index = view[..., None] * 12 + torch.arange(12, device=view.device)
        pose = cameras.camera_to_world.flatten().take(index).unflatten(-1, (3, 4))  # [R, M, 3, 4]
        offset = points[:, None] - pose[..., 3]
        x, y, z = (pose[..., :3] * offset[..., None]).sum(-2).unbind(-1)  # [R, M] each, camera axes
        if self.lenses:
            local, pixels = torch.stack([x, -y, -z], dim=-1).flatten(0, 1), x.new_full((*x.shape, 2), torch.nan)
            for number, lens in enumerate(self.lenses):
                is_of_lens = (self.lens_of[view] == number)[..., None]
                pixels = torch.where(is_of_lens, lens.project(local).view(pixels.shape), pixels)
        else:
            pixels = torch.stack([x, -y], dim=-1) / -z[..., None] * cameras.focal[view] + cameras.center[view]
        return _where_inside(pixels, self.sizes[view], (-z > 0) | self.sees_behind[view])

    def colors(self, view: Tensor, pixels: Tensor, background: Tensor) -> tuple[Tensor, Tensor]:
        """Bilinear colors [R, K, 3] over `background` [R, 3] or [3] at `pixels` [R, K, 2] of images `view` [R, K],
        and whether all four pixels around count [R, K]."""
        size = self.sizes[view]  # [R, K, 2]
        place = torch.minimum((pixels - 0.5).clamp(min=0), size - 1.0)  # [R, K, 2] from the first pixel's centre
        low = torch.minimum(place.long(), (size - 2).clamp(min=0))
        right, down = (place - low).unbind(-1)  # [R, K]
        high = torch.minimum(low + 1, size - 1)
        first, width = self.first[view], size[..., 0]
        color, counts = torch.zeros(*view.shape, 3, device=view.device), torch.ones_like(view, dtype=torch.bool)
        behind = background if background.dim() == 1 else background[:, None]
        for y, share_y in ((low[..., 1], 1 - down), (high[..., 1], down)):
            for x, share_x in ((low[..., 0], 1 - right), (high[..., 0], right)):
                pixel = first + y * width + x  # [R, K]
                color = color + (share_x * share_y)[..., None] * blend(self.pixels[pixel], behind)
                if self.ignored is not None:
                    counts = counts & ~self.ignored[pixel]
        return color, counts


def _where_inside(pixels: Tensor, sizes: Tensor, in_front: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels [R, M, 2], those of the first pixel where they are not in images of `sizes`, and whether they are."""
    inside = ((pixels >= 0) & (pixels < sizes)).all(-1) & in_front  # NaN is not
    return torch.where(inside[..., None], pixels, 0.5), inside
