# SPDX-License-Identifier: Apache-2.0
"""Cameras as JSON: `transforms*.json`, the one schema for scenes, camera paths and run folders.

    {"camera_angle_x": radians, "x_fov": degrees, or "fl_x", "fl_y", "cx", "cy", "w", "h": pixels,
     "frames": [{"file_path": name, "transform_matrix": 4x4 camera-to-world, OpenGL axes}, ...]}

A frame may hold intrinsics of its own, which override the file's: all keys of the focal length together, both of the
size, and either coordinate of the principal point. `camera_model` says which lens it is, or else `is_fisheye` or
`latlong`, or else it is OPENCV. The coefficients k3 and k4 are nerfstudio's, the sixth and eighth power of the radius;
instant-ngp reads them differently, and OpenCV's fourth is another again. Unsupported keys that would change the camera
are errors; other unused keys are named in a warning.
"""

import math
import reprlib
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit import safe_io
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import COEFFICIENT_LIMIT, Lens, lens_at
from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.capture import check_rotation
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import SceneError
from nerfkit.limits import COORDINATE_LIMIT
from nerfkit.safe_io import printable

FOCAL = {  # keys that mean a focal length along an axis, with the unit of those that are angles
    axis: {f"fl_{axis}": None, f"camera_angle_{axis}": 1.0, f"{axis}_fov": math.pi / 180} for axis in ("x", "y")
}
FOCALS, SIZE = (*FOCAL["x"], *FOCAL["y"]), ("w", "h")  # families of intrinsics
ANGLE_TOLERANCE = 0.01  # between focal lengths from two keys: programs round either
DISTORTION = ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2", "s1", "s2", "s3", "s4")
LISTED = ("k1", "k2", "k3", "k4", "p1", "p2")  # order of nerfstudio's distortion_params
RADIAL4 = "RADIAL4_TANGENTIAL"  # OPENCV with nerfstudio's k3 and k4
ARIA = "RAD_TAN_THIN_PRISM_FISHEYE"  # which nerfstudio calls FISHEYE624, all coefficients in distortion_params
PANORAMA = "EQUIRECTANGULAR"
NAMED_MODELS = {  # nerfstudio's names -> ours
    name: name
    for name in ("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE", PANORAMA)
} | {"FISHEYE624": ARIA}
UNDISTORT = "undistort the images to a pinhole camera first"
REFUSED = {  # keys that are not supported, with advice
    **dict.fromkeys(("fisheye", "b1", "b2", "skew"), UNDISTORT),
    **dict.fromkeys(("ftheta_p0", "ftheta_p1", "ftheta_p2", "ftheta_p3", "ftheta_p4"), UNDISTORT),
    **dict.fromkeys(("ortho", "orthographic", "ortho_scale"), "give images of a perspective camera"),
    "equirectangular": "give panoramas whose rows are equal angles, with camera_model EQUIRECTANGULAR",
    "fisheye_crop_radius": "give masks of the pixels outside of the circle instead",
    **dict.fromkeys(("white_transparent", "black_transparent"), "put the transparency into the images' alpha"),
    "masks": "put the mask into the images' alpha, or remove the key",
    "rolling_shutter": "give images of a global shutter",
    **dict.fromkeys(("from_na", "from_mitsuba"), "convert the poses to OpenGL axes"),
    **dict.fromkeys(("transform_matrix_start", "transform_matrix_end"), "give one transform_matrix"),
}
SPLITS = ("train", "val", "test")
NERFSTUDIO = {  # keys that only nerfstudio writes
    "camera_model", "applied_transform", "applied_scale", "mask_path", "ply_file_path", "orientation_override",
    "depth_file_path", "depth_unit_scale_factor", "colmap_im_id", "distortion_params", "fisheye_crop_radius",
    *(f"{split}_filenames" for split in SPLITS),
}  # fmt: skip
INSTANT_NGP = {  # keys that only instant-ngp and its scripts write
    "aabb_scale", "aabb", "render_aabb", "scale", "offset", "x_fov", "y_fov", "is_fisheye", "sharpness",
    "latlong", "n_extra_learnable_dims", "enable_depth_loading", "integer_depth_scale", "depth_path", "envmap",
}  # fmt: skip
KNOWN = {  # all that are used or refused, or say nothing of cameras and images
    *NERFSTUDIO, *INSTANT_NGP, *FOCALS, *SIZE, "cx", "cy", *DISTORTION, *REFUSED, "frames", "file_path",
    "transform_matrix", "up", "n_frames", "rotation", "lens", "fps",
    "keyframes", "crop", "checkpoint_step", "checkpoint_seconds",
}  # fmt: skip
OF_FILE = KNOWN - {"frames"}  # that a file may give all of its frames


