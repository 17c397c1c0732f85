# SPDX-License-Identifier: Apache-2.0
"""The parts of the orrery, placed in the world (z up, scene units).

The order of the parts is that of the triangles in the renderer, so the images may depend on it bit for bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from orrery.meshes import Mesh, arc, ball, box, gear, lathe, ring, rotation_about, transform, tube

SUN = np.array([0.0, 0.0, 0.12])  # also the center of the armillary rings
AXIS = 1e-4  # radius at which a profile meets the axis: at 0 its triangles would have no area

ARBOR_DISTANCE = 0.40  # of the three arbors of the going train from the column
MATING_TEETH = 72  # of a wheel and its pinion together
GEAR_MODULE = 2 * ARBOR_DISTANCE / MATING_TEETH  # so that each pair fills the distance of its axles


class Part(NamedTuple):
    """A mesh with the name of its material (see `orrery.render.materials`)."""

    name: str
    mesh: Mesh
    material: str


class Planet(NamedTuple):
    """Sizes in scene units, angles in degrees."""

    name: str
    orbit: float  # radius
    azimuth: float
    radius: float
    arm_height: float  # of the arm where it leaves the column
    tilt: float  # of the axis


class Moon(NamedTuple):
    """Sizes in scene units, angles in degrees."""

    orbit: float  # radius
    azimuth: float
    radius: float
    material: str


PLANETS = [
    Planet("mercury", 0.335, 75, 0.042, -0.115, 0),
    Planet("venus", 0.46, 200, 0.066, -0.165, 5),
    Planet("earth", 0.61, 318, 0.090, -0.215, 23),
    Planet("mars", 0.70, 128, 0.056, -0.265, 25),
    Planet("jupiter", 0.78, 28, 0.138, -0.315, 3),
    Planet("saturn", 0.79, 246, 0.100, -0.355, 26),
]
MOONS = {
    "earth": [Moon(0.155, 60, 0.021, "moon")],
    "jupiter": [
        Moon(0.175, 10, 0.013, "ivory"),
        Moon(0.200, 100, 0.016, "copper"),
        Moon(0.225, 190, 0.019, "moon"),
        Moon(0.250, 285, 0.015, "ivory"),
    ],
}
# Inner and outer radius over that of the planet; the gap after the second is the Cassini division.
SATURN_RINGS = [(1.28, 1.50, "ring_a"), (1.54, 1.90, "ring_b"), (1.97, 2.12, "ring_a")]

# Of each wheel on the column, from the bottom: its teeth, its material, that of its pinion.
WHEELS = [
    (54, "brass", "steel"),
    (50, "copper", "brass"),
    (46, "brass", "brass"),
    (42, "steel", "copper"),
    (38, "brass", "steel"),
    (34, "copper", "brass"),
]


def build() -> list[Part]:
    """All parts, placed in the world."""
    parts = base() + supports() + armillary_rings() + column() + sun()
    for order, planet in enumerate(PLANETS):
        parts += planet_on_arm(planet, order)
    return parts + going_train() + arbors()


def base() -> list[Part]:
    """Turned walnut on ball feet, with an enamel calendar dial let into the top."""
    quarter = np.linspace(0, math.pi / 2, 8)
    cove = [(0.575 - 0.05 * math.sin(t), -0.985 + 0.05 * (1 - math.cos(t))) for t in quarter]
    profile = [
        (AXIS, -1.07),
        (0.60, -1.07),
        *arc(0.60, -1.035, 0.035, -90, 90),
        (0.575, -1.0),
        (0.575, -0.985),
        *cove,
        (0.525, -0.915),
        *arc(0.525, -0.895, 0.022, -70, 90),
        (0.36, -0.873),
        (AXIS, -0.873),
    ]
    parts = [
        Part("base", lathe(profile, 192), "wood"),
        Part("dial", ring(0.34, 0.505, -0.876, -0.866, 240, 0.002), "dial"),
        Part("dial_edge", ring(0.505, 0.520, -0.876, -0.860, 240, 0.003), "brass"),
    ]
    for k in range(4):
        x, y = _on_circle(0.47, 45 + 90 * k)
        parts.append(Part(f"foot{k}", transform(ball(0.052, 40), translation=(x, y, -1.115)), "brass"))
    return parts


def supports() -> list[Part]:
    """Four swan necks from the base up to the horizon ring."""
    t = np.linspace(0, 1, 40)
    r = 0.545 + 0.66 * t**1.7 - 0.20 * np.sin(math.pi * t) * (1 - t) + 0.03 * np.sin(math.tau * t)
    z = -0.99 + (SUN[2] + 0.97) * t**0.92
    parts = []
    for k in range(4):
        path = np.stack([r, 0 * r, z], 1) @ rotation_about("z", 45 + 90 * k).T
        nut_at = path[-1] + [0, 0, -0.012]
        parts += [
            Part(f"neck{k}", tube(path, 0.017 - 0.006 * t, 14), "brass"),
            Part(f"neckball{k}", transform(ball(0.026, 28), translation=path[0]), "brass"),
            Part(f"necknut{k}", transform(ball(0.020, 28), translation=nut_at), "steel"),
        ]
    return parts


def armillary_rings() -> list[Part]:
    """The horizon with its engraved scale, three hoops of the sky, and a knob at the zenith."""
    knob_ball = arc(0, 0.078, 0.026, -60, 90)
    knob = [(AXIS, 0), (0.030, 0), (0.030, 0.02), (0.012, 0.03), (0.010, 0.055), *knob_ball]
    equator_tilt = rotation_about("z", 20) @ rotation_about("x", 38)
    ecliptic_tilt = rotation_about("z", 200) @ rotation_about("x", 61)
    upright = rotation_about("x", 90)

    def hoop(name, inner, outer, half_width, n_around, material, rotation=None) -> Part:
        mesh = ring(inner, outer, -half_width, half_width, n_around, 0.003)
        return Part(name, transform(mesh, rotation, SUN), material)

    return [
        hoop("horizon", 1.115, 1.235, 0.008, 360, "horizon"),
        hoop("horizon_in", 1.098, 1.115, 0.013, 360, "brass"),
        hoop("horizon_out", 1.235, 1.250, 0.013, 360, "brass"),
        hoop("meridian", 1.045, 1.085, 0.009, 320, "brass", upright),
        hoop("equator", 1.018, 1.034, 0.018, 320, "steel", equator_tilt),
        hoop("ecliptic", 0.990, 1.004, 0.026, 320, "copper", ecliptic_tilt),
        Part("zenith", transform(lathe(knob, 40), translation=SUN + [0, 0, 1.075]), "brass"),
    ]


def column() -> list[Part]:
    """The pillar that carries the sun and the sleeves of the planets."""
    profile = [
        (0.11, -0.873),
        (0.11, -0.855),
        *arc(0.085, -0.845, 0.022, -30, 90, 6),
        (0.055, -0.82),
        (0.030, -0.80),
        (0.030, -0.40),
        (0.052, -0.40),
        (0.052, -0.385),
        (0.034, -0.37),
        (0.026, -0.09),
        (0.018, -0.075),
        (0.014, 0.0),
    ]
    return [Part("column", lathe(profile, 64), "brass")]


def sun() -> list[Part]:
    """A gilded ball with eight straight long rays and eight short wavy ones."""
    parts = [Part("sun", transform(ball(0.135, 96), translation=SUN), "gold")]
    along = np.linspace(0, 1, 24)
    for k in range(16):
        length, wave, thickness = (0.135, 0, 0.012) if k % 2 == 0 else (0.10, 0.018, 0.009)
        sideways = wave * np.sin(along * math.tau * 1.25) * along**0.3
        path = np.stack([0.125 + length * along, sideways, 0 * along], 1)
        # Around the sun, then the whole wreath tilted towards the viewer.
        for rotation in (rotation_about("z", 22.5 * k), rotation_about("x", 66), rotation_about("z", 35)):
            path = path @ rotation.T
        parts.append(Part(f"ray{k}", tube(path + SUN, thickness * (1 - along) ** 0.8 + 0.0012, 10), "gold"))
    return parts


def planet_on_arm(planet: Planet, order: int) -> list[Part]:
    """A planet with its arm, counterweight, rings and moons; `order` counts the planets outward from 0."""
    name, radius, height = planet.name, planet.radius, planet.arm_height
    turn = rotation_about("z", planet.azimuth)
    center = turn @ [planet.orbit, 0, 0] + [0, 0, SUN[2]]
    orientation = turn @ rotation_about("y", planet.tilt)
    back = np.array([[-0.03, 0, height], [-0.10 - 0.03 * order, 0, height]]) @ turn.T
    ball_material = "steel_ball" if name == "mercury" else name
    sleeve_material = "steel" if order % 2 else "brass"
    sleeve = ring(0.020, 0.046, height - 0.016, height + 0.016, 48, 0.003)
    cup = lathe([(0.0095, -0.02), (0.022, -0.004), (0.024, 0.0)], 24)
    parts = [
        Part(f"{name}_sleeve", sleeve, sleeve_material),
        Part(f"{name}_arm", tube(_arm_path(planet) @ turn.T, 0.0095, 12), "brass"),
        Part(f"{name}_back", tube(back, 0.007, 10), "brass"),
        Part(f"{name}_weight", transform(ball(0.020 + 0.003 * order, 32), translation=back[1]), "copper"),
        Part(f"{name}_cup", transform(cup, translation=center - [0, 0, radius * 0.97]), "steel"),
        Part(name, transform(ball(radius, 80), orientation, center), ball_material),
    ]
    for k, (inner, outer, material) in enumerate(SATURN_RINGS if name == "saturn" else []):
        disk = ring(radius * inner, radius * outer, -0.0022, 0.0022, 160, 0.0008)
        parts.append(Part(f"saturn_ring{k}", transform(disk, orientation, center), material))
    for k, moon in enumerate(MOONS.get(name, [])):
        parts += _moon_on_arm(moon, k, planet, center)
    return parts


def _arm_path(planet: Planet) -> np.ndarray:
    """Points [P, 3] of an arm along x: out from the column, a quarter bend, up to the planet."""
    bend, height, orbit = 0.05, planet.arm_height, planet.orbit
    angle = np.linspace(0, 1, 18) * math.pi / 2
    out = np.stack([np.linspace(0.03, orbit - bend, 6), np.zeros(6), np.full(6, height)], 1)
    quarter = np.stack([orbit - bend + bend * np.sin(angle), 0 * angle, height + bend * (1 - np.cos(angle))], 1)
    up = np.array([[orbit, 0, height + bend + 0.02], [orbit, 0, SUN[2] - planet.radius * 0.9]])
    return np.concatenate([out, quarter[1:], up])


def _moon_on_arm(moon: Moon, order: int, planet: Planet, center: np.ndarray) -> list[Part]:
    """A moon on a wire that leaves the planet's arm below the planet; `center` [3] is the planet's."""
    offset = np.array([*_on_circle(moon.orbit, moon.azimuth), 0])
    outward = offset / moon.orbit
    low = -planet.radius - 0.025 - 0.008 * order  # each wire below the one before, so that none cross
    wire = np.array(
        [
            [0, 0, low],
            outward * (moon.orbit - 0.03) + [0, 0, low],
            outward * (moon.orbit - 0.008) + [0, 0, low + 0.012],
            offset + [0, 0, low + 0.035],
            offset - [0, 0, moon.radius * 0.8],
        ]
    )
    globe = transform(ball(moon.radius, 32), translation=center + offset)
    return [
        Part(f"{planet.name}_moonarm{order}", tube(wire + center, 0.0042, 8), "steel"),
        Part(f"{planet.name}_moon{order}", globe, moon.material),
    ]


def going_train() -> list[Part]:
    """Six wheels on the column, each meshing with a pinion on one of the three arbors."""
    parts = []
    for k, (teeth, material, pinion_material) in enumerate(WHEELS):
        pinion_teeth = MATING_TEETH - teeth
        bottom = -0.79 + 0.064 * k
        direction = math.radians(20 + 120 * (k % 3))  # of the arbor
        phase = 0.13 * k
        # A tooth of one faces a gap of the other on the line between the axles.
        half_tooth = math.pi / pinion_teeth
        pinion_phase = (math.pi + direction) + teeth / pinion_teeth * (direction - phase) + half_tooth
        bore = 0.022 if pinion_teeth < 26 else 0.03
        wheel = gear(teeth, GEAR_MODULE, bottom, bottom + 0.026, 5 + k % 2, phase)
        pinion = gear(pinion_teeth, GEAR_MODULE, bottom - 0.006, bottom + 0.032, 4, pinion_phase, bore)
        axle = (ARBOR_DISTANCE * math.cos(direction), ARBOR_DISTANCE * math.sin(direction), 0)
        parts += [
            Part(f"wheel{k}", wheel, material),
            Part(f"pinion{k}", transform(pinion, translation=axle), pinion_material),
        ]
    return parts


def arbors() -> list[Part]:
    """The axles of the pinions, and the bridges that hold them at the top."""
    tip = arc(0, -0.395, 0.02, 20, 90, 6)
    profile = [(0.020, -0.866), (0.020, -0.425), (0.030, -0.425), (0.030, -0.395), *tip]
    bridge = box((0.225, 0, -0.412), (0.37, 0.034, 0.016))
    parts = []
    for k in range(3):
        x, y = _on_circle(ARBOR_DISTANCE, 20 + 120 * k)
        parts += [
            Part(f"arbor{k}", transform(lathe(profile, 32), translation=(x, y, 0)), "steel"),
            Part(f"bridge{k}", transform(bridge, rotation_about("z", 20 + 120 * k)), "brass"),
        ]
    return parts + [Part("bridge_hub", ring(0.030, 0.075, -0.424, -0.398, 64, 0.003), "brass")]


def _on_circle(radius: float, degrees: float) -> tuple[float, float]:
    """Point (x, y) at an angle."""
    return radius * math.cos(math.radians(degrees)), radius * math.sin(math.radians(degrees))
