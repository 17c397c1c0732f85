# SPDX-License-Identifier: Apache-2.0
"""Builds the fused ops: nerfkit/_C.so for the CPU and nerfkit/_C_cuda.so for NVIDIA GPUs.

On x86-64 the CPU's is built again for each of INSTRUCTION_SETS; nerfkit/ops/native.py loads the best that runs.
All use LibTorch's stable ABI and no Python C API: one build serves every torch from 2.10 on and every Python. torch
is never imported, only its headers are read, so that build isolation need not fetch another one. Variables:

    NERFKIT_NATIVE=auto|0|1   0: pure Python; 1: an error where auto would fall back to pure Python
    NERFKIT_CUDA=auto|0|1     auto: if nvcc is found and the installed torch is a CUDA build
    NERFKIT_TORCH_DIR         folder of the torch package, if it is not found by itself
    TORCH_CUDA_ARCH_LIST, CUDA_HOME, CXX, MAX_JOBS   as usual
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
TEMP = Path("build/temp")  # for editable installations, too, which setuptools would give a new folder each
# Libraries for the CPU, and the -march of each; _C runs everywhere.
IS_X86 = platform.machine() in ("x86_64", "AMD64")
INSTRUCTION_SETS = {"_C": "", **({"_C_avx2": "x86-64-v3", "_C_avx512": "x86-64-v4"} if IS_X86 else {})}
# Ops whose CPU kernels g++ -O2 makes 1.1 to 2.1 times slower (measured, AVX-512), or gives other last bits (composite).
# The others are as fast, and compile in about two thirds of the time.
NEED_O3 = ("composite", "grid_encode", "lazy_adam", "march", "spherical_harmonics", "trilinear")
KINDS = {"_C": "baseline", "_C_avx2": "AVX2", "_C_avx512": "AVX-512", "_C_cuda": "CUDA"}
ARCHITECTURES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]


@functools.cache
def answer_of(*command: str) -> str:
    """What a program prints, also as errors."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20).stdout
    return ""


def switch(name: str) -> str:
    """Value of the variable `name`: auto, 0 or 1."""
    value = os.environ.get(name) or "auto"
    return value if value in ("auto", "0", "1") else sys.exit(f"{name} must be auto, 0 or 1, got {value!r}")


def find_torch() -> dict | None:
    """What version.py of the installed torch defines, and its "folder"; also from an isolated build environment."""
    asked, header = os.environ.get("NERFKIT_TORCH_DIR"), "include/torch/csrc/stable/library.h"
    spec = importlib.util.find_spec("torch")
    folders = [*spec.submodule_search_locations] if spec else []
    folders += [f"{sysconfig.get_path(key)}/torch" for key in ("purelib", "platlib")]
    for prefix in filter(None, map(os.environ.get, ("VIRTUAL_ENV", "CONDA_PREFIX"))):
        folders += Path(prefix).glob("lib/python*/site-packages/torch")
    for folder in map(Path, [asked] if asked else folders):
        facts = runpy.run_path(str(folder / "version.py")) if (folder / header).exists() else {"__version__": "0.0"}
        if tuple(map(int, facts["__version__"].split(".")[:2])) >= (2, 10):
            return facts | {"folder": folder}
    return sys.exit(f"NERFKIT_TORCH_DIR={asked}: there is no torch >= 2.10 with {header}") if asked else None


NATIVE, CUDA = switch("NERFKIT_NATIVE"), switch("NERFKIT_CUDA")
TORCH = find_torch()
CXX = shlex.split(os.environ.get("CXX") or "g++")
NVCCS = [f"{home}/bin/nvcc" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
NVCC = next((file for file in NVCCS if Path(file).exists()), shutil.which("nvcc"))
NINJA = shutil.which("ninja", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))


def cuda_home() -> Path:
    """Folder of the toolkit. nvcc on PATH may be a wrapper script, so it is asked."""
    top = re.search(r"^#\$ TOP=(.*)$", answer_of(NVCC, *"--dryrun -x cu -c /dev/null -o /dev/null".split()), re.M)
    return Path(top[1] if top else Path(NVCC).resolve().parent.parent).resolve()


def architectures() -> list[str]:
    """Compute capabilities: as asked, else those of the GPUs here, else all that nvcc knows, with PTX of the newest."""
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").replace(",", " ").split()
    here = answer_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    if found := asked or re.findall(r"^\d+\.\d$", here, re.M):
        return sorted(set(found))
    answer = answer_of(NVCC, "--list-gpu-arch").split()
    known = [name for name in ARCHITECTURES if f"compute_{name.replace('.', '')}" in answer] or ARCHITECTURES
    return [*known[:-1], known[-1] + "+PTX"]


