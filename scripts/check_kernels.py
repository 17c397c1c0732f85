# SPDX-License-Identifier: Apache-2.0
"""Without a GPU: build the CUDA library, read what ptxas says of each kernel, load the library.

    python scripts/check_kernels.py         fails on a spill, a stack frame, an unknown symbol or a missing kernel
    python scripts/check_kernels.py --all   for every architecture, not only one of those that share their code
    python scripts/check_kernels.py 9.0     for this one

Needs nvcc and torch (a CPU build will do). The library is made in build/kernels, nothing is installed. Only what
changed since the last build is compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
OBJECTS = ROOT / "build" / "temp" / "nerfkit._C_cuda"  # setup.py puts them there, each with a log of its compiler
LIBRARIES = ROOT / "build" / "kernels"
ARCHITECTURES = "7.5 8.0 8.6 8.9 9.0 10.0 12.0"
DISTINCT = "7.5 8.0 9.0"  # the first of each that kernels tell apart (__CUDA_ARCH__ in cuda/)
# Symbols that only a CUDA torch has; everything else must be in libtorch_cpu.
CUDA_SYMBOLS = {"aoti_torch_get_current_cuda_stream", "torch_c10_cuda_check_msg", "torch_c10_cuda_free_error_msg"}
MAY_SPILL = 64  # bytes; on sm_90, where kernels are measured, none: elsewhere ptxas trades a few for occupancy
REPORT = re.compile(
    r"Compiling entry function '(?P<name>\S+)' for '(?P<arch>\S+)'.*?(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.S,
)


def build(architectures: str) -> None:
    environment = os.environ | {"NERFKIT_NATIVE": "1", "NERFKIT_CUDA": "1", "TORCH_CUDA_ARCH_LIST": architectures}
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(LIBRARIES)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def kernels() -> list[dict[str, str]]:
    """What ptxas said, a dictionary for each kernel and architecture."""
    found = []
    for source in sorted((ROOT / "cuda").rglob("*.cu")):
        name = str(source.relative_to(ROOT / "cuda"))
        log = OBJECTS / f"{name}.o.log"
        text = log.read_text()
        for warning in re.findall(r".*\bwarning\b.*", text):
            print(warning)
        for block in text.split("ptxas info    : Compiling entry function")[1:]:
            match = REPORT.search("Compiling entry function" + block)
            if match is None:
                sys.exit(f"{log}: cannot read what ptxas says of a kernel")
            found.append(match.groupdict() | {"file": name})
    return found


def spills(found: list[dict[str, str]]) -> list[str]:
    names = [kernel["name"] for kernel in found]
    readable = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True).stdout.splitlines()
    out = []
    for kernel, name in zip(found, readable, strict=True):
        name = re.sub(r"\(.*", "", re.sub(r"void |nerfkit::|\(anonymous namespace\)::", "", name))
        allowed = 0 if kernel["arch"] == "sm_90" else MAY_SPILL
        if max(int(kernel[key]) for key in ("stack", "stores", "loads")) > allowed:
            out.append(
                f"{kernel['file']} {name} {kernel['arch']}: {kernel['registers']} registers, stack {kernel['stack']}, "
                f"spilled {kernel['stores']}/{kernel['loads']} bytes"
            )
    return out


def undefined_symbols(library: Path) -> set[str]:
    lines = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True).stdout
    return {name for name in re.findall(r"U (\w+)", lines) if name.startswith(("aoti_", "torch_"))}


def load_through_stub() -> None:
    """Load both libraries in a process that has the CUDA symbols from a stub, and look every CUDA kernel up."""
    with tempfile.TemporaryDirectory() as scratch:
        stub = Path(scratch) / "stub.so"
        source = "".join(f"void {name}(void) {{}}\n" for name in sorted(CUDA_SYMBOLS))
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(stub)], input=source, text=True, check=True
        )
        program = (
            "import re, sys, torch\n"
            "torch.ops.load_library(sys.argv[1] + '/_C.so'); torch.ops.load_library(sys.argv[1] + '/_C_cuda.so')\n"
            "names = re.findall(r'm.def\\(\\s*\"(_\\w+)', open('cuda/schema.cpp').read())\n"
            "names = [n for n in names if '_cpu_' not in n]\n"
            "has = torch._C._dispatch_has_kernel_for_dispatch_key\n"
            "missing = [n for n in names if not has('nerfkit::' + n, 'CUDA')]\n"
            "assert names and not missing, f'no CUDA kernel: {missing}'\n"
            "print(f'{len(names)} native ops have a CUDA kernel')\n"
        )
        environment = os.environ | {"LD_PRELOAD": str(stub)}
        command = [sys.executable, "-c", program, str(LIBRARIES / "nerfkit")]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main() -> None:
    asked = " ".join(sys.argv[1:]) or DISTINCT
    architectures = ARCHITECTURES if asked == "--all" else asked
    build(architectures)
    found = kernels()
    wrong = spills(found)
    symbols = undefined_symbols(LIBRARIES / "nerfkit" / "_C_cuda.so")
    libtorch = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    known = set(
        subprocess.run(["nm", "-D", "--defined-only", str(libtorch)], capture_output=True, text=True).stdout.split()
    )
    wrong += [f"_C_cuda.so needs {name}, which no torch has" for name in symbols - known - CUDA_SYMBOLS]
    load_through_stub()
    most = max(int(kernel["registers"]) for kernel in found)
    print(f"{len(found)} kernels for {architectures}: at most {most} registers, {len(wrong)} faults")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
