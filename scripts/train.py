#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a radiance field on a scene: `nerfkit train`."""

from start import run

if __name__ == "__main__":
    run("train")
