# SPDX-License-Identifier: Apache-2.0
import shutil
import subprocess
import sys

import pytest

# Stands in for python3: says which venv was asked for, makes none, installs nothing.
FAKE = """#!{real}
import os, sys
arguments = sys.argv[1:]
if arguments[0] == "-c":
    sys.prefix, sys.base_prefix = "/base", {base!r}
    exec(arguments[1])
elif arguments[:2] == ["-m", "venv"]:
    print("venv", arguments[2:-1])
    os.makedirs(arguments[-1] + "/bin")
    os.symlink(os.path.abspath(__file__), arguments[-1] + "/bin/python")
else:
    print("asked for", arguments)
"""


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize("base", ["/base", "/another"])
@pytest.mark.slow
def test_only_the_torch_of_a_base_interpreter_is_used(tmp_path, base: str):
    """A venv on top of an activated venv would not see that one's torch."""
    python = tmp_path / "python3"
    python.write_text(FAKE.format(real=sys.executable, base=base))
    python.chmod(0o755)
    (tmp_path / "torch.py").write_text('__version__ = "2.13.0"\n')
    venv = tmp_path / "venv"
    done = subprocess.run(
        ["make", f"PYTHON={python}", f"VENV={venv}", f"{venv}/ready"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert ("venv ['--system-site-packages']" in done.stdout) == (base == "/base")
    assert ("'torch==" in done.stdout) == (base != "/base")
