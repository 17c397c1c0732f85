# SPDX-License-Identifier: Apache-2.0
"""LLFF captures: poses_bounds.npy and a folder of images.

The file is float64 [N, 17], a row per image in the order of the images' sorted names: a 3x5 matrix, row by row, whose
columns are the axes down, right and backwards, the position, and height, width and focal length of the original
images; then the nearest and the farthest depth. The images may be reduced ones: images_4 and the like.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, PosedImage, check_rotation, notes_of
from nerfkit.data.readers.folders import find_masks, is_folder, list_images
from nerfkit.data.readers.small_formats import read_arrays
from nerfkit.errors import SceneError
from nerfkit.limits import COORDINATE_LIMIT
from nerfkit.safe_io import printable

NEEDS = "poses_bounds.npy"
COLUMNS = 17
IMAGES = re.compile(r"images(?:_([1-9]\d{0,3}))?")


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
            f"{printable(file)} holds {len(table)} poses, but {printable(image_folder)} {len(names)} images; the poses "
            "belong to the images in the order of their names, so that none may be missing and none be added"
        )
    if len(files) > len(names):
        notes.append(f"{len(files) - len(names)} images in folders within {printable(image_folder.name)} are not used")
    masks, mask_notes = find_masks(folder, names)
    images = []
    lenses: dict[Lens, Lens] = {}  # equal ones are one object
    for index, (name, row) in enumerate(zip(names, table, strict=True)):
        pose, lens, bounds = _camera(row, f"{printable(file)}: row {index}")
        lens = lenses.setdefault(lens, lens)
        images.append(PosedImage(name, image_folder / name, pose, lens, masks.get(name), bounds))
    return Capture(folder.resolve().name, "llff", images, notes=notes_of(*notes, *mask_notes))


def _read_table(file: Path) -> np.ndarray:
    """The array [N, 17] float64 of the file, N at least 1; nothing is unpickled."""
    table = read_arrays(file, np.asarray)
    if table.dtype.kind != "f" or table.dtype.itemsize not in (4, 8):
        raise SceneError(f"{printable(file)} must hold an array of float64, got {printable(str(table.dtype), 60)}")
    if table.ndim != 2 or table.shape[1] != COLUMNS or not len(table):
        raise SceneError(f"{printable(file)} must hold an array [N, {COLUMNS}], N above 0, got {table.shape}")
    good = np.abs(table) <= COORDINATE_LIMIT  # NaN is not
    if not good.all():
        row, column = (int(index) for index in np.argwhere(~good)[0])
        where = f"{printable(file)}: row {row}, column {column}"
        wanted = f"finite and at most {COORDINATE_LIMIT:g}"
        raise SceneError(f"{where}: must be {wanted}, got {table[row, column]:.6g}")
    return table.astype(np.float64)


def _camera(row: np.ndarray, where: str) -> tuple[np.ndarray, Lens, tuple[float, float]]:
    """Camera to world [3, 4] in OpenGL axes, lens, and nearest and farthest depth, of a row [17]."""
    down, right, back, position, original = row[:15].reshape(3, 5).T
    pose = np.stack([right, -down, back, position], axis=1)
    check_rotation(pose[:, :3], f"{where}: columns 0, 1, 2 of its 3x5 matrix are the axes down, right and backwards")
    height, width = (int(side) if side == int(side) else float(side) for side in original[:2])
    try:
        lens = Lens("SIMPLE_PINHOLE", (original[2], width / 2, height / 2), width, height)
    except SceneError as error:
        raise SceneError(f"{where}: columns 4, 9 and 14 are height, width and focal length: {error}") from None
    near, far = row[15:].tolist()
    if not 0 <= near < far:
        raise SceneError(
            f"{where}: columns 15 and 16 are the nearest depth, at least 0, and the farthest, above it, "
            f"got {near:.6g} and {far:.6g}"
        )
    return pose, lens, (near, far)


def _find_images(folder: Path) -> tuple[Path, list[str]]:
    """The folder images or, if there is none, the least reduced one, which a note names."""
    matches = [(match, path) for path in folder.glob("images*") if (match := IMAGES.fullmatch(path.name))]
    found = [(int(match[1] or 0), path) for match, path in matches if is_folder(path)]
    if not found:
        raise SceneError(f"{printable(folder)}: there is no folder images and none like images_4 with the images")
    factor, place = min(found)
    return place, [f"images are taken from {place.name}"] if factor else []
