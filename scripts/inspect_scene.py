#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Say what is found in the folder of a scene, and what to mend, without training: `nerfkit inspect`."""

from start import run

if __name__ == "__main__":
    run("inspect")
