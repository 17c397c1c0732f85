# SPDX-License-Identifier: Apache-2.0
"""Lenses of `transforms.json`: which camera model its keys mean, and the keys of a lens.

`camera_model` says it, or else `is_fisheye`, or else it is OPENCV. The coefficients k3 and k4 are nerfstudio's, the
sixth and eighth power of the radius; instant-ngp reads them differently, and OpenCV's fourth is another again.
"""

from __future__ import annotations

import reprlib
from typing import Any

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.readers.transforms.cameras_json import (
    DISTORTION,
    REFUSED,
    UNDISTORT,
    intrinsics,
    is_set,
    number,
    of_frame,
)
from nerfkit.errors import SceneError

RADIAL4 = "RADIAL4_TANGENTIAL"  # OPENCV with nerfstudio's k3 and k4
TERMS = {  # coefficients of each camera model in COLMAP's order
    "PINHOLE": (),
    "SIMPLE_PINHOLE": (),
    "SIMPLE_RADIAL": ("k1",),
    "RADIAL": ("k1", "k2"),
    "OPENCV": ("k1", "k2", "p1", "p2"),
    RADIAL4: ("k1", "k2", "k3", "k4", "p1", "p2"),
    "OPENCV_FISHEYE": ("k1", "k2", "k3", "k4"),
}
ONE_FOCAL = ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL")  # models whose pixels are square
LISTED = ("k1", "k2", "k3", "k4", "p1", "p2")  # order of nerfstudio's distortion_params
COEFFICIENT_LIMIT = 1e4
READ = ("is_fisheye", "distortion_params", "mask_path")  # of what cameras of one pinhole refuse
NOT_READ = {key: advice for key, advice in REFUSED.items() if key not in READ} | {
    "fisheye_crop_radius": "give masks of the pixels outside of the circle instead",
    **dict.fromkeys(("white_transparent", "black_transparent"), "put the transparency into the images' alpha"),
}


def values_of_frame(content: dict[str, Any], frame: dict[str, Any], where: str) -> dict[str, Any]:
    """The file's values and the frame's own; refuses lenses of which either gives a part."""
    given = [key for key in (*DISTORTION, "distortion_params") if key in frame]
    given += [key for key in ("camera_model", "is_fisheye") if key in frame and frame[key] != content.get(key)]
    if given:
        inherited = [k for k in (*DISTORTION, "distortion_params") if k not in frame and is_set(content.get(k))]
        if inherited:
            raise SceneError(
                f"{where}: the frame gives {', '.join(given)}, but {', '.join(inherited)} only the file; "
                "give the frame all coefficients of its lens"
            )
    return of_frame(content, frame)


def lens_of(values: dict[str, Any], where: str, width: int, height: int, is_nerfstudio: bool) -> Lens:
    """The lens of images of a size [pixels]; what it cannot say is refused by name."""
    for key, advice in NOT_READ.items():
        if is_set(values.get(key)):
            raise SceneError(f"{where}: '{key}' is not supported; {advice}")
    named = _named_model(values, where)
    terms = {key: value for key, value in _coefficients(values, where).items() if value}
    model = _model(named or "OPENCV", terms, where)
    if model == RADIAL4 and named is None and not is_nerfstudio:
        keys = " and ".join(f"'{key}'" for key in ("k3", "k4") if key in terms)
        raise SceneError(
            f"{where}: {keys} without 'camera_model' can mean several lenses; give camera_model OPENCV (powers 6 and "
            "8 of the radius, as nerfstudio has it) or OPENCV_FISHEYE"
        )
    (focal_x, focal_y), center = intrinsics(values, where, width, height)
    if model in ONE_FOCAL and focal_x != focal_y:
        model = "OPENCV" if terms else "PINHOLE"
    focal = (focal_x,) if model in ONE_FOCAL else (focal_x, focal_y)
    return Lens(model, (*focal, *center, *(terms.get(key, 0.0) for key in TERMS[model])), width, height)


def keys_of(lens: Lens, where: str) -> dict[str, Any]:
    """The keys that `lens_of` reads as `lens`; raises SceneError if there are none."""
    if lens.model not in TERMS:
        raise SceneError(f"{where}: camera model {lens.model} cannot be written; known: {', '.join(TERMS)}")
    n_focals = 1 if lens.model in ONE_FOCAL else 2
    (focal_x, *focal_y), (cx, cy), terms = (
        lens.params[:n_focals],
        lens.params[n_focals:][:2],
        lens.params[n_focals + 2 :],
    )
    model = "OPENCV" if lens.model == RADIAL4 else lens.model
    size = {"w": lens.width, "h": lens.height, "fl_x": focal_x, "fl_y": focal_y[0] if focal_y else focal_x}
    return {"camera_model": model, **size, "cx": cx, "cy": cy, **dict(zip(TERMS[lens.model], terms, strict=True))}


def _named_model(values: dict[str, Any], where: str) -> str | None:
    """The camera model that the keys name, if they do."""
    named, is_fisheye = values.get("camera_model"), values.get("is_fisheye", False)
    if not isinstance(is_fisheye, (bool, int)) or is_fisheye not in (False, True):
        raise SceneError(f"{where}: 'is_fisheye' must be true or false, got {reprlib.repr(is_fisheye)}")
    if named is None:
        return "OPENCV_FISHEYE" if is_fisheye else None
    if not isinstance(named, str) or named not in TERMS or named == RADIAL4:
        known = ", ".join(model for model in TERMS if model != RADIAL4)
        raise SceneError(
            f"{where}: camera_model {reprlib.repr(named)} is not supported; {UNDISTORT}, or give one of {known}"
        )
    return named


def _model(named: str, terms: dict[str, float], where: str) -> str:
    """The model of the coefficients that are not zero, given the one that is named."""
    if named == "OPENCV" and terms.keys() & {"k3", "k4"}:
        named = RADIAL4
    unknown = [key for key in terms if key not in TERMS[named]]
    if unknown:
        has = ", ".join(TERMS[named]) or "no coefficients"
        raise SceneError(
            f"{where}: lens distortion ({', '.join(unknown)}) is not of {named}, which has {has}; {UNDISTORT}"
        )
    return named if terms or named in ("SIMPLE_PINHOLE", "OPENCV_FISHEYE") else "PINHOLE"


def _coefficients(values: dict[str, Any], where: str) -> dict[str, float]:
    """Coefficients of distortion by key, from the list or one by one."""
    limits = {"above": -COEFFICIENT_LIMIT, "below": COEFFICIENT_LIMIT}
    terms = {key: number(values, key, where, **limits) for key in DISTORTION if key in values}
    if values.get("distortion_params") is None:
        return terms
    listed = values["distortion_params"]
    if not isinstance(listed, list) or len(listed) != len(LISTED):
        wanted = f"a list of {len(LISTED)} numbers ({', '.join(LISTED)})"
        raise SceneError(f"{where}: 'distortion_params' must be {wanted}, got {reprlib.repr(listed)}")
    for key, value in zip(LISTED, listed, strict=True):
        named = f"distortion_params ({key})"
        of_list = number({named: value}, named, where, **limits)
        if terms.setdefault(key, of_list) != of_list:
            raise SceneError(f"{where}: '{key}' is {terms[key]:g}, but 'distortion_params' has {of_list:g} for it")
    return terms
