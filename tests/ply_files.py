# SPDX-License-Identifier: Apache-2.0
"""Binary PLY files read independently of what writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from plyfile import PlyData

GROUPS = {"vertices": "x y z", "normals": "nx ny nz", "colors": "red green blue"}


def read_ply(file: Path) -> dict[str, np.ndarray]:
    """Columns by name, and "vertices", "normals", "colors", "faces" of those that are there."""
    content = PlyData.read(file)
    assert not content.text and content.byte_order == "<"
    table = content["vertex"].data
    result = {name: table[name] for name in table.dtype.names}
    for name, parts in GROUPS.items():
        if parts.split()[0] in result:
            result[name] = np.stack([result[part] for part in parts.split()], axis=1)
    result["vertices"] = result["vertices"].astype(np.float64)
    if "face" in content:
        result["faces"] = np.stack(content["face"].data[content["face"].properties[0].name])
    return result
