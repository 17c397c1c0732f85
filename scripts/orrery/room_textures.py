# SPDX-License-Identifier: Apache-2.0
"""Textures of the room and of what lies outside: linear RGB images, float64 [H, W, 3], row 0 at the top.

What covers a large surface is made for it and repeats nowhere: no place looks like another.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from orrery.textures import color_ramp, sphere_directions, value_noise

TEXELS = 64  # of one scene unit, on walls and floor
NEUTRAL = [(0.0, (0.82, 0.82, 0.82)), (1.0, (1.15, 1.15, 1.15))]  # factor of dirt and wear
SKY_HEIGHT = 256  # rows of the map
SUN = (0.30, -0.62, 0.725)  # direction of the brightest side of the sky, above the south


def grid_of(width: float, height: float, texels: float = TEXELS) -> tuple[np.ndarray, np.ndarray]:
    """x to the right and y downwards [H, W] of each texel, in units."""
    rows, columns = round(height * texels), round(width * texels)
    y, x = np.mgrid[0:rows, 0:columns]
    return (x + 0.5) / texels, (y + 0.5) / texels


def _noise(x: np.ndarray, y: np.ndarray, scale: float, seed: int, octaves: int = 5) -> np.ndarray:
    """Fractal noise [H, W] in [0, 1] with cells of 1 / scale units."""
    return value_noise(np.stack([x * scale, y * scale, 0 * x + 0.37], -1), seed, octaves)


def _worn(color: np.ndarray, x: np.ndarray, y: np.ndarray, seed: int) -> np.ndarray:
    return color * color_ramp(_noise(x, y, 2.5, seed), NEUTRAL)


def _cells(row: np.ndarray, column: np.ndarray, seed: int) -> np.ndarray:
    """A random number in [0, 1] for each cell of a grid, [H, W]."""
    values = np.random.default_rng(seed).random((512, 512))
    return values[row.astype(int) % 512, column.astype(int) % 512]


def bricks(width: float, height: float, seed: int) -> np.ndarray:
    """A wall of bricks, each of its own color."""
    x, y = grid_of(width, height)
    row = np.floor(y / 0.27)
    shifted = x / 0.66 + 0.5 * (row % 2)
    along, across = shifted % 1 * 0.66, y % 0.27
    joint = (along < 0.045) | (across < 0.045)
    stops = [(0, (0.20, 0.07, 0.045)), (0.5, (0.40, 0.15, 0.09)), (0.85, (0.52, 0.26, 0.15)), (1, (0.58, 0.46, 0.34))]
    brick = color_ramp(_cells(row, np.floor(shifted), seed), stops)
    return _worn(np.where(joint[..., None], [0.52, 0.49, 0.44], brick), x, y, seed + 1)


def wallpaper(width: float, height: float, seed: int) -> np.ndarray:
    """Stripes with leaves that grow differently everywhere, over a dark dado with panels."""
    x, y = grid_of(width, height)
    stripe = np.floor(x / 0.5) % 2
    leaf = _noise(x, y, 2.2, seed, 3) + 0.12 * np.sin(x * 12.6) * np.sin(y * 9)
    paper = np.where(stripe[..., None] > 0, [0.34, 0.46, 0.40], [0.56, 0.60, 0.46])
    paper = np.where((leaf > 0.56)[..., None], [0.14, 0.24, 0.15], paper)
    paper = np.where((leaf > 0.66)[..., None], [0.62, 0.36, 0.18], paper)
    panel = (np.abs(x % 1.25 - 0.625) > 0.5) | (np.abs(y - height + 0.85) > 0.55)
    grain = _noise(x * 6, y * 0.6, 3, seed + 5)[..., None]
    dado = np.where(panel[..., None], [0.30, 0.17, 0.09], [0.20, 0.10, 0.05]) * (0.6 + 0.8 * grain)
    return np.where((y > height - 1.6)[..., None], dado, _worn(paper, x, y, seed + 1))


def planks(width: float, height: float, seed: int, tint=(1.0, 1.0, 1.0)) -> np.ndarray:
    """Boards along x."""
    x, y = grid_of(width, height)
    row = np.floor(y / 0.5)
    column = np.floor((x + 7 * _cells(row, row, seed)) / 2.6)
    grain = 0.5 + 0.5 * np.sin(30 * _noise(x * 0.35, y * 3.0, 1.5, seed + 2, 4))
    value = 0.6 * _cells(row, column, seed + 1) + 0.4 * grain
    color = color_ramp(value, [(0, (0.26, 0.14, 0.07)), (0.6, (0.50, 0.32, 0.17)), (1, (0.66, 0.48, 0.30))])
    gap = (y % 0.5 < 0.035) | (np.abs(np.diff(column, axis=1, prepend=column[:, :1])) > 0)
    return np.where(gap[..., None], 0.06, color * np.array(tint))


def tiles(width: float, height: float, seed: int) -> np.ndarray:
    """A floor of marble tiles of two colors, no tile like another."""
    x, y = grid_of(width, height)
    row, column = np.floor(y / 0.7), np.floor(x / 0.7)
    vein = np.abs(_noise(x + 3 * _cells(row, column, seed), y, 2.0, seed + 1) - 0.5)
    light = color_ramp(vein, [(0, (0.38, 0.36, 0.33)), (0.06, (0.66, 0.63, 0.57)), (0.3, (0.74, 0.71, 0.66))])
    dark = color_ramp(vein, [(0, (0.36, 0.36, 0.36)), (0.05, (0.07, 0.10, 0.13)), (0.3, (0.12, 0.16, 0.20))])
    color = np.where(((row + column) % 2)[..., None] > 0, light, dark) * (
        0.75 + 0.5 * _cells(row, column, seed + 2)[..., None]
    )
    joint = (x % 0.7 < 0.035) | (y % 0.7 < 0.035)
    return np.where(joint[..., None], 0.28, color)


def cloth(side: float, seed: int) -> np.ndarray:
    """A woven table cloth: checks in two colors, spots that say which check is which."""
    x, y = grid_of(side, side, 160)
    check = (np.floor(x / 0.22) % 2 + np.floor(y / 0.22) % 2) / 2
    color = color_ramp(check, [(0, (0.74, 0.70, 0.62)), (0.5, (0.46, 0.20, 0.16)), (1, (0.26, 0.05, 0.05))])
    spots = _noise(x, y, 3.0, seed, 3)[..., None] > 0.58
    return _worn(np.where(spots, [0.10, 0.16, 0.34], color), x, y, seed + 1)


def rug(side: float, seed: int) -> np.ndarray:
    """Rings and rays around the middle of a round rug."""
    x, y = grid_of(side, side)
    x, y = x - side / 2, y - side / 2
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    wave = radius + 0.09 * np.sin(14 * angle) + 0.25 * (_noise(x, y, 1.2, seed, 3) - 0.5)
    bands = [(0.05, 0.03, 0.09), (0.44, 0.10, 0.08), (0.60, 0.46, 0.22), (0.10, 0.22, 0.34), (0.52, 0.50, 0.42)]
    return _worn(np.array(bands)[np.floor(wave / 0.19).astype(int) % 5], x, y, seed + 1)


def books(width: float, height: float, rows: int, seed: int) -> np.ndarray:
    """The front of a book-case."""
    x, y = grid_of(width, height, 96)
    rng = np.random.default_rng(seed)
    image = np.empty((*x.shape, 3))
    image[:] = (0.035, 0.02, 0.012)
    shelf = x.shape[0] // rows
    for row in range(rows):
        left, bottom = 6, (row + 1) * shelf - 7
        while left < x.shape[1] - 16:
            thick, tall = int(rng.integers(8, 22)), int(shelf * rng.uniform(0.55, 0.86))
            right = min(left + thick, x.shape[1] - 6)
            color = rng.random(3) ** 1.6 * 0.7 + 0.03
            image[bottom - tall : bottom, left:right] = color
            image[bottom - tall : bottom, right - 2 : right] = 0.4 * color
            label = bottom - int(tall * rng.uniform(0.5, 0.9))
            image[label : label + 6, left + 1 : right - 2] = rng.random(3) * 0.8
            left = right + (int(rng.integers(4, 22)) if rng.random() < 0.12 else 0)
        image[bottom : bottom + 7] = (0.30, 0.17, 0.08)
    return image


def poster(width: int, height: int, title: str, disk, ground, seed: int) -> np.ndarray:
    """A framed print of a planet with its name; sizes in texels, colors linear RGB."""
    y, x = np.mgrid[0:height, 0:width]
    stars = np.random.default_rng(seed).random((height, width)) > 0.985
    image = np.where(stars[..., None], 0.8, np.array(ground) * np.ones((height, width, 1)))
    radius = 0.34 * width
    across, up = (x - width / 2) / radius, (y - 0.42 * height) / radius
    noise = _noise(across + 5, up * 2.5, 1.6, seed, 5)[..., None]
    on_disk = (np.hypot(across, up) < 1)[..., None]
    image = np.where(on_disk, np.array(disk) * (0.25 + 1.5 * noise), image)
    ring = np.abs(np.hypot(across - 0.1, (up - 0.1) * 3.2) - 1.35) < 0.07
    image = np.where(ring[..., None] & ~(on_disk & (up < 0.1)[..., None]), (0.75, 0.66, 0.45), image)
    canvas = Image.new("L", (width, height))
    ImageDraw.Draw(canvas).text(
        (width / 2, 0.87 * height), title, fill=255, font=ImageFont.load_default(0.17 * width), anchor="mm"
    )
    letters = (np.asarray(canvas, float) / 255)[..., None]
    image = image * (1 - letters) + letters * np.array([0.85, 0.80, 0.62])
    edge = (np.minimum(x, width - 1 - x) < 5) | (np.minimum(y, height - 1 - y) < 5)
    return np.where(edge[..., None], (0.05, 0.03, 0.02), image).clip(0, 0.9)


def with_posters(wall: np.ndarray, places: list[tuple[float, float, float]], first: int) -> np.ndarray:
    """A wall with prints hung on it: (left, top, width) of each in units."""
    titles = ["SATURN", "MARS", "VENUS", "LUNA", "TERRA", "JUPITER", "SOL", "CERES"]
    disks = [(0.8, 0.6, 0.35), (0.7, 0.2, 0.08), (0.9, 0.75, 0.4), (0.6, 0.6, 0.62), (0.1, 0.3, 0.6), (0.8, 0.5, 0.3)]
    grounds = [(0.02, 0.03, 0.10), (0.10, 0.02, 0.02), (0.02, 0.09, 0.08), (0.55, 0.50, 0.38), (0.04, 0.04, 0.05)]
    wall = wall.copy()
    for k, (left, top, width) in enumerate(places, first):
        columns, rows = round(width * TEXELS), round(1.4 * width * TEXELS)
        row, column = round(top * TEXELS), round(left * TEXELS)
        image = poster(columns, rows, titles[k % 8], disks[k % 6], grounds[k % 5], 300 + k)
        wall[row : row + rows, column : column + columns] = image
    return wall


def marbled(seed: int, stops) -> np.ndarray:
    """A pattern [128, 256, 3] for round things: bands and noise."""
    directions, latitude, longitude = sphere_directions(128)
    noise = value_noise(directions * 3 + seed, seed, 4)
    bands = 0.5 + 0.5 * np.sin(latitude * 13 + 3 * longitude + 7 * noise)
    return color_ramp(0.5 * bands + 0.5 * noise, stops)


def facade(seed: int) -> np.ndarray:
    """Windows of a tower, some lit, [256, 96, 3]."""
    rng = np.random.default_rng(seed)
    wall = rng.uniform(0.25, 0.75) * np.array([1.0, rng.uniform(0.6, 1.0), rng.uniform(0.35, 0.9)])
    y, x = np.mgrid[0:256, 0:96]
    lit = _cells(y // 8, x // 12, seed)[..., None]
    window = ((y % 8 > 3) & (x % 12 > 6))[..., None]
    glass = np.where(lit > 0.75, [0.75, 0.68, 0.40], np.array([0.03, 0.05, 0.07]) + 0.1 * lit)
    return np.where(window, glass, wall * (0.85 + 0.3 * _cells(y // 32, x // 96, seed + 1)[..., None]))


def fields(half: float, seed: int, rows: int = 2048) -> np.ndarray:
    """Land seen from above, a square from -half to half: fields, woods, roads, a lake."""
    x, y = grid_of(2 * half, 2 * half, rows / (2 * half))
    x, y = x - half, y - half
    warped_x, warped_y = x + 14 * _noise(x, y, 1 / 40, seed), y + 14 * _noise(x, y, 1 / 40, seed + 1)
    row, column = np.floor(warped_y / 17), np.floor(warped_x / 23)
    stops = [(0, (0.10, 0.20, 0.04)), (0.4, (0.26, 0.34, 0.08)), (0.7, (0.56, 0.46, 0.16)), (1, (0.34, 0.20, 0.10))]
    furrows = 0.9 + 0.1 * np.sin(warped_x * 2 + 9 * _cells(row, column, seed + 3))
    color = color_ramp(_cells(row, column, seed + 2), stops) * furrows[..., None]
    wood = _noise(x, y, 1 / 30, seed + 4)[..., None]
    color = np.where(
        wood > 0.56, np.array([0.02, 0.07, 0.02]) * (1 + 3 * _noise(x, y, 0.5, seed + 5)[..., None]), color
    )
    color = np.where(wood < 0.36, [0.10, 0.22, 0.36], color)
    road = (warped_x % 69 < 1.6) | (warped_y % 85 < 1.6)
    return np.where(road[..., None], 0.5, color)


def slope(seed: int) -> np.ndarray:
    """Woods and rock of a hill, around it and from its foot to its top, [256, 512, 3]."""
    y, x = np.mgrid[0:256, 0:512]
    angle = math.tau * x / 512
    points = np.stack([3 * np.cos(angle), 3 * np.sin(angle), y / 40], -1)
    value = value_noise(points, seed, 6) + 0.25 * (1 - y / 256)
    stops = [(0.3, (0.03, 0.09, 0.03)), (0.5, (0.16, 0.24, 0.07)), (0.65, (0.38, 0.33, 0.22)), (0.85, (0.7, 0.7, 0.7))]
    return color_ramp(value, stops)


def sky_radiance(directions: np.ndarray) -> np.ndarray:
    """Radiance [..., 3] of the sky in unit directions [..., 3] of the world: a gradient, clouds, and a bright side.

    The bright side stands for a sun behind haze: nothing in it is small, so that a path tracer's noise is low.
    """
    elevation = directions[..., 2]
    clear = color_ramp(elevation, [(-0.1, (0.55, 0.58, 0.60)), (0.12, (0.40, 0.52, 0.72)), (0.7, (0.12, 0.26, 0.62))])
    flat = directions / (np.abs(elevation[..., None]) + 0.25)
    cloud = np.clip((value_noise(flat * 1.3 + 4, 77, 5) - 0.5) / 0.22, 0, 1)[..., None]
    haze = np.exp(3 * (directions @ np.array(SUN) - 1))[..., None] * np.array([0.42, 0.36, 0.24])
    return clear * (1 - 0.8 * cloud) + np.array([0.72, 0.72, 0.74]) * 0.8 * cloud + haze


def sky() -> np.ndarray:
    """The sky as Mitsuba's map, whose columns run clockwise from +y, row 0 the zenith."""
    rows, columns = np.mgrid[0:SKY_HEIGHT, 0 : 2 * SKY_HEIGHT]
    polar, azimuth = math.pi * (rows + 0.5) / SKY_HEIGHT, math.pi * (columns + 0.5) / SKY_HEIGHT
    flat = np.sin(polar)
    return sky_radiance(np.stack([flat * np.sin(azimuth), flat * np.cos(azimuth), np.cos(polar)], -1))
