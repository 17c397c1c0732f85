# SPDX-License-Identifier: Apache-2.0
"""The tabs Scene and Crop: what is drawn into the scene, and the box outside of which nothing is rendered."""

import math
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import viser

from nerfkit.crop import CROP, Crop, crop_of, read_crop
from nerfkit.errors import UserError
from nerfkit.rendering.images import to_uint8
from nerfkit.viewer.frames import aspect, in_browser, vertical_fov
from nerfkit.viewer.session import Session, State

MAX_THUMBNAILS = 200
MAX_FRUSTA = 1000  # evenly spaced among more cameras
THUMBNAIL = 96  # longer side at most [pixels]
HANDLE_SIZE, POINT_SIZE = 0.12, 0.002  # of the scene's
SIZES = np.array([0.005, 0.05])  # of frusta, least and most, of the scene's
NEAR_CAMERAS = 3.0  # of the spread of the training cameras, how far ahead of one the point may be about which it turns
SHARE_OF_SPACING = 0.25  # of the way to the nearest other camera, as the size of a frustum
HINTS = {"Cameras": "Click one to go there", "Box": "data.box of the run"}
CAMERA_COLOR, CROP_COLOR, BOX_COLOR = (40, 90, 200), (220, 60, 60), (255, 190, 40)
SAVE_SECONDS = 0.5  # without a change, after which the crop is saved
SMALLEST = 1e-3  # side of a crop, of the box's


