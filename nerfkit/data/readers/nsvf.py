# SPDX-License-Identifier: Apache-2.0
"""Captures with a text file pose/NAME.txt for each image, camera to world in OpenCV axes: NSVF's and ScanNet's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from nerfkit.data.capture import Capture, notes_of
from nerfkit.data.images.pixels import image_header
from nerfkit.data.readers.folders import is_folder
from nerfkit.data.readers.posed import OPENGL, array_of, capture_of, first_folder, images_in, numbers_in, posed_image
from nerfkit.errors import SceneError
from nerfkit.reading import shown

INTRINSICS = ("intrinsics.txt", "intrinsic/intrinsic_color.txt", "intrinsics_color.txt")


def recognises(folder: Path) -> bool:
    return is_folder(folder / "pose") and any(os.path.lexists(folder / name) for name in INTRINSICS)


def read(folder: Path) -> Capture:
    """The images with a finite pose: ScanNet writes -inf where it has lost track. Names 0_, 1_, 2_ are NSVF's splits."""
    of_lens = next(folder / name for name in INTRINSICS if os.path.lexists(folder / name))
    lines, is_inverse = numbers_in(of_lens), False
    images, lost, notes = [], [], []
    if len(lines) in (3, 4) and {len(line) for line in lines} <= {3, 4}:
        matrix = [lines[0][0], lines[1][1], lines[0][2], lines[1][2]]  # fx, fy, cx, cy
        side = None
    elif len(lines) > 3 and len(lines[0]) >= 3 and (sizes := [i for i, line in enumerate(lines) if len(line) == 2]):
        f, cx, cy = lines[0][:3]
        matrix, side = [f, f, cx, cy], max(lines[sizes[-1]])  # height and width, or the other way round
        is_inverse = any(line[0] for line in lines[sizes[-1] + 1 :])
    else:
        raise SceneError(f"{shown(of_lens)} must be a matrix 3x3 or 4x4, or NSVF's f cx cy and a line of two sides")
    values = array_of(matrix, shown(of_lens), 4)
    for image in images_in(first_folder(folder, "rgb", "color", "images", "image")):
        file = folder / "pose" / f"{image.stem}.txt"
        if not os.path.lexists(file) or not np.isfinite(pose := np.array(sum(numbers_in(file), []))).all():
            lost.append(image)
            continue
        pose = array_of(pose, f"{shown(file)}: the pose", 16).reshape(4, 4)
        header = image_header(image)
        scale = max(header.width, header.height) / side if side else 1.0
        pose = (np.linalg.inv(pose) if is_inverse and np.linalg.det(pose) else pose) @ OPENGL
        images.append(
            posed_image(folder, image, pose, values * scale, (header.width, header.height), shown(file), header=header)
        )
    if lost:
        notes = [f"{len(lost)} of {len(lost) + len(images)} images have no pose (the first: {shown(lost[0].name)})"]
    groups = {number: [i.name for i in images if re.match(f"{number}_", i.file.name)] for number in "012"}
    splits = {}
    if sum(map(len, groups.values())) == len(images):
        named = dict(zip("012", ("train", "val", "test") if groups["2"] else ("train", "test", ""), strict=True))
        splits = {named[number]: sorted(names) for number, names in groups.items() if names}
    return capture_of(folder, "nsvf", images, splits=splits, notes=notes_of(*notes))
