# SPDX-License-Identifier: Apache-2.0
"""Captures as transforms.json: dialects, files, masks, splits, points, axes and lenses; what is refused is named."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.ply import write_points
from nerfkit.data.readers.transforms import read, read_synthetic
from nerfkit.data.readers.transforms.writer import write_transforms
from nerfkit.errors import SceneError
from tests.camera_layouts import grid, look_at, ring
from tests.captures import check_refused
from tests.naming import assert_names
from tests.posed_captures import poses
from tests.test_scene import EYE
from tests.toy_scene import change, write_scene

SIZE = {"w": 40, "h": 30}
FOCAL = {"fl_x": 50.0, "fl_y": 51.0, "cx": 19.5, "cy": 15.5}
MAIN = "transforms.json"
TURNED = np.diag([1.0, -1, -1, 1])


def content_of(of: int | np.ndarray = 3, **values) -> dict:
    """A transforms file of images without files, of poses [V, 3 or 4, 4] or of so many around the origin."""
    matrices = np.broadcast_to(np.eye(4), (of if isinstance(of, int) else len(of), 4, 4)).copy()
    matrices[:, :3] = np.array(poses(of) if isinstance(of, int) else of)[:, :3]
    frames = [{"file_path": f"images/{i}.png", "transform_matrix": pose.tolist()} for i, pose in enumerate(matrices)]
    return {**SIZE, **FOCAL, **values, "frames": frames}


def put(folder: Path, content: dict, name: str = MAIN) -> Path:
    (folder / name).write_text(json.dumps(content))
    return folder


def save_image(file: Path, size=(40, 30)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(file)


def frame_of(content: dict, index: int = 0, **values) -> dict:
    content["frames"][index].update(values)
    return content


def test_what_a_file_is_read_as_and_what_is_not_used_is_said(tmp_path):
    def notes(values: dict, **of_frame) -> str:
        return " ".join(str(note) for note in read(put(tmp_path, frame_of(content_of(**values), 1, **of_frame))).notes)

    said = notes({"aabb_scale": 4, "is_fisheye": True, "camera_model": "PINHOLE", "width": 5}, exposure=2)
    assert_names(said, "nerfstudio", "aabb_scale", "exposure, width", "is_fisheye", "3 of 3")
    known = {"applied_transform": EYE[:3].tolist(), "applied_scale": 2}
    assert "not used" not in notes(known, colmap_im_id=1), "what others write is known"
    assert_names(said := notes({"aabb_scale": 4, "scale": 1, "offset": [0] * 3}, sharpness=1), "instant-ngp")
    assert "not used" not in said
    assert_names(notes({}), "what both share", "no key")


def test_names_are_sorted_as_text_and_extensions_found(tmp_path):
    content = content_of(5)
    for index, name in enumerate(["images/10", "images/9.png", "./images/2", "b\\c.jpg", "images/11.png"]):
        frame_of(content, index, file_path=name)
    save_image(tmp_path / "images/10.webp")
    save_image(tmp_path / "images/9.jpg")
    images = read(put(tmp_path, content)).images
    assert [image.name for image in images] == ["./images/2", "b/c.jpg", "images/10", "images/11.png", "images/9.png"]
    assert [image.file.name for image in images] == ["2", "c.jpg", "10.webp", "11.png", "9.jpg"]
    assert np.array_equal(images[2].camera_to_world, poses(5)[0][:3]), "poses go with their images"
    (tmp_path / "images/2.png").symlink_to("10.webp")
    check_refused(read, tmp_path, "10")


def test_masks_by_path(tmp_path):
    content = content_of()
    for index in range(3):
        frame_of(content, index, mask_path=f"m/{index}.png")
    check_refused(read, put(tmp_path, content), MAIN, "mask_path", "m/0.png")
    save_image(tmp_path / "m/0.png")
    save_image(tmp_path / "m/1.png")
    check_masks(read(tmp_path), ["0.png", "1.png", None], "2 of 3", "black", "2.png")
    save_image(tmp_path / "images/dynamic_mask_1.png")
    check_refused(read, tmp_path, "mask_path", "dynamic_mask_1.png")


def check_masks(capture: Capture, names: list[str | None], *named: str) -> None:
    assert [image.mask and image.mask.name for image in capture.images] == names
    assert capture.white_ignores == ("white" in named)
    assert_names(" ".join(note.text for note in capture.notes), *named)


def test_masks_beside_images_and_in_a_folder(tmp_path):
    content = frame_of(content_of(aabb_scale=1), 2, file_path="images/left/2.jpg")
    for name in ("masks/0.png", "masks/left/2.jpg.png", "masks/0.jpg"):
        save_image(tmp_path / name)
    missing, more = "1 of 3 images have no file in masks (1.png)", "1 of 3 files in masks belong to no image"
    check_masks(read(put(tmp_path, content)), ["0.png", None, "2.jpg.png"], "black", missing, more)
    save_image(tmp_path / "images/left/dynamic_mask_2.png")
    save_image(tmp_path / "images/dynamic_mask_7.png")
    check_masks(read(tmp_path), [None, None, "dynamic_mask_2.png"], "white", "1 of 3")


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


def test_splits_of_synthetic_files_that_share_images(tmp_path):
    folder = write_scene(tmp_path, counts={"train": 3, "test": 2})
    (folder / "transforms_val.json").write_bytes((folder / "transforms_test.json").read_bytes())
    capture = read_synthetic(folder)
    assert capture.splits["val"] == capture.splits["test"] and len(capture.images) == 5
    change(folder, lambda c: c.update(camera_angle_x=0.5), "transforms_val.json")
    check_refused(read_synthetic, folder, "transforms_val.json")
    (folder / "transforms_val.json").write_bytes((folder / "transforms_train.json").read_bytes())
    check_refused(read_synthetic, folder, "transforms_val.json", "transforms_train.json", "r_0")


def note(folder: Path, what: str, of: int | np.ndarray, **values) -> str:
    notes = read(put(folder, content_of(of, **values))).notes
    return " ".join(str(note) for note in notes if what in note.text)


def test_poses_in_opencv_axes(tmp_path):
    axes_note = partial(note, tmp_path, "OpenCV axes")
    for poses_of_others in (40, grid()):
        assert axes_note(poses_of_others, aabb_scale=1) == ""
    turned = poses(40) @ TURNED
    assert_names(axes_note(turned), "warning: ", "outwards")  # without an up, it may be so
    for values in ({"aabb_scale": 1}, {"camera_model": "OPENCV"}, {"up": [0, 0, 1]}):
        check_refused(read, put(tmp_path, content_of(turned, **values)), "OpenCV axes", "transform_matrix")
    assert "outwards" in axes_note(turned, aabb_scale=1, up=[0, 0, -1])
    eyes = ring(20)[:, :, 3] * [1, 1, 0]
    assert "outwards" in axes_note(look_at(eyes.copy(), 2 * eyes), aabb_scale=1), "but read"
    positions = np.random.default_rng(0).uniform(-0.3, 0.3, (50, 3))  # of sparse points, which tell the axes
    nothing = np.zeros(50, np.int64)
    write_points(tmp_path / "p.ply", Points(positions, np.zeros((50, 3), np.uint8), nothing, nothing))
    assert axes_note(20, ply_file_path="p.ply") == ""
    put(tmp_path, content_of(poses(20) @ TURNED, ply_file_path="p.ply", up=[0, 0, -1]))
    check_refused(read, tmp_path, "OpenCV axes", "sparse points")


def test_inverted_and_transposed_poses_are_suspected(tmp_path):
    """They are valid, but then the cameras do not look at what they photographed; right ones are not suspected, nor
    those that look outwards from a ring, whose axes meet as those of world-to-camera matrices do."""
    suspected = partial(note, tmp_path, "poses look")
    right, angle = np.array(poses(30)), np.arange(32) * 2 * np.pi / 32
    transposed = np.concatenate([right[:, :3, :3].mT, right[:, :3, 3:]], axis=2)
    eyes = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1) * (0.8 + 0.3 * (np.arange(32) % 2))[:, None]
    assert suspected(right) == "" and "world-to-camera" not in suspected(look_at(eyes.copy(), 6 * eyes - [0, 0, 1.5]))
    assert_names(suspected(np.linalg.inv(right)), "warning", "world-to-camera")
    assert_names(suspected(transposed), "warning", "transposed")


def edit(first: dict | None = None, **values):
    """An edit of the file, and of its frame 0."""
    return lambda c: [c["frames"][0].update(first or {}), c.update(values)]


BAD = {  # a change of the file, and what the error has to name
    "fov_of_half_a_circle": (edit(x_fov=180), "frame 0", "x_fov", "180"),
    "thin_prism": (edit(s1=0.1, s3=0.2), "frame 0", "s1, s3"),
    "k3_and_k4_of_unknown_dialect": (edit(k3=0.1, k4=0.1), "frame 0", "k3", "k4", "camera_model"),
    "distortion_params_short": (edit(distortion_params=[0.1, 0.2]), "frame 0", "distortion_params", "6"),
    "distortion_params_differ": (edit(distortion_params=[0.1, 0, 0, 0, 0, 0], k1=0.2), "'k1'", "0.1", "0.2"),
    "a_part_of_a_lens": (edit({"k1": 0.3}, k1=0.1, p1=0.2), "frame 0", "k1", "p1"),
    "is_fisheye_text": (edit(is_fisheye="false"), "frame 0", "is_fisheye", "'false'"),
    "internal_model": (edit(camera_model="RADIAL4_TANGENTIAL"), "frame 0", "camera_model"),
    "mask_of_one": (edit({"mask_path": "m.png"}), "frame 1", "mask_path"),
    "split_unknown": (edit(test_filenames=["images/9.png"]), "test_filenames", "images/9.png"),
    "splits_overlap": (edit(train_filenames=["images/1.png"], test_filenames=["./images/1.png"]), "train_filenames"),
    "up_zero": (edit(up=[0, 0, 0]), MAIN, "'up'", "[0, 0, 0]"),
}
REFUSED = "ftheta_p0 equirectangular ortho rolling_shutter transform_matrix_end fisheye_crop_radius masks".split()


@pytest.mark.parametrize("name", [*BAD, *REFUSED])
def test_refused_by_name(tmp_path, name: str):
    change, *named = BAD.get(name) or (edit(**{name: 1}), "frame 0", f"'{name}'")
    change(content := content_of())
    check_refused(read, put(tmp_path, content), *named)


def test_files_that_would_change_the_scene_are_not_passed_over(tmp_path):
    put(tmp_path, content_of(aabb_scale=1), "more.json")
    assert any("more.json" in note.text for note in read(put(tmp_path, content_of(aabb_scale=1))).notes)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "rays_1.dat").write_bytes(b"rays")
    check_refused(read, tmp_path, "rays_1.dat")


# ---- lenses, of the file or of a frame, and files that are written


K = {"k1": 0.1, "k2": 0.02}
P = {"p1": 0.003, "p2": -0.004}
F = (50.0, 51.0, 19.5, 15.5)
RADIAL4, PANORAMA, ARIA = "RADIAL4_TANGENTIAL", "EQUIRECTANGULAR", "RAD_TAN_THIN_PRISM_FISHEYE"
TWELFTHS = tuple(n / 99 for n in range(12))


@pytest.mark.parametrize(
    "values, model, params",
    [
        ({}, "PINHOLE", F),
        ({**K, **P}, "OPENCV", (*F, 0.1, 0.02, 0.003, -0.004)),
        ({"camera_model": "OPENCV", **K, **P, "k3": 0.5, "k4": 0}, RADIAL4, (*F, 0.1, 0.02, 0.5, 0, 0.003, -0.004)),
        ({"applied_scale": 1, "k4": 0.5}, RADIAL4, (*F, 0, 0, 0, 0.5, 0, 0)),
        ({"distortion_params": [1e-3, 2e-3, 5e-3, 6e-3, 0, 0]}, RADIAL4, (*F, 1e-3, 2e-3, 5e-3, 6e-3, 0, 0)),
        ({"aabb_scale": 1, **K, **P, "k3": 0.5}, RADIAL4, (*F, 0.1, 0.02, 0.5, 0, 0.003, -0.004)),  # of RealityCapture
        ({"camera_model": "OPENCV_FISHEYE", **K, "k3": 0.3, "k4": 0.4}, "OPENCV_FISHEYE", (*F, 0.1, 0.02, 0.3, 0.4)),
        ({"is_fisheye": True, "aabb_scale": 1, "k3": 0.3}, "OPENCV_FISHEYE", (*F, 0, 0, 0.3, 0)),
        ({"is_fisheye": 1, "distortion_params": [0.1, 0, 0, 0.2, 0, 0]}, "OPENCV_FISHEYE", (*F, 0.1, 0, 0, 0.2)),
        ({"camera_model": "FISHEYE624", "distortion_params": list(TWELFTHS)}, ARIA, (*F, *TWELFTHS)),
        ({"camera_model": PANORAMA, "fl_x": 20, "fl_y": 30, "cx": 20, "cy": 15, "k1": 0}, PANORAMA, (40, 30)),
    ],
)
def test_lenses(tmp_path, values: dict, model: str, params: tuple):
    assert read(put(tmp_path, content_of(**values))).images[0].lens == Lens(model, params, 40, 30)


@pytest.mark.parametrize("by", [{"x_fov": 60.0}, {"camera_angle_x": np.pi / 3}, {"x_fov": 60, "camera_angle_x": 1.05}])
def test_angles_of_view(tmp_path, by: dict):
    for more, other in (({}, 20 / np.tan(np.pi / 6)), ({"y_fov": 90}, 15)):
        content = {**SIZE, **by, **more, "frames": content_of()["frames"]}
        found = read(put(tmp_path, content)).images[0].lens.params
        assert found == pytest.approx((20 / np.tan(np.pi / 6), other, 20, 15), rel=0.01)


def test_intrinsics_of_frames_beat_those_of_the_file(tmp_path):
    content = content_of(4, k1=0.1)
    frame_of(content, 1, fl_x=70.0, k1=0.2, w=80, h=60)
    frame_of(content, 2, camera_model="OPENCV_FISHEYE", k1=0.3, cx=3.0)
    lenses = [image.lens for image in read(put(tmp_path, content)).images]
    assert lenses[0] == lenses[3] and lenses[0].params == (*F, 0.1, 0, 0, 0)
    assert lenses[1] == Lens("OPENCV", (70, 70, 19.5, 15.5, 0.2, 0, 0, 0), 80, 60)
    assert lenses[2] == Lens("OPENCV_FISHEYE", (50, 51, 3, 15.5, 0.3, 0, 0, 0), 40, 30)


def test_sizes_of_files_where_none_are_stated(tmp_path):
    content = {"fl_x": 50.0, "frames": content_of()["frames"]}
    check_refused(read, put(tmp_path, content), "'w'", "images/0.png", "frame 0")
    save_image(tmp_path / "images/1.png", (40, 32))
    save_image(tmp_path / "images/2.png", (24, 20))
    lenses = [image.lens for image in read(tmp_path).images]
    assert [(lens.width, lens.height) for lens in lenses] == [(40, 32), (40, 32), (24, 20)]
    assert lenses[2].params == (50, 50, 12, 10)


LENSES = [
    Lens("PINHOLE", F, 40, 30),
    Lens("OPENCV", (*F, 0.1, 0.02, 0.003, -0.004), 40, 30),
    Lens("OPENCV", (*F, 0.1, 0.02, 0.003, -0.004), 80, 60),
    Lens("RADIAL4_TANGENTIAL", (*F, 0.1, 0.02, 1 / 3, 0, 0.003, -0.004), 40, 30),
    Lens("OPENCV_FISHEYE", (*F, 0, 0, 0, 0), 40, 30),
    Lens("RADIAL4_TANGENTIAL", (900.0, 900.0, 19.5, 15.5, 0.2, -40.0, 2e5, -3e7, 0, 0), 40, 30),  # a long lens
    Lens(ARIA, (*F, *TWELFTHS), 40, 30),
    Lens(PANORAMA, (64, 32), 64, 32),
]


def capture_of(folder: Path, lenses: list[Lens], **values) -> Capture:
    images = []
    for index, (lens, pose) in enumerate(zip(lenses, poses(len(lenses)), strict=True)):
        name, mask = f"images/{index}.png", folder.parent / f"{index}.png"
        images.append(PosedImage(name, folder / name, pose[:3], lens, mask))
        save_image(mask)
    return Capture("it", "colmap", images, **values)


@pytest.mark.parametrize("lenses", [LENSES[1:2] * 2, LENSES[:2], LENSES])
def test_written_and_read_back(tmp_path, lenses: list[Lens]):
    """With masks in another folder, points, splits and up."""
    (folder := tmp_path / "it").mkdir()
    generator, nothing = np.random.default_rng(0), np.zeros(9, dtype=np.int64)
    colors = generator.integers(0, 256, (9, 3)).astype(np.uint8)
    points = Points(generator.normal(size=(9, 3)), colors, nothing, nothing)
    splits = {"train": ["images/0.png"], "test": ["images/1.png"]}
    capture = capture_of(folder, lenses, points=points, splits=splits, up=(0.0, 0.6, 0.8))
    write_transforms(folder / MAIN, capture)
    again = read(folder)
    for one, other in zip(again.images, capture.images, strict=True):
        np.testing.assert_allclose(one.camera_to_world, other.camera_to_world, atol=1e-12)
        pose = other.camera_to_world
        assert replace(one, camera_to_world=pose, mask=one.mask.resolve()) == other
    assert (again.splits, again.white_ignores) == (splits, False) and again.up == pytest.approx(capture.up)
    assert np.array_equal(again.points.positions, points.positions) and np.array_equal(again.points.colors, colors)
    content = json.loads((folder / MAIN).read_text())
    assert ("fl_x" in content["frames"][0]) == (len(set(lenses)) > 1)
    if lenses == LENSES[:2]:
        assert {frame["camera_model"] for frame in content["frames"]} == {"OPENCV"}, "nerfstudio has one for all"


def test_what_cannot_be_written_is_named(tmp_path):
    masked = capture_of(tmp_path, LENSES[:2]).images
    for capture, named in (
        (Capture("it", "x", [replace(masked[0], mask=None), masked[1]]), "images/0.png"),
        (Capture("it", "x", masked, white_ignores=True), "white"),
        (Capture("it", "x", []), "it"),
        (capture_of(tmp_path, LENSES[:1], splits={"holdout": []}), "holdout"),
        (capture_of(tmp_path, [replace(LENSES[-1], width=32)]), "part of a panorama"),
        (capture_of(tmp_path, [Lens("FOV", (*F, 0.9), 40, 30)]), "FOV"),
    ):
        with pytest.raises(SceneError, match=named):
            write_transforms(tmp_path / MAIN, capture)
        assert not (tmp_path / MAIN).exists()
