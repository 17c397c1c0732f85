#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Say what a run scored and where its images are: `nerfkit summary`."""

from start import run

if __name__ == "__main__":
    run("summary")
