# SPDX-License-Identifier: Apache-2.0
"""A trained field as triangles: surface in blocks, what is small or hidden left out, colors from the cameras."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit.crop import Crop
from nerfkit.data.scene_transform.frame import Frame
from nerfkit.device import check_memory
from nerfkit.errors import UserError
from nerfkit.export.fields import Field
from nerfkit.export.grid import BLOCK, Grid
from nerfkit.export.hidden import InImage, Occluder
from nerfkit.export.missing import optional
from nerfkit.export.surface import Piece, joined, piece_of_block
from nerfkit.export.views import Seen, View, Views
from nerfkit.export.work import Work

BLOCKS_OF_A_PART = 256  # that are worked on and kept together
BYTES_PER_BLOCK = 2 * BLOCK**2 * 250  # of a surface through a block, with all that is computed of it
BEST = 3  # cameras whose colors a vertex takes
TOLERANCE = 1.5  # cells that a vertex may lie behind the median depth and still be seen
CHUNK = 2**19  # vertices that a view sees at once


class NoSurfaceError(UserError):
    """Nothing is solid in a grid."""


@dataclass(frozen=True, eq=False)
class Mesh:
    """Triangles in the model's frame."""

    vertices: np.ndarray  # [V, 3] float64
    faces: np.ndarray  # [F, 3] int64, counter-clockwise seen from outside
    normals: np.ndarray  # [V, 3] float32, unit vectors that point outwards
    colors: np.ndarray  # [V, 3] uint8, sRGB

    def keep(self, faces: np.ndarray) -> Mesh:
        """The mesh with the faces [F] bool alone, and their vertices."""
        used = np.zeros(len(self.vertices), dtype=bool)
        used[self.faces[faces]] = True
        number = np.cumsum(used) - 1
        return Mesh(self.vertices[used], number[self.faces[faces]], self.normals[used], self.colors[used])

    def in_files(self, frame: Frame | None) -> Mesh:
        """The mesh in the frame of the scene's files."""
        if frame is None:
            return self
        normals = frame.directions_to_input(self.normals.astype(np.float64)).astype(np.float32)
        return replace(self, vertices=frame.to_input(self.vertices), normals=normals)


def surface(grid: Grid, field: Field, work: Work) -> Mesh:
    """The surface of a field, without color; parts that an earlier attempt made are taken from `work`."""
    blocks = field.blocks(grid)
    what = f"a mesh of {' x '.join(map(str, grid.cells))} cells (--resolution), in {len(blocks)} blocks"
    check_memory(len(blocks) * BYTES_PER_BLOCK, what, torch.device("cpu"))
    parts = range(0, len(blocks), BLOCKS_OF_A_PART)
    pieces = []
    with tqdm(total=len(blocks), desc="surface", unit="block", dynamic_ncols=True) as bar:
        for start in parts:
            part = blocks[start : start + BLOCKS_OF_A_PART]
            arrays = work.part(f"blocks_{start:08d}", lambda part=part: _surface_of(grid, field, part))
            pieces.append(Piece(**arrays))
            bar.update(len(part))
    piece = joined(pieces)
    if not len(piece.faces):
        raise NoSurfaceError("there is no surface: nowhere does the field reach the level")
    vertices = grid.origin + grid.cell * piece.vertices
    colors = np.zeros((len(vertices), 3), dtype=np.uint8)
    return Mesh(vertices, piece.faces, vertex_normals(vertices, piece.faces), colors)


def _surface_of(grid: Grid, field: Field, blocks: np.ndarray) -> dict[str, np.ndarray]:
    values = field.inside(grid, blocks)
    return joined([piece_of_block(grid, *of_block) for of_block in zip(blocks, values, strict=True)])._asdict()


def vertex_normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Unit normals [V, 3] float32: the mean of the faces', weighted by their areas."""
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    areas = np.cross(b - a, c - a)  # [F, 3]
    total = np.stack(
        [sum(np.bincount(faces[:, k], areas[:, axis], len(vertices)) for k in range(3)) for axis in range(3)], axis=1
    )
    return (total / np.linalg.norm(total, axis=1, keepdims=True).clip(1e-30)).astype(np.float32)


def without_small_parts(mesh: Mesh, share: float) -> tuple[Mesh, int]:
    """The mesh without connected parts of less than a share of the faces, and how many those were."""
    sparse = optional("scipy.sparse", "a mesh")
    a, b, c = mesh.faces.T
    edges = np.ones(2 * len(a), dtype=bool), (np.concatenate([a, b]), np.concatenate([b, c]))
    graph = sparse.coo_matrix(edges, shape=(len(mesh.vertices),) * 2)
    n_parts, part = sparse.csgraph.connected_components(graph, directed=False)
    sizes = np.bincount(part[a], minlength=n_parts)
    small = sizes < share * len(a)
    return mesh.keep(~small[part[a]]), int((small & (sizes > 0)).sum())


def cropped(mesh: Mesh, crop: Crop | None) -> Mesh:
    """The faces whose corners are all in the crop."""
    if crop is None:
        return mesh
    return mesh.keep(crop.inside(torch.from_numpy(mesh.vertices)).numpy()[mesh.faces].all(axis=1))


