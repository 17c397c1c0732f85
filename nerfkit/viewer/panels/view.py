# SPDX-License-Identifier: Apache-2.0
"""The tabs View, each browser's own, and Run: how the training goes or went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nerfkit.viewer.picture import COLORMAPS, OUTPUTS
from nerfkit.viewer.session import Session, State

try:
    import resource
except ImportError:  # Windows
    resource = None

if TYPE_CHECKING:
    import viser

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


TEXT_SECONDS, PLOT_SECONDS = 0.5, 2.0  # between two updates
PLOTTED = 500  # points of a curve at most
CURVES = {
    "psnr": "PSNR of training rays [dB]",
    "test_psnr": "PSNR of held-out views [dB]",  # with eval.every
    "rays_per_second": "rays per second",
}
BLUE = "#2a5ac8"


class RunPanel:
    """Progress of a training, its pause, and curves over its time."""

    def __init__(self, server: viser.ViserServer, tab: viser.GuiTabHandle, state: State):
        self.server, self.state, self.tab = server, state, tab
        self._text_at = self._plotted_at = -1e9
        self._n_plotted = -1
        self._last_text = ""
        with tab:
            self.text = server.gui.add_markdown("...")
            self.controls = server.gui.add_folder("Training", visible=False)
            with self.controls:
                self._add_controls(server.gui)
            self.plots: dict[str, Any] = {}

    def training_began(self) -> None:
        """Show the controls of a training."""
        self.controls.visible = True

    def training_ended(self) -> None:
        """Hide them, and show its last curves."""
        self.controls.visible = False
        self._text_at = self._plotted_at = -1e9

    def tick(self, now: float) -> None:
        """Update what has changed, if somebody is here to see it."""
        if not self.state.sessions:
            return
        if now - self._text_at >= TEXT_SECONDS:
            self._text_at = now
            text = self._progress()
            if text != self._last_text:
                self.text.content = self._last_text = text
        if now - self._plotted_at >= PLOT_SECONDS and len(self.state.history) != self._n_plotted:
            self._plotted_at, self._n_plotted = now, len(self.state.history)
            self._plot()

    def _add_controls(self, gui: viser.GuiApi) -> None:
        pause = gui.add_checkbox("Pause", False, hint="It goes on when the last browser is closed")
        share = gui.add_slider(
            "Share of training", 0.5, 0.99, 0.01, 0.96,
            hint="Of the time, while cameras stand still; while one moves, training has half",
        )  # fmt: skip
        self.pause = pause

        async def paused(event: Any) -> None:
            self.state.paused = pause.value
            self.state.engine.wake()

        async def shared(event: Any) -> None:
            if self.state.sharing is not None:
                self.state.sharing.training = float(share.value)

        pause.on_update(paused)
        share.on_update(shared)

    def _progress(self) -> str:
        """How far training is."""
        state, trainer = self.state, self.state.training
        line = next((line for line in reversed(state.history) if "loss" in line), {})
        step, seconds = (trainer.step, trainer.seconds) if trainer else (line.get("step", 0), line.get("seconds", 0.0))
        parts = [f"step {step} of {state.subject.config.trainer.steps}", f"{seconds:.0f} s of training"]
        if "psnr" in line:
            parts.append(f"PSNR {line['psnr']:.2f} dB on training rays")
        if trainer is not None and not state.paused and self.pause.value:
            self.pause.value = False
        doing = "paused" if state.paused else "training" if trainer else "not training"
        return f"**{doing}**: {', '.join(parts)}  \nmemory: {memory_in_use(state.subject.background.device)}"

    def _plot(self) -> None:
        """Curves over training time."""
        for key, title in CURVES.items():
            points = [(line["seconds"], line[key]) for line in self.state.history if key in line]
            if len(points) < 2:
                continue
            points = points[:: -(-len(points) // PLOTTED)]
            data = tuple(np.array(points, dtype=np.float64).T.copy())
            if key in self.plots:
                self.plots[key].data = data
            else:
                self.plots[key] = self._new_plot(title, data)

    def _new_plot(self, title: str, data: tuple[np.ndarray, ...]) -> Any:
        from viser import uplot

        with self.tab:
            series = (uplot.Series(label="time [s]"), uplot.Series(label=title, stroke=BLUE, width=2))
            scales = {"x": uplot.Scale(time=False)}
            return self.server.gui.add_uplot(data, series, title=title, scales=scales, aspect=2.0)


def memory_in_use(device: torch.device) -> str:
    """Memory of torch on a GPU, or of the process."""
    if device.type == "cuda":
        return f"{torch.cuda.memory_allocated(device) / 2**30:.2f} GB on {device}"
    if resource is None:
        return "unknown"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB at most"
