# SPDX-License-Identifier: Apache-2.0
"""Keyframes and their path, drawn into the scene."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nerfkit.viewer.geometry import in_browser
from nerfkit.viewer.path import CameraPath

if TYPE_CHECKING:
    import viser

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
