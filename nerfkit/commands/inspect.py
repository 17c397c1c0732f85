# SPDX-License-Identifier: Apache-2.0
"""`nerfkit inspect`: one page about a scene before anything is trained, and a drawing of its cameras."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from nerfkit.commands.options import InspectData, InspectOptions
from nerfkit.config import Config, check
from nerfkit.data import inspect
from nerfkit.data.assemble import CUT_OUT, check_cut_out, scene_frame, split_names, turned_for
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.images.pixels import look_into, read_mask
from nerfkit.data.inspect import OnDisk
from nerfkit.data.load import load_capture
from nerfkit.data.notes import as_warnings, notes_of
from nerfkit.data.scene_transform.doubts import doubts_of_pictures, sampled_pixels
from nerfkit.data.scene_transform.rig import evenly
from nerfkit.errors import SceneError
from nerfkit.files import OwnFolder
from nerfkit.reading import shown

PAGE, DRAWING = "inspect.txt", "inspect.png"
PICTURES = 8  # evenly spaced, whose pixels are looked at
MAX_THREADS = 16


def main(options: InspectOptions) -> int:
    check_data(options.data)
    folder = OwnFolder(Path(options.out), "inspection") if options.out else None
    if folder is not None:
        folder.claim()
    page, is_ready, drawing = examine(load_capture(options.scene, options.data.format, options.data.sfm), options.data)
    print(page)
    if folder is not None:
        folder.write(PAGE, page + "\n")
        folder.write(DRAWING, drawing())
        print(f"\nthe page and a drawing of the cameras: {folder.path / PAGE}, {folder.path / DRAWING}")
    return 0 if is_ready else 1


def check_data(data: InspectData) -> None:
    """Raise ConfigError for what training would refuse."""
    config = Config()
    config.data.downscale = data.downscale
    config.data.box = data.box or config.data.box
    check(config)


def examine(capture: Capture, data: InspectData) -> tuple[str, bool, Callable[[], bytes]]:
    """The page about a capture, whether it is ready to train, and what draws it."""
    cutout = data.masks == "cutout"
    candidates = [image.name for image in capture.images if image.found is not None]
    sampled = {candidates[k] for k in evenly(len(candidates), PICTURES)}
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS)) as pool:
        look = partial(
            look_at, sampled=sampled, downscale=data.downscale, white_ignores=capture.white_ignores, cutout=cutout
        )
        looks = pool.map(look, capture.images)
        looks = list(tqdm(looks, "images", len(capture.images), unit="image", leave=False))
    found = [file for file, _, _ in looks]
    names = [image.name for image in capture.images]
    broken = {name: problem for name, (_, problem, _) in zip(names, looks, strict=True) if problem}
    pictures = [pixels for _, _, pixels in looks if pixels is not None]
    unreadable = [name for name, file in zip(names, found, strict=True) if name in broken and file is None]
    there = [image for image, file in zip(capture.images, found, strict=True) if file is not None]
    chosen, rule = split_names(capture, there)
    splits = {split: [image.name for image in images] for split, images in chosen.items()}
    has_alpha = [file.has_alpha for file in found if file is not None]
    frame = scene_frame(capture, splits.get("train", []), cutout or any(has_alpha), data.box)
    doubts = some_of(broken) or doubts_of_pictures([p for p in pictures if p.shape == pictures[0].shape])
    doubts += doubts_of_cutting(there, has_alpha) if cutout else []
    frame = replace(frame, notes=(*frame.notes, *as_warnings(doubts)))
    notes = [CUT_OUT] if cutout else []
    if data.downscale != 1:
        notes.append(f"data.downscale {data.downscale:g}: sizes of images are those that are trained")
    capture = replace(capture, notes=notes_of(*capture.notes, *notes))
    given: dict[str, Any] = {"capture": capture, "frame": frame, "splits": splits}
    files: dict[str, Any] = {"found": found, "unreadable": unreadable}
    is_ready = inspect.verdict(**files, **given) == [inspect.READY]
    return inspect.report(**files, rule=rule, **given), is_ready, lambda: inspect.draw(**given)


def some_of(broken: dict[str, str]) -> list[str]:
    """The first problems of images that cannot be read, by their names, and the names of all others."""
    lines, others = list(broken.values()), [shown(name, 60) for name in list(broken)[3:]]
    return lines[:3] + ([f"and {len(others)} more images that cannot be read: {', '.join(others)}"] if others else [])


def doubts_of_cutting(images: list[PosedImage], has_alpha: list[bool]) -> list[str]:
    """A line if training would refuse to cut an object out of the images."""
    try:
        check_cut_out(images, has_alpha)
    except SceneError as error:
        return [str(error)]
    return []


def look_at(
    image: PosedImage, sampled: set[str], downscale: float, white_ignores: bool, cutout: bool
) -> tuple[OnDisk | None, str, np.ndarray | None]:
    """The image file, None where it is missing or cannot be read; the problem with it, '' if there is none;
    and, of one that is `sampled`, some of its pixels."""
    if image.found is None:
        return None, "", None
    ignored = None
    try:
        header, problem, pixels = look_into(image.found, partial(turned_for, image.lens), image.name in sampled)
        if image.mask is not None and not cutout:
            white = read_mask(image.mask, (header.width, header.height))  # [H, W]
            ignored = float(white.mean() if white_ignores else 1 - white.mean())
    except SceneError as error:
        return None, str(error), None
    width, height = (max(1, round(side / downscale)) for side in (header.width, header.height))
    has_alpha = header.has_alpha or (cutout and image.mask is not None)
    pixels = None if pixels is None else sampled_pixels(pixels.reshape(-1, pixels.shape[-1]))
    return OnDisk(width, height, has_alpha, ignored, header.turn != 1), problem, pixels
