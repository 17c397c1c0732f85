# SPDX-License-Identifier: Apache-2.0
"""NeRF-synthetic (Blender) scenes: `transforms_{train,val,test}.json` and the images that they name.

World z is up. Images are RGB or RGBA with straight alpha, sRGB; their names may come without extension.
"""

from __future__ import annotations

import os
import reprlib
from pathlib import Path

from nerfkit.data.cameras import Cameras
from nerfkit.data.pixels import ImageHeader, image_header
from nerfkit.data.readers.reader import Reader
from nerfkit.data.readers.transforms import parse_cameras, read_json
from nerfkit.data.scene import Scene, Views
from nerfkit.errors import SceneError
from nerfkit.reading import native_name, shown

SPLITS = ("train", "val", "test")
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp")
SIDE_LIMIT = 2**16  # pixels of a side after data.downscale


def _recognises(folder: Path) -> bool:
    return any(os.path.lexists(folder / f"transforms_{split}.json") for split in SPLITS)


def _read(folder: Path, downscale: float) -> Scene:
    files = {split: folder / f"transforms_{split}.json" for split in SPLITS}
    views = {split: _read_split(file, downscale) for split, file in files.items() if os.path.lexists(file)}
    if "train" not in views:
        raise SceneError(f"{shown(files['train'])} is missing")
    return Scene(folder.resolve().name, READER.name, views, up=(0.0, 0.0, 1.0))


def _read_split(file: Path, downscale: float) -> Views:
    content = read_json(file)
    paths = [_find_image(frame, file, index) for index, frame in enumerate(content["frames"])]
    _check_distinct(paths, file)
    header = _common_header(paths)
    cameras = parse_cameras(content, file, header.width, header.height)
    return Views(_downscaled(cameras, downscale), paths, header)


def _find_image(frame: dict, file: Path, index: int) -> Path:
    """The file of a frame: as it is named, or with the first known extension that exists."""
    where = f"{shown(file)}: frame {index}"
    if "file_path" not in frame:
        raise SceneError(f"{where}: key 'file_path' is missing")
    name = frame["file_path"]
    if not isinstance(name, str) or not name:
        raise SceneError(f"{where}: 'file_path' must be the name of an image, got {reprlib.repr(name)}")
    try:
        path = os.path.join(file.parent, native_name(name))
    except ValueError:
        raise SceneError(f"{where}: 'file_path' {shown(name)} cannot be the name of a file") from None
    stem, extension = os.path.splitext(path)
    if extension.lower() not in EXTENSIONS:
        stem = path
    elif os.path.exists(path):
        return Path(path)
    for candidate in (*(stem + known for known in EXTENSIONS), path):
        if os.path.exists(candidate):
            return Path(candidate)
    raise SceneError(f"{where}: image {shown(path)} is missing (looked for {', '.join(EXTENSIONS)})")


def _check_distinct(paths: list[Path], file: Path) -> None:
    """Raise SceneError if two frames have one image."""
    first: dict[Path, int] = {}
    for index, path in enumerate(paths):
        before = first.setdefault(path.resolve(), index)
        if before != index:
            raise SceneError(
                f"{shown(file)}: frames {before} and {index} are both of image {shown(path)}; leave out one of them"
            )


def _common_header(paths: list[Path]) -> ImageHeader:
    """The header of all images, alpha if one has it; raises SceneError if one has another size than the first."""
    common = image_header(paths[0])
    for path in paths[1:]:
        header = image_header(path)
        if (header.width, header.height) != (common.width, common.height):
            raise SceneError(
                f"image {shown(path)} is {header.width}x{header.height}, but {shown(paths[0].name)} is "
                f"{common.width}x{common.height}; all images of a split must have one size"
            )
        common = ImageHeader(*map(max, common, header))
    return common


def _downscaled(cameras: Cameras, downscale: float) -> Cameras:
    """The cameras of images whose sides are divided by `downscale`."""
    if downscale == 1:
        return cameras
    sides = cameras.width, cameras.height
    if not downscale > 0 or max(sides) / downscale > SIDE_LIMIT:  # NaN is not above 0
        raise SceneError(
            f"data.downscale must be a number that makes images of at most {SIDE_LIMIT} pixels a side, got {downscale}"
        )
    width, height = (round(side / downscale) for side in sides)
    if min(width, height) < 1:
        raise SceneError(f"data.downscale {downscale:g} leaves nothing of {sides[0]}x{sides[1]} images")
    return cameras.resized(width, height)


READER = Reader("nerf_synthetic", "transforms_train.json", _recognises, _read)
