# SPDX-License-Identifier: Apache-2.0
"""Lens: from directions of a camera to pixels and back.

Unprojecting a distorted pixel means solving an equation, so that is done once, in float64: for every pixel, or where
that takes too much memory, for every n-th one each way (`Lens.direction_map`).
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nerfkit.data.cameras.lens_models import Fisheye, Perspective
from nerfkit.errors import SceneError
from nerfkit.safe_io import printable

MODELS: dict[str, tuple[int | None, tuple[str, ...]]] = {  # COLMAP's number, and the names of the parameters
    "SIMPLE_PINHOLE": (0, ("f", "cx", "cy")),
    "PINHOLE": (1, ("fx", "fy", "cx", "cy")),
    "SIMPLE_RADIAL": (2, ("f", "cx", "cy", "k1")),
    "RADIAL": (3, ("f", "cx", "cy", "k1", "k2")),
    "OPENCV": (4, ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2")),
    "OPENCV_FISHEYE": (5, ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4")),
    "FULL_OPENCV": (6, ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")),
    "SIMPLE_RADIAL_FISHEYE": (8, ("f", "cx", "cy", "k1")),
    "RADIAL_FISHEYE": (9, ("f", "cx", "cy", "k1", "k2")),
    "SIMPLE_FISHEYE": (14, ("f", "cx", "cy")),
    "FISHEYE": (15, ("fx", "fy", "cx", "cy")),
    "RADIAL4_TANGENTIAL": (None, ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4", "p1", "p2")),  # nerfstudio's
}
UNSUPPORTED: dict[str, int] = {  # models of COLMAP's that nerfkit does not know, with their numbers
    "FOV": 7, "THIN_PRISM_FISHEYE": 10, "RAD_TAN_THIN_PRISM_FISHEYE": 11, "SIMPLE_DIVISION": 12, "DIVISION": 13,
    "EUCM": 16, "EQUIRECTANGULAR": 17,
}  # fmt: skip
UNDISTORT = "undistort the images with COLMAP's image_undistorter"
SIDE_LIMIT = 100_000  # pixels
FOCAL_LIMITS = (1e-3, 1e7)  # pixels
CENTER_MARGIN = 10  # sides of the image: the principal point of a cropped image may lie outside, but not by far
COEFFICIENT_LIMIT = 1e12  # high orders of a long lens are large
TOLERANCE = 0.05  # pixels between a pixel and the projection of its direction
MAX_INVALID = 0.02  # share of the pixels of a lens
CHUNK = 10_000  # pixels that are unprojected at once: torch works on so few in one thread, out of the cache


class DirectionMap(NamedTuple):
    """Directions at N nodes over the image of a lens, row by row: all pixel centres, or evenly spaced points."""

    directions: Tensor  # [N, 3] float32, of unit length, OpenGL axes: x right, y up, z backwards
    valid: Tensor  # [N] bool; where False, no direction leads to the node, and `directions` holds the axis


@dataclass(frozen=True)
class Lens:
    """A camera model of one image size. Pixel centres lie at +0.5; axes are OpenCV's: x right, y down, z forward.

    A pixel is (fx x' + cx, fy y' + cy), with (x', y') of `lens_models.Fisheye` or `lens_models.Perspective`. Of the
    latter, k1, k2, k3 are n1, n2, n3; k4, k5, k6 of FULL_OPENCV are d1, d2, d3, but k4 of RADIAL4_TANGENTIAL is n4.
    Coefficients that a model does not have are 0, and f is both fx and fy.
    """

    model: str  # COLMAP's name of it
    params: tuple[float, ...]  # in COLMAP's order
    width: int  # pixels
    height: int

    def __post_init__(self) -> None:
        if self.model in list(UNSUPPORTED):
            raise SceneError(f"camera model {self.model} is not supported; {UNDISTORT}")
        if self.model not in list(MODELS):  # a list can be searched for any value, also one without a hash
            raise SceneError(
                f"unknown camera model {_got(self.model)}; known are {', '.join(MODELS)}; else {UNDISTORT}"
            )
        for name, side in (("width", self.width), ("height", self.height)):
            if not isinstance(side, int) or not 1 <= side <= SIDE_LIMIT:
                raise SceneError(f"{name} must be a whole number of pixels from 1 to {SIDE_LIMIT}, got {_got(side)}")
        names, where = MODELS[self.model][1], f"camera model {self.model}"
        if len(self.params) != len(names):
            wanted = f"{len(names)} parameters ({', '.join(names)})"
            raise SceneError(f"{where} has {wanted}, got {len(self.params)}: {_got(self.params)}")
        for name, value in zip(names, self.params, strict=True):
            if not isinstance(value, (int, float)) or not abs(value) <= COEFFICIENT_LIMIT:  # nor is NaN
                limits = f"from {-COEFFICIENT_LIMIT:g} to {COEFFICIENT_LIMIT:g}"
                raise SceneError(f"{where}: {name} must be a number {limits}, got {_got(value)}")
            if name[0] == "f" and not FOCAL_LIMITS[0] <= value <= FOCAL_LIMITS[1]:
                wanted = "between {:g} and {:g} pixels".format(*FOCAL_LIMITS)
                raise SceneError(f"{where}: the focal length {name} must lie {wanted}, got {value:g}")
        object.__setattr__(self, "params", tuple(map(float, self.params)))
        for value, side in zip(self.center, (self.width, self.height), strict=True):
            if not -CENTER_MARGIN * side <= value <= (1 + CENTER_MARGIN) * side:
                raise SceneError(
                    f"{where}: the principal point (cx {self.center[0]:g}, cy {self.center[1]:g}) lies far outside of "
                    f"{self.width}x{self.height} images; were these resized?"
                )

    @property
    def focal(self) -> tuple[float, float]:
        """(fx, fy) [pixels]."""
        named = self.named()
        return named.get("fx", named.get("f")), named.get("fy", named.get("f"))

    @property
    def center(self) -> tuple[float, float]:
        """(cx, cy), the principal point from the upper left corner [pixels]."""
        named = self.named()
        return named["cx"], named["cy"]

    @property
    def is_pinhole(self) -> bool:
        """Whether it distorts nothing."""
        return _equations(self.model, self.params).is_pinhole

    @property
    def is_fisheye(self) -> bool:
        """Whether it bends angles, so that it may see beyond 90 degrees."""
        return isinstance(_equations(self.model, self.params), Fisheye)

    def resized(self, width: int, height: int) -> Lens:
        """The lens of the same images at another size, with a focal length for each axis if they differ now."""
        scale_x, scale_y = width / self.width, height / self.height
        named, model = self.named() | dict(zip(("fx", "fy"), self.focal, strict=True)), self.model
        if scale_x != scale_y and "f" in named:  # the same equations with a focal length for each axis
            model = "OPENCV_FISHEYE" if self.is_fisheye else "OPENCV" if "k1" in named else "PINHOLE"
        for key in ("f", "fx", "cx"):
            named[key] = named.get(key, 0.0) * scale_x
        for key in ("fy", "cy"):
            named[key] *= scale_y
        return Lens(model, tuple(named.get(name, 0.0) for name in MODELS[model][1]), width, height)

    def project(self, points: Tensor) -> Tensor:
        """Pixels [N, 2] of points [N, 3] in camera axes, of their type; differentiable.

        NaN where a point is not seen: behind a perspective lens, or beyond the fold of its polynomial.
        """
        pixels = _equations(self.model, self.params).project(points).unbind(-1)
        return torch.stack([f * x + c for f, x, c in zip(self.focal, pixels, self.center, strict=True)], dim=-1)

    def unproject(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Unit directions [N, 3] in camera axes of pixels [N, 2], and how far their projections are off [pixels, N].

        Both float64. Where no direction leads to a pixel, the direction is NaN and the residual infinite. A residual
        above `TOLERANCE` says that a strange lens's direction was not found.
        """
        pixels = pixels.double()
        focal, center = pixels.new_tensor(self.focal), pixels.new_tensor(self.center)
        directions = _equations(self.model, self.params).unproject((pixels - center) / focal)
        residual = torch.linalg.vector_norm(self.project(directions) - pixels, dim=-1).nan_to_num(nan=math.inf)
        return torch.where(residual.isinf()[:, None], math.nan, directions), residual

    def nodes(self, spacing: int) -> tuple[int, int]:
        """Nodes across and down, at most `spacing` pixels apart, from the first pixel's centre to the last's."""
        if spacing == 1:
            return self.width, self.height
        return tuple(1 + max(1, math.ceil((side - 1) / spacing)) for side in (self.width, self.height))

    def direction_map(self, spacing: int = 1) -> DirectionMap:
        """Directions at `nodes(spacing)`, 1 for all pixels; raises SceneError if more than 2 % of them have none."""
        columns, rows = self.nodes(spacing)
        x = torch.linspace(0.5, self.width - 0.5, columns, dtype=torch.float64)
        y = torch.linspace(0.5, self.height - 0.5, rows, dtype=torch.float64)
        center, nearest = torch.tensor(self.center, dtype=torch.float64), torch.tensor([math.inf])
        directions, valid = [], []
        for part in y.split(max(1, CHUNK // columns)):  # a few rows at a time
            pixels = torch.cartesian_prod(part, x).flip(-1)  # [N, 2]
            found, residual = self.unproject(pixels)  # [N, 3], [N]
            valid.append(residual <= TOLERANCE)
            away = torch.linalg.vector_norm(pixels[~valid[-1]] - center, dim=-1)
            nearest = torch.cat([nearest, away]).amin(dim=0, keepdim=True)
            known = torch.where(valid[-1][:, None], found, found.new_tensor([0.0, 0.0, 1.0]))
            directions.append(normalize(known * known.new_tensor([1.0, -1, -1]), dim=-1).float())
        made = DirectionMap(torch.cat(directions), torch.cat(valid))
        share = (~made.valid).sum().item() / len(made.valid)
        if share > MAX_INVALID:
            params = ", ".join(f"{name} {value:g}" for name, value in self.named().items())
            raise SceneError(
                f"the lens {self.model} of {self.width}x{self.height} images, {params}, has no directions for "
                f"{100 * share:.3g} % of the pixels, beyond {nearest.item():.4g} pixels from its principal point, "
                f"where its polynomial folds back; crop the images, calibrate with another model, or {UNDISTORT}"
            )
        return made

    def named(self) -> dict[str, float]:
        """Parameters by name."""
        return dict(zip(MODELS[self.model][1], self.params, strict=True))


@lru_cache(maxsize=4096)
def _equations(model: str, params: tuple[float, ...]) -> Perspective | Fisheye:
    """The lens in focal lengths, without its focal length and centre."""
    named = dict(zip(MODELS[model][1], params, strict=True))
    k1, k2, k3, k4, *denominator, p1, p2 = (named.get(name, 0.0) for name in "k1 k2 k3 k4 k5 k6 p1 p2".split())
    if model.endswith("FISHEYE"):
        return Fisheye((k1, k2, k3, k4))
    if model == "RADIAL4_TANGENTIAL":
        return Perspective((k1, k2, k3, k4), (0.0, 0.0, 0.0), (p1, p2))
    return Perspective((k1, k2, k3, 0.0), (k4, *denominator), (p1, p2))


def _got(value: object) -> str:
    return printable(reprlib.repr(value))
