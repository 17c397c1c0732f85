# SPDX-License-Identifier: Apache-2.0
"""Points as flat Gaussians in the PLY layout of 3D Gaussian splatting: a start for programs that optimise those."""

from __future__ import annotations

import numpy as np

from nerfkit.errors import UserError
from nerfkit.export.missing import optional
from nerfkit.export.ply import columns, needs_double, ply_bytes
from nerfkit.export.points import PointCloud

SH_0 = 0.28209479177387814  # the constant spherical harmonic
NEIGHBOURS = 3  # whose mean distance counts
FLAT = 0.1  # thickness along the normal, of the width
OPACITIES = (0.01, 0.99)  # whose logarithms of odds are finite


def splat_bytes(cloud: PointCloud, sh_degree: int) -> bytes:
    """The content of a PLY file; colors do not depend on the direction, higher harmonics up to a degree are 0."""
    if len(cloud) <= NEIGHBOURS:
        raise UserError(f"splats need more than {NEIGHBOURS} points to know their sizes, there are {len(cloud)}")
    if needs_double(cloud.positions):
        raise UserError(
            "splats hold positions in float32, which is too coarse so far from the origin of the scene's files; export "
            "them with --frame model"
        )
    n_rest = 3 * ((sh_degree + 1) ** 2 - 1)
    zeros = np.zeros(len(cloud), dtype="<f4")
    opacity = cloud.opacity.astype(np.float64).clip(*OPACITIES)
    return ply_bytes(
        {
            **columns("x y z", cloud.positions, "<f4"),
            **columns("nx ny nz", cloud.normals, "<f4"),
            **columns("f_dc_0 f_dc_1 f_dc_2", (cloud.colors - 0.5) / SH_0, "<f4"),
            **{f"f_rest_{index}": zeros for index in range(n_rest)},
            "opacity": np.log(opacity / (1 - opacity)).astype("<f4"),
            **columns("scale_0 scale_1 scale_2", np.log(scales(cloud.positions)), "<f4"),
            **columns("rot_0 rot_1 rot_2 rot_3", rotations(cloud.normals), "<f4"),
        }
    )


def scales(positions: np.ndarray) -> np.ndarray:
    """Standard deviations [P, 3]: half the distance to the neighbours, along the normal a tenth of that."""
    tree = optional("scipy.spatial", "splats").cKDTree(positions)
    distance = tree.query(positions, NEIGHBOURS + 1)[0][:, 1:].mean(axis=1) / 2
    distance = distance.clip(max(float(np.median(distance)) * 1e-3, 1e-12))
    return distance[:, None] * [1.0, 1.0, FLAT]


def rotations(normals: np.ndarray) -> np.ndarray:
    """Unit quaternions w x y z [P, 4] that turn z to the normals [P, 3]."""
    x, y, z = normals.astype(np.float64).T
    quaternion = np.stack([1 + z, -y, x, np.zeros_like(z)], axis=1)  # half way between z and the normal
    quaternion[z < -1 + 1e-9] = [0, 1, 0, 0]
    return quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
