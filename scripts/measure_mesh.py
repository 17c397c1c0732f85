#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far a mesh of the Orrery is from the true surface, whose triangles the scene was rendered from.

python scripts/measure_mesh.py runs/orrery/export/mesh.ply --data data/orrery --json mesh.json

    truth to mesh   from points of the true surface that some training camera sees to the nearest point of the mesh
    mesh to truth   from points of the mesh to the nearest point of the true surface
    chamfer         the mean of both means

All in percent of the scene's size, the longest side of the true surface's box.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from orrery import model
from scipy.spatial import cKDTree

POINTS = 200_000  # that distances are measured from
DENSE = 4_000_000  # that distances are measured to, before the triangles of the nearest are asked, and that hide others
NEAREST = 4  # of the dense points
SIDE = 800  # pixels of the depth images that decide what a camera sees
SLACK = 0.004  # scene units behind the depth image that are still seen


class Surface(NamedTuple):
    """Triangles."""

    vertices: np.ndarray  # [V, 3]
    faces: np.ndarray  # [F, 3]

    def sample(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Points [n, 3] evenly over the area, and their triangles [n]."""
        generator = np.random.default_rng(seed)
        a, b, c = (self.vertices[self.faces[:, k]] for k in range(3))
        area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
        face = np.sort(generator.choice(len(area), n, p=area / area.sum()))
        u, v = generator.random((2, n, 1))
        u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
        return a[face] + u * (b[face] - a[face]) + v * (c[face] - a[face]), face

    def distance(self, points: np.ndarray, seed: int) -> np.ndarray:
        """Distance [P] from points [P, 3]: to the triangles of the nearest of many points on them."""
        dense, face = self.sample(DENSE, seed)
        _, index = cKDTree(dense).query(points, NEAREST, workers=-1)
        distances = [to_triangles(points, *(self.vertices[self.faces[face[i], k]] for k in range(3))) for i in index.T]
        return np.min(distances, axis=0)


def to_triangles(p: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Distance [P] from points to triangles, row by row."""
    ab, ac, ap = b - a, c - a, p - a
    normal = np.cross(ab, ac)
    square = np.einsum("ij,ij->i", normal, normal)
    size = square.clip(1e-300)
    v = np.einsum("ij,ij->i", np.cross(ap, ac), normal) / size
    w = np.einsum("ij,ij->i", np.cross(ab, ap), normal) / size
    inside = (v >= 0) & (w >= 0) & (v + w <= 1) & (square > 0)
    above = np.abs(np.einsum("ij,ij->i", ap, normal)) / np.sqrt(size)
    edges = np.min([to_segments(p, *ends) for ends in ((a, b), (b, c), (c, a))], axis=0)
    return np.where(inside, above, edges)


def to_segments(p: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance [P] from points to segments, row by row."""
    ab = b - a
    t = np.einsum("ij,ij->i", p - a, ab) / np.einsum("ij,ij->i", ab, ab).clip(1e-300)
    return np.linalg.norm(p - a - t.clip(0, 1)[:, None] * ab, axis=1)


def truth() -> Surface:
    """All triangles of the Orrery."""
    meshes = [part.mesh for part in model.build()]
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    vertices = np.concatenate([np.asarray(mesh.vertices, dtype=np.float64) for mesh in meshes])
    faces = np.concatenate([mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)])
    return Surface(vertices, faces.astype(np.int64))


def seen_by(points: np.ndarray, hiding: np.ndarray, transforms: dict[str, Any]) -> np.ndarray:
    """Which points [P, 3] some camera sees, [P] bool; `hiding` [D, 3] cover what hides others."""
    focal = 0.5 * SIDE / np.tan(0.5 * transforms["camera_angle_x"])
    seen = np.zeros(len(points), dtype=bool)
    for frame in transforms["frames"]:
        pose = np.array(frame["transform_matrix"])
        depth = np.full(SIDE * SIDE, np.inf)
        pixel, z = project(hiding, pose, focal)
        np.minimum.at(depth, pixel[pixel >= 0], z[pixel >= 0])
        pixel, z = project(points, pose, focal)
        seen |= (pixel >= 0) & (z < depth[pixel.clip(0)] + SLACK)
    return seen


def project(points: np.ndarray, pose: np.ndarray, focal: float) -> tuple[np.ndarray, np.ndarray]:
    """Flat pixels [P], -1 outside of the image, and depths [P]."""
    x, y, z = ((points - pose[:3, 3]) @ pose[:3, :3]).T
    column, row = np.floor(focal * x / -z + SIDE / 2), np.floor(SIDE / 2 - focal * y / -z)
    inside = (z < 0) & (column >= 0) & (column < SIDE) & (row >= 0) & (row < SIDE)
    return np.where(inside, row * SIDE + column, -1).astype(np.int64), -z


def measure(mesh: Surface, transforms: dict[str, Any]) -> dict[str, float]:
    """Distances both ways, in percent of the scene's size."""
    true = truth()
    size = float(np.ptp(true.vertices[np.unique(true.faces)], axis=0).max())
    points, _ = true.sample(POINTS, 0)
    visible = points[seen_by(points, true.sample(DENSE, 1)[0], transforms)]
    to_mesh, to_truth = mesh.distance(visible, 2), true.distance(mesh.sample(POINTS, 3)[0], 4)
    result = {"size": size, "visible_share": len(visible) / len(points), "faces": len(mesh.faces)}
    for name, distance in (("truth_to_mesh", to_mesh), ("mesh_to_truth", to_truth)):
        result[f"{name}_percent"] = 100 * distance.mean() / size
        result[f"{name}_median_percent"] = 100 * float(np.median(distance)) / size
        result[f"{name}_within_1_percent"] = float((distance < 0.01 * size).mean())
    result["chamfer_percent"] = (result["truth_to_mesh_percent"] + result["mesh_to_truth_percent"]) / 2
    return {name: round(float(value), 5) for name, value in result.items()}


@dataclass
class Options:
    """Compare a mesh of the Orrery, in the frame of its files, with the true surface."""

    mesh: Annotated[Path, tyro.conf.Positional]  # PLY file of nerfkit export
    data: Path = Path("data/orrery")  # the scene, for its training cameras
    seconds: float = 0.0  # that the export took, as it printed them, to be kept with the result
    json: str = ""  # file in which the result is kept under the mesh's name; it is printed anyway


def main() -> None:
    options = tyro.cli(Options, prog="scripts/measure_mesh.py", use_underscores=True)
    from plyfile import PlyData

    data = PlyData.read(options.mesh)
    vertices = np.stack([data["vertex"][axis] for axis in "xyz"], axis=1).astype(np.float64)
    mesh = Surface(vertices, np.stack(data["face"]["vertex_indices"]).astype(np.int64))
    result = measure(mesh, json.loads((options.data / "transforms_train.json").read_text()))
    about = json.loads(options.mesh.with_name(options.mesh.stem + ".export.json").read_text())
    kept = {name: about[name] for name in ("checkpoint_step", "counts", "thresholds")}
    kept["options"] = {name: about["options"][name] for name in ("source", "resolution", "level", "min_part")}
    result |= {**kept, **({"seconds": options.seconds} if options.seconds else {})}
    print(json.dumps(result, indent=1))
    if options.json:
        file = Path(options.json)
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(before | {options.mesh.stem: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
