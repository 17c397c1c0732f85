# SPDX-License-Identifier: Apache-2.0
"""Orrery: a procedural clockwork planetarium, rendered as a data set for radiance fields.

Everything is computed: no outside asset is read. One module per concern:

    cameras    where the images are taken from, and with which seed
    meshes     mesh primitives: lathe, tube, ring, gear, ...
    textures   planets, wood, lettered scales and the light of the studio
    model      the parts of the orrery
    render     Mitsuba scene, path tracing, PNG
    sight      which points triangles hide from an eye

Scenes of `scripts/make_scenes.py` are cast in torch instead, without noise:

    shapes     rods, ellipsoids, patches and tori, met in closed form, but for tori
    casting    which shape each ray meets first
    lighting   sky, soft boxes, and shadow maps of them
    shading    materials, mirrors and pictures
    parts      a list of parts that becomes a scene
    wires, metal, leaves, arrangements    the scenes; arrangements are drawn at random

The world is right-handed with z up; lengths are scene units (the horizon ring has an outer radius of 1.25).
"""


class OrreryError(Exception):
    """Something outside the code is wrong; the message says what, and what to do."""
