# SPDX-License-Identifier: Apache-2.0
"""nerfkit: radiance fields in PyTorch with ops of their own."""

__version__ = "0.1.0"
