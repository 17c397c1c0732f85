# SPDX-License-Identifier: Apache-2.0
"""The room around the orrery, its furniture, and the land outside of its windows. World: z up, scene units.

The room is 10 by 8.4 and 5.2 high; the land reaches to 420, a hundred times as far as the cameras from the middle.
"""

from __future__ import annotations

import math

import numpy as np

from orrery import model
from orrery import room_textures as paint
from orrery.meshes import Mesh, arc, ball, box, lathe, merge, ring, transform, tube
from orrery.model import AXIS, Part

X, Y = 5.0, 4.2  # half the sides of the room
FLOOR, CEILING = -2.3, 2.9
TABLE = -1.167  # top of the table: the feet of the orrery stand on it
GROUND, LAND = -25.0, 420.0  # height and half the side of the land
EAST_WINDOW = (1.8, 6.6, 0.9, 4.2)  # left, right, top, bottom from the wall's upper left corner, seen from inside
SOUTH_WINDOW = (1.4, 4.2, 1.1, 3.7)
PANELS = [(-2.4, 0.0), (2.4, 0.0)]  # centers of the lamps in the ceiling
PANEL_SIZE = (1.5, 4.4)


def build() -> list[Part]:
    """The orrery and all around it."""
    return model.build() + shell() + windows() + table() + furniture() + land()


def quad(corner, right, down, uv=(0.0, 0.0, 1.0, 1.0)) -> Mesh:
    """Rectangle from its upper left corner [3] and its edges [3]; uv: left, top, right, bottom of its texture."""
    corner, right, down = (np.asarray(vector, float) for vector in (corner, right, down))
    left, top, far, bottom = uv
    vertices = np.array([corner, corner + right, corner + right + down, corner + down])
    texture = np.array([[left, top], [far, top], [far, bottom], [left, bottom]])  # v runs down, as rows do
    return Mesh(vertices, np.array([[0, 3, 2], [0, 2, 1]]), texture)


def wall(corner, right, down, hole=None) -> Mesh:
    """Rectangle with a rectangular hole (left, right, top, bottom in units), with one texture all over."""
    corner, right, down = (np.asarray(vector, float) for vector in (corner, right, down))
    if hole is None:
        return quad(corner, right, down)
    width, height = np.linalg.norm(right), np.linalg.norm(down)
    columns, rows = [0, hole[0] / width, hole[1] / width, 1], [0, hole[2] / height, hole[3] / height, 1]
    pieces = []
    for i in range(3):
        for j in range(3):
            if (i, j) != (1, 1):
                uv = (columns[i], rows[j], columns[i + 1], rows[j + 1])
                start = corner + uv[0] * right + uv[1] * down
                pieces.append(quad(start, (uv[2] - uv[0]) * right, (uv[3] - uv[1]) * down, uv))
    return merge(pieces)


def disk(radius: float, height: float, n: int = 96) -> Mesh:
    """Round plate at a height, its texture a square around it."""
    angles = np.linspace(0, math.tau, n, endpoint=False)
    rim = np.stack([np.cos(angles), np.sin(angles)], -1)
    vertices = np.concatenate([[[0, 0, height]], np.column_stack([radius * rim, np.full(n, height)])])
    faces = np.array([[0, 1 + k, 1 + (k + 1) % n] for k in range(n)])
    return Mesh(vertices, faces, np.concatenate([[[0.5, 0.5]], 0.5 + 0.5 * rim]))


def crate(center, size) -> Mesh:
    """Block whose sides each show the whole texture; its foot is not there."""
    (x, y, z), (a, b, c) = center, np.asarray(size, float) / 2
    down = (0, 0, -2 * c)
    return merge(
        [
            quad((x - a, y - b, z + c), (2 * a, 0, 0), down),
            quad((x + a, y - b, z + c), (0, 2 * b, 0), down),
            quad((x + a, y + b, z + c), (-2 * a, 0, 0), down),
            quad((x - a, y + b, z + c), (0, -2 * b, 0), down),
            quad((x - a, y + b, z + c), (2 * a, 0, 0), (0, -2 * b, 0)),
        ]
    )


