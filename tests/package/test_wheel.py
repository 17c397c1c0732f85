# SPDX-License-Identifier: Apache-2.0
"""What `pip install` gives: the package, its command, presets and headers, in an environment that has nothing else."""

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from nerfkit import jit
from nerfkit.ops import dispatch
from tests.naming import assert_names, raises_naming
from tests.package.conftest import ROOT, build_wheel, run
from tests.test_add_an_op import BLOCK
from tests.toy_scene import write_scene

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pure(source: Path, tmp_path_factory) -> Path:
    """The wheel without fused ops."""
    return build_wheel(source, tmp_path_factory.mktemp("pure"), NERFKIT_NATIVE="0")


def test_the_wheel_has_presets_types_headers_and_the_command(pure: Path):
    names = set(zipfile.ZipFile(pure).namelist())
    assert {"nerfkit/configs/lego.toml", "nerfkit/py.typed", "nerfkit/commands/train.py"} <= names
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


def test_own_ops_use_the_installed_headers(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(jit, "SOURCES", tmp_path / "cuda")
    monkeypatch.setattr(jit, "INSTALLED_HEADERS", tmp_path / "include")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "needs.cpp").write_text('#include "op.h"\nint own() { return OWN; }')
    with raises_naming(jit.BuildError, "needs", "op.h"):
        jit.load("needs", [tmp_path / "needs.cpp"])
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "op.h").write_text("#define OWN 1\n")
    assert jit.load("has", [tmp_path / "needs.cpp"]).exists()


@pytest.mark.long
def test_an_installation_has_the_command_and_every_fused_op(installed, tmp_path: Path):
    assert_names(installed.run("nerfkit", "doctor", folder=tmp_path), "CPU", "CUDA", "verdict")
    code = "import nerfkit; from nerfkit import ops; print(nerfkit.__file__)"
    code += "; print(sorted(op for op in ops.dispatch.OPS if 'cpp' in ops.available(op)))"
    said = installed.run("python", "-c", code, folder=tmp_path)
    assert_names(said, installed.package, sorted(dispatch.OPS))


@pytest.mark.long
def test_an_installation_trains_and_renders(installed, tmp_path: Path):
    scene = write_scene(tmp_path / "scene", size=(15, 13))
    small = "--device cpu --model.levels 2 --model.log2_table 8 --model.max_resolution 24 --trainer.steps 40"
    small += " --trainer.samples 512 --sampling.step 0.08 --sampling.occupancy_resolution 8"
    installed.run("nerfkit", "train", scene, *small.split(), "--out", "run", folder=tmp_path)
    installed.run("nerfkit", "render", "run", "--frames", "2", "--size", "9", "7", folder=tmp_path)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {"0000.png", "0001.png"} <= {file.name for file in (tmp_path / "run" / "render" / "orbit").iterdir()}


@pytest.mark.long
def test_an_installation_builds_ones_own_op(installed, tmp_path: Path):
    if not shutil.which("ninja"):
        pytest.skip("needs ninja")
    for block in BLOCK.finditer((ROOT / "docs" / "add_an_op.md").read_text()):
        (tmp_path / block["name"]).write_text(block["text"])
    said = installed.run("python", "check.py", folder=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "built"))
    assert "all checks passed" in said
