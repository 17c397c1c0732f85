# SPDX-License-Identifier: Apache-2.0
"""Scene: cameras by split, and where their images are. Made by a reader in `nerfkit.data.readers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.config import DataConfig
from nerfkit.data import light
from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.data.capture import DepthFile, Note, Points
from nerfkit.data.depth import read_depth, seen_in_front
from nerfkit.data.images.batch import ImagePool, Sightings
from nerfkit.data.images.pixels import OPAQUE, RESIZING_BYTES, ImageHeader, MaskKind, read_image, read_mask
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.device import free_memory
from nerfkit.errors import SceneError
from nerfkit.safe_io import printable
from nerfkit.threads import cores

MAX_THREADS = 32  # of decoding


@dataclass(frozen=True, repr=False)
class Views:
    """Cameras of one split and where their images are."""

    cameras: Cameras
    files: list[Path]
    headers: list[ImageHeader]  # of each file
    masks: list[Path | None] = field(default_factory=list)  # of pixels to ignore; may be empty
    white_ignores: bool = False  # in masks, not black
    alpha_masks: bool = False  # masked pixels are transparent, not ignored
    mask_kind: MaskKind = MaskKind()
    depths: list[DepthFile | None] = field(default_factory=list)  # how far is what they show; may be empty
    scale: float = 1.0  # model units of one unit of the poses' files
    numbers: list[int] = field(default_factory=list)  # in the capture

    def __repr__(self) -> str:
        return f"Views({len(self.files)} of {format_sizes(self.cameras.sizes())})"

    def __getitem__(self, chosen: list[int]) -> Views:
        lists = {name: getattr(self, name) for name in ("files", "headers", "masks", "depths", "numbers")}
        some = {name: [x[view] for view in chosen if x] for name, x in lists.items()}
        return replace(self, cameras=self.cameras[chosen], **some)

    @property
    def channels(self) -> int:
        """4 where one of the images has alpha or is cut out, else 3."""
        return 4 if any(header.has_alpha for header in self.headers) or (self.alpha_masks and any(self.masks)) else 3

    @property
    def names(self) -> list[str]:
        """Unique names of the views: file stems, prefixed by the view's index where two are alike."""
        stems = [file.stem for file in self.files]
        if len({stem.casefold() for stem in stems}) == len(stems):  # some file systems ignore case
            return stems
        return [f"{index:04d}_{stem}" for index, stem in enumerate(stems)]

    def n_pixels(self) -> int:
        """Pixels of all images, as large as they are trained."""
        return sum(width * height for width, height in self.cameras.sizes())

    def bytes(self, with_depth: bool = False) -> int:
        """Memory that the images take."""
        ignores = any(self.masks) and not self.alpha_masks
        return self.n_pixels() * (self.channels + ignores + 4 * (with_depth and any(self.depths)))

    def load(self, progress_bar: bool = False, with_depth: bool = False, may_be_masked: bool = False) -> ImagePool:
        """All images, resized to their cameras' sizes by area, which of their pixels do not count, and how far they see
        if that is wanted. Raises SceneError if masks leave no pixel at all, unless `may_be_masked`."""
        sizes = self.cameras.sizes()
        decoding = self._bytes_to_decode(sizes)
        n_threads = threads_to_decode(decoding, min(MAX_THREADS, len(self.files)), self.bytes(with_depth))
        if not n_threads:
            needed, more, free = (n / 2**30 for n in (self.bytes(with_depth), decoding, free_memory()))
            what = f"the images need {needed:.1f} GB, and {more:.1f} GB more to decode one, but {free:.1f} GB are free"
            raise SceneError(f"{what}; raise data.downscale, or shrink the files")
        pixels = torch.empty(self.n_pixels(), self.channels, dtype=torch.uint8)
        ignored = torch.zeros(len(pixels), dtype=torch.bool) if any(self.masks) and not self.alpha_masks else None
        depth = torch.zeros(len(pixels), 2, dtype=torch.float16) if with_depth and any(self.depths) else None
        counts = torch.tensor([width * height for width, height in sizes])
        images = ImagePool(pixels, counts.cumsum(0) - counts, tuple(sizes), ignored, depth)

        def fill(view: int) -> None:
            rows = images.rows(view)
            read_image(self.files[view], self.headers[view], images.image(view).numpy())
            if any(self.masks) and self.masks[view] is not None:
                mask = read_mask(self.masks[view], sizes[view], self.mask_kind)  # [H, W] bool, white
                masked = torch.from_numpy(mask if self.white_ignores else ~mask).flatten()
                if ignored is None:
                    pixels[rows, 3] *= ~masked
                else:
                    ignored[rows] = masked
            if depth is not None and self.depths[view] is not None:
                depth[rows] = self._depth(view, sizes[view])

        with ThreadPoolExecutor(n_threads) as pool:
            done = pool.map(fill, range(len(self.files)))
            list(tqdm(done, total=len(self.files), desc="images", leave=False, disable=not progress_bar))
        if ignored is not None and ignored.all() and not may_be_masked:
            why = f"all pixels are {'white' if self.white_ignores else 'black'}, which is ignored"
            what = f"masks leave nothing of the {len(self.files)} images: {why} ({printable(self.masks[0])})"
            raise SceneError(f"{what}; correct the masks, or take them away to use all pixels")
        return images

    def _depth(self, view: int, size: tuple[int, int]) -> Tensor:
        """Distance along the ray of each pixel of an image [model units] and how much it counts, [H * W, 2]."""
        lengths, counts, along_ray, _ = read_depth(self.depths[view], size)
        distance, counts = self.scale * torch.from_numpy(lengths).flatten(), torch.from_numpy(counts).flatten()
        if not along_ray:
            distance /= self.cameras.z_per_distance(view, self.cameras.image_rays(view).directions)
        depth = torch.stack([distance, counts], dim=-1).half()  # exact to 0.05 %
        if (depth[:, 0].isinf() & distance.isfinite()).any():
            what = f"depth image {printable(self.depths[view].file)} has more than 65504 units of the model"
            raise SceneError(f"{what}, which cannot be kept; leave data.box out, or give --trainer.depth 0")
        return torch.where((depth.isfinite() & (depth > 0)).all(-1, keepdim=True), depth, 0)

    def _bytes_to_decode(self, sizes: list[tuple[int, int]]) -> int:
        decoding = [header.decoding_bytes for header in self.headers]
        for view, (header, (width, height)) in enumerate(zip(self.headers, sizes, strict=True)):
            if (header.width, header.height) != (width, height):
                decoding[view] += RESIZING_BYTES * max(header.width * header.height, width * height)
        return max(decoding)


