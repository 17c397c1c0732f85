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
from nerfkit.data.assemble import CUT_OUT, check_cut_out, header_of, on_disk, scene_frame, split_names
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.doubts import doubts_of_pictures, sampled_pixels
from nerfkit.data.frame import WARNING
from nerfkit.data.inspect import OnDisk
from nerfkit.data.load import load_capture
from nerfkit.data.pixels import problem_with, read_image, read_mask
from nerfkit.data.rig import evenly
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
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS)) as pool:
        look = partial(look_into, downscale=data.downscale, white_ignores=capture.white_ignores, cutout=cutout)
        looks = pool.map(look, capture.images)
        looks = list(tqdm(looks, "images", len(capture.images), unit="image", leave=False))
    found = [file for file, _ in looks]
    names = [image.name for image in capture.images]
    broken = {name: problem for name, (_, problem) in zip(names, looks, strict=True) if problem}
    unreadable = [name for name, file in zip(names, found, strict=True) if name in broken and file is None]
    there = [image for image, file in zip(capture.images, found, strict=True) if file is not None]
    chosen, rule = split_names(capture, there)
    splits = {split: [image.name for image in images] for split, images in chosen.items()}
    has_alpha = [file.has_alpha for file in found if file is not None]
    frame = scene_frame(capture, splits.get("train", []), cutout or any(has_alpha), data.box)
    doubts = some_of(broken) or doubts_of_files(there)
    doubts += doubts_of_cutting(there, has_alpha) if cutout else []
    frame = replace(frame, text=(*frame.text, *(WARNING + line for line in doubts)))
    notes = [CUT_OUT] if cutout else []
    if data.downscale != 1:
        notes.append(f"data.downscale {data.downscale:g}: sizes of images are those that are trained")
    capture = replace(capture, notes=(*capture.notes, *notes))
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


def doubts_of_files(images: list[PosedImage]) -> list[str]:
    """Lines about what some of the images show, which exist; one that cannot be read is a line, too."""
    pictures = []
    for image in (images[k] for k in evenly(len(images), PICTURES)):
        try:
            file = on_disk(image.file)
            header = header_of(replace(image, file=file))
            pixels = np.empty((header.height, header.width, 3 + header.has_alpha), dtype=np.uint8)
            read_image(file, header, pixels)
        except SceneError as error:
            return [str(error)]
        pictures.append(sampled_pixels(pixels.reshape(-1, pixels.shape[-1])))
    same = [picture for picture in pictures if picture.shape == pictures[0].shape]
    return doubts_of_pictures(same)


def look_into(image: PosedImage, **options: Any) -> tuple[OnDisk | None, str]:
    """What `look_at` finds, none where it cannot be read, and what is wrong with the image; '' if nothing."""
    try:
        found = look_at(image, **options)
    except SceneError as error:
        return None, str(error)
    return found, problem_with(on_disk(image.file)) if found is not None else ""


def look_at(image: PosedImage, downscale: float, white_ignores: bool, cutout: bool) -> OnDisk | None:
    """What is on disk of an image; None if it is missing."""
    file = on_disk(image.file)
    if file is None:
        return None
    header = header_of(replace(image, file=file))
    ignored = None
    if image.mask is not None and not cutout:
        white = read_mask(image.mask, (header.width, header.height))  # [H, W]
        ignored = float(white.mean() if white_ignores else 1 - white.mean())
    width, height = (max(1, round(side / downscale)) for side in (header.width, header.height))
    has_alpha = header.has_alpha or (cutout and image.mask is not None)
    return OnDisk(width, height, has_alpha, ignored, header.turn != 1)