class CamerasPanel:
    """Training cameras, sparse points and the box in the scene, each where a browser wants it; where cameras start."""

    def __init__(self, server: viser.ViserServer, state: State):
        self.state, self.size, cameras = state, state.scene.size, state.scene.cameras
        self.frusta: dict[int, Any] = {}
        self.nodes = {"Cameras": "/cameras", "Box": "/box", "Camera path": "/path"}  # label -> what is shown
        self.chosen = range(0, len(cameras), -(-len(cameras) // MAX_FRUSTA))
        positions = cameras.positions[self.chosen]
        nearest = torch.cdist(positions, positions).fill_diagonal_(math.inf).min(dim=1).values  # [V]
        self.scale = float(np.clip(SHARE_OF_SPACING * float(nearest.median()), *self.size * SIZES))
        # What is nearer to a camera than the image of its frustum is not drawn: at a training view it would hide all.
        lens = [(math.tan(vertical_fov(cameras, view) / 2), aspect(cameras, view)) for view in self.chosen]
        self.near = 1.1 * self.scale / min(y * y * across / 3 for y, across in lens) ** (1 / 3)
        self._start_camera(server)
        self._add_nodes(server)
        self._add_frusta(server)
        if state.scene.photo is not None:
            state.engine.add_job(self._thumbnails())

    def _start_camera(self, server: viser.ViserServer) -> None:
        """At the first training view; a short drag shall not lead away from views that are all from one side."""
        scene, initial = self.state.scene, server.initial_camera
        position = scene.cameras.positions[0].numpy()
        forward = -scene.cameras.camera_to_world[0, :, 2].numpy()
        depth = max(float(forward @ (scene.box.mean(0) - position)), 0.1 * self.size)
        spread = float((scene.cameras.positions - scene.cameras.positions.mean(0)).norm(dim=-1).square().mean().sqrt())
        self.state.turn = depth = min(depth, NEAR_CAMERAS * spread) if spread > 0 else depth
        server.scene.set_up_direction(scene.up)
        initial.position, initial.look_at, initial.up = position, position + forward * depth, np.array(scene.up)
        initial.fov = vertical_fov(scene.cameras, 0)
        initial.near, initial.far = self.near, 1e3 * self.size
        self.state.initial_camera = initial

    def _add_nodes(self, server: viser.ViserServer) -> None:
        """What the boxes of a browser show in it alone; nothing of it at first."""
        scene, points = server.scene, self.state.scene.points
        scene.add_frame("/cameras", show_axes=False, visible=False)
        add_box(scene, "/box", self.state.scene.box, BOX_COLOR, visible=False)
        if points is not None and len(points.positions):
            self.nodes["Sparse points"] = "/points"
            scene.add_point_cloud(
                "/points", points.positions.astype(np.float32), points.colors, point_size=POINT_SIZE * self.size,
                precision="float32", visible=False,
            )  # fmt: skip

    def add_controls(self, tab: viser.GuiTabHandle, session: Session) -> None:
        """What a client sees in the scene, which is its own choice."""
        gui = session.client.gui
        with tab:
            for label, name in self.nodes.items():
                box = gui.add_checkbox(label, name == "/path", hint=HINTS.get(label))
                session.state.on(lambda session, name=name, box=box: session.show_node(name, box.value), box.on_update)

    def _add_frusta(self, server: viser.ViserServer) -> None:
        cameras = self.state.scene.cameras
        for view in self.chosen:
            wxyz, position = in_browser(cameras.camera_to_world[view].double().numpy())
            self.frusta[view] = frustum = server.scene.add_camera_frustum(
                f"/cameras/{view}", vertical_fov(cameras, view), aspect(cameras, view), scale=self.scale,
                color=CAMERA_COLOR, thickness=1.5, thickness_units="screen", wxyz=wxyz, position=position,
                cast_shadow=False, receive_shadow=False,
            )  # fmt: skip
            self.state.on(lambda session, view=view: session.go_to(view), frustum.on_click)

    def _thumbnails(self) -> Iterator[None]:
        views = list(self.frusta)
        for view in views[:: -(-len(views) // MAX_THUMBNAILS)]:
            image = self.state.scene.photo(view).permute(2, 0, 1)
            small = F.avg_pool2d(image[None], math.ceil(max(image.shape) / THUMBNAIL), ceil_mode=True)[0]
            self.frusta[view].image = to_uint8(small.permute(1, 2, 0))
            yield


def edges(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The edges [12, 2, 3] of a box between two corners."""
    corners = np.array(list(product(*zip(low, high, strict=True))), dtype=np.float32)
    return corners[[(a, a | bit) for a in range(8) for bit in (1, 2, 4) if not a & bit]]


def add_box(scene: viser.SceneApi, name: str, corners: Any, color: tuple[int, int, int], visible: bool = True) -> Any:
    how = {"thickness": 1.5, "thickness_units": "screen", "visible": visible}
    return scene.add_line_segments(name, edges(*corners), color, **how)


class CropPanel:
    """Two corners of a box that all clients see cropped, kept in the run folder."""

    def __init__(self, server: viser.ViserServer, tab: viser.GuiTabHandle, state: State):
        self.state, self.box, self.size = state, state.scene.box, state.scene.size
        self._changed_at: float | None = None  # of what is not saved yet
        self.crop, is_on = self._read()
        state.crop = self.crop if is_on else None
        corners = low, high = self.crop.bounds()
        step, gui, scene = float(f"{self.size / 200:.1g}"), server.gui, server.scene
        with tab:
            self.on = gui.add_checkbox("Crop", is_on, hint="Nothing outside is rendered or exported")
            self.low = gui.add_vector3("Lowest corner", tuple(low), step=step)
            self.high = gui.add_vector3("Highest corner", tuple(high), step=step)
            self.handles_shown = gui.add_checkbox("Handles", False, hint="Move the corners in the image")
            whole = gui.add_button("Whole box")
        self.outline = add_box(scene, "/crop/box", corners, CROP_COLOR)
        self.handles = [
            scene.add_transform_controls(
                f"/crop/{name}", HANDLE_SIZE * self.size, disable_rotations=True, position=corner, depth_test=False
            )
            for name, corner in zip(("low", "high"), corners, strict=True)
        ]
        self._show()
        fields, handles = (self.on, self.low, self.high), self.handles
        state.on(lambda session: self._set([self.low.value, self.high.value]), *(f.on_update for f in fields))
        state.on(lambda session: self._set([h.position for h in handles]), *(h.on_update for h in handles))
        state.on(lambda session: self._show(), self.handles_shown.on_update)
        state.on(lambda session: self._set(self.box), whole.on_click)

    def tick(self, now: float) -> None:
        if self._changed_at is None or now - self._changed_at < SAVE_SECONDS:
            return
        self._changed_at = None
        self.state.scene.folder.write(CROP, self.crop.to_json(self.on.value))

    def _read(self) -> tuple[Crop, bool]:
        """The run's crop, and whether it is on; the whole box where it has none."""
        scene, whole = self.state.scene, Crop(*(tuple(map(float, corner)) for corner in self.box))
        try:
            return read_crop(scene.folder.path, scene.transform) or (whole, False)
        except UserError as error:
            scene.notes.append(f"no crop: {error}")
            return whole, False

    def _set(self, corners: Any) -> None:
        """Take two corners [2, 3] of the model's frame, in any order."""
        try:
            low, high = np.sort(np.array(corners, dtype=np.float64), axis=0)
            high = np.maximum(high, low + SMALLEST * self.size)
            self.crop = crop_of(tuple(low.tolist()), tuple(high.tolist()), "model", "the crop")
        finally:
            self._show()  # what is kept, also where that is not what was typed
        self._changed_at = time.perf_counter()
        self.state.crop = self.crop if self.on.value else None
        for session in list(self.state.sessions.values()):
            self.state.attempt(session, Session.ask)

    def _show(self) -> None:
        """Show the crop, or what surrounds it along the model's axes, in the fields and in the scene."""
        corners = self.crop.bounds()
        self.outline.points = edges(*corners)
        self.outline.visible = bool(self.on.value or self.handles_shown.value)
        for field, handle, corner in zip((self.low, self.high), self.handles, corners, strict=True):
            field.value, handle.position = tuple(corner.tolist()), corner
            handle.visible = bool(self.handles_shown.value)
