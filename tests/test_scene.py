# SPDX-License-Identifier: Apache-2.0
import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.config import Config, DataConfig
from nerfkit.data.load import load_scene, scene_of
from nerfkit.errors import SceneError
from tests.naming import assert_names, raises_naming
from tests.toy_scene import HEIGHT, WIDTH, change, trace, write_scene


def test_a_frame_goes_with_its_image_and_its_camera(toy_scene):
    """Every image is that of its frame's pose and intrinsics, traced anew."""
    scene = load_scene(str(toy_scene))
    assert {name: len(views.cameras) for name, views in scene.views.items()} == {"train": 12, "test": 2}
    assert scene.up == (0, 0, 1), "as in Blender"
    views = scene.split("train")
    content = json.loads((toy_scene / "transforms_train.json").read_text())
    images = views.load().stack()
    assert images.dtype == torch.uint8 and images.shape == (12, HEIGHT, WIDTH, 4)
    for index, (frame, image) in enumerate(zip(content["frames"], images, strict=True)):
        intrinsics = {key: frame[key] for key in ("fl_x", "fl_y", "cx", "cy")}
        pose = np.array(frame["transform_matrix"])
        np.testing.assert_array_equal(image.numpy(), trace(pose, WIDTH, HEIGHT, intrinsics))
        assert views.cameras.focal[index].tolist() == pytest.approx([frame["fl_x"], frame["fl_y"]])
        assert views.cameras.center[index].tolist() == pytest.approx([frame["cx"], frame["cy"]])
        np.testing.assert_allclose(views.cameras.camera_to_world[index], pose[:3], atol=1e-6)


@pytest.mark.parametrize("extension, channels", [("webp", 4), ("jpg", 3)])
def test_images_of_any_kind_that_are_no_squares(tmp_path, extension: str, channels: int):
    folder = write_scene(tmp_path, size=(30, 18), counts={"train": 2}, one_camera=True, extension=extension)
    views = load_scene(str(folder)).split("train")
    assert views.load().stack().shape == (2, 18, 30, channels) and views.cameras.center[0].tolist() == [15, 9]
    assert views.cameras.focal[0, 0] == views.cameras.focal[0, 1]
    half = load_scene(str(folder), downscale=2).split("train")
    assert half.load().stack().shape == (2, 9, 15, channels) and half.cameras.center[0].tolist() == [7.5, 4.5]


def test_downscale_averages_areas_weighted_by_alpha(scene_folder):
    image = np.zeros((HEIGHT, WIDTH, 4), dtype=np.uint8)
    image[0, 0], image[0, 1] = (200, 100, 0, 255), (0, 0, 255, 0)  # the second is transparent
    Image.fromarray(image).save(scene_folder / "train" / "r_0.png")
    views = load_scene(str(scene_folder), downscale=2).split("train")
    red, green, blue, alpha = views.load().stack()[0, 0, 0].tolist()
    assert (red, green, blue) == pytest.approx((200, 100, 0), abs=3) and alpha == pytest.approx(64, abs=1)
    full = load_scene(str(scene_folder)).split("train").cameras
    torch.testing.assert_close(views.cameras.focal * 2, full.focal)


FAMILIES = [  # the file's values, a frame's own, and what they mean for images of 26x22: focal length, principal point
    ({}, {"fl_x": 50.0, "fl_y": 40.0, "cx": 10.0, "cy": 11.0}, (50, 40), (10, 11)),
    ({"fl_x": 30.0, "fl_y": 31.0}, {"fl_x": 50.0}, (50, 50), (13, 11)),
    ({"fl_x": 30.0, "fl_y": 31.0}, {"camera_angle_x": 2 * np.arctan(0.5)}, (26, 26), (13, 11)),
    ({"cx": 10.0, "cy": 9.0, "fl_x": 30.0}, {"cx": 11.0}, (30, 30), (11, 9)),
    ({"w": 52, "h": 44, "fl_x": 30.0}, {"w": 26, "h": 22}, (30, 30), (13, 11)),
    ({"w": 52.0, "h": 43, "fl_x": 48.0, "cy": 43.0}, {}, (24, 48 * 22 / 43), (13, 22)),
]


