# SPDX-License-Identifier: Apache-2.0
"""Binary PLY files read independently of what writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TYPES = {"float": "<f4", "double": "<f8", "uchar": "u1"}


def read_ply(file: Path) -> dict[str, np.ndarray]:
    """Columns by name, and "vertices", "normals", "colors", "faces" of those that are there."""
    header, _, data = Path(file).read_bytes().partition(b"end_header\n")
    lines = [line.split() for line in header.decode().splitlines()]
    assert lines[0] == ["ply"] and lines[1][1] == "binary_little_endian"
    counts = {line[1]: int(line[2]) for line in lines if line[0] == "element"}
    fields = [(line[2], TYPES[line[1]]) for line in lines if line[0] == "property" and line[1] != "list"]
    table = np.frombuffer(data, fields, counts["vertex"])
    result = {name: table[name] for name, _ in fields}
    groups = {"vertices": "x y z", "normals": "nx ny nz", "colors": "red green blue"}
    for name, parts in groups.items():
        if parts.split()[0] in result:
            result[name] = np.stack([result[part] for part in parts.split()], axis=1)
    result["vertices"] = result["vertices"].astype(np.float64)
    rest = data[table.nbytes :]
    if "face" in counts:
        faces = np.frombuffer(rest, [("n", "u1"), ("v", "<i4", 3)], counts["face"])
        assert (faces["n"] == 3).all() and faces.nbytes == len(rest)
        result["faces"] = faces["v"]
    else:
        assert not rest
    return result
