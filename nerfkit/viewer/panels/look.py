# SPDX-License-Identifier: Apache-2.0
"""The tab View, each client's own: what is drawn, of which view, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nerfkit.viewer.picture import COLORMAPS, OUTPUTS
from nerfkit.viewer.session import Session

if TYPE_CHECKING:
    import viser

    from nerfkit.viewer.state import State

COMPARING = "error"  # the output that needs training images


class LookPanel:
    """Controls of one client, in a tab of the page."""

    def __init__(self, tab: viser.GuiTabHandle, state: State):
        self.tab, self.state = tab, state

    def greet(self, session: Session) -> None:
        """Show them to a client."""
        gui = session.client.gui
        with self.tab:
            status = gui.add_markdown("...")
            self._outputs(gui, session)
            self._views(gui, session)
            for note in self.state.subject.notes:
                gui.add_markdown(f"*{note}*")

        def show_status(text: str) -> None:
            status.content = text

        session.on_status = show_status

    def _outputs(self, gui: viser.GuiApi, session: Session) -> None:
        has_photos = self.state.subject.photos is not None
        names = [name for name in OUTPUTS if name != COMPARING or has_photos]
        far = self._far()
        output = gui.add_dropdown("Output", names, initial_value="color")
        colormap = gui.add_dropdown("Colors", COLORMAPS, initial_value=session.look.colormap)
        auto = gui.add_checkbox("Automatic range", True, hint="Colors from the nearest to the farthest depth in sight")
        depths = gui.add_multi_slider(
            "Depths", 0.0, far, far / 200, (0.0, far), disabled=True, hint="Ends of the colors of depth [model units]"
        )
        split = gui.add_checkbox(
            "Split screen", False, disabled=not has_photos,
            hint="The nearest training image on the right, as seen from here",
        )  # fmt: skip
        at = gui.add_slider("Split at", 0.0, 1.0, 0.01, 0.5, disabled=True)

        side = gui.add_slider(
            "Largest side", 64, 2048, 32, min(session.max_side, 2048), hint="Of pictures, in pixels; less is faster"
        )

        async def changed(event: Any) -> None:
            session.max_side = int(side.value)
            depths.disabled, at.disabled = auto.value, not split.value
            session.change(
                output=output.value,
                colormap=colormap.value,
                depth_range=None if auto.value else tuple(depths.value),
                split=at.value if split.value else None,
            )

        for handle in (output, colormap, auto, depths, split, at, side):
            handle.on_update(changed)

    def _views(self, gui: viser.GuiApi, session: Session) -> None:
        steps = gui.add_button_group("Training view", ("Previous", "Nearest", "Next"))
        camera = gui.add_button_group(
            "Camera", ("Reset", "Level"), hint="Back to where it started; or upright again, where it is"
        )

        async def step(event: Any) -> None:
            n_views = len(self.state.subject.cameras)
            by = {"Previous": -1, "Nearest": 0, "Next": 1}[steps.value]
            session.go_to((session.current_view() + by) % n_views)

        async def put(event: Any) -> None:
            (session.reset if camera.value == "Reset" else session.level)()

        steps.on_click(step)
        camera.on_click(put)

    def _far(self) -> float:
        """A depth behind everything."""
        box, cameras = self.state.subject.box, self.state.subject.cameras.positions.numpy()
        return float(max(abs(cameras - box.mean(0)).max(), 1e-3) * 2 + abs(box[1] - box[0]).max())
