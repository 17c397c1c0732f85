# SPDX-License-Identifier: Apache-2.0
"""Captures of IDR, NeuS and their DTU: cameras.npz, whose world_mat_N projects the world to pixels of the N-th image."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np

from nerfkit.data.capture import Capture, notes_of
from nerfkit.data.images.pixels import image_header
from nerfkit.data.readers.folders import is_folder
from nerfkit.data.readers.posed import OPENGL, array_of, capture_of, first_folder, images_in, posed_image
from nerfkit.errors import SceneError
from nerfkit.reading import read_regular, shown

NAMES = ("cameras.npz", "cameras_sphere.npz", "cameras_large.npz")  # of one world; they differ in the sphere around it
FILE_LIMIT = 2**28  # bytes
SKEW = 1e-3  # of the focal length, at most


def recognises(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in NAMES)


def read(folder: Path) -> Capture:
    file = next(folder / name for name in NAMES if os.path.lexists(folder / name))
    try:
        matrices = dict(
            np.load(io.BytesIO(read_regular(file, FILE_LIMIT, "camera file", SceneError)), allow_pickle=False)
        )
    except SceneError:
        raise
    except Exception as problem:  # zip, header and arrays may be damaged in many ways
        raise SceneError(f"{shown(file)} is no NumPy archive, or is damaged: {shown(str(problem), 100)}") from None
    pictures = images_in(first_folder(folder, "image", "images", "rgb"))
    masks = images_in(folder / "mask") if is_folder(folder / "mask") else []
    n_matrices = sum(name.startswith("world_mat_") and "inv" not in name for name in matrices)
    if len(pictures) != n_matrices:
        raise SceneError(f"{shown(file)} has {n_matrices} cameras, but there are {len(pictures)} images")
    has_masks = len(masks) == len(pictures)
    notes = ["masks are of the folder mask, black is ignored"] if has_masks else []
    images = []
    for index, image in enumerate(pictures):
        where, header = f"{shown(file)}: world_mat_{index}", image_header(image)
        if f"world_mat_{index}" not in matrices:
            raise SceneError(f"{where} is missing")
        values, pose = _camera(array_of(matrices[f"world_mat_{index}"], where, 4, 4)[:3], where)
        mask = masks[index] if has_masks else None
        size = header.width, header.height
        images.append(posed_image(folder, image, pose @ OPENGL, values, size, where, header=header, mask=mask))
    return capture_of(folder, "idr", images, notes=notes_of(*notes))


def _camera(projection: np.ndarray, where: str) -> tuple[list[float], np.ndarray]:
    """fx, fy, cx, cy and the pose [3, 4] in OpenCV axes of a projection K [R | t] times any number."""
    if abs(np.linalg.det(projection[:, :3])) < 1e-12:
        raise SceneError(f"{where} is no projection: its columns depend on each other")
    q, r = np.linalg.qr(projection[::-1, :3].T)
    k, rotation = r.T[::-1, ::-1], q.T[::-1]
    signs = np.sign(np.diag(k))
    k, rotation = k * signs / abs(k[2, 2]), rotation * signs[:, None]
    if abs(k[0, 1]) > SKEW * k[0, 0] or k[0, 0] < 10:
        raise SceneError(f"{where} is K [R | t] of no camera: focal length {k[0, 0]:.4g} pixels, skew {k[0, 1]:.4g}")
    rotation = rotation * np.sign(np.linalg.det(rotation))
    center = -np.linalg.solve(projection[:, :3], projection[:, 3])
    return [k[0, 0], k[1, 1], k[0, 2], k[1, 2]], np.concatenate([rotation.T, center[:, None]], axis=1)
