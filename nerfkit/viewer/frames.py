# SPDX-License-Identifier: Apache-2.0
"""A scene, a camera of the browser and a look -> a frame, rendered in chunks of rays on the model's device.

The browser's cameras have OpenCV axes (x right, y down, z forward), the model's OpenGL axes (y up, looking down -z).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from viser.transforms import SO3

from nerfkit.crop import Crop
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.model.cropping import cropped
from nerfkit.rendering.image_renderer import MAX_CHUNK, ImageRenderer
from nerfkit.rendering.images import colorize, preview, to_uint8
from nerfkit.rendering.paths import pinholes
from nerfkit.viewer.scene import ViewerScene

COMPARING = "error"  # the output that needs training images
OUTPUTS = {  # of a look -> what the renderer is asked for
    "color": "rgb", "depth": "depth", "normals": "normal", "opacity": "opacity", "samples": "samples", COMPARING: "rgb",
}  # fmt: skip
COLORMAPS = ("turbo", "viridis", "inferno", "gray")
BRIGHTEST_ERROR = 0.25  # mean of the channels' differences
NO_PHOTO = 0.35  # gray where the training image has no pixel, or no training image has one
BACKGROUNDS = {"of the run": None, "white": 1.0, "gray": 0.5, "black": 0.0}
FADE_SIDE, FADE_WIDTH, FAR = 96, 4, 100.0  # image of what cameras saw: side, soft edge [pixels]; how far [sizes]
SPLIT_LINE = (1.0, 0.8, 0.1)
FOREGROUND = 0.5  # opacity above which a pixel has a depth
QUANTILES = (0.02, 0.98)  # of the depths, ends of an automatic range
MAX_SORTED = 2**16  # depths that quantiles are taken of
FLIP = np.array([1.0, -1.0, -1.0])  # of the columns of a rotation, between the two kinds of axes


class Viewpoint(NamedTuple):
    """A pinhole camera in the middle of its frame."""

    pose: tuple[float, ...]  # [12] camera-to-world, rows of [3, 4], OpenGL axes, model's frame
    fov: float  # vertical [radians]

    @classmethod
    def of(cls, pose: np.ndarray, fov: float) -> Viewpoint:
        return cls(tuple(pose.flatten().tolist()), float(fov))

    @property
    def matrix(self) -> np.ndarray:
        return np.array(self.pose).reshape(3, 4)

    def cameras(self, width: int, height: int) -> Cameras:
        return pinholes([self.matrix], [self.fov], (width, height))


def rotation_of(wxyz: Any) -> np.ndarray:
    """Rotation [3, 3] of a quaternion [4], of any length."""
    return SO3(np.asarray(wxyz, dtype=np.float64)).as_matrix()


def viewpoint(wxyz: Any, position: Any, fov: float) -> Viewpoint:
    """The model's view of a camera in the browser."""
    return Viewpoint.of(np.column_stack([rotation_of(wxyz) * FLIP, position]), fov)


