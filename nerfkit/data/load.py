# SPDX-License-Identifier: Apache-2.0
"""A scene folder -> Scene, of any known format; of photographs and videos after their poses were found."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nerfkit.config import Config, DataConfig, SamplingConfig
from nerfkit.data import readers
from nerfkit.data.assemble import assemble, resolve_files
from nerfkit.data.capture import Capture
from nerfkit.data.scene import Scene
from nerfkit.data.scene_transform.frame import Frame
from nerfkit.data.sfm import solve, video_frames
from nerfkit.data.sfm.photographs import OTHERS, SUFFIXES, image_folder
from nerfkit.errors import SceneError
from nerfkit.reading import native_name, shown, why_missing

IMAGE_FOLDER = re.compile(r"(images|input|rgb|frames|train|val|test)(_\d+)?", re.I)  # as scenes name it


def scene_of(config: Config, frame: Frame | None = None, report: Callable[[str], None] = print) -> Scene:
    """The scene of `config.data`, as it is trained, scored and shown; with the `frame` of a run, in that frame.

    With a data.box, the files' frame is the model's, and what lies outside of the box counts only if sampling.kind is
    contracted. Otherwise the frame is found, except for a format whose scenes stand in a known box. `report` gets the
    progress of finding poses.
    """
    data = config.data
    capture = load_capture(data.path, data.format, data.sfm, report, seeks_points=frame is None)
    is_unbounded = config.sampling.kind == "contracted"
    scene = assemble(capture, data.downscale, data.box, frame, data.masks == "cutout", is_unbounded)
    return replace(scene.with_fewer(data.max_views), source=data)


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
    """The scene in folder `path`: `scene_of` for those who have no configuration.

    Args:
        path, format, downscale, sfm: data.path, data.format, data.downscale and data.sfm.
        box: x, y, z of the lowest, then the highest corner, in the files' frame, which then is the model's.
        frame: that of a run which goes on.
        cutout: masked pixels are transparent instead of ignored.
        unbounded: what lies outside of the `box` counts, too.
    """
    masks, kind = "cutout" if cutout else "ignore", "contracted" if unbounded else None
    data = DataConfig(path=path, format=format, downscale=downscale, box=box, sfm=sfm, masks=masks)
    return scene_of(Config(data=data, sampling=SamplingConfig(kind=kind)), frame)


def load_capture(
    path: str,
    format: str = "auto",
    sfm: str = "",
    report: Callable[[str], None] = print,
    seeks_points: bool = True,
) -> Capture:
    """What a reader finds at `path`, and its image files; `report` gets the progress of finding poses.

    Of several formats in a folder, "auto" takes the one with sparse points if it `seeks_points`, or else the first:
    runs that say "auto" are of a time when it did.
    """
    if not path:
        raise SceneError("no scene given: nerfkit train SCENE, or data.path, takes the folder of a scene")
    folder = _path(path, "data.path")
    if not os.path.isdir(folder) and not (os.path.isfile(folder) and video_frames.is_video(folder)):
        raise SceneError(f"data.path: {shown(folder)} {_what_is_there(folder)}")
    if format not in ("auto", *readers.READERS):
        raise SceneError(f"data.format: unknown format {format!r}; known: auto, {', '.join(readers.READERS)}")
    formats = readers.formats_of(folder) if format == "auto" else [format]
    if formats:
        return resolve_files(readers.read(folder, formats, seeks_points))
    if not os.path.isfile(folder) and not _has_photographs(folder):
        raise SceneError(_why_unknown(folder))
    _check_not_inside(folder)
    report(f"{shown(folder)} has no camera poses; they are looked for")
    solved = solve(folder, _path(sfm, "data.sfm") if sfm else None, report)
    return replace(resolve_files(readers.read(solved, ["colmap"])), is_solved=True)


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
    if any(map(readers.formats_of, folders)):  # a folder of scenes
        return False
    return any(name.lower().endswith(SUFFIXES) for inner in folders for name in os.listdir(inner))


def _why_unknown(folder: Path) -> str:
    """Why there is nothing to read: images of kinds that are not read, such as HEIC, or what else would be needed."""
    place = image_folder(folder)
    try:
        with os.scandir(place) as entries:
            endings = [os.path.splitext(entry.name)[1].lower() for entry in entries]
    except OSError:
        endings = []
    if kinds := Counter(ending for ending in endings if ending in OTHERS):
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return f"data.path: {shown(place)} holds images that are not read ({listed}); convert them to JPEG or PNG"
    expected = "; ".join(f"{name} needs {reader.needs}" for name, reader in readers.READERS.items())
    expected += "; otherwise photographs (JPEG, PNG, WebP) or a video, of which poses are found"
    return f"data.path: no known scene format in {shown(folder)} ({expected})"


def _check_not_inside(folder: Path) -> None:
    """Raise SceneError if the photographs are those of a scene that has poses."""
    folder = folder.resolve()
    if os.path.isdir(folder) and IMAGE_FOLDER.fullmatch(folder.name) and readers.formats_of(folder.parent):
        scene = shown(folder.parent)
        raise SceneError(f"data.path: {shown(folder)} holds the images of the scene {scene}; give that folder")
