# SPDX-License-Identifier: Apache-2.0
"""Textures out of noise and drawing: linear RGB images, float64 [H, W, 3]."""

from __future__ import annotations

import itertools
import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

NOISE_PERIOD = 32  # lattice points after which the noise repeats

# Colors of the lettered scales, linear RGB.
PAPER, INK, RED = (0.80, 0.74, 0.58), (0.03, 0.025, 0.03), (0.50, 0.03, 0.02)


def value_noise(points: np.ndarray, seed: int, octaves: int = 5) -> np.ndarray:
    """Fractal noise in [0, 1], shape [...], at points [..., 3]; one lattice cell has edge length 1."""
    lattice = np.random.default_rng(seed).random((NOISE_PERIOD,) * 3)
    total, amplitude, amplitudes = np.zeros(points.shape[:-1]), 1.0, 0.0
    for _ in range(octaves):
        total += amplitude * _lattice_noise(points, lattice)
        amplitudes += amplitude
        amplitude *= 0.5
        points = points * 2.03 + 7.1  # not by 2: the lattices of the octaves must not line up
    return total / amplitudes


def _lattice_noise(points: np.ndarray, lattice: np.ndarray) -> np.ndarray:
    """Values of a periodic lattice [P, P, P], smoothly interpolated at points [..., 3]."""
    cell = np.floor(points).astype(int)
    fraction = points - cell
    fraction = fraction * fraction * (3 - 2 * fraction)  # smoothstep: no creases between cells
    weights = (1 - fraction, fraction)
    value = 0.0
    for i, j, k in itertools.product((0, 1), repeat=3):
        weight = weights[i][..., 0] * weights[j][..., 1] * weights[k][..., 2]
        corner = (cell + (i, j, k)) % NOISE_PERIOD
        value = value + weight * lattice[corner[..., 0], corner[..., 1], corner[..., 2]]
    return value


def color_ramp(t: np.ndarray, stops) -> np.ndarray:
    """Colors [..., 3] of values t [...], linear between stops [(t, (r, g, b)), ...]."""
    positions = [position for position, _ in stops]
    return np.stack([np.interp(t, positions, [color[c] for _, color in stops]) for c in range(3)], -1)


def sphere_directions(height: int = 256) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vector [H, 2 H, 3], latitude and longitude [H, 2 H] in radians of each texel; row 0 is north."""
    width = 2 * height
    latitude = math.pi * (0.5 - (np.arange(height) + 0.5) / height)
    longitude = math.tau * (np.arange(width) + 0.5) / width
    latitude, longitude = np.meshgrid(latitude, longitude, indexing="ij")
    flat = np.cos(latitude)
    directions = np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], -1)
    return directions, latitude, longitude


def planets() -> dict[str, np.ndarray]:
    """Textures [256, 512, 3] of the planets but Mercury, a plain steel ball, and of the Moon."""
    directions, latitude, longitude = sphere_directions()
    swirl = value_noise(directions * 4 + 1, 8, 5)
    return {
        "earth": _earth(directions, latitude),
        "jupiter": _jupiter(directions, latitude, longitude),
        "saturn": color_ramp(
            0.5 + 0.5 * np.sin(latitude * 16 + swirl),
            [(0, (0.70, 0.52, 0.28)), (0.5, (0.88, 0.74, 0.48)), (1, (0.95, 0.86, 0.64))],
        ),
        "mars": color_ramp(
            value_noise(directions * 3 + 31, 11, 6),
            [(0.3, (0.22, 0.06, 0.03)), (0.5, (0.62, 0.20, 0.08)), (0.7, (0.80, 0.40, 0.20))],
        ),
        "venus": color_ramp(
            value_noise(directions * np.array([1.5, 1.5, 5]) + 13 + 0.8 * swirl[..., None], 12, 5),
            [(0.3, (0.60, 0.40, 0.18)), (0.5, (0.88, 0.72, 0.42)), (0.7, (0.96, 0.90, 0.70))],
        ),
        "moon": color_ramp(
            value_noise(directions * 4 + 41, 14, 6),
            [(0.3, (0.18, 0.18, 0.19)), (0.5, (0.45, 0.45, 0.45)), (0.7, (0.78, 0.78, 0.76))],
        ),
    }


def _earth(directions: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Sea and land by height, ice at the poles, clouds over all of it."""
    height = value_noise(directions * 2.2 + 5, 3, 6)
    land = np.clip((height - 0.53) / 0.02, 0, 1)[..., None]
    sea_color = color_ramp(height, [(0.3, (0.01, 0.05, 0.22)), (0.53, (0.03, 0.20, 0.45))])
    land_color = color_ramp(
        value_noise(directions * 5 + 9, 4, 5),
        [(0.35, (0.05, 0.22, 0.05)), (0.5, (0.16, 0.34, 0.08)), (0.65, (0.50, 0.40, 0.20))],
    )
    ice = np.clip((np.abs(latitude) + 0.25 * (height - 0.5) - 1.16) / 0.05, 0, 1)[..., None]
    streaks = value_noise(directions * np.array([3, 3, 6]) + 20, 6, 6)
    clouds = np.clip((streaks - 0.56) / 0.1, 0, 1)[..., None] * 0.85
    ground = sea_color * (1 - land) + land_color * land
    return (ground * (1 - ice) + 0.9 * ice) * (1 - clouds) + 0.92 * clouds


