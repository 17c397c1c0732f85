# SPDX-License-Identifier: Apache-2.0
"""A video of the path: its start, progress and download."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nerfkit.errors import UserError
from nerfkit.rendering.video import probe_video
from nerfkit.viewer.panels.look import COMPARING
from nerfkit.viewer.panels.path_files import Editor
from nerfkit.viewer.path import MAX_FRAMES
from nerfkit.viewer.picture import ModelPictures
from nerfkit.viewer.video import render_video

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.session import Session
    from nerfkit.viewer.state import State

NAME = "nerfkit.mp4"


class VideoControls:
    """Renders the path of a panel to an MP4, one at a time, for the client that asked."""

    def __init__(self, gui: viser.GuiApi, state: State, panel: Editor):
        self.state, self.panel = state, panel
        self.client: int | None = None  # for whom one is rendered
        self.job: Any = None  # of the engine
        self.start = gui.add_button("Render video", hint="With the output and crop that you see now")
        self.bar = gui.add_progress_bar(0.0, visible=False)
        self.cancel = gui.add_button("Cancel", visible=False)

        async def started(event: Any) -> None:
            session = state.sessions.get(event.client_id)
            if session is not None:
                state.later(lambda: self._start(session))

        async def cancelled(event: Any) -> None:
            state.later(self._stop)

        self.start.on_click(started)
        self.cancel.on_click(cancelled)

    def left(self, client: int) -> None:
        """A client has left; called in any thread."""
        if client == self.client:
            self.state.later(self._stop)

    def _stop(self) -> None:
        if self.job is not None:
            self.state.engine.drop_job(self.job)
            self._rest()

    def _start(self, session: Session) -> None:
        try:
            self.job = self._job(session)
        except UserError as error:
            return session.tell("No video", str(error))
        self.client = session.client.client_id
        self.bar.value, self.bar.visible, self.cancel.visible, self.start.visible = 0.0, True, True, False
        self.state.engine.add_job(self.job)
        if self.client not in self.state.sessions:  # it has left meanwhile
            self._stop()

    def _job(self, session: Session) -> Any:
        path = self.panel.path.copy()
        if self.client is not None:
            raise UserError("another video is being rendered; wait for it, or cancel it")
        if not path.keyframes or not 0 < path.n_frames <= MAX_FRAMES:
            raise UserError(f"the path has {path.n_frames} frames; add views to it, {MAX_FRAMES} frames at most")
        if session.look.output == COMPARING:
            raise UserError("errors are against a training image, of which a path has none; choose another output")
        if why := probe_video():
            raise UserError(f"videos cannot be written here ({why})")
        look = replace(session.look, crop=self.state.crop, split=None, view=None)
        engine = self.state.engine
        return self._until_done(
            render_video(
                path, self._pictures(), look, lambda: engine.chunk.rays, self._report,
                lambda content: session.client.send_file_download(NAME, content),
            )
        )  # fmt: skip

    def _pictures(self) -> ModelPictures:
        """Of the model as it is now: training goes on while a frame is drawn."""
        subject = self.state.subject
        model = subject.model if self.state.training is None else deepcopy(subject.model)
        return ModelPictures(model, subject.background)

    def _until_done(self, job: Iterator[None]) -> Iterator[None]:
        """The job, after which the controls are as before, however it ends."""
        try:
            yield from job
        finally:
            self._rest()

    def _rest(self) -> None:
        """Nothing is rendered."""
        self.client = self.job = None
        self.bar.visible, self.cancel.visible, self.start.visible = False, False, True

    def _report(self, share: float) -> None:
        self.bar.value = 100 * share
