# SPDX-License-Identifier: Apache-2.0
"""Captures as JSON: `transforms.json` of nerfstudio and instant-ngp, and NeRF-synthetic's three files.

Masks are named by `mask_path` (black is ignored), as `dynamic_mask_NAME.png` beside the image NAME (white is ignored),
or with the image's name in a folder `masks` beside the images' folder (black is ignored).
"""

import math
import os
import posixpath
import re
import reprlib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nerfkit import safe_io
from nerfkit.data import ply
from nerfkit.data.capture import Capture, DepthFile, Lines, Points, PosedImage, as_warnings, notes_of
from nerfkit.data.images.pixels import image_header
from nerfkit.data.readers import folders
from nerfkit.data.readers.transforms import cameras_json
from nerfkit.data.readers.transforms.chosen import chosen
from nerfkit.data.readers.transforms.pose_axes import axes_diagnostics
from nerfkit.errors import SceneError
from nerfkit.safe_io import first_of, nearest, printable

MAIN = "transforms.json"
SPLIT_FILES = {f"transforms_{split}.json": split for split in cameras_json.SPLITS}
TRAIN = "transforms_train.json"
DYNAMIC = "dynamic_mask_"
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp")
Z_UP = (0.0, 0.0, 1.0)
DEPTH = {"depth_file_path": "depth_unit_scale_factor", "depth_path": "integer_depth_scale"}  # and keys of units


@dataclass(frozen=True)
class _Frame:
    own: dict[str, Any]  # its values
    content: dict[str, Any]  # the file's
    file: Path
    where: str  # for messages
    name: str
    path: Path
    split: str = ""  # if one of its keys says so


def read(folder: Path) -> Capture:
    """The capture of transforms.json."""
    file, notes = folder / MAIN, []
    content = safe_io.read_json(file, SceneError, "scene file")
    frames = sorted(_frames(content, file, notes), key=lambda frame: frame.name)
    dialect, note = _dialect(content)
    notes.append(note)
    others = sorted(other.name for other in folder.glob("*.json") if other.name not in (MAIN, *SPLIT_FILES))
    if others:
        notes.append(f"{MAIN} is read, and no other JSON file: {printable(', '.join(others))}")
    _check_distinct(frames)
    frames = _with_nearest(frames, folder, notes)
    masks, white_ignores, mask_notes = _find_masks(frames, folder)
    images = _with_depth(_images(frames, masks, dialect == "nerfstudio", notes), frames, folder, notes)
    points, up = _points(content, file, notes), _up(content, file)
    notes += axes_diagnostics(printable(folder), images, points, up or (None if dialect == "transforms" else Z_UP))
    name, splits, notes = folder.resolve().name, _splits(content, file, frames), notes_of(*notes, *mask_notes)
    return Capture(name, "transforms", images, points, up, splits, white_ignores=white_ignores, notes=notes)


def read_synthetic(folder: Path) -> Capture:
    """The capture of `transforms_{train,val,test}.json`, a split each; world z is up."""
    files, notes, frames = [folder / name for name in SPLIT_FILES], [], {}
    for file in (file for file in files if file.name == TRAIN or os.path.lexists(file)):
        content = safe_io.read_json(file, SceneError, "scene file")
        if file.name != TRAIN and isinstance(content, dict) and content.get("frames") == []:
            notes.append(f"{file.name} holds no views")
        else:
            frames[file] = _frames(content, file, notes)
    merged = _with_nearest(_merged_splits(frames, notes), folder, notes)
    images = _images(merged, [None] * len(merged), False, notes)
    notes += axes_diagnostics(printable(folder), images, None, Z_UP)
    splits = {SPLIT_FILES[file.name]: [frame.name for frame in listed] for file, listed in frames.items()}
    for frame in merged:
        if frame.split not in ("", (stated := SPLIT_FILES[frame.file.name])):
            raise SceneError(f"{frame.where}: it says split {frame.split}, the file says {stated}; remove one")
        if cameras_json.is_set(frame.own.get("mask_path", frame.content.get("mask_path"))):
            raise SceneError(f"{frame.where}: 'mask_path' is not supported; put the mask into the images' alpha")
    return Capture(folder.resolve().name, "nerf_synthetic", images, None, Z_UP, splits, notes=notes_of(*notes))


