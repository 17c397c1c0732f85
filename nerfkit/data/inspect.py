# SPDX-License-Identifier: Apache-2.0
"""One page about a capture before anything is trained: what was found, what was decided, and what to change."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from nerfkit.data.assemble import has_shape
from nerfkit.data.cameras.cameras import table_size
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture
from nerfkit.data.notes import texts
from nerfkit.data.scene_transform.doubts import doubts_of_masks
from nerfkit.data.scene_transform.frame import Frame
from nerfkit.data.scene_transform.rig import evenly, half_tangents
from nerfkit.reading import shown

READY = "ready to train"
MAX_NAMES = 3  # of images in one line
MAX_LENSES = 12  # lines; the rest are counted
FEW_IMAGES = 15  # for training, below which there is a remark
DIRECTION_BYTES = 12  # three float32 for each pixel of each lens
DPI = 100
MAX_CAMERAS, MAX_POINTS = 400, 6000  # that are drawn
COLORS = {"train": "tab:blue", "test": "tab:orange", "val": "tab:green"}
OTHER_COLOR = "tab:gray"
SIDES = ((0, 1, "from above"), (0, 2, "from the front"), (1, 2, "from the right"))  # axes across and up
PARAMETERS = {  # names of a lens model's parameters, in their order
    "SIMPLE_PINHOLE": "f cx cy",
    "PINHOLE": "fx fy cx cy",
    "SIMPLE_RADIAL": "f cx cy k",
    "RADIAL": "f cx cy k1 k2",
    "OPENCV": "fx fy cx cy k1 k2 p1 p2",
    "OPENCV_FISHEYE": "fx fy cx cy k1 k2 k3 k4",
    "FULL_OPENCV": "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6",
    "FOV": "fx fy cx cy omega",
    "SIMPLE_RADIAL_FISHEYE": "f cx cy k",
    "RADIAL_FISHEYE": "f cx cy k1 k2",
    "THIN_PRISM_FISHEYE": "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1",
    "SIMPLE_FISHEYE": "f cx cy",
    "FISHEYE": "fx fy cx cy",
}


@dataclass(frozen=True)
class OnDisk:
    """What is known of an image file that exists."""

    width: int  # pixels
    height: int
    has_alpha: bool = False  # or is cut out by its mask
    ignored: float | None = None  # share of pixels that its mask ignores; none without a mask
    is_turned: bool = False  # by its EXIF orientation


def report(
    capture: Capture,
    frame: Frame,
    found: Sequence[OnDisk | None],
    splits: dict[str, list[str]],
    rule: str,
    unreadable: Collection[str] = (),
) -> str:
    """A page of text. `found` has an entry for each image of the capture, none where there is no file.

    `splits` are names of images that exist, by split, and `rule` says how they were chosen. Of `unreadable` images,
    given by their names, there are files of which nothing was found.
    """
    if len(found) != len(capture.images):
        raise ValueError(f"{len(capture.images)} images, but {len(found)} entries of what was found")
    noted = [shown(str(note)) for note in capture.notes]
    sections = {
        "capture": [f"{shown(capture.name)}, read as {shown(capture.format)}", *noted],
        "images": _images(capture, found, unreadable),
        "lenses": _lenses(capture),
        "split": _splits(splits, rule),
        "frame": texts(frame.notes, "info"),
        "memory": _memory(capture, found),
        "verdict": verdict(capture, frame, found, splits, unreadable),
    }
    return "\n".join(f"{title:8} {line}" for name, lines in sections.items() for title, line in _titled(name, lines))


def verdict(
    capture: Capture,
    frame: Frame,
    found: Sequence[OnDisk | None],
    splits: dict[str, list[str]],
    unreadable: Collection[str] = (),
) -> list[str]:
    """What to change before training, most important first; READY alone if there is nothing."""
    noted = texts(capture.notes, "warning")
    missing = _missing(_absent(capture, found, unreadable), len(found))
    problems = [*noted, *missing, *_shapes(capture, found), *frame.warnings(), *_masks(capture, found)]
    train, test = (len(splits.get(name, [])) for name in ("train", "test"))
    if train < FEW_IMAGES:
        problems.append(f"{train} training images are few; {FEW_IMAGES} and more are usual")
    if not test:
        problems.append("there are no test images, so nothing is scored")
    alpha = sum(image.has_alpha for image in found if image)
    if 0 < alpha < sum(image is not None for image in found):
        problems.append(f"{alpha} images have alpha and the others do not; give all of them alpha, or none")
    return problems or [READY]


def draw(capture: Capture, frame: Frame, splits: dict[str, list[str]], width: int = 1500, height: int = 600) -> bytes:
    """A PNG of `width` x `height` pixels: cameras, points and box in the model's frame from three sides."""
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="constrained")  # not pyplot's
    poses = frame.to_model(np.array([image.camera_to_world for image in capture.images]).reshape(-1, 3, 4))
    chosen = evenly(len(poses), MAX_CAMERAS)
    lines = _frusta(capture, poses, chosen)  # [C, 8, 2, 3]
    split_of = {name: split for split, names in splits.items() for name in names}
    labels = np.array([split_of.get(capture.images[k].name, "in no split") for k in chosen])
    points = np.zeros((0, 3))
    if capture.points is not None:
        points = frame.to_model(capture.points.positions[evenly(len(capture.points.positions), MAX_POINTS)])
    low, high = _limits(poses[:, :, 3], frame.box)
    for axes, (across, upward, title) in zip(figure.subplots(1, 3), SIDES, strict=True):
        axis = [across, upward]
        if len(points):
            axes.plot(*points[:, axis].T, ".", color="0.6", markersize=1.5, label=f"points ({len(points)})", zorder=1)
        for label in sorted(set(labels), key=lambda label: (label != "train", label)):  # the fewer above the many
            segments = lines[labels == label][..., axis].reshape(-1, 2, 2)
            color = COLORS.get(label, OTHER_COLOR)
            axes.add_collection(LineCollection(segments, colors=color, linewidths=0.7, label=_plain(label), zorder=2))
        _draw_box(axes, frame.box[:, axis])
        _draw_up(axes, frame.up[axis])
        axes.set(xlabel="xyz"[across], ylabel="xyz"[upward], title=title, aspect="equal")
        axes.set(xlim=(low[across], high[across]), ylim=(low[upward], high[upward]))
        axes.grid(alpha=0.3)
    handles, names = figure.axes[0].get_legend_handles_labels()
    for text in figure.legend(handles, names, loc="outside lower center", ncols=len(names)).get_texts():
        text.set_parse_math(False)
    for handle in figure.legends[0].legend_handles:
        handle.set_linewidth(2.5)
    shown_cameras = f"{len(chosen)} of {len(poses)} cameras" if len(chosen) < len(poses) else f"{len(poses)} cameras"
    title = f"{_plain(capture.name)}: {frame.kind}, {shown_cameras}; 1 model unit = {1 / frame.scale:.4g} input units"
    figure.suptitle(title, parse_math=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    return content.getvalue()


def _titled(name: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Lines with the section's name before the first."""
    return [(name if index == 0 else "", line) for index, line in enumerate(lines)]


def _absent(capture: Capture, found: Sequence[OnDisk | None], unreadable: Collection[str]) -> list[str]:
    """Names of the images that have no file."""
    pairs = zip(capture.images, found, strict=True)
    return [image.name for image, file in pairs if file is None and image.name not in unreadable]


def _images(capture: Capture, found: Sequence[OnDisk | None], unreadable: Collection[str]) -> list[str]:
    there = [image for image in found if image is not None]
    absent = _absent(capture, found, unreadable)
    lines = [f"{len(found)} listed, {len(found) - len(absent)} exist, {len(absent)} missing"]
    if unreadable:
        lines.append(f"of no readable header or mask: {len(unreadable)} ({_names(list(unreadable))})")
    if absent:
        lines.append(f"missing: {_names(absent)}")
    sizes = Counter((image.width, image.height) for image in there).most_common()
    if sizes:
        text = ", ".join(f"{count} of {width}x{height}" for (width, height), count in sizes[:MAX_LENSES])
        lines.append(f"sizes: {text}" + _more(len(sizes) - MAX_LENSES, "sizes"))
    lines.append(f"with alpha: {sum(image.has_alpha for image in there)}, with mask: {sum(_has_mask(there))}")
    if turned := sum(image.is_turned for image in there):
        lines.append(f"turned by their EXIF orientation: {turned}, so that the poses have to be of the turned images")
    shares = [image.ignored for image in there if image.ignored is not None]
    if shares:
        color = "white" if capture.white_ignores else "black"
        lines.append(f"masks: {color} is ignored, {np.mean(shares):.1%} of the pixels of images with a mask")
    return lines


def _lenses(capture: Capture) -> list[str]:
    """Each lens with model, size, focal lengths, angles, the other parameters, and how many images it took."""
    counts = Counter(image.lens for image in capture.images).most_common()
    lines = [f"{_lens_text(lens)}: {_plural(count, 'image')}" for lens, count in counts[:MAX_LENSES]]
    rest = [lens for lens, _ in counts[MAX_LENSES:]]
    for model, count in Counter(lens.model for lens in rest).most_common():
        focals = [lens.params[0] for lens in rest if lens.model == model and lens.params]
        lines.append(f"and {count} more of {shown(model)}, focal {min(focals):.6g} to {max(focals):.6g}")
    return lines


def _lens_text(lens: Lens) -> str:
    names = PARAMETERS.get(lens.model, "").split()
    values = dict(zip(names, lens.params, strict=False)) if len(names) == len(lens.params) else {}
    texts = [f"{name} {value:.5g}" for name, value in values.items()] or [f"{value:.5g}" for value in lens.params]
    angles = [2 * math.degrees(math.atan(tangent)) for tangent in half_tangents(lens)]
    view = f"about {angles[0]:.0f} x {angles[1]:.0f} degrees"
    return f"{shown(lens.model)} {lens.width}x{lens.height}, {view}, {' '.join(texts)}"


def _splits(splits: dict[str, list[str]], rule: str) -> list[str]:
    return [shown(rule), *(f"{shown(name)}: {len(names)} ({_names(names)})" for name, names in splits.items())]


def _memory(capture: Capture, found: Sequence[OnDisk | None]) -> list[str]:
    """What training keeps of the images, as they are on disk."""
    there = [(image.lens, file) for image, file in zip(capture.images, found, strict=True) if file is not None]
    channels = 4 if any(file.has_alpha for _, file in there) else 3
    pixels = sum(file.width * file.height for _, file in there)
    masked = pixels if any(file.ignored is not None for _, file in there) else 0
    lenses = {lens.resized(file.width, file.height) for lens, file in there}
    directions = DIRECTION_BYTES * table_size(list(lenses))
    total = pixels * channels + masked + directions
    return [
        f"about {_megabytes(total)} in memory: images {_megabytes(pixels * channels)}, masks {_megabytes(masked)}, "
        f"directions of {_plural(len(lenses), 'lens', 'lenses')} {_megabytes(directions)}"
    ]


def _missing(absent: list[str], n_images: int) -> list[str]:
    if not absent:
        return []
    text = f"{len(absent)} of {n_images} images are missing ({_names(absent)})"
    if 2 * len(absent) > n_images:
        return [f"{text}: more than half; is the folder of the images the right one?"]
    return [f"{text}: they are left out; take them from the file, or bring them back"]


def _shapes(capture: Capture, found: Sequence[OnDisk | None]) -> list[str]:
    """Images whose shape is not the lens's: turned, or another."""
    turned, other = [], []
    for image, file in zip(capture.images, found, strict=True):
        if file is not None and not has_shape(image.lens, file.width, file.height):
            (turned if has_shape(image.lens, file.height, file.width) else other).append(image.name)
    lines = []
    if turned:
        lines.append(
            f"{_plural(len(turned), 'image')} on the side ({_names(turned)}): width and height are those of the lens, "
            "swapped; turn the pixels as the lens has them"
        )
    if other:
        lines.append(
            f"{_plural(len(other), 'image')} of another shape than the lens ({_names(other)}): were they cropped? "
            "Give the lens of the images as they are"
        )
    return lines


def _masks(capture: Capture, found: Sequence[OnDisk | None]) -> list[str]:
    there = [image for image in found if image is not None]
    shares = [image.ignored for image in there if image.ignored is not None]
    lines = []
    if shares and len(shares) < len(there):
        lines.append(f"{len(there) - len(shares)} of {len(there)} images have no mask; all of their pixels are used")
    return lines + doubts_of_masks(shares, capture.white_ignores)


def _has_mask(images: Iterable[OnDisk]) -> list[bool]:
    return [image.ignored is not None for image in images]


def _frusta(capture: Capture, poses: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Line segments [C, 8, 2, 3] of the cameras `chosen` [C]: four edges from the eye, four around the image."""
    positions = poses[:, :, 3]
    depth = 0.06 * max(float(np.ptp(positions, axis=0).max()), 1.0) if len(poses) else 1.0  # model units
    tangents = {lens: half_tangents(lens) for lens in {capture.images[k].lens for k in chosen}}
    half = np.array([tangents[capture.images[k].lens] for k in chosen]).reshape(-1, 1, 2)
    signs = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    corners = np.concatenate([half * signs, -np.ones((len(chosen), 4, 1))], axis=-1)  # [C, 4, 3] at depth 1
    corners /= np.maximum(np.linalg.norm(half, axis=-1, keepdims=True), 1)  # of wide angles, too, a small figure
    eyes = positions[chosen][:, None]  # [C, 1, 3]
    corners = eyes + depth * np.einsum("cij,ckj->cki", poses[chosen][:, :, :3], corners)
    edges = np.stack([np.broadcast_to(eyes, corners.shape), corners], axis=2)
    return np.concatenate([edges, np.stack([corners, np.roll(corners, -1, axis=1)], axis=2)], axis=1)


def _limits(positions: np.ndarray, box: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest corner [3] of what is drawn: the cameras, and the box unless it is enormous."""
    low, high = np.minimum(positions.min(0), 0), np.maximum(positions.max(0), 0)  # the origin, too
    reach = 3 * max(float((high - low).max()), 1.0)
    low, high = np.minimum(low, np.maximum(box[0], low - reach)), np.maximum(high, np.minimum(box[1], high + reach))
    margin = 0.05 * float((high - low).max())
    return low - margin, high + margin


def _draw_box(axes: Axes, box: np.ndarray) -> None:
    (left, bottom), (right, top) = box
    axes.plot(
        [left, right, right, left, left], [bottom, bottom, top, top, bottom], "k--", linewidth=1, label="box", zorder=3
    )


def _draw_up(axes: Axes, up: np.ndarray) -> None:
    """A line of half a model unit from the centre; seen from its end, a dot."""
    axes.plot([0, 0.5 * up[0]], [0, 0.5 * up[1]], "-", color="tab:red", linewidth=2, label="center, up", zorder=4)
    axes.plot(0, 0, "o", color="tab:red", markersize=4, zorder=4)


def _names(names: Sequence[str]) -> str:
    return ", ".join(shown(name, 60) for name in names[:MAX_NAMES]) + _more(len(names) - MAX_NAMES)


def _more(count: int, what: str = "") -> str:
    return f" and {count} more {what}".rstrip() if count > 0 else ""


def _plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MB"


def _plain(text: str) -> str:
    """Text that every font has."""
    return shown(text, 80).encode("ascii", "replace").decode()
