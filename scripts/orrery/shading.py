# SPDX-License-Identifier: Apache-2.0
"""Pictures of a scene of parts: light from lamps and from mirrors. Vectors have their components first, [3, ...].

A sample's radiance is what its surface sends back of the lamps that reach it, plus what its mirror shows: for a metal
the surface that a further ray meets, else the light around it. Nothing is drawn at random; alpha is the share of the
samples of a pixel that meet a shape.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orrery.casting import Hits, Pinhole, first_hits, nearest_hits, sample_places
from orrery.lighting import Lamp, lamps_of
from orrery.parts import TEXTURES, Scene
from orrery.shapes import dot, unit

POINTS_AT_ONCE = 100_000
METAL = 0.2  # a mirror of at least this reflectance shows other surfaces
SPREAD = 2.0  # of rays that a curved mirror sends back, in terms of those that it gets
NOISE_CELLS = 32  # lattice points after which noise repeats


class Lit(NamedTuple):
    """A scene with its shadow maps."""

    scene: Scene
    lamps: list[Lamp]


def light_up(scene: Scene, size: int) -> Lit:
    """Shadow maps for pictures `size` pixels wide: a texel is less than half a pixel wide, of coarse ones too."""
    return Lit(scene, lamps_of(scene.light, scene.kinds, min(max(5 * size, 256), 2048)))


def picture(lit: Lit, view: Pinhole, samples: int, bounces: int = 2) -> np.ndarray:
    """Linear premultiplied RGBA [H, W, 4], of so many samples a pixel and reflections of a reflection."""
    places = sample_places(samples)
    hits = first_hits(lit.scene.kinds, view, places)
    sums = torch.zeros(view.height * view.width * samples, 4)
    for ray in (hits.shape >= 0).nonzero()[:, 0].split(POINTS_AT_ONCE):
        pixel, sample = ray // samples, ray % samples
        right = pixel % view.width + places[sample, 0]
        down = pixel // view.width + places[sample, 1]
        origins, directions = view.rays(right, down)
        found = Hits(hits.shape[ray], hits.distance[ray])
        lobe = _lobe_places(samples)[:, sample]
        sums[ray, :3] = shade(lit, origins, directions, found, lobe, torch.zeros(len(ray)), bounces).T
        sums[ray, 3] = 1
    return sums.reshape(view.height, view.width, samples, 4).mean(2).numpy()


def _lobe_places(samples: int) -> Tensor:
    """Where in a mirror's lobe the samples of a pixel look, [2, S]: points of a disc, one standard deviation wide."""
    radius, angle = (2 * sample_places(samples)[:, 1]).sqrt(), torch.arange(samples) * 2.399963
    return radius * torch.stack([angle.cos(), angle.sin()])


def shade(
    lit: Lit, origins: Tensor, directions: Tensor, hits: Hits, lobe: Tensor, spread: Tensor, bounces: int
) -> Tensor:
    """Radiance [3, M] of the surfaces that M rays meet, all of them some surface.

    `lobe` [2, M] are lobe places; `spread` [M], radians, is how far neighbouring rays are apart: a mirror that is seen
    in a rough one is as rough itself.
    """
    scene = lit.scene
    points = origins + directions * hits.distance
    normals, local = _of_shapes(scene, hits.shape, points)
    facing = dot(normals, directions)
    normals = torch.where(facing > 0, -normals, normals)  # a patch has two sides
    color, other, mirror, rest = scene.table[scene.material[hits.shape]].T.split((3, 3, 3, 4))
    roughness, through, texture, scale = rest
    roughness = torch.hypot(roughness, spread)
    color = color + (other - color) * _textured(texture.long(), local * scale)
    received, sky_seen = _received(lit.lamps, points, normals, through)
    result = color * received
    glossy = (mirror.amax(0) > 0).nonzero()[:, 0]
    if len(glossy):
        points, normals, directions = points[:, glossy], normals[:, glossy], directions.expand_as(points)[:, glossy]
        mirror, roughness, lobe = mirror[:, glossy], roughness[glossy], lobe[:, glossy]
        cosine = -dot(normals, directions).clamp(-1, 0)
        reflected = directions + 2 * cosine * normals
        grazing = torch.maximum(1 - roughness, mirror.amax(0)) - mirror
        seen = scene.light.radiance(reflected, roughness)
        is_metal = mirror.amax(0) >= METAL
        seen = torch.where(is_metal, seen, seen * sky_seen[glossy])
        if bounces and is_metal.any():
            chosen = is_metal.nonzero()[:, 0]
            seen[:, chosen] = _mirrored(lit, points, normals, reflected, roughness, lobe, seen, chosen, bounces)
        elif is_metal.any():
            seen = seen * sky_seen[glossy]
        result[:, glossy] += (mirror + grazing * (1 - cosine) ** 5) * seen
    return result


