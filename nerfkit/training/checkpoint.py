# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: one safetensors file with the state as JSON in its header; no pickle.

Each file is whole by itself, written aside and renamed, and the last two are kept: `checkpoint.safetensors` and
`checkpoint.previous.safetensors`. `checkpoint.json` is a copy of the state for people and scripts to read.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nerfkit.errors import RunError
from nerfkit.files import atomic_write

FORMAT_VERSION = 2
BROKEN = (OSError, ValueError, KeyError, SafetensorError)  # what reading a cut or foreign file raises
NEWEST, PREVIOUS, STATE = "checkpoint.safetensors", "checkpoint.previous.safetensors", "checkpoint.json"


def save(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint; the one before becomes the previous one.

    One that is cut short does not: the previous one stays. Raises RunError if the disk is full or the folder cannot be
    written; the last checkpoint is then as it was.
    """
    state = {"format": FORMAT_VERSION, **state}
    data = safetensors.torch.save(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata={"state": json.dumps(state)}
    )
    try:
        atomic_write(folder / NEWEST, data, keep=folder / PREVIOUS if _is_whole(folder / NEWEST) else None)
        atomic_write(folder / STATE, json.dumps(state, indent=1))
    except RunError as error:
        raise RunError(f"cannot save the checkpoint in {folder}: {error}; the last one is kept") from None


def exists(folder: Path) -> bool:
    """Whether `folder` holds a checkpoint."""
    return any((folder / name).exists() for name in (NEWEST, PREVIOUS))


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of the newest whole checkpoint; warns if that is not the newest one.

    Raises RunError if there is none, or it is of another format version.
    """
    problems = []
    for path in (folder / NEWEST, folder / PREVIOUS):
        if path.exists():
            try:
                tensors, state = _read(path)
            except BROKEN as error:
                problems.append(f"{path.name} is cut short or no checkpoint: {error}")
                continue
            if problems:
                warnings.warn(f"{folder}: {problems[0]}; using {path.name} of step {state.get('step')}", stacklevel=2)
            return tensors, state
    if problems:
        raise RunError(f"no whole checkpoint in {folder} ({'; '.join(problems)})")
    raise RunError(f"no checkpoint in {folder}; is it a run folder made by scripts/train.py?")


def part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors called `name.`..., without that prefix."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _is_whole(path: Path) -> bool:
    """Whether `path` has a checkpoint's header and is as long as that says."""
    try:
        with safe_open(path, framework="pt") as file:
            return "state" in (file.metadata() or {})
    except BROKEN:
        return False


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        state = json.loads((file.metadata() or {})["state"])
        if state["format"] != FORMAT_VERSION:
            raise RunError(
                f"{path} has checkpoint format {state['format']}, this nerfkit reads {FORMAT_VERSION}; "
                "use the version of nerfkit that wrote it"
            )
        return {name: file.get_tensor(name) for name in file.keys()}, state
