# SPDX-License-Identifier: Apache-2.0
"""Cameras as JSON: `transforms*.json`, the one schema for scenes, camera paths and run folders.

    {"camera_angle_x": radians, "x_fov": degrees, or "fl_x", "fl_y", "cx", "cy", "w", "h": pixels,
     "frames": [{"file_path": name, "transform_matrix": 4x4 camera-to-world, OpenGL axes}, ...]}

A frame may hold intrinsics of its own, which override the file's: all keys of the focal length together, both of the
size, and either coordinate of the principal point. Unsupported keys that would change the camera are errors; other
unused keys are named in a warning.
"""

from __future__ import annotations

import math
import reprlib
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit import reading
from nerfkit.data.cameras.cameras import Cameras, one_or_all
from nerfkit.errors import SceneError
from nerfkit.reading import shown

ANGLES = {"x": {"camera_angle_x": 1.0, "x_fov": math.pi / 180}, "y": {"camera_angle_y": 1.0, "y_fov": math.pi / 180}}
FOCAL, SIZE = ("fl_x", "fl_y", *ANGLES["x"], *ANGLES["y"]), ("w", "h")  # families of intrinsics
UNDISTORTED = ("PINHOLE", "SIMPLE_PINHOLE", "OPENCV")  # camera models, the last without distortion
DISTORTION = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2", "s1", "s2", "s3", "s4")
UNDISTORT = "undistort the images to a pinhole camera first"
PINHOLES = "cameras of pictures to come are pinholes: leave camera_model and its coefficients out of the file"
REFUSED = {  # unsupported keys that change the camera or the pixels, with advice
    **dict.fromkeys(("is_fisheye", "fisheye", "equirectangular", "latlong", "distortion_params"), UNDISTORT),
    **dict.fromkeys(("ftheta_p0", "ftheta_p1", "ftheta_p2", "ftheta_p3", "ftheta_p4"), UNDISTORT),
    **dict.fromkeys(("b1", "b2", "skew"), UNDISTORT),
    **dict.fromkeys(("ortho", "orthographic", "ortho_scale"), "give images of a perspective camera"),
    "rolling_shutter": "give images of a global shutter",
    **dict.fromkeys(("mask_path", "masks"), "put the mask into the images' alpha, or remove the key"),
    **dict.fromkeys(("from_na", "from_mitsuba"), "convert the poses to OpenGL axes"),
    **dict.fromkeys(("transform_matrix_start", "transform_matrix_end"), "give one transform_matrix"),
}
USED = {*FOCAL, *SIZE, "cx", "cy", "camera_model", *DISTORTION, *REFUSED}
HARMLESS = {  # placement and provenance, by other programs
    "aabb_scale", "scale", "offset", "applied_transform", "applied_scale", "orientation_override", "ply_file_path",
    "sharpness", "rotation", "lens", "colmap_im_id", "depth_file_path", "fps", "keyframes", "crop",
    "checkpoint_step", "checkpoint_seconds",
}  # fmt: skip
SIDE_LIMIT = 100_000  # pixels
FOCAL_LIMITS = (1e-3, 1e7)  # pixels
ANGLE_TOLERANCE = 0.01  # between focal lengths from two keys: programs round either
POSITION_LIMIT = 1e6  # scene units: float32 resolves 1/16 there


def read_json(file: Path) -> dict[str, Any]:
    """A transforms file with at least one frame; raises SceneError that says what is wrong with it."""
    content = reading.read_json(file, SceneError, "scene file")
    frames = frames_of(content, shown(file))
    if unused := unused_keys(content, frames):
        warnings.warn(f"{shown(file)}: keys that are not used: {shown(', '.join(unused))}", stacklevel=2)
    return content


def parse_cameras(content: dict[str, Any], file: Path) -> Cameras:
    """Pinhole cameras of a transforms file, whose "w" and "h" are the size of each image that has none of its own."""
    frames = frames_of(content, shown(file))
    if "w" not in content or "h" not in content:
        raise SceneError(f"{shown(file)}: keys 'w' and 'h' (image size in pixels) are missing")
    poses, focals, centers, sizes = [], [], [], [size_of(content, shown(file))]
    for index, frame in enumerate(frames):
        where = f"{shown(file)}: frame {index}"
        if "transform_matrix" not in frame:
            raise SceneError(f"{where}: key 'transform_matrix' is missing")
        poses.append(pose_of(frame["transform_matrix"], where))
        values = of_frame(content, frame)
        _check_lens(values, where)
        sizes.append(size_of(values, where))
        focal, center = intrinsics(values, where, *sizes[-1])
        focals.append(focal)
        centers.append(center)
    return Cameras(
        camera_to_world=torch.tensor(np.stack(poses), dtype=torch.float32),
        focal=torch.tensor(focals, dtype=torch.float32),
        center=torch.tensor(centers, dtype=torch.float32),
        width=one_or_all([width for width, _ in sizes[1:]]),
        height=one_or_all([height for _, height in sizes[1:]]),
    )