def shell() -> list[Part]:
    """Walls, floor, ceiling with beams; the lamps are of `lamps`."""
    down, width, depth = (0, 0, FLOOR - CEILING), 2 * X, 2 * Y
    beams = [box((x, 0, CEILING - 0.12), (0.22, depth, 0.24)) for x in (-3.9, -0.9, 0.9, 3.9)]
    return [
        Part("wall_north", wall((-X, Y, CEILING), (width, 0, 0), down), "wall_north"),
        Part("wall_east", wall((X, Y, CEILING), (0, -depth, 0), down, EAST_WINDOW), "wall_east"),
        Part("wall_south", wall((X, -Y, CEILING), (-width, 0, 0), down, SOUTH_WINDOW), "wall_south"),
        Part("wall_west", wall((-X, -Y, CEILING), (0, depth, 0), down), "wall_west"),
        Part("floor", quad((-X, Y, FLOOR), (width, 0, 0), (0, -depth, 0)), "floor"),
        Part("ceiling", quad((-X, Y, CEILING), (width, 0, 0), (0, -depth, 0)), "ceiling"),
        Part("beams", merge(beams), "dark_wood"),
        Part("rug", transform(disk(2.6, FLOOR + 0.01)), "rug"),
    ]


def lamps() -> Mesh:
    """The lamps in the ceiling, which emit downwards."""
    a, b = PANEL_SIZE
    z = CEILING - 0.03
    return merge([quad((x - a / 2, y + b / 2, z), (0, -b, 0), (a, 0, 0)) for x, y in PANELS])


def windows() -> list[Part]:
    """Frames, bars and sills."""
    bars = []
    left, right, top, bottom = EAST_WINDOW
    middle, high = Y - (left + right) / 2, CEILING - (top + bottom) / 2
    for y in np.linspace(Y - right, Y - left, 4):
        bars.append(box((X + 0.05, y, high), (0.16, 0.10, bottom - top)))
    for z in (CEILING - top, CEILING - top - 0.9, CEILING - bottom):
        bars.append(box((X + 0.05, middle, z), (0.14, right - left, 0.10)))
    bars.append(box((X - 0.05, middle, CEILING - bottom - 0.05), (0.5, right - left + 0.4, 0.08)))
    left, right, top, bottom = SOUTH_WINDOW
    middle, high = X - (left + right) / 2, CEILING - (top + bottom) / 2
    for x in np.linspace(X - right, X - left, 3):
        bars.append(box((x, -Y - 0.05, high), (0.10, 0.16, bottom - top)))
    for z in (CEILING - top, high, CEILING - bottom):
        bars.append(box((middle, -Y - 0.05, z), (right - left, 0.14, 0.10)))
    return [Part("window_frames", merge(bars), "white_paint")]


def table() -> list[Part]:
    """A round table with a cloth, on a turned leg."""
    leg = [(AXIS, FLOOR), (0.75, FLOOR), *arc(0.75, FLOOR + 0.06, 0.06, -90, 90), (0.35, FLOOR + 0.2)]
    leg += [(0.16, FLOOR + 0.4), *arc(0.16, -1.8, 0.10, -90, 90), (0.14, -1.6), (0.4, TABLE - 0.10)]
    edge = [(AXIS, TABLE - 0.10), (1.42, TABLE - 0.10), *arc(1.42, TABLE - 0.05, 0.049, -90, 90), (1.40, TABLE - 0.001)]
    return [
        Part("table_leg", lathe(leg, 96), "wood"),
        Part("table_edge", lathe(edge, 160), "wood"),
        Part("table_cloth", disk(1.41, TABLE), "cloth"),
    ]


