# SPDX-License-Identifier: Apache-2.0
"""Everything is in pyproject.toml; this file is the place where compiled ops are built from `cuda/`."""

from setuptools import setup

setup()
