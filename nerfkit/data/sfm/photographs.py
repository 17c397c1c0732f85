# SPDX-License-Identifier: Apache-2.0
"""Photographs in a folder: which there are, whether they share a lens, and which pairs of them may show the same."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from nerfkit.data.pixels import FILE_LIMIT, FORMATS, image_header, problem_with
from nerfkit.errors import SceneError
from nerfkit.reading import open_regular, shown

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
OTHERS = (".heic", ".heif", ".tif", ".tiff", ".bmp", ".gif", ".avif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".exr")
NOT_PHOTOGRAPHS = re.compile(r"(masks?|depths?|normals?|sparse|dense|images_[0-9]+)")  # sub-folders
EXHAUSTIVE = 120  # photographs: up to here every pair is matched
OVERLAP = 10  # neighbours of each photograph of a sequence, and as many powers of two
STEP = 30  # between the numbers of neighbours in a sequence, at most
ORDERED = 0.9  # share of neighbours that make a sequence
MODEL, EXIF_IFD, FOCAL, FOCAL_35MM = 272, 0x8769, 37386, 41989  # tags of EXIF
MANY = 20  # photographs of one lens, from where a model of more parameters is well determined


@dataclass(frozen=True)
class Photograph:
    """A photograph's header."""

    name: str  # in its folder, with / between sub-folders
    bytes: int
    width: int  # pixels, turned as EXIF says
    height: int
    camera: tuple[str, str, str]  # model, focal length and that of a 35 mm camera, as EXIF states them; "" if not
    is_turned: bool = False  # the stored pixels are not upright

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def lens(self) -> tuple:
        """What photographs of one lens have in common."""
        return self.width, self.height, self.camera


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A key to sort by that has 2 before 10.

    >>> sorted(["b2", "b10", "a/3"], key=natural_key)
    ['a/3', 'b2', 'b10']
    """
    parts = re.split(r"([0-9]+)", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts] + [(0, 0, name)]


def image_folder(folder: Path) -> Path:
    """Where the photographs of a given folder are: in its sub-folder images if it has one."""
    return folder / "images" if (folder / "images").is_dir() else folder


def find_photographs(folder: Path, report: Callable[[str], None]) -> list[Photograph]:
    """Headers of the photographs in `folder` and its sub-folders, sorted naturally; raises SceneError if < 3."""
    names, others, left_out = _walk(folder)
    for name in sorted(left_out):
        report(f"note: the sub-folder {shown(name)} is not searched for photographs")
    if others:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
        report(f"note: files that are not read as photographs (convert them to JPEG or PNG): {kinds}")
    if len(names) < 3:
        raise SceneError(
            f"{shown(folder)} holds {len(names)} photographs (PNG, JPEG or WebP), but camera poses need at least 3"
        )
    return [read_header(folder, name) for name in sorted(names, key=natural_key)]


def read_header(folder: Path, name: str) -> Photograph:
    """The header of one photograph; raises SceneError if it could not be trained on."""
    path = folder / name
    if not name.isprintable():
        raise SceneError(f"image {shown(path)} has a name with characters that cannot be printed; rename it")
    header = image_header(path)
    return Photograph(name, path.stat().st_size, header.width, header.height, _camera_of(path), header.turn != 1)


def camera_mode(photographs: list[Photograph]) -> str:
    """Who shares a lens: all (SINGLE), those of a folder (PER_FOLDER), or those of one size and camera (PER_LENS)."""
    if len({photo.lens for photo in photographs}) == 1:
        return "SINGLE"
    folders = {photo.folder for photo in photographs}
    if 1 < len(folders) == len({(photo.folder, photo.lens) for photo in photographs}) < len(photographs):
        return "PER_FOLDER"
    return "PER_LENS"


def of_one_lens(photographs: list[Photograph], mode: str) -> list[list[str]]:
    """Names of the photographs that share a lens, by `camera_mode`."""
    key = {"SINGLE": lambda photo: "", "PER_FOLDER": lambda photo: photo.folder, "PER_LENS": lambda photo: photo.lens}
    groups: dict[Any, list[str]] = {}
    for photo in photographs:
        groups.setdefault(key[mode](photo), []).append(photo.name)
    return list(groups.values())


def camera_model(mode: str, count: int) -> str:
    """COLMAP's camera model that so many photographs determine."""
    return "OPENCV" if mode == "SINGLE" and count >= MANY else "SIMPLE_RADIAL"