def furniture() -> list[Part]:
    """What stands along the walls, all of it lower than the posters."""

    def vase(x, y, z, size, material, name) -> Part:
        profile = [
            (AXIS, 0),
            (0.30, 0),
            (0.34, 0.15),
            (0.44, 0.45),
            (0.36, 0.8),
            (0.18, 1.0),
            (0.16, 1.15),
            (0.24, 1.3),
        ]
        mesh = lathe(np.array(profile) * size, 64, corner=60)
        return Part(name, transform(mesh, translation=(x, y, z)), material)

    stand = [(AXIS, 0), (0.40, 0), (0.38, 0.08), (0.06, 0.16), (0.05, 0.62), (0.14, 0.70)]
    parts = [
        Part("bookcase", crate((-2.6, Y - 0.30, FLOOR + 1.15), (2.6, 0.6, 2.3)), "books_a"),
        Part("bookcase_low", crate((2.5, Y - 0.30, FLOOR + 0.65), (3.0, 0.6, 1.3)), "books_b"),
        Part("chest", crate((-X + 0.40, -1.9, FLOOR + 0.6), (0.8, 2.0, 1.2)), "chest"),
        Part("shelf", crate((-X + 0.30, 2.0, FLOOR + 0.95), (0.6, 1.8, 1.9)), "books_c"),
        Part("sofa_seat", crate((-1.6, -Y + 0.55, FLOOR + 0.35), (3.0, 1.1, 0.7)), "fabric"),
        Part("sofa_back", crate((-1.6, -Y + 0.15, FLOOR + 0.80), (3.0, 0.3, 1.6)), "fabric"),
        Part("crate_big", crate((4.2, -3.4, FLOOR + 0.5), (1.0, 1.0, 1.0)), "crate_a"),
        Part("crate_small", crate((4.25, -3.45, FLOOR + 1.3), (0.6, 0.6, 0.6)), "crate_b"),
        Part("globe", transform(ball(0.48), translation=(4.2, 3.3, FLOOR + 1.17)), "earth"),
        Part("globe_stand", transform(lathe(stand, 48), translation=(4.2, 3.3, FLOOR)), "brass"),
        Part("ball", transform(ball(0.42), translation=(-4.3, -3.5, FLOOR + 0.42)), "marble_a"),
        Part(
            "column",
            transform(lathe([(0.30, 0), (0.30, 2.1), (AXIS, 2.1)], 64), translation=(-4.4, 3.6, FLOOR)),
            "marble_c",
        ),
        Part("column_ball", transform(ball(0.34), translation=(-4.4, 3.6, FLOOR + 2.44)), "mars"),
        vase(-X + 0.40, -2.4, FLOOR + 1.2, 0.55, "marble_b", "vase_chest"),
        vase(-X + 0.42, -1.5, FLOOR + 1.2, 0.40, "marble_a", "vase_chest_small"),
        vase(1.7, Y - 0.32, FLOOR + 1.3, 0.50, "marble_c", "vase_shelf"),
        vase(3.2, Y - 0.32, FLOOR + 1.3, 0.62, "marble_b", "vase_shelf_tall"),
        Part("pipe", tube([[X - 0.25, 3.9, FLOOR], [X - 0.25, 3.9, CEILING]], 0.06), "copper"),
        Part("plant_ring", transform(ring(0.2, 0.4, 0, 0.5, 48), translation=(-2.0, Y - 0.3, FLOOR + 2.3)), "marble_a"),
    ]
    rng = np.random.default_rng(5)
    for k in range(7):
        place = (-2.0, Y - 0.3, FLOOR + 2.95) + rng.uniform(-0.3, 0.3, 3) * (1, 0.5, 1)
        parts.append(Part(f"leaf{k}", transform(ball(rng.uniform(0.14, 0.24), 24), translation=place), "leaves"))
    return parts


