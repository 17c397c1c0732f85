# SPDX-License-Identifier: Apache-2.0
"""The version of this package, and of what its numbers depend on."""

import platform

__version__ = "0.2.0"


def versions() -> dict[str, str]:
    import torch  # not above: whoever builds the package reads the version without it

    return {"nerfkit": __version__, "torch": torch.__version__, "python": platform.python_version()}
