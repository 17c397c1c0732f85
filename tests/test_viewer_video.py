# SPDX-License-Identifier: Apache-2.0
"""A video that a browser asks for while a training goes on."""

import os
import socket
import time
from contextlib import contextmanager, suppress

import imageio.v3 as imageio
import numpy as np
import pytest

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("viser", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")

from nerfkit.data.load import load_scene
from nerfkit.training.run.folder import RunFolder, describe
from nerfkit.training.trainer import Trainer
from nerfkit.viewer import viewer as viewer_module
from nerfkit.viewer.page import Page, ViewerOptions
from nerfkit.viewer.panels import path as path_module
from nerfkit.viewer.path import Keyframe
from nerfkit.viewer.scene import ViewerScene
from nerfkit.viewer.viewer import TrainingViewer
from scripts.bench_viewer import FakeBrowser
from tests.viewing import wait_for

SIZE = (64, 48)
ASKED_AT = 5  # step, at which the field changes much


class Watched:
    """A training without an end, a viewer of it, a browser, and its video of a camera that stands still."""

    def __init__(self, config, out, page: Page, seconds: float):
        config.trainer.steps = 10**6
        scene = load_scene(config.data.path)
        images = scene.split("train").load()
        self.trainer = Trainer(config, scene.split("train").cameras, images, device="cpu")
        self.folder = RunFolder.for_new_run(out)
        self.folder.start(config, describe(scene))
        shown = ViewerScene.from_training(config, self.trainer.model, self.trainer.device, scene, images, self.folder)
        self.viewer = TrainingViewer(shown, page)
        self.viewer.attach(self.trainer)
        self.viewer.sharing.training = 0.5
        self.seconds, self.stops, self.steps = seconds, [], []  # of the video; for the viewer; with a frame
        self.trainer.on_step = [self._timed]
        self.browser = FakeBrowser(page.address, SIZE)
        self.browser.send((2.5, 0.5, 1.0))
        wait_for(lambda: self.viewer.sessions)

    def train(self, until) -> None:
        """Train until something is so, for a minute at most."""
        end = time.monotonic() + 60
        self.trainer.train(self.folder, should_stop=lambda: until() or time.monotonic() > end)
        assert until()

    def _timed(self, trainer) -> None:
        if trainer.step == ASKED_AT:
            self._ask()
        began = time.monotonic()
        self.viewer.after_step(trainer)
        self.stops.append(time.monotonic() - began)

    def _ask(self) -> None:
        (session,) = self.viewer.sessions.values()
        here, panel = session.viewpoint(), self.viewer.panels.path
        key = Keyframe(np.array(here.pose).reshape(3, 4), here.fov, self.seconds)
        panel.path.keyframes, panel.path.fps, panel.path.size = [key, key], 4, SIZE
        panel.video._report = lambda share: self.steps.append(self.trainer.step)
        self.viewer.later(lambda: panel.video._start(session))


@contextmanager
def watched(config, out, seconds: float):
    page = Page(ViewerOptions(port=0), "test")
    try:
        watched = Watched(config, out, page, seconds)
        yield watched
        watched.browser.close()
        watched.viewer.drop_jobs()
    finally:
        page.stop()


def test_a_video_is_rendered_beside_the_training_and_shows_one_step_of_it(small_config, tmp_path):
    with watched(small_config, tmp_path / "run", seconds=1.0) as run:
        messages = run.browser.messages
        run.train(lambda: run.viewer.panels.path.video.client is None and run.steps)
        start = wait_for(lambda: next((m for m in messages if m["type"] == "FileTransferStartDownload"), None))
        parts = [m["content"] for m in wait_for(lambda: of_all(messages, start["part_count"]))]
    assert len(set(run.steps)) >= 3, "training goes on between frames"
    assert max(run.stops[ASKED_AT:]) < 2, "of which a probe of ffmpeg, and pictures of half a second"
    frames = imageio.imread(b"".join(parts), extension=".mp4").astype(int)
    assert len(frames) == len(run.steps) and frames[0].std() > 1
    assert np.abs(frames - frames[0]).mean() < 2, "the field of one step"


def of_all(messages, n_parts: int) -> list:
    parts = [message for message in messages if message["type"] == "FileTransferPart"]
    return parts if len(parts) == n_parts else []


def test_a_browser_that_vanishes_takes_its_video_with_it_and_the_training_forgets_it(
    small_config, tmp_path, monkeypatch
):
    monkeypatch.setattr(viewer_module, "FREE_AFTER", 0.1)
    closed = []

    writing = path_module.video_writer

    @contextmanager
    def writer(*arguments):
        try:
            with writing(*arguments) as add:
                yield add
        finally:
            closed.append(True)

    monkeypatch.setattr(path_module, "video_writer", writer)
    with watched(small_config, tmp_path / "run", seconds=100.0) as run:
        video = run.viewer.panels.path.video

        def is_over() -> bool:
            if len(run.steps) == 2:
                with suppress(OSError):  # it has been done
                    run.browser.connection.socket.shutdown(socket.SHUT_RDWR)  # without a word
            return bool(run.steps) and not run.viewer.awake

        run.train(is_over)
        assert closed and not run.viewer.engine.jobs and video.client is None and not video.cancel.visible
