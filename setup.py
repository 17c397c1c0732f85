# SPDX-License-Identifier: Apache-2.0
"""Builds the fused ops: nerfkit/_C.so for the CPU and nerfkit/_C_cuda.so for NVIDIA GPUs.

On x86-64 the CPU's is built again for each of INSTRUCTION_SETS; nerfkit/ops/native.py loads the best that runs.
All use LibTorch's stable ABI and no Python C API: one build serves every torch from 2.10 on and every Python. torch
is never imported, only its headers are read, so that build isolation need not fetch another one. Objects stay in
build/temp: a source is compiled again if it, a file that it includes or its command changed. Variables:

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
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
OLDEST_TORCH = (2, 10)  # the binaries use nothing newer, so they load on it and on all later ones
# Libraries for the CPU, and the -march of each; _C runs everywhere.
INSTRUCTION_SETS = {"_C": "", "_C_avx2": "x86-64-v3", "_C_avx512": "x86-64-v4"}
# Ops whose CPU kernels g++ -O2 makes 1.1 to 2.1 times slower (measured, AVX-512), or gives other last bits (composite).
# The others are as fast, and compile in about two thirds of the time.
NEED_O3 = ("composite", "grid_encode", "lazy_adam", "march", "spherical_harmonics", "trilinear")
KINDS = {"_C": "baseline", "_C_avx2": "AVX2", "_C_avx512": "AVX-512", "_C_cuda": "CUDA"}
RECORD = "built.txt"  # in the package: what was built; pip shows no build's output, `nerfkit doctor` shows this
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


def switch(name: str) -> str:
    """Value of the variable `name`: auto, 0 or 1."""
    value = os.environ.get(name) or "auto"
    if value not in ("auto", "0", "1"):
        sys.exit(f"nerfkit build: {name} must be auto, 0 or 1, got {value!r}")
    return value


def find_torch() -> Torch | None:
    """The installed torch, also from inside an isolated build environment."""
    packages = "lib/python*/site-packages/torch"
    asked = os.environ.get("NERFKIT_TORCH_DIR")
    header = "include/torch/csrc/stable/library.h"
    oldest = ".".join(map(str, OLDEST_TORCH))
    if asked and not (Path(asked) / header).exists():
        sys.exit(
            f"nerfkit build: NERFKIT_TORCH_DIR={asked} is not the folder of a torch >= {oldest}: no {header} in it"
        )
    candidates = [asked]
    spec = importlib.util.find_spec("torch")
    candidates += list(spec.submodule_search_locations or []) if spec else []
    candidates += [os.path.join(sysconfig.get_path(key), "torch") for key in ("purelib", "platlib")]
    prefixes = [os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    prefixes += [os.path.dirname(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    for prefix in filter(None, prefixes):
        candidates += glob.glob(os.path.join(prefix, packages))
    for folder in map(Path, filter(None, candidates)):
        if not (folder / header).exists():
            continue
        facts: dict = {}
        exec((folder / "version.py").read_text(), facts)
        version = facts["__version__"]
        if tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", version).groups()) >= OLDEST_TORCH:
            return Torch(folder, version, facts.get("cuda"))
        say(f"torch {version} at {folder} is older than {oldest}")
    return None


def find_nvcc() -> Path | None:
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home and (Path(home) / "bin/nvcc").exists():
            return Path(home) / "bin/nvcc"
    on_path = shutil.which("nvcc")
    return Path(on_path) if on_path else None


TORCH = find_torch()
NVCC = find_nvcc()
ASKED_CXX = shlex.split(os.environ.get("CXX", ""))
CXX = ASKED_CXX or ["g++"]


def about_nvcc() -> str:
    """Where nvcc is, and which variables do not lead to it."""
    homes = {name: os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)}
    wrong = [f"{name}={home} has no bin/nvcc" for name, home in homes.items() if not (Path(home) / "bin/nvcc").exists()]
    return "; ".join([f"nvcc at {NVCC}" if NVCC else "no nvcc found", *wrong])


@functools.cache
def cuda_home() -> Path:
    """Folder of the toolkit. nvcc on PATH may be a wrapper script, so it is asked."""
    command = [str(NVCC), "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    answer = subprocess.run(command, capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.*)$", answer, re.M)
    return Path(top[1]).resolve() if top else NVCC.resolve().parent.parent


def asked_architectures() -> list[str]:
    """Those of TORCH_CUDA_ARCH_LIST."""
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").replace(",", " ").split()
    wrong = [name for name in asked if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", name)]
    if wrong:
        sys.exit(
            "nerfkit build: TORCH_CUDA_ARCH_LIST takes compute capabilities such as 8.0, 9.0a or 12.0+PTX, "
            f"got {' '.join(wrong)}"
        )
    return sorted(set(asked))


def default_architectures() -> list[str]:
    """Those of ARCHITECTURES that nvcc knows, all if it cannot be asked; PTX of the newest serves later GPUs."""
    answer = answer_of(NVCC, "--list-gpu-arch").split()
    known = [name for name in ARCHITECTURES if f"compute_{name.replace('.', '')}" in answer] or ARCHITECTURES
    return [*known[:-1], known[-1] + "+PTX"]


@functools.cache
def architectures() -> list[str]:
    """Compute capabilities to build for: as asked, else those of this machine's GPUs, else the default ones."""
    gpus = "" if asked_architectures() else answer_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    return asked_architectures() or sorted(set(re.findall(r"^\d+\.\d$", gpus, re.M))) or default_architectures()


