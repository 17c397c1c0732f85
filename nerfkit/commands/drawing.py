# SPDX-License-Identifier: Apache-2.0
"""Where the cameras of a scene stand and look, with its points and its box: the drawing of `nerfkit inspect`."""

import io
from collections import Counter

import numpy as np
from matplotlib.figure import Figure

from nerfkit.data.capture import Capture
from nerfkit.data.scene_transform.rig import evenly
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.safe_io import printable

MAX_CAMERAS, MAX_POINTS = 400, 6000  # that are drawn
COLORS = {"train": "tab:blue", "test": "tab:orange", "val": "tab:green"}
SIDES = ((0, 1, "from above"), (0, 2, "from the front"), (1, 2, "from the right"))  # axes across and up


def draw(capture: Capture, transform: SceneTransform, splits: dict[str, list[str]]) -> bytes:
    """A PNG: cameras, points and box in the model's frame from three sides."""
    figure = Figure(figsize=(15, 6), layout="constrained")  # not pyplot's
    images = [capture.images[k] for k in evenly(len(capture.images), MAX_CAMERAS)]
    poses = transform.to_model(np.array([image.camera_to_world for image in images]).reshape(-1, 3, 4))
    shown = np.concatenate([poses[:, :, 3], np.zeros((1, 3))])  # the cameras and the center
    margin = 0.2 * max(float(np.ptp(shown, axis=0).max()), 1e-6)  # for what they look at
    low, high = shown.min(0) - margin, shown.max(0) + margin  # [3] each
    around = np.array([image.lens.is_panorama for image in images], dtype=bool)  # a ring each, and no arrow
    ahead = -0.12 * (high - low).max() * poses[:, :, 2] * ~around[:, None]  # [C, 3] model units
    split_of = {name: split for split, names in splits.items() for name in names}
    labels = np.array([split_of.get(image.name, "in no split") for image in images])
    points = np.zeros((0, 3)) if capture.points is None else capture.points.positions
    points = transform.to_model(points[evenly(len(points), MAX_POINTS)])
    for axes, (across, upward, title) in zip(figure.subplots(1, 3), SIDES, strict=True):
        axis = [across, upward]
        if len(points):
            axes.plot(*points[:, axis].T, ".", color="0.6", markersize=1.5, label=f"points ({len(points)})", zorder=1)
        for label in sorted(set(labels), key=lambda label: (label != "train", label)):  # the fewer above the many
            arrows = *poses[labels == label][:, axis, 3].T, *ahead[labels == label][:, axis].T
            drawn = axes.quiver(*arrows, angles="xy", scale_units="xy", scale=1, width=0.005, zorder=2)
            drawn.set(color=COLORS.get(label, "tab:gray"), label=f"{_plain(label)} ({(labels == label).sum()})")
            axes.plot(*arrows[:2], "o", color=COLORS.get(label, "tab:gray"), markersize=5, zorder=2)
        if around.any():
            style = {"color": "0.2", "markersize": 12, "fillstyle": "none", "label": f"panoramas ({around.sum()})"}
            axes.plot(*poses[around][:, axis, 3].T, "o", **style, zorder=2)
        box = transform.box[[0, 1, 1, 0, 0], across], transform.box[[0, 0, 1, 1, 0], upward]
        inset = axes.inset_axes((0.72, 0.72, 0.28, 0.28), xticks=(), yticks=(), aspect="equal", zorder=5)
        inset.plot(*poses[:, axis, 3].T, ".", color=COLORS["train"], markersize=2)
        for place in (axes, inset):
            place.plot(*box, "k--", linewidth=1, label="box", zorder=3)
        center, end = np.zeros(2), 0.3 * (high - low).max() * transform.up[axis]  # seen from its end, a dot
        style = {"color": "tab:red", "linewidth": 2, "marker": "o", "markersize": 4, "markevery": [0]}
        axes.plot(*zip(center, end, strict=True), **style, label="center, up", zorder=4)
        axes.set(xlabel="xyz"[across], ylabel="xyz"[upward], title=title, aspect="equal")
        axes.set(xlim=(low[across], high[across]), ylim=(low[upward], high[upward]))
        axes.grid(alpha=0.3)
    handles, names = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    for handle in legend.legend_handles:
        handle.set_linewidth(2.5)
    models = Counter(image.lens.model for image in capture.images).most_common()
    lenses = ", ".join(f"{count} {model}" for model, count in models)
    figure.suptitle(
        f"{_plain(capture.name)}: {transform.kind}, {len(images)} of {len(capture.images)} cameras with images; "
        f"1 model unit = {1 / transform.scale:.4g} input units\n{lenses}"
    )
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()


def _plain(text: str) -> str:
    """ASCII text for matplotlib, which would read $ as the start of a formula."""
    return printable(text, 80).encode("ascii", "replace").decode().replace("$", r"\$")
