# SPDX-License-Identifier: Apache-2.0
"""Keys of a transforms file that say which frames count, and of which split: obeyed, refused or doubted by name."""

import difflib
import re
import reprlib
from typing import Any

import numpy as np

from nerfkit.data.capture import Lines, as_warnings
from nerfkit.data.readers.transforms.cameras_json import KNOWN, SPLITS, is_number, unused_keys
from nerfkit.errors import SceneError
from nerfkit.safe_io import printable

EFFECTS = ("", "train", "val", "test", "left out")  # of keys on their frame; of several the last counts
WORDS = ("true", "1", "1.0"), ("false", "0", "0.0")
FLAGS = (  # letters of keys, and the effects of true and false
    ("(is)?(excluded?|ignored?|skip|disabled|depthonly)", "left out", ""),
    ("(is)?(enabled|use|valid)", "", "left out"),
    ("is(test|eval)", "test", "train"),
    ("isval", "val", "train"),
    ("istrain", "train", "test"),
)
NAMED = {**{split: split for split in SPLITS}, "training": "train", "validation": "val", "eval": "test"}
MOVES = ("time", "frametime", "timeid", "warpid")  # of scenes that do not stand still
CLOCK = 1e6  # from where a time is that of a clock
CHOOSES = re.compile(r"(^|_)(train|test|val|split|eval|exclude|ignore|skip|enable|disable|hold_?out)d?(_|$)", re.I)
REMOVE = "remove the frames that should not count, and the key"
MULTIPLY = "it looks like a transform of cameras; write the poses that it gives into transform_matrix"


def chosen(content: dict[str, Any], where: str, notes: Lines) -> dict[int, str]:
    """Indices of the frames that count, with the split of each where the keys say so, or else ''; and notes."""
    frames, unused = content["frames"], dict.fromkeys(unused_keys(content))
    of_frames: dict[str, dict[int, Any]] = {}  # values of each key by the index of the frame
    for index, frame in enumerate(frames):
        for key in frame.keys() & unused.keys():
            if frame[key] is not None:
                of_frames.setdefault(key, {})[index] = frame[key]
    effects, diagnostics = [0] * len(frames), {}
    for key, given in of_frames.items():
        plain, place = re.sub("[^a-z]", "", key.lower()), f"{where}: '{printable(key, 40)}'"
        differ = len(set(map(repr, given.values()))) > 1
        rule = _rule(plain)
        if rule and any(isinstance(v, str | bool) or str(v) in rule for v in given.values()):  # else it means another
            del unused[key]
            for index, value in given.items():
                if (effect := rule.get(str(value).lower())) is None:
                    known = ", ".join(rule)
                    raise SceneError(f"{place} of frame {index} must be one of {known}, got {reprlib.repr(value)}")
                effects[index] = max(effects[index], EFFECTS.index(effect))
        elif plain in MOVES and differ and not all(is_number(v) and v > CLOCK for v in given.values()):
            raise SceneError(
                f"the key {place} differs among the frames: the scene moves, but only scenes that stand still can be "
                "trained; keep the frames of one time, or remove the key if nothing moves"
            )
        elif CHOOSES.search(key) or (plain.startswith("is") and all(isinstance(v, bool) for v in given.values())):
            diagnostics[key] = f"it differs among the frames; {REMOVE}" if differ or len(given) < len(frames) else ""
        elif _moves(next(iter(given.values())), frames[next(iter(given))]):
            diagnostics[key] = MULTIPLY
    names = {name for frame in frames if isinstance(name := frame.get("file_path"), str)}
    for key in unused.keys() & content.keys():
        if isinstance(content[key], list) and any(isinstance(name, str) and name in names for name in content[key]):
            diagnostics[key] = f"it lists frames; {REMOVE}"
        elif _moves(content[key], {}):
            diagnostics[key] = MULTIPLY
    for key, diagnostic in diagnostics.items():
        notes += as_warnings([f"'{printable(key, 40)}' is not used, but {diagnostic}"] * bool(diagnostic))
    letters = {re.sub("[^a-z0-9]", "", known.lower()): known for known in sorted(KNOWN)}
    for key in unused:
        near = difflib.get_close_matches(re.sub("[^a-z0-9]", "", key.lower()), letters, 1, 0.9)
        notes += as_warnings(f"'{printable(key, 40)}' is not used; did you mean '{letters[name]}'?" for name in near)
    if unused:
        notes.append(f"{where}: keys that are not used: {printable(', '.join(unused))}")
    kept = {index: EFFECTS[effect] for index, effect in enumerate(effects) if EFFECTS[effect] != "left out"}
    if len(kept) < len(frames):
        notes.append(f"{len(frames) - len(kept)} of {len(frames)} frames are left out, as their keys say")
    if not kept:
        raise SceneError(f"{where}: all frames are left out, as their keys say")
    return {index: effect or "train" for index, effect in kept.items()} if any(kept.values()) else kept


def _rule(plain: str) -> dict[str, str]:
    """The effect of each value of a key, by its letters; nothing for a key that says nothing of its frame."""
    if plain == "split":
        return NAMED
    effects = next(((true, false) for keys, true, false in FLAGS if re.fullmatch(keys, plain)), ())
    return {word: effect for words, effect in zip(WORDS, effects, strict=False) for word in words}


def _moves(value: Any, frame: dict[str, Any]) -> bool:
    """Whether a value is a rigid motion [4, 4] or [3, 4], neither the identity nor a frame's pose nor its inverse."""
    try:
        motion, pose = (
            np.concatenate([np.array(matrix, np.float64).reshape(-1, 4)[:3], [[0.0, 0, 0, 1]]])
            for matrix in (value, frame.get("transform_matrix", np.eye(4)))
        )
        is_rigid = np.allclose(motion[:3, :3] @ motion[:3, :3].T, np.eye(3), atol=1e-3)
        return is_rigid and not any(np.allclose(motion, one) for one in (np.eye(4), pose, np.linalg.inv(pose)))
    except (TypeError, ValueError, OverflowError, np.linalg.LinAlgError):
        return False