def why_not(library: str) -> str | None:
    """Why `library` is not to be built; None if it is."""
    reasons = {
        "NERFKIT_NATIVE=0": NATIVE == "0",
        f"no native build on {sys.platform} yet": sys.platform != "linux",
        "no torch >= 2.10 found; install torch first, or set NERFKIT_TORCH_DIR": not TORCH,
        f"no C++ compiler ({CXX[0]})": not shutil.which(CXX[0]),
        "no ninja; pip install ninja": not NINJA,
    }
    if library == "_C_cuda":
        reasons["NERFKIT_CUDA=0"] = CUDA == "0"
        reasons[f"no nvcc, neither on PATH nor as {' or '.join(NVCCS)}; set CUDA_HOME"] = not NVCC
        reasons["the installed torch is a CPU build"] = CUDA == "auto" and TORCH and not TORCH["cuda"]
    return next((reason for reason, holds in reasons.items() if holds), None)


def extensions() -> list[Extension]:
    """The libraries with their sources: bindings go into all, with the kernels of one device each; runs no program."""
    bind, cpu, gpu = (sorted(map(str, Path("cuda").rglob(name))) for name in ("bind.cpp", "*cpu.cpp", "*.cu"))
    wanted = dict.fromkeys(INSTRUCTION_SETS, (NATIVE, ["cuda/schema.cpp", "cuda/build_info.cpp", *bind, *cpu]))
    wanted["_C_cuda"] = CUDA, ["cuda/build_info.cpp", *bind, *gpu]
    found = []
    for name, (asked, sources) in wanted.items():
        if not (reason := why_not(name)):
            found.append(Extension(f"nerfkit.{name}", sources, optional="1" not in (NATIVE, asked)))
        elif asked == "1":
            sys.exit(f"{KINDS[name]} ops were asked for by NERFKIT_NATIVE=1 or NERFKIT_CUDA=1, but {reason}")
    return found


def record(package: Path, built: set[str]) -> None:
    """Say what was built and what was not, and why. `nerfkit doctor` repeats it, as pip shows no build's output."""
    cpu = [KINDS[name] for name in INSTRUCTION_SETS if name in built]
    parts = [f"CPU ops for {platform.machine()} {'+'.join(cpu)}"] if cpu else []
    parts += [f"CUDA ops for compute capability {' '.join(architectures())}"] if "_C_cuda" in built else []
    for name in sorted({*INSTRUCTION_SETS, "_C_cuda"} - built):
        parts.append(f"no {KINDS[name]} ops: {why_not(name) or 'they did not compile, pip install -v shows why'}")
    line = f"no fused ops, pure Python: {why_not('_C')}" if why_not("_C") else "; ".join(parts)
    package.mkdir(parents=True, exist_ok=True)
    (package / "built.txt").write_text(line + "\n")
    print(f"nerfkit build: done: {line}", file=sys.stderr)


def compile_command(source: str, target: str, library: str) -> list[str]:
    """How to compile `source`; the files that it includes are left in a list beside the object."""
    is_kernel, compiler = source.endswith("cpu.cpp"), answer_of(*CXX, "--version").partition("\n")[0]
    optimization = ["-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic"]  # makes loops vectors as -O3 does
    if source.endswith(".cu") or (is_kernel and Path(source).parent.name in NEED_O3) or "clang" in compiler:
        optimization = ["-O3"]  # only where it pays for the time that it takes to compile
    common = [*optimization, "-std=c++17", "-Icuda", "-MD", "-MF", f"{target}.d", "-c", source, "-o", target]
    if source.endswith(".cu"):
        flags = ["-Xcompiler", "-fPIC,-fvisibility=hidden", "--expt-relaxed-constexpr", "-Xptxas", "-v"]
        flags += ["--threads", "4"]  # architectures of a file at a time: the longest file is what a build waits for
        flags += ["-ccbin", CXX[0]] if os.environ.get("CXX") else []
        if "--compress-mode" in answer_of(NVCC, "--help"):
            flags += ["--compress-mode=size"]  # makes the library five times smaller; nvcc has it from 12.8 on
        for architecture in architectures():
            number, ptx, _ = architecture.replace(".", "").partition("+PTX")
            flags += [f"-gencode=arch=compute_{number},code={k}_{number}" for k in ("sm", "compute")[: 1 + bool(ptx)]]
        return [NVCC, *flags, *common]
    flags = ["-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas", "-Wno-psabi"]
    # Not -ffast-math: it would flush the whole process's denormals to zero.
    flags += ["-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", f"-ffile-prefix-map={ROOT}=nerfkit"]
    # The oldest torch: the libraries use nothing newer, so they load on it and on all later ones.
    flags += ["-DTORCH_TARGET_VERSION=0x020a000000000000ULL", f"-isystem{TORCH['folder']}/include"]
    if library == "_C_cuda":
        flags += ["-DUSE_CUDA", f"-isystem{cuda_home()}/include"]
        targets = " ".join(architectures())
    else:
        targets = INSTRUCTION_SETS[library] or platform.machine()
        flags += [f"-march={targets}"] if is_kernel and library != "_C" else []
    if source.endswith("build_info.cpp"):  # the hash is what nerfkit/ops/native.py looks for in the libraries
        schema = hashlib.sha256((ROOT / "cuda/schema.cpp").read_bytes()).hexdigest()
        facts = {"COMPILER": compiler, "TORCH": TORCH["__version__"], "TARGETS": targets, "SCHEMA": schema}
        flags += [f'-DBUILD_{name}="{value}"' for name, value in facts.items()]
    return [*CXX, *flags, *common]


