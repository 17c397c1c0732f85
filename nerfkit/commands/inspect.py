# SPDX-License-Identifier: Apache-2.0
"""`nerfkit inspect`: one page about a scene before anything is trained, and a drawing of its cameras.

The page says what was found, what was decided, and what to change.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from nerfkit.commands.options import InspectOptions
from nerfkit.config import Config, DataConfig, check
from nerfkit.data.assemble import CUT_OUT, doubts_of_cut_out, has_shape, scene_frame, split_names, turned_for
from nerfkit.data.cameras.cameras import table_size
from nerfkit.data.cameras.lens import MODELS, Lens
from nerfkit.data.capture import Capture, PosedImage, as_warnings, notes_of, texts
from nerfkit.data.images.pixels import look_into, read_mask
from nerfkit.data.judging import judge
from nerfkit.data.load import load_capture
from nerfkit.data.readers.folders import beside
from nerfkit.data.scene import in_words
from nerfkit.data.scene_transform.doubts import doubts_of_masks, doubts_of_pictures, outlines_an_object
from nerfkit.data.scene_transform.frame import Frame
from nerfkit.data.scene_transform.rig import evenly, half_tangents
from nerfkit.errors import SceneError
from nerfkit.files import OwnFolder
from nerfkit.reading import shown
from nerfkit.threads import cores

PAGE, DRAWING = "inspect.txt", "inspect.png"
PICTURES = 8  # evenly spaced, whose pixels are looked at
MAX_THREADS = 16
READY = "ready to train"
MAX_NAMES = 3  # of images in one line
MAX_LENSES = 12  # lines; the rest are counted
WRONG_SHAPES = (  # whether the image has that of its lens if it is turned, what it is, and what to do
    (True, "on the side", "width and height are swapped; turn the pixels as the lens has them"),
    (False, "of another shape than the lens", "were they cropped? Give the lens of the images as they are"),
)
FEW_IMAGES = 15  # for training, below which there is a remark
DIRECTION_BYTES = 12  # three float32 for each pixel of each lens
MAX_CAMERAS, MAX_POINTS = 400, 6000  # that are drawn
COLORS = {"train": "tab:blue", "test": "tab:orange", "val": "tab:green"}
SIDES = ((0, 1, "from above"), (0, 2, "from the front"), (1, 2, "from the right"))  # axes across and up


def main(options: InspectOptions) -> int:
    data = options.data
    check(Config(data=data))  # raises ConfigError for what training would refuse
    folder = OwnFolder(options.out, "inspection") if options.out else None
    if folder is not None:
        folder.check_free()  # fails, if it does, before anything is read
    page, is_ready, drawing = examine(load_capture(data.path, data.format, data.sfm), data)
    print(page)
    if folder is not None:
        folder.claim()
        folder.write(PAGE, page + "\n")
        folder.write(DRAWING, drawing())
        print(f"\nthe page and a drawing of the cameras: {folder.path / PAGE}, {folder.path / DRAWING}")
    return 0 if is_ready else 1


def examine(capture: Capture, data: DataConfig) -> tuple[str, bool, Callable[[], bytes]]:
    """The page about a capture, whether it is ready to train, and what draws it."""
    cutout = data.masks == "cutout"
    candidates = [image for image in capture.images if image.found is not None]

    def on_disk(image: PosedImage, problem: str) -> OnDisk:
        header = judged.headers.get(image.name)
        ignored, outlines_object = None, False
        if header is None:
            return OnDisk(0, 0, problem=problem)
        if image.mask is not None and not cutout:
            try:
                mask = read_mask(image.mask, (header.width, header.height), judged.masks) == capture.white_ignores
            except SceneError as error:
                return OnDisk(0, 0, problem=str(error))
            ignored, outlines_object = float(mask.mean()), outlines_an_object(mask)
        width, height = (max(1, round(side / data.downscale)) for side in (header.width, header.height))
        has_alpha = header.has_alpha or (cutout and image.mask is not None)
        return OnDisk(width, height, has_alpha, ignored, outlines_object, problem)

    with ThreadPoolExecutor(min(cores(), MAX_THREADS)) as pool:
        sampled = set(evenly(len(candidates), PICTURES))
        is_sampled = [index in sampled for index in range(len(candidates))]
        looks = pool.map(look_into, [image.found for image in candidates], is_sampled)
        looks = list(tqdm(looks, "images", len(candidates), unit="image", leave=False))
        pairs = zip(candidates, looks, strict=True)
        headers = {image.name: turned_for(image.lens, header) for image, (header, *_) in pairs if header is not None}
        training = [image.name for image in split_names(capture, candidates)[0].get("train", [])]
        judged = judge(capture, headers, training, cutout)
        files = list(pool.map(on_disk, candidates, [problem for _, problem, _ in looks]))
    pictures = [
        pixels.reshape(-1, 4)
        for image, (header, _, pixels) in zip(candidates, looks, strict=True)
        if pixels is not None and header.bits == judged.headers[image.name].bits
    ]
    there = [image for image, file in zip(candidates, files, strict=True) if file.width]
    chosen, rule = split_names(capture, there)
    splits = {split: [image.name for image in images] for split, images in chosen.items()}
    frame = scene_frame(capture, splits.get("train", []), judged, data.box)
    broken = [(image, file.problem) for image, file in zip(candidates, files, strict=True) if file.problem]
    doubts = [problem for _, problem in broken[:MAX_NAMES]]
    if others := [shown(image.name, 60) for image, _ in broken[MAX_NAMES:]]:
        doubts.append(f"and {len(others)} more images that cannot be read: {', '.join(others)}")
    doubts = doubts or doubts_of_pictures(pictures, data.background or "white")
    notes = []
    if cutout:
        notes.append(CUT_OUT)
        doubts += doubts_of_cut_out(there, judged.headers)
    if data.downscale != 1:
        notes.append(f"data.downscale {data.downscale:g}: sizes of images are those that are trained")
    frame = replace(frame, notes=(*frame.notes, *as_warnings(doubts)))
    capture = replace(capture, notes=notes_of(*capture.notes, *judged.notes, *notes))
    remaining = iter(files)
    found = [next(remaining) if image.found is not None else None for image in capture.images]
    inspection = Inspection(capture, frame, found, splits, rule)
    return inspection.page(), not inspection.problems(), lambda: draw(capture, frame, splits)


@dataclass(frozen=True)
class OnDisk:
    """What is known of an image file that exists."""

    width: int  # pixels; 0 where it cannot be read
    height: int
    has_alpha: bool = False  # or is cut out by its mask
    ignored: float | None = None  # share of pixels that its mask ignores; none without a mask
    outlines_object: bool = False  # its mask ignores the border of the image and keeps the middle
    problem: str = ""  # why it cannot be read, or not whole


@dataclass(frozen=True)
class Inspection:
    """A capture, and what was found of its files."""

    capture: Capture
    frame: Frame
    found: Sequence[OnDisk | None]  # of each image of the capture, none without a file
    splits: dict[str, list[str]]  # names of images that exist
    rule: str  # by which they were chosen

    @property
    def there(self) -> list[tuple[PosedImage, OnDisk]]:
        """Images that have a readable file."""
        pairs = zip(self.capture.images, self.found, strict=True)
        return [(image, file) for image, file in pairs if file and file.width]

    @property
    def missing(self) -> list[PosedImage]:
        """Images that have no file."""
        return [image for image, file in zip(self.capture.images, self.found, strict=True) if file is None]

    @property
    def ignored(self) -> list[float]:
        """Shares of pixels that masks ignore, of the images that have one."""
        return [file.ignored for _, file in self.there if file.ignored is not None]

    def page(self) -> str:
        """All of it as text."""
        capture = self.capture
        sections = {
            "capture": [
                f"{shown(capture.name)}, read as {shown(capture.format)}",
                *(shown(str(note)) for note in capture.notes),
            ],
            "images": self._images(),
            "lenses": _lenses([image.lens for image in capture.images]),
            "split": [
                shown(self.rule),
                *(f"{shown(name)}: {len(names)} ({_names(names)})" for name, names in self.splits.items()),
            ],
            "frame": texts(self.frame.notes, "info"),
            "memory": [self._memory()],
            "verdict": self.problems() or [READY],
        }
        lines = [(name * (k == 0), line) for name, lines in sections.items() for k, line in enumerate(lines)]
        return "\n".join(f"{title:8} {line}" for title, line in lines)

    def problems(self) -> list[str]:
        """What to change before training, most important first."""
        problems = texts(self.capture.notes, "warning")
        if missing := self.missing:
            what = "they are left out; take them from the file, or bring them back"
            if 2 * len(missing) > len(self.found):
                what = f"more than half; is the folder of the images the right one?{beside(missing[0].file)}"
            names = _names([image.name for image in missing])
            problems.append(f"{len(missing)} of {len(self.found)} images are missing ({names}): {what}")
        for is_turned, what, why in WRONG_SHAPES:
            names = [
                image.name
                for image, file in self.there
                if not has_shape(image.lens, file.width, file.height)
                and has_shape(image.lens, file.height, file.width) == is_turned
            ]
            if names:
                problems.append(f"{_count(len(names), 'image')} {what} ({_names(names)}): {why}")
        problems += self.frame.warnings()
        n_there, n_masks = len(self.there), len(self.ignored)
        if 0 < n_masks < n_there:
            problems.append(f"{n_there - n_masks} of {n_there} images have no mask; all of their pixels are used")
        n_outlines = sum(file.outlines_object for _, file in self.there)
        problems += doubts_of_masks(self.ignored, n_outlines, self.capture.white_ignores)
        train, test = (len(self.splits.get(name, [])) for name in ("train", "test"))
        if train < FEW_IMAGES:
            problems.append(f"{train} training images are few; {FEW_IMAGES} and more are usual")
        if not test:
            problems.append("there are no test images, so nothing is scored")
        alpha = sum(file.has_alpha for _, file in self.there)
        if 0 < alpha < n_there:
            problems.append(f"{alpha} images have alpha and the others do not; give all of them alpha, or none")
        return problems

    def _images(self) -> list[str]:
        files, n_missing = [file for _, file in self.there], len(self.missing)
        lines = [f"{len(self.found)} listed, {len(self.found) - n_missing} exist, {n_missing} missing"]
        if n_broken := len(self.found) - n_missing - len(files):
            lines.append(f"of no readable header or mask: {n_broken}")
        if files:
            lines.append(f"sizes: {in_words([(file.width, file.height) for file in files])}")
        lines.append(f"with alpha: {sum(file.has_alpha for file in files)}, with mask: {len(self.ignored)}")
        if self.ignored:
            color = "white" if self.capture.white_ignores else "black"
            lines.append(f"masks: {color} is ignored, {np.mean(self.ignored):.1%} of the pixels of images with a mask")
        return lines

    def _memory(self) -> str:
        """What training keeps of the images, as they are on disk."""
        channels = 4 if any(file.has_alpha for _, file in self.there) else 3
        pixels = sum(file.width * file.height for _, file in self.there)
        masked = pixels if self.ignored else 0
        lenses = {image.lens.resized(file.width, file.height) for image, file in self.there}
        directions = DIRECTION_BYTES * table_size(list(lenses))
        return (
            f"about {_megabytes(pixels * channels + masked + directions)} in memory: images "
            f"{_megabytes(pixels * channels)}, masks {_megabytes(masked)}, directions of "
            f"{_count(len(lenses), 'lens', 'es')} {_megabytes(directions)}"
        )


def draw(capture: Capture, frame: Frame, splits: dict[str, list[str]]) -> bytes:
    """A PNG: cameras, points and box in the model's frame from three sides."""
    figure = Figure(figsize=(15, 6), layout="constrained")  # not pyplot's
    images = [capture.images[k] for k in evenly(len(capture.images), MAX_CAMERAS)]
    poses = frame.to_model(np.array([image.camera_to_world for image in images]))
    ahead = -0.12 * max(float(np.ptp(poses[:, :, 3], axis=0).max()), 1.0) * poses[:, :, 2]  # [C, 3] model units
    split_of = {name: split for split, names in splits.items() for name in names}
    labels = np.array([split_of.get(image.name, "in no split") for image in images])
    points = np.zeros((0, 3)) if capture.points is None else capture.points.positions
    points = frame.to_model(points[evenly(len(points), MAX_POINTS)])
    low, high = _limits(poses[:, :, 3], frame.box)
    for axes, (across, upward, title) in zip(figure.subplots(1, 3), SIDES, strict=True):
        axis = [across, upward]
        if len(points):
            axes.plot(*points[:, axis].T, ".", color="0.6", markersize=1.5, label=f"points ({len(points)})", zorder=1)
        for label in sorted(set(labels), key=lambda label: (label != "train", label)):  # the fewer above the many
            arrows = *poses[labels == label][:, axis, 3].T, *ahead[labels == label][:, axis].T
            drawn = axes.quiver(*arrows, angles="xy", scale_units="xy", scale=1, width=0.003, zorder=2)
            drawn.set(color=COLORS.get(label, "tab:gray"), label=_plain(label))
        around = frame.box[[0, 1, 1, 0, 0], across], frame.box[[0, 0, 1, 1, 0], upward]
        axes.plot(*around, "k--", linewidth=1, label="box", zorder=3)
        center, end = np.zeros(2), 0.5 * frame.up[axis]  # half a model unit away; seen from its end, a dot
        style = {"color": "tab:red", "linewidth": 2, "marker": "o", "markersize": 4, "markevery": [0]}
        axes.plot(*zip(center, end, strict=True), **style, label="center, up", zorder=4)
        axes.set(xlabel="xyz"[across], ylabel="xyz"[upward], title=title, aspect="equal")
        axes.set(xlim=(low[across], high[across]), ylim=(low[upward], high[upward]))
        axes.grid(alpha=0.3)
    handles, names = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    for handle in legend.legend_handles:
        handle.set_linewidth(2.5)
    figure.suptitle(
        f"{_plain(capture.name)}: {frame.kind}, {len(images)} of {len(capture.images)} cameras; "
        f"1 model unit = {1 / frame.scale:.4g} input units"
    )
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()


