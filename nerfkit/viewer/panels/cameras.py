# SPDX-License-Identifier: Apache-2.0
"""The tab Scene: training cameras, sparse points and the box, drawn into the scene; where the camera starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from nerfkit.viewer.geometry import in_browser, vertical_fov

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.state import State

MAX_THUMBNAILS = 200
MAX_FRUSTA = 1000  # evenly spaced among more cameras
THUMBNAIL = 96  # longer side [pixels]
FRUSTUM_SIZE = 0.05  # of the scene's
POINT_SIZE = 0.002
COLOR = (40, 90, 200)


class CamerasPanel:
    """What is drawn into the scene besides the picture."""

    def __init__(self, server: viser.ViserServer, tab: viser.GuiTabHandle, state: State):
        self.server, self.state = server, state
        self.size = float(np.linalg.norm(state.subject.box[1] - state.subject.box[0])) / 2
        self.frusta: dict[int, Any] = {}
        self._start_camera()
        with tab:
            self._draw(server)
        if state.subject.photos is not None:
            state.engine.add_job(self._thumbnails())

    def _start_camera(self) -> None:
        """Where a browser's camera is at first: at the first training view, looking at the middle of the box."""
        subject, initial = self.state.subject, self.server.initial_camera
        position = subject.cameras.positions[0].numpy()
        forward = -subject.cameras.camera_to_world[0, :, 2].numpy()
        depth = max(float(forward @ (subject.box.mean(0) - position)), 0.1 * self.size)
        self.server.scene.set_up_direction(subject.up)
        initial.position = position
        initial.look_at = position + forward * depth
        initial.up = np.array(subject.up)
        initial.fov = vertical_fov(subject.cameras, 0)
        initial.near, initial.far = 1e-3 * self.size, 1e3 * self.size

    def _draw(self, server: viser.ViserServer) -> None:
        gui, subject = server.gui, self.state.subject
        self.root = root = server.scene.add_frame("/cameras", show_axes=False, visible=False)
        box = server.scene.add_box(
            "/box", (255, 190, 40), tuple(subject.box[1] - subject.box[0]), wireframe=True,
            position=subject.box.mean(0), visible=False,
        )  # fmt: skip
        shown = gui.add_checkbox("Cameras", False, hint="Click one to go there")
        size = gui.add_slider("Size of cameras", 0.2, 3.0, 0.1, 1.0)
        shows_box = gui.add_checkbox("Box", False, hint="The box that the model fills")
        self._points(server)

        async def cameras_changed(event: Any) -> None:
            root.visible = shown.value
            for frustum in self.frusta.values():
                frustum.scale = FRUSTUM_SIZE * self.size * size.value

        async def box_changed(event: Any) -> None:
            box.visible = shows_box.value

        for handle in (shown, size):
            handle.on_update(cameras_changed)
        shows_box.on_update(box_changed)
        self._add_frusta(server)

    def _points(self, server: viser.ViserServer) -> None:
        points = self.state.subject.points
        if points is None or not len(points.positions):
            return
        cloud = server.scene.add_point_cloud(
            "/points", points.positions.astype(np.float32), points.colors, point_size=POINT_SIZE * self.size,
            precision="float32", visible=False,
        )  # fmt: skip
        shown = server.gui.add_checkbox("Sparse points", False)

        async def changed(event: Any) -> None:
            cloud.visible = shown.value

        shown.on_update(changed)

    def _add_frusta(self, server: viser.ViserServer) -> None:
        cameras = self.state.subject.cameras
        for view in range(0, len(cameras), -(-len(cameras) // MAX_FRUSTA)):
            wxyz, position = in_browser(cameras.camera_to_world[view].double().numpy())
            width, height = cameras.size(view)
            frustum = server.scene.add_camera_frustum(
                f"/cameras/{view}", vertical_fov(cameras, view), width / height, scale=FRUSTUM_SIZE * self.size,
                color=COLOR, thickness=1.5,
                thickness_units="screen", wxyz=wxyz, position=position, cast_shadow=False, receive_shadow=False,
            )  # fmt: skip
            frustum.on_click(self._clicked(view))
            self.frusta[view] = frustum

    def _clicked(self, view: int) -> Any:
        async def clicked(event: Any) -> None:
            session = self.state.sessions.get(event.client_id)
            if session is not None:
                session.go_to(view)

        return clicked

    def _thumbnails(self) -> Iterator[None]:
        """Put small training images into the frusta, one at a time."""
        views = list(self.frusta)
        for view in views[:: -(-len(views) // MAX_THUMBNAILS)]:
            image = self.state.subject.photos.image(view)  # [H, W, 3]
            self.frusta[view].image = thumbnail(image)
            yield


def thumbnail(image: torch.Tensor) -> np.ndarray:
    """An image [H, W, 3] in [0, 1] with a longer side of THUMBNAIL pixels at most, uint8."""
    height, width = image.shape[:2]
    scale = min(1.0, THUMBNAIL / max(height, width))
    size = max(round(height * scale), 1), max(round(width * scale), 1)
    small = F.interpolate(image.permute(2, 0, 1)[None], size=size, mode="area")[0].permute(1, 2, 0)
    return (small * 255 + 0.5).clamp(0, 255).to(torch.uint8).numpy()
