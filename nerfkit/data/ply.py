# SPDX-License-Identifier: Apache-2.0
"""PLY files of points: positions and colors of the element `vertex`, ASCII or binary, as reconstructions come in."""

import io
import re
import reprlib
import warnings
from pathlib import Path
from typing import NamedTuple

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


class _Element(NamedTuple):
    name: str
    count: int
    fields: list[tuple[str, str]]  # name and numpy's type, '' of a list

    def type(self, where: str) -> np.dtype:
        names = [name for name, _ in self.fields]
        if len(set(names)) != len(names) or not all(kind for _, kind in self.fields):
            wanted = f"properties of '{printable(self.name)}' must be single numbers of different names"
            raise SceneError(f"{where}: {wanted}, no lists, got {printable(', '.join(names))}")
        return np.dtype(self.fields)


def read_points(file: Path) -> Points:
    """The points of a PLY file, of which no image is known; gray where it has no colors."""
    content, where = read_regular(file, FILE_LIMIT, "point cloud", SceneError), printable(file)
    mark = next((line.start() for line in re.finditer(rb"^end_header\s", content[:HEADER_LIMIT], re.M)), -1)
    start = content.find(b"\n", mark) + 1
    if not content.startswith(b"ply") or mark < 0 or not start:
        raise SceneError(f"{where} is no PLY file: no header from 'ply' to 'end_header' is at its start")
    format, elements = _header(content[:mark].decode("latin-1"), where)
    index = next((index for index, element in enumerate(elements) if element.name == "vertex"), None)
    if index is None:
        raise SceneError(f"{where}: the element 'vertex' is missing")
    before, vertex = elements[:index], elements[index]
    kind, types = vertex.type(where), dict(vertex.fields)
    names = POSITION + COLOR if types.keys() & set(COLOR) else POSITION
    for name in names:
        if types.get(name) not in WANTED[name]:
            wanted = "float or double" if name in POSITION else "uchar (0 to 255)"
            raise SceneError(f"{where}: the property '{name}' of 'vertex' is missing, or is not {wanted}")
    is_ascii = format == "ascii"
    start += 0 if is_ascii else sum(element.count * element.type(where).itemsize for element in before)
    shortest = 2 * len(types) if is_ascii else kind.itemsize  # bytes of a point
    if vertex.count * shortest > len(content) - start + is_ascii:
        raise SceneError(f"{where} is truncated: {vertex.count} points do not fit into it")
    if is_ascii:
        table = _ascii(content[start:], sum(element.count for element in before), vertex, where)
    else:
        table = np.frombuffer(content, kind, vertex.count, start)
    positions = np.stack([table[name].astype(np.float64) for name in POSITION], axis=1)  # [P, 3]
    check_positions(positions, where)
    colors = np.full((vertex.count, 3), GRAY, dtype=np.uint8)
    if COLOR[0] in names:
        colors = np.stack([table[name] for name in COLOR], axis=1).astype(np.uint8)
    return Points(positions, colors, np.zeros(vertex.count, dtype=np.int64), np.zeros(0, dtype=np.int64))


def write_points(file: Path, points: Points) -> None:
    """Write positions, in double precision, and colors as a binary PLY file."""
    columns = [*points.positions.T.astype("<f8"), *points.colors.T]
    table = np.rec.fromarrays(columns, names=[*POSITION, *COLOR])
    properties = [*(f"property double {name}" for name in POSITION), *(f"property uchar {name}" for name in COLOR)]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(table)}", *properties, "end_header", ""]
    atomic_write(file, "\n".join(lines).encode() + table.tobytes())


def _header(text: str, where: str) -> tuple[str, list[_Element]]:
    format, elements = "", []
    for line in text.splitlines():
        match line.split():
            case ["format", format, _] if format in FORMATS:
                pass
            case ["element", name, number] if number.isdecimal() and len(number) <= 12:
                elements.append(_Element(name, int(number), []))
            case ["property", "list", *_, name] if elements:
                elements[-1].fields.append((name, ""))
            case ["property", kind, name] if elements and kind in TYPES:
                elements[-1].fields.append((name, TYPES[kind]))
            case ["ply"] | ["comment" | "obj_info", *_] | []:
                pass
            case _:
                wanted = f"the format {' or '.join(FORMATS)}, or elements and properties"
                raise SceneError(f"{where}: the header's line {reprlib.repr(line)} must be {wanted} of known types")
    if not format:
        raise SceneError(f"{where}: the header does not say its format ({' or '.join(FORMATS)})")
    return format, elements


def _ascii(text: bytes, skipped: int, vertex: _Element, where: str) -> dict[str, np.ndarray]:
    """Columns [P] of the points by name, one point a line, after some lines."""
    names = [name for name, _ in vertex.fields]
    rows = np.zeros((0, len(names)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rows are counted below
            if vertex.count:
                rows = np.loadtxt(io.BytesIO(text), skiprows=skipped, max_rows=vertex.count, comments=None, ndmin=2)
    except ValueError as error:
        raise SceneError(f"{where}: a vertex is not a line of {len(names)} numbers ({printable(str(error))})") from None
    if rows.shape != (vertex.count, len(names)):
        got = "but there are {} of {}".format(*rows.shape)
        raise SceneError(f"{where}: {vertex.count} points of {len(names)} values are announced, {got}")
    table = dict(zip(names, rows.T, strict=True))
    if not all(((table[name] >= 0) & (table[name] <= 255)).all() for name in COLOR if name in table):
        raise SceneError(f"{where}: {', '.join(COLOR)} of 'vertex' must lie between 0 and 255")
    return table
