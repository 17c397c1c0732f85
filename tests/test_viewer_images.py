# SPDX-License-Identifier: Apache-2.0
"""What the viewer's images, videos and photos show, and a video that is asked for while a training goes on."""

import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import imageio.v3 as imageio
import matplotlib
import numpy as np
import pytest
import torch

from nerfkit.crop import Crop
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.images.pixels import image_header
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Views
from nerfkit.errors import UserError
from nerfkit.model.renderer import Renderer
from nerfkit.model.stages import Decoder
from nerfkit.rendering.camera_path import CameraPath, Keyframe
from nerfkit.rendering.images import colorize
from nerfkit.rendering.paths import pinholes
from nerfkit.training.run.folder import RunFolder
from nerfkit.viewer import frames, pacing
from nerfkit.viewer import viewer as viewer_module
from nerfkit.viewer.engine import Engine
from nerfkit.viewer.page import Page, ViewerOptions
from nerfkit.viewer.panels.path import PathFiles, VideoControls
from nerfkit.viewer.scene import ViewerScene, photos
from nerfkit.viewer.session import Session, State
from tests.camera_layouts import look_at
from tests.naming import raises_mentioning
from tests.posed_captures import LEFT, PINHOLE, capture_in, masks_in
from tests.viewing import FakeBrowser, new_training, vanish, wait_for

SIZE = (32, 24)


@pytest.fixture
def shown(small_config, monkeypatch, tmp_path) -> ViewerScene:
    """The toy scene with a field of fog, and nothing of the scene's folder yet."""
    monkeypatch.setattr(Decoder, "density_bias", 4.0)
    scene, folder = load_scene(small_config.data.path), RunFolder(tmp_path / "run")
    folder.claim()
    return ViewerScene(
        scene.name, small_config, Renderer(small_config), torch.ones(3), scene.split("train").cameras, scene.up,
        scene.transform, folder,
    )  # fmt: skip


@pytest.fixture
def session(shown) -> Session:
    """A browser of a viewer that draws nothing by itself, whose camera stands beside the scene."""
    engine = Engine(partial(frames.ModelFrame, shown), MagicMock(), MagicMock())
    camera = MagicMock(image_width=640, image_height=480, fov=0.7, wxyz=(1.0, 0, 0, 0), position=(0.0, 0, -2.5))
    session = Session(MagicMock(client_id=3, camera=camera), State(shown, engine, lambda do: do()))
    session.state.sessions[3] = session
    return session


@pytest.fixture
def video(session) -> VideoControls:
    """Of one camera that looks at the scene."""
    path = CameraPath([Keyframe(pose_of((2.5, 0.5, 1.0), (0.0, 0, 0)), 0.6)], fps=5, size=SIZE)
    panel = SimpleNamespace(path=path)
    panel.files = PathFiles(MagicMock(), session.state, panel)
    return VideoControls(MagicMock(), session.state, panel)


def sent(session: Session, video: VideoControls, *here: frames.Viewpoint) -> tuple[str, bytes]:
    """Name and content of the video, or of the image of a viewpoint, that the browser gets."""
    video._start(session, *here)
    while session.state.engine.jobs:
        session.state.engine.step()
    return session.client.send_file_download.call_args.args


def pose_of(eye, target) -> np.ndarray:
    return look_at(np.array([eye], dtype=np.float64), np.array([target], dtype=np.float64))[0]


def test_a_viewpoint_is_that_of_the_browser():
    pose = frames.viewpoint((1.0, 0, 0, 0), (1.0, 2, 3), 0.5).pose  # OpenCV axes along the world's
    assert pose == (1, 0, 0, 1, 0, -1, 0, 2, 0, 0, -1, 3)


def test_no_side_of_an_image_is_longer_than_the_limit(session):
    for limit, size in ((320, (320, 240)), (2048, (640, 480))):
        session.max_side = limit
        session.ask()
        assert session.state.engine.clients[3].request.size == size


def test_a_video_shows_the_crop_alone(session, video):
    """A crop that the camera does not see leaves the background; one around everything leaves it as it is."""
    means = []
    for crop in (None, Crop((-0.8,) * 3, (0.8,) * 3), Crop((5.0,) * 3, (6.0,) * 3)):
        session.state.crop = crop
        name, content = sent(session, video)
        (frame,) = imageio.imread(content, extension=".mp4")
        assert name.endswith(".mp4") and frame.shape == (SIZE[1], SIZE[0], 3)
        means.append(frame.mean())
    assert means[0] < 240 and means[1] == pytest.approx(means[0], abs=1) and means[2] > 253