def threads_to_decode(n_bytes: int, most: int, kept: int = 0) -> int:
    """How many of `most` threads that take some memory each may decode, beside what is `kept`; 0: not even one."""
    return max(0, min(cores(), most, (free_memory() - kept) // n_bytes))


def format_sizes(sizes: list[tuple[int, int]]) -> str:
    """Image sizes, `640x480`, or how many there are of them."""
    counts = Counter(f"{width}x{height}" for width, height in sizes)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{n} of {size}" for size, n in counts.most_common(3)) + (", ..." if len(counts) > 3 else "")


@dataclass(frozen=True, repr=False)
class Scene:
    """Views by split ("train", "test", ...), in the model's frame."""

    name: str
    format: str  # of readers.READERS
    views: dict[str, Views]
    up: tuple[float, float, float]  # world axis that points up
    transform: SceneTransform | None = None  # from the files' frame to the model's; None where they are one
    notes: tuple[Note, ...] = ()  # what a user should know
    format_again: str = "auto"  # data.format to read the same scene with later
    points: Points | None = None  # sparse points of the files, in their frame
    source: DataConfig | None = None  # how it was read
    paths: dict[str, Cameras] = field(default_factory=dict)  # splits without images, in the model's frame
    about: tuple[str, ...] = ()  # sentences on what it is

    def __repr__(self) -> str:
        return f"Scene({self.name!r}, {self.format}, {self.views})"

    @property
    def is_place(self) -> bool:
        """Whether it is a place and no object."""
        return self.transform is not None and self.transform.kind != "object"

    def split(self, name: str) -> Views:
        """Views of one split; raises SceneError if the scene has none."""
        if name not in self.views:
            raise SceneError(f"scene {self.name} has no split {name!r}; it has {', '.join(self.views)}")
        return self.views[name]

    @cached_property
    def light_changes(self) -> bool:
        """Whether exposure or white balance differs from one training image to the next; some of them are read."""
        views = self.views.get("train")
        if views is None or not views.files:
            return False
        groups = light.neighbours(views.cameras.camera_to_world)
        compared = sorted({view for group in groups for view in group})
        groups = [[compared.index(view) for view in group] for group in groups]
        views = views[compared]
        sizes = torch.tensor(views.cameras.sizes())  # [V, 2]
        shorter = sizes.amin(1, keepdim=True)
        small = (sizes * shorter.clamp(max=light.SIDE) / shorter).round().long().clamp(max=light.LONGEST)
        places = torch.ones(len(compared), 2)  # nobody asks where their rays go
        cameras = Cameras(views.cameras.camera_to_world, places, places, *small.T)
        try:
            pool = replace(views, cameras=cameras).load()
        except SceneError:  # whoever loads all says it
            return False
        images = [pool.image(view).movedim(-1, 0) for view in range(len(compared))]  # [3 or 4, H, W]
        counts = [image[3] >= OPAQUE if len(image) == 4 else torch.ones_like(image[0]) > 0 for image in images]
        if pool.ignored is not None:
            counts = [some & ~pool.mask(view) for view, some in enumerate(counts)]
        return light.difference([image[:3] / 255 for image in images], counts, groups) > light.CHANGES

    @property
    def has_depth(self) -> bool:
        """Whether training views have depth images."""
        return "train" in self.views and any(self.views["train"].depths)

    def sightings(self, device: torch.device) -> Sightings | None:
        """The sparse points as the training views see them; None without any."""
        points, views = self.points, self.views["train"]
        if points is None or not len(points.positions):
            return None
        positions = points.positions if self.transform is None else self.transform.to_model(points.positions)
        positions = torch.tensor(positions, dtype=torch.float32)
        if len(points.views):
            view_of = np.full(max(points.views.max(), *views.numbers) + 1, -1)
            view_of[views.numbers] = np.arange(len(views.numbers))
            view, point = view_of[points.views], np.repeat(np.arange(len(positions)), points.track_lengths)
            view, point = torch.from_numpy(view[view >= 0]), torch.from_numpy(point[view >= 0])
        else:
            view, point = seen_in_front(views.cameras, positions)
        origins = views.cameras.positions[view]
        distance = torch.linalg.vector_norm(positions[point] - origins, dim=-1).clamp(min=1e-9)
        rays = origins, (positions[point] - origins) / distance[:, None], view
        return Sightings(Rays(*(x.to(device) for x in rays)), distance.to(device)) if len(view) else None

    def pixels_across(self, box: Sequence[float]) -> float | None:
        """Pixels that the longest side of a box [model units] is wide at its middle, in the median training image."""
        if "train" not in self.views:
            return None
        cameras = self.views["train"].cameras
        lowest, highest = torch.tensor(box).view(2, 3)
        distance = torch.linalg.vector_norm(cameras.positions - (lowest + highest) / 2, dim=-1)  # [V]
        pixels = cameras.focal.mean(-1) / distance.clamp(min=1e-6)  # [V] of a model unit
        return (pixels.median() * (highest - lowest).max()).item()