def gencode() -> list[str]:
    flags = []
    for architecture in architectures():
        number = architecture.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if architecture.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


@functools.cache
def compression() -> list[str]:
    """What makes the library five times smaller; nvcc has it from 12.8 on."""
    return ["--compress-mode=size"] if "--compress-mode" in answer_of(NVCC, "--help") else []


# ---- what to build, and what is said of it


def why_pure_python() -> str | None:
    if switch("NERFKIT_NATIVE") == "0":
        return "NERFKIT_NATIVE=0"
    if sys.platform != "linux":
        return f"no native build on {sys.platform} yet"
    if TORCH is None:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return f"no torch >= {oldest} found; install torch first, or set NERFKIT_TORCH_DIR"
    return None if shutil.which(CXX[0]) else f"no C++ compiler ({CXX[0]})"


def why_no_cuda() -> str | None:
    """Why the ops for GPUs are not built; None if they are."""
    asked = switch("NERFKIT_CUDA")
    if asked == "0":
        return "NERFKIT_CUDA=0"
    if not NVCC:
        return about_nvcc()
    return f"torch {TORCH.version} is a CPU build" if asked == "auto" and not TORCH.cuda else None


def refuse_the_impossible() -> None:
    """What was asked for and cannot be built stops setup.py at once. No program is asked for that."""
    cuda, reason = switch("NERFKIT_CUDA"), why_pure_python()
    if reason and (switch("NERFKIT_NATIVE") == "1" or cuda == "1"):
        sys.exit(f"nerfkit build: the fused ops were asked for, but {reason}")
    if cuda == "1" and not NVCC:
        sys.exit(f"nerfkit build: NERFKIT_CUDA=1, but {about_nvcc()}; set CUDA_HOME to a CUDA toolkit")
    if not reason and not why_no_cuda():
        asked_architectures()


def on_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


@functools.cache
def libraries_for_cpus() -> list[str]:
    """Those of INSTRUCTION_SETS that this machine's kind of CPU may have and the compiler knows."""
    known = ["_C"]
    for name, march in list(INSTRUCTION_SETS.items())[1:] if on_x86() else []:
        check = [*CXX, f"-march={march}", "-E", "-x", "c++", os.devnull]
        if subprocess.run(check, capture_output=True).returncode == 0:
            known.append(name)
        else:
            say(f"no {name}.so, which CPUs with {march} would be faster with: {CXX[0]} does not know it")
    return known


def extensions() -> list[Extension]:
    """The libraries with their sources: bindings go into all, with the kernels of one device each; runs no program."""
    kernels = {suffix: sorted(glob.glob(f"cuda/**/*{suffix}", recursive=True)) for suffix in ("cpu.cpp", ".cu")}
    shared = ["cuda/build_info.cpp", *sorted(glob.glob("cuda/*/bind.cpp"))]
    must, must_cuda = (switch(name) == "1" for name in ("NERFKIT_NATIVE", "NERFKIT_CUDA"))
    cpu_sources = ["cuda/schema.cpp", *shared, *kernels["cpu.cpp"]]
    names = INSTRUCTION_SETS if on_x86() else ["_C"]
    found = [Extension(f"nerfkit.{name}", cpu_sources, optional=not must) for name in names]
    if not why_no_cuda():
        found.append(Extension("nerfkit._C_cuda", shared + kernels[".cu"], optional=not must and not must_cuda))
    return found


def why_not(name: str) -> str | None:
    """Why there is no library `name` after a build; None where nobody would want it."""
    failed = "they did not compile, pip install -v shows why"
    if name == "_C_cuda":
        return why_no_cuda() or failed
    if name in libraries_for_cpus():
        return failed
    return f"{CXX[0]} does not know {INSTRUCTION_SETS[name]}" if on_x86() else None


