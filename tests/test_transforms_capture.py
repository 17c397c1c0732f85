# SPDX-License-Identifier: Apache-2.0
"""Captures as transforms.json: dialects, files, masks, splits, points and axes; and what is refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nerfkit.data.capture import texts
from nerfkit.data.readers.transforms.reader import read, read_synthetic
from tests.captures import check_refused, is_read, mutated, with_another_value
from tests.naming import assert_names
from tests.test_bad_scenes import EYE
from tests.toy_scene import look_at, write_scene

XYZ = b"property float x\nproperty float y\nproperty float z\n"
PLY = b"ply\nformat ascii 1.0\nelement vertex 1\n" + XYZ + b"end_header\n1 2 3\n"
SIZE = {"w": 40, "h": 30}
FOCAL = {"fl_x": 50.0, "fl_y": 51.0, "cx": 19.5, "cy": 15.5}
MAIN = "transforms.json"
TURNED = np.diag([1.0, -1, -1, 1])


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


def content_in(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def picture(file: Path, size=(40, 30)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(file)


def frame_of(content: dict, index: int = 0, **values) -> dict:
    content["frames"][index].update(values)
    return content


@pytest.mark.parametrize(
    "values, of_frame, program, named",
    [
        ({"applied_transform": EYE[:3].tolist(), "applied_scale": 2}, {}, "nerfstudio", "applied_scale"),
        ({"aabb_scale": 4, "scale": 1, "offset": [0] * 3}, {"sharpness": 1}, "instant-ngp", "aabb_scale"),
        ({"aabb_scale": 4, "camera_model": "PINHOLE"}, {}, "nerfstudio", "aabb_scale"),
        ({}, {"colmap_im_id": 1}, "nerfstudio", "because of colmap_im_id"),
        ({}, {}, "what both share", "no key"),
    ],
)
def test_dialects(tmp_path, values: dict, of_frame: dict, program: str, named: str):
    content = frame_of(content_of(**values), 2, **of_frame)
    capture = read(put(tmp_path, content))
    assert capture.format == "transforms" and capture.name == tmp_path.name
    assert any(program in note.text and named in note.text for note in capture.notes)
    assert not any("not used" in note.text for note in capture.notes), "what others write is known"
    capture = read(put(tmp_path, frame_of(content | {"width": 5}, 1, exposure=2)))
    assert any("exposure, width" in note.text for note in capture.notes)


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
    check_refused(read, tmp_path, "10")


def with_masks(folder: Path, place: str) -> Path:
    """A capture whose frames name masks in a folder; none of these is there."""
    content = content_of()
    for index in range(3):
        frame_of(content, index, mask_path=f"{place}/{index}.png")
    return put(folder, content)


def test_masks_by_path(tmp_path):
    check_refused(read, with_masks(tmp_path, "m"), MAIN, "mask_path", "m/0.png")
    picture(tmp_path / "m/0.png")
    picture(tmp_path / "m/1.png")
    capture = read(tmp_path)
    assert [image.mask for image in capture.images] == [tmp_path / "m/0.png", tmp_path / "m/1.png", None]
    assert not capture.white_ignores
    assert any("2 of 3" in note.text and "black" in note.text and "2.png" in note.text for note in capture.notes)
    picture(tmp_path / "images/dynamic_mask_1.png")
    check_refused(read, tmp_path, "mask_path", "dynamic_mask_1.png")


def test_masks_beside_images(tmp_path):
    picture(tmp_path / "images/dynamic_mask_2.png")
    picture(tmp_path / "images/dynamic_mask_7.png")
    capture = read(put(tmp_path, content_of(aabb_scale=1)))
    assert [image.mask for image in capture.images] == [None, None, tmp_path / "images/dynamic_mask_2.png"]
    assert capture.white_ignores and any("1 of 3" in note.text and "white" in note.text for note in capture.notes)


def test_masks_in_a_folder(tmp_path):
    content = frame_of(content_of(), 2, file_path="images/left/2.jpg")
    for name in ("masks/0.png", "masks/left/2.jpg.png", "masks/0.jpg"):
        picture(tmp_path / name)
    capture = read(put(tmp_path, content))
    assert [image.mask and image.mask.name for image in capture.images] == ["0.png", None, "2.jpg.png"]
    assert not capture.white_ignores and any("masks" in note.text and "black" in note.text for note in capture.notes)


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
    assert capture.points is None and any("sparse.ply" in note.text for note in capture.notes)
    (tmp_path / "sparse.ply").write_bytes(PLY)
    points = read(tmp_path).points
    assert points.positions.tolist() == [[1, 2, 3]] and points.track_lengths.tolist() == [0] and len(points.views) == 0


def test_splits_of_synthetic_files_that_share_images(tmp_path):
    folder = write_scene(tmp_path, counts={"train": 3, "test": 2})
    (folder / "transforms_val.json").write_bytes((folder / "transforms_test.json").read_bytes())
    capture = read_synthetic(folder)
    assert capture.splits["val"] == capture.splits["test"] and len(capture.images) == 5
    put(folder, content_in(folder, "transforms_val.json") | {"camera_angle_x": 0.5}, "transforms_val.json")
    check_refused(read_synthetic, folder, "transforms_val.json")
    (folder / "transforms_val.json").write_bytes((folder / "transforms_train.json").read_bytes())
    check_refused(read_synthetic, folder, "transforms_val.json", "transforms_train.json", "r_0")


def turned(content: dict) -> dict:
    for frame in content["frames"]:
        frame["transform_matrix"] = (np.array(frame["transform_matrix"]) @ TURNED).tolist()
    return content


def axes_note(folder: Path, content: dict) -> str:
    return " ".join(str(note) for note in read(put(folder, content)).notes if "OpenCV axes" in note.text)


def test_poses_in_opencv_axes(tmp_path):
    assert axes_note(tmp_path, content_of(40)) == axes_note(tmp_path, content_of(40, aabb_scale=1)) == ""
    assert_names(axes_note(tmp_path, turned(content_of(40))), "warning: ", "outwards")  # without an up, it may be so
    for values in ({"aabb_scale": 1}, {"camera_model": "OPENCV"}, {"up": [0, 0, 1]}):
        check_refused(read, put(tmp_path, turned(content_of(40, **values))), "OpenCV axes", "transform_matrix")
    assert "outwards" in axes_note(tmp_path, turned(content_of(40, aabb_scale=1, up=[0, 0, -1])))


def test_sparse_points_tell_the_axes(tmp_path):
    rows = [" ".join(map(str, row)) for row in np.random.default_rng(0).uniform(-0.3, 0.3, (50, 3))]
    text = PLY.decode().replace("vertex 1", "vertex 50").replace("1 2 3\n", "\n".join(rows) + "\n")
    (tmp_path / "p.ply").write_text(text)
    assert axes_note(tmp_path, content_of(20, ply_file_path="p.ply")) == ""
    put(tmp_path, turned(content_of(20, ply_file_path="p.ply", up=[0, 0, -1])))
    check_refused(read, tmp_path, "OpenCV axes", "sparse points")


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


def test_inverted_and_transposed_poses_are_suspected(tmp_path):
    """They are valid, but then the cameras do not look at what they photographed; right ones are not suspected."""
    generator, content = np.random.default_rng(2), content_of(30)
    right = []
    for _ in range(30):
        eye = np.array([*generator.normal(size=2), generator.uniform(0.1, 0.8)])
        right.append(look_at(3 * eye / np.linalg.norm(eye) * generator.uniform(0.8, 1.2)))

    def note(of) -> str:
        for frame, pose in zip(content["frames"], right, strict=True):
            frame["transform_matrix"] = of(pose).tolist()
        return " ".join(str(note) for note in read(put(tmp_path, content)).notes if "poses look" in note.text)

    def transposed(pose: np.ndarray) -> np.ndarray:
        return np.block([[pose[:3, :3].T, pose[:3, 3:]], [np.eye(4)[3:]]])

    assert note(lambda pose: pose) == ""
    assert_names(note(np.linalg.inv), "warning", "world-to-camera")
    assert_names(note(transposed), "warning", "transposed")


def edit(first: dict | None = None, **values):
    """An edit of the file, and of its frame 0."""
    return lambda c: [c["frames"][0].update(first or {}), c.update(values)]


BAD = {  # a change of the file, and what the error has to name
    "fov_of_half_a_circle": (edit(x_fov=180), "frame 0", "x_fov", "180"),
    "center_far": (edit(cx=1e6), "frame 0", "principal point"),
    "thin_prism": (edit(s1=0.1, s3=0.2), "frame 0", "s1, s3"),
    "ngp_k3": (edit(aabb_scale=1, k3=0.1), "frame 0", "k3", "camera_model"),
    "k3_and_k4_of_unknown_dialect": (edit(k3=0.1, k4=0.1), "frame 0", "k3", "k4", "camera_model"),
    "distortion_params_short": (edit(distortion_params=[0.1, 0.2]), "frame 0", "distortion_params", "6"),
    "distortion_params_differ": (edit(distortion_params=[0.1, 0, 0, 0, 0, 0], k1=0.2), "'k1'", "0.1", "0.2"),
    "a_part_of_a_lens": (edit({"k1": 0.3}, k1=0.1, p1=0.2), "frame 0", "k1", "p1"),
    "is_fisheye_text": (edit(is_fisheye="false"), "frame 0", "is_fisheye", "'false'"),
    "internal_model": (edit(camera_model="RADIAL4_TANGENTIAL"), "frame 0", "camera_model"),
    "ply_no_ply": (edit(ply_file_path=MAIN), MAIN, "PLY"),
    "mask_of_one": (edit({"mask_path": "m.png"}), "frame 1", "mask_path"),
    "split_unknown": (edit(test_filenames=["images/9.png"]), "test_filenames", "images/9.png"),
    "split_text": (edit(val_filenames="images/0.png"), "val_filenames", "list"),
    "splits_overlap": (
        edit(train_filenames=["images/0.png", "images/1.png"], test_filenames=["./images/1.png"]),
        *("train_filenames", "test_filenames", "images/1.png"),
    ),
    "up_zero": (edit(up=[0, 0, 0]), MAIN, "'up'", "[0, 0, 0]"),
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


@pytest.mark.parametrize("key", ["applied_scale", "aabb_scale", "scale", "offset"])
def test_scales_of_other_programs_that_are_none_are_doubted_by_name(tmp_path, key: str):
    for value in ("x", [], float("nan"), [0.5, "x", 0.5], True):
        (note,) = texts(read(put(tmp_path, content_of(**{key: value}))).notes, "warning")
        assert_names(note, f"'{key}'", MAIN)
    assert not texts(read(put(tmp_path, content_of(scale=0.3, aabb_scale=4, offset=[-1, 0, 0.5]))).notes, "warning")


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
    for trial in range(200):
        changed = json.loads(text)
        with_another_value(changed, generator)
        (tmp_path / MAIN).write_bytes(mutated(text, generator) if trial % 2 else json.dumps(changed).encode())
        loaded.add(is_read(read, tmp_path))
    assert loaded == {True, False}, "both happen among them"


def test_files_that_would_change_the_scene_are_not_passed_over(tmp_path):
    put(tmp_path, content_of(aabb_scale=1), "more.json")
    assert any("more.json" in note.text for note in read(put(tmp_path, content_of(aabb_scale=1))).notes)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "rays_1.dat").write_bytes(b"rays")
    check_refused(read, tmp_path, "rays_1.dat")
