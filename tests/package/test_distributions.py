# SPDX-License-Identifier: Apache-2.0
"""The sdist is enough to build and to test, an installed wheel has all that users need, on every torch from 2.10 on."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nerfkit.limits import GPU_ONLY
from nerfkit.ops import dispatch
from tests.naming import assert_names
from tests.package.conftest import ROOT, build_wheel, run
from tests.toy_scene import write_scene

pytestmark = pytest.mark.slow

SYMBOLS = set(re.findall(r"aoti_\w+|torch_\w+", (Path(__file__).parent / "torch_2_10_symbols.txt").read_text()))
# The libraries that every Linux has, and what torch's own process has loaded; all else would be C++ of one torch.
SYSTEM = re.compile(r"lib(torch|torch_cpu|stdc\+\+|m|gcc_s|c|dl|rt|pthread|cudart)\.so[.\d]*|ld-linux-.*")


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout: the files that git has are what an sdist should hold")
    return subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_sdist_holds_the_checkout_without_the_scenes(sdist: Path):
    held = {str(file.relative_to(sdist)) for file in sdist.rglob("*") if file.is_file()}
    images = re.compile(r"data/(?!demo)\w+/(((depth/)?(train|val|test)|images|depth)/\w+\.(png|jpg|npz)|surface\.npz)")
    for name in tracked():
        if (ROOT / name).exists() and not name.startswith((".ci/", ".git")):
            assert (name in held) != bool(images.fullmatch(name)), name
    assert not [name for name in held if name.endswith((".so", ".pyc", "built.txt"))]


@pytest.mark.long
def test_its_tests_pass(sdist: Path):
    """The faster ones, without fused ops."""
    path = os.pathsep.join(filter(None, [str(sdist), os.environ.get("PYTHONPATH")]))
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not long and not cuda"]
    slow = ["--ignore", "tests/ops", "--ignore", "tests/test_commands.py"]  # they read nothing that others do not
    said = run(*pytest_, *slow, folder=sdist, PYTHONPATH=path, NERFKIT_NATIVE="0")
    assert re.search(r"\d+ passed", said)


@pytest.fixture(scope="module")
def pure(source: Path, tmp_path_factory) -> Path:
    """The wheel without fused ops."""
    return build_wheel(source, tmp_path_factory.mktemp("pure"), NERFKIT_NATIVE="0")


def test_the_wheel_has_presets_types_headers_and_the_command(pure: Path):
    names = set(zipfile.ZipFile(pure).namelist())
    assert {"nerfkit/configs/lego.toml", "nerfkit/py.typed", "nerfkit/data/demo/train/r_0.png"} <= names
    cuda = ROOT / "cuda"
    headers = {str(file.relative_to(cuda)) for end in ("*.h", "*.cuh") for file in cuda.rglob(end)}
    assert {"common/bind.h", "common/simd_cpu.h", "common/gpu.cuh", "trilinear/args.h"} <= headers
    shipped = {name.removeprefix("nerfkit/include/") for name in names if name.startswith("nerfkit/include/")}
    assert shipped == headers
    assert not [name for name in names if not name.startswith(("nerfkit/", "nerfkit-"))], "nothing but the package"
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    assert "nerfkit = nerfkit.commands:main" in zipfile.ZipFile(pure).read(entry).decode()


def test_the_wheel_without_fused_ops_works_and_says_why(pure: Path, tmp_path: Path):
    zipfile.ZipFile(pure).extractall(tmp_path / "installed")
    path = os.pathsep.join(filter(None, [str(tmp_path / "installed"), os.environ.get("PYTHONPATH")]))
    code = "from nerfkit import config, jit; print(config.load(['lego']).trainer.max_seconds, jit.headers())"
    said = run(sys.executable, "-c", code, folder=tmp_path, PYTHONPATH=path)
    assert said.split() == ["60.0", str(tmp_path / "installed/nerfkit/include")]
    said = run(sys.executable, "-m", "nerfkit", "doctor", folder=tmp_path, PYTHONPATH=path)
    assert_names(said, "NERFKIT_NATIVE=0", "verdict")


@pytest.mark.long
def test_an_installation_has_every_fused_op_and_trains_and_renders(installed, tmp_path: Path):
    assert_names(installed.run("nerfkit", "doctor", folder=tmp_path), "CPU", "CUDA", "verdict")
    code = "import nerfkit; from nerfkit import ops; print(nerfkit.__file__)"
    code += "; print(sorted(op for op in ops.dispatch.OPS if 'cpp' in ops.available(op)))"
    said = installed.run("python", "-c", code, folder=tmp_path)
    assert_names(said, installed.package, sorted({*dispatch.OPS} - {*GPU_ONLY}))
    scene = write_scene(tmp_path / "scene", size=(15, 13))
    small = "--device cpu --model.levels 2 --model.log2_hashmap_size 8 --model.max_resolution 24 --trainer.steps 40"
    small += " --trainer.samples_per_step 512 --sampling.step_size 0.08 --sampling.occupancy_resolution 8"
    installed.run("nerfkit", "train", scene, *small.split(), "--out", "run", folder=tmp_path)
    installed.run("nerfkit", "render", "run", "--frames", "2", "--size", "9", "7", folder=tmp_path)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {"0000.png", "0001.png"} <= {file.name for file in (tmp_path / "run" / "render" / "orbit").iterdir()}


@pytest.mark.skipif(not all(map(shutil.which, ("nm", "c++filt", "readelf"))), reason="needs nm, c++filt and readelf")
@pytest.mark.parametrize("name", ["_C.so", "_C_avx2.so", "_C_avx512.so", "_C_cuda.so"])
def test_libraries_want_what_torch_2_10_has_and_no_others(name: str):
    library = ROOT / "nerfkit" / name
    if not library.exists():
        pytest.skip(f"{name} is not built here")
    listing = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    names = "\n".join(line.split()[-1].partition("@")[0] for line in listing.stdout.splitlines())
    demangled = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout
    # Those that only torch can have: its C functions, and C++ that is not the standard library's.
    wanted = {name for name in demangled.split("\n") if re.search(r"torch|c10|\bat::|caffe", name)}
    assert wanted and wanted <= SYMBOLS, f"not of torch 2.10's stable ABI: {sorted(wanted - SYMBOLS)}"
    listing = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", listing)
    assert needed and all(SYSTEM.fullmatch(other) for other in needed), needed
