# SPDX-License-Identifier: Apache-2.0
"""The tab Path: a camera path, edited, previewed, kept as a file that `nerfkit render` takes, rendered to a video."""

import math
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import viser

from nerfkit.device import check_memory
from nerfkit.errors import UserError
from nerfkit.rendering import paths
from nerfkit.rendering.camera_path import LIMITS, MAX_FRAMES, CameraPath, Keyframe, read_camera_path
from nerfkit.rendering.images import png_bytes, probe_video, video_writer
from nerfkit.safe_io import read_regular, shell_join
from nerfkit.training.run.files import PATHS
from nerfkit.viewer.frames import COMPARING, Look, ModelFrame, Viewpoint, in_browser, vertical_fov
from nerfkit.viewer.limits import within_limits
from nerfkit.viewer.scene import ViewerScene
from nerfkit.viewer.session import Session, State

COLOR, CHOSEN = (230, 120, 20), (220, 30, 30)
CURVE_POINTS = 200
PREVIEW_SECONDS = 1 / 30  # between two cameras of a preview
PRESETS = ("Orbit", "Spiral", "Views")
PRESET_KEYS, MOST_VIEWS, PRESET_SECONDS = 12, 50, 0.5  # keyframes of a turn, of a path through views; between two
NONE, NOTHING = "none", "no file"
RENDER = "render"  # in a run folder
KEPT = (f"{PATHS}/*.json", f"{RENDER}/*/*.mp4", f"{RENDER}/still_*/*.png")
MAX_DOWNLOAD = 2**31  # bytes
BYTES_PER_PIXEL = 64  # of values and images of a frame, about


