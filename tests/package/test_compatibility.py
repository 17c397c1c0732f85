# SPDX-License-Identifier: Apache-2.0
"""What is promised of other versions: one build of the fused ops for every torch from 2.10 on, Python from 3.10 on."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.package.conftest import ROOT

pytestmark = pytest.mark.slow

SYMBOLS = set(re.findall(r"^\w+$", (Path(__file__).parent / "torch_2_10_symbols.txt").read_text(), re.M))
FOLDERS = ("nerfkit", "scripts", "tests")
SOURCES = [ROOT / "setup.py", *sorted(file for name in FOLDERS for file in (ROOT / name).rglob("*.py"))]
LIBRARIES = ("_C.so", "_C_avx2.so", "_C_avx512.so", "_C_cuda.so")
# The libraries that every Linux has, and what torch's own process has loaded; all else would be C++ of one torch.
SYSTEM = re.compile(r"lib(torch|torch_cpu|stdc\+\+|m|gcc_s|c|dl|rt|pthread|cudart)\.so[.\d]*|ld-linux-.*")


def imports_of(library: Path) -> list[str]:
    """Names that a library wants of others, less their versions."""
    listing = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    return [line.split()[-1].partition("@")[0] for line in listing.stdout.splitlines()]


def wants_of_torch(names: list[str]) -> set[str]:
    """Those that only torch can have: its C functions, and C++ that is not the standard library's."""
    demangled = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return {name for name in demangled.stdout.split("\n") if re.search(r"torch|c10|\bat::|caffe", name)}


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_import_what_torch_2_10_has(name: str):
    library = ROOT / "nerfkit" / name
    if not library.exists():
        pytest.skip(f"{name} is not built here")
    if not (shutil.which("nm") and shutil.which("c++filt")):
        pytest.skip("needs nm and c++filt")
    wanted = wants_of_torch(imports_of(library))
    assert wanted and wanted <= SYMBOLS, f"not of torch 2.10's stable ABI: {sorted(wanted - SYMBOLS)}"


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_need_no_others(name: str):
    library = ROOT / "nerfkit" / name
    if not library.exists():
        pytest.skip(f"{name} is not built here")
    if not shutil.which("readelf"):
        pytest.skip("needs readelf")
    listing = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", listing)
    assert needed and all(SYSTEM.fullmatch(other) for other in needed), needed


def test_what_is_not_the_stable_abi_is_seen():
    names = ["aoti_torch_get_dim", "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcEE", "memcpy"]
    assert len(wants_of_torch(names)) == 2 and len(wants_of_torch(names) - SYMBOLS) == 1


def test_every_file_is_python_3_10():
    newer = {str(file.relative_to(ROOT)): newer_syntax(file.read_text()) for file in SOURCES}
    assert {name: found for name, found in newer.items() if found} == {}


def test_newer_syntax_is_seen():
    assert "3.11" in newer_syntax("try: pass\nexcept* ValueError: pass\n")


def newer_syntax(text: str) -> str | None:
    """What of a module Python 3.10 does not understand."""
    try:
        ast.parse(text, feature_version=(3, 10))
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    return None


def python_3_10() -> str | None:
    """A Python 3.10 that runs; a version manager's stand-in for one does not."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for candidate in [shutil.which("python3.10"), *versions.glob("3.10.*/bin/python3.10")]:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return str(candidate)
    return None


def test_python_3_10_compiles_every_file():
    python = python_3_10()
    if not python:
        pytest.skip("needs a Python 3.10")
    code = "import sys\nfor name in sys.argv[1:]: compile(open(name, encoding='utf-8').read(), name, 'exec')"
    done = subprocess.run([python, "-W", "error", "-c", code, *SOURCES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
