#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run's mesh, points, cameras, depth, splats or page for other programs: `nerfkit export`."""

from start import run

if __name__ == "__main__":
    run("export")
