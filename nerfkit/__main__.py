# SPDX-License-Identifier: Apache-2.0
"""`python -m nerfkit doctor`: what this installation can do. `python -m nerfkit build-ops`: compile its ops again."""

from __future__ import annotations

import sys

from nerfkit import jit
from nerfkit.commands import doctor
from nerfkit.errors import UserError

USAGE = """usage: python -m nerfkit COMMAND

  doctor       print what this installation can do, with a verdict
  build-ops    compile the fused ops of a checkout, only what changed (for who writes ops; needs ninja)
               --verbose shows the compilers' commands"""


def main(arguments: list[str]) -> int:
    match arguments:
        case ["doctor"]:
            lines, works = doctor.report()
            print("\n".join(lines))
            return 0 if works else 1
        case ["build-ops"] | ["build-ops", "--verbose"]:
            try:
                for library in jit.build_ops(verbose="--verbose" in arguments):
                    print(f"built {library}")
            except UserError as error:
                print(error, file=sys.stderr)
                return 1
            return 0
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
