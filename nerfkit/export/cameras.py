# SPDX-License-Identifier: Apache-2.0
"""A run's cameras as other programs read them: transforms.json, a COLMAP model, a camera path of nerfstudio's."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nerfkit.data.assemble import fitted_lens
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.images.pixels import image_header
from nerfkit.data.load import load_capture
from nerfkit.data.readers.colmap import writer as colmap
from nerfkit.data.readers.transforms.writer import check_writable, write_transforms
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import SceneError, UserError
from nerfkit.export.writing import OutputFolder
from nerfkit.files import OwnFolder
from nerfkit.rendering.camera_path import to_nerfstudio
from nerfkit.safe_io import printable
from nerfkit.training.run.load import Run

FORMATS = ("transforms", "colmap", "path")
TRANSFORMS, POINTS, MODEL, PATH = "transforms.json", "transforms_points.ply", "colmap", "camera_path.json"
SPLITS = ("train", "val", "test")  # of transforms.json
MOVED = {False: 1e-3, True: 0.2}  # by pose_optimization: how far off a camera may be, of their spread


def capture_of(run: Run, splits: tuple[str, ...], transform: SceneTransform | None) -> Capture:
    """The run's cameras, poses as float64 in the frame that `transform` leads back to, images by the run's names."""
    images: list[PosedImage] = []
    of_split: dict[str, list[str]] = {}
    alike = Counter(str(entry["file_path"]) for split in splits for entry in run.scene.splits[split]["frames"])
    for split in splits:
        lenses, cameras = run.lenses(split), run.cameras(split)
        poses = cameras.camera_to_world.double().numpy()
        left, _, right = np.linalg.svd(poses[:, :, :3])
        poses[:, :, :3] = left @ right  # the nearest rotations: these are some in float32 alone
        poses = transform.to_input(poses) if transform is not None else poses
        for view, entry in enumerate(run.scene.splits[split]["frames"]):
            name = str(entry["file_path"])
            name = f"{split}/{name}" if alike[name] > 1 else name
            images.append(PosedImage(name, Path(name), poses[view], lenses[view]))
            of_split.setdefault(split, []).append(name)
    if len({image.name for image in images}) < len(images):
        raise UserError("two views of the run have the same name; choose one --split")
    return Capture(run.scene.name, "run", images, splits=of_split)


def with_files(capture: Capture, run: Run, is_in_files_world: bool) -> tuple[Capture, Path | None, str]:
    """The capture with the scene's files and sparse points, the folder that its images are named from, and a note; it
    stays, without a folder, where the scene is not at hand."""
    data, split_of = run.config.data, {name: split for split, names in capture.splits.items() for name in names}
    try:
        scene = load_capture(data.path, data.format, data.sfm_dir, lambda text: None, of_run=True)
        folder, scene = _named_from_a_folder(scene)
        at_hand = _by_name(scene.images)
        found = [at_hand.get(x.name) or at_hand.get(f"{split_of[x.name]}/{x.name}") for x in capture.images]
        pairs = list(zip(capture.images, found, strict=True))
        if missing := [image.name for image, there in pairs if there is None]:
            raise SceneError(f"none of them matches {printable(missing[0])} alone")
        images = [_of_file(*pair) for pair in pairs]
    except (UserError, OSError) as error:
        return (
            capture,
            None,
            f"images are named as in the run, without folders, for the scene's images cannot be used: {error}",
        )
    names = {image.name: there.name for image, there in pairs}
    splits = {split: [names[name] for name in listed] for split, listed in capture.splits.items()}
    about_masks = ""
    if any(image.mask for image in images):
        about_masks = "; masks are named in transforms.json, the other formats have none"
        if scene.white_ignores or not all(image.mask for image in images):
            about_masks = "; masks are left out: transforms.json needs one for every image, with black ignored"
            images = [replace(image, mask=None) for image in images]
    capture = replace(capture, images=images, splits=splits)
    if scene.points is None:
        about_points = "no sparse points: the scene has none"
    elif not is_in_files_world:
        about_points = "no sparse points in --frame model"
    elif not _stand_alike(capture.images, found, MOVED[data.pose_optimization]):
        about_points = "no sparse points: the scene's cameras are not where the run's are"
    else:
        about_points = f"{len(scene.points.positions)} sparse points of the scene"
        capture = replace(capture, points=scene.of_images(capture.images).points)
    return capture, folder, about_points + about_masks


def _stand_alike(images: list[PosedImage], others: list[PosedImage], moved: float) -> bool:
    places, there = (np.stack([image.camera_to_world[:, 3] for image in many]) for many in (images, others))  # [V, 3]
    spread = np.linalg.norm(there - there.mean(axis=0), axis=1).max()
    return bool(np.linalg.norm(places - there, axis=1).max() <= moved * max(spread, 1e-12))


def _named_from_a_folder(scene: Capture) -> tuple[Path, Capture]:
    """A folder, and the scene with the paths of its files from there as names: its own names where these are that."""
    files = [os.path.abspath(image.file) for image in scene.images]
    folder = Path(files[0].removesuffix(os.path.normpath(scene.images[0].name)))
    paths = [os.path.abspath(folder / image.name) for image in scene.images]
    if paths == files and folder.is_absolute():
        return folder, scene
    folder = Path(os.path.commonpath(map(os.path.dirname, files)))
    names = [Path(file).relative_to(folder).as_posix() for file in files]
    return folder, replace(scene, images=[replace(i, name=name) for i, name in zip(scene.images, names, strict=True)])


def _of_file(image: PosedImage, there: PosedImage) -> PosedImage:
    """An image of the run as the scene has it, with the lens of the size on disk: the run may be of a smaller one."""
    image = replace(image, name=there.name, file=there.file, found=there.found, mask=there.mask)
    lens = image.lens if there.found is None else fitted_lens(image, image_header(there.found), 1.0)
    return replace(image, lens=lens)


def _by_name(images: list[PosedImage]) -> dict[str, PosedImage]:
    """Images by stem, and by folder and stem, where that is one image's alone."""
    by_name: dict[str, PosedImage] = {}
    for key in (lambda file: file.stem, lambda file: f"{file.parent.name}/{file.stem}"):
        counts = Counter(key(image.file) for image in images)
        by_name |= {key(image.file): image for image in images if counts[key(image.file)] == 1}
    return by_name