class PathPanel:
    def __init__(self, server: viser.ViserServer, tab: viser.GuiTabHandle, state: State, size: float):
        self.state, self.path, self.size = state, CameraPath(), size  # of a keyframe in the scene
        self.playing: tuple[int, float] | None = None  # client, and when its preview began
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
        elapsed = now - began
        is_over = elapsed >= path.seconds and not path.loop
        self.playing, self._shown_at = None if is_over or session is None else (client, began), now
        if session is not None and len(path.keyframes) > 1:
            poses, fovs = path.at(np.array([path.seconds if is_over else elapsed % max(path.seconds, 1e-9)]))
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
        for control in (self.which, self.actions, self.fov, self.seconds, self.play):
            control.visible = bool(keys)
        self.presets.visible = not keys
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
        add = gui.add_button("Add this view", hint="After the keyframe that is chosen")
        self.presets = gui.add_button_group("Preset", PRESETS, hint="About the scene, or through the training views")
        self.which = gui.add_dropdown("Keyframe", (NONE,))
        self.actions = actions = gui.add_button_group("", ("Go", "Replace", "Delete", "Clear"))
        self.fov = gui.add_number("Field of view", 50.0, min=1.0, max=170.0, step=0.5, hint="Vertical, in degrees")
        self.seconds = gui.add_number("Seconds to next", 2.0, min=LIMITS[0], max=LIMITS[1], step=0.1)
        self.text = gui.add_markdown("")

        def changed(session: Session) -> None:
            if self.path.keyframes:
                key = self.path.keyframes[self.chosen]
                key.fov, key.seconds = math.radians(self.fov.value), float(self.seconds.value)
                self.fill()

        self.state.on(lambda session: self._act("Add", session), add.on_click)
        self.state.on(lambda session: self._start(self.presets.value), self.presets.on_click)
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
        elif action == "Clear":
            keys.clear()
        self.fill(at)

    def _start(self, preset: str) -> None:
        """A path that goes about what the training views look at, or through them."""
        scene = self.state.scene
        like, target, up = scene.cameras, torch.tensor(scene.box.mean(0)).float(), torch.tensor(scene.up)
        if preset == "Views":
            cameras = like[:: -(-len(like) // MOST_VIEWS)]
        elif not paths.views_surround(like, target, up):
            cameras = paths.sway(like, target, up, PRESET_KEYS)
        elif preset == "Spiral":
            cameras = paths.spiral(like, target, up, 2 * PRESET_KEYS)
        else:
            cameras = paths.orbit(like, target, up, PRESET_KEYS, paths.mean_elevation(like, target, up))
        fov, poses = vertical_fov(like, 0), cameras.camera_to_world.double().numpy()
        self.path.keyframes = [Keyframe(pose, fov, PRESET_SECONDS) for pose in poses]
        self.path.loop, self.playing = preset != "Views", None
        self.fill(0)

    def _add_path(self, gui: viser.GuiApi) -> None:
        self.loop = gui.add_checkbox("Loop", False, hint="From the last keyframe back to the first")
        self.fps = gui.add_number("Frames a second", 30, min=1, max=120, step=1)
        self.width = gui.add_number("Width", 1280, min=16, max=8192, step=2)
        self.height = gui.add_number("Height", 720, min=16, max=8192, step=2)
        self.play = play = gui.add_button_group("Preview", ("Play", "Stop"))

        def changed(session: Session) -> None:
            self.path.loop, self.path.fps = bool(self.loop.value), int(self.fps.value)
            self.path.size = int(self.width.value), int(self.height.value)
            self.fill()

        def played(session: Session) -> None:
            self.playing = (session.client.client_id, time.perf_counter()) if play.value == "Play" else None
            self.state.engine.wake()

        self.state.on(changed, *(field.on_update for field in (self.loop, self.fps, self.width, self.height)))
        self.state.on(played, play.on_click)


class PathFiles:
    """What is kept in the run folder, written and read by the thread that renders; a view as a command."""

    def __init__(self, gui: viser.GuiApi, state: State, panel: PathPanel):
        self.state, self.panel = state, panel
        command = gui.add_button("Copy this view as a command", hint="Its camera becomes a file in the run folder")
        with gui.add_folder("Files"):
            save = gui.add_button("Save path", hint="Into the run folder")
            upload = gui.add_upload_button("Upload", mime_type="application/json", hint="A path, also of nerfstudio")
            self.listed = gui.add_dropdown("Kept", (NOTHING,))
            self.use = gui.add_button_group(
                "", ("Load", "Download"), hint="Load: a path into the panel; Download: any file"
            )
        self._list()

        def used(session: Session) -> None:
            do = self._load if self.use.value == "Load" else self._download
            state.do_later(session, do, self.listed.value)

        state.on(lambda session: state.do_later(session, self._save, panel.path.copy()), save.on_click)
        state.on(used, self.use.on_click)
        state.on(lambda session: state.do_later(session, self._upload, upload.value.content), upload.on_upload)
        state.on(lambda session: state.do_later(session, self._command), command.on_click)

    def keep(self, place: str, kind: str, name: str, content: str | bytes) -> Path:
        folder = self.state.scene.folder
        folder.child(place, kind).write(name, content)
        self._list(f"{place}/{name}")
        return folder.path / place / name

    def keep_path(self, stem: str, path: CameraPath) -> Path:
        name = f"{free(self.state.scene.folder.path / PATHS, stem)}.json"
        return self.keep(PATHS, "paths", name, path.to_json(self.state.scene.transform))

    def _save(self, session: Session, path: CameraPath) -> None:
        session.tell("Path saved", str(self.keep_path("path", path)))

    def _load(self, session: Session, name: str) -> None:
        self._read(self.state.scene.folder.path / name)

    def _download(self, session: Session, name: str) -> None:
        session.save(name, read_regular(self.state.scene.folder.path / name, MAX_DOWNLOAD, "what is kept"))

    def _upload(self, session: Session, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "uploaded.json"
            file.write_bytes(content)
            self._read(file)

    def _read(self, file: Path) -> None:
        panel = self.panel
        path = read_camera_path(file, self.state.scene.transform, panel.path.size)
        sides = zip((panel.width, panel.height), path.size, strict=True)
        path.size = tuple(int(within_limits(*side)) for side in sides)
        path.fps = int(within_limits(panel.fps, path.fps))
        panel.path, panel.playing = path, None
        panel.fill(0)

    def _command(self, session: Session) -> None:
        here = session.viewpoint()
        file = self.keep_path("view", CameraPath([Keyframe(here.matrix, here.fov)], fps=1, size=session.size()))
        command = shell_join("nerfkit", "render", self.state.scene.folder.path.resolve(), "--cameras", file.resolve())
        print(command, flush=True)
        session.copy(command)
        session.tell("Copied", command)

    def _list(self, newest: str = "") -> None:
        root = self.state.scene.folder.path
        files = sum(map(sorted, map(root.glob, KEPT)), [])
        # Not through links: a run may come from anywhere, and its links lead anywhere.
        names = [str(name) for file in files if file.resolve() == root.resolve() / (name := file.relative_to(root))]
        self.listed.options = tuple(names) or (NOTHING,)
        self.listed.value = newest or self.listed.options[0]
        self.listed.visible = self.use.visible = bool(names)


class VideoControls:
    """Renders the path to an MP4, or a view to a PNG, one at a time, whether the browser that asked stays or leaves."""

    def __init__(self, gui: viser.GuiApi, state: State, panel: PathPanel):
        self.state, self.panel = state, panel
        self.job: Iterator[None] | None = None  # of the engine
        self.start = gui.add_button("Render video", hint="With the output and crop that you see now")
        self.still = gui.add_button("Render this view", hint="One image of the width and height above")
        self.bar = gui.add_progress_bar(0.0, visible=False)
        self.cancel = gui.add_button("Cancel", visible=False)
        state.on(lambda session: state.do_later(session, self._start), self.start.on_click)
        state.on(lambda session: state.do_later(session, self._start, session.viewpoint()), self.still.on_click)
        state.on(lambda session: state.later(self._stop), self.cancel.on_click)

    def _stop(self) -> None:
        self.state.engine.drop_job(self.job)
        self._show(None)

    def _start(self, session: Session, still: Viewpoint | None = None) -> None:
        path, scene, look = self.panel.path.copy(), self.state.scene, session.shown_look()
        size = "{}x{}".format(*path.size)
        if self.job is not None:
            raise UserError("another path or image is being rendered; wait for it, or cancel it")
        check_memory(BYTES_PER_PIXEL * math.prod(path.size), f"a frame of {size}", scene.background.device)
        if still is not None:
            path.keyframes = [Keyframe(still.matrix, still.fov)]
        elif not path.keyframes or not 0 < path.n_frames <= MAX_FRAMES:
            raise UserError(f"the path has {path.n_frames} frames; add views to it, {MAX_FRAMES} frames at most")
        elif look.output == COMPARING:
            raise UserError("a camera path has no training image to compare with; choose another output than error")
        elif why := probe_video():
            raise UserError(f"videos cannot be written here ({why})")
        else:
            look = replace(look, split=None, view=None)
        if self.state.training is not None:  # which would go on meanwhile
            scene = replace(scene, model=deepcopy(scene.model))
        kind = "png" if still is not None else "mp4"
        self._show(self._render(session.client.client_id, path, scene, look, kind))
        self.state.engine.add_job(self.job)

    def _render(self, client: int, path: CameraPath, scene: ViewerScene, look: Look, kind: str) -> Iterator[None]:
        """A job of the engine: frame after frame, a chunk of rays at a time. Who asked, and is still here, saves it."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"{look.output}.{kind}"
                with video_writer(file, path.fps) if kind == "mp4" else nullcontext() as add:
                    for index, (pose, fov) in enumerate(zip(*path.frames(), strict=True)):
                        frame, done = ModelFrame(scene, Viewpoint.of(pose, fov), *path.size, look), 0
                        while done < frame.n_rays:
                            done = frame.render(done, done + self.state.engine.chunk.rays)
                            self.bar.value = 100 * (index + done / frame.n_rays) / path.n_frames
                            yield
                        image = torch.from_numpy(frame.finish()).float() / 255
                        add(image) if add else file.write_bytes(png_bytes(image))
                content, stem = file.read_bytes(), "video" if kind == "mp4" else "still"
            if (session := self.state.sessions.get(client)) is not None:
                session.save(f"{stem}_{file.name}", content)
                session.tell("Rendered", f"{stem} of {len(content) / 1e6:.1f} MB")
            place = f"{RENDER}/{free(scene.folder.path / RENDER, stem)}"
            self.panel.files.keep(place, "rendering", file.name, content)
        finally:
            self._show(None)

    def _show(self, job: Iterator[None] | None) -> None:
        """Show that something is rendered, or that nothing is."""
        self.job, self.bar.value = job, 0.0
        self.bar.visible = self.cancel.visible = job is not None
        self.start.visible = self.still.visible = job is None


def free(folder: Path, stem: str) -> str:
    """A name of a file or folder that is not there yet: the stem and a number."""
    taken = {path.stem for path in folder.glob(f"{stem}_*")}
    return next(name for i in count(1) if (name := f"{stem}_{i}") not in taken)