def _mirrored(
    lit: Lit,
    points: Tensor,
    normals: Tensor,
    reflected: Tensor,
    roughness: Tensor,
    lobe: Tensor,
    seen: Tensor,
    chosen: Tensor,
    bounces: int,
) -> Tensor:
    """What the mirrors `chosen` [C] show, [3, C]: `seen` [3, M] of the light where nothing is in the way."""
    points, normals, reflected = (vector[:, chosen] for vector in (points, normals, reflected))
    aside = torch.where(reflected[2].abs() < 0.9, torch.tensor([[0.0], [0], [1]]), torch.tensor([[1.0], [0], [0]]))
    across = unit(torch.linalg.cross(aside, reflected, dim=0))
    up = torch.linalg.cross(reflected, across, dim=0)
    wide = roughness[chosen] * lobe[:, chosen]
    looking = unit(reflected + wide[0] * across + wide[1] * up)
    below = dot(looking, normals).clamp(max=0)
    looking = unit(looking - 2 * below * normals)  # a ray of the lobe that would enter the surface is turned out of it
    origins = points + 2e-3 * normals
    hits = nearest_hits(lit.scene.kinds, origins, looking)
    met = (hits.shape >= 0).nonzero()[:, 0]
    result = seen[:, chosen]
    if len(met):
        found = Hits(hits.shape[met], hits.distance[met])
        lobe = lobe[:, chosen[met]]
        spread = SPREAD * roughness[chosen[met]]
        result[:, met] = shade(lit, origins[:, met], looking[:, met], found, lobe, spread, bounces - 1)
    return result


def _of_shapes(scene: Scene, shape: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Unit normals and texture coordinates, each [3, M], at points [3, M] of shapes [M]."""
    normals, local = torch.empty_like(points), torch.empty_like(points)
    before = 0
    for kind in scene.kinds:
        of_kind = ((shape >= before) & (shape < before + len(kind))).nonzero()[:, 0]
        index = shape[of_kind] - before
        normals[:, of_kind] = kind.normal(index, points[:, of_kind])
        local[:, of_kind] = kind.local(index, points[:, of_kind])
        before += len(kind)
    return normals, local


def _received(lamps: list[Lamp], points: Tensor, normals: Tensor, through: Tensor) -> tuple[Tensor, Tensor]:
    """Light [3, M] that surfaces send back if white, and the share [M] of the sky before them that they see."""
    total = torch.zeros_like(points)
    seen, most = torch.zeros_like(through), torch.zeros_like(through)
    for lamp in lamps:
        facing, lit = lamp.reaches(points, normals)
        share = torch.where(facing > 0, 1 - through, through) * facing.abs() * lit
        total += lamp.irradiance[:, None] * share
        if lamp.is_sky:
            seen += facing.clamp(min=0) * lit
            most += facing.clamp(min=0)
    return total, seen / most.clamp(min=1e-3)


def _textured(texture: Tensor, local: Tensor) -> Tensor:
    """Values [M] in [0, 1] of textures [M], rows of TEXTURES, at coordinates [3, M] in cells."""
    result = torch.zeros(local.shape[1])
    for k, name in enumerate(TEXTURES):
        chosen = (texture == k).nonzero()[:, 0]
        if len(chosen) and name != "plain":
            result[chosen] = PATTERNS[name](local[:, chosen])
    return result


def _noise(p: Tensor) -> Tensor:
    """Marbled noise [M] at [3, M]: values of a lattice, three octaves, in which the middle of their range is spread."""
    lattice = torch.from_numpy(np.random.default_rng(11).random((NOISE_CELLS + 1,) * 3, dtype=np.float32))
    lattice[-1], lattice[:, -1], lattice[:, :, -1] = lattice[0], lattice[:, 0], lattice[:, :, 0]
    total = torch.zeros(p.shape[1])
    for octave in range(3):
        q = (p * 2.03**octave + 7.1 * octave) % NOISE_CELLS
        fraction = q - q.floor()
        q = (q.floor() + fraction * fraction * (3 - 2 * fraction)) * (2 / NOISE_CELLS) - 1
        values = functional.grid_sample(lattice[None, None], q.T[None, None, None], align_corners=True)
        total += 0.5**octave * values.reshape(-1)
    return ((total / 1.75 - 0.5) * 3 + 0.5).clamp(0, 1)


def _checker(p: Tensor) -> Tensor:
    return (p + 1e-4).floor().sum(0) % 2


def _stripes(p: Tensor) -> Tensor:
    """Along x, half of them wide."""
    return (p[0] % 1 < 0.5).float()


def _veins(p: Tensor) -> Tensor:
    """Of a leaf from x = -1 to 1: one in the middle, others that leave it; between them, a soft mottling."""
    x, y = p[0], p[1].abs()
    middle = (1 - y / 0.07).clamp(0, 1)
    side = (1 - ((x * 5 - y * 4) % 1 - 0.5).abs() / 0.1).clamp(0, 1) * 0.7
    return torch.maximum(torch.maximum(middle, side), 0.3 * _noise(p * 2 + 5))


PATTERNS = {"noise": _noise, "checker": _checker, "stripes": _stripes, "veins": _veins}