class Colors:
    """Colors of vertices, from the cameras that see them best, and which vertices are seen at all."""

    def __init__(self, mesh: Mesh, device: torch.device):
        self.mesh, self.device = mesh, device
        self.middles = torch.from_numpy(mesh.vertices[mesh.faces].mean(axis=1)).float()  # [F, 3] of faces
        self.best = torch.zeros(len(mesh.vertices), BEST)  # scores of the best cameras, on the CPU
        self.colors = torch.zeros(len(mesh.vertices), BEST, 3, dtype=torch.uint8)

    @torch.no_grad()
    def look(self, views: Views, cell: float) -> None:
        """Let all views see the vertices, of a mesh from cells of a size [model units]."""
        vertices, normals = (torch.from_numpy(x).float() for x in (self.mesh.vertices, self.mesh.normals))
        for view in tqdm(views, total=len(views), desc="colors", unit="view", dynamic_ncols=True):
            occluder = self._occluder(view, vertices, cell)
            for start in range(0, len(vertices), CHUNK):
                part = slice(start, start + CHUNK)
                points, normal = vertices[part].to(self.device), normals[part].to(self.device)
                seen = view.see(points)
                depth, _ = view.depth_at(seen)
                cosine = ((view.camera.positions[0] - points) * normal).sum(-1) / seen.distance
                near = (depth > 0) & (seen.distance < depth + TOLERANCE * cell)
                visible = seen.inside & near & (cosine > 0) & ~occluder.hides(in_image(seen), cosine)
                # Pixels per length of the surface: facing, near and through a long lens is best.
                score = torch.where(visible, cosine * view.camera.focal[0].mean() / seen.distance, 0)
                self._offer(part, score.cpu(), (view.color_at(seen) * 255 + 0.5).to(torch.uint8).cpu())

    def _occluder(self, view: View, vertices: Tensor, cell: float) -> Occluder:
        """The mesh as it hides itself from a view: its vertices, and the middles of its faces."""
        chunks = (*vertices.split(CHUNK), *self.middles.split(CHUNK))
        parts = [in_image(view.see(chunk.to(self.device))) for chunk in chunks]
        surface = InImage(*(torch.cat(values) for values in zip(*parts, strict=True)))
        return Occluder(surface, cell, view.camera.focal[0].max(), view.camera.size(0))

    def _offer(self, part: slice, score: Tensor, color: Tensor) -> None:
        """Take a view's colors where its score is above the worst of the best."""
        best, colors = self.best[part], self.colors[part]
        worst, slot = best.min(dim=1)
        rows = (score > worst).nonzero()[:, 0]
        best[rows, slot[rows]] = score[rows]
        colors[rows, slot[rows]] = color[rows]

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Which vertices are seen [V] bool, and the mean color [V, 3] uint8 of their best cameras."""
        taken = (self.best > 0).float()  # [V, BEST]
        mean = (self.colors.float() * taken[..., None]).sum(1) / taken.sum(1, keepdim=True).clamp(min=1)
        return (self.best > 0).any(dim=1).numpy(), (mean + 0.5).to(torch.uint8).numpy()


def in_image(seen: Seen) -> InImage:
    """What a view has, for a depth buffer."""
    return InImage(torch.where(seen.inside, seen.distance, math.inf), seen.pixel)


def colored(mesh: Mesh, views: Views, cell: float, device: torch.device) -> tuple[Mesh, int]:
    """The mesh with colors, without the faces that no camera sees, and how many those were."""
    colors = Colors(mesh, device)
    colors.look(views, cell)
    has_color, color = colors.result()
    kept = by_most_neighbours(mesh.faces, has_color)[mesh.faces].all(axis=1)
    if not kept.any():
        raise UserError("no training camera sees any of the surface: is the crop inside of something?")
    color = _from_neighbours(mesh.faces[kept], has_color, color)
    return replace(mesh, colors=color).keep(kept), int((~kept).sum())


def by_most_neighbours(faces: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Which vertices [V] bool are seen, as half of a vertex and its neighbours have it: no single one makes a hole."""
    start, end = faces.ravel(), np.roll(faces, -1, axis=1).ravel()
    total = seen + np.bincount(start, seen[end], len(seen))
    return 2 * total >= 1 + np.bincount(start, minlength=len(seen))


def _from_neighbours(faces: np.ndarray, has_color: np.ndarray, color: np.ndarray) -> np.ndarray:
    """Colors [V, 3] in which corners without one have the mean of their neighbours', from neighbour to neighbour."""
    color, has_color = color.astype(np.float64), has_color.copy()
    while True:
        total, count = np.zeros_like(color), np.zeros(len(color))
        for k in range(3):
            for other in ((k + 1) % 3, (k + 2) % 3):
                rows = ~has_color[faces[:, k]] & has_color[faces[:, other]]
                np.add.at(total, faces[rows, k], color[faces[rows, other]])
                np.add.at(count, faces[rows, k], 1)
        found = count > 0
        if not found.any():
            return (color + 0.5).astype(np.uint8)
        color[found] = total[found] / count[found, None]
        has_color |= found