def summary(built: set[str]) -> str:
    """What was built and what was not, and why, in one line."""
    if reason := why_pure_python():
        return f"no fused ops, pure Python: {reason}"
    cpu = [KINDS[name] for name in INSTRUCTION_SETS if name in built]
    parts = [f"CPU ops for {platform.machine()} {'+'.join(cpu)}"] if cpu else []
    if "_C_cuda" in built:
        parts.append(f"CUDA ops for compute capability {' '.join(architectures())}")
    missing = {KINDS[name]: why_not(name) for name in KINDS if name not in built}
    return "; ".join([*parts, *(f"no {kind} ops: {reason}" for kind, reason in missing.items() if reason)])


def record(package: Path, built: set[str]) -> None:
    """Say what was built, last of all, and leave it in the package for `nerfkit doctor`."""
    package.mkdir(parents=True, exist_ok=True)
    (package / RECORD).write_text(summary(built) + "\n")
    say("done:", summary(built))


# ---- commands of the compilers


def schema_hash() -> str:
    """As `schema_hash` of nerfkit/ops/native.py, which looks for it in the libraries."""
    return hashlib.sha256((ROOT / "cuda/schema.cpp").read_bytes()).hexdigest()


@functools.cache
def compiler_name() -> str:
    return answer_of(*CXX, "--version").partition("\n")[0]


def optimization(source: str) -> list[str]:
    """-O3 only where it pays for the time that it takes to compile."""
    needs_o3 = source.endswith("cpu.cpp") and Path(source).parent.name in NEED_O3
    if source.endswith(".cu") or needs_o3 or "clang" in compiler_name():
        return ["-O3"]
    return ["-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic"]  # makes loops vectors as -O3 does


