# SPDX-License-Identifier: Apache-2.0
"""`nerfkit inspect`: one page about a scene before anything is trained, and a drawing of its cameras."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nerfkit.commands.options import InspectData, InspectOptions
from nerfkit.config import Config, check
from nerfkit.data.assemble import CUT_OUT, check_cut_out, scene_frame, split_names, turned_for
from nerfkit.data.capture import Capture, PosedImage, as_warnings, notes_of
from nerfkit.data.images.pixels import look_into, read_mask
from nerfkit.data.inspect import Inspection, OnDisk, draw
from nerfkit.data.load import load_capture
from nerfkit.data.scene_transform.doubts import doubts_of_pictures, sampled_pixels
from nerfkit.data.scene_transform.rig import evenly
from nerfkit.errors import SceneError
from nerfkit.files import OwnFolder
from nerfkit.reading import shown

PAGE, DRAWING = "inspect.txt", "inspect.png"
PICTURES = 8  # evenly spaced, whose pixels are looked at
MAX_THREADS = 16


def main(options: InspectOptions) -> int:
    config = Config()
    config.data.downscale, config.data.box = options.data.downscale, options.data.box
    check(config)  # raises ConfigError for what training would refuse
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


def examine(capture: Capture, data: InspectData) -> tuple[str, bool, Callable[[], bytes]]:
    """The page about a capture, whether it is ready to train, and what draws it."""
    cutout = data.masks == "cutout"
    candidates = [image.name for image in capture.images if image.found is not None]
    sampled = {candidates[k] for k in evenly(len(candidates), PICTURES)}

    def look(image: PosedImage) -> tuple[OnDisk | None, str, np.ndarray | None]:
        return look_at(image, image.name in sampled, data, capture.white_ignores)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS)) as pool:
        done = pool.map(look, capture.images)
        looks = list(tqdm(done, "images", len(capture.images), unit="image", leave=False))
    pairs = list(zip(capture.images, looks, strict=True))
    broken = {image.name: problem for image, (_, problem, _) in pairs if problem}
    unreadable = [image.name for image, (file, problem, _) in pairs if problem and file is None]
    there = [image for image, (file, _, _) in pairs if file is not None]
    pictures = [pixels for _, _, pixels in looks if pixels is not None]
    chosen, rule = split_names(capture, there)
    splits = {split: [image.name for image in images] for split, images in chosen.items()}
    has_alpha = [file.has_alpha for file, _, _ in looks if file is not None]
    frame = scene_frame(capture, splits.get("train", []), cutout or any(has_alpha), data.box)
    doubts = some_of(broken) or doubts_of_pictures([p for p in pictures if p.shape == pictures[0].shape])
    notes = []
    if cutout:
        notes.append(CUT_OUT)
        try:
            check_cut_out(there, has_alpha)
        except SceneError as error:
            doubts.append(str(error))
    if data.downscale != 1:
        notes.append(f"data.downscale {data.downscale:g}: sizes of images are those that are trained")
    frame = replace(frame, notes=(*frame.notes, *as_warnings(doubts)))
    capture = replace(capture, notes=notes_of(*capture.notes, *notes))
    inspection = Inspection(capture, frame, [file for file, _, _ in looks], splits, rule, unreadable)
    return inspection.page(), not inspection.problems(), lambda: draw(capture, frame, splits)


def some_of(broken: dict[str, str]) -> list[str]:
    """The first problems of images that cannot be read, by their names, and the names of all others."""
    lines, others = list(broken.values()), [shown(name, 60) for name in list(broken)[3:]]
    return lines[:3] + ([f"and {len(others)} more images that cannot be read: {', '.join(others)}"] if others else [])


def look_at(
    image: PosedImage, is_sampled: bool, data: InspectData, white_ignores: bool
) -> tuple[OnDisk | None, str, np.ndarray | None]:
    """The image file, None where it is missing or cannot be read; the problem with it, '' if there is none;
    and, if it `is_sampled`, some of its pixels."""
    if image.found is None:
        return None, "", None
    cutout, ignored = data.masks == "cutout", None
    try:
        header, problem, pixels = look_into(image.found, partial(turned_for, image.lens), is_sampled)
        if image.mask is not None and not cutout:
            white = read_mask(image.mask, (header.width, header.height))  # [H, W]
            ignored = float(white.mean() if white_ignores else 1 - white.mean())
    except SceneError as error:
        return None, str(error), None
    width, height = (max(1, round(side / data.downscale)) for side in (header.width, header.height))
    has_alpha = header.has_alpha or (cutout and image.mask is not None)
    pixels = None if pixels is None else sampled_pixels(pixels.reshape(-1, pixels.shape[-1]))
    return OnDisk(width, height, has_alpha, ignored, header.turn != 1), problem, pixels
