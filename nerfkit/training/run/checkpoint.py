# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: one safetensors file with the state as JSON in its header and a checksum of both; no pickle.

Each file is self-contained: `checkpoint.safetensors` exists at every moment from the first save on, and beside it the
one before, `checkpoint.previous.safetensors`, until the training ends. What they hold of a training, all that its next
steps follow from, is `taken` and `put_back` here.
"""

import json
import random
import stat
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from nerfkit.device import check_memory
from nerfkit.errors import RunError
from nerfkit.files import OwnFolder
from nerfkit.training.run.files import CONFIG, NEWEST, PREVIOUS
from nerfkit.training.run.files import has_checkpoint as exists
from nerfkit.version import versions

Trainer = Any  # a `nerfkit.Trainer`, whose file imports this one
FORMAT_VERSION = 3
BROKEN = (OSError, ValueError, KeyError, TypeError, SafetensorError, RecursionError)  # of a truncated or foreign file


def save(folder: OwnFolder, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint; the one before becomes the previous one, unless it is broken. Raises RunError if it cannot be
    written, as where the disk is full; the last one is then unchanged."""
    state = {"format": FORMAT_VERSION, **state}
    text = json.dumps(state)
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata = {"state": text, "checksum": checksum(tensors, text)}

    def write(file: Path) -> None:
        try:
            safetensors.torch.save_file(tensors, file, metadata)  # as bytes it would be in memory twice
        except SafetensorError as error:
            raise OSError(str(error)) from None

    try:
        folder.write(NEWEST, write, PREVIOUS if _is_intact(folder) else None)
    except RunError as error:
        kept = "; the last one is kept" if exists(folder.path) else ""
        raise RunError(f"cannot save the checkpoint in {folder.path}: {error}{kept}") from None


def load(folder: Path, whole: set[str] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of the newest intact checkpoint, whose name is added to `whole`; warns if it is not the newest,
    raises RunError if there is none, or it is of another format version."""
    problems = []
    for path in (folder / NEWEST, folder / PREVIOUS):
        try:
            tensors, state = _read(path)
        except FileNotFoundError:
            problems.append(f"{path.name} is missing")
        except BROKEN as error:
            problems.append(f"{path.name} is damaged or no checkpoint ({' '.join(str(error).split())[:200]})")
        else:
            if problems:
                warnings.warn(f"{folder}: {problems[0]}; using {path.name} of step {state['step']}", stacklevel=2)
            if whole is not None:
                whole.add(path.name)
            return tensors, state
    raise RunError(f"no intact checkpoint in {folder}: {'; '.join(problems)}; put it back, or train again")


def part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors called `name.`..., without that prefix."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def fill(module: nn.Module, name: str, tensors: dict[str, Tensor], folder: Path) -> None:
    """Fill `module` from that part of a checkpoint's tensors; raises RunError if they do not fit."""
    try:
        module.load_state_dict(part(tensors, name))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"the checkpoint in {folder} does not fit its {CONFIG}; was that edited? ({reason})") from None


