# SPDX-License-Identifier: Apache-2.0
"""Captures as transforms.json: dialects, lenses, masks, splits, points; refusals by name; written and read back."""

import json
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.lens import Lens
from nerfkit.data.readers.transforms_capture import read, read_synthetic, recognises
from nerfkit.data.readers.transforms_writer import write_transforms
from nerfkit.errors import SceneError
from tests.test_bad_scenes import EYE, TRANSPOSED, mutated, with_another_value
from tests.toy_scene import look_at, write_scene

XYZ = b"property float x\nproperty float y\nproperty float z\n"
PLY = b"ply\nformat ascii 1.0\nelement vertex 1\n" + XYZ + b"end_header\n1 2 3\n"
SIZE = {"w": 40, "h": 30}
FOCAL = {"fl_x": 50.0, "fl_y": 51.0, "cx": 19.5, "cy": 15.5}
MAIN = "transforms.json"


def poses(count: int, seed: int = 0) -> list[np.ndarray]:
    """Camera-to-world matrices [4, 4] on a hemisphere around the origin."""
    generator = np.random.default_rng(seed)
    eyes = generator.normal(size=(count, 3)) + [0, 0, 1]
    eyes[:, 2] = np.abs(eyes[:, 2])
    return [look_at(3 * eye / np.linalg.norm(eye)) for eye in eyes]


def content_of(count: int = 3, **values) -> dict:
    """A transforms file of images without files."""
    frames = [
        {"file_path": f"images/{index}.png", "transform_matrix": pose.tolist()}
        for index, pose in enumerate(poses(count))
    ]
    return {**SIZE, **FOCAL, **values, "frames": frames}


def put(folder: Path, content: dict, name: str = MAIN) -> Path:
    (folder / name).write_text(json.dumps(content))
    return folder


