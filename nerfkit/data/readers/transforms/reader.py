# SPDX-License-Identifier: Apache-2.0
"""Captures as JSON: `transforms.json` of nerfstudio and instant-ngp, and NeRF-synthetic's three files.

Poses are camera-to-world in OpenGL axes, lenses those of `transforms_lens.py`. The dialects differ in what k3 and k4,
masks and further files mean; the keys that are there tell them apart. Images that are missing are listed as well.
"""

from __future__ import annotations

import math
import os
import posixpath
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nerfkit import reading
from nerfkit.data import ply
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.images.pixels import ImageHeader, image_header
from nerfkit.data.notes import Note, notes_of
from nerfkit.data.readers.transforms import pose_axes
from nerfkit.data.readers.transforms.cameras_json import (
    SIZE,
    frames_of,
    is_number,
    is_set,
    pose_of,
    size_of,
    unused_keys,
)
from nerfkit.data.readers.transforms.lens import lens_of, values_of_frame
from nerfkit.data.readers.transforms.masks import Masks, find_masks
from nerfkit.errors import SceneError
from nerfkit.reading import in_any_case, native_name, shown

MAIN = "transforms.json"
SPLITS = ("train", "val", "test")
SPLIT_FILES = {f"transforms_{split}.json": split for split in SPLITS}
EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp")
SNIFFED = 2**28  # bytes of JSON that are looked through for scenes
MARKS = (b'"frames"', b'"transform_matrix"', b'"file_path"')
NERFSTUDIO = {  # keys that only nerfstudio writes
    "camera_model", "applied_transform", "applied_scale", "mask_path", "ply_file_path", "orientation_override",
    "depth_file_path", "depth_unit_scale_factor", "colmap_im_id", "distortion_params", "fisheye_crop_radius",
    *(f"{split}_filenames" for split in SPLITS),
}  # fmt: skip
INSTANT_NGP = {  # keys that only instant-ngp and its scripts write
    "aabb_scale", "aabb", "render_aabb", "scale", "offset", "x_fov", "y_fov", "is_fisheye", "sharpness",
    "n_extra_learnable_dims", "enable_depth_loading", "integer_depth_scale", "depth_path", "envmap",
}  # fmt: skip
UNUSED = {  # keys of either that say nothing of the images that are trained on
    *NERFSTUDIO, *INSTANT_NGP, "up", "n_frames", "white_transparent", "black_transparent",
}  # fmt: skip
Z_UP = (0.0, 0.0, 1.0)


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
    _check_axes(folder, images, points, up or (None if dialect == "transforms" else Z_UP), notes)
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
    files = {split: folder / f"transforms_{split}.json" for split in SPLITS}
    contents = {file: _content(file) for file in files.values() if os.path.lexists(file)}
    if files["train"] not in contents:
        raise SceneError(f"{shown(files['train'])} is missing")
    notes: list[str] = []
    frames = {file: _frames(content, file) for file, content in contents.items()}
    for listed in frames.values():
        _check_no_masks(listed)
        _check_distinct(listed)
    merged = _merged_splits(frames, notes)
    images = _images(merged, Masks([None] * len(merged)), False, notes)
    _check_axes(folder, images, None, Z_UP, notes)
    splits = {SPLIT_FILES[file.name]: [frame.name for frame in listed] for file, listed in frames.items()}
    notes += _unused_notes(contents)
    return Capture(folder.resolve().name, "nerf_synthetic", images, None, Z_UP, splits, notes=notes_of(*notes))