def taken(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state for `save`; each of several processes calls it, the first has what is saved."""
    tensors = trainer.model.state_dict(prefix="model.") | trainer.adjustments.state_dict(prefix="views.")
    tensors |= trainer.training_step.outliers.state_dict(prefix="outliers.")
    for index, moments in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
    tensors |= {f"random.{name}": generator.get_state() for name, generator in _generators(trainer).items()}
    name, keys, *others = np.random.get_state()
    state = {
        "step": trainer.step,
        "seconds": trainer.seconds,
        **trainer.training_step.state_dict(),
        "random": {"python": random.getstate(), "numpy": [name, keys.tolist(), *others]},
        "backend": trainer.backends(),
        "versions": versions(),
    }
    if trainer.processes.size > 1 or trainer.scheduled != trainer.step:  # also of later parts of such a run
        n_rays = trainer.processes.all_gather(state["n_rays"])
        state["parallel"] = {"scheduled": trainer.scheduled, "n_rays": n_rays}
    return tensors, state


def put_back(trainer: Trainer, tensors: dict[str, Tensor], state: dict[str, Any], folder: Path) -> float:
    """Inverse of `taken`; the place in the schedule. Raises RunError if something is missing or does not fit."""
    fill(trainer.model, "model", tensors, folder)
    fill(trainer.adjustments, "views", tensors, folder)
    fill(trainer.training_step.outliers, "outliers", tensors, folder)
    try:
        _load_moments(trainer.optimizer, list(trainer.parameters.values()), part(tensors, "optimizer"))
        shared = state.get("parallel", {"scheduled": state["step"], "n_rays": []})
        if len(shared["n_rays"]) == trainer.processes.size:
            state["n_rays"] = shared["n_rays"][trainer.processes.rank]
        trainer.training_step.load_state_dict(state)
        saved = part(tensors, "random")
        for name, generator in _generators(trainer).items():
            if name in saved or not name.startswith("cuda"):  # a GPU that was not there has no state
                generator.set_state(saved[name])
        version, words, gauss = state["random"]["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(state["random"]["numpy"])
        trainer.step, trainer.seconds = state["step"], state["seconds"]
        return shared["scheduled"]
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError, OverflowError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunError(f"the checkpoint in {folder} cannot be resumed ({reason[:200]})") from None


def _generators(trainer: Trainer) -> dict[str, torch.Generator]:
    """The training's own, and torch's, which code of one's own may draw from."""
    of_gpus = {f"cuda{index}": generator for index, generator in enumerate(torch.cuda.default_generators)}
    return {"cpu": torch.default_generator, **of_gpus, "trainer": trainer.generator}


def _load_moments(optimizer: torch.optim.Optimizer, parameters: list[Tensor], values: dict[str, Tensor]) -> None:
    """Moments and steps from tensors called `<index of the parameter>.<name>`; ValueError if one lacks, or is none."""
    state = optimizer.state_dict()
    for index in sorted({name.partition(".")[0] for name in values}):
        moments, shape = part(values, index), parameters[int(index)].shape
        wanted = {"step": torch.Size(), "exp_avg": shape, "exp_avg_sq": shape}
        wrong = sorted(wanted.items() ^ {name: value.shape for name, value in moments.items()}.items())
        if wrong:
            raise ValueError(f"optimizer.{index}.{wrong[0][0]} is missing, or its shape is not {list(shape)}")
        state["state"][int(index)] = moments
    optimizer.load_state_dict(state)


def checksum(tensors: dict[str, Tensor], state: str) -> str:
    """CRC-32 of the state and of every tensor's name, type, shape and bytes, in the order of their names."""
    crc = zlib.crc32(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.flatten().view(torch.uint8).numpy() if tensor.numel() else b"", crc)
    return f"{crc:08x}"


def _is_intact(folder: OwnFolder) -> bool:
    """Whether the newest checkpoint can become the previous one; what this process wrote or read is not read again."""
    try:
        if NEWEST not in folder.whole:
            _read(folder.path / NEWEST)
        with safetensors.safe_open(folder.path / NEWEST, framework="pt"):  # of the length in its header
            return True
    except BROKEN:
        return False
    except RunError:  # of another format, or too large to be read now: not broken
        return True


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state; the file is opened once, as it may be replaced meanwhile."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
        raise ValueError("it is no regular file")
    with open(path, "rb") as file:
        check_memory(2 * path.stat().st_size, f"the checkpoint {path}", torch.device("cpu"))
        data = file.read()
    tensors = safetensors.torch.load(data)
    end = 8 + int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8:end])["__metadata__"]
    state = json.loads(metadata["state"])
    if metadata["checksum"] != checksum(tensors, metadata["state"]):
        raise ValueError("its checksum is not that of its content")
    if state["format"] != FORMAT_VERSION:
        raise RunError(
            f"{path} has checkpoint format {state['format']}, this nerfkit reads {FORMAT_VERSION}; "
            "use the version of nerfkit that wrote it"
        )
    kinds = {"step": int, "seconds": (int, float), "n_rays": int, "random": dict}
    if wrong := [key for key, kind in kinds.items() if not isinstance(state.get(key), kind)]:
        raise ValueError(f"its state has no {wrong[0]}")
    return tensors, state
