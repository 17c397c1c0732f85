# SPDX-License-Identifier: Apache-2.0
"""Binary PLY files of points with normals and colors, of triangles, of splats."""

from __future__ import annotations

import numpy as np

TYPES = {"f4": "float", "f8": "double", "u1": "uchar", "i4": "int"}  # of PLY
DOUBLE_ABOVE = 1e4  # distances from the origin, in sizes, at which float32 has steps of 1/1000 of the size


def ply_bytes(
    vertices: dict[str, np.ndarray], faces: np.ndarray | None = None, comments: tuple[str, ...] = ()
) -> bytes:
    """The content of a file: columns [V] of the vertices by name, and triangles [F, 3]."""
    table = np.empty(
        len(next(iter(vertices.values()))), [(name, column.dtype.str) for name, column in vertices.items()]
    )
    for name, column in vertices.items():
        table[name] = column
    lines = ["ply", "format binary_little_endian 1.0", *(f"comment {text}" for text in comments)]
    lines += [f"element vertex {len(table)}"]
    lines += [f"property {TYPES[column.dtype.str[1:]]} {name}" for name, column in vertices.items()]
    if faces is not None:
        lines += [f"element face {len(faces)}", "property list uchar int vertex_indices"]
    content = ("\n".join([*lines, "end_header"]) + "\n").encode() + table.tobytes()
    if faces is None:
        return content
    rows = np.empty(len(faces), [("n", "u1"), ("vertices", "<i4", 3)])
    rows["n"], rows["vertices"] = 3, faces
    return content + rows.tobytes()


def columns(names: str, values: np.ndarray, kind: str) -> dict[str, np.ndarray]:
    """Columns of values [V, N] by their names, with spaces between."""
    return {name: values[:, index].astype(kind) for index, name in enumerate(names.split())}


def position_columns(positions: np.ndarray) -> dict[str, np.ndarray]:
    """x, y, z of positions [V, 3]; in double precision where they lie so far from the origin that it is needed."""
    return columns("x y z", positions, "<f8" if needs_double(positions) else "<f4")


def needs_double(positions: np.ndarray) -> bool:
    """Whether positions [V, 3] lie so far from the origin, for their extent, that float32 would move them."""
    size = float(np.ptp(positions, axis=0).max()) if len(positions) else 1.0
    return float(np.abs(positions).max(initial=0)) > DOUBLE_ABOVE * max(size, 1e-30)


def oriented_columns(positions: np.ndarray, normals: np.ndarray, colors: np.ndarray) -> dict[str, np.ndarray]:
    """Positions, normals [V, 3] and colors [V, 3] uint8."""
    return {
        **position_columns(positions),
        **columns("nx ny nz", normals, "<f4"),
        **columns("red green blue", colors, "|u1"),
    }