def compile_command(source: str, target: str, library: str) -> list[str]:
    """How to compile `source`; the files that it includes are left in a list beside the object."""
    common = [*optimization(source), "-std=c++17", "-Icuda", "-MD", "-MF", f"{target}.d", "-c", source, "-o", target]
    if source.endswith(".cu"):
        host_compiler = ["-ccbin", CXX[0]] if ASKED_CXX else []
        flags = ["-Xcompiler", "-fPIC,-fvisibility=hidden", "--expt-relaxed-constexpr", "-Xptxas", "-v"]
        flags += ["--threads", "4"]  # architectures of a file at a time: the longest file is what a build waits for
        return [str(NVCC), *flags, *host_compiler, *compression(), *gencode(), *common]
    on_gpu, march = library == "_C_cuda", INSTRUCTION_SETS.get(library)
    flags = ["-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas", "-Wno-psabi"]
    # Not -ffast-math: it would flush the whole process's denormals to zero.
    flags += ["-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", f"-ffile-prefix-map={ROOT}=nerfkit"]
    major, minor = OLDEST_TORCH
    flags += [f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000ULL", f"-isystem{TORCH.folder / 'include'}"]
    if on_gpu:
        flags += ["-DUSE_CUDA", f"-isystem{cuda_home() / 'include'}"]
    if march and source.endswith("cpu.cpp"):
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


@functools.cache
def hash_of(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if os.path.isfile(file) else "missing"


def inputs_of(target: str, command: list[str]) -> str:
    """What an object is made from: versions, command, and the files of the last compilation with their hashes."""
    listed = Path(f"{target}.d").read_text().replace("\\\n", " ").partition(":")[2]
    files = [file.replace("\\ ", " ") for file in re.findall(r"(?:\\ |\S)+", listed)]
    added = [os.environ.get(name, "") for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")]
    first = shlex.join([compiler_name(), TORCH.version, *command, *added])
    return "\n".join([first, *(f"{hash_of(file)} {file}" for file in files)])


def is_current(target: str, command: list[str]) -> bool:
    stamp = Path(f"{target}.inputs")
    return all(map(os.path.isfile, (target, stamp, f"{target}.d"))) and stamp.read_text() == inputs_of(target, command)


def run(command: list[str]) -> str:
    """Run a compiler and return what it says besides."""
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{result.stdout}{result.stderr}")
    if "warning" in result.stderr:
        say(result.stderr.strip())
    return result.stderr


def compile_one(target: str, command: list[str]) -> float:
    """Compile, and return the seconds. What the compiler says, such as registers of kernels, goes to TARGET.log."""
    start, stamp = time.time(), Path(f"{target}.inputs")
    stamp.unlink(missing_ok=True)
    Path(f"{target}.log").write_text(run(command))
    inputs = inputs_of(target, command)
    files = [line.partition(" ")[2] for line in inputs.splitlines()[1:]]
    if all(os.path.getmtime(file) < start for file in files):  # else one may have changed meanwhile: compile it again
        stamp.write_text(inputs)
    return time.time() - start


def size_of(source: str) -> tuple[bool, int]:
    """What takes longest is most: kernels for the GPU by the code of their op, then the others by their own."""
    on_gpu = source.endswith(".cu")
    files = Path(source).parent.glob("*.cu*") if on_gpu else [Path(source)]
    return on_gpu, sum(file.stat().st_size for file in files)


class BuildLibraries(build_ext):
    """Compiles with g++ and nvcc themselves: setuptools knows neither .cu files nor libraries without a module."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_temp = "build/temp"  # for editable installations, too, which setuptools would give a new one each

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = None  # libraries share objects, and all are compiled by several jobs anyway

    def run(self) -> None:
        self.built: set[str] = set()
        known = [f"nerfkit.{name}" for name in (*libraries_for_cpus(), "_C_cuda")]
        self.extensions = [extension for extension in self.extensions if extension.name in known]
        say(f"torch {TORCH.version} (CUDA {TORCH.cuda}); {about_nvcc()}")
        say("building " + " and ".join(extension.name for extension in self.extensions))
        super().run()
        record(Path("nerfkit" if self.inplace else self.build_lib + "/nerfkit"), self.built)

    def get_ext_filename(self, name: str) -> str:
        return os.path.join(*name.split(".")) + ".so"

    def objects_of(self, extension: Extension) -> dict[str, tuple[str, str]]:
        """Objects, each with its source and library; what is the same in all libraries for the CPU is compiled once."""
        objects, library = {}, extension.name.removeprefix("nerfkit.")
        for source in extension.sources:
            own = library == "_C_cuda" or source.endswith(("cpu.cpp", "build_info.cpp"))
            owner = library if own else "_C"
            target = Path(self.build_temp) / f"nerfkit.{owner}" / f"{source.removeprefix('cuda/')}.o"
            objects[str(target)] = source, owner
        return objects

    def build_extensions(self) -> None:
        """Compile the sources of all libraries, several at a time, then link each."""
        objects = {key: value for extension in self.extensions for key, value in self.objects_of(extension).items()}
        commands = {target: compile_command(source, target, library) for target, (source, library) in objects.items()}
        todo = [target for target in objects if not is_current(target, commands[target])]
        todo.sort(key=lambda target: size_of(objects[target][0]), reverse=True)  # one that starts last is waited for
        jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
        say(f"{len(todo)} of {len(objects)} files to compile, {jobs} at a time")
        self.failed: set[str] = set()
        with ThreadPoolExecutor(jobs) as pool:
            for target in todo:
                Path(target).parent.mkdir(parents=True, exist_ok=True)
            futures = {pool.submit(compile_one, target, commands[target]): target for target in todo}
            for number, future in enumerate(as_completed(futures), 1):
                source, library = objects[futures[future]]
                try:
                    took = f"{future.result():.0f} s"
                except RuntimeError as error:
                    say(error)
                    self.failed.add(futures[future])
                    took = "failed"
                    if not any(extension.optional for extension in self.extensions):
                        pool.shutdown(wait=False, cancel_futures=True)
                        raise CompileError(f"nerfkit.{library} failed") from error
                say(f"{number} of {len(todo)}, {source.removeprefix('cuda/')} ({KINDS[library]}) {took}")
        super().build_extensions()

    def build_extension(self, extension: Extension) -> None:
        """Link a library."""
        objects, library = list(self.objects_of(extension)), extension.name.removeprefix("nerfkit.")
        out = Path(self.get_ext_fullpath(extension.name))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)  # nothing older is left if it fails; a process that has it loaded keeps it
        if self.failed.intersection(objects):
            raise CompileError(f"{extension.name} failed")
        try:
            run(link_command(objects, str(out), library))
        except RuntimeError as error:
            say(error)
            raise CompileError(f"{extension.name} failed") from error
        self.built.add(library)


class BuildPython(build_py):
    """Ships what has its one place elsewhere in a checkout: the presets, and the headers for ops of one's own."""

    def run(self) -> None:
        super().run()
        package = Path("nerfkit" if self.editable_mode else self.build_lib + "/nerfkit")
        if why_pure_python():
            record(package, set())
        if self.editable_mode:
            return
        presets = {ROOT / "configs": ["*.toml"], ROOT / "cuda": ["**/*.h", "**/*.cuh"]}
        for (folder, patterns), name in zip(presets.items(), ("configs", "include"), strict=True):
            for file in (file for pattern in patterns for file in folder.glob(pattern)):
                target = package / name / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


class PlatformWheel(bdist_wheel):
    """py3-none-<platform>: the libraries hold no Python C API."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


refuse_the_impossible()
modules = [] if why_pure_python() else extensions()
commands = {"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel} if modules else {}
setup(ext_modules=modules, cmdclass={"build_py": BuildPython, **commands})
