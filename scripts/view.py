#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Look at a run in a browser: `nerfkit view`."""

from start import run

if __name__ == "__main__":
    run("view")
