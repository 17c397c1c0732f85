# SPDX-License-Identifier: Apache-2.0
"""Names and limits that kernels and options share; nothing here needs torch."""

import math

OPS = (
    "trilinear", "grid_encode", "depthwise_conv1d", "depthwise_conv2d", "lltm_cell", "lltm", "mlp", "march",
    "count_visible", "compact_samples", "spherical_harmonics", "composite", "distortion", "lazy_adam",
)  # fmt: skip
BACKENDS = ("torch", "cpp", "cuda")
CHOICES = ("auto", *BACKENDS)
MAX_LEVELS, MAX_RESOLUTION, MAX_ENTRIES = 64, 2**20, 2**31  # of a feature grid
MAX_INTERVALS = 2**20 - 1  # of a marched ray: more would not fit into memory, as with a step in the wrong unit
MAX_LADDER = 2**16  # distances of a ladder
COORDINATE_LIMIT = 1e12  # of positions in files, in their units, which may be metres from the Earth's centre


def ladder_distances(near: float, far: float, step: float, cone: float) -> list[float]:
    """See `nerfkit.contraction.exponential_ladder`."""
    if not 0 <= near < far < math.inf:
        raise ValueError(f"exponential_ladder: near and far must be finite with 0 <= near < far, got {near} and {far}")
    if not (0 < step < math.inf and 0 <= cone < math.inf):
        raise ValueError(
            f"exponential_ladder: step must be positive and cone not negative, both finite, got {step} and {cone}"
        )
    ladder = [float(near)]
    beyond = 0  # distances that are not below far
    while beyond < 2:
        before = ladder[-1]
        ladder.append(before + max(step, cone * before))
        beyond += ladder[-1] >= far
        if len(ladder) > MAX_LADDER or ladder[-1] == before:
            raise ValueError(
                f"exponential_ladder: step {step:g} and cone {cone:g} make more than {MAX_LADDER} intervals from "
                f"{near:g} to {far:g}; use a larger step or cone"
            )
    return ladder