def to_json(cameras: Cameras, names: list[str]) -> dict[str, Any]:
    """`cameras` in the schema of a transforms file; `lens` is what the images had, rendering takes none."""
    frames, same = [], len(set(cameras.sizes())) == 1
    for index, name in enumerate(names):
        pose = torch.cat([cameras.camera_to_world[index].double(), torch.tensor([[0.0, 0, 0, 1]]).double()])
        (fl_x, fl_y), (cx, cy) = cameras.focal[index].tolist(), cameras.center[index].tolist()
        width, height = cameras.size(index)
        size = {} if same else {"w": width, "h": height}
        of_view = cameras.lenses[index] if cameras.lenses else None
        lens = {"lens": asdict(of_view) | {"params": list(of_view.params)}} if of_view else {}
        frames.append(
            {"file_path": name, "fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy, **size, **lens,
             "transform_matrix": pose.tolist()}
        )  # fmt: skip
    width, height = cameras.size(0)
    return {"w": width, "h": height, "frames": frames}


def unused_keys(content: dict[str, Any], frames: list[dict[str, Any]]) -> list[str]:
    """Keys of the file and its frames that nothing is known of."""
    unused = content.keys() - USED - HARMLESS - {"frames"}
    return sorted(unused | (set().union(*frames) - USED - HARMLESS - {"file_path", "transform_matrix"}))


def frames_of(content: Any, where: str) -> list[dict[str, Any]]:
    """The frames of a transforms file, at least one."""
    if not isinstance(content, dict) or "frames" not in content:
        raise SceneError(f"{where}: key 'frames' is missing")
    frames = content["frames"]
    if not isinstance(frames, list) or not frames:
        raise SceneError(f"{where}: 'frames' holds no views")
    for index, frame in enumerate(frames):
        if not isinstance(frame, dict):
            raise SceneError(f"{where}: frame {index} must be an object with keys, got {reprlib.repr(frame)}")
    return frames


def of_frame(content: dict[str, Any], frame: dict[str, Any]) -> dict[str, Any]:
    """The file's values, and instead of them the frame's own."""
    replaced = [key for family in (FOCAL, SIZE) if any(key in frame for key in family) for key in family]
    return {key: value for key, value in content.items() if key not in replaced} | frame


def _check_lens(values: dict[str, Any], where: str) -> None:
    """Reject what a pinhole camera cannot represent."""
    model = values.get("camera_model") or UNDISTORTED[0]
    if model not in UNDISTORTED:
        raise SceneError(f"{where}: camera_model {reprlib.repr(model)} is not rendered; {PINHOLES}")
    distorted = [key for key in DISTORTION if is_set(values.get(key))]
    if distorted:
        raise SceneError(f"{where}: lens distortion ({', '.join(distorted)}) is not rendered; {PINHOLES}")
    for key, advice in REFUSED.items():
        if is_set(values.get(key)):
            raise SceneError(f"{where}: '{key}' is not supported; {advice}")


def is_set(value: Any) -> bool:
    return any(value) if isinstance(value, list) else bool(value)


def intrinsics(values: dict[str, Any], where: str, width: int, height: int) -> tuple[tuple, tuple]:
    """Focal lengths and principal point [pixels] of one frame."""
    scale_x, scale_y = _scales(values, where, width, height)
    of_x, of_y = (_focals_of_angles(values, where, axis, side) for axis, side in (("x", width), ("y", height)))
    if "fl_x" in values:
        focal_x = number(values, "fl_x", where, above=0) * scale_x
        focal_y = number(values, "fl_y" if "fl_y" in values else "fl_x", where, above=0) * scale_y
        _check_angles(where, of_x, "fl_x", focal_x, width)
        _check_angles(where, of_y, "fl_y", focal_y, height)
    elif of_x:
        key, focal_x = next(iter(of_x.items()))
        _check_angles(where, of_x, key, focal_x, width)
        key, focal_y = next(iter(of_y.items()), (key, focal_x))
        _check_angles(where, of_y, key, focal_y, height)
    else:
        raise SceneError(f"{where}: intrinsics are missing; give 'camera_angle_x' or 'fl_x'")
    for focal in (focal_x, focal_y):
        if not FOCAL_LIMITS[0] <= focal <= FOCAL_LIMITS[1]:
            limits = f"{FOCAL_LIMITS[0]:g} and {FOCAL_LIMITS[1]:g} pixels"
            raise SceneError(f"{where}: the focal length must lie between {limits}, got {focal:g}")
    center_x = number(values, "cx", where) * scale_x if "cx" in values else width / 2
    center_y = number(values, "cy", where) * scale_y if "cy" in values else height / 2
    # Of images that were cropped it may lie outside, but not by far.
    margin = 10 if "w" in values else 0
    for center, side in ((center_x, width), (center_y, height)):
        if not -margin * side <= center <= (1 + margin) * side:
            raise SceneError(
                f"{where}: the principal point ({center_x:g}, {center_y:g}) lies outside of {width}x{height} images; "
                "are 'cx' and 'cy' those of another size? Then give it as 'w' and 'h'"
            )
    return (focal_x, focal_y), (center_x, center_y)


