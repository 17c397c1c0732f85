# SPDX-License-Identifier: Apache-2.0
"""The tabs View, each browser's own, and Run: how the training goes or went."""

import math
from typing import Any

import numpy as np
import viser

from nerfkit.config.recipe import UNLIMITED
from nerfkit.training.run.files import of_scores, scores_file
from nerfkit.viewer.frames import BACKGROUNDS, COLORMAPS, COMPARING, OUTPUTS, vertical_fov
from nerfkit.viewer.session import Session, State

SHOWN_SECONDS = 1.0  # between two updates
PLOTTED = 500  # points of a curve at most
CURVES = {
    "psnr": "PSNR of training rays [dB]",
    "test_psnr": "PSNR of held-out views [dB]",  # with eval.every
}
BLUE = "#2a5ac8"
FLYING = 0.02  # of the way to what is seen, about which a flying camera turns
KEYS = """Drag: turn. Right button: move sideways. Wheel: nearer, farther.
W A S D: forward, left, back, right. Q E: down, up. Arrows: turn.
Click: how deep it is there. Two clicks: how far apart."""


def add_view_controls(tab: viser.GuiTabHandle, session: Session) -> None:
    gui = session.client.gui
    with tab:
        session.status, session.probed = gui.add_markdown(""), gui.add_markdown("")
        _add_outputs(gui, session)
        _add_views(gui, session)
        _add_scale(gui, session)
        for note in session.state.scene.notes:
            gui.add_markdown(f"*{note}*")


def _add_outputs(gui: viser.GuiApi, session: Session) -> None:
    scene, has_photos = session.state.scene, session.state.scene.photo is not None
    reach = scene.size + abs(scene.cameras.positions.numpy() - scene.box.mean(0)).max()
    far = float(f"{3 * reach:.1g}")
    names = [name for name in OUTPUTS if name != COMPARING or has_photos]
    output = gui.add_dropdown("Output", names, initial_value="color")
    colormap = gui.add_dropdown("Colors", COLORMAPS, initial_value=session.look.colormap)
    auto = gui.add_checkbox("Automatic range", True, hint="Colors from the nearest to the farthest depth in sight")
    depths = gui.add_multi_slider(
        "Depths", 0.0, far, far / 200, (0.0, far), hint="Ends of the colors of depth [model units]"
    )
    background = gui.add_dropdown("Background", tuple(BACKGROUNDS))
    split = gui.add_checkbox("Split screen", False, hint="The nearest training image on the right, as seen from here")
    at = gui.add_slider("Split at", 0.0, 1.0, 0.01, 0.5)
    side = gui.add_slider(
        "Largest side", 64, 2048, 32, min(session.max_side, 2048), hint="Of frames, in pixels; less is faster"
    )

    def changed(session: Session) -> None:
        session.max_side, is_depth = int(side.value), output.value == "depth"
        colormap.visible = is_depth or output.value in ("samples", COMPARING)
        auto.visible, depths.visible = is_depth, is_depth and not auto.value
        background.visible, split.visible, at.visible = output.value == "color", has_photos, bool(split.value)
        session.change(
            output=output.value,
            colormap=colormap.value,
            depth_range=None if auto.value else tuple(depths.value),
            split=at.value if split.value else None,
            background=background.value,
        )

    controls = (output, colormap, auto, depths, background, split, at, side)
    session.state.on(changed, *(control.on_update for control in controls))
    session.state.attempt(session, changed)


def _add_views(gui: viser.GuiApi, session: Session) -> None:
    steps = gui.add_button_group("Training view", ("Previous", "Nearest", "Next"))
    camera = gui.add_button_group(
        "Camera", ("Reset", "Level", "New up"),
        hint="Reset: to the start. Level: upright, in place. New up: drag around what is up now",
    )  # fmt: skip
    mouse = gui.add_button_group("Mouse", ("Orbit", "Fly"), hint="Dragging goes around what is seen, or looks around")
    now = min(round(math.degrees(vertical_fov(session.state.scene.cameras, 0)), 1), 170.0)
    session.fov = fov = gui.add_slider("Field of view", 1.0, 170.0, 0.1, now, hint="Vertical, in degrees")
    with gui.add_folder("Keys and mouse", expand_by_default=False):
        gui.add_markdown(KEYS)

    def step(session: Session) -> None:
        by = {"Previous": -1, "Nearest": 0, "Next": 1}[steps.value]
        session.go_to((session.current_view() + by) % len(session.state.scene.cameras))

    do = {"Reset": Session.reset, "Level": Session.level, "New up": Session.set_up}
    session.state.on(step, steps.on_click)
    session.state.on(lambda session: do[camera.value](session), camera.on_click)
    session.state.on(lambda session: session.turn_about(FLYING if mouse.value == "Fly" else 1.0), mouse.on_click)
    session.state.on(lambda session: setattr(session.client.camera, "fov", math.radians(fov.value)), fov.on_update)


