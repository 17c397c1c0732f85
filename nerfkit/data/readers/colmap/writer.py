# SPDX-License-Identifier: Apache-2.0
"""A capture as a sparse model that COLMAP reads, in its text form."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.capture import Capture
from nerfkit.data.readers.colmap import TO_OPENGL, files_in
from nerfkit.data.readers.colmap.records import image_name
from nerfkit.errors import RunError, SceneError
from nerfkit.files import atomic_write
from nerfkit.safe_io import printable

FILES = ("cameras.txt", "images.txt", "points3D.txt")
REMARKS = (
    "# camera id, model, width, height, parameters",
    "# image id, quaternion w x y z, translation, camera id, name; then 2D points: x, y, point id",
    "# point id, x, y, z, red, green, blue, error (-1: not known), track of image id and index",
)
UNKNOWN_PIXEL = "-1 -1"  # x and y


def write_model(folder: Path, capture: Capture) -> None:
    """Write a capture's lenses, poses and points as a text model, whose 2D points have no places; raises RunError."""
    for name in files_in(folder):
        if name not in FILES:
            raise RunError(f"{printable(folder / name)} belongs to another model; choose another folder")
    cameras = check_writable(capture)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {printable(folder)}: {error.strerror}; choose another") from None
    camera_lines = [f"{number} {x.model} {x.width} {x.height} {_joined(x.params)}" for x, number in cameras.items()]
    lines = camera_lines, *_image_and_point_lines(capture, cameras)
    for name, remark, records in zip(FILES, REMARKS, lines, strict=True):
        atomic_write(folder / name, "\n".join([remark, *records]) + "\n")


def check_writable(capture: Capture) -> dict[Lens, int]:
    """Ids of the lenses; raises RunError for what a model cannot hold."""
    ids: dict[Lens, int] = {}
    for image in capture.images:
        where = f"image '{printable(image.name)}'"
        if image.lens.model not in MODELS or MODELS[image.lens.model].number is None:
            raise RunError(f"{where}: COLMAP has no camera model {image.lens.model!r}")
        try:
            image_name(image.name.encode(), "COLMAP model")
        except (SceneError, UnicodeEncodeError) as error:
            raise RunError(f"{where} cannot be written: {error}") from None
        if image.name.split() != [image.name]:
            raise RunError(f"{where}: a COLMAP model as text cannot hold spaces in names; rename the image")
        ids.setdefault(image.lens, len(ids) + 1)
    return ids


def _image_and_point_lines(capture: Capture, cameras: dict[Lens, int]) -> tuple[list[str], list[str]]:
    """Two lines for each image, the second of its 2D points, and one for each point."""
    seen: list[list[int]] = [[] for _ in capture.images]  # ids of points
    point_lines, points = [], capture.points
    rows = ()
    if points is not None:
        tracks = np.split(points.views, np.cumsum(points.track_lengths)[:-1])
        rows = zip(points.positions.tolist(), points.colors.tolist(), tracks, strict=False)
    for point_id, (position, color, track) in enumerate(rows, 1):
        line = f"{point_id} {_joined(position)} {_joined(color)} -1"
        for view in track.tolist():
            line += f" {view + 1} {len(seen[view])}"
            seen[view].append(point_id)
        point_lines.append(line)
    image_lines = []
    for image_id, (image, pose, ids) in enumerate(zip(capture.images, _world_to_camera(capture), seen, strict=True), 1):
        image_lines.append(f"{image_id} {_joined(pose)} {cameras[image.lens]} {image.name}")
        image_lines.append(" ".join(f"{UNKNOWN_PIXEL} {point_id}" for point_id in ids))
    return image_lines, point_lines


def _world_to_camera(capture: Capture) -> list[list[float]]:
    """Quaternion w x y z, w not negative, and translation of every image, in OpenCV axes."""
    poses = np.array([image.camera_to_world for image in capture.images], np.float64).reshape(-1, 3, 4)
    rotation = (poses[:, :, :3] * TO_OPENGL).transpose(0, 2, 1)  # [N, 3, 3] world to camera
    translation = -rotation @ poses[:, :, 3:]
    # A quaternion is an eigenvector of Bar-Itzhack's symmetric matrix.
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = np.moveaxis(rotation, 0, -1)
    rows = [
        [xx + yy + zz, zy - yz, xz - zx, yx - xy],
        [zy - yz, xx - yy - zz, xy + yx, xz + zx],
        [xz - zx, xy + yx, yy - xx - zz, yz + zy],
        [yx - xy, xz + zx, yz + zy, zz - xx - yy],
    ]
    unit = np.linalg.eigh(np.moveaxis(np.array(rows), -1, 0))[1][:, :, -1]  # of the largest eigenvalue
    quaternions = np.where(unit[:, :1] < 0, -unit, unit)  # [N, 4]
    return np.concatenate([quaternions, translation[:, :, 0]], axis=1).tolist()


def _joined(values: Iterable[float]) -> str:
    return " ".join(map(repr, values))  # repr: all digits of a float
