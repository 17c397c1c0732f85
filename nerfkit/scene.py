# SPDX-License-Identifier: Apache-2.0
"""Pictures and cameras on disk -> Scene.

A reader in `nerfkit.readers` turns one format into a Scene of lazily loaded Views; nothing else knows of formats.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

from nerfkit.cameras import Cameras
from nerfkit.errors import SceneError

BACKGROUNDS = {"white": 1.0, "black": 0.0}


@dataclass(frozen=True)
class Views:
    """Cameras of one split and where their pictures are."""

    cameras: Cameras
    files: list[Path]
    channels: int  # 4 with alpha, else 3

    def bytes(self) -> int:
        """Memory that the pictures take."""
        return len(self.files) * self.cameras.height * self.cameras.width * self.channels

    def load(self, report: Callable[[str], None] = print) -> Tensor:
        """All pictures, uint8 [V, H, W, channels], straight alpha, resized to the cameras' size by area."""
        need, free = self.bytes(), _free_memory()
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


def load_scene(path: str, format: str = "auto", downscale: float = 1.0) -> Scene:
    """Read cameras and picture headers of the scene in folder `path`."""
    from nerfkit.readers import find_reader

    if not path:
        raise SceneError("no scene given: set data.path to the folder of a scene")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise SceneError(f"data.path: {folder} is not a folder")
    return find_reader(folder, format).read(folder, downscale)


def picture_header(file: Path) -> tuple[int, int, bool]:
    """Width, height and whether there is alpha; raises SceneError if the file is missing or no picture."""
    try:
        with Image.open(file) as image:
            alpha = "A" in image.getbands() or "transparency" in image.info
            return *image.size, alpha
    except FileNotFoundError:
        raise SceneError(f"picture {file} is missing") from None
    except (UnidentifiedImageError, OSError) as error:
        raise SceneError(f"picture {file} cannot be read: {error}") from None


def check_pose(pose: np.ndarray, where: str) -> None:
    """Require a rigid camera-to-world matrix; raises SceneError naming `where`."""
    if pose.shape not in ((4, 4), (3, 4)):
        raise SceneError(f"{where}: transform_matrix must be 4x4 or 3x4, got {'x'.join(map(str, pose.shape))}")
    if not np.isfinite(pose).all():
        raise SceneError(f"{where}: transform_matrix holds a value that is not finite")
    rotation = pose[:3, :3]
    determinant = float(np.linalg.det(rotation))
    if abs(determinant - 1) > 1e-3:
        cause = "the axes are mirrored" if determinant < 0 else "the matrix is scaled"
        raise SceneError(f"{where}: the rotation has determinant {determinant:.4g} instead of 1: {cause}")
    skew = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
    if skew > 1e-3:
        raise SceneError(f"{where}: the rotation's axes are not orthogonal (off by {skew:.3g})")


def blend(pixels: Tensor, background: Tensor) -> Tensor:
    """uint8 pixels [..., 3 or 4] over `background` [..., 3], float32 in [0, 1]."""
    color = pixels.float() / 255
    if pixels.shape[-1] == 3:
        return color
    alpha = color[..., 3:]
    return color[..., :3] * alpha + background * (1 - alpha)


def _free_memory() -> int | None:
    """Bytes of memory that can be had, caches of files included, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
