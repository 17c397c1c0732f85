# SPDX-License-Identifier: Apache-2.0
"""A scene folder -> Scene, of any known format; of photographs and videos after their poses were found."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nerfkit.data import readers
from nerfkit.data.assemble import assemble, of_any_case
from nerfkit.data.capture import Capture
from nerfkit.data.frame import Frame
from nerfkit.data.scene import Scene
from nerfkit.data.sfm import solve, video_frames
from nerfkit.data.sfm.photographs import OTHERS, SUFFIXES, image_folder
from nerfkit.errors import SceneError
from nerfkit.reading import native_name, shown, why_missing

IMAGE_FOLDER = re.compile(r"(images|input|rgb|frames|train|val|test)(_\d+)?", re.I)  # as scenes name it


def load_scene(
    path: str,
    format: str = "auto",
    downscale: float = 1.0,
    box: tuple[float, ...] | None = None,
    frame: Frame | None = None,
    sfm: str = "",
    cutout: bool = False,
    unbounded: bool = False,
) -> Scene:
    """Read cameras and image headers of the scene in folder `path`.

    With a `box` [6], x, y, z of its lowest and highest corner, the files' frame is the model's; with the `frame` of a
    run that goes on, that is. Otherwise the frame is found, except for a format whose scenes stand in a known box.
    Poses of plain photographs or a video are found first, in folder `sfm` or beside them. With `cutout`, masked pixels
    are transparent instead of ignored. What lies outside of a `box` counts only if `unbounded`.
    """
    return assemble(load_capture(path, format, sfm), downscale, box, frame, cutout, unbounded)


def load_capture(
    path: str,
    format: str = "auto",
    sfm: str = "",
    report: Callable[[str], None] = print,
    seeks_points: bool = True,
) -> Capture:
    """What a reader finds at `path`; `report` gets the progress of finding poses.

    Of several formats in a folder, "auto" takes the one with sparse points if it `seeks_points`, or else the first:
    runs that say "auto" are of a time when it did.
    """
    if not path:
        raise SceneError("no scene given: set data.path to the folder of a scene")
    folder = _path(path, "data.path")
    if not os.path.isdir(folder) and not (os.path.isfile(folder) and video_frames.is_video(folder)):
        raise SceneError(f"data.path: {shown(folder)} {_what_is_there(folder)}")
    if format == "auto" and not _is_known(folder) and (os.path.isfile(folder) or _has_photographs(folder)):
        _check_not_inside(folder)
        report(f"{shown(folder)} has no camera poses; they are looked for")
        solved = solve(folder, _path(sfm, "data.sfm") if sfm else None, report)
        return replace(readers.read(solved, format, seeks_points), reader=format)  # poses are looked for again
    if format == "auto" and not _is_known(folder):
        _check_no_other_photographs(folder)
    return of_any_case(readers.read(folder, format, seeks_points))


def _what_is_there(path: Path) -> str:
    """Why a path is no scene, and what might be meant."""
    if os.path.lexists(path):
        return f"is not a folder, nor a video; is the folder {shown(path.parent)} meant?"
    return why_missing(path)


def format_elsewhere(path: str, format: str) -> str:
    """The data.format of a run for a folder of its scene that is elsewhere now, maybe in another format."""
    known = format in readers.READERS and readers.READERS[format].recognises(_path(path, "--data"))
    return format if known else "auto"


def _path(text: str, option: str) -> Path:
    try:
        return Path(native_name(text)).expanduser()
    except (RuntimeError, ValueError) as error:  # an unknown user; an invalid file name
        raise SceneError(f"{option}: {shown(text)} cannot be a folder: {error}") from None


def _is_known(folder: Path) -> bool:
    """Whether a reader knows what is in the folder."""
    return any(reader.recognises(folder) for reader in readers.READERS.values())


def _has_photographs(folder: Path) -> bool:
    """Whether there are plain photographs in the folder, in its sub-folder images, or in others that are no scenes."""
    try:
        with os.scandir(image_folder(folder)) as entries:
            entries = list(entries)
    except OSError:
        return False
    if any(entry.name.lower().endswith(SUFFIXES) for entry in entries):
        return True
    folders = [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    if any(map(_is_known, folders)):  # a folder of scenes
        return False
    return any(name.lower().endswith(SUFFIXES) for inner in folders for name in os.listdir(inner))


def _check_no_other_photographs(folder: Path) -> None:
    """Raise SceneError if all that is there are images of kinds that are not read, such as HEIC."""
    place = image_folder(folder)
    try:
        with os.scandir(place) as entries:
            endings = [os.path.splitext(entry.name)[1].lower() for entry in entries]
    except OSError:
        return
    if kinds := Counter(ending for ending in endings if ending in OTHERS):
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        raise SceneError(
            f"data.path: {shown(place)} holds images that are not read ({listed}); convert them to JPEG or PNG"
        )


def _check_not_inside(folder: Path) -> None:
    """Raise SceneError if the photographs are those of a scene that has poses."""
    folder = folder.resolve()
    if os.path.isdir(folder) and IMAGE_FOLDER.fullmatch(folder.name) and _is_known(folder.parent):
        scene = shown(folder.parent)
        raise SceneError(f"data.path: {shown(folder)} holds the images of the scene {scene}; give that folder")
