# SPDX-License-Identifier: Apache-2.0
"""Meshes as files: PLY, and GLB by trimesh."""

from __future__ import annotations

import numpy as np

from nerfkit.export.mesh import Mesh
from nerfkit.export.missing import optional
from nerfkit.export.ply import oriented_columns, ply_bytes

FORMATS = ("ply", "glb")


def mesh_bytes(mesh: Mesh, format: str) -> bytes:
    """The content of a file of FORMATS."""
    if format == "glb":
        return _glb(mesh)
    return ply_bytes(oriented_columns(mesh.vertices, mesh.normals, mesh.colors), mesh.faces)


def _glb(mesh: Mesh) -> bytes:
    """A binary glTF; its colors are linear, as that format has them, and its axes are the mesh's own."""
    trimesh = optional("trimesh", "a GLB file")
    opaque = np.full((len(mesh.colors), 1), 255, dtype=np.uint8)
    shape = trimesh.Trimesh(
        mesh.vertices, mesh.faces, vertex_normals=mesh.normals.astype(np.float64), process=False,
        vertex_colors=np.concatenate([to_linear(mesh.colors), opaque], axis=1),
    )  # fmt: skip
    return shape.export(file_type="glb", include_normals=True)


def to_linear(colors: np.ndarray) -> np.ndarray:
    """sRGB colors, uint8, as linear ones, uint8."""
    values = colors / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return (linear * 255 + 0.5).astype(np.uint8)
