# SPDX-License-Identifier: Apache-2.0
"""The compiled libraries beside the package: one built from other sources is named, not loaded."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools

from nerfkit.ops import native
from tests.naming import assert_names, not_named

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch) -> Path:
    """A folder with a package and cuda/schema.cpp; the package's libraries are the test's to write."""
    (tmp_path / "nerfkit").mkdir()
    (tmp_path / "cuda").mkdir()
    shutil.copy(ROOT / "cuda" / "schema.cpp", tmp_path / "cuda")
    monkeypatch.setattr(native, "_FOLDER", tmp_path / "nerfkit")
    monkeypatch.setattr(native, "_SCHEMA", tmp_path / "cuda" / "schema.cpp")
    monkeypatch.setattr(native.torch.version, "cuda", "13.0")
    monkeypatch.delenv("NERFKIT_DISABLE_NATIVE", raising=False)
    return tmp_path


@pytest.mark.parametrize("backend", native.LIBRARIES)
def test_a_library_of_other_sources_is_not_loaded(backend: str, checkout: Path):
    path = checkout / "nerfkit" / native.LIBRARIES[backend]
    path.write_text(f"targets=9.0\nschema={native.schema_hash()}")
    reason = native._load(backend).reason
    assert_names(reason, path.name, path)  # of the loader's own error: that of the right schema goes to it
    with open(native._SCHEMA, "a") as file:
        file.write("// pulled\n")
    stale = native._load(backend)
    assert not stale.loaded and str(path) not in stale.reason
    assert_names(stale.reason, path.name, "sources")
    assert native.how_to_build(backend).endswith("=1 pip install --no-build-isolation -e .")


@pytest.mark.parametrize("text", ["targets=9.0", ""])
def test_a_library_without_a_hash(text: str, checkout: Path):
    """Built by an older setup.py, so stale, in a checkout; installed without sources it cannot be."""
    (checkout / "nerfkit" / "_C.so").write_text(text)
    reason = native._load("cpp").reason
    assert not not_named(reason, "_C.so") and ("sources" in reason) == bool(text)
    native._SCHEMA.unlink()
    reason = native._load("cpp").reason
    assert not not_named(reason, "_C.so") and "sources" not in reason
    assert native.how_to_build("cpp").endswith("=1 pip install --no-build-isolation .")


def test_setup_writes_the_hash_that_is_looked_for(monkeypatch):
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    monkeypatch.chdir(ROOT)
    assert runpy.run_path(str(ROOT / "setup.py"))["schema_hash"]() == native.schema_hash()
    for library in native.libraries():
        if library.loaded:
            assert native.build_info(library.backend)["schema"] == native.schema_hash()


def test_doctor_names_a_stale_library(tmp_path: Path):
    """After a pull that changed the schemas: the package imports, trains by its definitions and says what to type."""
    ignore = shutil.ignore_patterns("__pycache__", "_C_*.so")
    shutil.copytree(ROOT / "nerfkit", tmp_path / "nerfkit", ignore=ignore)
    (tmp_path / "cuda").mkdir()
    text = (ROOT / "cuda" / "schema.cpp").read_text()
    (tmp_path / "cuda" / "schema.cpp").write_text(text.replace('m.def("_trilinear(', 'm.def("_trilinear_of_old('))
    if not (tmp_path / "nerfkit" / "_C.so").exists():
        (tmp_path / "nerfkit" / "_C.so").write_text("another library")
    command = [sys.executable, "-m", "nerfkit", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    library, op = (re.search(rf"^.*\b{name}\b.*$", done.stdout, re.M)[0] for name in ("_C.so", "trilinear"))
    assert_names(library, "sources")
    assert_names(op, "torch")
    assert_names(done.stdout, "verdict")
