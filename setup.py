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
from concurrent.futures import ThreadPoolExecutor
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
KINDS = {"_C": "baseline", "_C_avx2": "AVX2", "_C_avx512": "AVX-512", "_C_cuda": "CUDA"}
RECORD = "built.txt"  # in the package: what was built; pip shows no build's output, `nerfkit doctor` shows this
ARCHITECTURES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"]


class Torch(NamedTuple):
    folder: Path
    version: str
    cuda: str | None


def say(*words: object) -> None:
    print("nerfkit build:", *words, file=sys.stderr, flush=True)


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
    if asked and not (Path(asked) / header).exists():
        oldest = ".".join(map(str, OLDEST_TORCH))
        sys.exit(
            f"nerfkit build: NERFKIT_TORCH_DIR={asked} is not the folder of a torch >= {oldest}: no {header} in it"
        )
    candidates = [asked]
    spec = importlib.util.find_spec("torch")
    candidates += list(spec.submodule_search_locations or []) if spec else []
    candidates += [os.path.join(sysconfig.get_path(key), "torch") for key in ("purelib", "platlib")]
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(name):
            candidates += glob.glob(os.path.join(os.environ[name], packages))
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        candidates += glob.glob(os.path.join(os.path.dirname(folder), packages))
    for candidate in filter(None, candidates):
        folder = Path(candidate)
        if not (folder / header).exists():
            continue
        facts: dict = {}
        exec((folder / "version.py").read_text(), facts)
        version = facts["__version__"]
        if tuple(int(n) for n in re.match(r"(\d+)\.(\d+)", version).groups()) >= OLDEST_TORCH:
            return Torch(folder, version, facts.get("cuda"))
        say(f"torch {version} at {folder} is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}")
    return None


def find_nvcc() -> Path | None:
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home and (Path(home) / "bin/nvcc").exists():
            return Path(home) / "bin/nvcc"
    on_path = shutil.which("nvcc")
    return Path(on_path) if on_path else None


def about_nvcc() -> str:
    """Where nvcc is, and which variables do not lead to it."""
    homes = {name: os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)}
    wrong = [f"{name}={home} has no bin/nvcc" for name, home in homes.items() if not (Path(home) / "bin/nvcc").exists()]
    return "; ".join([f"nvcc at {NVCC}" if NVCC else "no nvcc found", *wrong])


def cuda_home(nvcc: Path) -> Path:
    """Folder of the toolkit. nvcc on PATH may be a wrapper script, so it is asked."""
    command = [str(nvcc), "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    answer = subprocess.run(command, capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.*)$", answer, re.M)
    return Path(top[1]).resolve() if top else nvcc.resolve().parent.parent


