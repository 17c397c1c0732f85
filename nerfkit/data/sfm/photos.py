# SPDX-License-Identifier: Apache-2.0
"""Photos in a folder: which there are, which share a lens, and which pairs of them may show the same."""

import posixpath
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from nerfkit.data.images.pixels import FORMATS, image_header, thinned_image
from nerfkit.data.readers.folders import list_images, natural_key
from nerfkit.errors import SceneError
from nerfkit.safe_io import first_of, printable

Report = Callable[[str], None]

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
OTHERS = (".heic", ".heif", ".tif", ".tiff", ".bmp", ".gif", ".avif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".exr")
NOT_PHOTOS = re.compile(r"masks?|depths?|normals?|sparse|dense|images_[0-9]+")  # sub-folders
MAPS = re.compile(r"(.*[._-])?(masks?|depths?|disparity|normals?|conf|confidence)([._-].*)?", re.I)  # stems
EXHAUSTIVE = 120  # photos: up to here every pair is matched
OVERLAP = 10  # neighbours of each photo of a sequence, and as many powers of two
STEP = 30  # between the numbers of neighbours in a sequence, at most
ORDERED = 0.9  # share of neighbours that make a sequence
MODEL, EXIF_IFD, FOCAL, FOCAL_35MM = 272, 0x8769, 37386, 41989  # tags of EXIF
GPANO = re.compile(rb"GPano:(\w+)(?:\s*=\s*[\"']|>)\s*(\w+)")  # of XMP: what files say of a panorama
SIDES = b"WidthPixels", b"HeightPixels"
WHOLE, PART = "panorama", "part of a panorama"
LOOKED_AT = 5  # photos of a lens, whose edges tell whether they are panoramas
POLE, SEAM = 0.3, 2.0  # steps along the first and last row, and across the seam, in the mean one
VARIED = 0.25  # deviation along the seam, in that of the photo


@dataclass(frozen=True)
class Photo:
    name: str  # in its folder, with / between sub-folders
    bytes: int
    lens: tuple  # what photos of one lens have in common: width and height, upright, and what EXIF says of it
    is_turned: bool  # the stored pixels are not upright
    is_map: bool  # of depth, by 16 bits of gray, or by its name of that or something else
    says: str = ""  # that its file says it is: WHOLE or PART
    is_panorama: bool = False  # of all directions, columns being longitudes and rows latitudes


def image_folder(folder: Path) -> Path:
    return folder / "images" if (folder / "images").is_dir() else folder


def find_photos(folder: Path, report: Report) -> list[Photo]:
    """Headers of the photos in `folder` and its sub-folders, sorted naturally; raises SceneError if < 3."""
    names, others, left_out = [], Counter(), {}
    for name in list_images(folder, (*SUFFIXES, *OTHERS)):
        suffix, places = posixpath.splitext(name)[1].lower(), name.split("/")[:-1]
        if aside := next((depth for depth, place in enumerate(places, 1) if NOT_PHOTOS.fullmatch(place)), 0):
            left_out.setdefault("/".join(places[:aside]))
        elif suffix in SUFFIXES:
            names.append(name)
        else:
            others[suffix] += 1
    for place in left_out:
        report(f"note: the folder {printable(folder / place)} is not searched for photos")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
    unread = f"files that are not read as photos (convert them to JPEG or PNG): {kinds}"
    if others:
        report(f"note: {unread}")
    found = [read_header(folder, name) for name in sorted(names, key=natural_key)]
    maps = [photo.name for photo in found if photo.is_map]
    if 0 < len(maps) < len(found):
        found = [photo for photo in found if not photo.is_map]
        report(f"note: {len(maps)} masks or maps of depth are not used as photos (the first: {printable(maps[0])})")
    if parts := [photo.name for photo in found if photo.says == PART]:
        found = [photo for photo in found if photo.says != PART]
        report(f"note: {len(parts)} parts of panoramas, as their files say, are left out ({first_of(parts, 3)})")
    if len(found) < 3:
        too_few = f"'{printable(folder)}' holds {len(found)} photos, but camera poses need at least 3; add photos"
        raise SceneError(f"{too_few}{f'; there are {unread}' if others else ''}")
    return with_panoramas(folder, found, report)


def with_panoramas(folder: Path, found: list[Photo], report: Report) -> list[Photo]:
    """Those photos, with the panoramas marked: of twice the height, and said to be some, or alike at poles and seam."""
    wide = [photo for photo in found if abs(photo.lens[0] - 2 * photo.lens[1]) <= 2 * (photo.says == WHOLE)]
    whole: set[tuple] = {photo.lens for photo in wide if photo.says == WHOLE}
    for lens in {photo.lens for photo in wide} - whole:
        some = [photo for photo in wide if photo.lens == lens]
        votes = [is_all_around(folder / photo.name) for photo in some[:: -(-len(some) // LOOKED_AT)]]
        whole |= {lens} if 2 * sum(votes) > len(votes) else set()
    marked = [replace(photo, is_panorama=photo.lens in whole) for photo in found]
    if count := sum(photo.is_panorama for photo in marked):
        report(f"note: {count} of {len(found)} photos are panoramas of all directions, and taken as such")
    if count < len(wide):
        report(
            f"note: {len(wide) - count} photos are twice as wide as high, but their sides do not meet as those of "
            "panoramas do: they are taken as ordinary ones"
        )
    return marked


def said_of_panorama(xmp: bytes) -> str:
    """WHOLE or PART if Google's keys of panoramas say so, else nothing."""
    said = dict(GPANO.findall(xmp))
    if said.get(b"ProjectionType") != b"equirectangular":
        return PART if said else ""
    sizes = [(said.get(b"CroppedAreaImage" + side), said.get(b"FullPano" + side)) for side in SIDES]
    return WHOLE if all(cropped == full or None in (cropped, full) for cropped, full in sizes) else PART


def is_all_around(file: Path) -> bool:
    """Whether a photo is drawn out into one point along either edge above and below, and goes on from right to left."""
    gray = thinned_image(file, image_header(file))[0][..., :3].mean(-1)  # [H, W]
    steps = np.abs(np.diff(gray, axis=1, append=gray[:, :1]))  # to the next column
    poles, sides = steps[[0, -1]].mean(1), gray[:, [0, -1]].std(0)
    goes_on = steps[:, -1].mean() < SEAM * steps.mean() and (sides > VARIED * gray.std()).all()
    return bool(goes_on and (poles < POLE * steps.mean()).all())


def choose_pairs(names: list[str], is_video: bool) -> list[tuple[int, int]]:
    """Which of naturally sorted names to match: neighbours near and far of a video or a long sequence, or else all."""
    if not (is_video or (len(names) > EXHAUSTIVE and counts_up(names))):
        return list(combinations(range(len(names)), 2))
    steps = sorted({*range(1, OVERLAP + 1), *(2**power for power in range(OVERLAP))})
    return [(i, i + step) for i in range(len(names)) for step in steps if i + step < len(names)]


def counts_up(names: list[str]) -> bool:
    parts = [re.fullmatch(r"(.*?)([0-9]+)([^0-9]*)", name) for name in names]
    pairs = [(one, two) for one, two in pairwise(parts) if one and two and (one[1], one[3]) == (two[1], two[3])]
    return sum(int(two[2]) - int(one[2]) <= STEP for one, two in pairs) >= ORDERED * (len(names) - 1)


def save_upright(file: Path, to: Path) -> None:
    """Save a photo as COLMAP reads it: upright, as JPEG with the rest of its EXIF if it is one, or else as PNG."""
    with Image.open(file, formats=FORMATS) as image:
        upright = ImageOps.exif_transpose(image)
        if image.format in ("JPEG", "MPO"):
            upright.save(to, "JPEG", quality=97, subsampling=0, exif=upright.getexif())
        else:
            upright.convert("RGB").save(to, "PNG", compress_level=1)


def read_header(folder: Path, name: str) -> Photo:
    """The header of one photo; raises SceneError if it could not be trained on."""
    file = folder / name
    if not name.isprintable():
        raise SceneError(f"image {printable(file)} has a name with characters that cannot be printed; rename it")
    header = image_header(file)
    lens, says = [header.width, header.height], ""
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.format != "PNG" or "exif" in image.info:  # or else Pillow decodes it
                says = said_of_panorama(image.info.get("xmp", b""))
                exif = image.getexif()
                details = exif.get_ifd(EXIF_IFD)
                values = exif.get(MODEL), details.get(FOCAL), details.get(FOCAL_35MM)
                lens += [str(value) for value in values if value]
    except Exception:  # Pillow raises nearly anything for a broken EXIF: the photo counts as one without
        pass
    is_map = header.bits == 16 or MAPS.fullmatch(file.stem) is not None
    return Photo(name, file.stat().st_size, tuple(lens), header.turn != 1, is_map, says)