@pytest.mark.parametrize("output", ["color", "error"])
def test_an_image_has_the_size_that_was_asked_for_and_shows_what_is_seen(shown, session, video, output):
    shown.add_images(shown.cameras)
    session.look = replace(session.look, output=output, split=0.5)
    video.panel.path.size = (50, 30)
    here = frames.viewpoint((1.0, 0, 0, 0), (0.0, 0, -2.5), 0.7)
    name, content = sent(session, video, here)
    frame = frames.ModelFrame(shown, here, 50, 30, session.shown_look())
    frame.render(0, frame.n_rays)
    assert name == f"still_{output}.png" and np.array_equal(imageio.imread(content), frame.finish())


def test_the_training_image_lies_on_the_rendering(shown):
    """At a training camera a split screen shows that image, whatever the field says of depths, and none behind it."""
    cameras, (width, height) = shown.cameras, shown.cameras.size(2)
    shown.add_images(cameras)
    here = frames.Viewpoint.of(cameras.camera_to_world[2].double().numpy(), frames.vertical_fov(cameras, 2))
    frame = frames.ModelFrame(shown, here, width, height, frames.Look(view=2, split=0.0))
    frame.render(0, frame.n_rays)
    row, column = np.mgrid[0:height, 0:width] + 0.5
    (across, down), (x, y) = cameras.focal[2].numpy(), cameras.center[2].numpy()
    x, y = (column - width / 2) / down * across + x, row - height / 2 + y
    seen = (x > 1) & (x < width - 1) & (y > 1) & (y < height - 1)
    wanted = shown.photo(2).numpy()[y.astype(int).clip(0, height - 1), x.astype(int).clip(0, width - 1)]
    assert seen.mean() > 0.4 and np.abs(frame.finish() / 255 - wanted)[seen].mean() < 0.06
    away = frames.Viewpoint.of(here.matrix * [-1, 1, -1, 1], here.fov)
    frame = frames.ModelFrame(shown, away, width, height, frames.Look(view=2, split=0.0))
    frame.render(0, frame.n_rays)
    assert (frame.finish()[:, 1:] == round(frames.NO_PHOTO * 255)).all()


def test_what_no_training_view_saw_fades_in_the_viewer(shown):
    """What the one training view shows is as it is rendered, nothing here; around it is gray in a wider image."""
    pose, images = pose_of((2.5, 0.5, 1.0), (5.0, 1, 2)), {}
    shown.cameras = pinholes([pose], [0.7], (64, 64))
    for fov in (0.7, 1.2):
        for fades in (False, True):
            frame = frames.ModelFrame(shown, frames.Viewpoint.of(pose, fov), 64, 64, frames.Look(fades=fades))
            frame.render(0, frame.n_rays)
            images[fov, fades] = frame.finish()
    assert np.array_equal(images[0.7, True], images[0.7, False])
    assert (images[1.2, True][20:44, 20:44] == 255).all()
    assert (images[1.2, True][0] == round(0.35 * 255)).all()


@pytest.mark.parametrize("name, level", [("of the run", 255), ("gray", 128), ("black", 0)])
def test_the_background_is_what_was_asked_for(shown, name, level):
    away = frames.ModelFrame(
        shown, frames.viewpoint((1.0, 0, 0, 0), (0.0, 0, 9.0), 0.7), 4, 4, frames.Look(background=name)
    )
    away.render(0, 16)
    assert (away.finish() == level).all()


def test_there_is_no_video_of_errors(session, video):
    session.look = replace(session.look, output="error")
    with raises_mentioning(UserError, "training image"):
        video._start(session)
    assert not session.state.engine.jobs


def test_the_nearest_training_view_looks_the_same_way():
    """One that stands a little farther off counts as nearer than one that looks elsewhere."""
    here = pose_of((2.0, 0, 0), (0.0, 0, 0))
    turned = pose_of((2.1, 0, 0), (4.0, 0, 0))
    alike = pose_of((2.5, 0, 0), (0.0, 0, 0))
    view, distance, angle = frames.nearest_view(here, np.stack([turned, alike]), 1.0)
    assert (view, distance) == (1, pytest.approx(0.5)) and angle == pytest.approx(0, abs=1e-3)
    view, distance, angle = frames.nearest_view(here, np.stack([turned, pose_of((9.0, 0, 0), (0.0, 0, 0))]), 1.0)
    assert (view, distance) == (0, pytest.approx(0.1)) and angle == pytest.approx(180)


def test_a_camera_of_pixels_that_are_no_squares_sees_as_wide_as_its_film():
    """HDV, 16:9 in 1440x1080 pixels."""
    cameras = pinholes([pose_of((2.0, 0, 0), (0.0, 0, 0))], [0.8], (1440, 1080))
    assert frames.aspect(cameras, 0) == pytest.approx(4 / 3)
    assert frames.aspect(replace(cameras, focal=cameras.focal * torch.tensor([0.75, 1])), 0) == pytest.approx(16 / 9)


