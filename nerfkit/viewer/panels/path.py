# SPDX-License-Identifier: Apache-2.0
"""The tab Path: a camera path, edited, previewed, kept as a file that `nerfkit render` takes, rendered to a video."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from nerfkit.errors import UserError
from nerfkit.reading import typed
from nerfkit.rendering.video import VideoWriter, probe_video
from nerfkit.training.run_files import PATHS
from nerfkit.viewer.geometry import in_browser
from nerfkit.viewer.panels.view import COMPARING
from nerfkit.viewer.path import LIMITS, MAX_FRAMES, MAX_KEYFRAMES, CameraPath, Keyframe, read_camera_path
from nerfkit.viewer.picture import Look, ModelPictures, Viewpoint

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.session import Session, State

SIZE = 0.06  # of the scene's
COLOR, CHOSEN = (230, 120, 20), (220, 30, 30)
CURVE_POINTS = 200


class KeyframesInScene:
    """Draws a path; a click on a keyframe chooses it."""

    def __init__(self, scene: viser.SceneApi, size: float, on_click: Callable[[int], None]):
        self.scene, self.size, self.on_click = scene, size, on_click
        self.drawn: list[Any] = []
        self._lock = threading.Lock()  # clicks come in another thread than files
        self.root = scene.add_frame("/path", show_axes=False)

    def draw(self, path: CameraPath, chosen: int | None) -> None:
        """Replace what is drawn."""
        with self._lock:
            for handle in self.drawn:
                handle.remove()
            self.drawn = self._draw(path, chosen)

    def _draw(self, path: CameraPath, chosen: int | None) -> list[Any]:
        drawn = [self._keyframe(path, index, index == chosen) for index in range(len(path.keyframes))]
        if len(path.keyframes) > 1:
            positions = path.at(np.linspace(0, path.seconds, CURVE_POINTS))[0][:, :, 3]  # [P, 3]
            points = np.stack([positions[:-1], positions[1:]], axis=1).astype(np.float32)
            drawn.append(
                self.scene.add_line_segments("/path/curve", points, COLOR, thickness=3.0, thickness_units="screen")
            )
        return drawn

    def _keyframe(self, path: CameraPath, index: int, is_chosen: bool) -> Any:
        key = path.keyframes[index]
        wxyz, position = in_browser(key.pose)
        frustum = self.scene.add_camera_frustum(
            f"/path/{index}", key.fov, path.size[0] / path.size[1], scale=SIZE * self.size,
            thickness=2.0, thickness_units="screen",
            color=CHOSEN if is_chosen else COLOR, wxyz=wxyz, position=position, cast_shadow=False,
            receive_shadow=False,
        )  # fmt: skip

        async def clicked(event: Any) -> None:
            self.on_click(index)

        frustum.on_click(clicked)
        return frustum


NOTHING = "no file"
MAX_UPLOAD = 2**26  # bytes


class Editor(Protocol):
    """Where a path is edited."""

    path: CameraPath

    def replace(self, path: CameraPath) -> None:
        """Edit another path."""


class PathFiles:
    """Saves and loads the path of a panel; all files are written and read by the thread that renders."""

    def __init__(self, gui: viser.GuiApi, state: State, panel: Editor):
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

        async def saved(event: Any) -> None:
            do, path = self._save if save.value == "Save" else self._download, self.panel.path.copy()
            self._later(event, lambda session: do(session, path))

        async def loaded(event: Any) -> None:
            self._later(event, self._load)

        async def uploaded(event: Any) -> None:
            content = upload.value.content
            self._later(event, lambda session: self._read(content))

        async def commanded(event: Any) -> None:
            self._later(event, self._command)

        save.on_click(saved)
        load.on_click(loaded)
        upload.on_upload(uploaded)
        command.on_click(commanded)

    def keep(self, stem: str, path: CameraPath) -> Path:
        """Write a path into the run folder under a name that is free."""
        folder = self.state.subject.folder
        if folder is None:
            raise UserError("there is no run folder to keep a path in")
        kept = folder.child(PATHS, "paths")
        number = next(i for i in range(1, 10**6) if not (kept.path / f"{stem}_{i}.json").exists())
        name = f"{stem}_{number}.json"
        kept.write(name, path.to_json(self.state.subject.frame))
        self._list()
        return kept.path / name

    def _later(self, event: Any, do: Callable[[Session], None]) -> None:
        """Have something done for the client of an event; an error is told to it."""
        session = self.state.sessions.get(event.client_id)
        if session is None:
            return

        def call() -> None:
            try:
                do(session)
            except UserError as error:
                session.tell("Not done", str(error))

        self.state.later(call)

    def _save(self, session: Session, path: CameraPath) -> None:
        session.tell("Path saved", str(self.keep("path", path)))

    def _download(self, session: Session, path: CameraPath) -> None:
        content = path.to_json(self.state.subject.frame)
        session.client.send_file_download("camera_path.json", content.encode(), save_immediately=True)

    def _load(self, session: Session) -> None:
        if self.listed.value == NOTHING:
            raise UserError("no path is kept in the run folder yet")
        file = self.state.subject.folder.path / PATHS / self.listed.value
        self.panel.replace(read_camera_path(file, self.state.subject.frame, self.panel.path.size))

    def _read(self, content: bytes) -> None:
        """The path of a file that was uploaded."""
        if len(content) > MAX_UPLOAD:
            raise UserError(f"the file has {len(content)} bytes, more than {MAX_UPLOAD}")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "uploaded.json"
            file.write_bytes(content)
            self.panel.replace(read_camera_path(file, self.state.subject.frame, self.panel.path.size))

    def _command(self, session: Session) -> None:
        """Show the command that renders what a client sees."""
        here = session.viewpoint()
        view = Keyframe(np.array(here.pose).reshape(3, 4), here.fov)
        file = self.keep("view", CameraPath([view], fps=1, size=session.size()))
        command = typed("nerfkit", "render", self.state.subject.folder.path, "--path", file)
        print(command, flush=True)
        gui = session.client.gui
        with gui.add_modal("This view as a command") as modal:
            gui.add_text("Command", command, multiline=True)
            close = gui.add_button("Close")

            async def closed(event: Any) -> None:
                modal.close()

            close.on_click(closed)

    def _list(self) -> None:
        folder = self.state.subject.folder
        names = sorted(file.name for file in (folder.path / PATHS).glob("*.json")) if folder is not None else []
        self.listed.options = tuple(names) or (NOTHING,)


def render_video(
    path: CameraPath,
    pictures: ModelPictures,
    look: Look,
    chunk: Callable[[], int],
    report: Callable[[float], None],
    done: Callable[[bytes], None],
) -> Iterator[None]:
    """A job of the engine: renders frame after frame, and hands the MP4 to `done`.

    Yields after each chunk of rays. `report` gets the share that is done.
    """
    width, height = path.size
    poses, fovs = path.at(path.times())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video.mp4"
        writer = VideoWriter(file, path.fps)
        try:
            for index, (pose, fov) in enumerate(zip(poses, fovs, strict=True)):
                picture = pictures(Viewpoint(tuple(pose.flatten().tolist()), float(fov)), width, height, look)
                start = 0
                while start < picture.n_rays:
                    end = min(start + chunk(), picture.n_rays)
                    picture.render(start, end)
                    start = end
                    yield
                writer.add(torch.from_numpy(picture.finish()).float() / 255)
                report((index + 1) / len(poses))
        finally:
            writer.close()
        done(file.read_bytes())


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