def link_command(objects: list[str], target: str, library: str) -> list[str]:
    libraries = [f"-L{TORCH['folder']}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-Wl,--as-needed"]
    if library == "_C_cuda":
        # The static CUDA runtime does not tie the library to the minor version of torch's own.
        folders = [cuda_home() / name / "libcudart_static.a" for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
        runtime = next((str(file) for file in folders if file.exists()), "-lcudart")
        libraries += [runtime, "-ldl", "-lrt", "-lpthread"]
    return [*CXX, "-shared", "-Wl,--exclude-libs,ALL", "-Wl,-z,now", *objects, *libraries, "-o", target]


def ninja_file(libraries: list[Extension], files: dict[str, Path]) -> str:
    """How to make the file of each library; objects that are the same in all for the CPU are compiled once."""
    # What an object depends on besides sources and flags is a comment: ninja compiles again if a command changed.
    compiler = answer_of(*CXX, "--version").partition("\n")[0]
    versions = shlex.join([compiler, TORCH["__version__"], os.environ.get("NVCC_APPEND_FLAGS", "")])
    steps = {}  # of each file to make: what it is made of, how, and what is said of that
    for extension in libraries:
        objects, file = [], files[extension.name]
        for source in extension.sources:
            own = file.stem == "_C_cuda" or source.endswith(("cpu.cpp", "build_info.cpp"))
            owner, name = file.stem if own else "_C", source.removeprefix("cuda/")
            target = f"{TEMP}/nerfkit.{owner}/{name}.o"
            line = shlex.join(compile_command(source, target, owner))
            if source.endswith(".cu"):  # nvcc says a lot, such as the registers of kernels
                line += f" 2>{target}.log || (cat {target}.log; false)"
            steps[target] = [source], f"{line} # {versions}", f"{name} ({KINDS[owner]})"
            objects.append(target)
        steps[str(file)] = objects, shlex.join(link_command(objects, str(file), file.stem)), file.name
    text = f"builddir = {TEMP}\nrule run\n  command = $line\n  description = $what\n  deps = gcc\n  depfile = $out.d\n"
    for target, (sources, line, what) in sorted(steps.items(), key=lambda step: not step[0].endswith(".cu.o")):
        target, *sources = (re.sub(r"([$ :])", r"$\1", name) for name in (target, *sources))
        text += f"build {target}: run {' '.join(sources)}\n  line = {line.replace('$', '$$')}\n  what = {what}\n"
    return text


class BuildLibraries(build_ext):
    """Has ninja compile what changed: setuptools knows neither .cu files nor libraries without a module."""

    def run(self) -> None:
        folder = Path("" if self.inplace else self.build_lib)
        files = {extension.name: folder / self.get_ext_filename(extension.name) for extension in self.extensions}
        for file in files.values():
            file.unlink(missing_ok=True)  # nothing older is left if it fails; a process that has it loaded keeps it
        TEMP.mkdir(parents=True, exist_ok=True)
        (TEMP / "build.ninja").write_text(ninja_file(self.extensions, files))
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        command = [NINJA, "-f", str(TEMP / "build.ninja"), "-j", jobs, "-k", "1" if NATIVE == "1" else "0"]
        subprocess.run(command, stdout=sys.stderr, env=os.environ | {"NINJA_STATUS": "nerfkit build: %f of %t, "})
        for extension in self.extensions:
            if not extension.optional and not files[extension.name].exists():
                sys.exit(f"{extension.name} failed")
        record(folder / "nerfkit", {file.stem for file in files.values() if file.exists()})

    def get_ext_filename(self, name: str) -> str:
        return f"{name.replace('.', '/')}.so"


class BuildPython(build_py):
    """Ships what has its one place elsewhere in a checkout: presets, the demo's scene, headers for ops of others."""

    def run(self) -> None:
        super().run()
        package = Path("nerfkit" if self.editable_mode else f"{self.build_lib}/nerfkit")
        if why_not("_C"):
            record(package, set())
        if not self.editable_mode:
            no_headers = shutil.ignore_patterns("*.cpp", "*.cu", "*.md")
            for folder in ("configs", "data/demo"):
                shutil.copytree(ROOT / folder, package / folder, dirs_exist_ok=True)
            shutil.copytree(ROOT / "cuda", package / "include", ignore=no_headers, dirs_exist_ok=True)


class Wheel(bdist_wheel):
    """py3-none-<platform>: the libraries hold no Python C API."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


modules = extensions()
setup(ext_modules=modules, cmdclass={"build_ext": BuildLibraries, "build_py": BuildPython, "bdist_wheel": Wheel})