def _lenses(lenses: list[Lens]) -> list[str]:
    """Each lens with model, size, angles, parameters, and how many images it took."""
    counts = Counter(lenses).most_common()
    lines = []
    for lens, count in counts[:MAX_LENSES]:
        across, down = (2 * math.degrees(math.atan(tangent)) for tangent in half_tangents(lens))
        values = " ".join(f"{n} {x:.5g}" for n, x in zip(MODELS[lens.model][1], lens.params, strict=True))
        view = f"about {across:.0f} x {down:.0f} degrees"
        lines.append(f"{lens.model} {lens.width}x{lens.height}, {view}, {values}: {_count(count, 'image')}")
    rest = [lens for lens, _ in counts[MAX_LENSES:]]
    for model, count in Counter(lens.model for lens in rest).most_common():
        focals = [lens.params[0] for lens in rest if lens.model == model]
        lines.append(f"and {count} more of {model}, focal {min(focals):.6g} to {max(focals):.6g}")
    return lines


def _limits(positions: np.ndarray, box: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest corner [3] of the drawing: cameras and origin, and the box up to three times as far."""
    low, high = np.minimum(positions.min(0), 0), np.maximum(positions.max(0), 0)
    reach = 3 * max(float((high - low).max()), 1.0)
    low, high = np.minimum(low, np.maximum(box[0], low - reach)), np.maximum(high, np.minimum(box[1], high + reach))
    margin = 0.05 * float((high - low).max())
    return low - margin, high + margin


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(shown(name, 60) for name in names[:MAX_NAMES]) + more


def _count(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{plural * (count != 1)}"


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MB"


def _plain(text: str) -> str:
    """ASCII text for matplotlib, which would read $ as the start of a formula."""
    return shown(text, 80).encode("ascii", "replace").decode().replace("$", r"\$")
