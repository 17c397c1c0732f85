# SPDX-License-Identifier: Apache-2.0
"""What is beside the picture: tabs, and the things that are drawn into the scene."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nerfkit.viewer.panels.path import PathPanel
from nerfkit.viewer.panels.scene import CamerasPanel, CropPanel
from nerfkit.viewer.panels.view import LookPanel, RunPanel

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.session import Session, State


class Panels:
    """All panels of a page."""

    def __init__(self, server: viser.ViserServer, state: State):
        self.server, self.state = server, state
        state.initial_camera = server.initial_camera
        tabs = server.gui.add_tab_group()
        self.look = LookPanel(tabs.add_tab("View"), state)
        self.cameras = CamerasPanel(server, tabs.add_tab("Scene"), state)
        self.crop = CropPanel(server, tabs.add_tab("Crop"), state)
        self.path = PathPanel(server, tabs.add_tab("Path"), state)
        self.run = RunPanel(server, tabs.add_tab("Run"), state)
        self.clocked = [self.crop, self.path, self.run]

    def training_began(self) -> None:
        """A training is looked at."""
        self.run.training_began()

    def training_ended(self) -> None:
        """It has ended."""
        self.run.training_ended()

    def greet(self, session: Session) -> None:
        """A client has come."""
        self.look.greet(session)
        session.ask()

    def part(self, client: int) -> None:
        """A client has left."""
        self.path.video.left(client)

    def tick(self, now: float) -> None:
        """Called often by the thread that renders, `now` in seconds."""
        for panel in self.clocked:
            panel.tick(now)
