# SPDX-License-Identifier: Apache-2.0
"""NeRF-synthetic (Blender) scenes: `transforms_{train,val,test}.json` and the pictures that they name.

World z is up. Pictures are RGB or RGBA with straight alpha, sRGB; their names may come without extension.
"""

from __future__ import annotations

from pathlib import Path

from nerfkit.data.pixels import picture_header
from nerfkit.data.readers.reader import Reader
from nerfkit.data.readers.transforms import parse_cameras, read_json
from nerfkit.data.scene import Scene, Views
from nerfkit.errors import SceneError

SPLITS = ("train", "val", "test")
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp")


def _recognises(folder: Path) -> bool:
    return any((folder / f"transforms_{split}.json").exists() for split in SPLITS)


def _read(folder: Path, downscale: float) -> Scene:
    files = {split: folder / f"transforms_{split}.json" for split in SPLITS}
    views = {split: _read_split(file, downscale) for split, file in files.items() if file.exists()}
    if "train" not in views:
        raise SceneError(f"{files['train']} is missing")
    return Scene(folder.resolve().name, READER.name, views, up=(0.0, 0.0, 1.0))


def _read_split(file: Path, downscale: float) -> Views:
    content = read_json(file)
    pictures = []
    for index, frame in enumerate(content["frames"]):
        if "file_path" not in frame:
            raise SceneError(f"{file}: frame {index}: key 'file_path' is missing")
        pictures.append(_find_picture(file.parent / frame["file_path"], f"{file}: frame {index}"))
    width, height, alpha = _common_header(pictures)
    cameras = parse_cameras(content, file, width, height)
    if downscale != 1:
        small = round(width / downscale), round(height / downscale)
        if min(small) < 1:
            raise SceneError(f"data.downscale {downscale:g} leaves nothing of {width}x{height} pictures")
        cameras = cameras.resized(*small)
    return Views(cameras, pictures, channels=4 if alpha else 3)


def _find_picture(path: Path, where: str) -> Path:
    """`path` itself, or with the first known extension that exists."""
    if path.suffix.lower() in EXTENSIONS and path.exists():
        return path
    stem = path.with_suffix("") if path.suffix.lower() in EXTENSIONS else path
    for extension in EXTENSIONS:
        candidate = stem.with_name(stem.name + extension)
        if candidate.exists():
            return candidate
    raise SceneError(f"{where}: picture {stem} is missing (looked for {', '.join(EXTENSIONS)})")


def _common_header(pictures: list[Path]) -> tuple[int, int, bool]:
    """Width, height and alpha of all `pictures`; raises SceneError if one has another size than the first."""
    width, height, alpha = picture_header(pictures[0])
    for picture in pictures[1:]:
        other_width, other_height, other_alpha = picture_header(picture)
        if (other_width, other_height) != (width, height):
            raise SceneError(
                f"picture {picture} is {other_width}x{other_height}, but {pictures[0].name} is {width}x{height}; "
                "all pictures of a split must have one size"
            )
        alpha |= other_alpha
    return width, height, alpha


READER = Reader("nerf_synthetic", "transforms_train.json", _recognises, _read)
