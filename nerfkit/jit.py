# SPDX-License-Identifier: Apache-2.0
"""Compile ops while writing them: only what changed is compiled again, and nothing is installed.

`torch.utils.cpp_extension` does the work; it needs ninja (``pip install ninja``) and, for .cu files, nvcc and a CUDA
torch. Nothing here runs at import of nerfkit.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import torch

from nerfkit.errors import UserError
from nerfkit.ops import native

SOURCES = Path(__file__).resolve().parent.parent / "cuda"  # of a checkout
INSTALLED_HEADERS = Path(__file__).resolve().parent / "include"  # setup.py puts them there
TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000ULL"  # the oldest torch that setup.py builds for
BEST_LIBRARY, MARCH = native.libraries_for_cpu()[0]
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-fvisibility=hidden", TARGET]
# cpp_extension turns off the conversions of half types, which setup.py's build has.
HALF = ["HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS"]
CUDA_FLAGS = ["-O3", "--expt-relaxed-constexpr", "-DUSE_CUDA", *(f"-U__CUDA_NO_{name}__" for name in HALF)]


class BuildError(UserError, RuntimeError):
    """Ops cannot be compiled here, or were not."""


def build_folder(name: str) -> Path:
    """Build folder of `name`: in TORCH_EXTENSIONS_DIR, or the user's cache."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "nerfkit"
    return Path(root) / name


def headers() -> Path:
    """Folder of the headers for ops of one's own (common/bind.h, common/simd_cpu.h, common/gpu.cuh): a checkout's, or the installed ones."""
    return SOURCES if _in_checkout() else INSTALLED_HEADERS


def load(name: str, sources: list[str | Path], cuda: bool = False, verbose: bool = False) -> Path:
    """Compile `sources` into a library of private ops and load it, as `torch.ops.<its namespace>`.

    Args:
        name: of the library; a second build of that name compiles only what changed.
        sources: .cpp files, with `cuda` also .cu files. They can include what is in `headers()`.
        cuda: build for the GPU, with USE_CUDA defined.
        verbose: show the compilers' commands.

    Returns:
        The library's path. Raises BuildError with the compiler's messages, or for the lock of a killed build.
    """
    from torch.utils import cpp_extension

    folder = build_folder(name)
    lock = folder / "lock"
    if lock.exists():
        raise BuildError(
            f"{lock} exists: another process is building {name}, or one was killed while it did. "
            "If none is building, delete that file and try again."
        )
    if not shutil.which("ninja") and not _has_ninja():
        raise BuildError("ninja is not installed; type: pip install ninja")
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-DUSE_CUDA"] if cuda else [f"-march={MARCH}"] if MARCH else []
    try:
        cpp_extension.load(
            name=name,
            sources=[str(source) for source in sources],
            extra_cflags=[*FLAGS, *flags],
            extra_cuda_cflags=CUDA_FLAGS,
            extra_include_paths=[str(headers())],
            build_directory=str(folder),
            with_cuda=cuda,
            is_python_module=False,
            verbose=verbose,
        )
    except (RuntimeError, OSError) as error:
        raise BuildError(f"{name} did not build: {error}") from error
    return folder / f"{name}.so"


def build_ops(cuda: bool | None = None, verbose: bool = False) -> list[Path]:
    """Compile nerfkit's own ops from a checkout's cuda/ and put them beside the package, for the next start of Python.

    Of the CPU libraries, only the one for this CPU.
    `cuda` is whether to build the GPU's library too; by default, if this torch is a CUDA build.
    """
    if not _in_checkout():
        raise BuildError(f"{SOURCES} is not there; nerfkit's own ops are built from a checkout of its repository")
    if os.environ.get("NERFKIT_DISABLE_NATIVE") != "1":
        raise BuildError("ops that are loaded cannot be replaced; set NERFKIT_DISABLE_NATIVE=1 for this one command")
    (Path(__file__).parent / "built.txt").unlink(missing_ok=True)  # what setup.py built is no longer what is there
    shared = sorted(SOURCES.glob("*/bind.cpp"))
    best = BEST_LIBRARY.removesuffix(".so")
    libraries = {best: [SOURCES / "schema.cpp", *shared, *sorted(SOURCES.glob("**/*cpu.cpp"))]}
    if torch.version.cuda if cuda is None else cuda:
        libraries["_C_cuda"] = [*shared, *sorted(SOURCES.glob("**/*.cu"))]
    built = []
    for name, sources in libraries.items():
        targets = _targets() if name == "_C_cuda" else MARCH or platform.machine()
        library = load(name, [_build_info(name, targets), *sources], cuda=name == "_C_cuda", verbose=verbose)
        target = Path(__file__).resolve().parent / f"{name}.so"
        shutil.copy(library, target.with_suffix(".new"))
        os.replace(target.with_suffix(".new"), target)
        built.append(target)
    return built


def _in_checkout() -> bool:
    return (SOURCES / "schema.cpp").exists()  # an installed package may lie beside a cuda/ of someone else


def _build_info(name: str, targets: str) -> Path:
    """Source of what `python -m nerfkit doctor` prints of the library; written only if it changed."""
    facts = {
        "COMPILER": "compiled while developing", "TORCH": torch.__version__, "TARGETS": targets,
        "SCHEMA": native.schema_hash(),
    }  # fmt: skip
    defines = "".join(f'#define BUILD_{key} "{value}"\n' for key, value in facts.items())
    text = f'{defines}#include "{SOURCES / "build_info.cpp"}"\n'
    path = build_folder(name) / "build_info.cpp"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def _targets() -> str:
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return os.environ.get("TORCH_CUDA_ARCH_LIST") or " ".join(f"{a}.{b}" for a, b in sorted(capabilities))


def _has_ninja() -> bool:
    from torch.utils import cpp_extension

    return cpp_extension.is_ninja_available()
