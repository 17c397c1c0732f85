# SPDX-License-Identifier: Apache-2.0
"""Builds the fused ops: nerfkit/_C.so for the CPU and nerfkit/_C_cuda.so for NVIDIA GPUs.

On x86-64 the CPU's is built again for each of INSTRUCTION_SETS; nerfkit/ops/native.py loads the best that runs.
All use LibTorch's stable ABI and no Python C API: one build serves every torch from 2.10 on and every Python. torch
is never imported, only its headers are read, so that build isolation need not fetch another one. Ninja compiles what
changed; objects stay in build/temp. Variables:

    NERFKIT_NATIVE=auto|0|1   0: pure Python; 1: an error where auto would fall back to pure Python
    NERFKIT_CUDA=auto|0|1     auto: if nvcc is found and the installed torch is a CUDA build
    NERFKIT_TORCH_DIR         folder of the torch package, if it is not found by itself
    TORCH_CUDA_ARCH_LIST, CUDA_HOME, CXX, MAX_JOBS   as usual
"""

from __future__ import annotations

import functools
import glob
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple, NoReturn

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
TEMP = Path("build/temp")  # for editable installations, too, which setuptools would give a new folder each
OLDEST_TORCH = (2, 10)  # the binaries use nothing newer, so they load on it and on all later ones
OLDEST = ".".join(map(str, OLDEST_TORCH))
# Libraries for the CPU, and the -march of each; _C runs everywhere, the others are of x86-64.
INSTRUCTION_SETS = {"_C": "", "_C_avx2": "x86-64-v3", "_C_avx512": "x86-64-v4"}
# Ops whose CPU kernels g++ -O2 makes 1.1 to 2.1 times slower (measured, AVX-512), or gives other last bits (composite).
# The others are as fast, and compile in about two thirds of the time.
NEED_O3 = ("composite", "grid_encode", "lazy_adam", "march", "spherical_harmonics", "trilinear")
KINDS = {"_C": "baseline", "_C_avx2": "AVX2", "_C_avx512": "AVX-512", "_C_cuda": "CUDA"}
ARCHITECTURES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]


class Torch(NamedTuple):
    folder: Path
    version: str
    cuda: str | None


def say(*words: object) -> None:
    print("nerfkit build:", *words, file=sys.stderr, flush=True)


