# SPDX-License-Identifier: Apache-2.0
"""Capture -> Scene: which images are there and of which sizes, what each split has, and the frame of the scene."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from nerfkit.config import DEFAULT_BOX, DataConfig
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, PosedImage, as_warnings, notes_of
from nerfkit.data.images.pixels import ImageHeader, image_header
from nerfkit.data.judging import Judged, judge
from nerfkit.data.readers.folders import IMAGE_FOLDERS, beside, nearest_of, places_of
from nerfkit.data.scene import Scene, Views, format_sizes
from nerfkit.data.scene_transform import find_scene_transform, with_its_box
from nerfkit.data.scene_transform.diagnostics import box_diagnostics, camera_diagnostics, solve_diagnostics
from nerfkit.data.scene_transform.transform import SceneTransform, identity_transform
from nerfkit.errors import SceneError
from nerfkit.safe_io import first_of, nearest, printable

KEEPS_FILES_FRAME = ("nerf_synthetic",)  # formats whose scenes stand where data.box is meant
TRAIN_TEST = ("train", "test")
TEST_EVERY = 8  # of the sorted names of images that are there; the first is one of them
CUT_OUT = "data.masks is alpha: masked pixels are transparent"
MAX_TRAINED_SIDE = 2**16  # pixels of a side after data.downscale
TAKEN = {  # by the kind of the frame
    "object": "taken around an object",
    "inward": "taken around a subject, with its surroundings",
    "forward": "all facing the same way",
    "walk-through": "taken all over a place",
}


def resolve_files(capture: Capture, folder: Path) -> Capture:
    """The capture whose images know which of their files are there: as named, or in a folder of resized ones, or the
    nearest in its `folder` that is no other image's, of which there is a note."""
    found = {i.file: on_disk(i.file, lambda file: file if os.path.exists(file) else None) for i in capture.images}
    find = partial(nearest, folders=places_of(folder))
    missing = [file for file in found if found[file] is None]
    near, others = nearest_of(missing, found, partial(on_disk, find=find))
    found |= near
    images = [replace(i, file=near.get(i.file, i.file), found=found[i.file]) for i in capture.images]
    notes = notes_of(*capture.notes, *others)
    return _without_paths(replace(capture, images=images, notes=notes))


def _without_paths(capture: Capture) -> Capture:
    """The capture whose splits without any image, as Blender's add-ons write them, are camera paths."""
    there = {image.name for image in capture.images if image.found is not None}
    bare = {split for split, names in capture.splits.items() if split != "train" and there.isdisjoint(names)}
    if not bare or there.isdisjoint(capture.splits.get("train", [])):
        return capture
    splits = {split: names for split, names in capture.splits.items() if split not in bare}
    by_name = {image.name: image for image in capture.images}
    paths = {split: [by_name[name] for name in names] for split in sorted(bare) if (names := capture.splits[split])}
    what = "have no images: they are a camera path, not scored (nerfkit render RUN --cameras"
    notes = [f"the {len(images)} cameras of {split} {what} {split})" for split, images in paths.items()]
    unlisted = {image.name for images in paths.values() for image in images}.difference(*splits.values())
    images = [image for image in capture.images if image.name not in unlisted]
    return replace(capture.of_images(images), splits=splits, paths=paths, notes=notes_of(*capture.notes, *notes))


def on_disk(file: Path, find: Callable[[Path], Path | None]) -> Path | None:
    """What is found of `file`, or of the same image in a folder of resized ones beside its own (images_2, ...)."""
    parts, places = file.parts, [file]
    for depth in range(len(parts) - 2, -1, -1):
        if re.fullmatch(r"images(_\d+)?", parts[depth]):
            places += [Path(*parts[:depth], folder, *parts[depth + 1 :]) for folder in IMAGE_FOLDERS]
    return next(filter(None, map(find, places)), None)


def fitted_lens(image: PosedImage, header: ImageHeader, downscale: float) -> Lens:
    """The lens of the image as on disk, `downscale` times smaller; raises SceneError if its shape is another."""
    lens, width, height = image.lens, header.width, header.height
    if not has_shape(lens, width, height):
        turned = ", turned (is its EXIF missing?)" * ((lens.height, lens.width) == (width, height))
        raise SceneError(
            f"image {printable(image.found or image.file)} is {width}x{height}{turned}, but its camera is of "
            f"{lens.width}x{lens.height} images; give images of that shape, in any size"
        )
    if (lens.width, lens.height) != (width, height):
        lens = lens.resized(width, height)
    if downscale != 1:
        sides = [side / downscale if downscale > 0 else 0.0 for side in (width, height)]
        if not 0.5 < min(sides) <= max(sides) <= MAX_TRAINED_SIDE:
            raise SceneError(f"data.downscale {downscale:g} does not fit images of {width}x{height}; take another")
        lens = lens.resized(*map(round, sides))
    return lens