def _focals_of_angles(values: dict[str, Any], where: str, axis: str, side: int) -> dict[str, float]:
    """Focal lengths [pixels] by key, of the angles of view that are given for an axis with `side` pixels."""
    return {
        key: 0.5 * side / math.tan(0.5 * unit * number(values, key, where, above=1e-6 / unit, below=math.pi / unit))
        for key, unit in ANGLES[axis].items()
        if key in values
    }


def _check_angles(where: str, of_angles: dict[str, float], key: str, focal: float, side: int) -> None:
    """Refuse an angle of view that contradicts the focal length [pixels] that `key` gives."""
    for angle, of_angle in of_angles.items():
        if abs(of_angle - focal) > ANGLE_TOLERANCE * focal:
            raise SceneError(
                f"{where}: '{key}' means a focal length of {focal:.6g} pixels in images of {side}, but "
                f"'{angle}' {of_angle:.6g}; leave out the wrong one, or give 'w' and 'h' of '{key}'"
            )


def _scales(values: dict[str, Any], where: str, width: int, height: int) -> tuple[float, float]:
    """Factors for intrinsics, in pixels of images of the stated size, which may have been resized since."""
    if "w" not in values and "h" not in values:
        return 1.0, 1.0
    stated_width, stated_height = size_of(values, where)
    scale_x, scale_y = width / stated_width, height / stated_height
    if abs(scale_x - scale_y) > 1 / min(stated_width, stated_height):  # more than rounding explains
        raise SceneError(
            f"{where}: 'w' and 'h' say {stated_width}x{stated_height}, but the images are {width}x{height}, "
            "of another aspect ratio; were they rotated or cropped? Give the intrinsics of the images as they are"
        )
    return scale_x, scale_y


def size_of(values: dict[str, Any], where: str) -> tuple[int, int]:
    """The stated width and height."""
    for key in SIZE:
        value = values.get(key)
        if not is_number(value) or not 1 <= value <= SIDE_LIMIT or value != int(value):
            wanted = f"a whole number of pixels from 1 to {SIDE_LIMIT}"
            raise SceneError(f"{where}: '{key}' must be {wanted}, got {reprlib.repr(value)}")
    return int(values["w"]), int(values["h"])


def number(values: dict[str, Any], key: str, where: str, above: float = -1e9, below: float = 1e9) -> float:
    """The number `key`, between bounds; raises SceneError naming `where`."""
    value = values[key]
    if not is_number(value) or not above < value < below:
        bounds = f"above {above:g} and below {below:.4g}"
        raise SceneError(f"{where}: '{key}' must be a number {bounds}, got {reprlib.repr(value)}")
    return float(value)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def pose_of(matrix: Any, where: str) -> np.ndarray:
    """A rigid camera-to-world matrix [3, 4] from the rows of a file; raises SceneError naming `where`."""
    if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
        raise SceneError(f"{where}: transform_matrix must be 4x4 or 3x4, got {reprlib.repr(matrix)}")
    if len(matrix) not in (3, 4) or any(len(row) != 4 for row in matrix):
        sizes = reprlib.repr([len(row) for row in matrix])
        raise SceneError(f"{where}: transform_matrix must be 4x4 or 3x4, got {len(matrix)} rows of {sizes} values")
    for value in (value for row in matrix for value in row):
        if not is_number(value):
            raise SceneError(f"{where}: transform_matrix must hold numbers, got {reprlib.repr(value)}")
        if not -POSITION_LIMIT <= value <= POSITION_LIMIT:
            limit = f"finite and at most {POSITION_LIMIT:g}"
            others = "; if others are as large, divide all positions by one number" if abs(value) < math.inf else ""
            change = f"leave the frame out{others}"
            raise SceneError(
                f"{where}: the values of transform_matrix must be {limit}, got {reprlib.repr(value)}; {change}"
            )
    pose = np.array(matrix, dtype=np.float64)
    if len(pose) == 4 and np.abs(pose[3] - [0, 0, 0, 1]).max() > 1e-4:
        raise SceneError(
            f"{where}: the last row of transform_matrix is {pose[3].tolist()} instead of [0, 0, 0, 1]; "
            "is the matrix transposed?"
        )
    _check_rotation(pose[:3, :3], where)
    return pose[:3]


def _check_rotation(rotation: np.ndarray, where: str) -> None:
    determinant = float(np.linalg.det(rotation))
    if abs(determinant - 1) > 1e-3:
        cause = "the axes are mirrored" if determinant < 0 else "the matrix is scaled"
        raise SceneError(f"{where}: the rotation has determinant {determinant:.4g} instead of 1: {cause}")
    skew = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
    if skew > 1e-3:
        raise SceneError(f"{where}: the rotation's axes are not orthogonal (off by {skew:.3g})")