def read_json(file: Path) -> dict[str, Any]:
    """A transforms file with at least one frame; raises SceneError that says what is wrong with it."""
    content = safe_io.read_json(file, SceneError, "scene file")
    frames_of(content, printable(file))
    if unused := unused_keys(content):
        warnings.warn(f"{printable(file)}: keys that are not used: {printable(', '.join(unused))}", stacklevel=2)
    return content


def parse_cameras(content: dict[str, Any], file: Path, transform: SceneTransform | None = None) -> Cameras:
    """Pinhole cameras of a transforms file, in the file's frame, or the model's where `transform` leads there."""
    poses, lenses = [], []
    for index, entry in enumerate(frames_of(content, printable(file))):
        where = f"{printable(file)}: frame {index}"
        poses.append(pose_of(entry.get("transform_matrix"), where))
        values = merge_frame_keys(content, entry, where)
        lenses.append(lens_of(values, where, *size_of(values, where)))
        if not lenses[-1].is_pinhole:
            what = f"{where}: camera_model {lenses[-1].model} cannot be rendered, only pinholes can"
            raise SceneError(f"{what}; leave it and its coefficients out of the file")
    poses = np.stack(poses) if transform is None else transform.to_model(np.stack(poses))
    return Cameras.from_lenses(torch.tensor(poses, dtype=torch.float32), lenses)