def _contents(folder: Path) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """The files to read, by path, and what is to be said of the choice."""
    others = [file for file in _scene_files(folder) if file.name != MAIN]
    main = folder / MAIN
    if not os.path.lexists(main):
        others = [file for file in others if file.name not in SPLIT_FILES]
        if not others:
            raise SceneError(f"{shown(main)} is missing, and no other JSON file there has frames with file_path")
        merged = {file: _content(file) for file in others}
    else:
        merged = {main: _content(main)}
        if others and _dialect(merged)[0] != "instant_ngp":
            return merged, [f"{MAIN} was read, not {_names(others)}"]
        merged |= {file: _content(file) for file in others}
    if list(merged) == [main]:
        return merged, []
    return merged, [f"{_names(list(merged))} {'were merged, as instant-ngp does' if len(merged) > 1 else 'was read'}"]


def _scene_files(folder: Path) -> list[Path]:
    """JSON files of `folder` that look like posed images, by name."""
    found, left = [], SNIFFED
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    for name in names:
        try:
            text = reading.read_regular(folder / name, left, "scene file", SceneError)
        except SceneError:
            continue
        left = max(left - len(text), 0)
        if all(mark in text for mark in MARKS):
            found.append(folder / name)
    return found


def _content(file: Path) -> dict[str, Any]:
    content = reading.read_json(file, SceneError, "scene file")
    frames_of(content, shown(file))
    return content


def _dialect(contents: dict[Path, dict[str, Any]]) -> tuple[str, str]:
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
        name = own.get("file_path")
        if "file_path" not in own:
            raise SceneError(f"{where}: key 'file_path' is missing")
        if not isinstance(name, str) or not name:
            raise SceneError(f"{where}: 'file_path' must be the name of an image, got {reprlib.repr(name)}")
        path = _image_file(file.parent, name, where)
        frames.append(_Frame(own, content, file, where, name.replace("\\", "/"), path))
    return frames


def _image_file(folder: Path, name: str, where: str) -> Path:
    """The file of an image: as it is named, or with the first known extension that exists, or where it should be."""
    path = _path(folder, name, "file_path", where)
    stem, extension = os.path.splitext(path)
    if extension.lower() not in EXTENSIONS:
        stem = path
    elif os.path.exists(path):
        return Path(path)
    candidates = [*(stem + known for known in EXTENSIONS), path]
    for candidate in filter(os.path.exists, candidates):
        if os.path.isdir(candidate):
            raise SceneError(f"{where}: 'file_path' {shown(name)} is a folder; name an image in it")
        return Path(candidate)
    return next((file for candidate in [path, *candidates] if (file := in_any_case(Path(candidate)))), Path(path))


def _path(folder: Path, name: Any, key: str, where: str) -> str:
    """The path of the file `name`, with either slash between folders, as the value of a key."""
    if not isinstance(name, str) or not name:
        raise SceneError(f"{where}: '{key}' must be the name of a file, got {reprlib.repr(name)}")
    try:
        if "\0" in name:
            raise ValueError
        return os.path.join(folder, native_name(name.replace("\\", "/")))
    except ValueError:
        raise SceneError(f"{where}: '{key}' {shown(name)} cannot be the name of a file") from None


def _check_distinct(frames: list[_Frame]) -> None:
    """Raise SceneError if two frames have one image."""
    first: dict[str, _Frame] = {}
    folders: dict[Path, str] = {}
    for frame in frames:
        parent = frame.path.parent
        if parent not in folders:
            folders[parent] = os.path.realpath(parent)
        path = os.path.join(folders[parent], frame.path.name)
        before = first.setdefault(os.path.realpath(path) if os.path.islink(path) else path, frame)
        if before is not frame:
            raise SceneError(
                f"{before.where} and {frame.where} are both of image {shown(frame.path)}; leave out one of them"
            )


