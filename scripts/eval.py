#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Score a run on held-out views: `nerfkit eval`."""

from start import run

if __name__ == "__main__":
    run("eval")