def in_browser(pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quaternion [4] and position [3] in the browser of a pose [3, 4] of the model's."""
    return SO3.from_matrix(pose[:, :3] * FLIP).wxyz, np.array(pose[:, 3])


def vertical_fov(cameras: Cameras, view: int) -> float:
    """Vertical field of view of a camera without its distortion [radians]."""
    return 2 * math.atan(cameras.size(view)[1] / 2 / float(cameras.pinhole().focal[view, 1]))


def aspect(cameras: Cameras, view: int) -> float:
    """How wide a camera's view is for its height, whatever the shape of its pixels."""
    (width, height), (fx, fy) = cameras.size(view), cameras.pinhole().focal[view].tolist()
    return width / fx * fy / height


def nearest_view(pose: np.ndarray, poses: np.ndarray, scale: float) -> tuple[int, float, float]:
    """Number, distance and angle [degrees] of the nearest of poses [V, 3, 4]; `scale` counts as much as 60 degrees."""
    distance = np.linalg.norm(poses[:, :, 3] - pose[:, 3], axis=-1)  # [V]
    cosine = (np.einsum("vij,ij->v", poses[:, :, :3], pose[:, :3]) - 1) / 2
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    view = int(np.argmin(distance / max(scale, 1e-9) + angle / 60))
    return view, float(distance[view]), float(angle[view])


@dataclass(frozen=True)
class Look:
    output: str = "color"  # of OUTPUTS
    colormap: str = "turbo"  # of depth, samples and error
    depth_range: tuple[float, float] | None = None  # ends of the colormap [model units]; None: of the frame's depths
    view: int | None = None  # training image that the frame is compared with, in an error or a split screen
    split: float | None = None  # share of the width, from the left, that is the rendering; the rest is that image
    crop: Crop | None = None  # nothing outside of it is rendered
    background: str = "of the run"  # of BACKGROUNDS
    fades: bool = False  # whether what is empty and no training camera saw fades to gray


class ModelFrame:
    def __init__(self, scene: ViewerScene, viewpoint: Viewpoint, width: int, height: int, look: Look):
        self.scene, self.look, self.size, self.n_rays = scene, look, (width, height), width * height
        self.device, self.viewpoint = scene.background.device, viewpoint
        self.cameras = viewpoint.cameras(width, height).to(self.device)
        level = BACKGROUNDS[look.background]
        background = scene.background if level is None else torch.full_like(scene.background, level)
        self.renderer = ImageRenderer(scene.model, background, chunk=MAX_CHUNK, stays_on_device=True)
        self.outputs = (OUTPUTS[look.output], *(["depth"] if look.view is not None else []))
        self.parts: list[dict[str, Tensor]] = []

    def render(self, start: int, end: int) -> int:
        """Render rays from `start` to `end` or the last; the device has finished them on return. Returns the end."""
        end = min(end, self.n_rays)
        with cropped(self.scene.model, self.look.crop):
            self.parts.append(self.renderer.in_chunks(self.cameras, 0, start, end, self.outputs))
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return end

    @torch.no_grad()
    def finish(self) -> np.ndarray:
        look, (width, height) = self.look, self.size
        values = {name: torch.cat([part[name] for part in self.parts]) for name in self.parts[0]}
        values = {name: value.unflatten(0, (height, width)) for name, value in values.items()}
        image = self._image(values)  # [H, W, 3]
        if look.fades and look.output == "color":
            image = self._faded(image, values)
        if look.view is not None:
            photo, known = self._photo(values)
            if look.output == COMPARING:
                error = colorize((image - photo).abs().mean(-1), 0.0, BRIGHTEST_ERROR, look.colormap)
                image = torch.where(known[..., None], error, NO_PHOTO)
            if look.split is not None:
                edge = round(look.split * width)
                image = torch.cat([image[:, :edge], photo[:, edge:]], dim=1)
                image[:, max(edge - 1, 0) : edge + 1] = image.new_tensor(SPLIT_LINE)
        return to_uint8(image)

    def _image(self, values: dict[str, Tensor]) -> Tensor:
        output, colormap = OUTPUTS[self.look.output], self.look.colormap
        if output == "samples":
            return colorize(values["samples"], 0.0, max(float(values["samples"].max()), 1.0), colormap)
        if output == "depth":
            ends = self.look.depth_range or depth_range(values["depth_ray"], values["opacity"])
            return preview("depth_ray", values, ends, colormap)
        return preview(output, values, (0.0, 1.0))

    def _faded(self, image: Tensor, values: dict[str, Tensor]) -> Tensor:
        """Gray where nothing is that a training camera could have seen: the field ends in steps there."""
        scale = min(FADE_SIDE / max(self.size), 1.0)
        width, height = (max(round(side * scale), 1) for side in self.size)
        rays = self.viewpoint.cameras(width, height).to(self.device).image_rays(0)
        opaque = F.interpolate(values["opacity"][None, None], (height, width), mode="area") > FOREGROUND
        seen = self.scene.saw(rays.origins + rays.directions * FAR * self.scene.size).view(1, 1, height, width)
        sides, kernel = (FADE_WIDTH,) * 4, 2 * FADE_WIDTH + 1
        share = F.avg_pool2d(F.pad((opaque | seen).float(), sides, mode="replicate"), kernel, stride=1)
        share = F.interpolate((share * 2 - 1).clamp(min=0), self.size[::-1], mode="bilinear")[0, 0, :, :, None]
        return NO_PHOTO + share * (image - NO_PHOTO)

    def _photo(self, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The training image as it is seen on the rendered surface [H, W, 3], and where it has a pixel [H, W]."""
        width, height = self.size
        rays = self.cameras.image_rays(0)
        depth = values["depth_ray"].flatten()[:, None]
        far = max(float(depth.max()), 1.0) * 100
        depth = torch.where(values["opacity"].flatten()[:, None] > FOREGROUND, depth, far)
        points = (rays.origins + rays.directions * depth).cpu()
        pixel, ahead = self.scene.cameras.project(points, self.look.view)  # [R, 2], [R]
        image = self.scene.photo(self.look.view)  # [H', W', 3]
        size = torch.tensor([image.shape[1], image.shape[0]])
        known = (ahead > 0) & (pixel >= 0).all(-1) & (pixel < size).all(-1)
        place = torch.where(known[:, None], pixel / size * 2 - 1, 0.0)  # from -1 to 1, between the outer edges
        seen = F.grid_sample(
            image.permute(2, 0, 1)[None], place.view(1, height, width, 2), padding_mode="border", align_corners=False
        )[0].permute(1, 2, 0)
        known = known.view(height, width)
        return torch.where(known[..., None], seen, NO_PHOTO).to(self.device), known.to(self.device)


def depth_range(depth: Tensor, opacity: Tensor) -> tuple[float, float]:
    """Ends of a colormap for depths [H, W]: all but the nearest and farthest 2 % of the opaque pixels."""
    seen = depth[opacity > FOREGROUND]
    if not len(seen):
        return 0.0, 1.0
    seen = seen[:: math.ceil(len(seen) / MAX_SORTED)]
    low, high = torch.quantile(seen, seen.new_tensor(QUANTILES)).tolist()
    return low, high
