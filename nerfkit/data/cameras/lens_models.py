# SPDX-License-Identifier: Apache-2.0
"""The equations of lenses, in units of the focal length: points in front of a camera -> where they appear, and back.

Axes are OpenCV's: x right, y down, z forward. A polynomial describes a lens only as far as it rises: where its slope
turns negative it folds back, and two directions would share a pixel. Beyond that fold nothing is seen: NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

ITERATIONS = 100  # of the search in one variable: Newton takes 5, halving the interval 50
NEWTON_ITERATIONS = 20  # in two variables, from a start that is off by the tangential terms alone
TOLERANCE = 1e-15  # of a root, relative to itself + 1
FARTHEST = 1e9  # focal lengths from the centre that the search looks at


@dataclass(frozen=True)
class Perspective:
    """Radial and tangential distortion of the image plane. With (x, y) = (X, Y) / Z and r2 = x2 + y2:

    d = (1 + n1 r2 + n2 r4 + n3 r6 + n4 r8) / (1 + d1 r2 + d2 r4 + d3 r6)
    x' = d x + 2 p1 x y + p2 (r2 + 2 x2)
    y' = d y + 2 p2 x y + p1 (r2 + 2 y2)
    """

    numerator: tuple[float, float, float, float]  # n1 .. n4
    denominator: tuple[float, float, float]  # d1 .. d3
    tangential: tuple[float, float]  # p1, p2

    @property
    def is_pinhole(self) -> bool:
        """Whether nothing is distorted."""
        return not any(self.numerator + self.denominator + self.tangential)

    @cached_property
    def fold(self) -> float:
        """Undistorted radius r at which r d(r) stops rising or has a pole; infinite if it never does."""
        top, bottom = np.array([1, *self.numerator]), np.array([1, *self.denominator])  # in powers of r2
        slope = np.convolve(top, bottom)
        slope[1:] += 2 * np.convolve(_derivative(top), bottom) - 2 * np.convolve(top, _derivative(bottom))
        return math.sqrt(min(_first_root(slope), _first_root(bottom)))

    def project(self, points: Tensor) -> Tensor:
        """(x', y') [N, 2] of points [N, 3]; NaN behind the camera and beyond the fold."""
        ahead, plane = points.detach()[:, 2], points.detach()[:, :2] / points.detach()[:, 2:]
        seen = (ahead > 0) & (plane.square().sum(-1) < self.fold**2)
        if any(self.tangential):
            xx, xy, yy = self._slopes(plane)
            seen &= (xx > 0) & (xx * yy > xy * xy)  # positive definite, as it is at the centre
        sideways = torch.where(seen[:, None], points[:, :2], 0)  # so that gradients of the others are finite
        distorted = self._distort(sideways / torch.where(seen, points[:, 2], 1)[:, None])
        return torch.where(seen[:, None], distorted, math.nan)

    def unproject(self, distorted: Tensor) -> Tensor:
        """Unit directions [N, 3] of (x', y') [N, 2] float64; where there is none, `project` of it is NaN or far off."""
        plane = distorted if self.is_pinhole else self._undistort_radial(distorted)
        if any(self.tangential):
            plane = self._newton(plane, distorted)
        return normalize(torch.cat([plane, torch.ones_like(plane[:, :1])], dim=-1), dim=-1)

    def _factor(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        """d and its derivative by r2, [N] each."""
        top, bottom = (1, *self.numerator), (1, *self.denominator)
        factor, slope = _polynomial(top, r2), _polynomial(_derivative(top), r2)
        if not any(self.denominator):
            return factor, slope
        divisor = _polynomial(bottom, r2)
        factor = factor / divisor
        return factor, (slope - factor * _polynomial(_derivative(bottom), r2)) / divisor

    def _distort(self, plane: Tensor) -> Tensor:
        """(x', y') [N, 2] of (x, y) [N, 2]."""
        (x, y), (p1, p2) = plane.unbind(-1), self.tangential
        r2 = x * x + y * y
        factor, _ = self._factor(r2)
        distorted_x = factor * x + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
        distorted_y = factor * y + 2 * p2 * x * y + p1 * (r2 + 2 * y * y)
        return torch.stack([distorted_x, distorted_y], dim=-1)

    def _slopes(self, plane: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dx'/dx, dx'/dy = dy'/dx and dy'/dy at (x, y) [N, 2], [N] each."""
        (x, y), (p1, p2) = plane.unbind(-1), self.tangential
        factor, slope = self._factor(x * x + y * y)
        xx = factor + 2 * slope * x * x + 2 * p1 * y + 6 * p2 * x
        xy = 2 * slope * x * y + 2 * p1 * x + 2 * p2 * y
        yy = factor + 2 * slope * y * y + 6 * p1 * y + 2 * p2 * x
        return xx, xy, yy

    def _undistort_radial(self, distorted: Tensor) -> Tensor:
        """(x, y) [N, 2] whose radial distortion alone gives (x', y') [N, 2]; NaN where nothing does.

        If there is more, it is a start for Newton, and (x', y') may lie a little beyond what radial terms reach.
        """

        def radius_and_slope(r: Tensor) -> tuple[Tensor, Tensor]:
            factor, slope = self._factor(r * r)
            return r * factor, factor + 2 * r * r * slope

        norm = target = torch.linalg.vector_norm(distorted, dim=-1)  # [N]
        is_start = any(self.tangential)
        if is_start and math.isfinite(self.fold):
            target = target.minimum(radius_and_slope(target.new_tensor(0.999 * self.fold))[0])
        radius = _invert_rising(radius_and_slope, target, self.fold, 1e-4 if is_start else TOLERANCE)
        return distorted * torch.where(norm > 0, radius / norm, 1)[:, None]

    def _newton(self, plane: Tensor, distorted: Tensor) -> Tensor:
        """(x, y) [N, 2] that give (x', y'), from a start that is near."""
        for _ in range(NEWTON_ITERATIONS):
            error_x, error_y = (self._distort(plane) - distorted).unbind(-1)
            xx, xy, yy = self._slopes(plane)
            step = torch.stack([yy * error_x - xy * error_y, xx * error_y - xy * error_x], dim=-1)
            step = step / (xx * yy - xy * xy)[:, None]
            plane = plane - step
            if not (step.abs() > TOLERANCE * (1 + plane.abs())).any():
                break
        return plane


