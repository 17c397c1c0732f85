# SPDX-License-Identifier: Apache-2.0
"""What the scripts share: they are commands of nerfkit, and say what to type where it is not installed."""

from __future__ import annotations

import sys


def run(command: str) -> None:
    """Run `nerfkit <command>` with the arguments of this script."""
    try:
        from nerfkit.commands import run_command
    except KeyboardInterrupt:
        sys.exit("stopped")
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; type `make .venv/ready && . .venv/bin/activate`, or `pip install -e .`, first")
    run_command(command, sys.argv[1:])
