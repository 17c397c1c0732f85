# SPDX-License-Identifier: Apache-2.0
"""Measured depth as distances along rays: files, whether they fit the poses, and sparse points as views see them."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.capture import Capture, DepthFile, Note, PosedImage, as_warnings, notes_of
from nerfkit.data.images.pixels import stored_levels
from nerfkit.data.light import neighbours
from nerfkit.data.scene_transform.rig import evenly
from nerfkit.errors import SceneError
from nerfkit.safe_io import printable, read_regular

FILE_LIMIT = 2**31  # bytes
MILLIMETERS = 0.001  # of whole numbers
DEPTHS = re.compile(r"(^|_)(depth|z|range|distance)", re.I)  # arrays of a file that are taken first
ALONG_RAY = re.compile(r"(?<![a-z])(ray|range|distance)", re.I)  # others are along the axis
SHAPE = 0.05  # by which the ratio of sides may be another
COMPARED, NEIGHBOURS, POINTS = 6, 12, 300  # views, others near each, pixels of a view
ALIKE = 0.5  # dot of the directions of two views that are compared
SIDE = 512  # pixels of a view's longer side
COARSE, AGREE = 0.1, 0.02  # of a distance: how well two views agree
WRONG, CLEARER = 0.03, 1.05  # scales that are said: off 1, times the pixels that agree
LEAST, TOP = 0.05, 0.97  # share of pixels that agree; of the most that do at any scale
TRIED = 20_000  # points without tracks, in each view
CELLS, BEHIND = 24, 0.1  # of a longer side; share of the distance that hides nothing


def read_depth(depth: DepthFile, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, bool, float]:
    """Lengths [H, W] float32 of the nearest pixels of a depth file at a `size` (width, height), in the units of the
    poses; how much each counts, 0 to 1; whether they are along the ray instead of the camera's axis; and the unit."""
    file = depth.file
    values, name = _array(file)
    if values.dtype == np.uint8:
        raise SceneError(f"depth image {printable(file)} has 8 bits, which measure nothing; give 16")
    unit = depth.unit or (1.0 if values.dtype.kind == "f" else MILLIMETERS)
    lengths = _resized(values, size, file).astype(np.float32) * np.float32(unit)
    counts = np.ones_like(lengths)
    if depth.confidence is not None:
        levels = _resized(_array(depth.confidence)[0], size, depth.confidence)
        whole = levels.dtype.kind != "f"
        top = (2 if levels.max() <= 2 else np.iinfo(levels.dtype).max) if whole else 1  # ARKit's are 0, 1 and 2
        counts = np.clip(levels / np.float32(top), 0, 1)
    is_hole = ~(np.isfinite(lengths) & (lengths > 0) & (counts > 0))
    lengths[is_hole] = counts[is_hole] = 0
    return lengths, counts, bool(ALONG_RAY.search(f"{file.parent.name}/{name}")), unit


def _array(file: Path) -> tuple[np.ndarray, str]:
    """The numbers [H, W] of a file, and what they are called there."""
    ending, name, preference = file.suffix.lower(), "", lambda name: (not DEPTHS.search(name), name)
    try:
        if ending == ".exr":
            import OpenEXR

            channels = OpenEXR.File(str(file), separate_channels=True).channels()
            name = min(channels, key=preference)
            values = channels[name].pixels
        elif ending in (".npy", ".npz"):
            content = np.load(io.BytesIO(read_regular(file, FILE_LIMIT, "depth image", SceneError)), allow_pickle=False)
            name = min(content.files, key=preference) if ending == ".npz" else ""
            values = content[name] if name else content
        elif ending == ".bin":  # of COLMAP: width&height&channels&, and the numbers
            *shape, content = read_regular(file, FILE_LIMIT, "depth image", SceneError).split(b"&", 3)
            values = np.frombuffer(content, "<f4").reshape([int(side) for side in reversed(shape)])
        else:
            values = stored_levels(file)[0]
    except ImportError:
        raise SceneError('depth in EXR files needs OpenEXR: pip install "nerfkit[export]"') from None
    except SceneError:
        raise
    except Exception as problem:  # decoders raise nearly anything
        reason = printable(" ".join(str(problem).split()), 100)
        raise SceneError(f"depth image {printable(file)} cannot be read, is it cut or damaged? ({reason})") from None
    values = np.squeeze(values)
    if values.ndim != 2 or values.dtype.kind not in "uif":
        raise SceneError(f"depth image {printable(file)} must hold numbers [H, W], got {list(values.shape)}")
    return values, name