def split_names(capture: Capture, images: list[PosedImage]) -> tuple[dict[str, list[PosedImage]], str]:
    """Images by split, and the rule that made it: what the files say, else every 8th of the sorted names is a test."""
    by_name = {image.name: image for image in images}
    if capture.splits:
        splits = {split: [by_name[n] for n in names if n in by_name] for split, names in capture.splits.items()}
        return {split: chosen for split, chosen in splits.items() if chosen}, "as the scene's files say"
    ordered = [by_name[name] for name in sorted(by_name)]
    if len(ordered) < 2 * TEST_EVERY:
        return {"train": ordered}, "all images are training views, as there are few"
    test = ordered[::TEST_EVERY]
    train = [image for index, image in enumerate(ordered) if index % TEST_EVERY]
    return {"train": train, "test": test}, f"every {TEST_EVERY}th image, sorted by name, is a test view"


def assemble(
    capture: Capture, data: DataConfig, transform: SceneTransform | None = None, unbounded: bool = False
) -> Scene:
    """The scene of a capture, in the `transform` of a run that goes on, or one that `choose_transform` finds."""
    images, notes = _present_images(capture)
    headers = {image.name: turned_for(image.lens, image_header(image.found)) for image in images}
    lenses = {image.name: fitted_lens(image, headers[image.name], data.downscale) for image in images}
    splits, rule = split_names(capture, images)
    if "train" not in splits:
        raise SceneError(f"{capture.name} has no training views, only {', '.join(splits) or 'none'}")
    training, alpha_masks = [image.name for image in splits["train"]], data.masks == "alpha"
    judged = judge(capture, headers, training, data)
    headers = judged.headers
    if alpha_masks and (lines := cut_out_diagnostics(images, headers)):
        raise SceneError(lines[0])
    notes += [CUT_OUT] * alpha_masks
    if transform is None:
        transform = choose_transform(capture, training, judged, data.box, unbounded)

    def cameras_of(images: list[PosedImage], lenses: list[Lens]) -> Cameras:
        poses = transform.to_model(np.stack([image.camera_to_world for image in images]))  # [V, 3, 4]
        return Cameras.from_lenses(torch.tensor(poses, dtype=torch.float32), lenses, maps)

    numbers = {image.name: number for number, image in enumerate(capture.images)}
    views, maps = {}, {}  # one map of a lens for all splits
    for split, chosen in splits.items():
        cameras = cameras_of(chosen, [lenses[image.name] for image in chosen])
        views[split] = Views(
            cameras, [image.found for image in chosen], [headers[image.name] for image in chosen],
            [image.mask for image in chosen], capture.white_ignores, alpha_masks, judged.masks,
            [image.depth_in(data.depth_unit) for image in chosen if judged.has_depth], transform.scale,
            [numbers[image.name] for image in chosen],
        )  # fmt: skip
    counts = {split: len(chosen) for split, chosen in splits.items()}
    return Scene(
        capture.name, capture.format, views, tuple(transform.up.tolist()), transform,
        notes_of(*capture.notes, *judged.notes, *notes, f"splits: {rule}"),
        capture.format_again or capture.format, capture.points,
        paths={split: cameras_of(path, [image.lens for image in path]) for split, path in capture.paths.items()},
        about=sentences(capture, [*lenses.values()], counts, transform.kind),
    )  # fmt: skip


