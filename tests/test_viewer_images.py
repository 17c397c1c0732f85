# SPDX-License-Identifier: Apache-2.0
"""What the viewer's images, videos and photos show, and a video that is asked for while a training goes on."""

import os
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

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("viser", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")

from nerfkit.crop import Crop
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.images.pixels import image_header
from nerfkit.data.load import load_scene
from nerfkit.data.scene import Views
from nerfkit.errors import UserError
from nerfkit.model.renderer import Renderer
from nerfkit.model.stages import Decoder
from nerfkit.rendering.images import colorize
from nerfkit.rendering.paths import CameraPath, Keyframe, pinholes
from nerfkit.viewer import viewer as viewer_module
from nerfkit.viewer.engine import Engine
from nerfkit.viewer.frames import Look, ModelFrame, Viewpoint, depth_range, nearest_view, viewpoint
from nerfkit.viewer.page import Page, ViewerOptions
from nerfkit.viewer.panels.path import PathFiles, VideoControls
from nerfkit.viewer.scene import ViewerScene, photos
from nerfkit.viewer.session import Session, State
from scripts.bench_viewer import FakeBrowser
from tests.camera_layouts import look_at
from tests.naming import raises_mentioning
from tests.posed_captures import LEFT, PINHOLE, capture_in, masks_in
from tests.viewing import new_training, vanish, wait_for

SIZE = (32, 24)


@pytest.fixture
def shown(small_config, monkeypatch) -> ViewerScene:
    """The toy scene with a field of fog, and nothing of the scene's folder yet."""
    monkeypatch.setattr(Decoder, "density_bias", 4.0)
    scene = load_scene(small_config.data.path)
    return ViewerScene(
        scene.name, small_config, Renderer(small_config), torch.ones(3), scene.split("train").cameras, scene.up,
        scene.transform, None,
    )  # fmt: skip


@pytest.fixture
def session(shown) -> Session:
    """A browser of a viewer that draws nothing by itself, whose camera stands beside the scene."""
    engine = Engine(partial(ModelFrame, shown), MagicMock(), MagicMock())
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


def pose_of(eye, target) -> np.ndarray:
    return look_at(np.array([eye], dtype=np.float64), np.array([target], dtype=np.float64))[0]


def test_a_viewpoint_is_that_of_the_browser():
    pose = viewpoint((1.0, 0, 0, 0), (1.0, 2, 3), 0.5).pose  # OpenCV axes along the world's
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
        video._start(session)
        while session.state.engine.jobs:
            session.state.engine.step()
        name, content = session.client.send_file_download.call_args.args
        (frame,) = imageio.imread(content, extension=".mp4")
        assert name.endswith(".mp4") and frame.shape == (SIZE[1], SIZE[0], 3)
        means.append(frame.mean())
    assert means[0] < 240 and means[1] == pytest.approx(means[0], abs=1) and means[2] > 253


@pytest.mark.parametrize("output", ["color", "error"])
def test_an_image_has_the_size_that_was_asked_for_and_shows_what_is_seen(shown, session, video, output):
    shown.add_images(shown.cameras)
    session.look = replace(session.look, output=output, split=0.5)
    video.panel.path.size = (50, 30)
    here = viewpoint((1.0, 0, 0, 0), (0.0, 0, -2.5), 0.7)
    video._start(session, here)
    while session.state.engine.jobs:
        session.state.engine.step()
    name, content = session.client.send_file_download.call_args.args
    frame = ModelFrame(shown, here, 50, 30, session.shown_look())
    frame.render(0, frame.n_rays)
    assert name == f"still_{output}.png" and np.array_equal(imageio.imread(content), frame.finish())


def test_what_no_training_view_saw_fades_in_the_viewer(shown):
    """What the one training view shows is as it is rendered, nothing here; around it is gray in a wider image."""
    pose, images = pose_of((2.5, 0.5, 1.0), (5.0, 1, 2)), {}
    shown.cameras = pinholes([pose], [0.7], (64, 64))
    for fov in (0.7, 1.2):
        for fades in (False, True):
            frame = ModelFrame(shown, Viewpoint.of(pose, fov), 64, 64, Look(fades=fades))
            frame.render(0, frame.n_rays)
            images[fov, fades] = frame.finish()
    assert np.array_equal(images[0.7, True], images[0.7, False])
    assert (images[1.2, True][20:44, 20:44] == 255).all()
    assert (images[1.2, True][0] == round(0.35 * 255)).all()


@pytest.mark.parametrize("name, level", [("of the run", 255), ("gray", 128), ("black", 0)])
def test_the_background_is_what_was_asked_for(shown, name, level):
    away = ModelFrame(shown, viewpoint((1.0, 0, 0, 0), (0.0, 0, 9.0), 0.7), 4, 4, Look(background=name))
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
    view, distance, angle = nearest_view(here, np.stack([turned, alike]), 1.0)
    assert (view, distance) == (1, pytest.approx(0.5)) and angle == pytest.approx(0, abs=1e-3)
    view, distance, angle = nearest_view(here, np.stack([turned, pose_of((9.0, 0, 0), (0.0, 0, 0))]), 1.0)
    assert (view, distance) == (0, pytest.approx(0.1)) and angle == pytest.approx(180)


def test_the_colors_of_depths_are_those_of_what_is_there():
    """Rays that meet nothing have depths, too, which say nothing."""
    depth, opacity = torch.linspace(2, 3, 64).repeat(2, 1), torch.ones(2, 64)
    depth[1], opacity[1] = torch.linspace(50, 90, 64), 0.1
    assert depth_range(depth, opacity) == pytest.approx((2.02, 2.98), abs=0.01)
    assert depth_range(depth, 0 * opacity) == (0.0, 1.0)
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
    """From files as from memory."""
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


# ---- a video beside a training


class Watched:
    """A training without an end, a viewer of it, and a browser that asks for a video of a camera that stands still."""

    def __init__(self, config, out, seconds: float):
        config.trainer.steps = 10**6
        self.page = Page(ViewerOptions(port=0), "test")
        self.trainer, self.folder, self.viewer = new_training(config, out, self.page)
        self.viewer.sharing.training, self.seconds = 0.5, seconds
        self.rendered_at = []  # steps before which a frame of the video was rendered
        self.video = self.viewer.panels.path.video
        self.trainer.on_step.append(self._after_step)
        self.browser = FakeBrowser(self.page.address, (64, 48))
        self.browser.send((2.5, 0.5, 1.0))
        wait_for(lambda: self.viewer.sessions)

    def _after_step(self, trainer) -> None:
        if trainer.step == 5:  # at which the field changes much
            (session,) = self.viewer.sessions.values()
            here, path = session.viewpoint(), self.viewer.panels.path.path
            key = Keyframe(here.matrix, here.fov, self.seconds)
            path.keyframes, path.fps, path.size = [key, key], 4, (64, 48)
            self.viewer.later(lambda: self.video._start(session))
        if self.viewer.engine.jobs and self.video.bar.value:
            self.rendered_at.append(trainer.step)

    def train(self, until) -> None:
        """Train until something is so, for a minute at most."""
        end = time.monotonic() + 60
        self.trainer.train(self.folder, should_stop=lambda: until() or time.monotonic() > end)
        assert until()


@pytest.fixture
def watched(small_config, tmp_path):
    """Starts one, with a video of some seconds."""
    started = []
    yield lambda seconds: started.append(Watched(small_config, tmp_path / "run", seconds)) or started[0]
    started[0].page.stop()


def test_a_video_is_rendered_beside_the_training_and_shows_one_step_of_it(watched):
    run = watched(seconds=1.0)
    run.train(lambda: run.video.job is None and run.rendered_at)
    start = wait_for(lambda: of_type(run, "FileTransferStartDownload"))[0]
    parts = wait_for(lambda: len(found := of_type(run, "FileTransferPart")) == start["part_count"] and found)
    assert len(run.rendered_at) >= 3, "training goes on between frames"
    frames = imageio.imread(b"".join(part["content"] for part in parts), extension=".mp4").astype(int)
    assert len(frames) == 5 and frames[0].std() > 1
    assert np.abs(frames - frames[0]).mean() < 2, "the field of one step"
    run.browser.close()


def of_type(run: Watched, kind: str) -> list[dict]:
    return [message for message in run.browser.messages if message["type"] == kind]


def test_a_video_outlives_its_browser_and_is_kept_and_the_training_forgets_it(watched, monkeypatch):
    monkeypatch.setattr(viewer_module, "FREE_AFTER", 0.1)
    run = watched(seconds=1.0)

    def is_over() -> bool:
        if len(run.rendered_at) == 2:
            vanish(run.browser)
        return bool(run.rendered_at) and not run.viewer.awake

    run.train(is_over)
    assert not run.viewer.engine.jobs and run.video.job is None and not run.video.cancel.visible
    assert len(imageio.imread(run.folder.path / "render/video_1/color.mp4")) == 5
    (run.folder.path / "elsewhere").mkdir()
    (run.folder.path / "elsewhere" / "secret.mp4").touch()
    (run.folder.path / "render" / "link").symlink_to(run.folder.path / "elsewhere")
    files = run.viewer.panels.path.files
    files._list()
    assert files.listed.options == ("render/video_1/color.mp4",) and files.use.visible
