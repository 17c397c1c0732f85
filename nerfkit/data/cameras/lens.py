# SPDX-License-Identifier: Apache-2.0
"""Lens: from directions of a camera to pixels and back; `Lens.direction_map` solves that once, in float64."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nerfkit.data.cameras.lens_models import MODELS, PROJECTIONS, Distortion, Equations
from nerfkit.errors import SceneError
from nerfkit.safe_io import printable

UNDISTORT = "undistort the images with COLMAP's image_undistorter"
SIDE_LIMIT = 100_000  # pixels
FOCAL_LIMITS = (1e-3, 1e7)  # pixels
BOUNDS = {"omega": (-3.1, 3.1), "alpha": (0, 1), "beta": (1e-6, 1e6)}  # of coefficients that are none of a polynomial
CENTER_MARGIN = 10  # sides of the image, by which a principal point may lie outside
COEFFICIENT_LIMIT = 1e12  # high orders of a long lens are large
TOLERANCE = 0.05  # pixels between a pixel and the projection of its direction
MAX_INVALID = 0.02  # share of the pixels of a lens
CHUNK = 10_000  # pixels that are unprojected at once, out of the cache


class DirectionMap(NamedTuple):
    """Directions at N nodes over the image of a lens, row by row: all pixel centres, or evenly spaced points."""

    directions: Tensor  # [N, 3] float32, of unit length, OpenGL axes: x right, y up, z backwards
    valid: Tensor  # [N] bool; where False, `directions` holds the axis


@dataclass(frozen=True)
class Lens:
    """A camera model of one image size. Pixel centres lie at +0.5; axes are OpenCV's: x right, y down, z forward.

    A pixel is (fx x' + cx, fy y' + cy), with (x', y') of `lens_models.Equations`. Coefficients that a model does not
    have are 0, and f is both fx and fy. A panorama's follow from its size.
    """

    model: str  # COLMAP's name of it
    params: tuple[float, ...]  # in COLMAP's order
    width: int  # pixels
    height: int

    def __post_init__(self) -> None:
        if self.model not in list(MODELS):  # a list can be searched for any value, also one without a hash
            raise SceneError(f"unknown camera model {_got(self.model)}; known: {', '.join(MODELS)}; else {UNDISTORT}")
        for name, side in (("width", self.width), ("height", self.height)):
            if not isinstance(side, int) or not 1 <= side <= SIDE_LIMIT:
                raise SceneError(f"{name} must be a whole number of pixels from 1 to {SIDE_LIMIT}, got {_got(side)}")
        names, where = MODELS[self.model].names, f"camera model {self.model}"
        if len(self.params) != len(names):
            wanted = f"{len(names)} parameters ({', '.join(names)})"
            raise SceneError(f"{where} has {wanted}, got {len(self.params)}: {_got(self.params)}")
        for name, value in zip(names, self.params, strict=True):
            low, high = FOCAL_LIMITS if name[0] in "fwh" else BOUNDS.get(name, (-COEFFICIENT_LIMIT, COEFFICIENT_LIMIT))
            if not isinstance(value, (int, float)) or not low <= value <= high:  # nor is NaN
                what = "focal length " * (name[0] in "fwh")
                raise SceneError(f"{where}: {what}{name} must be a number from {low:g} to {high:g}, got {_got(value)}")
        object.__setattr__(self, "params", tuple(map(float, self.params)))
        (cx, cy), size = self.center, f"{self.width}x{self.height}"
        for value, side in ((cx, self.width), (cy, self.height)):
            if not -CENTER_MARGIN * side <= value <= (1 + CENTER_MARGIN) * side:
                middle = f"the principal point (cx {cx:g}, cy {cy:g})"
                raise SceneError(f"{where}: {middle} lies far outside of {size} images; were these resized?")

    @property
    def focal(self) -> tuple[float, float]:
        """(fx, fy) [pixels]."""
        named = self.named()
        if self.is_panorama:
            return named["w"] / (2 * math.pi), named["h"] / math.pi
        return named.get("fx", named.get("f")), named.get("fy", named.get("f"))

    @property
    def center(self) -> tuple[float, float]:
        """(cx, cy), the principal point from the upper left corner [pixels]."""
        named = self.named()
        return (named["w"] / 2, named["h"] / 2) if self.is_panorama else (named["cx"], named["cy"])

    @property
    def is_pinhole(self) -> bool:
        """Whether it distorts nothing."""
        return self.is_flat and not self.equations.distortions

    @property
    def is_flat(self) -> bool:
        """Whether it shows a plane, more or less distorted, rather than angles."""
        return MODELS[self.model].projection == "perspective"

    @property
    def is_wide(self) -> bool:
        """Whether it may see beyond 90 degrees from its axis."""
        return PROJECTIONS[self.equations.projection].is_wide(*self.equations.values)

    @property
    def is_panorama(self) -> bool:
        """Whether it sees all around, columns being longitudes and rows latitudes."""
        return MODELS[self.model].projection == "sphere"

    @cached_property
    def equations(self) -> Equations:
        """The lens in focal lengths, without its focal length and centre."""
        row, named = MODELS[self.model], self.named()
        stages = [[tuple(named.get(n, 0.0) for n in names.split()) for names in stage] for stage in row.distortions]
        values = tuple(named[name] for name in row.names if name in ("omega", "k", "alpha", "beta"))
        return Equations(row.projection, values, tuple(Distortion(*stage) for stage in stages if any(map(any, stage))))

    def resized(self, width: int, height: int) -> Lens:
        """The lens of the same images at another size, with a focal length for each axis if they differ now."""
        scale_x, scale_y = width / self.width, height / self.height
        named, model = self.named() | dict(zip(("fx", "fy"), self.focal, strict=True)), self.model
        if scale_x != scale_y and "f" in named:  # the same equations with a focal length for each axis
            flat = "OPENCV" if "k1" in named else "PINHOLE"
            model = {"angle": "OPENCV_FISHEYE", "division": "DIVISION"}.get(MODELS[model].projection, flat)
        for keys, scale in ((("f", "fx", "cx", "w"), scale_x), (("fy", "cy", "h"), scale_y)):
            named |= {key: named[key] * scale for key in keys if key in named}
        return Lens(model, tuple(named.get(name, 0.0) for name in MODELS[model].names), width, height)

    def project(self, points: Tensor) -> Tensor:
        """Pixels [N, 2] of points [N, 3] in camera axes; differentiable. NaN where a point is not seen."""
        pixels = self.equations.project(points).unbind(-1)
        return torch.stack([f * x + c for f, x, c in zip(self.focal, pixels, self.center, strict=True)], dim=-1)

    def unproject(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Unit directions [N, 3] in camera axes of pixels [N, 2], and how far their projections are off [pixels, N]:
        float64; NaN and infinite where no direction leads to a pixel, above `TOLERANCE` where none was found."""
        pixels = pixels.double()
        focal, center = pixels.new_tensor(self.focal), pixels.new_tensor(self.center)
        directions = self.equations.unproject((pixels - center) / focal)
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
        directions, valid = [], []
        for part in y.split(max(1, CHUNK // columns)):  # a few rows at a time
            found, residual = self.unproject(torch.cartesian_prod(part, x).flip(-1))  # [N, 3], [N]
            valid.append(residual <= TOLERANCE)
            known = torch.where(valid[-1][:, None], found, found.new_tensor([0.0, 0.0, 1.0]))
            directions.append(normalize(known * known.new_tensor([1.0, -1, -1]), dim=-1).float())
        made = DirectionMap(torch.cat(directions), torch.cat(valid))
        share = (~made.valid).sum().item() / len(made.valid)
        if share > MAX_INVALID:
            unknown = torch.cartesian_prod(y, x)[~made.valid].flip(-1)
            nearest = (unknown - torch.tensor(self.center)).norm(dim=-1).min().item()
            params = ", ".join(f"{name} {value:g}" for name, value in self.named().items())
            raise SceneError(
                f"the lens {self.model} of {self.width}x{self.height} images, {params}, has no directions for "
                f"{100 * share:.3g} % of the pixels, beyond {nearest:.4g} pixels from its principal point: its "
                f"polynomial folds back, or its equations end; crop the images, use another model, or {UNDISTORT}"
            )
        return made

    def named(self) -> dict[str, float]:
        return dict(zip(MODELS[self.model].names, self.params, strict=True))


def lens_at(where: str, model: str, params: tuple[float, ...], width: int, height: int) -> Lens:
    """The lens of a place in a file, which its SceneError names."""
    try:
        return Lens(model, params, width, height)
    except SceneError as error:
        raise SceneError(f"{where}: {error}") from None


def _got(value: object) -> str:
    return printable(reprlib.repr(value))
