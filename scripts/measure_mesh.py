#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far a mesh of the Orrery, or of the room around it, is from the true surface that the scene was rendered from.

python scripts/measure_mesh.py runs/orrery/export/mesh.ply --json mesh.json
python scripts/measure_mesh.py runs/room/export/mesh.ply --scene room --data data/room --parts

    truth to mesh   from points of the true surface that some training camera sees to the nearest point of the mesh
    mesh to truth   from points of the mesh to the nearest point of the true surface
    chamfer         the mean of both means

All in percent of the scene's size, the longest side of the true surface's box. Of the room, what lies outside of its
walls does not count. --parts tells the same for each part: of the mesh's points, those that are nearest to it.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import tyro
from orrery import model, room, room_views
from orrery.sight import hidden
from scipy.spatial import cKDTree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nerfkit.data.load import load_scene  # noqa: E402

POINTS = 200_000  # that distances are measured from
DENSE = 4_000_000  # that distances are measured to, before the triangles of the nearest are asked
NEAREST = 4  # of the dense points
SLACK = 2e-4  # of the scene's size: what is less far before a point does not hide it


class Surface(NamedTuple):
    """Triangles."""

    vertices: np.ndarray  # [V, 3]
    faces: np.ndarray  # [F, 3]

    def areas(self) -> np.ndarray:
        """Of each triangle, doubled, [F]."""
        a, b, c = (self.vertices[self.faces[:, k]] for k in range(3))
        return np.linalg.norm(np.cross(b - a, c - a), axis=1)

    def sample(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Points [n, 3] evenly over the area, and their triangles [n]."""
        generator = np.random.default_rng(seed)
        a, b, c = (self.vertices[self.faces[:, k]] for k in range(3))
        area = self.areas()
        face = np.sort(generator.choice(len(area), n, p=area / area.sum()))
        u, v = generator.random((2, n, 1))
        u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
        return a[face] + u * (b[face] - a[face]) + v * (c[face] - a[face]), face

    def nearest(self, points: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Distance [P] from points [P, 3], and the triangle [P]: of those of the nearest of many points on them."""
        dense, face = self.sample(DENSE, seed)
        _, index = cKDTree(dense).query(points, NEAREST, workers=-1)
        distances = [to_triangles(points, *(self.vertices[self.faces[face[i], k]] for k in range(3))) for i in index.T]
        best = np.argmin(distances, axis=0)
        rows = np.arange(len(points))
        return np.array(distances)[best, rows], face[index[rows, best]]


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


class Truth(NamedTuple):
    """What a scene was rendered from, in the world in which it was modelled."""

    surface: Surface
    parts: list[str]  # a name for each kind of part
    part: np.ndarray  # [F] of each triangle, number in `parts`

    @property
    def bounds(self) -> np.ndarray:
        """The lowest and the highest corner of all triangles, [2, 3]."""
        used = self.surface.vertices[np.unique(self.surface.faces)]
        return np.stack([used.min(axis=0), used.max(axis=0)])


def truth(scene: Literal["orrery", "room"]) -> Truth:
    """All triangles of a scene; of the room, without the land outside."""
    outside = {part.name for part in room.land()}
    of_scene = model.build() if scene == "orrery" else [part for part in room.build() if part.name not in outside]
    meshes = [part.mesh for part in of_scene]
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    vertices = np.concatenate([np.asarray(mesh.vertices, dtype=np.float64) for mesh in meshes])
    faces = np.concatenate([mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)])
    kinds = [re.sub(r"\d+$", "", part.name) for part in of_scene]
    parts = list(dict.fromkeys(kinds))
    part = np.repeat([parts.index(kind) for kind in kinds], [len(mesh.faces) for mesh in meshes])
    return Truth(Surface(vertices, faces.astype(np.int64)), parts, part)


class Eyes:
    """The training cameras of a scene."""

    def __init__(self, data: Path, scene: str):
        self.scene, self.loaded = scene, load_scene(str(data))
        self.cameras = self.loaded.split("train").cameras

    def to_world(self, vertices: np.ndarray) -> np.ndarray:
        """Points [P, 3] of the scene's files in the world."""
        return room_views.points_to_world(vertices) if self.scene == "room" else vertices

    def see(self, points: np.ndarray, surface: Surface) -> np.ndarray:
        """Which points [P, 3] of a surface some camera sees, [P] bool; all in the world."""
        placed, corners = self._to_model(points), self._to_model(surface.vertices)[surface.faces]
        slack = SLACK * float(np.ptp(corners.reshape(-1, 3), axis=0).max())
        places = torch.from_numpy(placed).float()
        seen = np.zeros(len(points), dtype=bool)
        for view in range(len(self.cameras)):
            pixel, depth = self.cameras.project(places, view)
            inside = ((pixel >= 0) & (pixel < torch.tensor(self.cameras.size(view)))).all(-1) & (
                depth > 0
            )  # NaN is not
            asked = np.flatnonzero(inside.numpy() & ~seen)
            eye, axes = self.cameras.positions[view], self.cameras.camera_to_world[view, :, :3]
            seen[asked] = ~hidden(placed[asked], corners, eye.double().numpy(), axes.double().numpy(), slack)
        return seen

    def _to_model(self, points: np.ndarray) -> np.ndarray:
        files = room_views.points_to_files(points) if self.scene == "room" else points
        return files if self.loaded.frame is None else self.loaded.frame.to_model(files)