def to_json(cameras: Cameras, names: list[str]) -> dict[str, Any]:
    """`cameras` in the schema of a transforms file; `lens` is what the images had, rendering takes none."""
    frames, same, focal = [], len(set(cameras.sizes())) == 1, cameras.pinhole().focal
    for index, name in enumerate(names):
        pose = torch.cat([cameras.camera_to_world[index].double(), torch.tensor([[0.0, 0, 0, 1]]).double()])
        (fl_x, fl_y), (cx, cy) = focal[index].tolist(), cameras.center[index].tolist()
        width, height = cameras.size(index)
        own = {} if same else {"w": width, "h": height}
        if cameras.lenses:
            lens = cameras.lenses[index]
            own["lens"] = asdict(lens) | {"params": list(lens.params)}
        intrinsics = {"fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy}
        frames.append({"file_path": name, **intrinsics, **own, "transform_matrix": pose.tolist()})
    width, height = cameras.size(0)
    return {"w": width, "h": height, "frames": frames}


def unused_keys(content: dict[str, Any]) -> list[str]:
    """Keys of the file and its frames that nothing is known of."""
    return sorted(set().union(content, *content["frames"]) - KNOWN)


def frames_of(content: Any, where: str) -> list[dict[str, Any]]:
    """The frames of a transforms file, at least one."""
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not frames:
        raise SceneError(f"{where}: key 'frames' is missing, or holds no views")
    for index, frame in enumerate(frames):
        if not isinstance(frame, dict):
            raise SceneError(f"{where}: frame {index} must be an object with keys, got {reprlib.repr(frame)}")
    return frames


def pose_of(matrix: Any, where: str) -> np.ndarray:
    """A rigid camera-to-world matrix [3, 4] from the rows of a file; raises SceneError naming `where`."""
    if matrix is None:
        raise SceneError(f"{where}: key 'transform_matrix' is missing; it must be 4x4 or 3x4")
    n_rows = 3 if isinstance(matrix, list) and len(matrix) == 3 else 4
    pose = numbers(matrix, f"{where}: transform_matrix", n_rows, 4)
    if n_rows == 4 and np.abs(pose[3] - [0, 0, 0, 1]).max() > 1e-4:
        got = f"{pose[3].tolist()} instead of [0, 0, 0, 1]; is the matrix transposed?"
        raise SceneError(f"{where}: the last row of transform_matrix is {got}")
    check_rotation(pose[:3, :3], where)
    return pose[:3]


def merge_frame_keys(content: dict[str, Any], frame: dict[str, Any], where: str) -> dict[str, Any]:
    """The file's values and, instead of them, the frame's own; refuses lenses of which either gives a part."""
    coefficients = (*DISTORTION, "distortion_params")
    given = [key for key in coefficients if key in frame]
    given += [key for key in ("camera_model", "is_fisheye") if key in frame and frame[key] != content.get(key)]
    inherited = [key for key in coefficients if key not in frame and is_set(content.get(key))]
    if given and inherited:
        what = f"the frame gives {', '.join(given)}, but {', '.join(inherited)} only the file"
        raise SceneError(f"{where}: {what}; give the frame all coefficients of its lens")
    replaced = [key for family in (FOCALS, SIZE) if any(key in frame for key in family) for key in family]
    return {key: content[key] for key in OF_FILE if key in content and key not in replaced} | frame


def lens_of(values: dict[str, Any], where: str, width: int, height: int, is_nerfstudio: bool = False) -> Lens:
    """The lens of images of a size [pixels]; what it cannot say is refused by name."""
    for key, advice in REFUSED.items():
        if is_set(values.get(key)):
            raise SceneError(f"{where}: '{key}' is not supported; {advice}")
    terms = {key: value for key, value in _coefficients(values, where).items() if value}
    model = _model(values, terms, where, is_nerfstudio)
    if model == PANORAMA:
        for key, wanted in _panorama_keys(width, height).items():
            if key in values and abs(number(values, key, where) - wanted) > ANGLE_TOLERANCE * wanted:
                what = f"'{key}' of {width}x{height} panoramas must be {wanted:g}, got {values[key]:g}"
                raise SceneError(f"{where}: {what}: only whole panoramas are read; or leave the key out")
        return Lens(PANORAMA, (width, height), width, height)
    intrinsics = _intrinsics(values, where, width, height)
    if "fx" not in MODELS[model].names and intrinsics["fx"] != intrinsics["fy"]:  # a model whose pixels are square
        model = "OPENCV" if terms else "PINHOLE"
    named = intrinsics | {"f": intrinsics["fx"]} | terms
    return lens_at(where, model, tuple(named.get(name, 0.0) for name in MODELS[model].names), width, height)


def keys_of(lens: Lens, where: str) -> dict[str, Any]:
    """The keys that `lens_of` reads as `lens`; raises SceneError if there are none."""
    names = {model: name for name, model in NAMED_MODELS.items()} | {RADIAL4: "OPENCV"}
    is_part = lens.is_panorama and lens.params != (lens.width, lens.height)
    if lens.model not in names or is_part:
        what = f"camera model {lens.model}{' of a part of a panorama' * is_part}"
        raise SceneError(f"{where}: {what} cannot be written; known: {', '.join(NAMED_MODELS)}")
    (fl_x, fl_y), (cx, cy) = lens.focal, lens.center
    values = {"w": lens.width, "h": lens.height, "fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy}
    values |= _panorama_keys(lens.width, lens.height) if lens.is_panorama else {}
    terms = dict.fromkeys(LISTED, 0.0) | {name: value for name, value in lens.named().items() if name in LISTED}
    terms = {"distortion_params": list(lens.params[4:])} if lens.model == ARIA else terms
    return {"camera_model": names[lens.model], **values, **terms}


def _panorama_keys(width: int, height: int) -> dict[str, float]:
    """What nerfstudio's keys of the focal length and the middle are for a whole panorama."""
    return {"fl_x": width / 2, "fl_y": float(height), "cx": width / 2, "cy": height / 2}


def _model(values: dict[str, Any], terms: dict[str, float], where: str, is_nerfstudio: bool) -> str:
    """The camera model that the keys name, or that the coefficients that are not zero are of."""
    named, is_fisheye = values.get("camera_model"), values.get("is_fisheye", False)
    if is_fisheye not in (False, True):
        raise SceneError(f"{where}: 'is_fisheye' must be true or false, got {reprlib.repr(is_fisheye)}")
    other = PANORAMA if is_set(values.get("latlong")) else "OPENCV_FISHEYE" if is_fisheye else "OPENCV"
    if named is not None and named not in list(NAMED_MODELS):
        known = f"{UNDISTORT}, or give one of {', '.join(NAMED_MODELS)}"
        raise SceneError(f"{where}: camera_model {reprlib.repr(named)} is not supported; {known}")
    model = other if named is None else NAMED_MODELS[named]
    if model == "OPENCV" and (powers := [f"'{key}'" for key in ("k3", "k4") if key in terms]):
        if named is None and not is_nerfstudio and not values.keys() & {"p1", "p2"}:  # which no fisheye has
            what = f"{' and '.join(powers)} without 'camera_model' can mean several lenses"
            raise SceneError(f"{where}: {what}; give camera_model OPENCV (as nerfstudio has it) or OPENCV_FISHEYE")
        model = RADIAL4
    own = [name for name in MODELS[model].names if name[0] in "kps"]
    if unknown := [key for key in terms if key not in own]:
        of = f"{model}, which has {', '.join(own) or 'no coefficients'}"
        raise SceneError(f"{where}: lens distortion ({', '.join(unknown)}) is not of {of}; {UNDISTORT}")
    return model if terms or model in ("SIMPLE_PINHOLE", "OPENCV_FISHEYE", ARIA, PANORAMA) else "PINHOLE"


def _coefficients(values: dict[str, Any], where: str) -> dict[str, float]:
    terms, listed = {key: values[key] for key in DISTORTION if key in values}, values.get("distortion_params")
    names = MODELS[ARIA].names[4:] if values.get("camera_model") == "FISHEYE624" else LISTED
    if listed is not None and (not isinstance(listed, list) or len(listed) != len(names)):
        wanted = f"a list of {len(names)} numbers ({', '.join(names)})"
        raise SceneError(f"{where}: 'distortion_params' must be {wanted}, got {reprlib.repr(listed)}")
    for key, value in zip(names, listed or (), strict=False):
        if terms.setdefault(key, value) != value:
            got = f"{reprlib.repr(terms[key])}, but 'distortion_params' has {reprlib.repr(value)} for it"
            raise SceneError(f"{where}: '{key}' is {got}")
    return {key: number(terms, key, where, -COEFFICIENT_LIMIT, COEFFICIENT_LIMIT) for key in terms}


def _intrinsics(values: dict[str, Any], where: str, width: int, height: int) -> dict[str, float]:
    """Focal lengths fx and fy, and principal point cx and cy [pixels]."""
    beaten = beaten_angles(values, where, width, height)
    values = {key: value for key, value in values.items() if key not in beaten}
    if "fl_x" in values:
        values = {"fl_y": values["fl_x"]} | values
    fx, fy = _focal(values, where, "x", width), _focal(values, where, "y", height)
    if fx is None:
        raise SceneError(f"{where}: intrinsics are missing; give 'camera_angle_x' or 'fl_x'")
    cx, cy = (number(values, k, where) if k in values else n / 2 for k, n in (("cx", width), ("cy", height)))
    if "w" not in values and not (0 <= cx <= width and 0 <= cy <= height):
        what = f"the principal point ({cx:g}, {cy:g}) lies outside of {width}x{height} images"
        raise SceneError(f"{where}: {what}; if 'cx' and 'cy' are of another size, give it as 'w' and 'h'")
    return {"fx": fx, "fy": fy or fx, "cx": cx, "cy": cy}


def beaten_angles(values: dict[str, Any], where: str, width: int, height: int) -> list[str]:
    """Angles, such as Blender's of its sensor, that contradict fl_x and fl_y of a stated size and of square pixels."""
    found = _focal_lengths(values, where, "x", width) | _focal_lengths(values, where, "y", height)
    fx, fy = found.get("fl_x", math.inf), found.get("fl_y", 0)
    if not values.keys() >= set(SIZE) or abs(fx - fy) > ANGLE_TOLERANCE * fx:
        return []
    return [key for key, focal in found.items() if abs(focal - fx) > ANGLE_TOLERANCE * fx]


def _focal_lengths(values: dict[str, Any], where: str, axis: str, side: int) -> dict[str, float]:
    """Focal lengths [pixels] along an axis with `side` pixels, by the keys that are there."""
    found = {}
    for key, unit in FOCAL[axis].items():
        if key in values and unit is None:
            found[key] = number(values, key, where, above=0)
        elif key in values:
            angle = unit * number(values, key, where, above=1e-6 / unit, below=math.pi / unit)
            found[key] = 0.5 * side / math.tan(0.5 * angle)
    return found


def _focal(values: dict[str, Any], where: str, axis: str, side: int) -> float | None:
    """Focal length [pixels] along an axis with `side` pixels, of keys that have to agree."""
    found = _focal_lengths(values, where, axis, side)
    first = next(iter(found), None)
    for key, focal in found.items():
        if abs(focal - found[first]) > ANGLE_TOLERANCE * found[first]:
            what = f"'{first}' means a focal length of {found[first]:.6g} pixels, but '{key}' {focal:.6g}"
            raise SceneError(f"{where}: {what}; leave out the wrong one, or give 'w' and 'h' of '{first}'")
    return found.get(first)


def size_of(values: dict[str, Any], where: str) -> tuple[int, int]:
    return tuple(whole(number(values, key, where, above=0)) for key in SIZE)


def whole(side: float) -> int | float:
    """A number that a Lens takes for a side, if it is whole."""
    return int(side) if side == int(side) else side


def number(values: dict[str, Any], key: str, where: str, above: float = -1e9, below: float = 1e9) -> float:
    """The number `key`, between bounds; raises SceneError naming `where`."""
    value = values.get(key)
    if not is_number(value) or not above < value < below:
        bounds = f"above {above:g} and below {below:.4g}"
        raise SceneError(f"{where}: '{key}' must be a number {bounds}, got {reprlib.repr(value)}")
    return float(value)


def numbers(values: Any, where: str, *shape: int | None) -> np.ndarray:
    """Finite numbers float64 of a shape, of which None is any; raises SceneError naming `where`."""
    try:
        array = np.asarray(values)
    except ValueError:  # of rows of several lengths
        array = np.asarray(None)
    fits = len(shape) == array.ndim and all(n in (None, side) for n, side in zip(shape, array.shape, strict=True))
    if not (is_numeric := array.dtype.kind in "iuf") or not fits:
        wanted, got = ", ".join(str(n or "N") for n in shape), list(array.shape) if is_numeric else reprlib.repr(values)
        raise SceneError(f"{where} must be numbers of the shape [{wanted}], got {got}")
    array = array.astype(np.float64)
    bad = np.argwhere(~(np.abs(array) <= COORDINATE_LIMIT))  # NaN is not
    if len(bad):
        place, wanted = bad[0].tolist(), f"finite and at most {COORDINATE_LIMIT:g}"
        raise SceneError(f"{where}: the number at {place} must be {wanted}, got {array[tuple(bad[0])]:.6g}")
    return array


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_set(value: Any) -> bool:
    """Whether a value of a JSON file says something: none of zero, false, null or a list of these does."""
    return any(value) if isinstance(value, list) else bool(value)
