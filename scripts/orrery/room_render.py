# SPDX-License-Identifier: Apache-2.0
"""Path tracing of the room through a lens with distortion, and the exact range of every pixel.

Every ray is unprojected by `nerfkit.data.lens`, whose residual is checked: what is rendered is that lens.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from PIL import Image

from nerfkit.data.lens import Lens
from orrery import OrreryError, room, room_textures
from orrery.render import materials, mitsuba_scene, to_image

LAMP = 7.0  # radiance of the lamps
SKY_SHARE = 0.15  # of the rays to lights; few places see much of the sky, and bounces find it, too
MAX_DEPTH = 4  # segments of a light path
PER_PASS = 16  # rays of a pixel that are traced at once
MAX_RESIDUAL = 1e-6  # pixels


def load_room(mi: ModuleType):
    """Mitsuba scene of the room with its lamps and the sky."""
    if not mi.variant().startswith("llvm"):
        raise OrreryError(f"the room needs --variant llvm_ad_rgb, not {mi.variant()}: its rays are traced all at once")
    emitters = {
        "sky": {
            "type": "envmap",
            "bitmap": mi.Bitmap(np.ascontiguousarray(room_textures.sky(), dtype=np.float32)),
            "to_world": mi.ScalarTransform4f().rotate([1, 0, 0], 90),  # the map has y up, the world z
            "sampling_weight": SKY_SHARE,
        }
    }
    emission = {"emitter": {"type": "area", "radiance": _rgb((LAMP, 0.97 * LAMP, 0.90 * LAMP))}}
    bsdfs = materials(mi) | {name: _diffuse(mi, image) for name, image in room.pictures().items()}
    bsdfs["white_paint"] = {"type": "twosided", "surface": {"type": "diffuse", "reflectance": _rgb((0.7, 0.7, 0.66))}}
    return mitsuba_scene(mi, room.build(), emitters, bsdfs, MAX_DEPTH, lit=[(room.lamps(), emission)])


def _rgb(value) -> dict:
    return {"type": "rgb", "value": list(value)}


def _diffuse(mi: ModuleType, image: np.ndarray) -> dict:
    bitmap = mi.Bitmap(np.ascontiguousarray(image.clip(0, 0.95), dtype=np.float32))
    texture = {"type": "bitmap", "bitmap": bitmap, "raw": True, "wrap_mode": "clamp"}
    return {"type": "twosided", "surface": {"type": "diffuse", "reflectance": texture}}


def directions_of(lens: Lens, pixels: np.ndarray) -> np.ndarray:
    """Unit directions [..., 3] float32 of pixels [..., 2] in OpenGL camera axes."""
    found, residual = lens.unproject(torch.from_numpy(pixels.reshape(-1, 2)))
    if not residual.max() < MAX_RESIDUAL:
        raise OrreryError(f"the lens leaves a pixel without a direction: off by {residual.max():.2g} pixels")
    axes = np.array([1.0, -1, -1])  # of OpenGL, in OpenCV's
    return (found.numpy() * axes).astype(np.float32).reshape(*pixels.shape[:-1], 3)


def centers(lens: Lens) -> np.ndarray:
    """Pixel centers [H, W, 2]."""
    row, column = np.mgrid[0 : lens.height, 0 : lens.width]
    return np.stack([column, row], -1) + 0.5


class LensRenderer:
    """Renders the room through one lens. The places within a pixel are the same in all views; paths are not."""

    def __init__(self, mi: ModuleType, scene, lens: Lens, samples: int):
        side = round(samples**0.5)
        if side * side != samples or samples % PER_PASS:
            raise OrreryError(f"samples per pixel of the room must be a square and a multiple of {PER_PASS}: {samples}")
        self.mi, self.scene, self.lens = mi, scene, lens
        self.centers = directions_of(lens, centers(lens))  # [H, W, 3]
        rng = np.random.default_rng(3)
        places = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 1, 1, 2)  # [S, 1, 1, 2]
        jitter = rng.random((samples, lens.height, lens.width, 2))
        offsets = (rng.permutation(places) + jitter) / side - 0.5
        self.passes = [
            directions_of(lens, centers(lens) + part) for part in np.split(offsets, samples // PER_PASS)
        ]  # of [PER_PASS, H, W, 3]

    def image(self, camera_to_world: np.ndarray, seed: int) -> np.ndarray:
        """Linear RGB [H, W, 3]: the mean over each pixel's square."""
        total = np.zeros((self.lens.height, self.lens.width, 3))
        integrator = self.scene.integrator()
        for number, local in enumerate(self.passes):
            ray = self._rays(camera_to_world, local)
            sampler = self.mi.load_dict({"type": "independent"})
            sampler.seed(seed * 1000 + number, local.size // 3)
            color = np.array(integrator.sample(self.scene, sampler, ray)[0])  # [3, N]
            total += color.T.reshape(local.shape).mean(0)
        return total / len(self.passes)

    def ranges(self, camera_to_world: np.ndarray) -> np.ndarray:
        """Distance [H, W] along the ray of each pixel's center to the first surface [scene units]; sky: infinite."""
        hit = self.scene.ray_intersect_preliminary(self._rays(camera_to_world, self.centers))
        distance = np.where(np.array(hit.is_valid()), np.array(hit.t), np.inf)
        return distance.reshape(self.lens.height, self.lens.width)

    def _rays(self, camera_to_world: np.ndarray, local: np.ndarray):
        """Rays of camera directions [..., 3]."""
        world = local.reshape(-1, 3) @ camera_to_world[:3, :3].T.astype(np.float32)
        origin = [float(value) for value in camera_to_world[:3, 3]]
        return self.mi.RayDifferential3f(self.mi.Point3f(*origin), self.mi.Vector3f(*world.T))


def to_photo(linear: np.ndarray) -> Image.Image:
    """Linear RGB [H, W, 3] -> 8-bit sRGB."""
    opaque = np.concatenate([linear, np.ones_like(linear[..., :1])], -1)
    return to_image(opaque).convert("RGB")