def answer_of(*command: str | Path) -> str:
    """What a program prints, nothing if it cannot run or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


# ---- what there is: switches, torch, compilers, GPUs


def fail(why: str) -> NoReturn:
    sys.exit(f"nerfkit build: {why}")


def switch(name: str) -> str:
    """Value of the variable `name`: auto, 0 or 1."""
    value = os.environ.get(name) or "auto"
    return value if value in ("auto", "0", "1") else fail(f"{name} must be auto, 0 or 1, got {value!r}")


def find_torch() -> Torch | None:
    """The installed torch, also from inside an isolated build environment."""
    asked, header = os.environ.get("NERFKIT_TORCH_DIR"), "include/torch/csrc/stable/library.h"
    if asked and not (Path(asked) / header).exists():
        fail(f"NERFKIT_TORCH_DIR={asked} is not the folder of a torch >= {OLDEST}: no {header} in it")
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    folders += [os.path.join(sysconfig.get_path(key), "torch") for key in ("purelib", "platlib")]
    prefixes = [os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    prefixes += [os.path.dirname(programs) for programs in os.environ.get("PATH", "").split(os.pathsep)]
    for prefix in filter(None, prefixes):
        folders += glob.glob(os.path.join(prefix, "lib/python*/site-packages/torch"))
    for folder in map(Path, [asked] if asked else folders):
        if not (folder / header).exists():
            continue
        facts: dict = {}
        exec((folder / "version.py").read_text(), facts)
        version = facts["__version__"]
        if tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", version).groups()) >= OLDEST_TORCH:
            return Torch(folder, version, facts.get("cuda"))
        say(f"torch {version} at {folder} is older than {OLDEST}")
    return None


NATIVE, CUDA = switch("NERFKIT_NATIVE"), switch("NERFKIT_CUDA")
TORCH = find_torch()
ASKED_CXX = shlex.split(os.environ.get("CXX", ""))
CXX = ASKED_CXX or ["g++"]
CUDA_HOMES = [home for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
NVCCS = [Path(home) / "bin/nvcc" for home in CUDA_HOMES]
NVCC = next((str(file) for file in NVCCS if file.exists()), shutil.which("nvcc"))
NINJA = shutil.which("ninja", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))


def about_nvcc() -> str:
    """Where nvcc is, or was sought."""
    return f"nvcc at {NVCC}" if NVCC else f"no nvcc: neither on PATH nor as bin/nvcc in {' or '.join(CUDA_HOMES)}"


@functools.cache
def cuda_home() -> Path:
    """Folder of the toolkit. nvcc on PATH may be a wrapper script, so it is asked."""
    command = [NVCC, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    answer = subprocess.run(command, capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.*)$", answer, re.M)
    return Path(top[1] if top else Path(NVCC).resolve().parent.parent).resolve()


def asked_architectures() -> list[str]:
    """Those of TORCH_CUDA_ARCH_LIST."""
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").replace(",", " ").split()
    wrong = [name for name in asked if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", name)]
    if wrong:
        fail(f"TORCH_CUDA_ARCH_LIST takes compute capabilities such as 8.0, 9.0a or 12.0+PTX, got {' '.join(wrong)}")
    return sorted(set(asked))


@functools.cache
def architectures() -> list[str]:
    """Compute capabilities to build for: as asked, else those of this machine's GPUs, else the ARCHITECTURES that nvcc
    knows, all if it cannot be asked, with PTX of the newest for later GPUs."""
    if asked := asked_architectures():
        return asked
    gpus = answer_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    if found := sorted(set(re.findall(r"^\d+\.\d$", gpus, re.M))):
        return found
    answer = answer_of(NVCC, "--list-gpu-arch").split()
    known = [name for name in ARCHITECTURES if f"compute_{name.replace('.', '')}" in answer] or ARCHITECTURES
    return [*known[:-1], known[-1] + "+PTX"]


@functools.cache
def gpu_flags() -> list[str]:
    """nvcc's code for each architecture, and what makes the library five times smaller, which it has from 12.8 on."""
    flags = ["--compress-mode=size"] if "--compress-mode" in answer_of(NVCC, "--help") else []
    for architecture in architectures():
        number = architecture.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if architecture.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


# ---- what to build, and what is said of it


def why_pure_python() -> str | None:
    if NATIVE == "0":
        return "NERFKIT_NATIVE=0"
    if sys.platform != "linux":
        return f"no native build on {sys.platform} yet"
    if TORCH is None:
        return f"no torch >= {OLDEST} found; install torch first, or set NERFKIT_TORCH_DIR"
    if not shutil.which(CXX[0]):
        return f"no C++ compiler ({CXX[0]})"
    return None if NINJA else "no ninja; pip install ninja"


def why_no_cuda() -> str | None:
    if CUDA == "0":
        return "NERFKIT_CUDA=0"
    if not NVCC:
        return about_nvcc()
    return f"torch {TORCH.version} is a CPU build" if CUDA == "auto" and not TORCH.cuda else None


def libraries_for_cpus() -> list[str]:
    """Those of INSTRUCTION_SETS that this machine's kind of CPU may have."""
    return list(INSTRUCTION_SETS) if platform.machine() in ("x86_64", "AMD64") else ["_C"]


def extensions() -> list[Extension]:
    """The libraries with their sources: bindings go into all, with the kernels of one device each; runs no program."""
    if reason := why_pure_python():
        return [] if "1" not in (NATIVE, CUDA) else fail(f"the fused ops were asked for, but {reason}")
    if CUDA == "1" and not NVCC:
        fail(f"NERFKIT_CUDA=1, but {about_nvcc()}; set CUDA_HOME to a CUDA toolkit")
    cpu, gpu = (sorted(glob.glob(f"cuda/**/*{suffix}", recursive=True)) for suffix in ("cpu.cpp", ".cu"))
    shared = ["cuda/build_info.cpp", *sorted(glob.glob("cuda/*/bind.cpp"))]
    sources = {name: ["cuda/schema.cpp", *shared, *cpu] for name in libraries_for_cpus()}
    if not why_no_cuda():
        asked_architectures()  # a wrong one is said before anything is compiled
        sources["_C_cuda"] = [*shared, *gpu]
    must = [name for name in sources if NATIVE == "1" or (CUDA == "1" and name == "_C_cuda")]
    return [Extension(f"nerfkit.{name}", sources[name], optional=name not in must) for name in sources]


