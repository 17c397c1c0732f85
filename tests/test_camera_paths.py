# SPDX-License-Identifier: Apache-2.0
"""Camera paths: nerfstudio's files, keyframes between which the camera moves, and the file of an edited path."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.errors import SceneError
from nerfkit.rendering import paths
from nerfkit.rendering.camera_path import CameraPath, Keyframe, read_camera_path, read_path
from tests.test_crop import FRAME, UTM
from tests.toy_scene import look_at

EYES = [(2.0, 0, 1), (0.0, 2, 1), (-2.0, 0, 1.5)]


def pose(eye) -> np.ndarray:
    return look_at(np.array(eye))[:3]


def nerfstudio(**more) -> dict:
    cameras = [
        {"camera_to_world": look_at(np.array(eye)).flatten().tolist(), "fov": fov, "aspect": 2.0}
        for eye, fov in zip(EYES, (50.0, 60.0, 70.0), strict=True)
    ]
    return {"camera_type": "perspective", "render_height": 120, "render_width": 240, "fps": 24, "seconds": 3,
            "is_cycle": False, "smoothness_value": 0, "camera_path": cameras, "keyframes": []} | more  # fmt: skip


@pytest.fixture
def path() -> CameraPath:
    keys = [Keyframe(pose(eye), math.radians(40 + 10 * i), 1.0 + i) for i, eye in enumerate(EYES)]
    return CameraPath(keys, fps=10, size=(64, 48))


def write(tmp_path, content):
    file = tmp_path / "path.json"
    file.write_text(json.dumps(content))
    return file


def test_a_path_of_nerfstudio_and_its_size(tmp_path):
    file = write(tmp_path, nerfstudio(default_fov=90.0))  # of no camera that has its own
    cameras = read_path(file, (8, 8))
    assert len(cameras) == 3 and cameras.size() == (240, 120)
    assert np.allclose(cameras.camera_to_world[1], pose(EYES[1]), atol=1e-6)
    up = torch.tensor([0.0, 1.0, 0.0]) * math.tan(math.radians(60.0) / 2)  # the upper edge, at a depth of 1
    edge = cameras.positions[1] + cameras.camera_to_world[1, :, :3] @ (up - torch.tensor([0.0, 0, 1]))
    pixel, depth = cameras.project(edge[None], 1)
    assert torch.allclose(pixel[0], torch.tensor([120.0, 0.0]), atol=1e-3) and depth[0] == pytest.approx(1)
    asked = read_path(file, (8, 8), (100, 100))
    assert asked.size() == (100, 100) and asked.focal[0, 0] == pytest.approx(50 / math.tan(math.radians(25)))
    content = nerfstudio()
    del content["render_width"], content["render_height"]
    assert read_path(write(tmp_path, content), (8, 6)).size() == (8, 6)


@pytest.mark.parametrize(
    "change, named",
    [
        ({"camera_type": "fisheye"}, "fisheye"),
        ({"camera_path": []}, "path.json"),
        ({"render_width": 0}, "render_width"),
        ({"camera_path": [{"fov": 50.0}]}, "camera_to_world"),
        ({"camera_path": [{"camera_to_world": list(range(16)), "fov": 50.0}]}, "camera_path 0"),
        ({"camera_path": [nerfstudio()["camera_path"][0] | {"fov": 200}]}, "fov"),
        ({"camera_path": [nerfstudio()["camera_path"][0] | {"fov": None}]}, "fov"),
    ],
)
def test_what_cannot_be_rendered_is_named(tmp_path, change, named):
    with pytest.raises(SceneError, match=named):
        read_path(write(tmp_path, nerfstudio(**change)), (8, 8))


RADIANS = [view | {"fov": math.radians(view["fov"])} for view in nerfstudio()["camera_path"]]
ENLARGED = {"w": 240, "h": 120, "fl_x": 40, "cx": 30, "cy": 15, "frames": [{"transform_matrix": np.eye(4).tolist()}]}


@pytest.mark.parametrize(
    "content, named",
    [
        (nerfstudio(crop={"crop_center": [0, 0, 0]}), "its crop is not used"),
        (nerfstudio(camera_path=RADIANS), "if the angle was in radians, give degrees"),
        (ENLARGED, "of images of 60x30"),
    ],
)
def test_what_is_not_used_and_views_that_no_camera_has_are_warned_of(tmp_path, content, named):
    with pytest.warns(UserWarning, match=named):
        read_path(write(tmp_path, content), (8, 8))


SIDES = {"camera_angle_x": 2 * math.atan(1.5), "camera_angle_y": 2 * math.atan(1.0)}  # of images of 3:2


@pytest.mark.parametrize(
    "content, asked, focal",
    [
        ({**SIDES, "frames": ENLARGED["frames"]}, None, (4, 4)),
        ({**SIDES, "frames": ENLARGED["frames"]}, (90, 60), (30, 30)),
        ({"frames": [ENLARGED["frames"][0] | SIDES]}, (80, 60), (30, 30)),
        ({"fl_x": 40, "fl_y": 50, "frames": ENLARGED["frames"]}, None, (40, 50)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*focal length")
def test_angles_of_images_of_another_shape_keep_pixels_square(tmp_path, content, asked, focal):
    assert read_path(write(tmp_path, content), (8, 8), asked).focal[0].tolist() == pytest.approx(focal)


@pytest.mark.parametrize("fov", [0.01, 179.5])
@pytest.mark.filterwarnings("ignore:.*focal length")
def test_any_angle_that_a_lens_has_is_saved_and_read(tmp_path, fov: float):
    path = CameraPath([Keyframe(pose(EYES[0]), math.radians(fov))], size=(64, 48))
    (tmp_path / "p.json").write_text(path.to_json(None))
    (key,) = read_camera_path(tmp_path / "p.json", None, (8, 8)).keyframes
    assert math.degrees(key.fov) == pytest.approx(fov)


def test_another_size_keeps_pixels_square_and_the_view_from_top_to_bottom():
    """Of cameras with pixels that are not quite squares, and a principal point beside the middle."""
    sizes = torch.tensor([64, 32]), torch.tensor([48, 48])
    poses = torch.eye(4)[None, :3].repeat(2, 1, 1)
    cameras = Cameras(poses, torch.tensor([[60.0, 61]] * 2), torch.tensor([[33.0, 23], [17, 23]]), *sizes)
    tall = paths.with_size(cameras, 48, 96)
    assert tall.focal.tolist() == [[120, 122]] * 2 and tall.center.tolist() == [[26, 46]] * 2
    assert tall.size() == (48, 96)


@pytest.mark.parametrize("kind, size, shape", [("equirectangular", None, (96, 48)), ("fisheye", (40, 30), (40, 30))])
def test_cameras_of_a_path_take_panoramas_and_fisheyes(kind: str, size, shape: tuple[int, int]):
    """Panoramas are level, whichever way the camera is turned; the height is the path's, unless a size is asked for."""
    eyes, up = torch.tensor([[1.0, 2, 3], [0, 0, 2]]), torch.tensor([0.0, 0, 1])
    down = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])  # straight down, north above
    tilted = paths.look_at(eyes[:1], torch.tensor([5.0, 2, 1]), up)[0, :, :3]
    given = paths.pinholes(torch.cat([torch.stack([tilted, down]), eyes[:, :, None]], -1).numpy(), [1.0, 1.0], (64, 48))
    made = paths.seen_around(given, kind, size, up)
    assert set(made.sizes()) == {shape} and torch.equal(made.positions, eyes)
    rows = made.image_rays(0).directions.unflatten(0, shape[::-1])
    middle, edge = (rows[shape[1] // 2, x] for x in (shape[0] // 2, 0))
    if kind == "fisheye":
        torch.testing.assert_close(made.camera_to_world, given.camera_to_world)
        return
    assert middle[0] > 0.99 and edge[0] < -0.99, "ahead in the middle, behind at the edges"
    for view, ahead in enumerate(((1.0, 0, 0), (0.0, 1, 0))):
        pixels, _ = made.project(eyes[view] + torch.tensor([ahead, [0, 0, 5.0]]), view)
        torch.testing.assert_close(pixels, torch.tensor([(48.0, 24.0), (48.0, 0.0)]), atol=1e-3, rtol=0)


def test_the_camera_is_at_a_keyframe_at_its_time_and_moves_smoothly(path):
    poses, fovs = path.at(np.array([0.0, 1.0, 3.0, 0.5]))
    assert np.allclose(poses[:3], [pose(eye) for eye in EYES], atol=1e-6)
    assert np.allclose(np.degrees(fovs), [40, 50, 60, 45])
    assert path.seconds == 3 and path.n_frames == 31
    poses = path.frames()[0]
    rotations = poses[:, :, :3]
    assert np.allclose(rotations @ rotations.swapaxes(1, 2), np.eye(3), atol=1e-6)
    steps = np.linalg.norm(np.diff(poses[:, :, 3], axis=0), axis=1)
    assert 0 < steps.min() and steps.max() < 0.5


def test_between_keyframes_that_look_at_one_point_the_way_to_it_is_between_theirs():
    """An orbit of few keyframes stays a circle; where cameras look side by side, or from one place, nothing changes."""
    orbit = [Keyframe(pose(4.03 * np.array([math.cos(a), math.sin(a), 0.3])), 0.8) for a in (0.0, 2.0, 4.0)]
    for keys, loop in ((orbit, False), (orbit, True), (orbit[:2], False)):
        eyes = CameraPath(keys, loop).cameras().positions.double()
        assert np.allclose(np.linalg.norm(eyes, axis=1), np.linalg.norm(keys[0].pose[:, 3]), rtol=1e-5)
    beside = [pose((2.0, 0, 1)) + [0, 0, 0, by] for by in range(3)]
    turned = [np.column_stack([pose(eye)[:, :3], np.ones(3)]) for eye in EYES]
    for keys in ([Keyframe(matrix, 0.8) for matrix in poses] for poses in (beside, turned)):
        poses = torch.from_numpy(np.stack([key.pose for key in keys]))
        wanted = paths.along(poses, torch.tensor([0.5, 1.5]).double(), False)
        assert np.array_equal(CameraPath(keys).at(np.array([1.0, 3.0]))[0], wanted)


def test_a_path_about_a_scene_that_is_seen_from_one_side_stays_among_its_cameras():
    eyes = torch.tensor([[x, y, 5.0] for x in (-1.0, 0, 1) for y in (-0.5, 0, 0.5)])
    up, target = torch.tensor([0.0, 1, 0]), torch.zeros(3)
    like = paths.pinholes(np.stack([np.column_stack([np.eye(3), eye]) for eye in eyes]), [0.7] * len(eyes), (64, 48))
    cameras = paths.sway(like, target, up, 12)
    assert not paths.views_surround(like, target, up)
    assert (cameras.positions.abs() <= torch.tensor([1.0, 0.5, 5.1])).all() and cameras.positions[:, 0].max() > 0.5
    ahead = -cameras.camera_to_world[:, :, 2]
    assert torch.allclose(ahead, torch.nn.functional.normalize(target - cameras.positions, dim=-1), atol=1e-5)


def test_a_path_among_cameras_of_three_quarters_of_a_circle_is_no_higher_than_they_are():
    azimuths = torch.linspace(0.3, 0.3 + math.radians(220), 20)
    eyes = torch.stack([azimuths.cos(), azimuths.sin(), torch.full_like(azimuths, 0.4)], -1) * 3
    up, target = torch.tensor([0.0, 0, 1]), torch.zeros(3)
    like = paths.pinholes(paths.look_at(eyes, target, up).numpy(), [0.7] * len(eyes), (64, 48))
    cameras = paths.sway(like, target, up, 24)
    assert not paths.views_surround(like, target, up)
    assert torch.allclose(cameras.positions[:, 2], eyes[:1, 2], atol=1e-4)
    away = (cameras.positions[:, None] - eyes).norm(dim=-1).min(dim=1).values
    assert away.max() < 0.4, "each is near one of them"


@pytest.mark.parametrize("degrees", [[90.0, 89.9, 50.0], [10.0, 10, 10, 10, 50]])
def test_a_path_among_views_is_not_above_or_below_them_and_does_not_turn_the_image_over(degrees):
    elevations, azimuths = torch.deg2rad(torch.tensor(degrees)), torch.linspace(0, 0.8, len(degrees))
    flat = torch.stack([azimuths.cos(), azimuths.sin()], -1) * elevations.cos()[:, None]
    eyes, up, target = torch.cat([flat, elevations.sin()[:, None]], -1) * 3, torch.tensor([0.0, 0, 1]), torch.zeros(3)
    poses = paths.look_at(eyes, target, torch.tensor([0.0, 1, 0])).numpy()
    found = paths.sway(paths.pinholes(poses, [0.7] * len(degrees), (64, 48)), target, up, 60)
    above = torch.rad2deg((found.positions[:, 2] / found.positions.norm(dim=-1)).asin())
    assert min(degrees) - 0.1 < above.min() and above.max() < max(degrees) + 0.1
    axes = found.camera_to_world[:, :, :3]
    assert (axes - axes.roll(1, 0)).flatten(1).norm(dim=1).max() < 0.5


def test_a_loop_comes_back_without_showing_its_first_frame_twice(path):
    path.loop = True
    assert path.seconds == 6 and path.n_frames == 60
    poses, fovs = path.at(np.array([0.0, 6.0]))
    assert np.allclose(poses[0], poses[1], atol=1e-6) and fovs[0] == pytest.approx(fovs[1])


@pytest.mark.parametrize("frame", [None, FRAME, replace(FRAME, center=UTM)])
def test_a_path_that_is_saved_is_loaded_and_rendered_the_same(path, tmp_path, frame):
    path.loop = True
    file = tmp_path / "path.json"
    file.write_text(path.to_json(frame))
    loaded = read_camera_path(file, frame, (8, 8))
    assert (loaded.loop, loaded.fps, loaded.size) == (True, 10, (64, 48))
    for ours, theirs in zip(path.keyframes, loaded.keyframes, strict=True):
        assert np.allclose(ours.pose, theirs.pose, rtol=0, atol=1e-5)
        assert (ours.fov, ours.seconds) == pytest.approx((theirs.fov, theirs.seconds))
    cameras = read_path(file, (8, 8), transform=frame)  # as `nerfkit render --cameras` reads it
    wanted = path.cameras()
    torch.testing.assert_close(cameras.camera_to_world, wanted.camera_to_world, rtol=0, atol=1e-5)
    torch.testing.assert_close(cameras.focal, wanted.focal)
    assert cameras.size() == (64, 48)


@pytest.mark.parametrize("fps", [29.97, 0.4])
def test_frames_of_a_file_without_keyframes_become_keyframes_as_many(tmp_path, fps: float):
    loaded = read_camera_path(write(tmp_path, nerfstudio(fps=fps)), None, (8, 8))
    assert [round(math.degrees(key.fov)) for key in loaded.keyframes] == [50, 60, 70]
    assert loaded.n_frames == 3 and loaded.fps == max(round(fps), 1)
    assert np.allclose(loaded.cameras().camera_to_world, [pose(eye) for eye in EYES], atol=1e-5)


def test_one_keyframe_is_one_frame_and_none_are_not_saved():
    single = CameraPath([Keyframe(pose(EYES[0]), 0.8)])
    assert single.n_frames == 1 and np.allclose(single.cameras().camera_to_world[0], pose(EYES[0]), atol=1e-6)
    with pytest.raises(SceneError, match="0 frames"):
        CameraPath().to_json(None)