def picture(file: Path, size=(40, 30)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(file)


def frame_of(content: dict, index: int = 0, **values) -> dict:
    content["frames"][index].update(values)
    return content


def error_of(folder: Path, reader=read) -> str:
    with pytest.raises(SceneError) as caught:
        reader(folder)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 700, message
    return message


def lens_of(folder: Path, **values) -> Lens:
    return read(put(folder, content_of(**values))).images[0].lens


@pytest.mark.parametrize(
    "values, format, named",
    [
        ({"camera_model": "OPENCV"}, "nerfstudio", "camera_model"),
        ({"applied_transform": EYE[:3].tolist(), "applied_scale": 2}, "nerfstudio", "applied_scale, applied_transform"),
        (
            {"aabb_scale": 4, "scale": 0.3, "offset": [0, 0, 0], "render_aabb": [[0] * 3] * 2},
            "instant_ngp",
            "aabb_scale",
        ),
        ({"is_fisheye": False}, "instant_ngp", "is_fisheye"),
        ({"aabb_scale": 4, "camera_model": "PINHOLE"}, "nerfstudio", "aabb_scale"),
        ({}, "transforms", "no key"),
    ],
)
def test_dialects(tmp_path, values: dict, format: str, named: str):
    capture = read(put(tmp_path, content_of(**values)))
    assert capture.format == format and named in " ".join(capture.notes)
    assert not any("not used" in note for note in capture.notes), "what others write is known"
    assert capture.name == tmp_path.name and [image.name for image in capture.images][0] == "images/0.png"
    assert all(note.isprintable() for note in capture.notes)


def test_a_frame_may_tell_the_dialect(tmp_path):
    for key, format in {
        "sharpness": "instant_ngp",
        "colmap_im_id": "nerfstudio",
        "depth_file_path": "nerfstudio",
    }.items():
        assert read(put(tmp_path, frame_of(content_of(), 2, **{key: 1}))).format == format


def test_keys_that_are_not_used_are_noted(tmp_path):
    capture = read(put(tmp_path, frame_of(content_of(width=5), 1, exposure=2)))
    assert any("exposure, width" in note for note in capture.notes)


K = {"k1": 0.1, "k2": 0.02}
P = {"p1": 0.003, "p2": -0.004}
F = (50.0, 51.0, 19.5, 15.5)


@pytest.mark.parametrize(
    "values, model, params",
    [
        ({}, "PINHOLE", F),
        ({"k1": 0, "k2": 0.0, "p1": 0, "k4": 0, "k6": 0}, "PINHOLE", F),
        ({"camera_model": "PINHOLE"}, "PINHOLE", F),
        ({"camera_model": "SIMPLE_PINHOLE", "fl_y": 50}, "SIMPLE_PINHOLE", (50.0, 19.5, 15.5)),
        ({"camera_model": "SIMPLE_PINHOLE"}, "PINHOLE", F),
        ({**K, **P}, "OPENCV", (*F, 0.1, 0.02, 0.003, -0.004)),
        ({"k1": 0.1, "camera_model": "OPENCV"}, "OPENCV", (*F, 0.1, 0, 0, 0)),
        ({"camera_model": "SIMPLE_RADIAL", "k1": 0.1, "fl_y": 50}, "SIMPLE_RADIAL", (50.0, 19.5, 15.5, 0.1)),
        ({"camera_model": "SIMPLE_RADIAL", "k1": 0.1}, "OPENCV", (*F, 0.1, 0, 0, 0)),
        ({"camera_model": "RADIAL", **K, "fl_y": 50}, "RADIAL", (50.0, 19.5, 15.5, 0.1, 0.02)),
        (
            {"camera_model": "OPENCV", **K, **P, "k3": 0.5, "k4": 0},
            "RADIAL4_TANGENTIAL",
            (*F, 0.1, 0.02, 0.5, 0, 0.003, -0.004),
        ),
        ({"applied_scale": 1, "k4": 0.5}, "RADIAL4_TANGENTIAL", (*F, 0, 0, 0, 0.5, 0, 0)),
        ({"distortion_params": [1e-3, 2e-3, 0, 0, 3e-3, 4e-3]}, "OPENCV", (*F, 1e-3, 2e-3, 3e-3, 4e-3)),
        (
            {"distortion_params": [1e-3, 2e-3, 5e-3, 6e-3, 0, 0]},
            "RADIAL4_TANGENTIAL",
            (*F, 1e-3, 2e-3, 5e-3, 6e-3, 0, 0),
        ),
        ({"camera_model": "OPENCV_FISHEYE", **K, "k3": 0.3, "k4": 0.4}, "OPENCV_FISHEYE", (*F, 0.1, 0.02, 0.3, 0.4)),
        ({"camera_model": "OPENCV_FISHEYE"}, "OPENCV_FISHEYE", (*F, 0, 0, 0, 0)),
        ({"is_fisheye": True, "aabb_scale": 1, "k3": 0.3}, "OPENCV_FISHEYE", (*F, 0, 0, 0.3, 0)),
        ({"is_fisheye": True, "camera_model": "OPENCV", "k1": 0.1}, "OPENCV", (*F, 0.1, 0, 0, 0)),
        ({"is_fisheye": 1, "distortion_params": [0.1, 0, 0, 0.2, 0, 0]}, "OPENCV_FISHEYE", (*F, 0.1, 0, 0, 0.2)),
    ],
)
def test_lenses(tmp_path, values: dict, model: str, params: tuple):
    assert lens_of(tmp_path, **values) == Lens(model, params, 40, 30)


def test_camera_model_beats_is_fisheye_and_says_so(tmp_path):
    notes = read(put(tmp_path, content_of(is_fisheye=True, camera_model="PINHOLE"))).notes
    assert any("is_fisheye" in note and "3 of 3" in note for note in notes)


@pytest.mark.parametrize("by", [{"x_fov": 60.0}, {"camera_angle_x": np.pi / 3}, {"x_fov": 60, "camera_angle_x": 1.05}])
def test_angles_of_view(tmp_path, by: dict):
    content = {**SIZE, **by, "frames": content_of()["frames"]}
    focal, other, *center = read(put(tmp_path, content)).images[0].lens.params
    assert focal == other == pytest.approx(20 / np.tan(np.pi / 6), rel=0.01) and center == [20, 15]
    focal, other, *_ = read(put(tmp_path, content | {"y_fov": 90})).images[0].lens.params
    assert focal == pytest.approx(20 / np.tan(np.pi / 6), rel=0.01) and other == pytest.approx(15)


def test_intrinsics_of_frames_beat_those_of_the_file(tmp_path):
    content = content_of(4, k1=0.1)
    frame_of(content, 1, fl_x=70.0, k1=0.2, w=80, h=60)
    frame_of(content, 2, camera_model="OPENCV_FISHEYE", k1=0.3, cx=3.0)
    lenses = [image.lens for image in read(put(tmp_path, content)).images]
    assert lenses[0] is lenses[3] and lenses[0].params == (*F, 0.1, 0, 0, 0)
    assert lenses[1] == Lens("OPENCV", (70, 70, 19.5, 15.5, 0.2, 0, 0, 0), 80, 60)
    assert lenses[2] == Lens("OPENCV_FISHEYE", (50, 51, 3, 15.5, 0.3, 0, 0, 0), 40, 30)


def test_intrinsics_in_every_frame(tmp_path):
    content = {"camera_model": "OPENCV", "frames": content_of()["frames"]}
    for index in range(3):
        frame_of(content, index, **SIZE, **FOCAL, k1=0.1 * index)
    assert [image.lens.model for image in read(put(tmp_path, content)).images] == ["PINHOLE", "OPENCV", "OPENCV"]
    for key in ("fl_x", "w"):
        broken = json.loads(json.dumps(content))
        del broken["frames"][1][key]
        message = error_of(put(tmp_path, broken))
        assert "frame 1" in message and key in message


def test_sizes_of_files_where_none_are_stated(tmp_path):
    content = {"fl_x": 50.0, "frames": content_of()["frames"]}
    message = error_of(put(tmp_path, content))
    assert "'w'" in message and "images/0.png" in message and "frame 0" in message
    picture(tmp_path / "images/1.png", (40, 32))
    picture(tmp_path / "images/2.png", (24, 20))
    lenses = [image.lens for image in read(tmp_path).images]
    assert [(lens.width, lens.height) for lens in lenses] == [(40, 32), (40, 32), (24, 20)]
    assert lenses[2].params == (50, 50, 12, 10)


def edit(**values):
    return lambda c: c.update(values)


def edit_frame(**values):
    return lambda c: c["frames"][0].update(values)


def first(key: str, *value):
    """An edit that deletes a key of frame 0."""
    return lambda c: c["frames"][0].pop(key)


BAD = {  # a change of the file, and what the error has to name
    "no_frames": (lambda c: c.pop("frames"), MAIN, "frames"),
    "zero_frames": (edit(frames=[]), MAIN, "frames"),
    "frame_null": (lambda c: c["frames"].__setitem__(1, None), MAIN, "frame 1", "None"),
    "no_file_path": (first("file_path"), "frame 0", "file_path"),
    "file_path_number": (edit_frame(file_path=5), "frame 0", "file_path", "5"),
    "file_path_empty": (edit_frame(file_path=""), "frame 0", "file_path"),
    "file_path_nul": (edit_frame(file_path="a\0"), "frame 0", "file_path", "a\\x00"),
    "file_path_surrogate": (edit_frame(file_path="a\ud800"), "frame 0", "file_path"),
    "file_path_root": (edit_frame(file_path="/"), "frame 0", "file_path", "folder"),
    "no_matrix": (first("transform_matrix"), "frame 0", "transform_matrix"),
    "transposed": (edit_frame(transform_matrix=TRANSPOSED.tolist()), "frame 0", "transposed"),
    "mirrored": (edit_frame(transform_matrix=np.diag([1.0, 1, -1, 1]).tolist()), "frame 0", "mirrored"),
    "two_of_an_image": (edit_frame(file_path="images/../images/1.png"), "frame 0", "frame 1", "1.png"),
    "two_of_a_name": (edit_frame(file_path="images/1.png"), "frame 0", "frame 1", "1.png"),
    "focal_negative": (edit(fl_x=-5), "frame 0", "fl_x", "-5"),
    "focal_contradicts_fov": (edit(x_fov=90), "frame 0", "fl_x", "x_fov", "20"),
    "focal_contradicts_angle": (edit(camera_angle_y=2.0), "frame 0", "fl_y", "camera_angle_y"),
    "angles_contradict": (
        lambda c: [c.pop("fl_x"), c.pop("fl_y"), c.update(x_fov=90, camera_angle_x=1)],
        "x_fov",
        "camera_angle_x",
    ),
    "fov_of_half_a_circle": (edit(x_fov=180), "frame 0", "x_fov", "180"),
    "fov_text": (edit(y_fov="60"), "frame 0", "y_fov", "'60'"),
    "width_fraction": (edit(w=40.5), "frame 0", "'w'", "40.5"),
    "center_far": (edit(cx=1e6), "frame 0", "principal point"),
    "k1_text": (edit(k1="0.1"), "frame 0", "k1", "'0.1'"),
    "k2_nan": (edit_frame(k2=float("nan")), "frame 0", "k2", "nan"),
    "k1_huge": (edit(k1=1e9), "frame 0", "k1", "1000000000"),
    "k5": (edit(k5=0.1), "frame 0", "k5", "OPENCV"),
    "thin_prism": (edit(s1=0.1, s3=0.2), "frame 0", "s1, s3"),
    "pinhole_with_k1": (edit(camera_model="PINHOLE", k1=0.1), "frame 0", "k1", "PINHOLE"),
    "simple_radial_with_p1": (edit(camera_model="SIMPLE_RADIAL", p1=0.1), "frame 0", "p1", "SIMPLE_RADIAL"),
    "fisheye_with_p1": (edit(is_fisheye=True, p1=0.1), "frame 0", "p1", "OPENCV_FISHEYE"),
    "ngp_k3": (edit(aabb_scale=1, k3=0.1), "frame 0", "k3", "camera_model"),
    "k3_and_k4_of_unknown_dialect": (edit(k3=0.1, k4=0.1), "frame 0", "k3", "k4", "camera_model"),
    "distortion_params_short": (edit(distortion_params=[0.1, 0.2]), "frame 0", "distortion_params", "6"),
    "distortion_params_text": (edit(distortion_params=["0"] * 6), "frame 0", "distortion_params", "k1"),
    "distortion_params_differ": (edit(distortion_params=[0.1, 0, 0, 0, 0, 0], k1=0.2), "'k1'", "0.1", "0.2"),
    "a_part_of_a_lens": (
        lambda c: [c.update(k1=0.1, p1=0.2), c["frames"][0].update(k1=0.3)],
        "frame 0",
        "k1",
        "p1",
    ),
    "a_fisheye_with_others_coefficients": (
        lambda c: [c.update(k1=0.1), c["frames"][0].update(camera_model="OPENCV_FISHEYE")],
        "frame 0",
        "camera_model",
        "k1",
    ),
    "is_fisheye_text": (edit(is_fisheye="false"), "frame 0", "is_fisheye", "'false'"),
    "full_opencv": (edit(camera_model="FULL_OPENCV"), "frame 0", "FULL_OPENCV"),
    "equirectangular_model": (edit(camera_model="EQUIRECTANGULAR"), "frame 0", "camera_model", "EQUIRECTANGULAR"),
    "internal_model": (edit(camera_model="RADIAL4_TANGENTIAL"), "frame 0", "camera_model"),
    "model_list": (edit(camera_model=[1]), "frame 0", "camera_model", "[1]"),
    "ply_number": (edit(ply_file_path=5), MAIN, "ply_file_path", "5"),
    "ply_nul": (edit(ply_file_path="a\0"), MAIN, "ply_file_path"),
    "ply_no_ply": (edit(ply_file_path=MAIN), MAIN, "PLY"),
    "mask_of_one": (edit_frame(mask_path="m.png"), "frame 1", "mask_path"),
    "mask_number": (lambda c: [f.update(mask_path=5) for f in c["frames"]], "frame 0", "mask_path", "5"),
    "split_unknown": (edit(test_filenames=["images/9.png"]), "test_filenames", "images/9.png"),
    "split_text": (edit(val_filenames="images/0.png"), "val_filenames", "list"),
    "split_number": (edit(val_filenames=[0]), "val_filenames", "0"),
    "splits_overlap": (
        edit(train_filenames=["images/0.png", "images/1.png"], test_filenames=["./images/1.png"]),
        "train_filenames",
        "test_filenames",
        "images/1.png",
    ),
    "up_zero": (edit(up=[0, 0, 0]), MAIN, "'up'", "[0, 0, 0]"),
    "up_text": (edit(up="z"), MAIN, "'up'", "'z'"),
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
    content = content_of()
    change(content)
    message = error_of(put(tmp_path, content))
    assert all(part in message for part in named), message


def test_two_poses_in_the_place_of_one(tmp_path):
    content = content_of()
    matrix = content["frames"][1].pop("transform_matrix")
    message = error_of(put(tmp_path, frame_of(content, 1, transform_matrix_start=matrix, transform_matrix_end=matrix)))
    assert "frame 1" in message and "transform_matrix_start" in message


def test_files_that_mean_other_pixels(tmp_path):
    put(tmp_path, content_of(aabb_scale=1))
    for name in ("rays_1.dat", "1.alpha.png"):
        picture(tmp_path / "images/1.png")
        (tmp_path / "images" / name).write_bytes(b"")
        message = error_of(tmp_path)
        assert "frame 1" in message and name in message
        (tmp_path / "images" / name).unlink()


def test_names_are_sorted_as_text_and_extensions_found(tmp_path):
    content = content_of(5)
    for index, name in enumerate(["images/10", "images/9.png", "./images/2", "b\\c.jpg", "images/11.png"]):
        frame_of(content, index, file_path=name)
    picture(tmp_path / "images/10.webp")
    picture(tmp_path / "images/9.jpg")
    images = read(put(tmp_path, content)).images
    assert [image.name for image in images] == ["./images/2", "b/c.jpg", "images/10", "images/11.png", "images/9.png"]
    assert [image.file.name for image in images] == ["2", "c.jpg", "10.webp", "11.png", "9.jpg"]
    assert np.array_equal(images[2].camera_to_world, poses(5)[0][:3]), "poses go with their images"
    (tmp_path / "images/2.png").symlink_to("10.webp")
    assert "10" in error_of(tmp_path)


def test_which_files_are_read(tmp_path):
    assert not recognises(tmp_path)
    (tmp_path / "package.json").write_text('{"frames": 5}')
    (tmp_path / "broken.json").write_bytes(b"\xff")
    put(tmp_path, content_of(), "transforms_train.json")
    assert not recognises(tmp_path) and MAIN in error_of(tmp_path)
    put(tmp_path, content_of(3), "a.json")
    capture = read(tmp_path)
    assert recognises(tmp_path) and len(capture.images) == 3 and any("a.json" in note for note in capture.notes)
    more = content_of(2, fl_x=60.0)
    for frame in more["frames"]:
        frame["file_path"] = "more/" + frame["file_path"]
    put(tmp_path, more, "b.json")
    capture = read(tmp_path)
    assert len(capture.images) == 5 and any("a.json, b.json" in note and "merged" in note for note in capture.notes)
    assert {image.lens.params[0] for image in capture.images} == {50, 60}
    (tmp_path / "transforms_train.json").unlink()
    (tmp_path / "a.json").rename(tmp_path / MAIN)
    capture = read(tmp_path)
    assert len(capture.images) == 3 and any("not b.json" in note for note in capture.notes)
    assert len(read(put(tmp_path, content_of(aabb_scale=2))).images) == 5
    message = error_of(put(tmp_path, content_of(aabb_scale=2), "c.json"))
    assert "c.json" in message and MAIN in message, "both have the same images"
    (tmp_path / MAIN).write_text("{")
    assert recognises(tmp_path) and MAIN in error_of(tmp_path)


def test_masks_by_path(tmp_path):
    content = content_of()
    for index in range(3):
        frame_of(content, index, mask_path=f"m/{index}.png")
    picture(tmp_path / "m/0.png")
    picture(tmp_path / "m/1.png")
    capture = read(put(tmp_path, content))
    assert [image.mask for image in capture.images] == [tmp_path / "m/0.png", tmp_path / "m/1.png", None]
    assert not capture.white_ignores and capture.format == "nerfstudio"
    assert any("2 of 3" in note and "black" in note and "2.png" in note for note in capture.notes)
    picture(tmp_path / "images/dynamic_mask_1.png")
    message = error_of(tmp_path)
    assert "mask_path" in message and "dynamic_mask_1.png" in message


def test_masks_that_are_reduced_like_their_images(tmp_path):
    content = content_of()
    for index in range(3):
        frame_of(content, index, mask_path=f"masks/{index}.png")
    picture(tmp_path / "masks_4/0.png")
    picture(tmp_path / "masks_2/1.png")
    picture(tmp_path / "masks_4/1.png")
    picture(tmp_path / "masks/2.png")
    picture(tmp_path / "masks_2/2.png")
    capture = read(put(tmp_path, content))
    masks = [tmp_path / name for name in ("masks_4/0.png", "masks_2/1.png", "masks/2.png")]
    assert [image.mask for image in capture.images] == masks


@pytest.mark.parametrize("folder", ["m", "masks"])
def test_masks_none_of_which_is_there(tmp_path, folder: str):
    content = content_of()
    for index in range(3):
        frame_of(content, index, mask_path=f"{folder}/{index}.png")
    message = error_of(put(tmp_path, content))
    assert MAIN in message and "mask_path" in message and f"{folder}/0.png" in message


def test_masks_beside_images(tmp_path):
    picture(tmp_path / "images/dynamic_mask_1.png")
    picture(tmp_path / "images/dynamic_mask_7.png")
    capture = read(put(tmp_path, content_of(aabb_scale=1)))
    assert [image.mask for image in capture.images] == [None, tmp_path / "images/dynamic_mask_1.png", None]
    assert capture.white_ignores and any("1 of 3" in note and "white" in note for note in capture.notes)


def test_masks_in_a_folder(tmp_path):
    content = frame_of(content_of(), 2, file_path="images/left/2.jpg")
    picture(tmp_path / "masks/0.png")
    picture(tmp_path / "masks/left/2.jpg.png")
    capture = read(put(tmp_path, content))
    assert [image.mask and image.mask.name for image in capture.images] == ["0.png", None, "2.jpg.png"]
    assert not capture.white_ignores and any("masks" in note and "black" in note for note in capture.notes)
    picture(tmp_path / "masks/0.jpg")
    message = error_of(tmp_path)
    assert "0.png" in message and "0.jpg" in message


def test_splits(tmp_path):
    content = content_of(5, train_filenames=["./images/3.png", "images\\0.png"], test_filenames=["images/2.png"])
    capture = read(put(tmp_path, content | {"val_filenames": []}))
    assert capture.splits == {"train": ["images/0.png", "images/3.png"], "test": ["images/2.png"], "val": []}
    assert read(put(tmp_path, content_of())).splits == {}


def test_up(tmp_path):
    assert read(put(tmp_path, content_of(camera_model="OPENCV"))).up is None
    assert read(put(tmp_path, content_of(orientation_override="none"))).up == (0, 0, 1)
    assert read(put(tmp_path, content_of(orientation_override="pca"))).up is None
    assert read(put(tmp_path, content_of(aabb_scale=1, up=[0, 3, 4]))).up == pytest.approx((0, 0.6, 0.8))


def test_points(tmp_path):
    capture = read(put(tmp_path, content_of(ply_file_path="sparse.ply")))
    assert capture.points is None and any("sparse.ply" in note for note in capture.notes)
    (tmp_path / "sparse.ply").write_bytes(PLY)
    points = read(tmp_path).points
    assert points.positions.tolist() == [[1, 2, 3]] and points.track_lengths.tolist() == [0] and len(points.views) == 0


def test_synthetic(tmp_path):
    folder = write_scene(tmp_path, counts={"train": 3, "val": 2, "test": 2})
    capture = read_synthetic(folder)
    assert capture.format == "nerf_synthetic" and capture.up == (0, 0, 1) and len(capture.images) == 7
    assert {split: len(names) for split, names in capture.splits.items()} == {"train": 3, "val": 2, "test": 2}
    names = [image.name for image in capture.images]
    assert names == sorted(names) and all(image.file.exists() and image.mask is None for image in capture.images)
    assert {image.lens.model for image in capture.images} == {"PINHOLE"} and not recognises(folder)
    file = folder / "transforms_test.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"k1": 0.1, "p2": 0.2}))
    lenses = {image.name: image.lens for image in read_synthetic(folder).images}
    assert lenses["./test/r_0"].params[4:] == (0.1, 0, 0, 0.2) and lenses["./train/r_0"].model == "PINHOLE"


def test_splits_of_synthetic_files_that_share_images(tmp_path):
    folder = write_scene(tmp_path, counts={"train": 3, "test": 2})
    (folder / "transforms_val.json").write_bytes((folder / "transforms_test.json").read_bytes())
    capture = read_synthetic(folder)
    assert capture.splits["val"] == capture.splits["test"] and len(capture.images) == 5
    put(
        folder,
        json.loads((folder / "transforms_val.json").read_text()) | {"camera_angle_x": 0.5},
        "transforms_val.json",
    )
    assert "transforms_val.json" in error_of(folder, read_synthetic)
    (folder / "transforms_val.json").write_bytes((folder / "transforms_train.json").read_bytes())
    message = error_of(folder, read_synthetic)
    assert "transforms_val.json" in message and "transforms_train.json" in message and "r_0" in message
    (folder / "transforms_train.json").unlink()
    assert "transforms_train.json" in error_of(folder, read_synthetic)


def test_synthetic_masks_are_refused(tmp_path):
    folder = write_scene(tmp_path, counts={"train": 2})
    put(
        folder,
        frame_of(json.loads((folder / "transforms_train.json").read_text()), 1, mask_path="m"),
        "transforms_train.json",
    )
    message = error_of(folder, read_synthetic)
    assert "frame 1" in message and "mask_path" in message


TURNED = np.diag([1.0, -1, -1, 1])


def turned(content: dict) -> dict:
    for frame in content["frames"]:
        frame["transform_matrix"] = (np.array(frame["transform_matrix"]) @ TURNED).tolist()
    return content


def axes_note(folder: Path, content: dict) -> str:
    return " ".join(note for note in read(put(folder, content)).notes if "OpenCV axes" in note)


def test_poses_in_opencv_axes(tmp_path):
    assert axes_note(tmp_path, content_of(40)) == axes_note(tmp_path, content_of(40, aabb_scale=1)) == ""
    assert "outwards" in axes_note(tmp_path, turned(content_of(40))), "without an up, it may be so"
    for values in ({"aabb_scale": 1}, {"camera_model": "OPENCV"}, {"up": [0, 0, 1]}):
        message = error_of(put(tmp_path, turned(content_of(40, **values))))
        assert "OpenCV axes" in message and "transform_matrix" in message
    assert "outwards" in axes_note(tmp_path, turned(content_of(40, aabb_scale=1, up=[0, 0, -1])))


def test_sparse_points_tell_the_axes(tmp_path):
    rows = [" ".join(map(str, row)) for row in np.random.default_rng(0).uniform(-0.3, 0.3, (50, 3))]
    text = PLY.decode().replace("vertex 1", "vertex 50").replace("1 2 3\n", "\n".join(rows) + "\n")
    (tmp_path / "p.ply").write_text(text)
    assert axes_note(tmp_path, content_of(20, ply_file_path="p.ply")) == ""
    message = error_of(put(tmp_path, turned(content_of(20, ply_file_path="p.ply", up=[0, 0, -1]))))
    assert "OpenCV axes" in message and "sparse points" in message


def test_other_arrangements_are_not_suspected(tmp_path):
    generator = np.random.default_rng(1)
    forward, ring = content_of(20, aabb_scale=1), content_of(20, aabb_scale=1)
    for index in range(20):
        pose = look_at(np.array([*generator.uniform(-0.2, 0.2, 2), 0]) + [0, -3, 0])
        forward["frames"][index]["transform_matrix"] = pose.tolist()
        outward = look_at(np.array([-np.cos(0.3 * index), -np.sin(0.3 * index), 0]))  # looks away from the ring
        outward[:3, 3] *= -1
        ring["frames"][index]["transform_matrix"] = outward.tolist()
    assert axes_note(tmp_path, forward) == ""
    assert "outwards" in axes_note(tmp_path, ring), "noted, but read"


def capture_of(folder: Path, lenses: list[Lens], **values) -> Capture:
    images = [
        PosedImage(f"images/{index}.png", folder / f"images/{index}.png", pose[:3], lens)
        for index, (lens, pose) in enumerate(zip(lenses, poses(len(lenses)), strict=True))
    ]
    return Capture(**({"name": folder.name, "format": "colmap", "images": images} | values))


def assert_equal(a: Capture, b: Capture) -> None:
    assert [image.name for image in a.images] == [image.name for image in b.images]
    for one, other in zip(a.images, b.images, strict=True):
        assert np.abs(one.camera_to_world - other.camera_to_world).max() <= 1e-12
        assert one.lens == other.lens and one.mask == other.mask and one.file == other.file
    assert (a.splits, a.white_ignores) == (b.splits, b.white_ignores) and a.up == (b.up and pytest.approx(b.up))


LENSES = [
    Lens("PINHOLE", F, 40, 30),
    Lens("OPENCV", (*F, 0.1, 0.02, 0.003, -0.004), 40, 30),
    Lens("OPENCV", (*F, 0.1, 0.02, 0.003, -0.004), 80, 60),
    Lens("OPENCV", (50.0, 52.0, 19.5, 15.5, 0.1, 0.02, 0.003, -0.004), 40, 30),
    Lens("RADIAL4_TANGENTIAL", (*F, 0.1, 0.02, 1 / 3, 0, 0.003, -0.004), 40, 30),
    Lens("OPENCV_FISHEYE", (*F, 0, 0, 0, 0), 40, 30),
    Lens("SIMPLE_PINHOLE", (50.0, 19.5, 15.5), 40, 30),
    Lens("SIMPLE_RADIAL", (50.0, 19.5, 15.5, -0.1), 40, 30),
    Lens("RADIAL", (50.0, 19.5, 15.5, -0.1, 0.01), 40, 30),
]


@pytest.mark.parametrize("lenses", [*([lens] * 3 for lens in LENSES), LENSES[:2], LENSES[1:4], LENSES])
def test_written_and_read_back(tmp_path, lenses: list[Lens]):
    splits = {"train": ["images/0.png"], "test": ["images/1.png"]}
    capture = capture_of(tmp_path, lenses, splits=splits, up=(0.0, 0.6, 0.8))
    write_transforms(tmp_path / MAIN, capture)
    assert_equal(read(tmp_path), capture)
    content = json.loads((tmp_path / MAIN).read_text())
    assert ("fl_x" in content["frames"][0]) == (len({lens.params[:2] for lens in lenses}) > 1)
    assert read(tmp_path).format == "nerfstudio"


def test_written_masks_points_and_names(tmp_path):
    capture = capture_of(tmp_path, LENSES[:2])
    for index, image in enumerate(capture.images):
        mask = tmp_path / f"m/{index}.png"
        picture(mask)
        capture.images[index] = PosedImage(image.name, image.file, image.camera_to_world, image.lens, mask)
    generator = np.random.default_rng(0)
    nothing = np.zeros(9, dtype=np.int64)
    points = Points(
        generator.normal(size=(9, 3)), generator.integers(0, 256, (9, 3)).astype(np.uint8), nothing, nothing
    )
    capture = Capture("c", "colmap", capture.images, points)
    write_transforms(tmp_path / MAIN, capture)
    again = read(tmp_path)
    assert_equal(again, capture)
    assert np.array_equal(again.points.positions, points.positions) and np.array_equal(
        again.points.colors, points.colors
    )
    (tmp_path / "out").mkdir()
    write_transforms(tmp_path / "out" / MAIN, capture)
    again = read(tmp_path / "out")
    assert [image.name for image in again.images] == ["../images/0.png", "../images/1.png"]
    assert [image.mask.resolve() for image in again.images] == [image.mask for image in capture.images]


def test_what_cannot_be_written_is_named(tmp_path):
    file = tmp_path / MAIN
    masked = [
        PosedImage(f"{i}", tmp_path / f"{i}", EYE[:3], LENSES[0], tmp_path / "m" if i else None) for i in range(2)
    ]
    for capture, named in (
        (capture_of(tmp_path, [Lens("SIMPLE_RADIAL_FISHEYE", (30.0, 20, 15, 0.1), 40, 30)]), "SIMPLE_RADIAL_FISHEYE"),
        (Capture("it", "x", masked), "image 0"),
        (Capture("it", "x", masked[1:], white_ignores=True), "white"),
        (Capture("it", "x", []), "it"),
        (capture_of(tmp_path, LENSES[:1], splits={"holdout": []}), "holdout"),
    ):
        with pytest.raises(SceneError, match=named):
            write_transforms(file, capture)
        assert not file.exists()


def outcome(folder: Path, reader) -> bool:
    """Whether the capture is read; only a SceneError of one line may come of it else."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            capture = reader(folder)
        except SceneError as error:
            assert str(error).isprintable(), repr(str(error))
            return False
    assert all(np.isfinite(image.camera_to_world).all() for image in capture.images)
    assert all(note.isprintable() for note in capture.notes)
    return True


@pytest.mark.parametrize("reader, name", [(read, MAIN), (read_synthetic, "transforms_train.json")])
def test_mutated(tmp_path, reader, name: str):
    content = content_of(
        3, camera_model="OPENCV", k1=0.1, k3=0.0, distortion_params=[0.1, 0, 0, 0, 0, 0], camera_angle_x=0.7610,
        up=[0, 0, 1], ply_file_path="p.ply", train_filenames=["images/0.png"], x_fov=43.6, is_fisheye=False,
    )  # fmt: skip
    for index in range(3):
        frame_of(content, index, w=40, h=30, k1=0.1, distortion_params=[0.1, 0, 0, 0, 0, 0])
        if reader is read:
            frame_of(content, index, mask_path="m.png")
    (tmp_path / "p.ply").write_bytes(PLY)
    picture(tmp_path / "m.png")
    text, generator, loaded = json.dumps(content).encode(), np.random.default_rng(0), set()
    assert outcome(put(tmp_path, content, name), reader)
    for trial in range(400):
        changed = json.loads(text)
        with_another_value(changed, generator)
        (tmp_path / name).write_bytes(mutated(text, generator) if trial % 2 else json.dumps(changed).encode())
        loaded.add(outcome(tmp_path, reader))
    assert loaded == {True, False}, "both happen among them"


def test_many_frames(tmp_path):
    count = 20_000
    content = content_of(count, aabb_scale=4, k1=0.1)
    put(tmp_path, content)
    start = time.process_time()  # others may be using the processor
    capture = read(tmp_path)
    seconds = time.process_time() - start
    assert len(capture.images) == count and len({id(image.lens) for image in capture.images}) == 1
    assert seconds < 5
    put(tmp_path, content_of(2000, aabb_scale=4))
    tracemalloc.start()
    read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2000 * 10_000, "bytes, a few times the file"
