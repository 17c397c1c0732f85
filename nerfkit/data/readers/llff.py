# SPDX-License-Identifier: Apache-2.0
"""LLFF captures: poses_bounds.npy and a folder of images.

The file is float64 [N, 17], a row per image in the order of the images' sorted names: a 3x5 matrix, row by row, whose
columns are the axes down, right and backwards, the position, and height, width and focal length of the original
images; then the nearest and the farthest depth. The images may be reduced ones: images_4 and the like.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.notes import notes_of
from nerfkit.data.readers.folders import find_masks, is_folder, list_images
from nerfkit.errors import SceneError
from nerfkit.reading import read_regular, shown

NEEDS = "poses_bounds.npy"
COLUMNS = 17
FILE_LIMIT = 2**28  # bytes
SIDE_LIMIT = 100_000  # pixels
FOCAL_LIMITS = (1e-3, 1e7)  # pixels
COORDINATE_LIMIT = 1e12  # of positions and depths
ROTATION_TOLERANCE = 1e-3
IMAGES, REDUCED = "images", re.compile(r"images_([1-9]\d{0,3})")


def recognises(folder: Path) -> bool:
    """Whether there is a poses_bounds.npy."""
    return os.path.lexists(folder / NEEDS)


def read(folder: Path) -> Capture:
    """Images, poses and bounds; raises SceneError."""
    file = folder / NEEDS
    table = _read_table(file)
    image_folder, notes = _find_images(folder)
    files = list_images(image_folder)
    names = [name for name in files if "/" not in name]
    if len(names) != len(table):
        raise SceneError(
            f"{shown(file)} holds {len(table)} poses, but {shown(image_folder)} {len(names)} images; the poses belong "
            "to the images in the order of their names, so that none may be missing and none be added"
        )
    if len(files) > len(names):
        notes.append(f"{len(files) - len(names)} images in folders within {shown(image_folder.name)} are not used")
    masks, mask_notes = find_masks(folder, names)
    rows = zip(names, _poses(table, file), _lenses(table, file), _bounds(table, file), strict=True)
    return Capture(
        name=folder.resolve().name,
        format="llff",
        images=[PosedImage(name, image_folder / name, pose, lens, masks.get(name), b) for name, pose, lens, b in rows],
        notes=notes_of(*notes, *mask_notes),
    )


def _read_table(file: Path) -> np.ndarray:
    """The array [N, 17] float64 of the file, N at least 1; nothing is unpickled."""
    content = read_regular(file, FILE_LIMIT, "LLFF file", SceneError)
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran_order, dtype = header[version](stream)
    except Exception as problem:  # a header is a Python literal: what may go wrong in it has many classes
        reason = shown(" ".join(str(problem).split()), 100)
        raise SceneError(f"{shown(file)} is not a NumPy array file: {reason}") from None
    if dtype.kind != "f" or dtype.itemsize not in (4, 8):
        raise SceneError(f"{shown(file)} must hold an array of float64, got {shown(str(dtype), 60)}")
    if len(shape) != 2 or shape[1] != COLUMNS or not shape[0] > 0:
        raise SceneError(f"{shown(file)} must hold an array [N, {COLUMNS}], N above 0, got {shown(str(shape), 60)}")
    values = memoryview(content)[stream.tell() :]
    if len(values) != shape[0] * COLUMNS * dtype.itemsize:
        wanted = f"{shape[0] * COLUMNS * dtype.itemsize} bytes for {list(shape)} of {dtype}"
        raise SceneError(f"{shown(file)} has {len(values)} bytes of values instead of {wanted}; it is cut or damaged")
    table = np.frombuffer(values, dtype).reshape(shape, order="F" if fortran_order else "C").astype(np.float64)
    _check(table, np.abs(table) <= COORDINATE_LIMIT, file, f"finite and at most {COORDINATE_LIMIT:g}", range(COLUMNS))
    return table


def _check(values: np.ndarray, good: np.ndarray, file: Path, wanted: str, columns: range) -> None:
    """Raise SceneError for the first row of `values` [N, M], which are those `columns`, that has not all of `good`."""
    if not good.all():
        row, column = (int(index) for index in np.argwhere(~good)[0])
        where = f"{shown(file)}: row {row}, column {columns[column]}"
        raise SceneError(f"{where}: must be {wanted}, got {values[row, column]:.6g}")


def _poses(table: np.ndarray, file: Path) -> np.ndarray:
    """Camera to world [N, 3, 4] in OpenGL axes."""
    matrices = table[:, :15].reshape(-1, 3, 5)
    down, right, back, position = matrices[:, :, :4].transpose(2, 0, 1)  # [N, 3] each
    poses = np.stack([right, -down, back, position], axis=2)
    rotation = poses[:, :, :3]
    skew = np.abs(rotation @ rotation.transpose(0, 2, 1) - np.eye(3)).max(axis=(1, 2))  # [N]
    determinant = np.linalg.det(rotation)
    bad = ~((skew <= ROTATION_TOLERANCE) & (determinant > 0))
    if bad.any():
        row = int(bad.argmax())
        what = f"determinant {determinant[row]:.4g}, orthogonal but for {skew[row]:.3g}"
        raise SceneError(
            f"{shown(file)}: row {row}: columns 0, 1, 2 of its 3x5 matrix must be a rotation's axes down, right and "
            f"backwards ({what})"
        )
    return poses


def _lenses(table: np.ndarray, file: Path) -> list[Lens]:
    """The lens of every row, of the size that it states."""
    sizes, focals = table[:, [4, 9]], table[:, 14:15]  # [N, 2] height, width; [N, 1]
    whole = (sizes >= 1) & (sizes <= SIDE_LIMIT) & (sizes == np.round(sizes))
    _check(sizes, whole, file, f"a whole number of pixels from 1 to {SIDE_LIMIT}", range(4, 10, 5))
    low, high = FOCAL_LIMITS
    good = (focals >= low) & (focals <= high)
    _check(focals, good, file, f"a focal length from {low:g} to {high:g} pixels", range(14, 15))
    lenses: dict[tuple[float, ...], Lens] = {}  # equal ones are one object
    for height, width, focal in np.unique(np.concatenate([sizes, focals], axis=1), axis=0).tolist():
        params = (focal, width / 2, height / 2)
        lenses[height, width, focal] = Lens("SIMPLE_PINHOLE", params, int(width), int(height))
    return [lenses[tuple(row)] for row in table[:, [4, 9, 14]].tolist()]


def _bounds(table: np.ndarray, file: Path) -> list[tuple[float, float]]:
    """Nearest and farthest depth of every row."""
    bounds = table[:, 15:]
    _check(bounds, bounds >= 0, file, "a depth of at least 0", range(15, 17))
    _check(bounds[:, 1:], bounds[:, 1:] > bounds[:, :1], file, "above the nearest depth, column 15", range(16, 17))
    return [(near, far) for near, far in bounds.tolist()]


def _find_images(folder: Path) -> tuple[Path, list[str]]:
    """The folder images or, if there is none, the least reduced one, which a note names."""
    if is_folder(folder / IMAGES):
        return folder / IMAGES, []
    try:
        found = [(int(match[1]), path) for path in folder.iterdir() if (match := REDUCED.fullmatch(path.name))]
    except OSError as problem:
        raise SceneError(f"cannot list {shown(folder)}: {problem.strerror}") from None
    found = sorted((factor, path) for factor, path in found if is_folder(path))
    if not found:
        raise SceneError(f"{shown(folder)}: there is no folder {IMAGES} and none like {IMAGES}_4 with the images")
    return found[0][1], [f"images are taken from {found[0][1].name}"]
