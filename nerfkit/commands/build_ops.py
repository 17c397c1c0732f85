# SPDX-License-Identifier: Apache-2.0
"""`nerfkit build-ops`: compile the fused ops of a checkout, only what changed."""

from __future__ import annotations

import sys

from nerfkit import jit


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--verbose"]):
        print("usage: nerfkit build-ops [--verbose]   (--verbose shows the compilers' commands)", file=sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    for library in jit.build_ops(verbose=bool(arguments)):
        print(f"built {library}")
    return 0
