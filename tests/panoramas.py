# SPDX-License-Identifier: Apache-2.0
"""The shipped room as a 360 camera would have taken it, or as many pixels of pinhole cameras at the same places:
surface and colors are looked up in what the shipped images show, at their true ranges."""

import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.load import load_scene
from nerfkit.data.readers.transforms.writer import write_transforms
from tests.processes import ROOT

HORIZON = 400.0  # model units: what images show without a range, the sky, is so far away
PANORAMA = Lens("EQUIRECTANGULAR", (256, 128), 256, 128)
FACE = Lens("PINHOLE", (37, 37, 37, 37), 74, 74)  # 90 degrees; six have as many pixels as a panorama, and 0.3 % more
TRAIN, TEST = range(0, 72, 6), range(3, 72, 18)  # of the shipped views, at whose places cameras stand
FACES = {  # right, down and forward in the axes of a panorama
    "ahead": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "right": ((0, 0, -1), (0, 1, 0), (1, 0, 0)),
    "behind": ((-1, 0, 0), (0, 1, 0), (0, 0, -1)),
    "left": ((0, 0, 1), (0, 1, 0), (-1, 0, 0)),
    "above": ((1, 0, 0), (0, 0, 1), (0, -1, 0)),
    "below": ((1, 0, 0), (0, 0, -1), (0, 1, 0)),
}


class Shown(NamedTuple):
    """All that the shipped images show, in the model's frame."""

    positions: Tensor  # [P, 3]
    colors: Tensor  # [P, 3] uint8
    cameras: Tensor  # [72, 3, 4]


@cache
def shown() -> Shown:
    room, found = load_scene(str(ROOT / "data/room")), []
    for views in room.views.values():
        images = views.load()
        for view, file in enumerate(views.files):
            ranges = np.load(ROOT / f"data/room/depth/{file.stem}.npz")["depth_ray"].astype(np.float32)
            rays = views.cameras.image_rays(view)
            far = (torch.from_numpy(ranges).view(-1, 1) * room.transform.scale).clamp(max=HORIZON)
            colors = images.image(view).reshape(-1, 3)
            found.append((file.stem, rays.origins + rays.directions * far, colors, views.cameras.camera_to_world[view]))
    _, positions, colors, cameras = zip(*sorted(found, key=lambda of_view: of_view[0]), strict=True)
    return Shown(torch.cat(positions), torch.cat(colors), torch.stack(cameras))


def level(pose: Tensor) -> np.ndarray:
    """OpenCV axes and position [3, 4] of a camera held level at the place of `pose` [3, 4], turned as it is."""
    down, ahead = np.array([0.0, 0, -1]), -pose[:, 2].double().numpy()
    ahead = ahead - down * (down @ ahead)
    ahead /= np.linalg.norm(ahead)
    return np.stack([np.cross(down, ahead), down, ahead, pose[:, 3].double().numpy()], axis=1)


def look(pose: np.ndarray, lens: Lens) -> tuple[np.ndarray, np.ndarray]:
    """What a camera sees: the mean color [H, W, 3] uint8 of the nearest that is shown in each pixel, and whether
    anything is [H, W]."""
    axes = torch.from_numpy(pose).float()
    local = (shown().positions - axes[:, 3]) @ axes[:, :3]
    pixel = lens.project(local)  # NaN where it is not seen
    inside = ((pixel >= 0) & (pixel < torch.tensor([lens.width, lens.height]))).all(-1)
    column, row = pixel[inside].long().unbind(-1)
    index, ranges, colors = row * lens.width + column, local[inside].norm(dim=-1), shown().colors[inside].float()
    nearest = torch.full((lens.width * lens.height,), math.inf).scatter_reduce(0, index, ranges, "amin")
    front = ranges < 1.05 * nearest[index]
    total = torch.zeros(len(nearest), 4).index_add(
        0, index[front], torch.nn.functional.pad(colors, (0, 1), value=1)[front]
    )
    mean = total[:, :3] / total[:, 3:].clamp(min=1)
    shape = lens.height, lens.width
    return mean.round().byte().unflatten(0, shape).numpy(), (total[:, 3] > 0).unflatten(0, shape).numpy()


def write_room(folder: Path, pinholes: bool = False) -> Path:
    """A capture of 12 panoramas, or of the six pinhole images of each, and 4 panoramas to test; what the shipped images
    do not show is masked."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    images, splits = [], {"train": [], "test": []}
    for split, views in (("train", TRAIN), ("test", TEST)):
        for view in views:
            faces = FACES if pinholes and split == "train" else {"all": np.eye(3)}
            for face, turn in faces.items():
                pose, lens, name = (
                    level(shown().cameras[view]),
                    FACE if len(faces) > 1 else PANORAMA,
                    f"{view}_{face}.png",
                )
                pose[:, :3] = pose[:, :3] @ np.transpose(turn)
                color, known = look(pose, lens)
                Image.fromarray(color).save(folder / "images" / name)
                Image.fromarray(known).save(folder / "masks" / name)
                file, pose = folder / "images" / name, pose * [1, -1, -1, 1]
                images.append(PosedImage(f"images/{name}", file, pose, lens, folder / "masks" / name))
                splits[split].append(f"images/{name}")
    some = shown().positions[::500].double().numpy()
    points = Points(some, shown().colors[::500].numpy(), np.zeros(len(some), np.int64), np.zeros(0, np.int64))
    write_transforms(folder / "transforms.json", Capture("room", "nerfstudio", images, points, (0, 0, 1), splits))
    return folder
