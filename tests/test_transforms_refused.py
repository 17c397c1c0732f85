# SPDX-License-Identifier: Apache-2.0
"""What a transforms.json must not say is refused by name; damaged ones are errors of one line."""

import json

import numpy as np
import pytest

from nerfkit.data.readers.transforms.reader import read
from tests.captures import check_refused, is_read, mutated, with_another_value
from tests.test_bad_scenes import EYE, TRANSPOSED
from tests.test_transforms_capture import MAIN, PLY, content_of, frame_of, picture, put


def edit(first: dict | None = None, **values):
    """An edit of the file, and of its frame 0."""
    return lambda c: [c["frames"][0].update(first or {}), c.update(values)]


def edit_frame(**values):
    return edit(values)


def without(key: str):
    """An edit that deletes a key of frame 0."""
    return lambda c: c["frames"][0].pop(key)


BAD = {  # a change of the file, and what the error has to name
    "no_frames": (lambda c: c.pop("frames"), MAIN, "frames"),
    "frame_null": (lambda c: c["frames"].__setitem__(1, None), MAIN, "frame 1", "None"),
    "file_path_number": (edit_frame(file_path=5), "frame 0", "file_path", "5"),
    "file_path_nul": (edit_frame(file_path="a\0"), "frame 0", "file_path", "a\\x00"),
    "file_path_root": (edit_frame(file_path="/"), "frame 0", "file_path", "folder"),
    "no_matrix": (without("transform_matrix"), "frame 0", "transform_matrix"),
    "transposed": (edit_frame(transform_matrix=TRANSPOSED.tolist()), "frame 0", "transposed"),
    "two_of_an_image": (edit_frame(file_path="images/../images/1.png"), "frame 0", "frame 1", "1.png"),
    "focal_negative": (edit(fl_x=-5), "frame 0", "fl_x", "-5"),
    "focal_contradicts_fov": (edit(x_fov=90), "frame 0", "fl_x", "x_fov", "20"),
    "focal_contradicts_angle": (edit(camera_angle_y=2.0), "frame 0", "fl_y", "camera_angle_y"),
    "angles_contradict": (
        lambda c: [c.pop("fl_x"), c.pop("fl_y"), c.update(x_fov=90, camera_angle_x=1)],
        *("x_fov", "camera_angle_x"),
    ),
    "fov_of_half_a_circle": (edit(x_fov=180), "frame 0", "x_fov", "180"),
    "width_fraction": (edit(w=40.5), "frame 0", "'w'", "40.5"),
    "center_far": (edit(cx=1e6), "frame 0", "principal point"),
    "k1_text": (edit(k1="0.1"), "frame 0", "k1", "'0.1'"),
    "k2_nan": (edit_frame(k2=float("nan")), "frame 0", "k2", "nan"),
    "k5": (edit(k5=0.1), "frame 0", "k5", "OPENCV"),
    "thin_prism": (edit(s1=0.1, s3=0.2), "frame 0", "s1, s3"),
    "simple_radial_with_p1": (edit(camera_model="SIMPLE_RADIAL", p1=0.1), "frame 0", "p1", "SIMPLE_RADIAL"),
    "ngp_k3": (edit(aabb_scale=1, k3=0.1), "frame 0", "k3", "camera_model"),
    "k3_and_k4_of_unknown_dialect": (edit(k3=0.1, k4=0.1), "frame 0", "k3", "k4", "camera_model"),
    "distortion_params_short": (edit(distortion_params=[0.1, 0.2]), "frame 0", "distortion_params", "6"),
    "distortion_params_differ": (edit(distortion_params=[0.1, 0, 0, 0, 0, 0], k1=0.2), "'k1'", "0.1", "0.2"),
    "a_part_of_a_lens": (edit({"k1": 0.3}, k1=0.1, p1=0.2), "frame 0", "k1", "p1"),
    "a_fisheye_with_others_k1": (edit({"camera_model": "OPENCV_FISHEYE"}, k1=0.1), "frame 0", "camera_model", "k1"),
    "is_fisheye_text": (edit(is_fisheye="false"), "frame 0", "is_fisheye", "'false'"),
    "full_opencv": (edit(camera_model="FULL_OPENCV"), "frame 0", "FULL_OPENCV"),
    "internal_model": (edit(camera_model="RADIAL4_TANGENTIAL"), "frame 0", "camera_model"),
    "model_list": (edit(camera_model=[1]), "frame 0", "camera_model", "[1]"),
    "ply_nul": (edit(ply_file_path="a\0"), MAIN, "ply_file_path"),
    "ply_no_ply": (edit(ply_file_path=MAIN), MAIN, "PLY"),
    "mask_of_one": (edit_frame(mask_path="m.png"), "frame 1", "mask_path"),
    "mask_number": (lambda c: [f.update(mask_path=5) for f in c["frames"]], "frame 0", "mask_path", "5"),
    "split_unknown": (edit(test_filenames=["images/9.png"]), "test_filenames", "images/9.png"),
    "split_text": (edit(val_filenames="images/0.png"), "val_filenames", "list"),
    "splits_overlap": (
        edit(train_filenames=["images/0.png", "images/1.png"], test_filenames=["./images/1.png"]),
        *("train_filenames", "test_filenames", "images/1.png"),
    ),
    "up_zero": (edit(up=[0, 0, 0]), MAIN, "'up'", "[0, 0, 0]"),
    "up_nan": (edit(up=[0, 0, float("nan")]), MAIN, "'up'", "nan"),
    "up_10_to_290": (edit(up=[0, 0, 10**290]), MAIN, "'up'"),
}

REFUSED = {
    "ftheta_p0": 0.1, "latlong": True, "equirectangular": True, "orthographic": True, "ortho": True, "b1": 0.1,
    "rolling_shutter": [0, 0, 0.1, 0], "transform_matrix_start": EYE.tolist(), "transform_matrix_end": EYE.tolist(),
    "fisheye_crop_radius": 100, "white_transparent": True, "from_na": True, "masks": "m",
}  # fmt: skip


@pytest.mark.parametrize("name", [*BAD, *REFUSED])
def test_refused_by_name(tmp_path, name: str):
    change, *named = BAD.get(name) or (edit(**{name: REFUSED[name]}), "frame 0", f"'{name}'")
    change(content := content_of())
    check_refused(read, put(tmp_path, content), *named)


def test_mutated(tmp_path):
    content = content_of(
        3, camera_model="OPENCV", k1=0.1, k3=0.0, distortion_params=[0.1, 0, 0, 0, 0, 0], camera_angle_x=0.7610,
        up=[0, 0, 1], ply_file_path="p.ply", train_filenames=["images/0.png"], x_fov=43.6, is_fisheye=False,
    )  # fmt: skip
    for index in range(3):
        frame_of(content, index, w=40, h=30, k1=0.1, distortion_params=[0.1, 0, 0, 0, 0, 0], mask_path="m.png")
    (tmp_path / "p.ply").write_bytes(PLY)
    picture(tmp_path / "m.png")
    text, generator, loaded = json.dumps(content).encode(), np.random.default_rng(0), set()
    assert is_read(read, put(tmp_path, content))
    for trial in range(300):
        changed = json.loads(text)
        with_another_value(changed, generator)
        (tmp_path / MAIN).write_bytes(mutated(text, generator) if trial % 2 else json.dumps(changed).encode())
        loaded.add(is_read(read, tmp_path))
    assert loaded == {True, False}, "both happen among them"