def _jupiter(directions: np.ndarray, latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Ragged bands and the red spot."""
    ragged = value_noise(directions * np.array([3, 3, 9]) + 2, 9, 5)
    bands = latitude * 7.5 + 1.1 * (ragged - 0.5) * 3
    color = color_ramp(
        0.5 + 0.5 * np.sin(bands * 1.9),
        [
            (0, (0.55, 0.27, 0.12)),
            (0.35, (0.80, 0.58, 0.36)),
            (0.7, (0.93, 0.84, 0.68)),
            (1, (0.97, 0.93, 0.84)),
        ],
    )
    # An ellipse with soft edges.
    spot = np.exp(-((((longitude - 2.2) / 0.36) ** 2 + ((latitude + 0.38) / 0.17) ** 2) ** 2))[..., None]
    return color * (1 - 0.85 * spot) + np.array([0.62, 0.14, 0.06]) * 0.85 * spot


def wood(height: int = 256, width: int = 1536) -> np.ndarray:
    """Turned walnut [H, W, 3]: around the piece and along its profile, cut out of a log that lies along x."""
    row, column = np.mgrid[0:height, 0:width]
    angle = math.tau * column / width
    radius = 0.62 * (0.2 + 0.8 * row / height)
    points = np.stack([radius * np.cos(angle) * 0.7, radius * np.sin(angle) * 3.0, row / height * 1.6], -1)
    from_pith = np.hypot(points[..., 1], points[..., 2] + 1.3) + 0.10 * value_noise(points * 2.5 + 3, 21, 4)
    growth_rings = 0.5 + 0.5 * np.sin(from_pith * 75)
    fibers = value_noise(points * np.array([9, 80, 80]), 22, 3)
    return color_ramp(
        0.55 * growth_rings**1.5 + 0.45 * fibers,
        [(0.1, (0.055, 0.020, 0.008)), (0.5, (0.20, 0.085, 0.032)), (0.9, (0.40, 0.20, 0.085))],
    )


def calendar() -> np.ndarray:
    """The months on the dial, [256, 4096, 3]."""
    return scale("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(), 180, 4096, 256, font_size=120)


def compass() -> np.ndarray:
    """The directions on the horizon ring, [160, 6144, 3]: a letter or the degrees every 10 degrees."""
    words = [f"{angle}\N{DEGREE SIGN}" if angle % 90 else "NESW"[angle // 90] for angle in range(0, 360, 10)]
    return scale(words, 180, 6144, 160, font_size=70)


def scale(words: list[str], n_ticks: int, width: int, height: int, font_size: int) -> np.ndarray:
    """Graduated scale, unrolled, [height, width, 3]: evenly spaced words below ticks. Sizes in pixels."""
    paper, ink, red = (tuple(int(255 * c ** (1 / 2.2)) for c in color) for color in (PAPER, INK, RED))
    image = Image.new("RGB", (width, height), paper)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(font_size)
    draw.rectangle([0, 0, width, 5], fill=ink)
    draw.rectangle([0, height - 6, width, height], fill=ink)
    draw.line([0, height * 0.26, width, height * 0.26], fill=ink, width=4)
    for k in range(n_ticks):
        x, long = (k + 0.5) * width / n_ticks, k % 5 == 2
        draw.line([x, 0, x, height * (0.26 if long else 0.16)], fill=ink, width=7 if long else 5)
    for k, word in enumerate(words):
        x = (k + 0.5) * width / len(words)
        draw.text((x, height * 0.62), word, fill=red if k % 3 == 0 else ink, font=font, anchor="mm")
        x = k * width / len(words)
        draw.line([x, 0, x, height], fill=ink, width=7)
    return (np.asarray(image, float) / 255) ** 2.2


def studio(width: int = 512) -> np.ndarray:
    """Radiance [W / 2, W, 3] of a dim room with soft boxes: an equirectangular map, row 0 the zenith."""
    height = width // 2
    elevation = math.pi * (0.5 - (np.arange(height) + 0.5) / height)
    azimuth = math.tau * (np.arange(width) + 0.5) / width
    elevation, azimuth = np.meshgrid(elevation, azimuth, indexing="ij")

    def soft_box(at_azimuth, at_elevation, half_width, half_height, radiance, edge=0.05):  # angles in degrees
        turn = (azimuth - math.radians(at_azimuth) + math.pi) % math.tau - math.pi  # the short way round
        across = np.abs(turn) * np.cos(elevation)
        along = np.abs(elevation - math.radians(at_elevation))
        outside = np.maximum(across / math.radians(half_width), along / math.radians(half_height)) - 1
        return (1 / (1 + np.exp(outside / edge)))[..., None] * np.array(radiance)

    room = color_ramp(
        np.sin(elevation),
        [
            (-1, (0.10, 0.085, 0.075)),
            (-0.15, (0.20, 0.18, 0.17)),
            (0.05, (0.36, 0.37, 0.40)),
            (1, (0.50, 0.54, 0.62)),
        ],
    )
    key = soft_box(35, 48, 12, 10, (27.0, 25.5, 23.0))
    cool_window = soft_box(160, 30, 9, 24, (3.6, 4.2, 5.4))
    warm_fill = soft_box(275, 24, 26, 7, (5.2, 4.2, 3.0))
    overhead = soft_box(215, 70, 14, 9, (3.0, 3.1, 3.4))
    return room + (key + cool_window + warm_fill) + overhead
