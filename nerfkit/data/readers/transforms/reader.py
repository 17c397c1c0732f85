# SPDX-License-Identifier: Apache-2.0
"""Captures as JSON: `transforms.json` of nerfstudio and instant-ngp, and NeRF-synthetic's three files.

The dialects differ in what k3 and k4, masks and further files mean; the keys that are there tell them apart. Images
that are missing are listed as well.
"""

from __future__ import annotations

import math
import os
import posixpath
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nerfkit import reading
from nerfkit.data import ply
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.images.pixels import ImageHeader, image_header
from nerfkit.data.notes import Note, notes_of
from nerfkit.data.readers.transforms.cameras_json import (
    INSTANT_NGP,
    NERFSTUDIO,
    SIZE,
    SPLITS,
    frames_of,
    is_number,
    is_set,
    lens_of,
    pose_of,
    size_of,
    unused_keys,
    values_of_frame,
)
from nerfkit.data.readers.transforms.masks import Masks, find_masks, path_of
from nerfkit.data.readers.transforms.pose_axes import doubts_of_axes
from nerfkit.errors import SceneError
from nerfkit.reading import in_any_case, shown

MAIN = "transforms.json"
SPLIT_FILES = {f"transforms_{split}.json": split for split in SPLITS}
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp")
SNIFFED = 2**28  # bytes of a JSON file that is looked through for a scene, at most
MARKS = (b'"frames"', b'"transform_matrix"', b'"file_path"')
REFUSED = {  # keys that change the pixels, with advice
    "fisheye_crop_radius": "give masks of the pixels outside of the circle instead",
    **dict.fromkeys(("white_transparent", "black_transparent"), "put the transparency into the images' alpha"),
    "masks": "put the mask into the images' alpha, or remove the key",
}
Z_UP = (0.0, 0.0, 1.0)
Contents = dict[Path, dict[str, Any]]  # what JSON files hold, by path


@dataclass(frozen=True)
class _Frame:
    """A frame of one of the files."""

    own: dict[str, Any]  # its values
    content: dict[str, Any]  # the file's
    file: Path
    where: str  # for messages
    name: str
    path: Path


def recognises(folder: Path) -> bool:
    """Whether there is a transforms.json, or another JSON file of posed images but NeRF-synthetic's."""
    return os.path.lexists(folder / MAIN) or any(file.name not in SPLIT_FILES for file in _scene_files(folder))


def is_synthetic(folder: Path) -> bool:
    """Whether there is one of NeRF-synthetic's files."""
    return any(os.path.lexists(folder / name) for name in SPLIT_FILES)


def read(folder: Path) -> Capture:
    """The capture of transforms.json, or of all JSON files of posed images where instant-ngp would merge them."""
    contents, notes = _contents(folder)
    dialect, note = _dialect(contents)
    notes.append(note)
    frames = [frame for file, content in contents.items() for frame in _frames(content, file)]
    frames.sort(key=lambda frame: frame.name)
    _check_distinct(frames)
    masks = find_masks([(frame.own, frame.where, frame.path) for frame in frames], folder)
    images = _images(frames, masks, dialect == "nerfstudio", notes)
    points = _points(contents, notes)
    up = _up(contents)
    notes += _doubts_of_axes(folder, images, points, up or (None if dialect == "transforms" else Z_UP))
    return Capture(
        name=folder.resolve().name,
        format="transforms",
        images=images,
        points=points,
        up=up,
        splits=_listed_splits(contents, images),
        white_ignores=masks.white_ignores,
        notes=notes_of(*notes, *masks.notes, *_unused_notes(contents)),
    )


