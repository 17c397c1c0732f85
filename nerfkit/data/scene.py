# SPDX-License-Identifier: Apache-2.0
"""Scene: cameras by split, and where their pictures are. A reader in `nerfkit.data.readers` makes it of one format."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from nerfkit.data.cameras import Cameras
from nerfkit.device import free_memory
from nerfkit.errors import SceneError


@dataclass(frozen=True)
class Views:
    """Cameras of one split and where their pictures are."""

    cameras: Cameras
    files: list[Path]
    channels: int  # 4 with alpha, else 3

    @property
    def names(self) -> list[str]:
        """A name for each view: its file's, with a number before it where two files have one name."""
        stems = [file.stem for file in self.files]
        return stems if len(set(stems)) == len(stems) else [f"{i:04d}_{stem}" for i, stem in enumerate(stems)]

    def bytes(self) -> int:
        """Memory that the pictures take."""
        return len(self.files) * self.cameras.height * self.cameras.width * self.channels

    def load(self, report: Callable[[str], None] = print) -> Tensor:
        """All pictures, uint8 [V, H, W, channels], straight alpha, resized to the cameras' size by area."""
        need, free = self.bytes(), free_memory()
        size = f"{self.cameras.width}x{self.cameras.height}"
        report(f"loading {len(self.files)} pictures, {size}: {need / 2**20:.0f} MB in memory")
        if free is not None and need > free:
            raise SceneError(
                f"the pictures need {need / 2**30:.1f} GB, {free / 2**30:.1f} GB are free; raise data.downscale"
            )
        images = torch.empty(len(self.files), self.cameras.height, self.cameras.width, self.channels, dtype=torch.uint8)

        def fill(index: int) -> None:
            images[index] = torch.from_numpy(self._read(self.files[index]))

        with ThreadPoolExecutor() as pool:
            for _ in tqdm(pool.map(fill, range(len(self.files))), total=len(self.files), desc="pictures", leave=False):
                pass
        return images

    def _read(self, file: Path) -> np.ndarray:
        try:
            with Image.open(file) as image:
                picture = image.convert("RGBA" if self.channels == 4 else "RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise SceneError(f"picture {file} cannot be read, is it truncated? ({error})") from None
        if picture.size != (self.cameras.width, self.cameras.height):
            # Pillow averages RGBA with colors weighted by alpha.
            picture = picture.resize((self.cameras.width, self.cameras.height), Image.Resampling.BOX)
        return np.array(picture)


@dataclass(frozen=True)
class Scene:
    """Views by split ("train", "test", ...), and the box that holds the scene."""

    name: str
    format: str
    views: dict[str, Views]
    up: tuple[float, float, float]  # world axis that points up

    def split(self, name: str) -> Views:
        """Views of one split; raises SceneError if the scene has none."""
        if name not in self.views:
            raise SceneError(f"scene {self.name} has no split {name!r}; it has {', '.join(self.views)}")
        return self.views[name]
