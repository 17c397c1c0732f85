# SPDX-License-Identifier: Apache-2.0
"""Formats that are a page each, of pinholes: Polycam's keyframes, Record3D, NSVF and ScanNet, IDR and NeuS, LLFF."""

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nerfkit.data.cameras.lens import Lens, lens_at
from nerfkit.data.capture import Capture, PosedImage, check_rotation, notes_of, rotations_of
from nerfkit.data.images.pixels import image_header
from nerfkit.data.readers.folders import find_masks, first_there, list_images, natural_key
from nerfkit.data.readers.transforms.cameras_json import numbers, pose_of, whole
from nerfkit.errors import SceneError
from nerfkit.safe_io import printable, read_json, read_regular, read_text_utf8

OPENGL = np.array([1.0, -1.0, -1.0, 1.0])  # of the columns of a pose in OpenCV's axes
PHONE_UP = (0.0, 1.0, 0.0)  # of ARKit's world, whose cameras have OpenGL's axes
CORRECTED = ("keyframes/corrected_cameras", "keyframes/cameras")  # of Polycam, the better first
POLYCAM = ("fx", "fy", "cx", "cy", "width", "height", *(f"t_{row}{column}" for row in range(3) for column in range(4)))
INTRINSICS = ("intrinsics.txt", "intrinsic/intrinsic_color.txt", "intrinsics_color.txt")
NPZ = ("cameras.npz", "cameras_sphere.npz", "cameras_large.npz")  # of one world
LLFF = "poses_bounds.npy"
REDUCED = re.compile(r"images(?:_([1-9]\d{0,3}))?")  # folders of LLFF's images
ARRAYS_LIMIT = 2**28  # bytes
SKEW, FOCAL = 1e-3, 10.0  # of a camera: at most, of the focal length; at least [pixels]


def read_polycam(folder: Path) -> Capture:
    """A JSON file for each image."""
    images, files = [], _images_in(folder, "keyframes/corrected_images", "keyframes/images")
    by_stem = {image.stem: image for image in files}
    for file in sorted(first_there(folder, CORRECTED).glob("*.json")):
        values = numbers(_values(file, *POLYCAM), printable(file), len(POLYCAM))
        image = by_stem.get(file.stem, folder / "keyframes/images" / f"{file.stem}.jpg")
        images.append(_posed(folder, image, values[6:].reshape(3, 4), values[:4], printable(file), values[4:6]))
    return _capture(folder, "polycam", images, up=PHONE_UP)


def read_record3d(folder: Path) -> Capture:
    """Poses x y z w and position, of rgb/0, 1, 2, ...; K is listed column by column."""
    file, files = folder / "metadata.json", _images_in(folder, "rgb")
    k, poses, *size = _values(file, "K", "poses", "w", "h")
    poses, k = numbers(poses, f"{printable(file)}: 'poses'", len(files), 7), numbers(k, f"{printable(file)}: 'K'", 9)
    if not (np.linalg.norm(poses[:, :4], axis=1) > 1e-6).all():
        raise SceneError(f"{printable(file)}: 'poses' holds a quaternion of no length")
    matrices = np.concatenate([rotations_of(poses[:, [3, 0, 1, 2]]), poses[:, 4:, None]], axis=2)
    images = [
        _posed(folder, image, pose, k[[0, 4, 6, 7]], f"{printable(file)}: pose {index}", size)
        for index, (image, pose) in enumerate(zip(files, matrices, strict=True))
    ]
    return _capture(folder, "record3d", images, up=PHONE_UP)