def summary(built: set[str]) -> str:
    """What was built and what was not, and why, in one line."""
    if reason := why_pure_python():
        return f"no fused ops, pure Python: {reason}"
    cpu = [KINDS[name] for name in INSTRUCTION_SETS if name in built]
    parts = [f"CPU ops for {platform.machine()} {'+'.join(cpu)}"] if cpu else []
    if "_C_cuda" in built:
        parts.append(f"CUDA ops for compute capability {' '.join(architectures())}")
    reasons = dict.fromkeys(libraries_for_cpus()) | {"_C_cuda": why_no_cuda()}
    for name in [name for name in reasons if name not in built]:
        parts.append(f"no {KINDS[name]} ops: {reasons[name] or 'they did not compile, pip install -v shows why'}")
    return "; ".join(parts)


def record(package: Path, built: set[str]) -> None:
    """Say what was built, and leave it in the package: pip shows no build's output, `nerfkit doctor` shows this."""
    package.mkdir(parents=True, exist_ok=True)
    (package / "built.txt").write_text(summary(built) + "\n")
    say("done:", summary(built))


# ---- commands of the compilers


def schema_hash() -> str:
    """As `schema_hash` of nerfkit/ops/native.py, which looks for it in the libraries."""
    return hashlib.sha256((ROOT / "cuda/schema.cpp").read_bytes()).hexdigest()


@functools.cache
def compiler_name() -> str:
    return answer_of(*CXX, "--version").partition("\n")[0]


