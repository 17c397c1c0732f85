# SPDX-License-Identifier: Apache-2.0
"""The tab Path: a camera path, edited, previewed, kept as a file that `nerfkit render` takes, rendered to a video."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nerfkit.viewer.panels.keyframes import KeyframesInScene
from nerfkit.viewer.panels.path_files import PathFiles
from nerfkit.viewer.panels.video import VideoControls
from nerfkit.viewer.path import LIMITS, MAX_KEYFRAMES, CameraPath, Keyframe

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.session import Session
    from nerfkit.viewer.state import State

PREVIEW_SECONDS = 1 / 30  # between two cameras of a preview
NONE = "none"


class PathPanel:
    """One path, which all clients see and may edit."""

    def __init__(self, server: viser.ViserServer, tab: viser.GuiTabHandle, state: State):
        self.state, self.path, self.chosen = state, CameraPath(), None
        self.playing: tuple[int, float | None] | None = None  # client, and when its preview began
        self._shown_at = -1e9
        size = float(np.linalg.norm(state.subject.box[1] - state.subject.box[0])) / 2
        self.in_scene = KeyframesInScene(server.scene, size, self.choose)
        with tab:
            self._add_keyframes(server.gui)
            self._add_path(server.gui)
            self.files = PathFiles(server.gui, state, self)
            self.video = VideoControls(server.gui, state, self)
        self.fill()

    def tick(self, now: float) -> None:
        """Move the camera of a preview."""
        if self.playing is None or now - self._shown_at < PREVIEW_SECONDS:
            return
        client, began = self.playing
        session, path = self.state.sessions.get(client), self.path.copy()
        began = now if began is None else began
        elapsed = now - began
        if session is None or len(path.keyframes) < 2 or (elapsed > path.seconds and not path.loop):
            self.playing = None
            return
        self.playing, self._shown_at = (client, began), now
        poses, fovs = path.at(np.array([elapsed % max(path.seconds, 1e-9)]))
        session.go(poses[0], float(fovs[0]))

    def replace(self, path: CameraPath) -> None:
        """Edit another path."""
        self.path, self.chosen, self.playing = path, 0 if path.keyframes else None, None
        self.fill()

    def choose(self, index: int | None) -> None:
        """Choose a keyframe."""
        self.chosen = index
        self.fill()

    def fill(self) -> None:
        """Show the path in the fields and in the scene."""
        keys, chosen = self.path.keyframes, self.chosen
        self.which.options = tuple(str(i) for i in range(len(keys))) or (NONE,)
        self.which.value = NONE if chosen is None else str(chosen)
        key = None if chosen is None else keys[chosen]
        for handle in (self.fov, self.seconds):
            handle.disabled = key is None
        if key is not None:
            self.fov.value, self.seconds.value = round(math.degrees(key.fov), 2), round(key.seconds, 3)
        self.loop.value, self.fps.value = self.path.loop, self.path.fps
        self.width.value, self.height.value = self.path.size
        self.text.content = f"{len(keys)} keyframes, {self.path.seconds:.1f} s, {self.path.n_frames} frames"
        self.in_scene.draw(self.path, chosen)

    def _add_keyframes(self, gui: viser.GuiApi) -> None:
        add = gui.add_button("Add this view", hint="Behind the keyframe that is chosen")
        self.which = gui.add_dropdown("Keyframe", (NONE,))
        self.actions = gui.add_button_group("", ("Go", "Replace", "Earlier", "Later", "Delete"))
        self.fov = gui.add_number("Field of view", 50.0, min=1.0, max=170.0, step=0.5, hint="Vertical, in degrees")
        self.seconds = gui.add_number("Seconds to next", 2.0, min=LIMITS[0], max=LIMITS[1], step=0.1)
        self.text = gui.add_markdown("")

        async def added(event: Any) -> None:
            session = self.state.sessions.get(event.client_id)
            if session is not None and len(self.path.keyframes) < MAX_KEYFRAMES:
                at = len(self.path.keyframes) if self.chosen is None else self.chosen + 1
                self.path.keyframes.insert(at, view_of(session))
                self.choose(at)

        async def acted(event: Any) -> None:
            session = self.state.sessions.get(event.client_id)
            if session is not None and self.chosen is not None:
                self._act(self.actions.value, session)

        async def chose(event: Any) -> None:
            if event.client is not None and self.which.value != NONE:  # else it was set by `fill`
                self.choose(int(self.which.value))

        async def typed(event: Any) -> None:
            if event.client is not None and self.chosen is not None:
                key = self.path.keyframes[self.chosen]
                key.fov, key.seconds = math.radians(self.fov.value), float(self.seconds.value)
                self.fill()

        add.on_click(added)
        self.actions.on_click(acted)
        self.which.on_update(chose)
        self.fov.on_update(typed)
        self.seconds.on_update(typed)

    def _act(self, action: str, session: Session) -> None:
        """Do something with the keyframe that is chosen."""
        keys, at = self.path.keyframes, self.chosen
        if action == "Go":
            return session.go(keys[at].pose, keys[at].fov)
        if action == "Replace":
            keys[at] = view_of(session, keys[at].seconds)
        elif action == "Delete":
            del keys[at]
            at = min(at, len(keys) - 1) if keys else None
        else:
            to = min(max(at + (1 if action == "Later" else -1), 0), len(keys) - 1)
            keys.insert(to, keys.pop(at))
            at = to
        self.choose(at)

    def _add_path(self, gui: viser.GuiApi) -> None:
        self.loop = gui.add_checkbox("Loop", False, hint="From the last keyframe back to the first")
        self.fps = gui.add_number("Frames a second", 30, min=1, max=120, step=1)
        self.width = gui.add_number("Width", 1280, min=16, max=8192, step=2)
        self.height = gui.add_number("Height", 720, min=16, max=8192, step=2)
        play = gui.add_button_group("Preview", ("Play", "Stop"))

        async def typed(event: Any) -> None:
            if event.client is not None:
                self.path.loop, self.path.fps = bool(self.loop.value), int(self.fps.value)
                self.path.size = int(self.width.value), int(self.height.value)
                self.fill()

        async def played(event: Any) -> None:
            self.playing = (event.client_id, None) if play.value == "Play" else None
            self.state.engine.wake()

        for handle in (self.loop, self.fps, self.width, self.height):
            handle.on_update(typed)
        play.on_click(played)


def view_of(session: Session, seconds: float | None = None) -> Keyframe:
    """A keyframe where a client's camera is."""
    here = session.viewpoint()
    pose = np.array(here.pose).reshape(3, 4)
    return Keyframe(pose, here.fov) if seconds is None else Keyframe(pose, here.fov, seconds)