def read_nsvf(folder: Path) -> Capture:
    """A pose in OpenCV axes for each image, -inf where ScanNet has lost track; names 0_, 1_, 2_ are NSVF's splits."""
    file = first_there(folder, INTRINSICS)
    lines, sides, is_inverse = _lines(file), None, False
    if len(lines) in (3, 4) and {len(line) for line in lines} <= {3, 4}:  # a matrix
        values = [lines[0][0], lines[1][1], lines[0][2], lines[1][2]]
    elif len(lines) > 3 and len(lines[0]) > 2 and 2 in map(len, lines):  # f cx cy, ..., height and width, is inverse
        values, sizes = [lines[0][index] for index in (0, 0, 1, 2)], [len(line) == 2 for line in lines].index(True)
        sides, is_inverse = sorted(lines[sizes]), any(line[0] for line in lines[sizes + 1 :])
    else:
        raise SceneError(
            f"{printable(file)} must be a matrix 3x3 or 4x4, or NSVF's f cx cy and a line of height and width"
        )
    images, lost, splits = [], [], {}
    for image in _images_in(folder, "rgb", "color", "images", "image"):
        where = folder / "pose" / f"{image.stem}.txt"
        pose = np.array(sum(_lines(where), [])) if os.path.lexists(where) else np.full(16, np.inf)
        if np.isinf(pose).any():
            lost.append(image.name)
            continue
        pose = numbers(pose, f"{printable(where)}: the pose", 16).reshape(4, 4)
        pose = np.linalg.inv(pose) if is_inverse and np.linalg.det(pose) else pose
        if sides is not None:  # in either order
            header = image_header(image)
            sides = sorted(sides, reverse=header.width > header.height)
        images.append(_posed(folder, image, pose * OPENGL, values, printable(where), sides))
        splits.setdefault(image.name[:2], []).append(images[-1].name)
    n_all = len(lost) + len(images)
    notes = [f"{len(lost)} of {n_all} images have no pose (first: {printable(name)})" for name in lost[:1]]
    names = {"0_": "train", "1_": "val" if "2_" in splits else "test", "2_": "test"}
    are_splits = "0_" in splits and splits.keys() <= names.keys()
    splits = {names[start]: of for start, of in splits.items()} if are_splits else {}
    return _capture(folder, "nsvf", images, splits=splits, notes=notes_of(*notes))


def read_idr(folder: Path) -> Capture:
    """world_mat_N projects the world to pixels of the N-th image."""
    file = first_there(folder, NPZ)
    matrices = read_arrays(file, dict)
    files = _images_in(folder, "image", "images", "rgb")
    masks = _images_in(folder, "mask") if first_there(folder, ["mask"]) else []
    notes = [f"{len(masks)} masks of the folder mask, black is ignored"] if masks else []
    if len(masks) != len(files):
        notes, masks = [f"{note}: not as many as images, not used" for note in notes], [None] * len(files)
    if f"world_mat_{len(files) - 1}" not in matrices or f"world_mat_{len(files)}" in matrices:
        raise SceneError(f"{printable(file)} must have world_mat_0 to _{len(files) - 1}, one for each image")
    images = []
    for index, (image, mask) in enumerate(zip(files, masks, strict=True)):
        where = f"{printable(file)}: world_mat_{index}"
        values, pose = _of_projection(numbers(matrices.get(f"world_mat_{index}"), where, 4, 4)[:3], where)
        images.append(_posed(folder, image, pose * OPENGL, values, where, mask=mask))
    return _capture(folder, "idr", images, notes=notes_of(*notes))


def read_llff(folder: Path) -> Capture:
    """An array [N, 17], a row for each image by name: a 3x5 matrix of the columns down, right, backwards, position, and
    height, width and focal length of the original images; then the nearest and the farthest depth."""
    file = folder / LLFF
    table = numbers(read_arrays(file, np.asarray), printable(file), None, 17)
    matches = [(match, path) for path in folder.glob("images*") if (match := REDUCED.fullmatch(path.name))]
    found = [(int(match[1] or 0), path) for match, path in matches if os.path.isdir(path)]
    if not found:
        raise SceneError(f"{printable(folder)}: there is no folder images and none like images_4 with the images")
    factor, image_folder = min(found)
    notes = [f"images are taken from {image_folder.name}"] if factor else []
    files = list_images(image_folder)
    names = [name for name in files if "/" not in name]
    if len(names) != len(table):
        raise SceneError(
            f"{printable(file)} holds {len(table)} poses, but {printable(image_folder)} {len(names)} images; the poses "
            "belong to the images in the order of their names: there must be exactly one image for each pose"
        )
    if len(files) > len(names):
        notes.append(f"{len(files) - len(names)} images in folders within {printable(image_folder.name)} are not used")
    masks, mask_notes = find_masks(folder, names)
    images = []
    for index, (name, row) in enumerate(zip(names, table, strict=True)):
        pose, lens, bounds = _llff_camera(row, f"{printable(file)}: row {index}")
        images.append(PosedImage(name, image_folder / name, pose, lens, masks.get(name), bounds))
    return _capture(folder, "llff", images, notes=notes_of(*notes, *mask_notes))