def _images(frames: list[_Frame], masks: Masks, is_nerfstudio: bool, notes: list[str]) -> list[PosedImage]:
    """The images of the frames, whose lenses are one object where they are equal."""
    images, lenses, sizes = [], {}, _Sizes(frames)
    beaten = 0
    for frame, mask in zip(frames, masks.files, strict=True):
        values = values_of_frame(frame.content, frame.own, frame.where)
        lens = lens_of(values, frame.where, *sizes.of(frame, values), is_nerfstudio)
        if "transform_matrix" not in frame.own:
            raise SceneError(f"{frame.where}: key 'transform_matrix' is missing")
        pose = pose_of(frame.own["transform_matrix"], frame.where)
        beaten += "is_fisheye" in values and values["is_fisheye"] != (lens.model == "OPENCV_FISHEYE")
        header = sizes.headers.get(frame.path)
        images.append(PosedImage(frame.name, frame.path, pose, lenses.setdefault(lens, lens), mask, header=header))
    if beaten:
        notes.append(f"camera_model contradicts is_fisheye in {beaten} of {len(frames)} frames, and was believed")
    notes.append(f"lenses: {', '.join(sorted({lens.model for lens in lenses}))}")
    return images


class _Sizes:
    """Widths and heights of images: as stated, or else as their files have them, or else as another's file has it."""

    def __init__(self, frames: list[_Frame]) -> None:
        self._frames = frames
        self.headers: dict[Path, ImageHeader | None] = {}  # that were read; none where there is none to be read
        self._other: tuple[int, int] | None = None

    def of(self, frame: _Frame, values: dict[str, Any]) -> tuple[int, int]:
        """Of a frame with `values`."""
        if any(key in values for key in SIZE):
            return size_of(values, frame.where)
        if size := self._on_disk(frame.path):
            return size
        if self._other is None:
            self._other = next(filter(None, (self._on_disk(other.path) for other in self._frames)), None)
        if self._other is None:
            if os.path.exists(frame.path):
                image_header(frame.path)  # raises what is wrong with it
            missing = f"image {shown(frame.path)} is missing, like all others (looked for {', '.join(EXTENSIONS)})"
            raise SceneError(f"{frame.where}: keys 'w' and 'h' are missing, and {missing}")
        return self._other

    def _on_disk(self, path: Path) -> tuple[int, int] | None:
        """None where there is no file, or none that can be read: that is said when the image is."""
        if path not in self.headers:
            try:  # exists raises nothing, however long the name
                self.headers[path] = image_header(path) if os.path.exists(path) else None
            except SceneError:
                self.headers[path] = None
        header = self.headers[path]
        return (header.width, header.height) if header else None


def _points(contents: dict[Path, dict[str, Any]], notes: list[str]) -> Points | None:
    """Sparse points of the file that a key names, if it exists."""
    named = {
        file: content["ply_file_path"] for file, content in contents.items() if is_set(content.get("ply_file_path"))
    }
    if len(named) > 1:
        raise SceneError(f"{_names(list(named))} all have a 'ply_file_path'; leave it in one of them")
    for file, name in named.items():
        path = Path(_path(file.parent, name, "ply_file_path", shown(file)))
        if not os.path.lexists(path):
            notes.append(f"ply_file_path: {shown(path)} is missing, so there are no sparse points")
            return None
        points = ply.read_points(path)
        notes.append(f"{len(points.positions)} sparse points from {shown(path.name)}")
        return points if len(points.positions) else None
    return None


def _up(contents: dict[Path, dict[str, Any]]) -> tuple[float, float, float] | None:
    """The axis that points up: the key `up`, or z where the poses are said to be oriented."""
    found = {}
    for file, content in contents.items():
        up = content.get("up")
        if up is not None:
            if not isinstance(up, list) or len(up) != 3 or not all(is_number(value) for value in up):
                raise SceneError(f"{shown(file)}: 'up' must be a list of three numbers, got {reprlib.repr(up)}")
            length = math.hypot(*up)
            if not 1e-6 < length < 1e6:
                raise SceneError(f"{shown(file)}: 'up' must be a direction, got {reprlib.repr(up)}")
            found[tuple(value / length for value in up)] = file
        elif content.get("orientation_override") == "none":
            found[Z_UP] = file
    if len(found) > 1:
        raise SceneError(f"{_names(list(found.values()))} have different 'up'; give one of them")
    return next(iter(found), None)