def refusals(capture: Capture) -> dict[str, str]:
    checks = {
        "transforms": lambda: check_writable(_listed(capture)),
        "colmap": lambda: colmap.check_writable(capture),
        "path": lambda: path_of(capture),
    }
    refused = {}
    for format, check in checks.items():
        try:
            check()
        except UserError as error:
            refused[format] = str(error)
    return refused


def _listed(capture: Capture) -> Capture:
    return replace(capture, splits={split: names for split, names in capture.splits.items() if split in SPLITS})


def write(
    capture: Capture, formats: tuple[str, ...], output: OutputFolder, from_run: Capture | None = None
) -> list[str]:
    """Write files of FORMATS; their names. A camera path, which has no images, is of the size of `from_run`."""
    names = []
    if "path" in formats:
        names.append(PATH)
        output.folder.write(PATH, json.dumps(path_of(from_run or capture), indent=1))
    if "transforms" in formats:
        names += [TRANSFORMS] if capture.points is None else [TRANSFORMS, POINTS]
        for name in names:
            output.folder.note(name)
        write_transforms(output.path / TRANSFORMS, _listed(capture))
    if "colmap" in formats:
        folder: OwnFolder = output.folder.child(MODEL, "export")
        for part in ("cameras", "images", "points3D"):
            folder.note(f"{part}.txt")
            names.append(f"{MODEL}/{part}.txt")
        colmap.write_model(folder.path, capture)
    return names


def path_of(capture: Capture) -> dict[str, Any]:
    """The cameras as a path; raises UserError for a lens that is none of its pinholes."""
    for image in capture.images:
        lens = image.lens
        if not lens.is_pinhole:
            raise UserError(f"image {printable(image.name)}: a camera path holds pinholes, not the lens {lens.model}")
        if (lens.width, lens.height) != (capture.images[0].lens.width, capture.images[0].lens.height):
            raise UserError(f"image {printable(image.name)}: a camera path has one size, but images differ")
    first = capture.images[0].lens
    poses = np.stack([image.camera_to_world for image in capture.images])
    return to_nerfstudio(poses, np.array([image.lens.focal[1] for image in capture.images]), first.width, first.height)


def path_loss(capture: Capture) -> str | None:
    """What a camera path leaves out: principal points and unequal focal lengths; None if nothing."""
    lenses = [image.lens for image in capture.images]
    off = np.abs([np.subtract(lens.center, (lens.width / 2, lens.height / 2)) for lens in lenses]).max()
    ratio = max(abs(lens.focal[0] / lens.focal[1] - 1) for lens in lenses)
    if off < 0.05 and ratio < 1e-4:
        return None
    what = f"principal points (off by {off:.2f} pixels) and pixels that are no squares ({100 * ratio:.3g} %)"
    return f"the camera path leaves out {what}"