def read_synthetic(folder: Path) -> Capture:
    """The capture of `transforms_{train,val,test}.json`, a split each; world z is up."""
    contents = {folder / name: _content(folder / name) for name in SPLIT_FILES if os.path.lexists(folder / name)}
    if (train := folder / "transforms_train.json") not in contents:
        raise SceneError(f"{shown(train)} is missing")
    notes: list[str | Note] = []
    frames = {file: _frames(content, file) for file, content in contents.items()}
    for listed in frames.values():
        _check_distinct(listed)
        for frame in listed:
            if is_set(frame.own.get("mask_path", frame.content.get("mask_path"))):
                raise SceneError(f"{frame.where}: 'mask_path' is not supported; put the mask into the images' alpha")
    merged = _merged_splits(frames, notes)
    images = _images(merged, Masks([None] * len(merged)), False, notes)
    notes += _doubts_of_axes(folder, images, None, Z_UP)
    splits = {SPLIT_FILES[file.name]: [frame.name for frame in listed] for file, listed in frames.items()}
    notes += _unused_notes(contents)
    return Capture(folder.resolve().name, "nerf_synthetic", images, None, Z_UP, splits, notes=notes_of(*notes))


def _contents(folder: Path) -> tuple[Contents, list[str | Note]]:
    """The files to read, and what is to be said of the choice."""
    main, others = folder / MAIN, [file for file in _scene_files(folder) if file.name != MAIN]
    merged: Contents = {}
    if os.path.lexists(main):
        merged[main] = _content(main)
        if not others:
            return merged, []
        if _dialect(merged)[0] != "instant_ngp":
            return merged, [f"{MAIN} was read, not {_names(others)}"]
    else:
        others = [file for file in others if file.name not in SPLIT_FILES]
        if not others:
            raise SceneError(f"{shown(main)} is missing, and no other JSON file there has frames with file_path")
    merged |= {file: _content(file) for file in others}
    return merged, [f"{_names(merged)} {'were merged, as instant-ngp does' if len(merged) > 1 else 'was read'}"]


def _scene_files(folder: Path) -> list[Path]:
    """JSON files of `folder` that look like posed images, by name."""
    found = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    for name in names:
        try:
            text = reading.read_regular(folder / name, SNIFFED, "scene file", SceneError)
        except SceneError:
            continue
        if all(mark in text for mark in MARKS):
            found.append(folder / name)
    return found


def _content(file: Path) -> dict[str, Any]:
    content = reading.read_json(file, SceneError, "scene file")
    frames_of(content, shown(file))
    return content


def _dialect(contents: Contents) -> tuple[str, str]:
    """Whose files they are, and a note that says by which keys."""
    keys = set().union(*contents.values(), *(frame for content in contents.values() for frame in content["frames"]))
    for_nerfstudio, for_ngp = (", ".join(sorted(keys & of)) for of in (NERFSTUDIO, INSTANT_NGP))
    if for_nerfstudio:
        but = f", though {for_ngp} would be instant-ngp's" if for_ngp else ""
        return "nerfstudio", f"read as a capture of nerfstudio, because of {for_nerfstudio}{but}"
    if for_ngp:
        return "instant_ngp", f"read as a capture of instant-ngp, because of {for_ngp}"
    return "transforms", "no key tells whether the capture is nerfstudio's or instant-ngp's; read as what both share"


def _frames(content: dict[str, Any], file: Path) -> list[_Frame]:
    """The frames of a file with the names and paths of their images."""
    frames, text = [], shown(file)
    for index, own in enumerate(content["frames"]):
        where = f"{text}: frame {index}"
        if "file_path" not in own:
            raise SceneError(f"{where}: key 'file_path' is missing")
        path = _image_file(file.parent, own["file_path"], where)
        frames.append(_Frame(own, content, file, where, own["file_path"].replace("\\", "/"), path))
    return frames


def _image_file(folder: Path, name: Any, where: str) -> Path:
    """The file of an image: as it is named, or with the first known extension that exists, or where it should be."""
    path = str(path_of(folder, name, "file_path", where))
    stem, extension = os.path.splitext(path)
    if extension.lower() in EXTENSIONS:
        candidates = [path, *(stem + known for known in EXTENSIONS)]
    else:
        candidates = [*(path + known for known in EXTENSIONS), path]
    there = next(filter(os.path.exists, candidates), None)
    if there is not None and os.path.isdir(there):
        raise SceneError(f"{where}: 'file_path' {shown(name)} is a folder; name an image in it")
    return Path(there or next(filter(None, map(in_any_case, map(Path, candidates))), path))


