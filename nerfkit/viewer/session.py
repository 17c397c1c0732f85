# SPDX-License-Identifier: Apache-2.0
"""What all browsers share, and one of them: its camera and look become requests, frames go to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nerfkit.crop import Crop
from nerfkit.viewer.engine import Engine, Request
from nerfkit.viewer.geometry import in_browser, nearest_view, vertical_fov, viewpoint
from nerfkit.viewer.picture import Look, Viewpoint
from nerfkit.viewer.subject import Subject

if TYPE_CHECKING:
    import viser

    from nerfkit.training.trainer import Trainer
    from nerfkit.viewer.pacing import Sharing


class State:
    """Shared by all sessions and panels."""

    def __init__(
        self,
        subject: Subject,
        engine: Engine,
        later: Callable[[Callable[[], None]], None],
        sessions: dict[int, Any],  # of clients
    ):
        self.subject, self.engine, self.later, self.sessions = subject, engine, later, sessions
        self.crop: Crop | None = None  # that is on
        self.history = subject.history  # lines of the log
        self.training: Trainer | None = None  # that goes on
        self.sharing: Sharing | None = None
        self.paused = False
        self.initial_camera: Any = None  # of the page
        self.max_side = 1280  # of a picture [pixels]

    def set_crop(self, crop: Crop | None) -> None:
        """Show every client the scene in this crop."""
        self.crop = crop
        self.ask_all()

    def ask_all(self) -> None:
        """Have every client's picture drawn again, for something that all of them show has changed."""
        for session in list(self.sessions.values()):
            session.ask()


STATUS_SECONDS = 0.4  # between two texts


class Session:
    """A browser that is connected."""

    def __init__(self, client: viser.ClientHandle, state: State):
        self.client, self.state = client, state
        self.look, self.max_side = Look(), state.max_side  # of a picture [pixels]
        self.on_status: Callable[[str], None] | None = None  # gets a line about the pictures
        self.nearest: tuple[int, float, float] | None = None  # view, distance, angle
        self.at_view: int | None = None  # training view that it was sent to last
        self._status_at, self._times = 0.0, []
        client.camera.on_update(self._moved)

    async def _moved(self, camera: viser.CameraHandle) -> None:
        self.ask()

    def viewpoint(self) -> Viewpoint:
        """Where its camera is."""
        camera = self.client.camera
        return viewpoint(camera.wxyz, camera.position, camera.fov)

    def size(self) -> tuple[int, int]:
        """Width and height of its window, no side above the limit."""
        width, height = max(self.client.camera.image_width, 1), max(self.client.camera.image_height, 1)
        scale = min(1.0, self.max_side / max(width, height))
        return max(round(width * scale), 1), max(round(height * scale), 1)

    def ask(self) -> None:
        """Request the picture that it should show now."""
        here = self.viewpoint()
        look = replace(self.look, crop=self.state.crop)
        subject = self.state.subject
        self.nearest = nearest_view(
            np.array(here.pose).reshape(3, 4), subject.cameras.camera_to_world.numpy(), self._scene_size()
        )
        if subject.photos is not None and (look.split is not None or look.output == "error"):
            look = replace(look, view=self.nearest[0])
        self.state.engine.request(self.client.client_id, Request(here, self.size(), look))
        if self.client.client_id not in self.state.sessions:  # it has left meanwhile
            self.state.engine.forget(self.client.client_id)

    def change(self, **look: object) -> None:
        """Change what it looks at."""
        self.look = replace(self.look, **look)
        self.ask()

    def current_view(self) -> int:
        """The training view that it was sent to, if it is still there, or else the nearest one."""
        view, distance, _ = self.nearest or (0, 0.0, 0.0)
        if self.at_view is not None:
            there = self.state.subject.cameras.positions[self.at_view].numpy()
            if np.linalg.norm(self.client.camera.position - there) <= distance + 1e-3 * self._scene_size():
                return self.at_view
        return view

    def go_to(self, view: int) -> None:
        """Move its camera to that of a training view."""
        cameras = self.state.subject.cameras
        self.at_view = view
        self.go(cameras.camera_to_world[view].double().numpy(), vertical_fov(cameras, view))

    def go(self, pose: np.ndarray, fov: float) -> None:
        """Move its camera to a pose [3, 4] of the model's."""
        wxyz, position = in_browser(pose)
        with self.client.atomic():
            self.client.camera.position = position
            self.client.camera.wxyz = wxyz
            self.client.camera.fov = fov

    def reset(self) -> None:
        """Move its camera to where it started."""
        initial, camera, self.at_view = self.state.initial_camera, self.client.camera, None
        with self.client.atomic():
            camera.up_direction = initial.up
            camera.position = initial.position
            camera.look_at = initial.look_at
            camera.fov = initial.fov

    def level(self) -> None:
        """Turn its camera upright."""
        self.client.camera.up_direction = np.array(self.state.subject.up)

    def show(self, image: np.ndarray, quality: int) -> None:
        """Show a picture [H, W, 3] uint8."""
        self.client.scene.set_background_image(image, format="jpeg", jpeg_quality=quality)
        now = time.perf_counter()
        self._times = [t for t in self._times if now - t < 1] + [now]
        if self.on_status is not None and now - self._status_at >= STATUS_SECONDS:
            self._status_at = now
            self.on_status(self._status(image))

    def tell(self, title: str, text: str) -> None:
        """Show a notification."""
        self.client.add_notification(title, text, auto_close_seconds=10.0)

    def _status(self, image: np.ndarray) -> str:
        height, width = image.shape[:2]
        view, distance, angle = self.nearest or (0, 0.0, 0.0)
        name = self.state.subject.names[view] if self.state.subject.names else str(view)
        return (
            f"{width}x{height}, {len(self._times)} pictures in the last second  \n"
            f"nearest training view: {view} ({name}), {distance:.3f} away, {angle:.1f} degrees"
        )

    def _scene_size(self) -> float:
        box = self.state.subject.box
        return float(np.linalg.norm(box[1] - box[0])) / 2
