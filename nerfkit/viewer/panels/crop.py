# SPDX-License-Identifier: Apache-2.0
"""The tab Crop: two corners of a box outside of which nothing is rendered, kept in the run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nerfkit.crop import CROP, Crop, read_crop, write_crop
from nerfkit.errors import UserError

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.state import State

SAVE_SECONDS = 0.5  # without a change, after which the crop is saved
HANDLE_SIZE = 0.12  # of the scene's
COLOR = (220, 60, 60)
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
        self.outline = scene.add_box("/crop/box", COLOR, tuple(corners[1] - corners[0]), wireframe=True, visible=False)
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