def sentences(capture: Capture, lenses: list[Lens], counts: dict[str, int], kind: str) -> tuple[str, ...]:
    """What a scene is, for whoever took its images: with the `lenses` of those that exist, `counts` of each split."""
    name, n_lenses, n_missing = printable(capture.name), len(set(lenses)), len(capture.images) - len(lenses)
    if not lenses:
        return (f"{name}: none of the {n_missing} images that are listed can be read.",)
    what = "panoramas" if all(lens.is_panorama for lens in lenses) else "images"
    sizes = format_sizes([(lens.width, lens.height) for lens in lenses])
    sizes = f"({sizes})" if "," in sizes else f"of {sizes}"
    of_lenses = "one lens" if n_lenses == 1 else f"{n_lenses} lenses"
    missing = f"{n_missing} more listed, but missing or broken" if n_missing else "No image is missing"
    train, test = (counts.get(split, 0) or "none" for split in ("train", "test"))
    n_depths = sum(image.depth is not None for image in capture.images)
    depths = f" {n_depths} have depth images." if n_depths else ""
    others = "".join(f", {n} in the split {printable(name)}" for name, n in counts.items() if name not in TRAIN_TEST)
    return (
        f"{name}: {len(lenses)} {what} {sizes} from {of_lenses}, {TAKEN[kind]}.",
        f"{missing}; {train} to train on, {test} held out for scoring{others}.{depths}",
    )


def _present_images(capture: Capture) -> tuple[list[PosedImage], list[str]]:
    there = [image for image in capture.images if image.found is not None]
    missing = [image for image in capture.images if image.found is None]
    if not missing:
        return there, []
    note = f"{len(there)} of {len(capture.images)} listed images are there; {len(missing)} are missing, the first: "
    note += first_of(image.name for image in missing)
    if are_most(missing, capture):
        what = f"put them where the files name them, or correct the files{beside(missing[0].file)}"
        raise SceneError(f"{note}; {what}")
    return there, [note]


def are_most(missing: list[PosedImage], capture: Capture) -> bool:
    """Whether images are more than half of a capture's, and of those to train on."""
    trained = set(capture.splits.get("train", [])) or {image.name for image in capture.images}
    n_trained = sum(image.name in trained for image in missing)
    return 2 * len(missing) > len(capture.images) and 2 * n_trained > len(trained)


def cut_out_diagnostics(images: list[PosedImage], headers: dict[str, ImageHeader]) -> list[str]:
    """A line if one of the images would keep its background."""
    whole = [image.found or image.file for image in images if not (image.mask or headers[image.name].has_alpha)]
    what = f"data.masks is alpha, but {len(whole)} of {len(images)} images have neither mask nor alpha, the first"
    todo = "give each a mask, take those images away, or leave out --data.masks"
    return [f"{what}: {printable(file)}; {todo}" for file in whole[:1]]


def choose_transform(
    capture: Capture, training: list[str], judged: Judged, box: tuple[float, ...] | None, unbounded: bool = False
) -> SceneTransform:
    """The frame that a capture is trained in, that of the files with a `box`, outside of which things count if it is
    `unbounded`; `training` are the names of images that may tell near and far."""
    names = set(training)
    images = [image for image in capture.images if image.name in names]
    is_of_files = box is not None or capture.format in KEEPS_FILES_FRAME
    if is_of_files:
        corners = np.array(box or DEFAULT_BOX, dtype=np.float64).reshape(2, 3)
        transform = identity_transform(corners, capture.up or (0.0, 0.0, 1.0))
    else:
        transform = find_scene_transform(capture, training, judged.is_object)
    if box is None:
        transform = with_its_box(transform, images, judged.silhouettes)
    notes = [*transform.notes]
    if is_of_files:
        in_files = transform.to_input(transform.box)
        notes += as_warnings(box_diagnostics(capture, images, in_files, is_given=box is not None))
    if box is not None and unbounded:
        found = find_scene_transform(capture, training, judged.is_object)
        near, far = found.near / found.scale, found.far / found.scale
        transform = replace(transform, kind=found.kind, near=near, far=far)
        what = f"kind {found.kind}, near {near:.4g}, far {far:.4g} in the files' units"
        notes += [f"outside of the box the scene is as if no box was given: {what}", *as_warnings(found.warnings())]
    notes += as_warnings([*solve_diagnostics(capture), *camera_diagnostics(images, transform)])
    return replace(transform, notes=notes_of(*notes))


def turned_for(lens: Lens, header: ImageHeader) -> ImageHeader:
    """How an image is read: turned by its EXIF orientation, unless the lens is of the stored pixels' shape."""
    stored = header.as_stored()
    is_stored = not has_shape(lens, header.width, header.height) and has_shape(lens, stored.width, stored.height)
    return stored if is_stored else header


def has_shape(lens: Lens, width: int, height: int) -> bool:
    """Whether an image may be one of the lens, resized: each side is rounded to a pixel."""
    scale_x, scale_y = width / lens.width, height / lens.height
    return abs(scale_x - scale_y) <= max(1.0, scale_x, scale_y) / min(lens.width, lens.height)
