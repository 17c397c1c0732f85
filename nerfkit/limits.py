# SPDX-License-Identifier: Apache-2.0
"""Names and limits that kernels and options share; nothing here needs torch."""

OPS = (
    "trilinear",
    "grid_encode",
    "depthwise_conv1d",
    "depthwise_conv2d",
    "lltm_cell",
    "lltm",
    "mlp",
    "march",
    "count_visible",
    "compact_samples",
    "spherical_harmonics",
    "composite",
    "distortion",
    "lazy_adam",
)
BACKENDS = ("torch", "cpp", "cuda")
CHOICES = ("auto", *BACKENDS)
MAX_LEVELS, MAX_RESOLUTION, MAX_ENTRIES = 64, 2**20, 2**31  # of a feature grid
MAX_INTERVALS = 2**20 - 1  # of a marched ray: more would not fit into memory, as with a step in the wrong unit
