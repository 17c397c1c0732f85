# SPDX-License-Identifier: Apache-2.0
"""The compiled libraries beside this package: which were found, which loaded, and why not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

LIBRARIES = {"cpp": "_C.so", "cuda": "_C_cuda.so"}
_FOLDER = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Library:
    """State of one compiled library."""

    backend: str
    path: Path
    loaded: bool
    reason: str


def _load(backend: str) -> Library:
    path = _FOLDER / LIBRARIES[backend]
    if not path.exists():
        return Library(backend, path, False, f"{path.name} is not in this installation")
    if backend == "cuda" and torch.version.cuda is None:
        return Library(backend, path, False, "this torch is a CPU build")
    try:
        torch.ops.load_library(path)
    except OSError as error:
        return Library(backend, path, False, f"{path.name} did not load: {error}")
    return Library(backend, path, True, "loaded")


_libraries = {backend: _load(backend) for backend in LIBRARIES}


def libraries() -> tuple[Library, ...]:
    """State of every compiled library, in the order of LIBRARIES."""
    return tuple(_libraries.values())


def why_missing(backend: str) -> str:
    """Reason why `backend` cannot run, in a few words."""
    library = _libraries[backend]
    return "the library holds no kernel of this op" if library.loaded else library.reason


def how_to_build(backend: str) -> str:
    """What to type to get `backend`."""
    return f"This release of nerfkit ships no {backend} kernels."