def is_sequence(names: list[str]) -> bool:
    """Whether naturally sorted names count up, as those of a walk with a camera do."""
    if len(names) < 2:
        return False
    last = [re.fullmatch(r"(.*?)([0-9]+)([^0-9]*)", name) for name in names]
    follows = 0
    for one, two in zip(last, last[1:], strict=False):
        if one and two and (one[1], one[3]) == (two[1], two[3]):
            follows += 0 < int(two[2]) - int(one[2]) <= STEP
    return follows >= ORDERED * (len(names) - 1)


def choose_pairs(names: list[str], is_video: bool) -> list[tuple[str, str]] | None:
    """Pairs to match of naturally sorted names; None means all."""
    if not is_video and (len(names) <= EXHAUSTIVE or not is_sequence(names)):
        return None
    if any(" " in name for name in names):  # COLMAP's lists of pairs have a space between the names
        return None
    steps = sorted({*range(1, OVERLAP + 1), *(2**power for power in range(OVERLAP))})
    return [(names[i], names[i + step]) for i in range(len(names)) for step in steps if i + step < len(names)]


def check_decodable(folder: Path, names: list[str], threads: int) -> None:
    """Decode all pixels, JPEG at an eighth of the size; raises SceneError that names the files that are broken."""
    with ThreadPoolExecutor(threads) as pool:
        broken = [problem for problem in pool.map(lambda name: problem_with(folder / name), names) if problem]
    if broken:
        more = f"; and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise SceneError(f"{'; '.join(broken[:3])}{more}: replace the files or remove them")


def save_upright(file: Path, to: Path) -> None:
    """Save a photograph as COLMAP reads it: upright, as JPEG with the rest of its EXIF if it is one, or else as PNG."""
    with Image.open(file, formats=FORMATS) as image:
        upright = ImageOps.exif_transpose(image)
        if image.format in ("JPEG", "MPO"):
            upright.save(to, "JPEG", quality=97, subsampling=0, exif=upright.getexif())
        else:
            upright.convert("RGB").save(to, "PNG", compress_level=1)


def _walk(folder: Path) -> tuple[list[str], Counter[str], set[str]]:
    """Names of photographs, other image files by kind, and sub-folders that are left out."""
    names, others, left_out = [], Counter(), set()
    for place, folders, files in os.walk(folder, onerror=_refuse):
        inside = Path(place).relative_to(folder).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        skipped = [name for name in folders if name.startswith(".") or NOT_PHOTOGRAPHS.fullmatch(name)]
        left_out |= {prefix + name for name in skipped if not name.startswith(".") and name != "sparse"}
        folders[:] = sorted(set(folders) - set(skipped))
        for name in files:
            suffix = Path(name).suffix.lower()
            if suffix in SUFFIXES and not name.startswith("."):
                names.append(prefix + name)
            elif suffix in OTHERS and not name.startswith("."):
                others[suffix] += 1
    return names, others, left_out


def _refuse(error: OSError) -> None:
    raise SceneError(f"cannot read the folder {shown(error.filename)}: {error.strerror}") from None


def _camera_of(path: Path) -> tuple[str, str, str]:
    """What EXIF says of the camera; a broken EXIF says nothing."""
    with open_regular(path, FILE_LIMIT, "image", SceneError) as file:
        try:
            with Image.open(file, formats=FORMATS) as image:
                if image.format == "PNG" and "exif" not in image.info:  # Pillow would decode it to look further
                    return "", "", ""
                exif = image.getexif()
                details = exif.get_ifd(EXIF_IFD)
                values = exif.get(MODEL), details.get(FOCAL), details.get(FOCAL_35MM)
                return tuple("" if value is None else str(value).strip("\0 ") for value in values)
        except Exception:  # decoders raise nearly anything
            return "", "", ""
