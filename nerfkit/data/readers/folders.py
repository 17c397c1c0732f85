# SPDX-License-Identifier: Apache-2.0
"""Files of images and masks in the folders of a capture."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from nerfkit.data.capture import Capture, DepthFile, notes_of
from nerfkit.errors import SceneError
from nerfkit.safe_io import first_of, native_name, printable

IMAGE_EXTENSIONS = frozenset(".png .jpg .jpeg .webp .tif .tiff .bmp .heic .heif .avif .exr .jp2 .ppm".split())
IMAGE_FOLDERS = ("images", "images_2", "images_4", "images_8")  # the original, and its usual reductions
MASKS = "masks"
DEPTHS = ("depth", "depths", "keyframes/depth", "stereo/depth_maps")
CONFIDENCES = ("confidence", "conf")  # beside those
WITHIN = re.compile(r"(.*/)?(corrected_)?(images?(_\d+)?|rgb|color)/")  # the folder of an image, in its name
MEASURED = (".png", ".exr", ".npy", ".npz")  # endings of files that hold lengths
STEREO = ".geometric.bin"  # not photometric, to which no other view agrees


def list_images(folder: Path, extensions: Iterable[str] = IMAGE_EXTENSIONS) -> list[str]:
    """Names of the images below `folder`, / between folders, sorted; hidden files and folders are left out."""
    names: list[str] = []
    seen: set[str] = set()  # folders, which links may lead back to
    walk = os.walk(folder, onerror=_cannot_list, followlinks=True) if os.path.isdir(folder) else ()
    for place, folders, files in walk:
        real, inner = os.path.realpath(place), os.path.relpath(place, folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        images = (name for name in files if os.path.splitext(name)[1].lower() in extensions)
        names += [posixpath.normpath(f"{inner}/{name}") for name in images if not name.startswith(".")]
    return sorted(names)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A key to sort by that has 2 before 10.

    >>> sorted(["b2", "b10", "a/3"], key=natural_key)
    ['a/3', 'b2', 'b10']
    """
    parts = re.split(r"([0-9]+)", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts] + [(0, 0, name)]


def _cannot_list(problem: OSError) -> None:
    raise SceneError(f"cannot list {printable(problem.filename)}: {problem.strerror}")


def first_there(folder: Path, names: Iterable[str]) -> Path | None:
    return next((folder / name for name in names if os.path.lexists(folder / name)), None)


def nearest_of(
    missing: Iterable[Path], others: Collection[Path], find: Callable[[Path], Path | None]
) -> tuple[dict[Path, Path], list[str]]:
    """What `find` gives for files that are missing, if it is neither one of all the `others` nor given twice; notes."""
    near = {file: found for file in missing if (found := find(file)) is not None}
    counts = Counter([*others, *near.values()])
    near = {file: found for file, found in near.items() if counts[found] == 1}
    first = [f"{printable(file)} is {printable(found)}" for file, found in near.items()][:1]
    what = f"{len(near)} of {len(others)} images are there under other names, and are taken"
    return near, [f"{what} (the first: {name})" for name in first]


def places_of(folder: Path) -> list[Path]:
    """Where the files of a capture may be that were named on another computer."""
    return [folder, *(folder / name for name in IMAGE_FOLDERS if os.path.isdir(folder / name))]


def beside(file: Path) -> str:
    """The end of a message on a missing file: where it leads as a link, or which images are near where it should be."""
    if file.is_symlink():
        return f"; {printable(file.name)} is a link to {printable(os.readlink(file))}, which is not there"
    place = next(filter(os.path.isdir, file.parents), None)
    for pattern in ("*", "*/*") if place else ():
        files = [file for file in place.glob(pattern) if file.suffix.lower() in IMAGE_EXTENSIONS]
        if files:
            names = first_of(file.relative_to(place).as_posix() for file in files)
            return f"; {printable(place)} has {len(files)} images ({names})"
    return ""


def find_masks(
    folder: Path, names: Iterable[str], place: str = MASKS, endings: Iterable[str] = IMAGE_EXTENSIONS
) -> tuple[dict[str, Path], list[str]]:
    """Masks in `folder`/masks of the images `names`, and notes of masks that are missing or nobody's.

    The mask of a/b.jpg is a/b.jpg, a/b.jpg.png, or a/b with any extension of an image: the first that is there.
    """
    masks, names = folder / place, set(names)
    files = list_images(masks, endings)
    if not files:
        return {}, [f"{printable(masks)} holds no images"] if os.path.isdir(masks) else []
    by_name = {posixpath.splitext(file)[0]: file for file in reversed(files)} | {file: file for file in files}
    keys = {name: native_name(name) for name in names}
    there = {name: by_name.get(key) or by_name.get(posixpath.splitext(key)[0]) for name, key in keys.items()}
    found = {name: file for name, file in there.items() if file}
    notes = []
    if without := names - found.keys():
        notes.append(f"{len(without)} of {len(names)} images have no file in {place} ({first_of(without)})")
    if unused := set(files) - set(found.values()):
        notes.append(f"{len(unused)} of {len(files)} files in {place} belong to no image ({first_of(unused)})")
    return {name: masks / file for name, file in found.items()}, notes


def with_depth(folder: Path, capture: Capture) -> Capture:
    """The capture with the depth and its confidence that lie beside its images, where no key names any depth."""
    files, notes = {image.name: image.depth for image in capture.images if image.depth is not None}, []
    if not files and (place := first_there(folder, DEPTHS)):
        ending = STEREO if place.name == "depth_maps" else ""
        inner = {image.name: WITHIN.sub("", image.name) + ending for image in capture.images}
        found, notes = find_masks(place.parent, inner.values(), place.name, (".bin",) if ending else MEASURED)
        notes = [] if ending else notes  # files of the others are nobody's
        files = {name: DepthFile(found[key]) for name, key in inner.items() if key in found}
    found = {name: depth._replace(confidence=_confidence(folder, depth.file)) for name, depth in files.items()}
    images = [replace(image, depth=found.get(image.name)) for image in capture.images]
    return replace(capture, images=images, notes=notes_of(*capture.notes, *notes))


def _confidence(folder: Path, file: Path) -> Path | None:
    """The confidence of a file of depth: below a folder beside one that it is in, as it is below that."""
    within = [above for above in file.parents if folder in above.parents] or [file.parent]
    inner = [(above.parent, file.relative_to(above).with_suffix(ending)) for above in within for ending in MEASURED]
    return next((at / c / name for at, name in inner for c in CONFIDENCES if os.path.lexists(at / c / name)), None)