def _listed_splits(contents: dict[Path, dict[str, Any]], images: list[PosedImage]) -> dict[str, list[str]]:
    """Names of images by split, where keys list them."""
    splits: dict[str, list[str]] = {}
    known = {posixpath.normpath(image.name): image.name for image in images}
    split_of: dict[str, str] = {}
    for file, content in contents.items():
        for split in SPLITS:
            key = f"{split}_filenames"
            if content.get(key) is None:
                continue
            for name in _split_names(content[key], f"{shown(file)}: '{key}'", known):
                other = split_of.setdefault(name, split)
                if other != split:
                    raise SceneError(
                        f"{shown(file)}: '{key}' and '{other}_filenames' both list {shown(name)}; "
                        "an image can be of one split only"
                    )
            splits.setdefault(split, [])
    for name, split in sorted(split_of.items()):
        splits[split].append(name)
    return splits


def _split_names(names: Any, where: str, known: dict[str, str]) -> list[str]:
    """The images' own names of the names in a list."""
    if not isinstance(names, list):
        raise SceneError(f"{where} must be a list of names, got {reprlib.repr(names)}")
    found = []
    for name in names:
        if not isinstance(name, str):
            raise SceneError(f"{where} must be a list of names, but has {reprlib.repr(name)}")
        normal = posixpath.normpath(name.replace("\\", "/"))
        if normal not in known:
            raise SceneError(f"{where} lists {shown(name)}, which is no file_path of a frame")
        found.append(known[normal])
    return found


def _merged_splits(frames: dict[Path, list[_Frame]], notes: list[str]) -> list[_Frame]:
    """The frames of all splits by name; val and test may share images, whose frames have to be equal."""
    merged: dict[str, _Frame] = {}
    shared = 0
    for listed in frames.values():
        for frame in listed:
            before = merged.setdefault(frame.name, frame)
            if before is frame:
                continue
            if SPLIT_FILES[before.file.name] == "train":
                raise SceneError(f"{before.where} and {frame.where} are both of {shown(frame.name)}; leave out one")
            if (before.content | {"frames": before.own}) != (frame.content | {"frames": frame.own}):
                raise SceneError(f"{before.where} and {frame.where} differ, but are both of {shown(frame.name)}")
            shared += 1
    if shared:
        notes.append(f"val and test share {shared} images")
    ordered = [merged[name] for name in sorted(merged)]
    _check_distinct(ordered)
    return ordered


def _check_no_masks(frames: list[_Frame]) -> None:
    for frame in frames:
        if is_set(frame.own.get("mask_path", frame.content.get("mask_path"))):
            raise SceneError(f"{frame.where}: 'mask_path' is not supported; put the mask into the images' alpha")


def _check_axes(folder: Path, images: list[PosedImage], points: Points | None, up: tuple | None, notes: list) -> None:
    """Refuse poses that are certainly in other axes, and note it where they may be."""
    poses = np.stack([image.camera_to_world for image in images])  # [V, 3, 4]
    verdict = pose_axes.suspect(poses, [image.lens for image in images], points and points.positions, up)
    if verdict is not None and verdict.is_certain:
        raise SceneError(f"{shown(folder)}: {verdict.text}")
    if verdict is not None:
        notes.append(Note("warning", verdict.text))


def _unused_notes(contents: dict[Path, dict[str, Any]]) -> list[str]:
    """A note for each file with keys that nothing is known of."""
    notes = []
    for file, content in contents.items():
        if unused := [key for key in unused_keys(content, content["frames"]) if key not in UNUSED]:
            notes.append(f"{shown(file.name)}: keys that are not used: {shown(', '.join(unused))}")
    return notes


def _names(files: list[Path]) -> str:
    return shown(", ".join(file.name for file in files))