@pytest.mark.parametrize("of_file, of_frame, focal, center", FAMILIES)
def test_a_frames_intrinsics_beat_the_files(scene_folder, of_file, of_frame, focal, center):
    change(
        scene_folder,
        lambda c: ("fl_x" in of_file and c.pop("camera_angle_x"), c.update(of_file), c["frames"][1].update(of_frame)),
    )
    cameras = load_scene(str(scene_folder)).split("train").cameras
    assert cameras.focal[1].tolist() == pytest.approx(focal) and cameras.center[1].tolist() == pytest.approx(center)


def test_keys_that_change_nothing_and_unknown_ones_that_are_named_once(scene_folder):
    others = {"camera_model": "OPENCV", "k1": 0.0, "aabb_scale": 16, "scale": 0.3, "offset": [0, 0, 0], "fps": 3}
    plain = load_scene(str(scene_folder)).split("train").cameras
    change(scene_folder, lambda c: (c.update(others), c["frames"][0].update(sharpness=3.0)))
    with warnings.catch_warnings(action="error"):
        cameras = load_scene(str(scene_folder)).split("train").cameras
    assert torch.equal(cameras.focal, plain.focal) and torch.equal(cameras.camera_to_world, plain.camera_to_world)
    change(scene_folder, lambda c: (c.update(exposure=2, note="x"), [f.update(time=0.1) for f in c["frames"]]))
    (note,) = [note.text for note in load_scene(str(scene_folder)).notes if "not used" in note.text]
    assert_names(note, "transforms_train.json", "exposure", "note", "time")


def test_names_are_unique(scene_folder):
    views = load_scene(str(scene_folder)).split("train")
    assert views.names[:2] == ["r_0", "r_1"]
    (scene_folder / "other").mkdir()
    shutil.copy(scene_folder / "train" / "r_0.png", scene_folder / "other" / "R_3.png")
    change(scene_folder, lambda c: c["frames"][0].update(file_path="other/R_3"))
    views = load_scene(str(scene_folder)).split("train")
    assert views.names[:4] == ["0000_R_3", "0001_r_1", "0002_r_2", "0003_r_3"]


def test_decoding_takes_no_more_memory_than_is_free(tmp_path, monkeypatch):
    """A thread needs 17 bytes a pixel: 5 for decoding a PNG, 12 for resizing it."""
    views = load_scene(str(write_scene(tmp_path, counts={"train": 12})), downscale=2).split("train")
    one = 17 * WIDTH * HEIGHT
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for room, n_threads in ((100 * one, 8), (3.5 * one, 3), (one, 1)):
        monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda room=room: views.bytes() + int(room))
        reports = []
        assert views.load(reports.append).stack().shape == (12, HEIGHT // 2, WIDTH // 2, 4)
        assert len(reports) == 1
        assert_names(reports[0], n_threads)
    monkeypatch.setattr("nerfkit.data.scene.free_memory", lambda: views.bytes() + one - 1)
    with raises_naming(SceneError, "images", "decode", "data.downscale"):
        views.load()


def test_a_configuration_and_its_words_give_one_scene(toy_scene):
    """What `scene_of` reads from the options is what `load_scene` is told."""
    box = (-1.0, -1, -1, 1, 1, 1)
    config = Config(data=DataConfig(path=str(toy_scene), downscale=2, box=box))
    scene, told = scene_of(config), load_scene(str(toy_scene), downscale=2, box=box)
    assert scene.split("test").cameras.sizes() == told.split("test").cameras.sizes() == [(WIDTH // 2, HEIGHT // 2)] * 2
    assert np.array_equal(scene.frame.box, told.frame.box) and scene.frame.box[1].tolist() == [1, 1, 1]
    assert np.array_equal(scene_of(config, load_scene(str(toy_scene)).frame).frame.box[1], [1.5] * 3), "of the run"
    assert not scene.is_place and scene_of(Config(data=DataConfig(path=str(toy_scene)))).frame.box[1, 0] == 1.5


def test_pixels_across_a_box(toy_scene):
    """By the middle of a cube of side 2, as seen by the median camera; nothing without training views."""
    scene = load_scene(str(toy_scene))
    cameras = scene.split("train").cameras
    distance = cameras.positions.norm(dim=-1)
    wanted = (cameras.focal.mean(-1) * 2 / distance).median().item()
    assert scene.pixels_across((-1, -1, -1, 1, 1, 1)) == pytest.approx(wanted)
    assert replace(scene, views={"test": scene.views["test"]}).pixels_across((-1, -1, -1, 1, 1, 1)) is None