def test_the_colors_of_depths_are_those_of_what_is_there():
    """Rays that meet nothing have depths, too, which say nothing."""
    depth, opacity = torch.linspace(2, 3, 64).repeat(2, 1), torch.ones(2, 64)
    depth[1], opacity[1] = torch.linspace(50, 90, 64), 0.1
    assert frames.depth_range(depth, opacity) == pytest.approx((2.02, 2.98), abs=0.01)
    assert frames.depth_range(depth, 0 * opacity) == (0.0, 1.0)
    wanted = matplotlib.colormaps["viridis"](((depth - 2) / 3).numpy())[..., :3]
    assert np.allclose(colorize(depth, 2.0, 5.0, "viridis"), wanted, atol=1e-6)


def test_a_scene_whose_cameras_have_moved_lends_a_run_no_photos(shown):
    given = shown.cameras
    poses = given.camera_to_world.clone()
    poses[-1, 0, 3] += 0.01
    with raises_mentioning(UserError, shown.config.data.path, "other training views"):
        shown.add_images(replace(given, camera_to_world=poses))
    assert shown.photo is None
    shown.add_images(given)
    assert shown.photo(0).shape == (given.size(0)[1], given.size(0)[0], 3)


def test_photos_are_cut_out_as_they_are_trained(tmp_path):
    images = capture_in(tmp_path, [PINHOLE] * 2).images
    masks_in(tmp_path, LEFT)
    poses = torch.tensor(np.stack([image.camera_to_world for image in images]), dtype=torch.float32)
    files = [image.file for image in images]
    masks = [tmp_path / "masks" / file.name for file in files]
    cameras = Cameras.from_lenses(poses, [PINHOLE] * 2)
    views = Views(cameras, files, [image_header(file) for file in files], masks, white_ignores=True, alpha_masks=True)
    background = torch.tensor([0.2, 0.4, 0.6])
    of_files = photos(lambda view: views[[view]].load().image(0), background)
    of_memory = photos(views.load().image, background)
    image, outside = of_files(1), torch.from_numpy(LEFT)
    assert torch.equal(image, of_memory(1))
    assert (image[outside] - background).abs().max() < 1e-6 < (image[~outside] - background).abs().max()


def test_a_video_beside_a_training_shows_one_step_of_it_and_outlives_its_browser(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(viewer_module, "FREE_AFTER", 0.1)
    monkeypatch.setattr(pacing, "LONGEST_TURN", 0.0)  # a busy machine would draw the whole video between two steps
    small_config.trainer.steps, page = 10**6, Page(ViewerOptions(port=0), "test")
    trainer, folder, viewer = new_training(small_config, tmp_path / "run", page)
    viewer.sharing.training, panel, rendered_at, end = 0.5, viewer.panels.path, [], time.monotonic() + 60
    browser = FakeBrowser(page.address, (64, 48))
    browser.send((2.5, 0.5, 1.0))
    wait_for(lambda: viewer.sessions)

    def after_step(trainer) -> None:
        if trainer.step == 5:  # at which the field changes much
            (session,) = viewer.sessions.values()
            key = Keyframe(session.viewpoint().matrix, session.viewpoint().fov, 1.0)
            panel.path.keyframes, panel.path.fps, panel.path.size = [key, key], 4, (64, 48)
            viewer.later(lambda: panel.video._start(session))
        if viewer.engine.jobs and panel.video.bar.value:
            rendered_at.append(trainer.step)
            if len(rendered_at) == 2:
                vanish(browser)

    trainer.on_step.append(after_step)
    trainer.train(folder, should_stop=lambda: (rendered_at and not viewer.awake) or time.monotonic() > end)
    assert not viewer.engine.jobs and panel.video.job is None and not panel.video.cancel.visible
    assert not viewer.sessions and time.monotonic() < end
    assert len(rendered_at) >= 3, "training goes on between frames"
    frames = imageio.imread(folder.path / "render/video_1/color.mp4").astype(int)
    assert len(frames) == 5 and frames[0].std() > 1
    assert np.abs(frames - frames[0]).mean() < 2, "the field of one step"
    (folder.path / "elsewhere").mkdir()
    (folder.path / "elsewhere" / "secret.mp4").touch()
    (folder.path / "render" / "link").symlink_to(folder.path / "elsewhere")
    panel.files._list()
    assert panel.files.listed.options == ("render/video_1/color.mp4",) and panel.files.use.visible
    page.stop()
