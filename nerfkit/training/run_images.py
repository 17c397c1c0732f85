# SPDX-License-Identifier: Apache-2.0
"""The training images in a run folder, of a model that renders from them: lossless WebP, as they were trained.

images/00000.webp         pixels of a view, with its alpha
images/00000.mask.webp    white where a pixel does not count; where some of the images have a mask
"""

from __future__ import annotations

import io
from os.path import exists
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from nerfkit.data.cameras import Cameras
from nerfkit.data.pixels import image_header, read_image
from nerfkit.data.pool import ImagePool
from nerfkit.errors import RunError, SceneError
from nerfkit.files import OwnFolder
from nerfkit.reading import shown

FOLDER = "images"
LARGEST_SIDE = 16383  # pixels, of WebP


def save_images(folder: OwnFolder, images: ImagePool) -> None:
    """Write those of the images that are not in the run folder yet."""
    child = folder.child(FOLDER, "images")
    for view in range(len(images)):
        if max(images.sizes[view]) > LARGEST_SIDE:
            raise RunError(f"images of more than {LARGEST_SIDE} pixels a side are not kept; raise data.downscale")
        for name, pixels in _files(images, view).items():
            if not child.owns(name):
                child.write(name, _webp(pixels))


def kept_bytes(folder: Path) -> int:
    """Size of the images in a run folder; 0 where there are none."""
    return sum(file.stat().st_size for file in (folder / FOLDER).glob("*.webp"))


def read_images(folder: Path, cameras: Cameras) -> ImagePool:
    """The images of a run's training views; raises RunError that names one that is missing or not what was written."""
    sizes = cameras.sizes()
    colors, masks = [], []
    has_masks = exists(folder / FOLDER / _name(0, ".mask"))
    for view, size in enumerate(sizes):
        colors.append(_read(folder, _name(view), size))
        if has_masks:
            masks.append(_read(folder, _name(view, ".mask"), size)[:, 0] > 127)
    if len({pixels.shape[1] for pixels in colors}) > 1:  # a WebP with alpha that is opaque everywhere may lose it
        colors = [_with_alpha(pixels) for pixels in colors]
    ends = torch.tensor([width * height for width, height in sizes]).cumsum(0)
    first = torch.cat([ends.new_zeros(1), ends[:-1]])
    return ImagePool(torch.cat(colors), first, tuple(sizes), torch.cat(masks) if has_masks else None)


def check_images(folder: Path, images: ImagePool) -> None:
    """Raise RunError if an image in the run folder is not the one that training would go on with."""
    for view in range(len(images)):
        for name, pixels in _files(images, view).items():
            kept = _read(folder, name, images.sizes[view])
            if not torch.equal(_with_alpha(kept), _with_alpha(pixels.cpu().flatten(0, 1))):
                raise RunError(
                    f"cannot resume {folder}: training view {view} has other pixels than {FOLDER}/{name} in the run; "
                    "give the scene's images as they were, or train a new run"
                )


def _with_alpha(pixels: Tensor) -> Tensor:
    """Pixels [N, 4] of pixels [N, 3 or 4]; what has no alpha is opaque."""
    return pixels if pixels.shape[1] == 4 else torch.cat([pixels, pixels.new_full((len(pixels), 1), 255)], dim=1)


def _files(images: ImagePool, view: int) -> dict[str, Tensor]:
    """Pixels [H, W, 3 or 4] of the files of one view, by name."""
    mask = images.mask(view)
    files = {_name(view): images.image(view)}
    return files if mask is None else files | {_name(view, ".mask"): (mask[..., None] * 255).byte().expand(-1, -1, 3)}


def _name(view: int, kind: str = "") -> str:
    return f"{view:05d}{kind}.webp"


def _webp(pixels: Tensor) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels.cpu().contiguous().numpy())
    image.save(buffer, "WEBP", lossless=True, exact=True, quality=50)  # exact: colors where alpha is 0, too
    return buffer.getvalue()


def _read(folder: Path, name: str, size: tuple[int, int]) -> Tensor:
    """Pixels [H * W, 3 or 4] of one file."""
    file = folder / FOLDER / name
    if not exists(file):
        raise RunError(
            f"{shown(file)} is missing: this run renders from its training images; put it back, or train a new run"
        )
    try:
        header = image_header(file)
        if (header.width, header.height) != size:
            got, wanted = f"{header.width}x{header.height}", "{}x{}".format(*size)
            raise RunError(f"{shown(file)} is {got}, but its camera is of {wanted} images; was it changed?")
        pixels = torch.empty(size[1], size[0], 4 if header.has_alpha else 3, dtype=torch.uint8)
        read_image(file, header, pixels.numpy())
    except SceneError as error:
        raise RunError(f"the run cannot be rendered without its training images: {error}") from None
    return pixels.flatten(0, 1)