def default_architectures() -> list[str]:
    """Those of ARCHITECTURES that nvcc knows, all if it cannot be asked; PTX of the newest serves later GPUs."""
    try:
        answer = subprocess.run([str(NVCC), "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        answer = ""
    known = [name for name in ARCHITECTURES if f"compute_{name.replace('.', '')}" in answer.split()] or ARCHITECTURES
    return [*known[:-1], known[-1] + "+PTX"]


@functools.cache
def architectures() -> list[str]:
    """Compute capabilities to build for: as asked, else those of this machine's GPUs, else the default ones."""
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").replace(",", " ").split()
    wrong = [name for name in asked if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", name)]
    if wrong:
        sys.exit(
            "nerfkit build: TORCH_CUDA_ARCH_LIST takes compute capabilities such as 8.0, 9.0a or 12.0+PTX, "
            f"got {' '.join(wrong)}"
        )
    if asked:
        return sorted(set(asked))
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        answer = ""
    return sorted(set(re.findall(r"^\d+\.\d$", answer, re.M))) or default_architectures()


@functools.cache
def compression() -> list[str]:
    """What makes the library five times smaller; nvcc has it from 12.8 on."""
    answer = subprocess.run([str(NVCC), "--help"], capture_output=True, text=True).stdout
    return ["--compress-mode=size"] if "--compress-mode" in answer else []


def gencode() -> list[str]:
    flags = []
    for architecture in architectures():
        number = architecture.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if architecture.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


TORCH = find_torch()
NVCC = find_nvcc()
ASKED_CXX = shlex.split(os.environ.get("CXX", ""))
CXX = ASKED_CXX or ["g++"]


def why_pure_python() -> str | None:
    if switch("NERFKIT_NATIVE") == "0":
        return "NERFKIT_NATIVE=0"
    if sys.platform != "linux":
        return f"no native build on {sys.platform} yet"
    if TORCH is None:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return f"no torch >= {oldest} found; install torch first, or set NERFKIT_TORCH_DIR"
    if not shutil.which(CXX[0]):
        return f"no C++ compiler ({CXX[0]})"
    return None


def why_no_cuda() -> str | None:
    """Why the ops for GPUs are not built; None if they are."""
    asked = switch("NERFKIT_CUDA")
    if asked == "0":
        return "NERFKIT_CUDA=0"
    if not NVCC:
        return about_nvcc()
    if asked == "auto" and not TORCH.cuda:
        return f"torch {TORCH.version} is a CPU build"
    return None


def libraries_for_cpus() -> list[str]:
    """Those of INSTRUCTION_SETS that this machine's kind of CPU may have and the compiler knows."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ["_C"]
    known = ["_C"]
    for name, march in list(INSTRUCTION_SETS.items())[1:]:
        check = [*CXX, f"-march={march}", "-E", "-x", "c++", os.devnull]
        if subprocess.run(check, capture_output=True).returncode == 0:
            known.append(name)
        else:
            say(f"no {name}.so, which CPUs with {march} would be faster with: {CXX[0]} does not know it")
    return known


def extensions() -> list[Extension]:
    """What to build here; nothing for pure Python, with the reason printed."""
    must = switch("NERFKIT_NATIVE") == "1"
    cuda = switch("NERFKIT_CUDA")
    reason = why_pure_python()
    if reason and (must or cuda == "1"):
        sys.exit(f"nerfkit build: the fused ops were asked for, but {reason}")
    if reason:
        say("pure Python, without fused ops:", reason)
        return []
    sources = {suffix: sorted(glob.glob(f"cuda/**/*{suffix}", recursive=True)) for suffix in ("cpu.cpp", "bind.cpp", ".cu")}
    shared = ["cuda/schema.cpp", "cuda/build_info.cpp"]
    cpu_sources = shared + sources["bind.cpp"] + sources["cpu.cpp"]
    found = [Extension(f"nerfkit.{name}", cpu_sources, optional=not must) for name in libraries_for_cpus()]
    if cuda == "1" and not NVCC:
        sys.exit(f"nerfkit build: NERFKIT_CUDA=1, but {about_nvcc()}; set CUDA_HOME to a CUDA toolkit")
    if not why_no_cuda():
        architectures()  # a wrong list stops the build before it starts
        gpu_sources = ["cuda/build_info.cpp", *sources["bind.cpp"], *sources[".cu"]]
        found.append(Extension("nerfkit._C_cuda", gpu_sources, optional=not must and cuda != "1"))
    say(f"torch {TORCH.version} (CUDA {TORCH.cuda}); {about_nvcc()}")
    say("building " + " and ".join(extension.name for extension in found))
    return found


def why_not(name: str) -> str | None:
    """Why there is no library `name` after a build; None where nobody would want it."""
    if f"nerfkit.{name}" in [module.name for module in modules]:
        return "they did not compile, pip install -v shows why"
    if name == "_C_cuda":
        return why_no_cuda()
    return f"{CXX[0]} does not know {INSTRUCTION_SETS[name]}" if platform.machine() in ("x86_64", "AMD64") else None


def summary(built: set[str]) -> str:
    """What was built and what was not, and why, in one line."""
    if not modules:
        return f"no fused ops, pure Python: {why_pure_python()}"
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


class BuildPython(build_py):
    """Ships what has its one place elsewhere in a checkout: the presets, and the headers for ops of one's own."""

    def run(self) -> None:
        super().run()
        package = Path("nerfkit" if self.editable_mode else self.build_lib + "/nerfkit")
        if not modules:
            record(package, set())
        if self.editable_mode:
            return
        presets = {ROOT / "configs": ["*.toml"], ROOT / "cuda": ["**/*.h", "**/*.cuh"]}
        for (folder, patterns), name in zip(presets.items(), ("configs", "include"), strict=True):
            for file in (file for pattern in patterns for file in folder.glob(pattern)):
                target = package / name / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def jobs() -> int:
    return int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)


def run(command: list[str]) -> None:
    """Run a compiler. What it says of a file that it compiles goes beside the object, as FILE.o.log."""
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{result.stdout}{result.stderr}")
    if command[-1].endswith(".o"):
        Path(command[-1] + ".log").write_text(result.stderr)
    if "warning" in result.stderr:
        say(result.stderr.strip())


def schema_hash() -> str:
    """As `schema_hash` of nerfkit/ops/native.py, which looks for it in the libraries."""
    return hashlib.sha256((ROOT / "cuda/schema.cpp").read_bytes()).hexdigest()


def compiler_name() -> str:
    return subprocess.run([*CXX, "--version"], capture_output=True, text=True).stdout.splitlines()[0]


class BuildLibraries(build_ext):
    """Compiles with g++ and nvcc themselves: setuptools knows neither .cu files nor libraries without a module."""

    def get_ext_filename(self, name: str) -> str:
        return os.path.join(*name.split(".")) + ".so"

    def initialize_options(self) -> None:
        super().initialize_options()
        self.compiled: set[str] = set()  # objects, in this run
        self.built: set[str] = set()  # libraries

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = None  # libraries share objects, and each is compiled by several jobs anyway

    def run(self) -> None:
        super().run()
        record(Path("nerfkit" if self.inplace else self.build_lib + "/nerfkit"), self.built)

    def build_extension(self, extension: Extension) -> None:
        name = extension.name.removeprefix("nerfkit.")
        on_gpu = name == "_C_cuda"
        objects = [self.object_of(source, name) for source in extension.sources]
        out = self.get_ext_fullpath(extension.name)
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        pairs = [pair for pair in zip(extension.sources, objects) if pair[1] not in self.compiled]  # noqa: B905
        try:
            with ThreadPoolExecutor(jobs()) as pool:
                list(pool.map(run, [self.compile_command(*pair, name) for pair in pairs]))
            self.compiled.update(objects)
            run([*CXX, "-shared", "-Wl,--exclude-libs,ALL", *objects, *self.libraries_to_link(on_gpu), "-o", out])
        except RuntimeError as error:
            say(error)
            raise CompileError(f"{extension.name} failed") from error
        self.built.add(name)

    def object_of(self, source: str, library: str) -> str:
        """Where `source` is compiled to: what is the same in all libraries for the CPU, once."""
        own = library == "_C_cuda" or source.endswith(("cpu.cpp", "build_info.cpp"))
        folder = Path(self.build_temp) / f"nerfkit.{library if own else '_C'}"
        target = folder / (source.removeprefix("cuda/") + ".o")
        target.parent.mkdir(parents=True, exist_ok=True)
        return str(target)

    def compile_command(self, source: str, target: str, library: str) -> list[str]:
        on_gpu = library == "_C_cuda"
        march = "" if on_gpu else INSTRUCTION_SETS[library]
        if source.endswith(".cu"):
            host = "-fPIC,-fvisibility=hidden"
            host_compiler = ["-ccbin", CXX[0]] if ASKED_CXX else []
            flags = [
                "-O3",
                "-std=c++17",
                "-Icuda",
                "-Xcompiler",
                host,
                "--expt-relaxed-constexpr",
                "-Xptxas",
                "-v",
                "--threads",
                "2",
            ]
            return [str(NVCC), *flags, *host_compiler, *compression(), *gencode(), "-c", source, "-o", target]
        major, minor = OLDEST_TORCH
        flags = ["-O3", "-std=c++17", "-Icuda", "-DNDEBUG", "-fPIC", "-fvisibility=hidden"]
        flags += ["-Wall", "-Wno-unknown-pragmas", "-Wno-psabi"]
        # Not -ffast-math: it would flush the whole process's denormals to zero.
        flags += ["-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", f"-ffile-prefix-map={ROOT}=nerfkit"]
        flags += [
            f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000ULL",
            f"-isystem{TORCH.folder / 'include'}",
        ]
        if on_gpu:
            flags += ["-DUSE_CUDA", f"-isystem{cuda_home(NVCC) / 'include'}"]
        if march and source.endswith("cpu.cpp"):
            flags += [f"-march={march}"]
        if source.endswith("build_info.cpp"):
            targets = " ".join(architectures()) if on_gpu else march or platform.machine()
            flags += [f'-DBUILD_COMPILER="{compiler_name()}"', f'-DBUILD_TORCH="{TORCH.version}"']
            flags += [f'-DBUILD_TARGETS="{targets}"', f'-DBUILD_SCHEMA="{schema_hash()}"']
        return [*CXX, *flags, "-c", source, "-o", target]

    def libraries_to_link(self, on_gpu: bool) -> list[str]:
        libraries = [f"-L{TORCH.folder / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-Wl,--as-needed"]
        if not on_gpu:
            return [*libraries, "-Wl,-z,now"]
        # The static CUDA runtime does not tie the library to the minor version of torch's own.
        home = cuda_home(NVCC)
        places = [home / place / "libcudart_static.a" for place in ("lib64", "lib", "targets/x86_64-linux/lib")]
        runtime = next((str(place) for place in places if place.exists()), None)
        return [*libraries, "-Wl,-z,now", *([runtime] if runtime else ["-lcudart"]), "-ldl", "-lrt", "-lpthread"]


class PlatformWheel(bdist_wheel):
    """py3-none-<platform>: the libraries hold no Python C API."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


modules = extensions()
commands = {"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel} if modules else {}
setup(ext_modules=modules, cmdclass={"build_py": BuildPython, **commands})
