# SPDX-License-Identifier: Apache-2.0
"""The tabs Scene and Crop: what is drawn into the scene, and the box outside of which nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from nerfkit.crop import CROP, Crop, read_crop, write_crop
from nerfkit.errors import UserError
from nerfkit.viewer.geometry import in_browser, vertical_fov

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.session import State

MAX_THUMBNAILS = 200
MAX_FRUSTA = 1000  # evenly spaced among more cameras
THUMBNAIL = 96  # longer side [pixels]
FRUSTUM_SIZE = 0.05  # of the scene's
POINT_SIZE = 0.002
CAMERA_COLOR = (40, 90, 200)


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
                color=CAMERA_COLOR, thickness=1.5,
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


SAVE_SECONDS = 0.5  # without a change, after which the crop is saved
HANDLE_SIZE = 0.12  # of the scene's
CROP_COLOR = (220, 60, 60)
SMALLEST = 1e-3  # side, of the box's


class CropPanel:
    """Edits the crop that all clients see."""

    def __init__(self, server: viser.ViserServer, tab: viser.GuiTabHandle, state: State):
        self.state = state
        self.box = state.subject.box  # [2, 3]
        self.size = float(np.linalg.norm(self.box[1] - self.box[0])) / 2
        self.crop, self.is_on, self.note = self._read()
        self._changed_at: float | None = None  # by a tick's clock, of what is not saved yet
        self._is_new = False
        with tab:
            self._add_controls(server.gui)
        self._add_handles(server.scene)
        state.crop = self.crop if self.is_on else None
        self._show()

    def tick(self, now: float) -> None:
        """Save the crop when it has rested."""
        if self._is_new:
            self._changed_at, self._is_new = now, False
        if self._changed_at is not None and now - self._changed_at >= SAVE_SECONDS:
            self._changed_at = None
            self.save()

    def save(self) -> None:
        """Write it into the run folder."""
        folder = self.state.subject.folder
        if folder is not None:
            write_crop(folder.write, self.crop, self.is_on)
            self.text.content = f"kept in {folder.path / CROP}"

    def _read(self) -> tuple[Crop, bool, str]:
        """The run's crop, whether it is on, and what to say about it; the whole box where it has none."""
        whole = Crop(*(tuple(map(float, corner)) for corner in self.box))
        folder = self.state.subject.folder
        try:
            found = None if folder is None else read_crop(folder.path, self.state.subject.frame)
        except UserError as error:
            return whole, False, f"not read: {error}"
        return (*found, f"read from {folder.path / CROP}") if found is not None else (whole, False, "the whole box")

    def _corners(self) -> np.ndarray:
        """[2, 3] in the model's frame, of the crop or what surrounds it."""
        corners = self.crop.corners().numpy()
        return np.stack([corners.min(0), corners.max(0)])

    def _add_controls(self, gui: viser.GuiApi) -> None:
        low, high = self._corners()
        step = float(f"{self.size / 200:.1g}")
        self.on = gui.add_checkbox("Crop", self.is_on, hint="Nothing outside is rendered; exports leave it out, too")
        self.low = gui.add_vector3("Lowest corner", tuple(low), step=step)
        self.high = gui.add_vector3("Highest corner", tuple(high), step=step)
        self.handles_shown = gui.add_checkbox("Handles", False, hint="Move the corners in the picture")
        whole = gui.add_button("Whole box")
        self.text = gui.add_markdown(self.note)

        async def switched(event: Any) -> None:
            if event.client is not None:  # else it was set by the panel itself
                self._set(np.array([self.low.value, self.high.value]))

        async def typed(event: Any) -> None:
            if event.client is not None:
                self._set(np.array([self.low.value, self.high.value]))

        async def shown(event: Any) -> None:
            self._show()

        async def reset(event: Any) -> None:
            self._set(self.box)

        self.on.on_update(switched)
        self.low.on_update(typed)
        self.high.on_update(typed)
        self.handles_shown.on_update(shown)
        whole.on_click(reset)

    def _add_handles(self, scene: viser.SceneApi) -> None:
        corners = self._corners()
        self.outline = scene.add_box(
            "/crop/box", CROP_COLOR, tuple(corners[1] - corners[0]), wireframe=True, visible=False
        )
        self.handles = [
            scene.add_transform_controls(
                f"/crop/{name}", HANDLE_SIZE * self.size, disable_rotations=True, position=corner, depth_test=False,
                visible=False,
            )
            for name, corner in zip(("low", "high"), corners, strict=True)
        ]  # fmt: skip

        async def dragged(event: Any) -> None:
            self._set(np.array([handle.position for handle in self.handles]))

        for handle in self.handles:
            handle.on_update(dragged)

    def _set(self, corners: np.ndarray) -> None:
        """Take two corners [2, 3] of the model's frame, in any order."""
        low, high = np.sort(corners, axis=0).astype(np.float64)
        high = np.maximum(high, low + SMALLEST * self.size)
        self.crop, self.is_on = Crop(tuple(low.tolist()), tuple(high.tolist())), bool(self.on.value)
        self._is_new = True
        self._show()
        self.state.set_crop(self.crop if self.is_on else None)

    def _show(self) -> None:
        """Show the crop in the fields and in the scene."""
        low, high = self._corners()
        for handle, corner in zip((self.low, self.high), (low, high), strict=True):
            if not np.allclose(handle.value, corner, rtol=0, atol=1e-9):
                handle.value = tuple(corner.tolist())
        self.outline.position, self.outline.dimensions = (low + high) / 2, tuple((high - low).tolist())
        self.outline.visible = bool(self.on.value or self.handles_shown.value)
        for handle, corner in zip(self.handles, (low, high), strict=True):
            handle.visible = bool(self.handles_shown.value)
            if not np.allclose(handle.position, corner, rtol=0, atol=1e-6):
                handle.position = corner
