# SPDX-License-Identifier: Apache-2.0
"""setup.py compiles only what changed, says how far it is, and builds what it can."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools  # noqa: F401  one that is missing is said here, not by a build

from tests.naming import assert_names
from tests.package.conftest import ROOT

FILES = {
    "schema.cpp": "int schema;\n",
    "build_info.cpp": "const char* facts = BUILD_TARGETS;\n",
    "one/args.h": "#define ONE 1\n",
    "one/bind.cpp": '#include "one/args.h"\nint bound = ONE;\n',
    "one/cpu.cpp": '#include "one/args.h"\nint kernel() { return ONE; }\n',
    "two/bind.cpp": "int two;\n",
}
STEP = re.compile(r"^nerfkit build: (\d+) of (\d+), (\S+) \(\S+\)$", re.M)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="needs Linux and g++"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="counts the libraries of x86-64"),
]


class Tree:
    """A folder with setup.py and a few sources, which includes none of torch and compiles in no time."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copy(ROOT / "setup.py", folder)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        file = self.folder / "cuda" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def build(self, status: int = 0, **variables: str) -> str:
        """What a build says."""
        command = [sys.executable, "setup.py", "build_ext", "--build-lib", "out"]
        environment = os.environ | {"NERFKIT_NATIVE": "1", "NERFKIT_CUDA": "0", "MAX_JOBS": "2"} | variables
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stderr

    def compiled(self, **variables: str) -> list[str]:
        """Sources that a build compiles, once for each library that they are compiled for."""
        return sorted(match[3] for match in STEP.finditer(self.build(**variables)))

    def libraries(self) -> set[str]:
        return {file.name for file in (self.folder / "out" / "nerfkit").glob("*.so")}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_only_what_changed_is_compiled_again(tree: Tree):
    once, thrice = ["one/bind.cpp", "schema.cpp", "two/bind.cpp"], ["build_info.cpp", "one/cpu.cpp"]
    said = tree.build()
    steps = list(STEP.finditer(said))
    assert sorted(step[3] for step in steps) == sorted(once + thrice * 3)
    assert [(int(step[1]), int(step[2])) for step in steps] == [(n, 12) for n in range(1, 10)], "then three are linked"
    assert re.search(r"^nerfkit build: done: .*baseline\+AVX2\+AVX-512", said, re.M)
    assert tree.libraries() == {"_C.so", "_C_avx2.so", "_C_avx512.so"}
    assert tree.compiled() == []
    tree.write("one/args.h", "#define ONE 2\n")
    assert tree.compiled() == ["one/bind.cpp", *["one/cpu.cpp"] * 3]
    tree.write("schema.cpp", "int other_schema;\n")
    assert tree.compiled() == [*["build_info.cpp"] * 3, "schema.cpp"], "its hash is in build_info"
    assert tree.compiled(CXX="g++ -g0") == sorted(once + thrice * 3), "another command"


def test_one_library_that_fails_leaves_the_others(tree: Tree):
    tree.build()
    tree.write("one/cpu.cpp", "#ifdef __AVX512F__\n#error not here\n#endif\nint kernel() { return 1; }\n")
    said = tree.build(NERFKIT_NATIVE="auto")
    assert_names(said, "not here", "one/cpu.cpp (AVX-512)", "no AVX-512 ops: they did not compile")
    assert tree.libraries() == {"_C.so", "_C_avx2.so"}, "nor is an older one left"


def test_a_library_that_must_be_built_stops_the_build(tree: Tree):
    tree.write("two/bind.cpp", "this is not C++\n")
    assert_names(tree.build(status=1), "two/bind.cpp", "error:", "nerfkit._C failed")
    assert not tree.libraries()