def _llff_camera(row: np.ndarray, where: str) -> tuple[np.ndarray, Lens, tuple[float, float]]:
    """Camera to world [3, 4] in OpenGL axes, lens, and nearest and farthest depth, of a row [17]."""
    down, right, back, position, original = row[:15].reshape(3, 5).T
    pose = np.stack([right, -down, back, position], axis=1)
    check_rotation(pose[:, :3], f"{where}: columns 0, 1, 2 of its 3x5 matrix are the axes down, right and backwards")
    height, width, focal = original.tolist()
    columns, params = "columns 4, 9, 14, from 0 on, are height, width, focal length", (focal, width / 2, height / 2)
    lens = lens_at(f"{where}: {columns}", "SIMPLE_PINHOLE", params, whole(width), whole(height))
    near, far = row[15:].tolist()
    if not 0 <= near < far:
        wanted = "the nearest depth (0 or more) and a larger farthest depth"
        raise SceneError(f"{where}: the last two columns must be {wanted}, got {near:.6g} and {far:.6g}")
    return pose, lens, (near, far)


def _of_projection(projection: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """fx, fy, cx, cy and the pose [3, 4] in OpenCV axes of K [R | t] times any number."""
    q, r = np.linalg.qr(projection[::-1, :3].T)
    signs = np.sign(np.diag(r)[::-1])
    if abs(np.linalg.det(r)) < 1e-12:
        raise SceneError(f"{where} is no projection: its columns depend on each other")
    k, rotation = r.T[::-1, ::-1] * signs / abs(r[0, 0]), q.T[::-1] * signs[:, None]
    if abs(k[0, 1]) > SKEW * k[0, 0] or k[0, 0] < FOCAL:
        raise SceneError(f"{where} fits no real camera: focal length {k[0, 0]:.4g} pixels, skew {k[0, 1]:.4g}")
    rotation *= np.sign(np.linalg.det(rotation))
    center = -np.linalg.solve(projection[:, :3], projection[:, 3])
    return k[[0, 1, 0, 1], [0, 1, 2, 2]], np.column_stack([rotation.T, center])


def _images_in(folder: Path, *names: str) -> list[Path]:
    found = first_there(folder, names)
    if found is None:
        raise SceneError(f"{printable(folder)}: there is no folder {' or '.join(names)} with the images")
    return [found / name for name in sorted(list_images(found), key=natural_key) if "/" not in name]


def _values(file: Path, *keys: str) -> list[Any]:
    content = read_json(file, SceneError, "camera file")
    if missing := [key for key in keys if not isinstance(content, dict) or key not in content]:
        raise SceneError(f"{printable(file)}: keys are missing: {', '.join(missing)}")
    return [content[key] for key in keys]


def _lines(file: Path) -> list[list[float]]:
    lines = read_text_utf8(file, SceneError, "camera file").splitlines()
    try:
        return [[float(value) for value in line.split()] for line in lines if line.strip()]
    except ValueError as error:
        raise SceneError(f"{printable(file)} must hold numbers alone: {printable(str(error))}") from None


def read_arrays(file: Path, kind: Callable[[Any], Any]) -> Any:
    """The array, or the dictionary of arrays, of a NumPy file, as `kind` makes it; nothing is unpickled."""
    content = read_regular(file, ARRAYS_LIMIT, "camera file", SceneError)
    try:
        return kind(np.load(io.BytesIO(content), allow_pickle=False))
    except Exception as problem:  # a header is a Python literal
        reason = printable(" ".join(str(problem).split()), 100)
        raise SceneError(f"{printable(file)} is not such a NumPy file, or is cut or damaged: {reason}") from None


def _posed(
    folder: Path, file: Path, pose: np.ndarray, values: Any, where: str, size: Any = None, mask: Path | None = None
) -> PosedImage:
    """An image of its `size`, or else the file's, with `values` fx, fy, cx, cy, at a pose [3 or 4, 4] of OpenGL."""
    header = image_header(file) if size is None else None
    size = (header.width, header.height) if header else numbers(size, f"{where}: width, height", 2).tolist()
    values = numbers(values, f"{where}: fx, fy, cx, cy", 4)
    lens = lens_at(where, "PINHOLE", tuple(values.tolist()), *map(whole, size))
    name = Path(os.path.relpath(file, folder)).as_posix()
    return PosedImage(name, file, pose_of(pose.tolist(), where), lens, mask)


def _capture(folder: Path, format: str, images: list[PosedImage], **more: Any) -> Capture:
    if not images:
        raise SceneError(f"{printable(folder)}: there are no images with poses")
    return Capture(folder.resolve().name, format, sorted(images, key=lambda image: image.name), **more)
