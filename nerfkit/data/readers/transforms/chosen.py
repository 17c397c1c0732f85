# SPDX-License-Identifier: Apache-2.0
"""Keys of a transforms file that say which frames count, and of which split: obeyed, refused or doubted by name."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from nerfkit.data.capture import Note
from nerfkit.data.readers.transforms.cameras_json import SPLITS, unused_keys
from nerfkit.errors import SceneError
from nerfkit.reading import shown

LEAVES_OUT = {  # keys without what is no letter, and the value that leaves a frame out
    **dict.fromkeys(("exclude", "excluded", "ignore", "ignored", "skip", "disabled", "depthonly", "isdepthonly"), True),
    **dict.fromkeys(("enabled", "isenabled", "use", "valid", "isvalid"), False),
}
SPLIT_IF = {  # the splits of frames for which a key is true, and false
    "istest": ("test", "train"), "isval": ("val", "train"), "istrain": ("train", "test"), "iseval": ("test", "train"),
}  # fmt: skip
SPLIT_NAMES = {**{split: split for split in SPLITS}, "training": "train", "validation": "val", "eval": "test"}
MOVES = ("time", "frametime", "timeid", "warpid")  # of scenes that do not stand still
CHOOSES = re.compile(r"(^|_)(train|test|val|split|eval|exclude|ignore|skip|enable|disable|hold_?out)d?(_|$)", re.I)


class Chosen:
    """Which frames of a file count, their splits by index where frames state them, and notes."""

    def __init__(self, content: dict[str, Any], where: str):
        frames = content["frames"]
        self.indices = list(range(len(frames)))
        self.splits: dict[int, str] = {}
        self.notes: list[str | Note] = []
        unused = dict.fromkeys(unused_keys(content))
        of_frames: dict[str, dict[int, Any]] = {}  # values of each, by the index of the frame
        for index, frame in enumerate(frames):
            for key in frame.keys() & unused.keys():
                of_frames.setdefault(key, {})[index] = frame[key]
        for key, given in of_frames.items():
            plain, place = re.sub("[^a-z]", "", key.lower()), f"{where}: '{shown(key, 40)}'"
            if plain in LEAVES_OUT:
                left_out = {index for index, value in given.items() if _flag(value, place) == LEAVES_OUT[plain]}
                self.indices = [index for index in self.indices if index not in left_out]
                self.notes.append(f"{len(left_out)} of {len(frames)} frames are left out, as {shown(key, 40)} says")
            elif plain in SPLIT_IF or plain == "split":
                self._split(plain, [frame.get(key) for frame in frames], place)
            else:
                if plain in MOVES and _differ(given.values()):
                    raise SceneError(
                        f"{place} differs among the frames, so that the scene moves, but only scenes that stand still "
                        "are trained; keep the frames of one time, or remove the key if nothing moves"
                    )
                if doubt := _doubt_of_frames(key, given, frames):
                    self.notes.append(Note("warning", f"'{shown(key, 40)}' is not used, but {doubt}"))
                continue
            del unused[key]
        for key in unused.keys() & content.keys():
            if doubt := _doubt_of_file(content[key], frames):
                self.notes.append(Note("warning", f"'{shown(key, 40)}' is not used, but {doubt}"))
        if not self.indices:
            raise SceneError(f"{where}: all frames are left out: {'; '.join(map(str, self.notes))}")
        if unused:
            self.notes.append(f"{where}: keys that are not used: {shown(', '.join(unused))}")

    def _split(self, plain: str, values: list[Any], place: str) -> None:
        """Splits of frames by the values of one key; of several keys, the one that says more than train counts."""
        for index, value in enumerate(values):
            if plain == "split":
                split = SPLIT_NAMES.get(str(value).lower())
                if split is None:
                    known = ", ".join(SPLITS)
                    raise SceneError(f"{place} of frame {index} must be one of {known}, got {reprlib.repr(value)}")
            else:
                split = SPLIT_IF[plain][0 if value is not None and _flag(value, place) else 1]
            if self.splits.get(index, "train") == "train":
                self.splits[index] = split


def _flag(value: Any, place: str) -> bool:
    if value not in (True, False):
        raise SceneError(f"{place} must be true or false, got {reprlib.repr(value)}")
    return bool(value)


def _differ(values: Iterable[Any]) -> bool:
    return len(set(map(repr, values))) > 1


def _doubt_of_frames(key: str, given: dict[int, Any], frames: list[dict[str, Any]]) -> str:
    """How an unknown key of frames may say which of them count, or where their cameras stand; '' if it does not."""
    are_flags = all(isinstance(value, bool) for value in given.values())
    if (are_flags or CHOOSES.search(key)) and (_differ(given.values()) or len(given) < len(frames)):
        return "differs among the frames; remove the frames that should not count, and the key"
    if any(_moves(value, frames[index]) for index, value in list(given.items())[:1]):
        return "it looks like a transform of cameras; write the poses that it gives into transform_matrix"
    return ""


def _doubt_of_file(value: Any, frames: list[dict[str, Any]]) -> str:
    """The same for an unknown key of the file."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        if any(frame.get("file_path") == value[0] for frame in frames):
            return "it lists frames; name splits train_filenames, val_filenames and test_filenames, or remove the key"
    return "it looks like a transform of cameras; write the poses that it gives into transform_matrix" * _moves(
        value, {}
    )


def _moves(value: Any, frame: dict[str, Any]) -> bool:
    """Whether a value is a rigid motion [4, 4] or [3, 4], neither the identity nor a frame's pose nor its inverse."""
    if not isinstance(value, list):
        return False
    try:
        motion, pose = (
            np.concatenate([np.array(matrix, np.float64).reshape(-1, 4)[:3], [[0.0, 0, 0, 1]]])
            for matrix in (value, frame.get("transform_matrix", np.eye(4)))
        )
        is_rigid = motion.shape == (4, 4) and np.allclose(motion[:3, :3] @ motion[:3, :3].T, np.eye(3), atol=1e-3)
        return is_rigid and not any(
            np.allclose(motion, one, atol=1e-4) for one in (np.eye(4), pose, np.linalg.inv(pose))
        )
    except (TypeError, ValueError, OverflowError, np.linalg.LinAlgError):
        return False
