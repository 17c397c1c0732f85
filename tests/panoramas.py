# SPDX-License-Identifier: Apache-2.0
"""The shipped room as other cameras would take it: the pixels of its images, put where their true ranges end."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import PosedImage
from nerfkit.data.load import load_capture
from nerfkit.data.readers.transforms.writer import write_transforms
from tests.processes import ROOT

ROOM = ROOT / "data" / "room"
SKY = 1000.0  # units of the files, where there is no surface
LAYER = 0.03  # of the range: how far behind the first surface points still count
AHEAD, RIGHT = np.eye(3), np.array([[0.0, 0, -1], [0, 1, 0], [1, 0, 0]])  # turns of a camera, in its own axes
UP = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])
CUBE = (AHEAD, RIGHT, RIGHT @ RIGHT, RIGHT.T, UP, UP.T)


def panorama(height: int) -> Lens:
    return Lens("EQUIRECTANGULAR", (2 * height, height), 2 * height, height)


def face(side: int) -> Lens:
    return Lens("SIMPLE_PINHOLE", (side / 2,) * 3, side, side)


@cache
def points_of_the_room() -> tuple[torch.Tensor, torch.Tensor]:
    """Points [P, 3] of all pixels, and their colors [P, 3], in the frame of the files."""
    positions, colors = [], []
    for image in load_capture(str(ROOM)).images:
        ranges = np.load(ROOM / "depth" / f"{Path(image.name).stem}.npz")["depth_ray"].astype(np.float32)
        ranges = torch.from_numpy(np.where(np.isfinite(ranges), ranges, SKY)).flatten()
        pose = torch.tensor(image.camera_to_world[None], dtype=torch.float32)
        rays = Cameras.from_lenses(pose, [image.lens]).image_rays(0)
        positions.append(rays.origins + rays.directions * ranges[:, None])
        colors.append(torch.from_numpy(np.array(Image.open(image.file))).flatten(0, 1).float())
    return torch.cat(positions), torch.cat(colors)


def photograph(pose: np.ndarray, lens: Lens) -> tuple[np.ndarray, np.ndarray]:
    """What a camera at a pose [3, 4] sees: an image [H, W, 3] uint8, and a mask [H, W], black where nobody knows."""
    (points, colors), pose = points_of_the_room(), torch.tensor(pose, dtype=torch.float32)
    local = (points - pose[:, 3]) @ pose[:, :3] * torch.tensor([1.0, -1, -1])
    pixel, distance = lens.project(local), local.norm(dim=-1)
    inside = ((pixel >= 0) & (pixel < torch.tensor([lens.width, lens.height]))).all(-1)  # NaN is not
    (column, row), distance, colors = pixel[inside].long().unbind(-1), distance[inside], colors[inside]
    number, n_pixels = row * lens.width + column, lens.width * lens.height
    first = torch.full((n_pixels,), torch.inf).scatter_reduce_(0, number, distance, "amin")
    seen = distance <= (1 + LAYER) * first[number]
    count = number[seen].bincount(minlength=n_pixels)
    total = torch.zeros(n_pixels, 3).index_add_(0, number[seen], colors[seen])
    image = (total / count.clamp(min=1)[:, None] + 0.5).to(torch.uint8).view(lens.height, lens.width, 3)
    return image.numpy(), (count > 0).view(lens.height, lens.width).numpy().astype(np.uint8) * 255


def room_taken_with(folder: Path, lens: Lens, turns: tuple[np.ndarray, ...] = (AHEAD,), n_places: int = 12) -> Path:
    """A capture of the room from some places of its training cameras, once for each of `turns`; tests are its own."""
    capture = load_capture(str(ROOM))
    test, train = capture.images[::8], [image for index, image in enumerate(capture.images) if index % 8]
    images = []
    for of_place in train[:: len(train) // n_places][:n_places]:
        for number, turn in enumerate(turns):
            pose = of_place.camera_to_world @ np.block([[turn, np.zeros((3, 1))], [np.zeros((1, 3)), 1]])
            name = f"{Path(of_place.name).stem}_{number}.png"
            images.append(PosedImage(name, folder / name, pose, lens, folder / "masks" / name))
    images += [replace(image, mask=folder / "masks" / f"{Path(image.name).stem}.png") for image in test]
    (folder / "masks").mkdir(parents=True)
    for image in images:
        pixels, mask = photograph(image.camera_to_world, image.lens) if image.found is None else (None, None)
        if pixels is not None:
            Image.fromarray(pixels).save(image.file)
        size = image.lens.height, image.lens.width
        Image.fromarray(np.full(size, 255, np.uint8) if mask is None else mask).save(image.mask)
    splits = {"train": [image.name for image in images[: -len(test)]], "test": [image.name for image in test]}
    write_transforms(folder / "transforms.json", replace(capture, images=images, splits=splits))
    return folder
