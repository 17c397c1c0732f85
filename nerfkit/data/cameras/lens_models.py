# SPDX-License-Identifier: Apache-2.0
"""The equations of lenses, in units of the focal length: points around a camera -> where they appear, and back.

Axes are OpenCV's: x right, y down, z forward. A lens is a row of MODELS: one of PROJECTIONS, which leads to a plane,
and distortions of that plane. Where the slope of a polynomial turns negative it folds back: beyond, nothing is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

ITERATIONS = 100  # of the search in one variable
NEWTON_ITERATIONS = 20  # in two variables
TOLERANCE = 1e-15  # of a root, relative to itself + 1
FARTHEST = 1e9  # focal lengths from the centre that the search looks at


def _perspective(points: Tensor) -> tuple[Tensor, Tensor]:
    """(x', y') = (X, Y) / Z"""
    ahead, plane = points.detach()[:, 2], points.detach()[:, :2] / points.detach()[:, 2:]
    seen = (ahead > 0) & (plane.square().sum(-1) < math.inf)
    sideways = torch.where(seen[:, None], points[:, :2], 0)  # for finite gradients
    return sideways / torch.where(seen, points[:, 2], 1)[:, None], seen


def _from_perspective(plane: Tensor) -> Tensor:
    return torch.cat([plane, torch.ones_like(plane[:, :1])], dim=-1)


def _angle(points: Tensor, omega: float | None = None) -> tuple[Tensor, Tensor]:
    """(x', y') = (X, Y) t / r, with r = |(X, Y)| and t = atan2(r, Z), also beyond 90 degrees; or, before the camera
    alone, with Devernay's t = atan2(2 tan(omega / 2) r, Z) / omega"""
    (x, y, z), (stretch, share) = points.unbind(-1), _arc(omega)
    # Where r is tiny, t / r is 1 / Z to the last digit, and the gradient of r at 0 is left out.
    near = (x * x + y * y <= 1e-16 * z * z) & (z > 0)
    away = ~near & (x * x + y * y > 0)
    r = torch.where(away, x * x + y * y, 1).sqrt()
    angle = torch.where(away, torch.atan2(stretch * r, torch.where(away, z, 1)), 0)
    scale = torch.where(near, stretch / torch.where(near, z, 1), angle / r) / share
    return points[:, :2] * scale[:, None], near | (away & ((z > 0) | (omega is None)))


def _from_angle(plane: Tensor, omega: float | None = None) -> Tensor:
    (stretch, share), bent = _arc(omega), torch.linalg.vector_norm(plane, dim=-1)  # [N]
    angle = torch.where(share * bent <= math.pi, share * bent, math.nan)
    sideways = plane * torch.where(bent > 0, angle.sin() / bent, share)[:, None]
    return torch.cat([sideways / stretch, angle.cos()[:, None]], dim=-1)


def _arc(omega: float | None) -> tuple[float, float]:
    """What stretches r, and what t is divided by."""
    return (1.0, 1.0) if omega is None else (2 * math.tan((omega or 1e-9) / 2), omega or 1e-9)


def _division(points: Tensor, k: float) -> tuple[Tensor, Tensor]:
    """(X, Y) / Z = (x', y') / (1 + k r'2)"""
    x, y, z = points.unbind(-1)
    root = z * z - 4 * k * (x * x + y * y)
    seen = root > 0
    divisor = z + torch.where(seen, root, 1).sqrt()
    seen = seen & (divisor > 0)
    return points[:, :2] * (2 / torch.where(seen, divisor, 1))[:, None], seen


def _from_division(plane: Tensor, k: float) -> Tensor:
    bend = k * plane.square().sum(-1, keepdim=True)
    return torch.cat([plane, torch.where(bend < 1, 1 + bend, math.nan)], dim=-1)