def compile_command(source: str, target: str, library: str) -> list[str]:
    """How to compile `source`; the files that it includes are left in a list beside the object."""
    on_gpu, is_kernel = library == "_C_cuda", source.endswith("cpu.cpp")
    optimization = ["-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic"]  # makes loops vectors as -O3 does
    needs_o3 = is_kernel and Path(source).parent.name in NEED_O3
    if source.endswith(".cu") or needs_o3 or "clang" in compiler_name():
        optimization = ["-O3"]  # only where it pays for the time that it takes to compile
    common = [*optimization, "-std=c++17", "-Icuda", "-MD", "-MF", f"{target}.d", "-c", source, "-o", target]
    if source.endswith(".cu"):
        host_compiler = ["-ccbin", CXX[0]] if ASKED_CXX else []
        flags = ["-Xcompiler", "-fPIC,-fvisibility=hidden", "--expt-relaxed-constexpr", "-Xptxas", "-v"]
        flags += ["--threads", "4"]  # architectures of a file at a time: the longest file is what a build waits for
        return [NVCC, *flags, *host_compiler, *gpu_flags(), *common]
    march = INSTRUCTION_SETS.get(library)
    flags = ["-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas", "-Wno-psabi"]
    # Not -ffast-math: it would flush the whole process's denormals to zero.
    flags += ["-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", f"-ffile-prefix-map={ROOT}=nerfkit"]
    major, minor = OLDEST_TORCH
    flags += [f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000ULL", f"-isystem{TORCH.folder / 'include'}"]
    if on_gpu:
        flags += ["-DUSE_CUDA", f"-isystem{cuda_home() / 'include'}"]
    if march and is_kernel:
        flags += [f"-march={march}"]
    if source.endswith("build_info.cpp"):
        targets = " ".join(architectures()) if on_gpu else march or platform.machine()
        facts = {"COMPILER": compiler_name(), "TORCH": TORCH.version, "TARGETS": targets, "SCHEMA": schema_hash()}
        flags += [f'-DBUILD_{name}="{value}"' for name, value in facts.items()]
    return [*CXX, *flags, *common]


def link_command(objects: list[str], target: str, library: str) -> list[str]:
    flags = ["-shared", "-Wl,--exclude-libs,ALL", "-Wl,-z,now"]
    libraries = [f"-L{TORCH.folder / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-Wl,--as-needed"]
    if library == "_C_cuda":
        # The static CUDA runtime does not tie the library to the minor version of torch's own.
        folders = [cuda_home() / name / "libcudart_static.a" for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
        runtime = next((str(file) for file in folders if file.exists()), "-lcudart")
        libraries += [runtime, "-ldl", "-lrt", "-lpthread"]
    return [*CXX, *flags, *objects, *libraries, "-o", target]


# ---- running them

RULE = """\
rule run
  command = $line
  description = $what
  deps = gcc
  depfile = $out.d
"""


def statement(target: str, sources: list[str], line: str, what: str) -> str:
    """How ninja makes `target`."""
    target, *sources = (re.sub(r"([$ :])", r"$\1", name) for name in (target, *sources))
    return f"build {target}: run {' '.join(sources)}\n  line = {line.replace('$', '$$')}\n  what = {what}\n"


class BuildLibraries(build_ext):
    """Has ninja call g++ and nvcc: setuptools knows neither .cu files nor libraries without a module."""

    def run(self) -> None:
        say(f"torch {TORCH.version} (CUDA {TORCH.cuda}); {about_nvcc()}")
        say("building " + " and ".join(extension.name for extension in self.extensions))
        folder = Path("" if self.inplace else self.build_lib)
        files = {extension.name: folder / self.get_ext_filename(extension.name) for extension in self.extensions}
        for file in files.values():
            file.unlink(missing_ok=True)  # nothing older is left if it fails; a process that has it loaded keeps it
        TEMP.mkdir(parents=True, exist_ok=True)
        (TEMP / "build.ninja").write_text(ninja_file(self.extensions, files))
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        keep_going = "0" if any(extension.optional for extension in self.extensions) else "1"
        command = [NINJA, "-f", str(TEMP / "build.ninja"), "-j", jobs, "-k", keep_going]
        subprocess.run(command, stdout=sys.stderr, env=os.environ | {"NINJA_STATUS": "nerfkit build: %f of %t, "})
        for extension in self.extensions:
            if not extension.optional and not files[extension.name].exists():
                raise CompileError(f"{extension.name} failed")
        record(folder / "nerfkit", {file.stem for file in files.values() if file.exists()})

    def get_ext_filename(self, name: str) -> str:
        return os.path.join(*name.split(".")) + ".so"


def ninja_file(libraries: list[Extension], files: dict[str, Path]) -> str:
    """How to make the file of each library; objects that are the same in all for the CPU are compiled once."""
    compiled, linked = {}, []
    # What an object depends on besides sources and flags is a comment: ninja compiles again if a command changed.
    added = [os.environ.get(name, "") for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")]
    versions = shlex.join([compiler_name(), TORCH.version, *added])
    for extension in libraries:
        objects, file = [], files[extension.name]
        for source in extension.sources:
            own = file.stem == "_C_cuda" or source.endswith(("cpu.cpp", "build_info.cpp"))
            owner, name = file.stem if own else "_C", source.removeprefix("cuda/")
            target = str(TEMP / f"nerfkit.{owner}" / f"{name}.o")
            line = shlex.join(compile_command(source, target, owner))
            if source.endswith(".cu"):  # nvcc says a lot, such as the registers of kernels
                line += f" 2>{target}.log || (cat {target}.log; false)"
            # What takes long comes first, as one that starts last is waited for: kernels, by the code of their op.
            code = sum(each.stat().st_size for each in Path(source).parent.glob("*.c*"))
            rank = source.endswith(".cu"), source.endswith("cpu.cpp"), code
            compiled[target] = rank, statement(target, [source], f"{line} # {versions}", f"{name} ({KINDS[owner]})")
            objects.append(target)
        line = shlex.join(link_command(objects, str(file), file.stem))
        linked.append(statement(str(file), objects, line, file.name))
    steps = [step for _, step in sorted(compiled.values(), reverse=True)]
    return "".join([f"builddir = {TEMP}\n", RULE, *steps, *linked])


class BuildPython(build_py):
    """Ships what has its one place elsewhere in a checkout: the presets, and the headers for ops of one's own."""

    def run(self) -> None:
        super().run()
        package = Path("nerfkit" if self.editable_mode else f"{self.build_lib}/nerfkit")
        if why_pure_python():
            record(package, set())
        if self.editable_mode:
            return
        for name, files in ("configs", ROOT.glob("configs/*.toml")), ("include", ROOT.glob("cuda/**/*.*h")):
            for file in files:
                target = package / name / Path(*file.relative_to(ROOT).parts[1:])
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


class PlatformWheel(bdist_wheel):
    """py3-none-<platform>: the libraries hold no Python C API."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


modules = extensions()
commands = {"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel} if modules else {}
setup(ext_modules=modules, cmdclass={"build_py": BuildPython, **commands})
