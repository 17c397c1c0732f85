# SPDX-License-Identifier: Apache-2.0
"""Compile ops of one's own while writing them: only what changed is compiled again, and nothing is installed.

`torch.utils.cpp_extension` does the work; it needs ninja (``pip install ninja``) and, for .cu files, nvcc and a CUDA
torch. Nothing here runs at import of nerfkit.
"""

import os
from pathlib import Path

from nerfkit.errors import UserError
from nerfkit.ops import native

SOURCES = Path(__file__).resolve().parent.parent / "cuda"  # of a checkout
INSTALLED_HEADERS = Path(__file__).resolve().parent / "include"  # setup.py puts them there
TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000ULL"  # the oldest torch that setup.py builds for
MARCH = native.libraries_for_cpu()[0][1]  # for this CPU
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-fvisibility=hidden", TARGET]
# cpp_extension turns off the conversions of half types, which setup.py's build has.
HALF = ["HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS"]
CUDA_FLAGS = ["-O3", "--expt-relaxed-constexpr", "-DUSE_CUDA", *(f"-U__CUDA_NO_{name}__" for name in HALF)]


class BuildError(UserError, RuntimeError):
    """Ops cannot be compiled here, or were not."""


def headers() -> Path:
    """Folder of the headers for ops of one's own, such as common/bind.h: a checkout's, or the installed ones."""
    is_checkout = (SOURCES / "schema.cpp").exists()  # an installed package may lie beside a cuda/ of someone else
    return SOURCES if is_checkout else INSTALLED_HEADERS


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

    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "nerfkit") / name
    lock = folder / "lock"
    if lock.exists():
        raise BuildError(
            f"{lock} exists: another process is building {name}, or one was killed while it did. "
            "If none is building, delete that file and try again."
        )
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