def _unified(points: Tensor, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """(x', y') = (X, Y) / (alpha d + (1 - alpha) Z), with d2 = beta (X2 + Y2) + Z2"""
    x, y, z = points.unbind(-1)
    square = beta * (x * x + y * y) + z * z
    seen = square > 0
    d = torch.where(seen, square, 1).sqrt()
    divisor = alpha * d + (1 - alpha) * z
    seen = seen & (divisor > 0) & (z > -min(1.0, (1 - alpha) / max(alpha, 0.5)) * d)
    return points[:, :2] / torch.where(seen, divisor, 1)[:, None], seen


def _from_unified(plane: Tensor, alpha: float, beta: float) -> Tensor:
    square = beta * plane.square().sum(-1, keepdim=True)
    z = (1 - alpha * alpha * square) / (alpha * (1 - (2 * alpha - 1) * square).sqrt() + 1 - alpha)
    return torch.cat([plane, z], dim=-1)


def _sphere(points: Tensor) -> tuple[Tensor, Tensor]:
    """x' = longitude, y' = latitude [radians]: 0 straight ahead, rising to the right and down"""
    x, y, z = points.unbind(-1)
    level = x * x + z * z
    aside = level > 0  # of the poles, whose longitude is 0
    longitude = torch.atan2(torch.where(aside, x, 0), torch.where(aside, z, 1))
    latitude = torch.atan2(y, torch.where(aside, torch.where(aside, level, 1).sqrt(), 0))
    return torch.stack([longitude, latitude], dim=-1), aside | (y != 0)


def _from_sphere(plane: Tensor) -> Tensor:
    limit = plane.new_tensor([1, 0.5]) * (math.pi + 1e-9)
    longitude, latitude = torch.where((plane.abs() <= limit).all(-1, keepdim=True), plane, math.nan).unbind(-1)
    level = latitude.cos()
    return torch.stack([level * longitude.sin(), latitude.sin(), level * longitude.cos()], dim=-1)


class Projection(NamedTuple):
    """Directions to a plane and back; what it has of parameters follows the points."""

    project: Callable[..., tuple[Tensor, Tensor]]  # [N, 3] -> [N, 2] with finite gradients, and which are seen [N]
    unproject: Callable[..., Tensor]  # [N, 2] -> [N, 3] of any length; NaN beyond the last direction
    is_wide: Callable[..., bool]  # whether directions beyond 90 degrees from the axis may be seen


PROJECTIONS = {
    "perspective": Projection(_perspective, _from_perspective, lambda: False),
    "angle": Projection(_angle, _from_angle, lambda: True),
    "field of view": Projection(_angle, _from_angle, lambda omega: False),
    "division": Projection(_division, _from_division, lambda k: k < 0),
    "unified": Projection(_unified, _from_unified, lambda alpha, beta: alpha > 0),
    "sphere": Projection(_sphere, _from_sphere, lambda: True),
}


class Model(NamedTuple):
    """A camera model: what its parameters are called, and how they bend light."""

    number: int | None  # COLMAP's
    names: tuple[str, ...]  # of the parameters, in COLMAP's order
    projection: str = "perspective"  # of PROJECTIONS
    distortions: tuple[tuple[str, ...], ...] = ()  # names of the coefficients in the order of Distortion's, or 0


RADIAL = (("k1 k2 k3", "k4 k5 k6", "p1 p2"),)  # OpenCV's, of which most models have a part
EVEN = (("k1 k2 k3 k4", "0", "p1 p2", "sx1 0 sy1 0"),)
ARIA = (("k0 k1 k2 k3 k4 k5", "0"), ("0", "0", "p1 p0", "s0 s1 s2 s3"))  # tangential terms of what is bent already
MODELS: dict[str, Model] = {
    name: Model(number, tuple(names.split()), *how)
    for name, number, names, *how in (
        ("SIMPLE_PINHOLE", 0, "f cx cy"),
        ("PINHOLE", 1, "fx fy cx cy"),
        ("SIMPLE_RADIAL", 2, "f cx cy k1", "perspective", RADIAL),
        ("RADIAL", 3, "f cx cy k1 k2", "perspective", RADIAL),
        ("OPENCV", 4, "fx fy cx cy k1 k2 p1 p2", "perspective", RADIAL),
        ("OPENCV_FISHEYE", 5, "fx fy cx cy k1 k2 k3 k4", "angle", EVEN),
        ("FULL_OPENCV", 6, "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6", "perspective", RADIAL),
        ("FOV", 7, "fx fy cx cy omega", "field of view"),
        ("SIMPLE_RADIAL_FISHEYE", 8, "f cx cy k1", "angle", EVEN),
        ("RADIAL_FISHEYE", 9, "f cx cy k1 k2", "angle", EVEN),
        ("THIN_PRISM_FISHEYE", 10, "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1", "angle", EVEN),
        ("RAD_TAN_THIN_PRISM_FISHEYE", 11, "fx fy cx cy k0 k1 k2 k3 k4 k5 p0 p1 s0 s1 s2 s3", "angle", ARIA),
        ("SIMPLE_DIVISION", 12, "f cx cy k", "division"),
        ("DIVISION", 13, "fx fy cx cy k", "division"),
        ("SIMPLE_FISHEYE", 14, "f cx cy", "angle"),
        ("FISHEYE", 15, "fx fy cx cy", "angle"),
        ("EUCM", 16, "fx fy cx cy alpha beta", "unified"),
        ("EQUIRECTANGULAR", 17, "w h", "sphere"),  # w pixels are 360 degrees, h are 180
        ("RADIAL4_TANGENTIAL", None, "fx fy cx cy k1 k2 k3 k4 p1 p2", "perspective", EVEN),  # nerfstudio's
    )
}


@dataclass(frozen=True)
class Equations:
    """A lens without its focal length and centre."""

    projection: str  # of PROJECTIONS
    values: tuple[float, ...]  # its parameters
    distortions: tuple[Distortion, ...]  # one after another

    def project(self, points: Tensor) -> Tensor:
        """(x', y') [N, 2] of points [N, 3]; NaN where they are not seen."""
        plane, seen = PROJECTIONS[self.projection].project(points, *self.values)
        for distortion in self.distortions:
            seen = seen & distortion.holds(plane.detach())
            plane = distortion.apply(torch.where(seen[:, None], plane, 0))
        return torch.where(seen[:, None], plane, math.nan)

    def unproject(self, plane: Tensor) -> Tensor:
        """Unit directions [N, 3] of (x', y') [N, 2] float64; where there is none, `project` of it is NaN or far off."""
        for distortion in reversed(self.distortions):
            plane = distortion.invert(plane)
        return normalize(PROJECTIONS[self.projection].unproject(plane, *self.values), dim=-1)


@dataclass(frozen=True)
class Distortion:
    """Radial, tangential and prism distortion of a plane. With r2 = x2 + y2:

    d = (1 + n1 r2 + n2 r4 + ...) / (1 + d1 r2 + d2 r4 + d3 r6)
    x' = d x + 2 p1 x y + p2 (r2 + 2 x2) + s1 r2 + s2 r4
    y' = d y + 2 p2 x y + p1 (r2 + 2 y2) + s3 r2 + s4 r4
    """

    numerator: tuple[float, ...]  # n1 ...
    denominator: tuple[float, ...]  # d1 ...
    tangential: tuple[float, ...] = (0.0, 0.0)  # p1, p2
    prism: tuple[float, ...] = ()  # s1 .. s4, or none

    @property
    def _is_radial(self) -> bool:
        return not any(self.tangential + self.prism)

    @cached_property
    def fold(self) -> float:
        """Undistorted radius r at which r d(r) stops rising or has a pole; infinite if it never does."""
        top, bottom = np.array([1, *self.numerator]), np.array([1, *self.denominator])  # in powers of r2
        slope = np.convolve(top, bottom)
        slope[1:] += 2 * np.convolve(_derivative(top), bottom) - 2 * np.convolve(top, _derivative(bottom))
        return math.sqrt(min(_first_root(slope), _first_root(bottom)))

    def holds(self, plane: Tensor) -> Tensor:
        """Where (x, y) [N, 2] lie before the fold, bool [N]."""
        holds = plane.square().sum(-1) < self.fold**2
        if not self._is_radial:
            xx, xy, yx, yy = self._slopes(plane)
            holds &= (xx > 0) & (xx * yy > xy * yx)  # as at the centre
        return holds

    def invert(self, distorted: Tensor) -> Tensor:
        """(x, y) [N, 2] of (x', y') [N, 2]; where there is none, NaN or far off."""
        plane = self._undistort_radial(distorted)
        for _ in range(0 if self._is_radial else NEWTON_ITERATIONS):
            error_x, error_y = (self.apply(plane) - distorted).unbind(-1)
            xx, xy, yx, yy = self._slopes(plane)
            step = torch.stack([yy * error_x - xy * error_y, xx * error_y - yx * error_x], dim=-1)
            step = step / (xx * yy - xy * yx)[:, None]
            plane = plane - step
            if not (step.abs() > TOLERANCE * (1 + plane.abs())).any():
                break
        return plane

    def apply(self, plane: Tensor) -> Tensor:
        """(x', y') [N, 2] of (x, y) [N, 2]."""
        (x, y), (p1, p2) = plane.unbind(-1), self.tangential
        r2 = x * x + y * y
        factor, _ = self._factor(r2)
        distorted_x = factor * x + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
        distorted_y = factor * y + 2 * p2 * x * y + p1 * (r2 + 2 * y * y)
        if any(self.prism):
            s1, s2, s3, s4 = self.prism
            distorted_x, distorted_y = distorted_x + r2 * (s1 + s2 * r2), distorted_y + r2 * (s3 + s4 * r2)
        return torch.stack([distorted_x, distorted_y], dim=-1)

    def _factor(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        """d and its derivative by r2, [N] each."""
        top, bottom = (1, *self.numerator), (1, *self.denominator)
        factor, slope = _polynomial(top, r2), _polynomial(_derivative(top), r2)
        if not any(self.denominator):
            return factor, slope
        divisor = _polynomial(bottom, r2)
        factor = factor / divisor
        return factor, (slope - factor * _polynomial(_derivative(bottom), r2)) / divisor

    def _slopes(self, plane: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dx'/dx, dx'/dy, dy'/dx and dy'/dy at (x, y) [N, 2], [N] each."""
        (x, y), (p1, p2) = plane.unbind(-1), self.tangential
        r2 = x * x + y * y
        factor, slope = self._factor(r2)
        xx = factor + 2 * slope * x * x + 2 * p1 * y + 6 * p2 * x
        xy = yx = 2 * slope * x * y + 2 * p1 * x + 2 * p2 * y
        yy = factor + 2 * slope * y * y + 6 * p1 * y + 2 * p2 * x
        if any(self.prism):
            s1, s2, s3, s4 = self.prism
            along_x, along_y = 2 * s1 + 4 * s2 * r2, 2 * s3 + 4 * s4 * r2
            xx, xy, yx, yy = xx + along_x * x, xy + along_x * y, yx + along_y * x, yy + along_y * y
        return xx, xy, yx, yy

    def _undistort_radial(self, distorted: Tensor) -> Tensor:
        """(x, y) [N, 2] whose radial distortion alone gives (x', y') [N, 2], NaN where nothing does; or, if there is
        more, a start for Newton, whose (x', y') may lie a little beyond what radial terms reach."""

        def radius_and_slope(r: Tensor) -> tuple[Tensor, Tensor]:
            factor, slope = self._factor(r * r)
            return r * factor, factor + 2 * r * r * slope

        norm = target = torch.linalg.vector_norm(distorted, dim=-1)  # [N]
        if not self._is_radial and math.isfinite(self.fold):
            target = target.minimum(radius_and_slope(target.new_tensor(0.999 * self.fold))[0])
        radius = _invert_rising(radius_and_slope, target, self.fold)
        return distorted * torch.where(norm > 0, radius / norm, 1)[:, None]


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """The polynomial with coefficients of rising powers at x, of the shape of x."""
    value = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def _derivative(coefficients: tuple[float, ...] | np.ndarray) -> tuple[float, ...]:
    return tuple(power * value for power, value in enumerate(coefficients))[1:]


def _first_root(coefficients: list[float] | np.ndarray) -> float:
    """The smallest positive root of a polynomial that is 1 at 0, coefficients in rising powers; infinite if none."""
    # Coefficients in falling powers are those of the reciprocal: its leading one is 1, however small the others are.
    reciprocals = np.roots(coefficients)
    real = reciprocals.real[np.abs(reciprocals.imag) <= 1e-6 * np.abs(reciprocals)]
    largest = real.max(initial=0.0)
    return 1 / largest if largest > 1e-18 else math.inf


def _invert_rising(function: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor, limit: float) -> Tensor:
    """x [N] from 0 to `limit` at which a function that gives value and slope, rising from 0, reaches target [N] >= 0;
    else NaN. Newton's steps, and halves of the interval where one would leave it."""
    high = target.new_tensor(limit)
    if math.isinf(limit):
        wanted, high = target.nan_to_num(0, 0, 0).max() if len(target) else 0, target.new_tensor(1)
        while high < FARTHEST and function(high)[0] < wanted:
            high = 2 * high
    reached = function(high)[0]
    reached = torch.where(reached.isnan() | (reached < 0), math.inf, reached)  # at a pole
    target = torch.where(target <= reached, target, math.nan)
    low, high = torch.zeros_like(target), high.expand_as(target)
    x = torch.minimum(target, high / 2)
    for _ in range(ITERATIONS):
        value, slope = function(x)
        low, high = torch.where(value < target, x, low), torch.where(value < target, high, x)
        newton = x - (value - target) / slope
        close = (newton - x).abs() <= TOLERANCE * (1 + x)
        new = torch.where(close | ((newton >= low) & (newton <= high)), newton, (low + high) / 2)
        inexact = (value - target).abs() > TOLERANCE * (1 + target)  # near a fold x moves on by more than rounding
        moved, x = inexact & ((new - x).abs() > TOLERANCE * (1 + x)), new
        if not moved.any():
            break
    return torch.where(target.isnan(), math.nan, x)
