# SPDX-License-Identifier: Apache-2.0
"""Names and limits that kernels and options share; nothing here needs torch."""

import math

OPS = (
    "trilinear", "grid_encode", "depthwise_conv1d", "depthwise_conv2d", "lltm_cell", "lltm", "mlp", "march",
    "count_visible", "compact_samples", "spherical_harmonics", "composite", "distortion", "lazy_adam",
    "render_rays",
)  # fmt: skip
GPU_ONLY = ("render_rays",)  # ops without a backend "cpp": on a CPU their definition runs, a chain of other ops
BACKENDS = ("torch", "cpp", "cuda")
CHOICES = ("auto", *BACKENDS)
MAX_LEVELS, MAX_RESOLUTION, MAX_ENTRIES = 64, 2**20, 2**31  # of a feature grid
MAX_INTERVALS = 2**20 - 1  # of a marched ray: more would not fit into memory, as with a step in the wrong unit
MAX_EDGES = 2**16  # distances of t_edges
COORDINATE_LIMIT = 1e12  # of positions in files, in their units, which may be meters from the Earth's centre


def of_all_ops(backend: str) -> dict[str, str]:
    """`backend` for every op; for those that only a GPU has, of models that its kernels take, no more than a wish."""
    wish = {"cpp": "torch", "cuda": "auto"}.get(backend, backend)
    return {op: wish if op in GPU_ONLY else backend for op in OPS}


def edge_distances(near: float, far: float, step_size: float, cone_angle: float) -> list[float]:
    """See `nerfkit.contraction.exponential_edges`."""
    if not 0 <= near < far < math.inf:
        raise ValueError(f"exponential_edges: near and far must be finite with 0 <= near < far, got {near} and {far}")
    if not (0 < step_size < math.inf and 0 <= cone_angle < math.inf):
        raise ValueError(
            f"exponential_edges: step_size must be positive and cone_angle not negative, both finite, got {step_size} "
            f"and {cone_angle}"
        )
    t_edges = [float(near)]
    beyond = 0  # distances that are not below far
    while beyond < 2:
        before = t_edges[-1]
        t_edges.append(before + max(step_size, cone_angle * before))
        beyond += t_edges[-1] >= far
        if len(t_edges) > MAX_EDGES or t_edges[-1] == before:
            raise ValueError(
                f"exponential_edges: step_size {step_size:g} and cone_angle {cone_angle:g} make more than {MAX_EDGES} "
                f"intervals from {near:g} to {far:g}; use a larger step_size or cone_angle"
            )
    return t_edges