def land() -> list[Part]:
    """Fields to the horizon, towers from 60 to 200 away, hills from 150 to 400."""
    rng = np.random.default_rng(31)
    parts = [Part("fields", quad((-LAND, LAND, GROUND), (2 * LAND, 0, 0), (0, -2 * LAND, 0)), "fields")]
    for k in range(26):
        angle, away = math.radians(rng.uniform(-125, 60)), 60 * 3.4 ** rng.random()
        width, height = rng.uniform(4, 10), rng.uniform(12, 26) + 0.12 * away
        place = (away * math.cos(angle), away * math.sin(angle), GROUND + height / 2)
        parts.append(Part(f"tower{k}", crate(place, (width, width, height)), f"facade{k % 6}"))
    for k in range(22):
        angle, away = math.radians(-135 + 10 * k + rng.uniform(-4, 4)), rng.uniform(180, 380)
        parts.append(Part(f"hill{k}", _hill(angle, away, rng), f"slope{k % 3}"))
    return parts


def _hill(angle: float, away: float, rng: np.random.Generator) -> Mesh:
    radius, height = away * rng.uniform(0.16, 0.26), away * rng.uniform(0.10, 0.24)
    t = np.linspace(0, 1, 24)
    profile = np.stack([radius * (1 - t) + AXIS, height * (1 - np.cos(math.pi * t)) / 2], -1)
    mesh = lathe(profile, 64, corner=90)
    mesh = transform(mesh, translation=(away * math.cos(angle), away * math.sin(angle), GROUND))
    return mesh


def pictures() -> dict[str, np.ndarray]:
    """Texture of each material that is the room's own, linear RGB."""
    width, depth, height = 2 * X, 2 * Y, CEILING - FLOOR
    stops_a = [(0, (0.04, 0.10, 0.30)), (0.5, (0.20, 0.40, 0.62)), (1, (0.85, 0.85, 0.80))]
    stops_b = [(0, (0.40, 0.10, 0.03)), (0.5, (0.72, 0.38, 0.08)), (1, (0.90, 0.80, 0.50))]
    stops_c = [(0, (0.05, 0.20, 0.10)), (0.5, (0.30, 0.46, 0.26)), (1, (0.80, 0.78, 0.66))]
    north = [(0.6, 0.9, 1.0), (4.3, 0.8, 1.3), (6.2, 1.0, 1.2), (8.2, 0.8, 1.2)]
    return {
        "wall_north": paint.with_posters(paint.bricks(width, height, 101), north, 0),
        "wall_east": paint.bricks(depth, height, 111),
        "wall_south": paint.with_posters(paint.wallpaper(width, height, 121), [(5.0, 1.0, 1.3), (7.0, 0.7, 1.5)], 4),
        "wall_west": paint.with_posters(paint.wallpaper(depth, height, 131), [(1.2, 0.7, 1.2), (3.6, 0.6, 1.6)], 6),
        "floor": paint.tiles(width, depth, 141),
        "ceiling": paint.planks(width, depth, 151, (1.15, 1.2, 1.3)),
        "dark_wood": paint.planks(1, 1, 155, (0.4, 0.35, 0.3)),
        "rug": paint.rug(5.2, 161),
        "cloth": paint.cloth(2.82, 171),
        "books_a": paint.books(2.6, 2.3, 4, 181),
        "books_b": paint.books(3.0, 1.3, 2, 182),
        "books_c": paint.books(1.8, 1.9, 3, 183),
        "chest": paint.planks(2.0, 1.2, 191, (0.8, 0.5, 0.4)),
        "crate_a": paint.planks(1.5, 1.5, 192, (1.3, 1.2, 0.9)),
        "crate_b": paint.bricks(1.5, 1.5, 193),
        "fabric": paint.rug(3.0, 194),
        "marble_a": paint.marbled(201, stops_a),
        "marble_b": paint.marbled(202, stops_b),
        "marble_c": paint.marbled(203, stops_c),
        "leaves": paint.slope(204),
        "fields": paint.fields(LAND, 211),
        **{f"facade{k}": paint.facade(221 + k) for k in range(6)},
        **{f"slope{k}": paint.slope(231 + k) for k in range(3)},
    }