def _dialect(content: dict[str, Any]) -> tuple[str, str]:
    keys = set(content).union(*content["frames"])
    for_nerfstudio = ", ".join(sorted(keys & cameras_json.NERFSTUDIO))
    for_ngp = ", ".join(sorted(keys & cameras_json.INSTANT_NGP))
    if for_nerfstudio:
        but = f", though {for_ngp} would be instant-ngp's" if for_ngp else ""
        return "nerfstudio", f"read as nerfstudio's, because it has {for_nerfstudio}{but}"
    if for_ngp:
        return "instant_ngp", f"read as instant-ngp's, because it has {for_ngp}"
    return "transforms", "no key tells whether the capture is nerfstudio's or instant-ngp's; read as what both share"


def _frames(content: Any, file: Path, notes: Lines) -> list[_Frame]:
    """The frames of a file that count, with the names and paths of their images."""
    frames, text = [], printable(file)
    cameras_json.frames_of(content, text)
    for index, split in chosen(content, file.name, notes).items():
        own = content["frames"][index]
        where = f"{text}: frame {index}"
        path = _path_of(file.parent, own.get("file_path"), "file_path", where)
        there = next(filter(os.path.exists, _candidates(path)), path)
        frames.append(_Frame(own, content, file, where, own["file_path"].replace("\\", "/"), there, split))
    return frames


def _with_nearest(frames: list[_Frame], folder: Path, notes: Lines) -> list[_Frame]:
    """The frames with images of other names in the place of those that are missing, of which there is a note."""

    def find(path: Path) -> Path | None:
        names = [re.split(r"[\\/]", str(candidate))[-1] for candidate in _candidates(path)]
        doubled = [f"{names[0]}{known}" for known in EXTENSIONS] + [names[0].removesuffix(path.suffix)]
        return nearest(path, places, names + [name for name in doubled if name.lower().endswith(EXTENSIONS)])

    places, paths = folders.places_of(folder), [frame.path for frame in frames]
    near, others = folders.nearest_of([path for path in paths if not os.path.exists(path)], paths, find)
    notes += others
    return [replace(frame, path=near.get(frame.path, frame.path)) for frame in frames]


def _candidates(path: Path) -> list[Path]:
    stem, extension = os.path.splitext(path)
    if extension.lower() in EXTENSIONS:
        return [path, *(Path(stem + known) for known in EXTENSIONS)]
    return [*(Path(f"{path}{known}") for known in EXTENSIONS), path]


def _check_distinct(frames: list[_Frame]) -> None:
    first: dict[str, _Frame] = {}
    for frame in frames:
        if (before := first.setdefault(os.path.realpath(frame.path), frame)) is not frame:
            both = f"{before.where} and {frame.where} are both of image {printable(frame.path)}"
            raise SceneError(f"{both}; leave out one of them")


def _images(frames: list[_Frame], masks: list[Path | None], is_nerfstudio: bool, notes: Lines) -> list[PosedImage]:
    images, beaten, angles, faults = [], 0, Counter(), {}
    all_values = [cameras_json.merge_frame_keys(frame.content, frame.own, frame.where) for frame in frames]
    sizes = [_size_of(frame, values) for frame, values in zip(frames, all_values, strict=True)]
    if not any(sizes):
        first = frames[0]
        if os.path.exists(first.path):
            image_header(first.path)  # an image that cannot be read has an error of its own
        missing = f"image {printable(first.path)} is missing, like all others (looked for {', '.join(EXTENSIONS)})"
        raise SceneError(f"{first.where}: keys 'w' and 'h' are missing, and {missing}{folders.beside(first.path)}")
    other = next(filter(None, sizes))
    for frame, values, mask, own_size in zip(frames, all_values, masks, sizes, strict=True):
        size = own_size or other
        try:
            lens = cameras_json.lens_of(values, frame.where, *size, is_nerfstudio)
            pose = cameras_json.pose_of(frame.own.get("transform_matrix"), frame.where)
        except SceneError as error:
            faults[frame.where] = str(error)
            continue
        angles.update(filter(None, [", ".join(cameras_json.beaten_angles(values, frame.where, *size))]))
        beaten += "is_fisheye" in values and values["is_fisheye"] != (lens.model == "OPENCV_FISHEYE")
        images.append(PosedImage(frame.name, frame.path, pose, lens, mask))
    if faults:
        _, *others = (where.rpartition(": ")[2] for where in faults)
        also = f"; {len(others)} more frames cannot be used: {first_of(others)}" if others else ""
        raise SceneError(f"{next(iter(faults.values()))}{also}")
    for keys, count in angles.items():
        notes.append(f"fl_x and fl_y are used; {keys} would be another focal length in {count} frames")
    if beaten:
        notes.append(f"camera_model contradicts is_fisheye in {beaten} of {len(frames)} frames, and was believed")
    notes.append(f"lenses: {', '.join(sorted({image.lens.model for image in images}))}")
    return images


