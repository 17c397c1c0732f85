# SPDX-License-Identifier: Apache-2.0
"""A video that a browser asks for while a training goes on."""

import os
import time
from contextlib import contextmanager

import imageio.v3 as imageio
import numpy as np
import pytest

if os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.importorskip("viser", reason="the viewer is not tested: pip install nerfkit[viewer,viewer-test]")

from nerfkit.rendering.paths import Keyframe
from nerfkit.viewer import viewer as viewer_module
from nerfkit.viewer.page import Page, ViewerOptions
from nerfkit.viewer.panels import path as path_module
from scripts.bench_viewer import FakeBrowser
from tests.viewing import new_training, vanish, wait_for

SIZE = (64, 48)
ASKED_AT = 5  # step, at which the field changes much


class Watched:
    """A training without an end, a viewer of it, a browser, and its video of a camera that stands still."""

    def __init__(self, config, out, page: Page, seconds: float):
        config.trainer.steps = 10**6
        self.trainer, self.folder, self.viewer = new_training(config, out, page)
        self.viewer.sharing.training = 0.5
        self.seconds, self.stops = seconds, []  # of the video; of the training for the viewer
        self.frames, self.is_closed = [], False  # of the video, at which steps; whether its file is
        self.trainer.on_step = [self._timed]
        self.browser = FakeBrowser(page.address, SIZE)
        self.browser.send((2.5, 0.5, 1.0))
        wait_for(lambda: self.viewer.sessions)

    def train(self, until) -> None:
        """Train until something is so, for a minute at most."""
        end = time.monotonic() + 60
        self.trainer.train(self.folder, should_stop=lambda: until() or time.monotonic() > end)
        assert until()

    @contextmanager
    def writer(self, *arguments):
        try:
            with video_writer(*arguments) as add:
                yield lambda image: self.frames.append(self.trainer.step) or add(image)
        finally:
            self.is_closed = True

    def _timed(self, trainer) -> None:
        if trainer.step == ASKED_AT:
            (session,) = self.viewer.sessions.values()
            here, panel = session.viewpoint(), self.viewer.panels.path
            key = Keyframe(here.matrix, here.fov, self.seconds)
            panel.path.keyframes, panel.path.fps, panel.path.size = [key, key], 4, SIZE
            self.viewer.later(lambda: panel.video._start(session))
        began = time.monotonic()
        self.viewer.after_step(trainer)
        self.stops.append(time.monotonic() - began)


video_writer = path_module.video_writer


@pytest.fixture
def watched(small_config, tmp_path, monkeypatch):
    """Starts one, with a video of some seconds."""
    page = Page(ViewerOptions(port=0), "test")

    def start(seconds: float) -> Watched:
        watched = Watched(small_config, tmp_path / "run", page, seconds)
        monkeypatch.setattr(path_module, "video_writer", watched.writer)
        return watched

    yield start
    page.stop()


def test_a_video_is_rendered_beside_the_training_and_shows_one_step_of_it(watched):
    run = watched(seconds=1.0)
    run.train(lambda: run.viewer.panels.path.video.client is None and run.frames)
    start = wait_for(lambda: of_type(run, "FileTransferStartDownload"))[0]
    parts = wait_for(lambda: len(found := of_type(run, "FileTransferPart")) == start["part_count"] and found)
    assert len(set(run.frames)) >= 3, "training goes on between frames"
    assert max(run.stops[ASKED_AT:]) < 2, "of which a probe of ffmpeg, and pictures of half a second"
    frames = imageio.imread(b"".join(part["content"] for part in parts), extension=".mp4").astype(int)
    assert len(frames) == len(run.frames) and frames[0].std() > 1
    assert np.abs(frames - frames[0]).mean() < 2, "the field of one step"
    run.browser.close()


def of_type(run: Watched, kind: str) -> list[dict]:
    return [message for message in run.browser.messages if message["type"] == kind]


def test_a_browser_that_vanishes_takes_its_video_with_it_and_the_training_forgets_it(watched, monkeypatch):
    monkeypatch.setattr(viewer_module, "FREE_AFTER", 0.1)
    run = watched(seconds=100.0)

    def is_over() -> bool:
        if len(run.frames) == 2:
            vanish(run.browser)
        return bool(run.frames) and not run.viewer.awake

    run.train(is_over)
    video = run.viewer.panels.path.video
    assert run.is_closed and not run.viewer.engine.jobs and video.client is None and not video.cancel.visible
