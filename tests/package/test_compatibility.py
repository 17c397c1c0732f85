# SPDX-License-Identifier: Apache-2.0
"""One build of the fused ops serves every torch from 2.10 on. That the sources are Python 3.10, `make lint` says."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.package.conftest import ROOT

pytestmark = pytest.mark.slow

SYMBOLS = set(re.findall(r"^\w+$", (Path(__file__).parent / "torch_2_10_symbols.txt").read_text(), re.M))
# The libraries that every Linux has, and what torch's own process has loaded; all else would be C++ of one torch.
SYSTEM = re.compile(r"lib(torch|torch_cpu|stdc\+\+|m|gcc_s|c|dl|rt|pthread|cudart)\.so[.\d]*|ld-linux-.*")


def wants_of_torch(names: list[str]) -> set[str]:
    """Those that only torch can have: its C functions, and C++ that is not the standard library's."""
    demangled = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return {name for name in demangled.stdout.split("\n") if re.search(r"torch|c10|\bat::|caffe", name)}


@pytest.mark.skipif(not all(map(shutil.which, ("nm", "c++filt", "readelf"))), reason="needs nm, c++filt and readelf")
@pytest.mark.parametrize("name", ["_C.so", "_C_avx2.so", "_C_avx512.so", "_C_cuda.so"])
def test_libraries_want_what_torch_2_10_has_and_no_others(name: str):
    library = ROOT / "nerfkit" / name
    if not library.exists():
        pytest.skip(f"{name} is not built here")
    listing = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    wanted = wants_of_torch([line.split()[-1].partition("@")[0] for line in listing.stdout.splitlines()])
    assert wanted and wanted <= SYMBOLS, f"not of torch 2.10's stable ABI: {sorted(wanted - SYMBOLS)}"
    listing = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", listing)
    assert needed and all(SYSTEM.fullmatch(other) for other in needed), needed


def test_what_is_not_the_stable_abi_is_seen():
    names = ["aoti_torch_get_dim", "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcEE", "memcpy"]
    assert len(wants_of_torch(names)) == 2 and len(wants_of_torch(names) - SYMBOLS) == 1
