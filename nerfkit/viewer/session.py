# SPDX-License-Identifier: Apache-2.0
"""What all browsers share, and one of them: its camera and look become requests, frames go to it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import viser
from viser import _messages

from nerfkit.crop import Crop
from nerfkit.data.scene_transform.transform import vector_text
from nerfkit.errors import UserError
from nerfkit.export.scale import Scale, keep
from nerfkit.rendering.paths import look_at
from nerfkit.viewer import frames
from nerfkit.viewer.engine import Engine, Request
from nerfkit.viewer.frames import COMPARING, Look, ModelFrame, Viewpoint, in_browser, rotation_of, vertical_fov
from nerfkit.viewer.pacing import Sharing
from nerfkit.viewer.scene import ViewerScene

if TYPE_CHECKING:
    from nerfkit.training.trainer import Trainer

STATUS_SECONDS = 0.4  # between two texts
COPY = """const text = %s, area = document.createElement("textarea");
if (navigator.clipboard) return navigator.clipboard.writeText(text);
document.body.append(area);  // of another computer, without https
area.value = text; area.select(); document.execCommand("copy"); area.remove();"""


@dataclass
class State:
    scene: ViewerScene
    engine: Engine
    later: Callable[[Callable[[], None]], None]  # has something done by the thread that renders
    sessions: dict[int, Session] = field(default_factory=dict)  # of clients
    crop: Crop | None = None  # that is on
    training: Trainer | None = None  # that goes on
    sharing: Sharing = field(default_factory=Sharing)  # of time, between it and drawing
    waiting: set[Callable] = field(default_factory=set)  # what that thread has still to do
    paused: bool = False
    initial_camera: Any = None  # of the page
    turn: float = 1.0  # how far ahead the point is about which cameras turn [model units]
    max_side: int = 1280  # of a frame [pixels]

    def on(self, do: Callable[[Session], object], *events: Callable) -> None:
        """Have `do` called with the session that causes an event, such as `button.on_click`; not by values set here."""

        async def call(event: Any) -> None:  # viser calls a plain function in a thread of a pool
            session = self.sessions.get(event.client_id)
            if session is not None:
                self.attempt(session, do)

        for event in events:
            event(call)

    def attempt(self, session: Session, do: Callable[..., object], *args: Any) -> None:
        try:
            do(session, *args)
        except Exception as error:
            self.engine.failed(session.client.client_id, error)

    def do_later(self, session: Session, do: Callable[..., object], *args: Any) -> None:
        """Attempt something in the thread that renders, one of a kind at a time: clicks may come in floods."""
        if do in self.waiting:
            raise UserError("this is running already; wait until it is done")
        self.waiting.add(do)

        def call() -> None:
            self.attempt(session, do, *args)
            self.waiting.discard(do)

        self.later(call)


class Session:
    def __init__(self, client: viser.ClientHandle, state: State):
        self.client, self.state = client, state
        self.look, self.max_side = Look(fades=state.scene.has_edge), state.max_side  # of a frame [pixels]
        self.status: Any = None  # where lines about the frames are shown
        self.probed: Any = None  # where the depth of a click is
        self.clicked: tuple[Any, Any] | None = None  # origin and direction of a ray
        self.picked: list[np.ndarray] = []  # the last two points that clicks met, in the files' frame
        self.fov: Any = None  # the control of its field of view
        self.nearest = 0, 0.0, 0.0  # view, distance, angle
        self.at_view: int | None = None  # training view that it was sent to last
        self._status_at, self._times = 0.0, []
        self._shown: tuple[int, int] | None = None  # width and height of what it sees
        client.camera.on_update(self._moved)
        client.scene.on_click()(self._clicked)

    async def _moved(self, camera: viser.CameraHandle) -> None:
        self.state.attempt(self, Session.ask)

    async def _clicked(self, event: viser.SceneClickEvent) -> None:
        self.clicked = event.ray_origin, event.ray_direction

    def viewpoint(self) -> Viewpoint:
        camera = self.client.camera
        here = frames.viewpoint(camera.wxyz, camera.position, camera.fov)
        if not (np.isfinite(here.pose).all() and 0 < here.fov < math.pi):
            raise UserError("the browser's camera cannot be drawn: its position or field of view is not finite")
        return here

    def size(self) -> tuple[int, int]:
        """Width and height of its window, no side above the limit."""
        width, height = max(self.client.camera.image_width, 1), max(self.client.camera.image_height, 1)
        scale = min(1.0, self.max_side / max(width, height))
        return max(round(width * scale), 1), max(round(height * scale), 1)

    def shown_look(self) -> Look:
        """Its look with the crop of all, and the training image that it is compared with, if it is."""
        look = replace(self.look, crop=self.state.crop)
        if self.state.scene.photo is not None and (look.split is not None or look.output == COMPARING):
            look = replace(look, view=self.nearest[0])
        return look

    def ask(self) -> None:
        here, scene, engine = self.viewpoint(), self.state.scene, self.state.engine
        self.nearest = frames.nearest_view(here.matrix, scene.cameras.camera_to_world.numpy(), scene.size)
        engine.request(self.client.client_id, Request(here, self.size(), self.shown_look()))
        if self.client.client_id not in self.state.sessions:  # it has left meanwhile
            engine.forget(self.client.client_id)

    def change(self, **look: object) -> None:
        self.look = replace(self.look, **look)
        self.ask()

    def current_view(self) -> int:
        """The training view that it was sent to, if it is still there, or else the nearest one."""
        view, distance, _ = self.nearest
        if self.at_view is not None:
            there = self.state.scene.cameras.positions[self.at_view].numpy()
            if np.linalg.norm(self.client.camera.position - there) <= distance + 1e-3 * self.state.scene.size:
                return self.at_view
        return view

    def go_to(self, view: int) -> None:
        cameras, self.at_view = self.state.scene.cameras, view
        self.go(cameras.camera_to_world[view].double().numpy(), vertical_fov(cameras, view))

    def go(self, pose: np.ndarray, fov: float) -> None:
        camera, (wxyz, position) = self.client.camera, in_browser(pose)
        with self.client.atomic():
            camera.position, camera.wxyz, camera.fov = position, wxyz, fov
        self.fov.value = math.degrees(fov)

    def reset(self) -> None:
        initial, camera, self.at_view = self.state.initial_camera, self.client.camera, None
        with self.client.atomic():
            camera.up_direction, camera.position = initial.up, initial.position
            camera.look_at, camera.fov = initial.look_at, initial.fov
        self.fov.value = math.degrees(initial.fov)

    def level(self) -> None:
        self.client.camera.up_direction = np.array(self.state.scene.up)

    def set_up(self) -> None:
        self.client.camera.up_direction = -rotation_of(self.client.camera.wxyz)[:, 1]

    def turn_about(self, share: float) -> None:
        """Have the mouse turn the camera about a point ahead, at a share of the way to where it turns at first."""
        camera = self.client.camera
        camera.look_at = camera.position + rotation_of(camera.wxyz)[:, 2] * self.state.turn * share

    def show(self, image: np.ndarray, quality: int) -> None:
        self.client.scene.set_background_image(image, format="jpeg", jpeg_quality=quality)
        self._shown = image.shape[1], image.shape[0]
        self._times.append(time.perf_counter())

    def tell_status(self, now: float) -> None:
        if self.status is None or now - self._status_at < STATUS_SECONDS:
            return
        self._status_at, scene = now, self.state.scene
        if self.clicked is not None:
            ray, self.clicked = self.clicked, None
            self.say_depth(*ray)
        self._times = [t for t in self._times if now - t < 1]
        lines = ["waiting for the first frame"]
        if self._shown is not None:
            view, distance, angle = self.nearest
            away = 0.0 if distance < 1e-3 * scene.size else scene.in_files(distance)
            name = scene.names[view] if scene.names else view
            lines = [
                f"{'{}x{}'.format(*self._shown)}, {len(self._times)} in the last second",
                f"nearest training view: {name}, {away:.3g} units of the files and {angle:.1f} degrees away",
            ]
        if drawing := self.state.engine.progress(self.client.client_id):
            lines.append(f"{'{}x{}'.format(*drawing[0])} is drawn: {drawing[1]:.0%}")
        elif self._shown is None and self.state.training is not None:
            lines = ["waiting for the next step of the training: frames are drawn between two"]
        if (text := "  \n".join(lines)) != self.status.content:  # viser sends what is set, changed or not
            self.status.content = text

    def show_node(self, name: str, visible: bool) -> None:
        """Show or hide, in this browser alone, what all have in their scenes."""
        self.client._websock_connection.queue_message(_messages.SetSceneNodeVisibilityMessage(name, visible))

    def save(self, name: str, content: bytes) -> None:
        """Have the browser save a file, whose name in the run folder may have folders."""
        self.client.send_file_download(name.replace("/", "_"), content, save_immediately=True)

    def copy(self, text: str) -> None:
        """Put a text into the clipboard of who has just clicked."""
        self.client._websock_connection.queue_message(_messages.RunJavascriptMessage(COPY % json.dumps(text)))

    def say_depth(self, origin: Any, direction: Any) -> None:
        """Say how deep it is along a ray in which somebody has clicked, where, and how far from the one before."""
        scene = self.state.scene
        ends = torch.tensor(np.array([origin, np.add(origin, direction)]), dtype=torch.float32)  # [2, 3]
        here = Viewpoint.of(look_at(ends[:1], ends[1], torch.tensor(scene.up))[0].numpy(), 1e-3)
        frame = ModelFrame(scene, here, 1, 1, Look("depth", crop=self.state.crop))
        frame.render(0, 1)
        depth, opacity = (frame.parts[0][name].item() for name in ("depth_ray", "opacity"))
        if not opacity > frames.FOREGROUND:
            self.probed.content = "clicked: nothing is there"
            return
        place = here.matrix[:, 3] - here.matrix[:, 2] * depth
        place = place if scene.transform is None else scene.transform.to_input(place)
        text = f"clicked: {scene.in_files(depth):.4g} units of the files deep, at {vector_text(place)}"
        self.picked = [*self.picked[-1:], place]
        if len(self.picked) == 2:
            text += f", {math.dist(*self.picked):.4g} from the place clicked before"
        self.probed.content = text

    def keep_scale(self, meters: float) -> None:
        """Have exports be in meters, by the distance of the last two clicks."""
        if len(self.picked) < 2 or not math.dist(*self.picked) > 0 or not meters > 0:
            raise UserError("click two places first, and give their distance in meters, which is above 0")
        known = Scale.of((*map(float, self.picked[0]), *map(float, self.picked[1]), meters))
        keep(self.state.scene.folder, known)
        self.tell(
            "Scale kept",
            f"A unit of the scene's files is {known.meters_per_unit:.4g} m. Exports are in meters from now on.",
        )

    def tell(self, title: str, text: str) -> None:
        self.client.add_notification(title, text, auto_close_seconds=10.0)
