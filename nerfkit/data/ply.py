# SPDX-License-Identifier: Apache-2.0
"""PLY files of points: positions and colors of the element `vertex`, ASCII or binary, as reconstructions come in."""

from __future__ import annotations

import io
import re
import reprlib
from itertools import islice
from pathlib import Path

import numpy as np

from nerfkit.data.capture import Points, check_positions
from nerfkit.errors import SceneError
from nerfkit.files import atomic_write
from nerfkit.safe_io import printable, read_regular

FILE_LIMIT = 2**30  # bytes
HEADER_LIMIT = 2**16  # bytes
FORMATS = ("ascii", "binary_little_endian")
TYPES = {  # of PLY, old and new names, as numpy's
    **dict.fromkeys(("char", "int8"), "i1"), **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "<i2"), **dict.fromkeys(("ushort", "uint16"), "<u2"),
    **dict.fromkeys(("int", "int32"), "<i4"), **dict.fromkeys(("uint", "uint32"), "<u4"),
    **dict.fromkeys(("float", "float32"), "<f4"), **dict.fromkeys(("double", "float64"), "<f8"),
}  # fmt: skip
POSITION, COLOR = ("x", "y", "z"), ("red", "green", "blue")
WANTED = {**dict.fromkeys(POSITION, ("<f4", "<f8")), **dict.fromkeys(COLOR, ("u1",))}  # types
GRAY = 128  # of points without color


def read_points(file: Path) -> Points:
    """The points of a PLY file, of which no image is known; gray where it has no colors."""
    content, where = read_regular(file, FILE_LIMIT, "point cloud", SceneError), printable(file)
    head = re.match(rb"ply\s(.*?)^end_header\s*?\n", content[:HEADER_LIMIT], re.S | re.M)
    if head is None:
        raise SceneError(f"{where} is no PLY file: no header from 'ply' to 'end_header' is at its start")
    format, count, types = _header(head[1].decode("latin-1"), where)
    names = POSITION + COLOR if types.keys() & set(COLOR) else POSITION
    for name in names:
        if types.get(name) not in WANTED[name]:
            wanted = "float or double" if name in POSITION else "uchar (0 to 255)"
            raise SceneError(f"{where}: the property '{name}' of 'vertex' is missing, or is not {wanted}")
    kind = np.dtype([*types.items()])
    table = np.zeros(0, kind)
    try:
        if format == "binary_little_endian":
            table = np.frombuffer(content, kind, count, head.end())
        elif count:
            lines = islice(io.BytesIO(content[head.end() :]), count)
            table = np.loadtxt(lines, kind, comments=None, ndmin=1)
    except ValueError as error:
        what = f"'vertex' must be {count} points of {len(types)} numbers, colors from 0 to 255"
        raise SceneError(f"{where}: {what}; is it truncated? ({printable(str(error))})") from None
    if len(table) != count:
        raise SceneError(f"{where}: {count} points are announced, but there are {len(table)}")
    positions = np.stack([table[name].astype(np.float64) for name in POSITION], axis=1)  # [P, 3]
    check_positions(positions, where)
    colors = np.full((count, 3), GRAY, dtype=np.uint8)
    if COLOR[0] in names:
        colors = np.stack([table[name] for name in COLOR], axis=1)
    return Points(positions, colors, np.zeros(count, dtype=np.int64), np.zeros(0, dtype=np.int64))


def write_points(file: Path, points: Points) -> None:
    """Write positions, in double precision, and colors as a binary PLY file."""
    columns = [*points.positions.T.astype("<f8"), *points.colors.T]
    table = np.rec.fromarrays(columns, names=[*POSITION, *COLOR])
    properties = [*(f"property double {name}" for name in POSITION), *(f"property uchar {name}" for name in COLOR)]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(table)}", *properties, "end_header", ""]
    atomic_write(file, "\n".join(lines).encode() + table.tobytes())


def _header(text: str, where: str) -> tuple[str, int, dict[str, str]]:
    """Format, and of the vertices, which come first, their number and the types of their properties by name."""
    format, elements = "", []
    for line in text.splitlines():
        match line.split():
            case ["format", format, _] if format in FORMATS:
                pass
            case ["element", name, number] if number.isdecimal() and len(number) <= 12:
                elements.append((name, int(number), {}))
            case ["property", kind, name] if elements and kind in TYPES and name not in elements[-1][2]:
                elements[-1][2][name] = TYPES[kind]
            case ["property", "list", *_] if len(elements) > 1:  # of what comes after the points
                pass
            case ["comment" | "obj_info", *_] | []:
                pass
            case _:
                wanted = f"the format {' or '.join(FORMATS)}, or elements and properties, no lists"
                what = f"{wanted}, of known types and different names"
                raise SceneError(f"{where}: the header's line {reprlib.repr(line)} must be {what}")
    if not format or not elements or elements[0][0] != "vertex":
        wanted = f"the format, {' or '.join(FORMATS)}, and the element 'vertex' before all others"
        raise SceneError(f"{where}: the header must have {wanted}")
    _, count, types = elements[0]
    return format, count, types
