#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Render novel views of a run: `nerfkit render`."""

from start import run

if __name__ == "__main__":
    run("render")