def measure(mesh: Surface, true: Truth, eyes: Eyes, of_parts: bool) -> dict[str, Any]:
    """Distances both ways, in percent of the scene's size."""
    size = float(np.ptp(true.bounds, axis=0).max())
    points, face = true.surface.sample(POINTS, 0)
    visible = eyes.see(points, true.surface)
    of_mesh = mesh.sample(POINTS, 3)[0]
    slack = 0.02 * size
    of_mesh = of_mesh[((of_mesh > true.bounds[0] - slack) & (of_mesh < true.bounds[1] + slack)).all(axis=1)]
    to_mesh, _ = mesh.nearest(points[visible], 2)
    to_truth, nearest = true.surface.nearest(of_mesh, 4)
    result = {"size": size, "visible_share": visible.mean(), "faces": len(mesh.faces)}
    result |= both_ways(to_mesh, to_truth, size)
    if of_parts:
        here, there = true.part[face[visible]], true.part[nearest]
        result["parts"] = {
            name: {
                "share_of_mesh": round(float((there == k).mean()), 5),
                "truth_to_mesh_percent": round(100 * float(to_mesh[here == k].mean()) / size, 5),
                "mesh_to_truth_percent": round(100 * float(to_truth[there == k].mean()) / size, 5),
            }
            for k, name in enumerate(true.parts)
            if (here == k).any() and (there == k).any()
        }
    return result


def both_ways(to_mesh: np.ndarray, to_truth: np.ndarray, size: float) -> dict[str, float]:
    """Means and more of distances to the mesh and to the truth."""
    result = {}
    for name, distance in (("truth_to_mesh", to_mesh), ("mesh_to_truth", to_truth)):
        result[f"{name}_percent"] = 100 * distance.mean() / size
        result[f"{name}_median_percent"] = 100 * float(np.median(distance)) / size
        result[f"{name}_within_1_percent"] = float((distance < 0.01 * size).mean())
    result["chamfer_percent"] = (result["truth_to_mesh_percent"] + result["mesh_to_truth_percent"]) / 2
    return {name: round(float(value), 5) for name, value in result.items()}


def table_of(parts: dict[str, dict[str, float]]) -> str:
    """A line for each part, those first that add most to the mean."""
    lines = [f"{'part':<20} {'of mesh':>8} {'truth to mesh':>14} {'mesh to truth':>14}   percent"]
    for name, row in sorted(
        parts.items(), key=lambda part: -part[1]["share_of_mesh"] * part[1]["mesh_to_truth_percent"]
    ):
        lines.append(
            f"{name:<20} {100 * row['share_of_mesh']:8.2f} {row['truth_to_mesh_percent']:14.3f} "
            f"{row['mesh_to_truth_percent']:14.3f}"
        )
    return "\n".join(lines)


@dataclass
class Options:
    """Compare a mesh, in the frame of the scene's files, with the true surface."""

    mesh: Annotated[Path, tyro.conf.Positional]  # PLY file of nerfkit export
    scene: Literal["orrery", "room"] = "orrery"  # of which it is
    data: Path | None = None  # the scene's folder, for its training cameras; data/<scene> if left out
    parts: bool = False  # also part by part
    seconds: float = 0.0  # that the export took, as it printed them, to be kept with the result
    json: str = ""  # file in which the result is kept under the mesh's name; it is printed anyway


def main() -> None:
    options = tyro.cli(Options, prog="scripts/measure_mesh.py", use_underscores=True)
    from plyfile import PlyData

    eyes = Eyes(options.data or Path("data") / options.scene, options.scene)
    data = PlyData.read(options.mesh)
    vertices = np.stack([data["vertex"][axis] for axis in "xyz"], axis=1).astype(np.float64)
    mesh = Surface(eyes.to_world(vertices), np.stack(data["face"]["vertex_indices"]).astype(np.int64))
    result = measure(mesh, truth(options.scene), eyes, options.parts)
    about = json.loads(options.mesh.with_name(options.mesh.stem + ".export.json").read_text())
    kept = {name: about[name] for name in ("checkpoint_step", "counts", "thresholds", "crop")}
    kept["options"] = {name: about["options"][name] for name in ("source", "resolution", "level", "min_part")}
    result |= {**kept, **({"seconds": options.seconds} if options.seconds else {})}
    if options.parts:
        print(table_of(result["parts"]))
    print(json.dumps({name: value for name, value in result.items() if name != "parts"}, indent=1))
    if options.json:
        file = Path(options.json)
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(before | {options.mesh.stem: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