def _check_distinct(frames: list[_Frame]) -> None:
    """Raise SceneError if two frames have one image."""
    first: dict[str, _Frame] = {}
    folders = {folder: os.path.realpath(folder) for folder in {frame.path.parent for frame in frames}}
    for frame in frames:
        path = os.path.join(folders[frame.path.parent], frame.path.name)
        before = first.setdefault(os.path.realpath(path) if os.path.islink(path) else path, frame)
        if before is not frame:
            raise SceneError(
                f"{before.where} and {frame.where} are both of image {shown(frame.path)}; leave out one of them"
            )


def _images(frames: list[_Frame], masks: Masks, is_nerfstudio: bool, notes: list[str | Note]) -> list[PosedImage]:
    """The images of the frames, whose lenses are one object where they are equal."""
    images, lenses, beaten = [], {}, 0
    all_values = [values_of_frame(frame.content, frame.own, frame.where) for frame in frames]
    headers = _headers(frame.path for frame, values in zip(frames, all_values, strict=True) if not values.keys() & SIZE)
    other = next(iter(headers.values()), None)
    for frame, values, mask in zip(frames, all_values, masks.files, strict=True):
        for key, advice in REFUSED.items():
            if is_set(values.get(key)):
                raise SceneError(f"{frame.where}: '{key}' is not supported; {advice}")
        header = headers.get(frame.path)
        lens = lens_of(values, frame.where, *_size_of(frame, values, header or other), is_nerfstudio)
        pose = pose_of(frame.own.get("transform_matrix"), frame.where)
        beaten += "is_fisheye" in values and values["is_fisheye"] != (lens.model == "OPENCV_FISHEYE")
        images.append(PosedImage(frame.name, frame.path, pose, lenses.setdefault(lens, lens), mask, header=header))
    if beaten:
        notes.append(f"camera_model contradicts is_fisheye in {beaten} of {len(frames)} frames, and was believed")
    notes.append(f"lenses: {', '.join(sorted({lens.model for lens in lenses}))}")
    return images


def _headers(paths: Iterable[Path]) -> dict[Path, ImageHeader]:
    """Headers of the images that are there and can be read: what is wrong with one is said when its pixels are."""
    headers = {}
    for path in filter(os.path.exists, paths):  # which raises nothing, however long the name
        try:
            headers[path] = image_header(path)
        except SceneError:
            pass
    return headers


def _size_of(frame: _Frame, values: dict[str, Any], header: ImageHeader | None) -> tuple[int, int]:
    """Width and height of an image: as stated, or else as its file, or else another's, has them."""
    if values.keys() & SIZE:
        return size_of(values, frame.where)
    if header is not None:
        return header.width, header.height
    if os.path.exists(frame.path):
        image_header(frame.path)  # raises what is wrong with it
    missing = f"image {shown(frame.path)} is missing, like all others (looked for {', '.join(EXTENSIONS)})"
    raise SceneError(f"{frame.where}: keys 'w' and 'h' are missing, and {missing}")


def _points(contents: Contents, notes: list[str | Note]) -> Points | None:
    """Sparse points of the file that a key names, if it exists."""
    named = [file for file, content in contents.items() if is_set(content.get("ply_file_path"))]
    if len(named) > 1:
        raise SceneError(f"{_names(named)} all have a 'ply_file_path'; leave it in one of them")
    if not named:
        return None
    (file,) = named
    path = path_of(file.parent, contents[file]["ply_file_path"], "ply_file_path", shown(file))
    if not os.path.lexists(path):
        notes.append(f"ply_file_path: {shown(path)} is missing, so there are no sparse points")
        return None
    points = ply.read_points(path)
    notes.append(f"{len(points.positions)} sparse points from {shown(path.name)}")
    return points if len(points.positions) else None


