# SPDX-License-Identifier: Apache-2.0
"""PLY files of points: positions and colors of the element `vertex`, ASCII or binary, as reconstructions come in."""

from __future__ import annotations

import io
import reprlib
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nerfkit.data.capture import Points
from nerfkit.errors import SceneError
from nerfkit.files import atomic_write
from nerfkit.reading import read_regular, shown

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
GRAY = 128  # of points without color


class _Header(NamedTuple):
    """What stands before the points."""

    format: str
    count: int  # points
    fields: list[tuple[str, str]]  # name and numpy's type of every property of a point
    skipped: int  # values (ASCII: lines) of elements before the points, in bytes if binary
    start: int  # byte after the header


def read_points(file: Path) -> Points:
    """The points of a PLY file, of which no image is known; gray where it has no colors."""
    content = read_regular(file, FILE_LIMIT, "point cloud", SceneError)
    header = _header(content, shown(file))
    table = _ascii(content, header, shown(file)) if header.format == "ascii" else _binary(content, header, shown(file))
    positions = np.stack([table[name].astype(np.float64) for name in POSITION], axis=1)  # [P, 3]
    bad = ~np.isfinite(positions).all(axis=1)
    if bad.any():
        index = int(bad.argmax())
        raise SceneError(f"{shown(file)}: vertex {index} is at {positions[index].tolist()}; positions must be finite")
    colors = np.full((header.count, 3), GRAY, dtype=np.uint8)
    if COLOR[0] in dict(header.fields):
        colors = np.stack([table[name] for name in COLOR], axis=1).astype(np.uint8)
    nothing = np.zeros(0, dtype=np.int64)
    return Points(positions, colors, np.zeros(header.count, dtype=np.int64), nothing)


def write_points(file: Path, points: Points) -> None:
    """Write positions, in double precision, and colors as a binary PLY file."""
    fields = [*((name, "<f8") for name in POSITION), *((name, "u1") for name in COLOR)]
    table = np.zeros(len(points.positions), dtype=fields)
    for column, name in enumerate(POSITION):
        table[name] = points.positions[:, column]
    for column, name in enumerate(COLOR):
        table[name] = points.colors[:, column]
    properties = [f"property {'uchar' if kind == 'u1' else 'double'} {name}" for name, kind in fields]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(table)}", *properties, "end_header", ""]
    atomic_write(file, "\n".join(lines).encode() + table.tobytes())


def _header(content: bytes, where: str) -> _Header:
    """The header, checked for what a point needs."""
    lines, start = _header_lines(content, where)
    format, count, fields, skipped, element = "", None, [], 0, ("", 0)
    for line in lines:
        match line.split():
            case ["format", format, _]:
                if format not in FORMATS:
                    raise SceneError(f"{where}: format {shown(format)} is not supported; give {' or '.join(FORMATS)}")
            case ["element", name, number]:
                if not number.isdecimal() or len(number) > 12:
                    raise SceneError(f"{where}: element {shown(name)} must have a count, got {shown(number)}")
                element = name, int(number)
                if count is None and name != "vertex" and format == "ascii":
                    skipped += element[1]
                count = element[1] if name == "vertex" and count is None else count
            case ["property", kind, name]:
                if kind not in TYPES:
                    raise SceneError(f"{where}: property {shown(name)} has the unknown type {shown(kind)}")
                if element[0] == "vertex":
                    fields.append((name, TYPES[kind]))
                elif count is None and format != "ascii":
                    skipped += element[1] * np.dtype(TYPES[kind]).itemsize
            case ["property", "list", *_]:
                if element[0] == "vertex" or (count is None and format != "ascii"):
                    raise SceneError(f"{where}: a list is not supported in element {shown(element[0])}; leave it out")
            case ["ply"] | ["comment" | "obj_info", *_] | []:
                pass
            case _:
                raise SceneError(f"{where}: the line {reprlib.repr(line)} of the header is not understood")
    _check_fields(fields, count, where)
    return _Header(format, count or 0, fields, skipped, start)


def _header_lines(content: bytes, where: str) -> tuple[list[str], int]:
    """Lines of the header, and where it ends."""
    mark = content.find(b"end_header", 0, HEADER_LIMIT)
    end = content.find(b"\n", mark) + 1
    if not content.startswith(b"ply") or mark < 0 or not end:
        raise SceneError(f"{where} is no PLY file: no header from 'ply' to 'end_header' is at its start")
    return content[:mark].decode("latin-1").splitlines(), end


def _check_fields(fields: list[tuple[str, str]], count: int | None, where: str) -> None:
    """Refuse points without a position, or with colors of another type than nerfkit reads."""
    types = dict(fields)
    if count is None:
        raise SceneError(f"{where}: the element 'vertex' is missing")
    if len(types) != len(fields):
        raise SceneError(
            f"{where}: a property of 'vertex' is there twice: {shown(', '.join(name for name, _ in fields))}"
        )
    wanted = (*POSITION, *COLOR) if types.keys() & set(COLOR) else POSITION
    for name in wanted:
        if name not in types:
            raise SceneError(f"{where}: the property '{name}' of 'vertex' is missing")
        if name in POSITION and "f" not in types[name]:
            raise SceneError(f"{where}: the property '{name}' of 'vertex' must be float or double")
        if name in COLOR and types[name] != "u1":
            raise SceneError(f"{where}: the property '{name}' of 'vertex' must be uchar (0 to 255)")


def _binary(content: bytes, header: _Header, where: str) -> np.ndarray:
    """The points [P] with the header's fields."""
    kind = np.dtype(header.fields)
    start = header.start + header.skipped
    if start + header.count * kind.itemsize > len(content):
        raise SceneError(f"{where} is truncated: {header.count} points of {kind.itemsize} bytes do not fit into it")
    return np.frombuffer(content, kind, header.count, start)


def _ascii(content: bytes, header: _Header, where: str) -> dict[str, np.ndarray]:
    """Columns [P] of the points by name, one point a line."""
    names = [name for name, _ in header.fields]
    if header.count * 2 * len(names) > len(content) - header.start + 1:
        raise SceneError(f"{where} is truncated: {header.count} points do not fit into it")
    if not header.count:
        return {name: np.zeros(0) for name in names}
    text = io.BytesIO(content)
    text.seek(header.start)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file without rows, which are counted below
            rows = np.loadtxt(text, skiprows=header.skipped, max_rows=header.count, comments=None, ndmin=2)
    except ValueError as error:
        raise SceneError(f"{where}: a vertex is not a line of {len(names)} numbers ({shown(str(error))})") from None
    if rows.shape != (header.count, len(names)):
        raise SceneError(
            f"{where}: {header.count} points of {len(names)} values are announced, "
            f"but there are {len(rows)} of {rows.shape[1]}"
        )
    table = dict(zip(names, rows.T, strict=True))
    for name in COLOR:
        if name in table and not ((table[name] >= 0) & (table[name] <= 255)).all():
            raise SceneError(f"{where}: the property '{name}' of 'vertex' must lie between 0 and 255")
    return table