@dataclass(frozen=True)
class Fisheye:
    """Distortion of the angle from the axis, also beyond 90 degrees. With r = |(X, Y)| and t = atan2(r, Z):

    t' = t (1 + k1 t2 + k2 t4 + k3 t6 + k4 t8)
    (x', y') = (X, Y) t' / r
    """

    coefficients: tuple[float, float, float, float]  # k1 .. k4

    is_pinhole = False

    @cached_property
    def fold(self) -> float:
        """Angle [radians] at which t' stops rising; pi, straight behind, if it never does."""
        return min(math.sqrt(_first_root(self._slopes)), math.pi)

    @property
    def _slopes(self) -> tuple[float, ...]:
        """Coefficients of dt'/dt in powers of t2."""
        return tuple((2 * power + 1) * value for power, value in enumerate((1, *self.coefficients)))

    def project(self, points: Tensor) -> Tensor:
        """(x', y') [N, 2] of points [N, 3]; NaN straight behind, at the camera itself and beyond the fold."""
        x, y, z = points.unbind(-1)
        # Where r is tiny, t' / r is 1 / Z to the last digit, and the gradient of r at 0 is left out.
        near = (x * x + y * y <= 1e-16 * z * z) & (z > 0)
        away = ~near & (x * x + y * y > 0)
        r = torch.where(away, x * x + y * y, 1).sqrt()
        angle = torch.where(away, torch.atan2(r, torch.where(away, z, 1)), 0)
        scale = torch.where(near, 1 / torch.where(near, z, 1), self._bend(angle)[0] / r)
        seen = near | (away & (angle < self.fold))
        return torch.where(seen[:, None], points[:, :2] * scale[:, None], math.nan)

    def unproject(self, distorted: Tensor) -> Tensor:
        """Unit directions [N, 3] of (x', y') [N, 2] float64; where there is none, `project` of it is NaN or far off."""
        bent = torch.linalg.vector_norm(distorted, dim=-1)  # [N]
        angle = _invert_rising(self._bend, bent, self.fold) if any(self.coefficients) else bent.clamp(max=math.pi)
        sideways = distorted * torch.where(bent > 0, angle.sin() / bent, 1)[:, None]
        return normalize(torch.cat([sideways, angle.cos()[:, None]], dim=-1), dim=-1)

    def _bend(self, angle: Tensor) -> tuple[Tensor, Tensor]:
        """t' and its derivative at angles t [N]."""
        factor = _polynomial((1, *self.coefficients), angle * angle)
        return angle * factor, _polynomial(self._slopes, angle * angle)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """The polynomial with coefficients of rising powers at x, of the shape of x."""
    degree = max((power for power, value in enumerate(coefficients) if value), default=0)
    value = torch.full_like(x, coefficients[degree])
    for coefficient in reversed(coefficients[:degree]):
        value = value * x + coefficient
    return value


def _derivative(coefficients: tuple[float, ...] | np.ndarray) -> tuple[float, ...]:
    """Coefficients of the derivative, in rising powers."""
    return tuple(power * value for power, value in enumerate(coefficients))[1:]


def _first_root(coefficients: list[float] | np.ndarray) -> float:
    """The smallest positive root of a polynomial that is 1 at 0, coefficients in rising powers; infinite if none."""
    # Coefficients in falling powers are those of the reciprocal: its leading one is 1, however small the others are.
    reciprocals = np.roots(coefficients)
    real = reciprocals.real[np.abs(reciprocals.imag) <= 1e-6 * np.abs(reciprocals)]
    largest = real.max(initial=0.0)
    return 1 / largest if largest > 1e-18 else math.inf


def _invert_rising(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor, limit: float, tolerance: float = TOLERANCE
) -> Tensor:
    """x [N] from 0 to `limit` at which a function that gives value and slope, rising from 0, reaches target [N] >= 0.

    Newton's steps, and halves of the interval where one would leave it. NaN where the target is not reached.
    """
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
        moved, x = inexact & ((new - x).abs() > tolerance * (1 + x)), new
        if not moved.any():
            break
    return torch.where(target.isnan(), math.nan, x)
