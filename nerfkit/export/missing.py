# SPDX-License-Identifier: Apache-2.0
"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from nerfkit.errors import UserError

PACKAGES = {"skimage.measure": "scikit-image", "scipy.sparse": "scipy", "scipy.spatial": "scipy"}  # where names differ


def optional(module: str, what: str) -> ModuleType:
    """A module of the extra `export`; raises UserError that says what to install for `what`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name.split(".")[0]):
            raise  # it is there, but lacks one of its own
        package = PACKAGES.get(module, module)
        raise UserError(f'{what} needs {package}, which is missing; type pip install "nerfkit[export]"') from None