def _up(contents: Contents) -> tuple[float, float, float] | None:
    """The axis that points up: the key `up`, or z where the poses are said to be oriented."""
    found = {}
    for file, content in contents.items():
        up = content.get("up")
        if up is not None:
            is_vector = isinstance(up, list) and len(up) == 3 and all(map(is_number, up))
            length = math.hypot(*up) if is_vector else 0.0
            if not 1e-6 < length < 1e6:
                wanted = "a list of three numbers, not all zero"
                raise SceneError(f"{shown(file)}: 'up' must be a direction, {wanted}, got {reprlib.repr(up)}")
            found[tuple(value / length for value in up)] = file
        elif content.get("orientation_override") == "none":
            found[Z_UP] = file
    if len(found) > 1:
        raise SceneError(f"{_names(found.values())} have different 'up'; give one of them")
    return next(iter(found), None)


def _listed_splits(contents: Contents, images: list[PosedImage]) -> dict[str, list[str]]:
    """Names of images by split, where keys list them."""
    splits: dict[str, list[str]] = {}
    known = {posixpath.normpath(image.name): image.name for image in images}
    split_of: dict[str, str] = {}
    for file, content in contents.items():
        for split in SPLITS:
            names, where = content.get(f"{split}_filenames"), f"{shown(file)}: '{split}_filenames'"
            if names is None:
                continue
            splits.setdefault(split, [])
            for name in names if isinstance(names, list) else [names]:
                if not isinstance(names, list) or not isinstance(name, str):
                    raise SceneError(f"{where} must be a list of names, got {reprlib.repr(name)}")
                image = known.get(posixpath.normpath(name.replace("\\", "/")))
                if image is None:
                    raise SceneError(f"{where} lists {shown(name)}, which is no file_path of a frame")
                other = split_of.setdefault(image, split)
                if other != split:
                    both = f"{where} and '{other}_filenames' both list {shown(image)}"
                    raise SceneError(f"{both}; an image can be of one split only")
    for name, split in sorted(split_of.items()):
        splits[split].append(name)
    return splits


def _merged_splits(frames: dict[Path, list[_Frame]], notes: list[str | Note]) -> list[_Frame]:
    """The frames of all splits by name; val and test may share images, whose frames have to be equal."""
    merged: dict[str, _Frame] = {}
    listed = [frame for of_file in frames.values() for frame in of_file]
    for frame in listed:
        before = merged.setdefault(frame.name, frame)
        if before is frame:
            continue
        if SPLIT_FILES[before.file.name] == "train":
            raise SceneError(f"{before.where} and {frame.where} are both of {shown(frame.name)}; leave out one")
        if (before.content | {"frames": before.own}) != (frame.content | {"frames": frame.own}):
            raise SceneError(f"{before.where} and {frame.where} differ, but are both of {shown(frame.name)}")
    if shared := len(listed) - len(merged):
        notes.append(f"val and test share {shared} images")
    ordered = [merged[name] for name in sorted(merged)]
    _check_distinct(ordered)
    return ordered


def _doubts_of_axes(folder: Path, images: list[PosedImage], points: Points | None, up: tuple | None) -> list[Note]:
    poses = np.stack([image.camera_to_world for image in images])  # [V, 3, 4]
    return doubts_of_axes(shown(folder), poses, [image.lens for image in images], points and points.positions, up)


def _unused_notes(contents: Contents) -> list[str]:
    """A note for each file with keys that nothing is known of."""
    unused = {file: ", ".join(unused_keys(content)) for file, content in contents.items()}
    return [f"{shown(file.name)}: keys that are not used: {shown(keys)}" for file, keys in unused.items() if keys]


def _names(files: Iterable[Path]) -> str:
    return shown(", ".join(file.name for file in files))
