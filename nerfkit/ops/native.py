# SPDX-License-Identifier: Apache-2.0
"""The compiled libraries beside this package: which were found, which loaded, and why not."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

LIBRARIES = {"cpp": "_C.so", "cuda": "_C_cuda.so"}  # _C.so is for any CPU; there may be faster ones beside it
# torch's names of CPU capabilities: library and -march for each, best first, as in setup.py.
INSTRUCTION_SETS = {"AVX512": ("_C_avx512.so", "x86-64-v4"), "AVX2": ("_C_avx2.so", "x86-64-v3")}
TENSOR_CORES_MAJOR = 8  # compute capability from which on kernels use them, as in cuda/common/mma.cuh
_FOLDER = Path(__file__).resolve().parent.parent
_SCHEMA = _FOLDER.parent / "cuda" / "schema.cpp"  # of a checkout


@dataclass(frozen=True)
class Library:
    """State of one compiled library."""

    backend: str
    path: Path
    loaded: bool
    reason: str


def libraries_for_cpu() -> list[tuple[str, str]]:
    """Names of the CPU libraries that run here and the -march of each, best first; ATEN_CPU_CAPABILITY limits them."""
    names, best = list(INSTRUCTION_SETS), torch.backends.cpu.get_cpu_capability()
    faster = names[names.index(best) :] if best in names else []
    return [*(INSTRUCTION_SETS[name] for name in faster), (LIBRARIES["cpp"], "")]


def _load(backend: str) -> Library:
    """The best library that loads; if none does, the best one that is built."""
    names = [name for name, _ in libraries_for_cpu()] if backend == "cpp" else [LIBRARIES[backend]]
    built = [_FOLDER / name for name in names if (_FOLDER / name).exists()] or [_FOLDER / LIBRARIES[backend]]
    best = _load_from(built[0], backend)
    others = (_load_from(path, backend) for path in built[1:] if not best.loaded)
    return next((library for library in others if library.loaded), best)


def _load_from(path: Path, backend: str) -> Library:
    reason = None
    if os.environ.get("NERFKIT_DISABLE_NATIVE") == "1":
        reason = "NERFKIT_DISABLE_NATIVE=1"
    elif not path.exists():
        reason = "it is not in this installation"
    elif backend == "cuda" and torch.version.cuda is None:
        reason = "this torch is a CPU build"
    elif _SCHEMA.exists() and f"\nschema={schema_hash()}".encode() not in path.read_bytes():
        # Searched, as loading it, even by ctypes, would register its ops.
        reason = f"{path.name} was built from other sources than these; build it again"
    else:
        try:
            torch.ops.load_library(path)
        except OSError as error:
            reason = f"{path.name} did not load: {error}"
    return Library(backend, path, reason is None, reason or "loaded")


def schema_hash() -> str:
    """Hash of cuda/schema.cpp, which the libraries of this checkout contain."""
    return hashlib.sha256(_SCHEMA.read_bytes()).hexdigest()


_libraries = {backend: _load(backend) for backend in LIBRARIES}


def libraries() -> tuple[Library, ...]:
    """State of every compiled library, in the order of LIBRARIES."""
    return tuple(_libraries.values())


def faster_library() -> str | None:
    """A library that is faster on this CPU than the one that loaded, if there is one."""
    best = libraries_for_cpu()[0][0]
    return best if loaded("cpp") and best != _libraries["cpp"].path.name else None


def loaded(backend: str) -> bool:
    """Whether the kernels of `backend` are loaded."""
    return _libraries["cpp"].loaded and _libraries[backend].loaded  # the schemas are in the CPU library


def fake(name: str) -> Callable[[Callable], Callable]:
    """Decorator: shapes and dtypes of the native op `name`, for torch.compile and torch.export."""

    def register(function: Callable) -> Callable:
        if loaded("cpp"):
            torch.library.register_fake(f"nerfkit::{name}")(function)
        return function

    return register


def constant_in_traces(function: Callable) -> Callable:
    """Decorator: torch.compile keeps what the function returns while it traces. Torch's own imports the compiler."""
    function._dynamo_marked_constant = True
    return function


def build_info(backend: str) -> dict[str, str]:
    """What a loaded library was built with: compiler, torch, targets (instruction sets or GPU architectures)."""
    function = ctypes.CDLL(str(_libraries[backend].path)).nerfkit_build_info
    function.restype = ctypes.c_char_p
    return dict(line.split("=", 1) for line in function().decode().splitlines())


def what_was_built() -> str | None:
    """What the installation built and what it did not, and why, in one line; None if it left no word of it."""
    record = _FOLDER / "built.txt"
    return record.read_text().strip() if record.exists() else None


@functools.cache
def why_not_on(gpu: int | None) -> str | None:
    """Why the CUDA library has no code for this GPU, or the current one; None if it has."""
    if not loaded("cuda"):
        return None
    targets = build_info("cuda")["targets"].split()
    capability = torch.cuda.get_device_capability(gpu)
    if any(_runs_on(target, capability) for target in targets):
        return None
    name = torch.cuda.get_device_name(gpu)
    wanted = ".".join(map(str, capability))
    return f"built for {', '.join(targets)}, but {name} has compute capability {wanted}"


def _runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Whether code for `target`, such as 8.6, 9.0a or 12.0+PTX, runs on a GPU of `capability`."""
    match = re.fullmatch(r"(\d+)\.(\d)([a-z]?)(\+PTX)?", target)
    if match is None:
        return True  # unknown format: the launch itself will fail or not
    built = int(match[1]), int(match[2])
    if match[3]:  # 9.0a: for this one only
        return built == capability
    return (built[0] == capability[0] and built[1] <= capability[1]) or (bool(match[4]) and built <= capability)


def missing_hint(backend: str) -> str:
    broken = [_libraries[name] for name in ("cpp", backend) if not _libraries[name].loaded]
    return broken[0].reason if broken else "the library holds no kernel of this op"


def how_to_build(backend: str) -> str:
    """What to type to get `backend`."""
    needs, name = ("a CUDA torch and nvcc", "CUDA") if backend == "cuda" else ("torch and g++", "NATIVE")
    folder = "-e ." if _SCHEMA.exists() else "."  # a checkout is used as it lies
    return f"To build it, in nerfkit's source, with {needs}: NERFKIT_{name}=1 pip install --no-build-isolation {folder}"
