# SPDX-License-Identifier: Apache-2.0
"""What is beside the frame: tabs, and the things that are drawn into the scene."""

import viser

from nerfkit.viewer.panels.path import PathPanel
from nerfkit.viewer.panels.scene import CamerasPanel, CropPanel
from nerfkit.viewer.panels.view import RunPanel, add_view_controls
from nerfkit.viewer.session import Session, State


class Panels:
    def __init__(self, server: viser.ViserServer, state: State):
        tabs = server.gui.add_tab_group()
        self.view = tabs.add_tab("View")
        self.scene = tabs.add_tab("Scene")
        self.cameras = CamerasPanel(server, state)
        self.crop = CropPanel(server, tabs.add_tab("Crop"), state)
        self.path = PathPanel(server, tabs.add_tab("Path"), state, self.cameras.scale)
        self.run = RunPanel(server, tabs.add_tab("Run"), state)

    def greet(self, session: Session) -> None:
        add_view_controls(self.view, session)
        self.cameras.add_controls(self.scene, session)

    def tick(self, now: float) -> None:
        """Called often by the thread that renders, `now` in seconds."""
        for panel in (self.crop, self.path, self.run):
            panel.tick(now)