def _find_masks(frames: list[_Frame], folder: Path) -> tuple[list[Path | None], bool, list[str]]:
    """The mask of every frame, if it has one; whether white is ignored; and notes. Refuses instant-ngp's ray files."""
    for frame in frames:
        for name in (f"rays_{frame.path.stem}.dat", f"{frame.path.stem}.alpha{frame.path.suffix}"):
            if os.path.lexists(other := frame.path.with_name(name)):
                advice = "move it away, and give images of a camera with their alpha"
                raise SceneError(f"{frame.where}: {printable(other)} is not supported; {advice}")
    beside = [frame.path.with_name(f"{DYNAMIC}{frame.path.stem}.png") for frame in frames]
    dynamic = [file if os.path.exists(file) else None for file in beside]
    first, notes = next(filter(None, dynamic), None), []
    if any(frame.own.get("mask_path") is not None for frame in frames):
        if first:
            what = f"'mask_path' (black is ignored) and {printable(first)} (white is ignored) are of two kinds"
            raise SceneError(f"{frames[0].where}: {what}; leave one of them")
        found, kind = _named_masks(frames, folder)
    elif first:
        found, kind = dynamic, f"named {DYNAMIC}NAME.png, white is ignored"
    else:
        paths = [frame.path for frame in frames]
        parts = [path.relative_to(folder).parts if folder in path.parents else (path.name,) for path in paths]
        inner = ["/".join(of[1:] or of) for of in parts]  # 0.png of images/0.png
        in_folder, notes = folders.find_masks(folder, inner)
        found, kind = [in_folder.get(name) for name in inner], f"of the folder {folders.MASKS}, black is ignored"
    if there := sum(file is not None for file in found):
        notes = [f"{there} of {len(found)} images have masks {kind}", *notes]
    return found, first is not None, notes


def _named_masks(frames: list[_Frame], folder: Path) -> tuple[list[Path | None], str]:
    for frame in frames:
        if frame.own.get("mask_path") is None:
            where = f"{frame.where}: key 'mask_path' is missing"
            raise SceneError(f"{where}, but other frames have one; give it to all or none")
    named = [_path_of(folder, frame.own["mask_path"], "mask_path", frame.where) for frame in frames]
    near = {file: file for file in named if os.path.isfile(file)}
    find = partial(nearest, folders=folders.places_of(folder))
    near |= folders.nearest_of(set(named) - near.keys(), near, find)[0]
    if not near:
        what = f"'mask_path' names {printable(named[0])}, but neither that nor any other frame's mask is there"
        raise SceneError(f"{frames[0].where}: {what}; put the masks there, or remove the key to use all pixels")
    missing = [f"; missing, first: {printable(file)}" for file in named if file not in near][:1]
    return [near.get(file) for file in named], "of mask_path, black is ignored" + "".join(missing)


def _with_depth(images: list[PosedImage], frames: list[_Frame], folder: Path, notes: Lines) -> list[PosedImage]:
    found, missing = [], []
    for image, frame in zip(images, frames, strict=True):
        values = frame.content | frame.own
        if key := next((key for key in DEPTH if cameras_json.is_set(frame.own.get(key))), None):
            file = _path_of(folder, frame.own[key], key, frame.where)
            units = (cameras_json.number(values, u, frame.where, above=0) for u in DEPTH.values() if u in values)
            if near := nearest(file, folders.places_of(folder)):
                image = replace(image, depth=DepthFile(near, unit=next(units, None)))
            else:
                missing.append(printable(file))
        found.append(image)
    if missing:
        notes += as_warnings([f"{len(missing)} files of depth are missing, the first: {missing[0]}"])
    return found