def _resized(values: np.ndarray, size: tuple[int, int], file: Path) -> np.ndarray:
    (height, width), (columns, rows) = values.shape, size
    if abs(width * rows / (height * columns) - 1) > SHAPE:
        what = f"depth image {printable(file)} is {width}x{height}, of another shape than its image"
        raise SceneError(f"{what}, {columns}x{rows}")
    row, column = ((np.arange(n) * 2 + 1) * side // (2 * n) for n, side in ((rows, height), (columns, width)))
    return values[row[:, None], column]


def seen_in_front(cameras: Cameras, points: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of views and of the points [P, 3] that these see, [S] each, where no file says it: of the points that
    fall into a cell of an image, those that are not far behind the nearest."""
    some = torch.from_numpy(evenly(len(points), TRIED))
    views, seen = [], []
    for view, (width, height) in enumerate(cameras.sizes()):
        pixel, depth = cameras.project(points[some], view)
        inside = (depth > 0) & (pixel >= 0).all(1) & (pixel < torch.tensor([width, height])).all(1)
        column, row = (pixel[inside] * CELLS / max(width, height)).long().unbind(1)
        cell, depth = row * CELLS + column, depth[inside]
        nearest = torch.full((CELLS * CELLS,), torch.inf).scatter_reduce(0, cell, depth, "amin")
        seen.append(some[inside][depth <= (1 + BEHIND) * nearest[cell]])
        views.append(torch.full_like(seen[-1], view))
    return torch.cat(views), torch.cat(seen)


def depth_notes(capture: Capture, training: Sequence[str], unit: float) -> tuple[Note, ...]:
    """What the depth images of a capture cover, and a warning where their scale is not that of the poses."""
    names = set(training)
    images = [image for image in capture.images if image.name in names and image.found is not None]
    measured = [image for image in images if image.depth is not None]
    if not measured:
        return ()
    poses = torch.from_numpy(np.stack([image.camera_to_world for image in measured]))
    looks, all_around = poses[:, :, 2], [image.lens.is_panorama for image in measured]
    groups = [
        (one, *(k for k in near if all_around[k] or looks[one] @ looks[k] >= ALIKE))
        for one, *near in neighbours(poses, COMPARED, NEIGHBOURS)
    ]
    pairs = [(one, other) for one, *near in groups for other in near[1::3] or near]  # not the nearest: they tell little
    chosen = sorted({k for pair in pairs for k in pair} or {0})
    views = {k: _View(measured[k], unit) for k in chosen}
    covered = np.mean([view.covered for view in views.values()])
    about = f"{len(measured)} of {len(images)} training images have depth, in {covered:.0%} of their pixels"
    if not covered:
        return as_warnings([f"{about}: nothing but holes; are the files the right ones?"])
    if not pairs:
        return notes_of(about)
    both = [(views[one], views[other]) for one, other in pairs]
    scales = np.geomspace(1e-4, 1e4, 93)  # steps of a fifth
    coarse = scales[_agreement(both, scales, COARSE).argmax()]
    scales = np.append(coarse * 1.01 ** np.arange(-20, 21), 1.0)
    agreeing = _agreement(both, scales, AGREE)
    most = agreeing.max()
    best = scales[agreeing > TOP * most].mean()  # the middle of the best
    if most < LEAST:
        return as_warnings([f"{about}, but no two views agree on it at any scale; are the files of these poses?"])
    if abs(best - 1) > WRONG and most > CLEARER * agreeing[-1]:
        text = f"{about}; views would agree if depths were {best:.3g} times as long: they are not in the poses' unit"
        return as_warnings([f"{text}; give --data.depth_unit {views[chosen[0]].unit * best:.3g}, or correct the files"])
    return notes_of(f"{about}, in the unit of the poses")


class _View:
    """Some pixels of a view, as points before its camera, and the lengths that it has everywhere."""

    def __init__(self, image: PosedImage, unit: float):
        lens = self.lens = image.lens
        scale = min(1.0, SIDE / max(lens.width, lens.height))
        size = tuple(max(1, round(scale * side)) for side in (lens.width, lens.height))
        lengths, _, along_ray, self.unit = read_depth(image.depth_in(unit), size)
        self.covered = float((lengths > 0).mean())
        self.pose = image.camera_to_world * np.array([1.0, -1, -1, 1])  # to OpenCV's axes
        rows, columns = np.nonzero(lengths)
        some = evenly(len(rows), POINTS)
        rows, columns = rows[some], columns[some]
        centers = (np.stack([columns, rows], axis=1) + 0.5) * [lens.width / size[0], lens.height / size[1]]
        rays = lens.unproject(torch.from_numpy(centers))[0].numpy()  # [P, 3] unit
        self.lengths, self.along_ray = lengths, along_ray or lens.is_panorama
        self.points = rays * (lengths[rows, columns] / (1 if self.along_ray else rays[:, 2]))[:, None]

    def off(self, points: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Log of how far points [K, P, 3] are over how far the view has them at K scales, [K, P]; infinite: nowhere."""
        local = (points - self.pose[:, 3]) @ self.pose[:, :3]
        height, width = self.lengths.shape
        pixel = self.lens.project(torch.from_numpy(local.reshape(-1, 3))).numpy().reshape(*local.shape[:2], 2)
        pixel *= [width / self.lens.width, height / self.lens.height]
        ahead = (local[..., 2] > 0) | (self.along_ray and self.lens.is_wide)
        inside = ahead & (pixel >= 0).all(-1) & (pixel < [width, height]).all(-1)  # NaN is not
        column, row = np.moveaxis(np.where(inside[..., None], pixel, 0).astype(np.int64), -1, 0)
        there = scales[:, None] * self.lengths[row, column]
        has = np.linalg.norm(local, axis=-1) if self.along_ray else local[..., 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(inside & (there > 0), np.log(has / there), np.inf)


def _agreement(pairs: Sequence[tuple[_View, _View]], scales: np.ndarray, width: float) -> np.ndarray:
    """Which share of some pixels another view has at the same place, about, at scales [K] of the depth: [K]."""
    found = []
    for one, other in pairs:
        points = np.multiply.outer(scales, one.points) @ one.pose[:, :3].T + one.pose[:, 3]  # [K, P, 3]
        found.append(np.exp(-np.abs(other.off(points, scales)) / width))
    return np.concatenate(found, axis=1).mean(axis=1)
