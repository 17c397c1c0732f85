# SPDX-License-Identifier: Apache-2.0
"""Registers nerfkit with nerfbaselines: set NERFBASELINES_REGISTER to the path of this file."""

from nerfbaselines import register

register(
    {
        "id": "nerfkit",
        "method_class": "nerfkit.integrations.nerfbaselines:NerfKit",
        "metadata": {
            "name": "nerfkit",
            "description": "A multi-resolution feature grid with convolution and, of objects, recurrence along rays.",
        },
    }
)