def _path_of(folder: Path, name: Any, key: str, where: str) -> Path:
    """The path of the file `name`, with either slash between folders, as the value of a key."""
    try:
        if not isinstance(name, str) or not name or "\0" in name:
            raise ValueError
        return Path(os.path.join(folder, safe_io.native_name(name.replace("\\", "/"))))
    except ValueError:
        raise SceneError(f"{where}: '{key}' must be the name of a file, got {reprlib.repr(name)}") from None


def _size_of(frame: _Frame, values: dict[str, Any]) -> tuple[int, int] | None:
    """Width and height of an image as stated, or else as its file has them."""
    if values.keys() & cameras_json.SIZE:
        return cameras_json.size_of(values, frame.where)
    with suppress(SceneError):  # said when its pixels are read
        header = image_header(frame.path)
        return header.width, header.height
    return None


def _points(content: dict[str, Any], file: Path, notes: Lines) -> Points | None:
    if not cameras_json.is_set(name := content.get("ply_file_path")):
        return None
    path = _path_of(file.parent, name, "ply_file_path", printable(file))
    path = nearest(path, [file.parent]) or path
    try:
        points = ply.read_points(path)
    except SceneError as error:
        notes += as_warnings([f"there are no sparse points: {error}"])
        return None
    notes.append(f"{len(points.positions)} sparse points from {printable(path.name)}")
    return points if len(points.positions) else None


def _up(content: dict[str, Any], file: Path) -> tuple[float, float, float] | None:
    """The axis that points up: the key `up`, or z where the poses are said to be oriented."""
    up = content.get("up")
    if up is None:
        return Z_UP if content.get("orientation_override") == "none" else None
    vector = cameras_json.numbers(up, f"{printable(file)}: 'up'", 3).tolist()
    length = math.hypot(*vector)
    if not 1e-6 < length < 1e6:
        raise SceneError(f"{printable(file)}: 'up' must be three numbers, not all zero, got {up}")
    return tuple(value / length for value in vector)


def _splits(content: dict[str, Any], file: Path, frames: list[_Frame]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {}
    known = {posixpath.normpath(frame.name): frame.name for frame in frames}
    split_of: dict[str, str] = {}
    for split in cameras_json.SPLITS:
        names, where = content.get(f"{split}_filenames"), f"{printable(file)}: '{split}_filenames'"
        if names is None:
            continue
        splits[split] = []
        for name in names if isinstance(names, list) else [None]:
            image = known.get(posixpath.normpath(name.replace("\\", "/"))) if isinstance(name, str) else None
            if image is None:
                raise SceneError(
                    f"{where} must be a list of the file_path values of frames, got {printable(repr(name or names))}"
                )
            if (other := split_of.setdefault(image, split)) != split:
                both = f"{where} and '{other}_filenames' both list {printable(image)}"
                raise SceneError(f"{both}; an image can be of one split only")
    if of_frames := {frame.name: frame.split for frame in frames if frame.split}:
        if splits:
            raise SceneError(f"{printable(file)}: splits are given twice, in frames and in lists; leave out one")
        split_of, splits = of_frames, {split: [] for split in cameras_json.SPLITS if split in of_frames.values()}
    for name, split in sorted(split_of.items()):
        splits[split].append(name)
    return splits


def _merged_splits(frames: dict[Path, list[_Frame]], notes: Lines) -> list[_Frame]:
    """The frames of all splits by name; val and test may share images, whose frames have to be equal."""
    merged: dict[str, _Frame] = {}
    listed = [frame for of_file in frames.values() for frame in of_file]
    for frame in listed:
        before = merged.setdefault(frame.name, frame)
        one, other = ([of.own, *map(of.content.get, cameras_json.OF_FILE)] for of in (before, frame))
        may_share = before.file != frame.file and SPLIT_FILES[before.file.name] != "train" and one == other
        if before is not frame and not may_share:
            raise SceneError(f"{before.where} and {frame.where} are both of {printable(frame.name)}; leave out one")
    if shared := len(listed) - len(merged):
        notes.append(f"val and test share {shared} images")
    ordered = [merged[name] for name in sorted(merged)]
    _check_distinct(ordered)
    return ordered
