# SPDX-License-Identifier: Apache-2.0
"""Images of any sizes in one array, and batches of training: random rays of the training views, with their pixels."""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.data.images.pixels import BACKGROUNDS
from nerfkit.device import available_memory, generator_on
from nerfkit.errors import SceneError

SHARE_OF_IMAGES = 0.5  # of the device's free memory
REFRESH_EVERY = 16  # steps, at most, after which a window takes another image in
MIN_WINDOW = 8  # images
SIGHTED = 16  # of so many rays one is of a sparse point, where these are learned from


@dataclass(frozen=True)
class ImagePool:
    """P pixels of V images, image after image, row by row."""

    pixels: Tensor  # [P, 3 or 4] uint8, straight alpha
    first: Tensor  # [V] int64, number of each image's first pixel
    sizes: tuple[tuple[int, int], ...]  # width and height of each image
    ignored: Tensor | None = None  # [P] bool, pixels that do not count
    depth: Tensor | None = None  # [P, 2] float16, distance along the ray [model units], weight
    panoramas: Tensor | None = None  # [V] heights, 0 of other images

    def __len__(self) -> int:
        return len(self.sizes)

    def to(self, device: torch.device | str) -> ImagePool:
        pixels, ignored, depth = (None if part is None else part.to(device) for part in self.parts)
        return replace(self, pixels=pixels, first=self.first.to(device), ignored=ignored, depth=depth)

    @property
    def parts(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What there is of each pixel."""
        return self.pixels, self.ignored, self.depth

    def image(self, view: int) -> Tensor:
        """One image, [H, W, 3 or 4] uint8."""
        return self.pixels[self.rows(view)].unflatten(0, self.sizes[view][::-1])

    def mask(self, view: int) -> Tensor | None:
        """Pixels of one image that do not count, [H, W] bool; None if all count."""
        return None if self.ignored is None else self.ignored[self.rows(view)].unflatten(0, self.sizes[view][::-1])

    def stack(self) -> Tensor:
        """All images, [V, H, W, 3 or 4] uint8; raises SceneError if their sizes differ."""
        if len(set(self.sizes)) != 1:
            raise SceneError(f"images of {len(set(self.sizes))} sizes cannot be stacked")
        width, height = self.sizes[0]
        return self.pixels.unflatten(0, (len(self), height, width))

    def bytes(self) -> int:
        return sum(part.nbytes for part in self.parts if part is not None)

    def rows(self, view: int) -> slice:
        width, height = self.sizes[view]
        start = int(self.first[view])
        return slice(start, start + width * height)

    def rows_by_solid_angle(self, view: Tensor, row: Tensor) -> Tensor:
        """Random rows [R] of images; of panoramas other ones, so that all directions are equally likely."""
        if self.panoramas is None:
            return row
        height = self.panoramas[view]
        unit = torch.rand(len(view), device=view.device, generator=generator_on(view.device))
        by_latitude = ((0.5 + torch.asin(2 * unit - 1) / math.pi) * height).long()
        return torch.where(height > 0, by_latitude, row)


class Batch(NamedTuple):
    """R rays with their pixels."""

    rays: Rays
    pixels: Tensor  # [R, 3 or 4] uint8, straight alpha
    weight: Tensor  # [R] of each pixel in the loss, float32; 0 excludes a ray
    background: Tensor  # [R, 3] color behind the scene, in [0, 1]
    jitter: Tensor  # [R] in [0, 1], shift of the ray's samples in steps
    progress: Tensor | None = None  # [] share of the training that is done, 0 to 1
    depth: Tensor | None = None  # [R, 2] distance along the ray [model units], weight
    place: Tensor | None = None  # [R, 2] of each pixel in its image, down and across, in [0, 1)

    @property
    def view(self) -> Tensor:
        """[R] int64, training view of each ray."""
        return self.rays.view


class Background:
    """Background of training: one color, or a random one for each ray."""

    def __init__(self, kind: str, has_alpha: bool, device: torch.device):
        self.kind, self.has_alpha, self.color = kind, has_alpha, BACKGROUNDS.get(kind, 1.0)
        self.is_random = torch.tensor(False, device=device)  # a tensor, for a CUDA graph reads it

    def draw_at_random(self, at_random: bool) -> None:
        """Switch random colors on or off; images without alpha keep their background."""
        self.is_random.fill_(at_random and self.has_alpha)

    def draw(self, n_rays: int) -> Tensor:
        device = self.is_random.device
        colors = torch.rand(n_rays, 3, device=device, generator=generator_on(device))
        return colors if self.kind == "random" else torch.where(self.is_random, colors, self.color)


class Sightings(NamedTuple):
    """S sparse points as training views see them: rays without pixels whose distances are known."""

    rays: Rays
    distance: Tensor  # [S]

    def put_into(self, batch: Batch, of_views: Tensor | None) -> Batch:
        """The batch with random sightings in the place of every `SIGHTED`th ray; `of_views` [V] are weights."""
        some, (device, n_rays) = slice(SIGHTED - 1, None, SIGHTED), (batch.weight.device, len(batch.weight))
        rays, weight = Rays(*(x.clone() for x in batch.rays)), batch.weight.clone()
        depth = torch.zeros(n_rays, 2, device=device)
        drawing = {"device": device, "generator": generator_on(device)}
        chosen = torch.randint(len(self.distance), (n_rays // SIGHTED,), **drawing)
        for values, of_points in zip(rays, self.rays, strict=True):
            values[some] = of_points[chosen]
        weight[some] = 0.0
        depth[some, 0] = self.distance[chosen]
        depth[some, 1] = 1.0 if of_views is None else of_views[rays.view[some]]
        return batch._replace(rays=rays, weight=weight, depth=depth)


class TrainingViews:
    """V cameras and their images, of which batches are drawn on a `device`, or else where the images are.

    The images are a pool, or of one size, [V, H, W, 3 or 4] uint8; all are moved there, or some at a time.
    """

    def __init__(
        self,
        cameras: Cameras,
        images: ImagePool | Tensor,
        background: str,
        device: torch.device | None = None,
        n_steps: int = 10**9,
    ):
        if isinstance(images, Tensor):
            wanted = [len(cameras), *reversed(cameras.size())]
            if images.dtype != torch.uint8 or list(images.shape[:-1]) != wanted or images.shape[-1] not in (3, 4):
                got = f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
                needed = f"uint8 [{', '.join(map(str, wanted))}, 3 or 4], as the cameras are"
                raise SceneError(f"images must be {needed}, got {got}")
            count, height, width = images.shape[:-1]
            first = torch.arange(count, device=images.device) * (height * width)
            images = ImagePool(images.flatten(0, 2), first, ((width, height),) * count)
        if list(images.sizes) != cameras.sizes():
            raise SceneError(f"{len(images)} images and {len(cameras)} cameras differ in number or in size")
        self.device = device = device or images.pixels.device
        heights = [lens.height * lens.is_panorama for lens in cameras.lenses]
        if any(heights):
            images = replace(images, panoramas=torch.tensor(heights, device=device))
        self.cameras = cameras
        self.source = pixel_source(images, device, n_steps)
        self.background = Background(background, images.pixels.shape[-1] == 4, device)
        self.progress = torch.zeros((), device=device)  # a tensor, for a CUDA graph reads it
        self.weight: Tensor | None = None  # [V] of each view's pixels in the loss; None: 1
        self.shapes = torch.tensor(images.sizes, device=device).flip(-1)  # [V, 2] height and width
        self.sightings: Sightings | None = None  # of sparse points, whose distances are known

    def draw(self, n_rays: int) -> Batch:
        """A batch of random pixels of random views; all pixels are equally likely, of panoramas all directions."""
        drawn = self.source.draw(n_rays)
        background = self.background.draw(n_rays)
        jitter = torch.rand(n_rays, device=self.device, generator=generator_on(self.device))
        rays, known = self.cameras.rays_of_pixels(drawn.view, drawn.column, drawn.row)
        weight = torch.ones(n_rays, device=self.device) if self.weight is None else self.weight[drawn.view]
        if known is not None:
            weight = weight * known
        if drawn.ignored is not None:
            weight = weight * ~drawn.ignored
        depth = drawn.depth
        if depth is not None:
            depth = torch.stack([depth[:, 0].float(), depth[:, 1] * weight], dim=-1)
        place = torch.stack([drawn.row, drawn.column], dim=-1) / self.shapes[drawn.view]
        batch = Batch(rays, drawn.color, weight, background, jitter, self.progress, depth, place)
        return batch if self.sightings is None else self.sightings.put_into(batch, self.weight)


class DrawnPixels(NamedTuple):
    view: Tensor  # [R] int64
    row: Tensor  # [R] int64
    column: Tensor  # [R] int64
    color: Tensor  # [R, 3 or 4] uint8, straight alpha
    ignored: Tensor | None  # [R] bool, pixels that do not count; None if all count
    depth: Tensor | None  # [R, 2], as the pool has it


def pixel_source(pool: ImagePool, device: torch.device, n_steps: int) -> ResidentPixels | StreamingPixels:
    """All images on the device, where they fit into half of its free memory, else a window of them."""
    allowed = int(SHARE_OF_IMAGES * available_memory(device))
    is_there = pool.pixels.device.type == device.type and device.index in (None, pool.pixels.device.index)
    if is_there or pool.bytes() <= allowed:
        return ResidentPixels(pool.to(device))
    return StreamingPixels(pool, device, allowed, n_steps)


class ResidentPixels:
    """Every image is on the device."""

    def __init__(self, pool: ImagePool):
        self.pool, self.device = pool, pool.pixels.device
        self.description = f"all {len(pool)} in the memory of {self.device} ({pool.bytes() / 2**20:.0f} MB)"
        self.size = pool.sizes[0] if len(set(pool.sizes)) == 1 else None  # None if they differ
        self.widths = torch.tensor([width for width, _ in pool.sizes], device=self.device)  # [V]

    def draw(self, n_pixels: int) -> DrawnPixels:
        drawing = {"device": self.device, "generator": generator_on(self.device)}
        if self.size is not None:
            width, height = self.size
            view, row, column = (torch.randint(n, (n_pixels,), **drawing) for n in (len(self.pool), height, width))
            row = self.pool.rows_by_solid_angle(view, row)
            pixel = (view * height + row) * width + column
        else:
            pixel = torch.randint(self.pool.pixels.shape[0], (n_pixels,), **drawing)
            view = torch.searchsorted(self.pool.first, pixel, right=True) - 1
            within, width = pixel - self.pool.first[view], self.widths[view]
            row = within // width
            column = within - row * width
            row = self.pool.rows_by_solid_angle(view, row)
            pixel = self.pool.first[view] + row * width + column
        return DrawnPixels(view, row, column, *(None if part is None else part[pixel] for part in self.pool.parts))

    def advance(self, step: int) -> None:
        pass


class StreamingPixels:
    """K of the V images are on the device; every few steps the oldest makes room for another, in the order of one
    random permutation of all after another. A thread puts the next one into pinned memory while steps run."""

    def __init__(self, pool: ImagePool, device: torch.device, n_bytes: int, n_steps: int = 10**9):
        self.pool, self.device = pool, device
        self.slot_size = max(width * height for width, height in pool.sizes)  # pixels
        n_slots = min(len(pool), n_bytes // (self.slot_size * (pool.bytes() // len(pool.pixels))))
        if n_slots < min(MIN_WINDOW, len(pool)):
            where = f"{n_bytes / 2**30:.1f} GB, half of the free memory of {device}"
            raise SceneError(f"not even {MIN_WINDOW} images fit into {where}; raise data.downscale")
        self.n_slots = n_slots
        self.every = max(1, min(REFRESH_EVERY, (n_steps - 1) // max(1, len(pool) - n_slots)))  # steps
        self.description = (
            f"{n_slots} of {len(pool)} at a time on {device}, one exchanged every {self.every} steps: all take "
            f"{pool.bytes() / 2**30:.1f} GB, more than half of its free memory"
        )
        if n_slots + (n_steps - 1) // self.every < len(pool):
            self.description += "; TOO FEW STEPS for all of them to be seen"
        n_pixels = n_slots * self.slot_size
        self.parts = [
            None if part is None else torch.empty(n_pixels, *part.shape[1:], dtype=part.dtype, device=device)
            for part in pool.parts
        ]
        self.widths = torch.tensor([width for width, _ in pool.sizes], device=device)  # [V]
        self.counts = torch.tensor([width * height for width, height in pool.sizes])  # [V] pixels
        self.slot_view = torch.zeros(n_slots, dtype=torch.int64, device=device)  # [K]
        self.slot_end = torch.zeros(n_slots, dtype=torch.int64, device=device)  # [K] pixels up to each slot's last
        self.views = [0] * n_slots  # slot_view, on the host
        self.refreshes = -1  # done
        self.thread = ThreadPoolExecutor(1, "images")
        self.staged: tuple[int, Future] | None = None  # a view, and its pinned copy
        self.order: tuple[int, list[int]] = (-1, [])  # number of the permutation, and itself

    def draw(self, n_pixels: int) -> DrawnPixels:
        n_all = self.slot_end[-1]
        drawing = {"device": self.device, "generator": generator_on(self.device)}
        number = (torch.rand(n_pixels, dtype=torch.float64, **drawing) * n_all).long().clamp(max=n_all - 1)
        slot = torch.searchsorted(self.slot_end, number, right=True)
        first = torch.where(slot > 0, self.slot_end[slot - 1], 0)
        within, view = number - first, self.slot_view[slot]
        width = self.widths[view]
        row = within // width
        column = within - row * width
        row = self.pool.rows_by_solid_angle(view, row)
        pixel = slot * self.slot_size + row * width + column
        return DrawnPixels(view, row, column, *(None if part is None else part[pixel] for part in self.parts))

    def advance(self, step: int) -> None:
        """Bring in the images of step `step`: one, mostly, or all after a jump."""
        wanted = step // self.every if self.n_slots < len(self.pool) else 0
        if wanted == self.refreshes:
            return
        missed = wanted - self.refreshes
        if self.refreshes < 0 or not 0 < missed < self.n_slots:
            missed = self.n_slots
        for number in range(wanted - missed, wanted):
            self._fill(number % self.n_slots, self._view(self.n_slots + number))
        self.refreshes = wanted
        self.slot_view.copy_(torch.tensor(self.views))
        self.slot_end.copy_(self.counts[self.views].cumsum(0))
        following = self._view(self.n_slots + wanted)
        self.staged = (following, self.thread.submit(self._stage, following))

    def _view(self, number: int) -> int:
        """The image that comes in as the `number`-th of all, in any run of these images."""
        epoch, index = divmod(number, len(self.pool))
        if self.order[0] != epoch:
            self.order = epoch, torch.randperm(len(self.pool), generator=torch.Generator().manual_seed(epoch)).tolist()
        return self.order[1][index]

    def _stage(self, view: int) -> list[Tensor | None]:
        rows = self.pool.rows(view)
        parts = [None if part is None else part[rows] for part in self.pool.parts]
        pinned = self.device.type == "cuda"
        return [part.pin_memory() if pinned and part is not None else part for part in parts]

    def _fill(self, slot: int, view: int) -> None:
        is_staged = self.staged is not None and self.staged[0] == view
        staged, start = self.staged[1].result() if is_staged else self._stage(view), slot * self.slot_size
        for part, of_image in zip(self.parts, staged, strict=True):
            if part is not None:
                part[start : start + len(of_image)].copy_(of_image, non_blocking=True)
        self.views[slot] = view
