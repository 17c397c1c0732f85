# SPDX-License-Identifier: Apache-2.0
"""The tab Path: a camera path, edited, previewed, kept as a file that `nerfkit render` takes, rendered to a video."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import viser

from nerfkit.errors import UserError
from nerfkit.reading import typed
from nerfkit.rendering.images import probe_video, video_writer
from nerfkit.rendering.paths import LIMITS, MAX_FRAMES, CameraPath, Keyframe, read_camera_path
from nerfkit.training.run.files import PATHS
from nerfkit.viewer.frames import COMPARING, Look, ModelFrame, Viewpoint, in_browser
from nerfkit.viewer.limits import within_limits
from nerfkit.viewer.scene import ViewerScene
from nerfkit.viewer.session import Session, State

COLOR, CHOSEN = (230, 120, 20), (220, 30, 30)
CURVE_POINTS = 200
PREVIEW_SECONDS = 1 / 30  # between two cameras of a preview
NONE, NOTHING = "none", "no file"
VIDEO = "nerfkit.mp4"


class PathPanel:
    """One path, which all clients see and may edit."""

    def __init__(self, server: viser.ViserServer, tab: viser.GuiTabHandle, state: State, size: float):
        self.state, self.path, self.size = state, CameraPath(), size  # of a keyframe in the scene
        self.playing: tuple[int, float | None] | None = None  # client, and when its preview began
        self._shown_at = -1e9
        self._scene, self._drawn = server.scene, []
        self._lock = threading.Lock()  # clicks come in another thread than files
        server.scene.add_frame("/path", show_axes=False)
        with tab:
            self._add_keyframes(server.gui)
            self._add_path(server.gui)
            self.files = PathFiles(server.gui, state, self)
            self.video = VideoControls(server.gui, state, self)
        self.fill()

    def tick(self, now: float) -> None:
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

    @property
    def chosen(self) -> int:
        """The number of the keyframe that is chosen; -1 where there is none."""
        return -1 if self.which.value == NONE else int(self.which.value)

    def fill(self, chosen: int | None = None) -> None:
        """Show the path, and a keyframe as chosen: a click may come after it has gone."""
        keys = self.path.keyframes
        chosen = min(self.chosen if chosen is None else chosen, len(keys) - 1)
        self.which.options = tuple(map(str, range(len(keys)))) or (NONE,)
        self.fov.disabled = self.seconds.disabled = not keys
        if keys:
            self.which.value = str(max(chosen, 0))
            self.fov.value = round(math.degrees(keys[chosen].fov), 2)
            self.seconds.value = round(keys[chosen].seconds, 3)
        self.loop.value, self.fps.value = self.path.loop, self.path.fps
        self.width.value, self.height.value = self.path.size
        self.text.content = f"{len(keys)} keyframes, {self.path.seconds:.1f} s, {self.path.n_frames} frames"
        with self._lock:
            for handle in self._drawn:
                handle.remove()
            self._drawn = self._draw(self.path)

    def _draw(self, path: CameraPath) -> list[Any]:
        """A frustum for each keyframe, a click on which chooses it, and the way between them."""
        drawn = []
        for index, key in enumerate(path.keyframes):
            wxyz, position = in_browser(key.pose)
            frustum = self._scene.add_camera_frustum(
                f"/path/{index}", key.fov, path.size[0] / path.size[1], scale=self.size,
                thickness=2.0, thickness_units="screen", color=CHOSEN if index == self.chosen else COLOR, wxyz=wxyz,
                position=position, cast_shadow=False, receive_shadow=False,
            )  # fmt: skip
            self.state.on(lambda session, index=index: self.fill(index), frustum.on_click)
            drawn.append(frustum)
        if len(drawn) > 1:
            positions = path.at(np.linspace(0, path.seconds, CURVE_POINTS))[0][:, :, 3]  # [P, 3]
            points = np.stack([positions[:-1], positions[1:]], axis=1).astype(np.float32)
            drawn.append(
                self._scene.add_line_segments("/path/curve", points, COLOR, thickness=3.0, thickness_units="screen")
            )
        return drawn

    def _add_keyframes(self, gui: viser.GuiApi) -> None:
        add = gui.add_button("Add this view", hint="Behind the keyframe that is chosen")
        self.which = gui.add_dropdown("Keyframe", (NONE,))
        actions = gui.add_button_group("", ("Go", "Replace", "Earlier", "Later", "Delete"))
        self.fov = gui.add_number("Field of view", 50.0, min=1.0, max=170.0, step=0.5, hint="Vertical, in degrees")
        self.seconds = gui.add_number("Seconds to next", 2.0, min=LIMITS[0], max=LIMITS[1], step=0.1)
        self.text = gui.add_markdown("")

        def changed(session: Session) -> None:
            if self.path.keyframes:
                key = self.path.keyframes[self.chosen]
                key.fov, key.seconds = math.radians(self.fov.value), float(self.seconds.value)
                self.fill()

        self.state.on(lambda session: self._act("Add", session), add.on_click)
        self.state.on(lambda session: self._act(actions.value, session), actions.on_click)
        self.state.on(lambda session: self.fill(), self.which.on_update)
        self.state.on(changed, self.fov.on_update, self.seconds.on_update)

    def _act(self, action: str, session: Session) -> None:
        keys, at, here = self.path.keyframes, self.chosen, session.viewpoint()
        if action == "Add":
            at += 1
            keys.insert(at, Keyframe(here.matrix, here.fov))
        elif not keys:
            return
        elif action == "Go":
            session.go(keys[at].pose, keys[at].fov)
        elif action == "Replace":
            keys[at] = Keyframe(here.matrix, here.fov, keys[at].seconds)
        elif action == "Delete":
            del keys[at]
        else:
            key, at = keys.pop(at), max(at + (1 if action == "Later" else -1), 0)
            keys.insert(at, key)
        self.fill(at)

    def _add_path(self, gui: viser.GuiApi) -> None:
        self.loop = gui.add_checkbox("Loop", False, hint="From the last keyframe back to the first")
        self.fps = gui.add_number("Frames a second", 30, min=1, max=120, step=1)
        self.width = gui.add_number("Width", 1280, min=16, max=8192, step=2)
        self.height = gui.add_number("Height", 720, min=16, max=8192, step=2)
        play = gui.add_button_group("Preview", ("Play", "Stop"))

        def changed(session: Session) -> None:
            self.path.loop, self.path.fps = bool(self.loop.value), int(self.fps.value)
            self.path.size = int(self.width.value), int(self.height.value)
            self.fill()

        def played(session: Session) -> None:
            self.playing = (session.client.client_id, None) if play.value == "Play" else None
            self.state.engine.wake()

        self.state.on(changed, *(field.on_update for field in (self.loop, self.fps, self.width, self.height)))
        self.state.on(played, play.on_click)


class PathFiles:
    """The path of a panel in files, which the thread that renders writes and reads: kept in the run folder, downloaded,
    uploaded; a view as a command."""

    def __init__(self, gui: viser.GuiApi, state: State, panel: PathPanel):
        self.state, self.panel = state, panel
        with gui.add_folder("Files", expand_by_default=False):
            save = gui.add_button_group("Path", ("Save", "Download"), hint="Save: into the run folder")
            self.listed = gui.add_dropdown("Kept", (NOTHING,))
            load = gui.add_button("Load", hint="The file that is chosen above")
            upload = gui.add_upload_button(
                "Upload", mime_type="application/json", hint="A path of nerfkit or nerfstudio"
            )
        command = gui.add_button(
            "Copy this view as a command", hint="To render it again, from a file in the run folder"
        )
        self._list()

        def saved(session: Session) -> None:
            do = self._save if save.value == "Save" else self._download
            state.do_later(session, do, panel.path.copy())

        state.on(saved, save.on_click)
        state.on(lambda session: state.do_later(session, self._load), load.on_click)
        state.on(lambda session: state.do_later(session, self._upload, upload.value.content), upload.on_upload)
        state.on(lambda session: state.do_later(session, self._command), command.on_click)

    def keep(self, stem: str, path: CameraPath) -> Path:
        """Write a path into the run folder under a name that is free."""
        folder = self.state.scene.folder
        if folder is None:
            raise UserError("there is no run folder to keep a path in")
        kept = folder.child(PATHS, "paths")
        number = next(i for i in range(1, 10**6) if not (kept.path / f"{stem}_{i}.json").exists())
        name = f"{stem}_{number}.json"
        kept.write(name, path.to_json(self.state.scene.frame))
        self._list()
        return kept.path / name

    def _save(self, session: Session, path: CameraPath) -> None:
        session.tell("Path saved", str(self.keep("path", path)))

    def _download(self, session: Session, path: CameraPath) -> None:
        content = path.to_json(self.state.scene.frame)
        session.client.send_file_download("camera_path.json", content.encode(), save_immediately=True)

    def _load(self, session: Session) -> None:
        if self.listed.value == NOTHING:
            raise UserError("no path is kept in the run folder yet")
        self._read(self.state.scene.folder.path / PATHS / self.listed.value)

    def _upload(self, session: Session, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "uploaded.json"
            file.write_bytes(content)
            self._read(file)

    def _read(self, file: Path) -> None:
        panel = self.panel
        path, controls = read_camera_path(file, self.state.scene.frame, panel.path.size), (panel.width, panel.height)
        path.size = tuple(int(within_limits(*side)) for side in zip(controls, path.size, strict=True))
        path.fps = int(within_limits(panel.fps, path.fps))
        panel.path, panel.playing = path, None
        panel.fill(0)

    def _command(self, session: Session) -> None:
        here = session.viewpoint()
        file = self.keep("view", CameraPath([Keyframe(here.matrix, here.fov)], fps=1, size=session.size()))
        command = typed("nerfkit", "render", self.state.scene.folder.path, "--path", file)
        print(command, flush=True)
        gui = session.client.gui
        with gui.add_modal("This view as a command") as modal:
            gui.add_text("Command", command, multiline=True)
            self.state.on(lambda session: modal.close(), gui.add_button("Close").on_click)

    def _list(self) -> None:
        folder = self.state.scene.folder
        names = sorted(file.name for file in (folder.path / PATHS).glob("*.json")) if folder is not None else []
        self.listed.options = tuple(names) or (NOTHING,)


class VideoControls:
    """Renders the path of a panel to an MP4, one at a time, for the client that asked, until it leaves."""

    def __init__(self, gui: viser.GuiApi, state: State, panel: PathPanel):
        self.state, self.panel = state, panel
        self.job: Iterator[None] | None = None  # of the engine
        self.start = gui.add_button("Render video", hint="With the output and crop that you see now")
        self.bar = gui.add_progress_bar(0.0, visible=False)
        self.cancel = gui.add_button("Cancel", visible=False)
        state.on(lambda session: state.do_later(session, self._start), self.start.on_click)
        state.on(lambda session: state.later(self._stop), self.cancel.on_click)

    def _stop(self) -> None:
        self.state.engine.drop_job(self.job)
        self._show(None)

    def _start(self, session: Session) -> None:
        path, scene = self.panel.path.copy(), self.state.scene
        if self.job is not None:
            raise UserError("another video is being rendered; wait for it, or cancel it")
        if not path.keyframes or not 0 < path.n_frames <= MAX_FRAMES:
            raise UserError(f"the path has {path.n_frames} frames; add views to it, {MAX_FRAMES} frames at most")
        if session.look.output == COMPARING:
            raise UserError("errors are against a training image, of which a path has none; choose another output")
        if why := probe_video():
            raise UserError(f"videos cannot be written here ({why})")
        if self.state.training is not None:  # which would go on meanwhile
            scene = replace(scene, model=deepcopy(scene.model))
        look = replace(session.look, crop=self.state.crop, split=None, view=None)
        job = self._frames(session, path, scene, look)
        self._show(job)
        self.state.engine.add_job(job)

    def _frames(self, session: Session, path: CameraPath, scene: ViewerScene, look: Look) -> Iterator[None]:
        """A job of the engine: renders frame after frame, a chunk of rays at a time, and sends the video."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / VIDEO
                with video_writer(file, path.fps) as add:
                    for index, (pose, fov) in enumerate(zip(*path.at(path.times()), strict=True)):
                        frame = ModelFrame(scene, Viewpoint.of(pose, fov), *path.size, look)
                        done = 0
                        while done < frame.n_rays:
                            done = frame.render(done, done + self.state.engine.chunk.rays)
                            yield
                            if session.client.client_id not in self.state.sessions:
                                return
                        add(torch.from_numpy(frame.finish()).float() / 255)
                        self.bar.value = 100 * (index + 1) / path.n_frames
                session.client.send_file_download(VIDEO, file.read_bytes())
        finally:
            self._show(None)

    def _show(self, job: Iterator[None] | None) -> None:
        """Show that a video is rendered, or that none is."""
        self.job, self.bar.value = job, 0.0
        self.bar.visible = self.cancel.visible = job is not None
        self.start.visible = job is None
