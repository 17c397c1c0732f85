# SPDX-License-Identifier: Apache-2.0
"""`python -m nerfkit doctor`: what this installation can do."""

from __future__ import annotations

import sys

from nerfkit import doctor

USAGE = "usage: python -m nerfkit doctor    print what this installation can do, with a verdict"


def main(arguments: list[str]) -> int:
    if arguments != ["doctor"]:
        print(USAGE, file=sys.stderr)
        return 2
    lines, works = doctor.report()
    print("\n".join(lines))
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
