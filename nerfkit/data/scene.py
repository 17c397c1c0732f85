# SPDX-License-Identifier: Apache-2.0
"""Scene: cameras by split, and where their images are. Made by a reader in `nerfkit.data.readers`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.data.cameras import Cameras
from nerfkit.data.pixels import RESIZING_BYTES, ImageHeader, read_image
from nerfkit.device import free_memory
from nerfkit.errors import SceneError

MAX_THREADS = 32  # of decoding


@dataclass(frozen=True)
class Views:
    """Cameras of one split and where their images are."""

    cameras: Cameras
    files: list[Path]
    header: ImageHeader  # of all files; the maximum of each value

    @property
    def channels(self) -> int:
        """4 with alpha, else 3."""
        return 4 if self.header.has_alpha else 3

    @property
    def names(self) -> list[str]:
        """Unique names of the views: file stems, prefixed by the view's index where two are alike."""
        stems = [file.stem for file in self.files]
        if len({stem.casefold() for stem in stems}) == len(stems):  # some file systems ignore case
            return stems
        return [f"{index:04d}_{stem}" for index, stem in enumerate(stems)]

    def bytes(self) -> int:
        """Memory that the images take."""
        return len(self.files) * self.cameras.height * self.cameras.width * self.channels

    def load(self, report: Callable[[str], None] | None = None) -> Tensor:
        """All images, uint8 [V, H, W, channels], straight alpha, resized to the cameras' size by area.

        `report`, such as print, gets a line with number and memory, and a progress bar is shown.
        """
        width, height = self.cameras.width, self.cameras.height
        n_threads, decoding = self._decoding_threads()
        (report or (lambda text: None))(
            f"loading {len(self.files)} images, {width}x{height}: {self.bytes() / 2**20:.0f} MB in memory, "
            f"and up to {decoding / 2**20:.0f} MB while {n_threads} at a time are decoded"
        )
        images = torch.empty(len(self.files), height, width, self.channels, dtype=torch.uint8)

        def fill(index: int) -> None:
            read_image(self.files[index], (self.header.width, self.header.height), images[index].numpy())

        with ThreadPoolExecutor(n_threads) as pool:
            done, total = pool.map(fill, range(len(self.files))), len(self.files)
            for _ in tqdm(done, total=total, desc="images", leave=False, disable=report is None):
                pass
        return images

    def _decoding_threads(self) -> tuple[int, int]:
        """Number of decoding threads that fit into memory, and their bytes; raises SceneError if none fits."""
        images, decoding = self.bytes(), self.header.decoding_bytes
        stored, wanted = (x.width * x.height for x in (self.header, self.cameras))  # pixels
        if (self.cameras.width, self.cameras.height) != (self.header.width, self.header.height):
            decoding += RESIZING_BYTES * max(stored, wanted)
        n_threads = min(os.cpu_count() or 1, MAX_THREADS, len(self.files))
        free = free_memory()
        if free is not None:
            n_threads = min(n_threads, (free - images) // decoding)
            if n_threads < 1:
                raise SceneError(
                    f"the images need {images / 2**30:.1f} GB, and {decoding / 2**30:.1f} GB more to decode one, but "
                    f"{free / 2**30:.1f} GB are free; raise data.downscale, or shrink the files"
                )
        return n_threads, n_threads * decoding


@dataclass(frozen=True)
class Scene:
    """Views by split ("train", "test", ...), and the scene's up axis."""

    name: str
    format: str
    views: dict[str, Views]
    up: tuple[float, float, float]  # world axis that points up

    def split(self, name: str) -> Views:
        """Views of one split; raises SceneError if the scene has none."""
        if name not in self.views:
            raise SceneError(f"scene {self.name} has no split {name!r}; it has {', '.join(self.views)}")
        return self.views[name]
