# SPDX-License-Identifier: Apache-2.0
"""nerfkit: radiance fields in PyTorch with ops of their own."""

from nerfkit.version import __version__

__all__ = ["__version__"]