def _add_scale(gui: viser.GuiApi, session: Session) -> None:
    with gui.add_folder("Scale", expand_by_default=False):
        meters = gui.add_number("Distance [m]", 1.0, min=0.0, hint="Between the last two clicks into the scene")
        button = gui.add_button("Keep", hint="Exports of this run are in meters then")
    state = session.state
    state.on(lambda session: state.do_later(session, Session.keep_scale, meters.value), button.on_click)


class RunPanel:
    """Progress of a training, its pause and how much time it gets, and curves over its time."""

    def __init__(self, server: viser.ViserServer, tab: viser.GuiTabHandle, state: State):
        self.gui, self.state, self.tab = server.gui, state, tab
        self._shown_at, self._n_plotted = -1e9, 0
        self.plots: dict[str, Any] = {}
        with tab:
            self.text = self.gui.add_markdown("...")
            self.controls = self.gui.add_folder("Training", visible=False)
        with self.controls:
            self.pause = self.gui.add_checkbox("Pause", False, hint="It goes on when the last browser is closed")
            share = self.gui.add_slider(
                "Share of training", 0.5, 0.99, 0.01, state.sharing.training,
                hint="Of the time, while cameras stand still; while one moves, training has half",
            )  # fmt: skip

        def paused(session: Session) -> None:
            state.paused = self.pause.value
            state.engine.wake()

        state.on(paused, self.pause.on_update)
        state.on(lambda session: setattr(state.sharing, "training", float(share.value)), share.on_update)

    def tick(self, now: float) -> None:
        """Update what has changed, if somebody is here to see it."""
        state = self.state
        if not state.sessions or now - self._shown_at < SHOWN_SECONDS:
            return
        self._shown_at, self.controls.visible = now, state.training is not None
        self.pause.value, self.text.content = state.paused, self._progress()
        if len(state.scene.history) != self._n_plotted:
            self._n_plotted = len(state.scene.history)
            self._plot()

    def _progress(self) -> str:
        state, trainer = self.state, self.state.training
        scores = scores_file(state.scene.folder.path, state.scene.config.eval.split)
        if trainer is None and scores.exists():
            return f"**trained**: {of_scores(scores)}"
        line = next((line for line in reversed(state.scene.history) if "loss" in line), {})
        step, seconds = (trainer.step, trainer.seconds) if trainer else (line.get("step", 0), line.get("seconds", 0.0))
        settings = state.scene.config.trainer
        of = "" if settings.steps == UNLIMITED else f" of {settings.steps}"
        limit = f" of {settings.max_seconds:g}" if settings.max_seconds else ""
        parts = [f"step {step}{of}", f"{seconds:.0f}{limit} s of training"]
        if "psnr" in line:
            parts.append(f"PSNR {line['psnr']:.2f} dB on training rays")
        doing = "paused" if state.paused else "training" if trainer else "trained, not scored"
        return f"**{doing}**: {', '.join(parts)}"

    def _plot(self) -> None:
        from viser import uplot

        for key, title in CURVES.items():
            points = [(line["seconds"], line[key]) for line in self.state.scene.history if key in line]
            if len(points) < 2:
                continue
            points = points[:: -(-len(points) // PLOTTED)]
            data = tuple(np.array(points, dtype=np.float64).T.copy())
            if key in self.plots:
                self.plots[key].data = data
                continue
            series = (uplot.Series(label="time [s]"), uplot.Series(label=title, stroke=BLUE, width=2))
            scales = {"x": uplot.Scale(time=False)}
            with self.tab:
                self.plots[key] = self.gui.add_uplot(data, series, title=title, scales=scales, aspect=2.0)
