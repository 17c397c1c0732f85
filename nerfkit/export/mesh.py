# SPDX-License-Identifier: Apache-2.0
"""A trained field as triangles: surface in blocks, cleaned and simplified, colors from the cameras; files."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from nerfkit.crop import Crop
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.device import check_memory
from nerfkit.errors import UserError
from nerfkit.export.grid import BLOCK, LEVEL, Grid, Piece, joined, occupied_blocks, piece_of_block
from nerfkit.export.views import Seen, Views
from nerfkit.export.writing import EmptyError, Work, linear, needs_double, optional, oriented_columns, ply_bytes
from nerfkit.model.base import Model
from nerfkit.rendering.image_renderer import foretold

FORMATS, TEXTURED = ("ply", "glb"), ("glb", "obj")  # with colors of vertices, and with a texture; first what is usual
POINTS_AT_ONCE = 2**18  # whose density is evaluated
LENGTHS = 256  # parts of the longest side of data.box; --level is the opacity of one
TRUNCATION = 4.0  # cells, of a signed distance
MIN_WEIGHT = 0.5  # of all views together, for a corner to be known
BLOCKS_OF_A_PART = 256  # that are worked on and kept together
BYTES_PER_BLOCK = 2 * BLOCK**2 * 250  # of a surface through a block, with all that is computed of it
BEST = 3  # cameras whose colors a vertex takes
TOLERANCE = 1.5  # cells that a vertex may lie behind the median depth and still be seen
GAP = 4.0  # cells from what a photo shows to the mesh: more is a gap
CHUNK = 2**19  # vertices that a view sees at once
LEVELS = 12  # of the depth buffer; the coarsest has squares of 2**11 pixels
COVERS = 1.0  # cells that a point of the surface hides, at least; at most twice as many, for levels are powers of two
BEHIND = 1.0  # cells that a point may lie behind what hides it and still be seen
LEAST_COSINE = 0.25  # at which a surface still counts as sloping: within 14 degrees of it, it may hide itself


@torch.no_grad()
def blocks_seen(grid: Grid, views: Views) -> np.ndarray:
    """Which blocks [n_blocks] bool may have something within the truncation of a depth of some view."""
    found, side = np.zeros(grid.n_blocks, dtype=bool), TRUNCATION * grid.cell
    most = max(grid.cells) + 8
    for view in views:
        rays, depth = view.camera.image_rays(0), view.depth.flatten()
        rows = (depth > 0) & (view.opacity.flatten() > 0)
        points = rays.origins[rows] + rays.directions[rows] * depth[rows, None]
        cubes = (points.double() - torch.from_numpy(grid.origin).to(points.device)) / side
        x, y, z = (cubes.floor().clamp(-3, most - 4).long() + 3).unbind(-1)
        number = torch.unique((x * most + y) * most + z)  # far fewer than pixels
        cubes = np.stack(np.unravel_index(number.cpu().numpy(), (most,) * 3), axis=1) - 3
        grid.mark(found, grid.origin + side * (cubes + 0.5), 1.5 * side)
    return found


class DensityField:
    """The opacity of a length, 1 - exp(-density * length), bent so that `level` becomes 0.5.

    The length is a part of the scene's box, not a cell: neither --resolution nor --crop moves the surface.
    """

    name = "density"

    def __init__(self, model: Model, level: float, longest_side: float, views: Views):
        self.model, self.views = model, views
        self.at_level = -math.log1p(-level) / (longest_side / LENGTHS)  # density

    def is_empty(self, grid: Grid, crop: Crop | None) -> bool:
        """Whether nothing in the crop is at the level, before views are rendered for minutes."""
        blocks = occupied_blocks(grid, self.model)
        n_parts = -(-len(blocks) // BLOCKS_OF_A_PART)  # each from all over the grid: where something is, one will do
        for part in (blocks[first::n_parts] for first in range(n_parts)):
            is_inside = np.concatenate([values.ravel() > LEVEL for values in self.inside(grid, part)])
            if (is_inside & (crop is None or crop.inside(grid.points(part, torch.device("cpu"))).numpy())).any():
                return False
        return True

    def blocks(self, grid: Grid) -> np.ndarray:
        """Blocks [N, 3] in which there may be a surface, and that a view sees: most of the surface of a place is in
        what no camera saw."""
        blocks = occupied_blocks(grid, self.model)
        return blocks[blocks_seen(grid, self.views)[tuple(blocks.T)]]

    @torch.no_grad()
    def inside(self, grid: Grid, blocks: np.ndarray) -> list[np.ndarray]:
        """Values [X, Y, Z] at the corners of blocks [B, 3], 0.5 on the surface; NaN where nothing is known."""
        points = grid.points(blocks, self.views.device)
        density = torch.cat([self.model.density(part).float() for part in points.split(POINTS_AT_ONCE)])
        # Near the level this is as straight as the logarithm of the density, which is what a network gives.
        values = density / (density + self.at_level)
        return grid.split(blocks, values.nan_to_num(nan=1.0))  # inf / inf


class DepthField:
    """A truncated signed distance, the mean over views of how far a point lies in front of their median depth."""

    name = "depth"

    def __init__(self, views: Views):
        self.views = views

    def blocks(self, grid: Grid) -> np.ndarray:
        """Blocks [N, 3] that the truncated distance around a depth of some view reaches into."""
        return np.argwhere(blocks_seen(grid, self.views))

    @torch.no_grad()
    def inside(self, grid: Grid, blocks: np.ndarray) -> list[np.ndarray]:
        """Values [X, Y, Z] at the corners of blocks [B, 3], 0.5 on the surface; NaN where nothing is known."""
        points = grid.points(blocks, self.views.device).T.contiguous().T  # [P, 3]
        truncation = TRUNCATION * grid.cell
        total, weights = (torch.zeros(len(points), device=points.device) for _ in range(2))
        for view in self.views:
            seen = view.see(points)
            rows = seen.inside.nonzero()[:, 0]
            seen = Seen(*(x[rows] for x in seen))
            depth, opacity = view.depth_at(seen)
            # Where depth changes between pixels by a truncation at most, it is interpolated.
            near = ((depth - seen.distance).abs() < 2 * truncation).nonzero()[:, 0]  # farther points stay clamped
            depth[near] = view.smooth_depth_at(Seen(*(x[near] for x in seen)), truncation)
            ahead = torch.where(depth > 0, (depth - seen.distance) / truncation, 1)  # where nothing is, the ray is free
            weight = torch.where(depth > 0, opacity, 1 - opacity) * (ahead > -1)
            total.index_add_(0, rows, weight * ahead.clamp(-1, 1))
            weights.index_add_(0, rows, weight)
        values = torch.where(weights >= MIN_WEIGHT, 0.5 - 0.5 * total / weights.clamp(min=1e-9), math.nan)
        return grid.split(blocks, values)


@dataclass(frozen=True, eq=False)
class Mesh:
    """Triangles in the model's frame."""

    vertices: np.ndarray  # [V, 3] float64
    faces: np.ndarray  # [F, 3] int64, counter-clockwise seen from outside
    normals: np.ndarray  # [V, 3] float32, unit vectors that point outwards
    colors: np.ndarray  # [V, 3] uint8, sRGB
    uv: np.ndarray | None = None  # [V, 2] float32, from the lower left corner of the texture, 0, to the upper right, 1
    texture: np.ndarray | None = None  # [T, T, 3] uint8, sRGB, the upper row first

    def keep(self, faces: np.ndarray) -> Mesh:
        """A mesh without texture, with the faces [F] bool alone, and their vertices."""
        used = np.zeros(len(self.vertices), dtype=bool)
        used[self.faces[faces]] = True
        number = np.cumsum(used) - 1
        return Mesh(self.vertices[used], number[self.faces[faces]], self.normals[used], self.colors[used])

    def in_files(self, transform: SceneTransform | None) -> Mesh:
        if transform is None:
            return self
        normals = transform.directions_to_input(self.normals.astype(np.float64)).astype(np.float32)
        return replace(self, vertices=transform.to_input(self.vertices), normals=normals)


def surface(grid: Grid, field: DensityField | DepthField, work: Work) -> Mesh:
    """The surface of a field, without color; parts that an earlier attempt made are taken from `work`."""
    blocks = field.blocks(grid)
    what = f"a mesh of {' x '.join(map(str, grid.cells))} cells (--resolution), in {len(blocks)} blocks"
    check_memory(len(blocks) * BYTES_PER_BLOCK, what, torch.device("cpu"))

    def piece_of(part: np.ndarray) -> Piece:
        values = field.inside(grid, part)
        return joined([piece_of_block(grid, *of_block) for of_block in zip(part, values, strict=True)])

    pieces = []
    for start in tqdm(range(0, len(blocks), BLOCKS_OF_A_PART), desc="surface", unit="part"):
        part = blocks[start : start + BLOCKS_OF_A_PART]
        of_part = work.part(f"{field.name}_{start:08d}", lambda part=part: piece_of(part)._asdict())
        pieces.append(Piece(**of_part))
    piece = joined(pieces)
    if not len(piece.faces):
        raise EmptyError("no training camera sees a surface")
    vertices = grid.origin + grid.cell * piece.vertices
    return Mesh(vertices, piece.faces, vertex_normals(vertices, piece.faces), np.zeros(vertices.shape, dtype=np.uint8))


def vertex_normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Unit normals [V, 3] float32: the mean of the faces', weighted by their areas."""
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    areas = np.repeat(np.cross(b - a, c - a), 3, axis=0)  # [3 F, 3], of each corner's face
    total = np.stack([np.bincount(faces.ravel(), areas[:, axis], len(vertices)) for axis in range(3)], axis=1)
    return (total / np.linalg.norm(total, axis=1, keepdims=True).clip(1e-30)).astype(np.float32)


def without_small_parts(mesh: Mesh, share: float) -> tuple[Mesh, int]:
    """The mesh without connected parts of less than a share of the faces, and how many those were."""
    part = connected_parts(mesh.faces)
    sizes = np.bincount(part)
    small = sizes < share * len(part)
    return mesh.keep(~small[part]), int((small & (sizes > 0)).sum())


def connected_parts(faces: np.ndarray) -> np.ndarray:
    """The number [F] of the connected part that each face is of."""
    label = optional("trimesh.graph", "a mesh").connected_component_labels
    return label(np.concatenate([faces[:, :2], faces[:, 1:]]), faces.max(initial=0) + 1)[faces[:, 0]]


def filled(mesh: Mesh, longest: float) -> tuple[Mesh, int]:
    """The mesh with triangles over its holes that need no edge over `longest` [model units], and how many they are."""
    trimesh = optional("trimesh", "a mesh without holes")
    shape, n = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False), len(mesh.faces)
    trimesh.repair.fill_holes(shape, use_fan=True)
    new = shape.faces[n:]
    edges = np.diff(mesh.vertices[new], axis=1, append=mesh.vertices[new[:, :1]])  # [N, 3, 3]
    hole = connected_parts(new)
    is_wide = np.bincount(hole, np.linalg.norm(edges, axis=2).max(axis=1) > longest) > 0  # one edge of a fan is enough
    faces = np.concatenate([mesh.faces, new[~is_wide[hole]]])
    return replace(mesh, faces=faces, normals=vertex_normals(mesh.vertices, faces)), int((~is_wide[hole]).sum())


def simplified(mesh: Mesh, faces: int) -> Mesh:
    """The mesh with about so many faces at most; a vertex has the color of the nearest one before."""
    if len(mesh.faces) <= faces:
        return mesh
    simplification = optional("fast_simplification", "a mesh of fewer --faces")
    vertices, corners = simplification.simplify(mesh.vertices, mesh.faces, target_count=faces)
    corners = corners.astype(np.int64)
    return Mesh(vertices, corners, vertex_normals(vertices, corners), mesh.colors[_nearest(mesh.vertices, vertices)])


def _nearest(places: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The number [P] of the place [N, 3] that is nearest to each point [P, 3]."""
    return optional("scipy.spatial", "a mesh").cKDTree(places).query(points, workers=-1)[1]


def gaps(mesh: Mesh, points: np.ndarray, cell: float) -> float:
    """The share of points [P, 3] that are farther than GAP cells from every vertex."""
    if not len(points):
        return 0.0
    tree = optional("scipy.spatial", "a mesh").cKDTree(mesh.vertices)
    return float(np.isinf(tree.query(points, distance_upper_bound=GAP * cell, workers=-1)[0]).mean())


def cropped(mesh: Mesh, crop: Crop | None) -> Mesh:
    if crop is None:
        return mesh
    return mesh.keep(crop.inside(torch.from_numpy(mesh.vertices)).numpy()[mesh.faces].all(axis=1))


class Occluder:
    r"""A surface that hides points from one camera.

    Each of its points is drawn into one level of a pyramid of depth buffers, that whose squares are at least as large
    as a cell is there, and hides what is behind it in any: so near ones, which lie far apart in the image, leave no
    gaps, and far ones do not hide what is beside them. As a square reaches over a slope, a point is seen up to

    .. math::
        cell\, (BEHIND + 2\, COVERS \tan\theta)

    behind the nearest, with theta between its normal and the way to the camera. Of two parallel sheets the farther one
    is hidden if they are 2.3 cells apart, under whatever angle. `surface` has S points, about a `cell` apart.
    """

    def __init__(self, surface: Seen, cell: float, focal: Tensor, size: tuple[int, int]):
        self.cell = cell
        side = torch.where(surface.inside, COVERS * cell * focal / surface.distance, 1)  # [S] pixels
        level = side.clamp(min=1).log2().ceil().long().clamp(max=LEVELS - 1)  # [S]
        self.buffers: list[tuple[int, int, Tensor]] = []  # level, width, distances
        for number in torch.unique(level[surface.inside]).tolist():
            width, height = ((length - 1 >> number) + 1 for length in size)
            mine = (surface.inside & (level == number)).nonzero()[:, 0]
            buffer = torch.full((width * height,), math.inf, dtype=side.dtype, device=side.device)
            buffer.scatter_reduce_(0, _square(surface.pixel[mine], number, width), surface.distance[mine], "amin")
            self.buffers.append((number, width, buffer))

    def hides(self, points: Seen, cosine: Tensor) -> Tensor:
        """Which points [P] in the image are hidden, bool; `cosine` [P] of theta."""
        nearest = torch.full_like(points.distance, math.inf)
        pixel = torch.where(points.inside[:, None], points.pixel, 0)
        for number, width, buffer in self.buffers:
            nearest = torch.minimum(nearest, buffer[_square(pixel, number, width)])
        cosine = cosine.abs().clamp(LEAST_COSINE, 1)
        slope = (1 - cosine.square()).sqrt() / cosine
        return points.inside & (points.distance > nearest + self.cell * (BEHIND + 2 * COVERS * slope))


def _square(pixel: Tensor, level: int, width: int) -> Tensor:
    """Number [P] of the square of a level's buffer, `width` squares wide, in which pixels [P, 2] lie."""
    place = pixel.long() >> level
    return place[:, 1] * width + place[:, 0]


def colored(mesh: Mesh, views: Views, cell: float, device: torch.device) -> tuple[Mesh, int]:
    """The mesh, made of cells of a size, with colors, without faces that no camera sees, and how many those were."""
    has_color, color = _seen_colors(mesh, views, cell, device)
    kept = by_most_neighbours(mesh.faces, has_color)[mesh.faces].all(axis=1)
    if not kept.any():
        raise UserError("no training camera sees any of the surface: is the crop inside of something?")
    bare = np.zeros(len(color), dtype=bool)
    bare[mesh.faces[kept]] = True  # not those that go, most of the surface of a place
    bare &= ~has_color
    color[bare] = color[has_color][_nearest(mesh.vertices[has_color], mesh.vertices[bare])]
    return replace(mesh, colors=color).keep(kept), int((~kept).sum())


@torch.no_grad()
def _seen_colors(mesh: Mesh, views: Views, cell: float, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """Which vertices are seen [V] bool, and the mean color [V, 3] uint8 of the cameras that see them best."""
    middles = mesh.vertices[mesh.faces].mean(axis=1)  # [F, 3] of faces
    vertices, normals, middles = (torch.from_numpy(x).float() for x in (mesh.vertices, mesh.normals, middles))
    best = torch.zeros(len(vertices), BEST)  # scores of the best cameras, on the CPU
    colors = torch.zeros(len(vertices), BEST, 3, dtype=torch.uint8)
    for view in foretold(tqdm(views, total=len(views), desc="colors", unit="view")):
        parts = [view.see(chunk.to(device)) for chunk in (*vertices.split(CHUNK), *middles.split(CHUNK))]
        surface = Seen(*(torch.cat(values) for values in zip(*parts, strict=True)))
        occluder = Occluder(surface, cell, view.camera.focal[0].max(), view.camera.size(0))
        chunks = (x.split(CHUNK) for x in (vertices, normals, best, colors))
        for points, normal, best_here, colors_here in zip(*chunks, strict=True):
            points, normal = points.to(device), normal.to(device)
            seen = view.see(points)
            depth, _ = view.depth_at(seen)
            cosine = ((view.camera.positions[0] - points) * normal).sum(-1) / seen.distance
            near = (depth > 0) & (seen.distance < depth + TOLERANCE * cell)
            visible = seen.inside & near & (cosine > 0) & ~occluder.hides(seen, cosine)
            # Pixels per length of the surface: facing, near and through a long lens is best.
            score = torch.where(visible, cosine * view.camera.focal[0].mean() / seen.distance, 0).cpu()
            worst, slot = best_here.min(dim=1)
            rows = (score > worst).nonzero()[:, 0]
            best_here[rows, slot[rows]] = score[rows]
            colors_here[rows, slot[rows]] = (view.color_at(seen) * 255 + 0.5).to(torch.uint8).cpu()[rows]
    taken = (best > 0).float()  # [V, BEST]
    mean = (colors.float() * taken[..., None]).sum(1) / taken.sum(1, keepdim=True).clamp(min=1)
    return (best > 0).any(dim=1).numpy(), (mean + 0.5).to(torch.uint8).numpy()


def by_most_neighbours(faces: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Which vertices [V] bool are seen, as half of a vertex and its neighbours have it: no single one makes a hole."""
    start, end = faces.ravel(), np.roll(faces, -1, axis=1).ravel()
    total = seen + np.bincount(start, seen[end], len(seen))
    return 2 * total >= 1 + np.bincount(start, minlength=len(seen))


def mesh_bytes(mesh: Mesh, formats: tuple[str, ...], name: str) -> dict[str, bytes]:
    """The content of files of FORMATS or, with a texture, TEXTURED, by their endings; `name` is theirs without these.

    Colors of vertices of a glTF are linear, as that format has them, its texture is not; axes are the mesh's. It has
    vertices in float32: far from the origin these lie around a point, to which its node moves them.
    """
    content = {}
    if "ply" in formats:
        content["ply"] = ply_bytes(oriented_columns(mesh.vertices, mesh.normals, mesh.colors), mesh.faces)
    if "glb" in formats:
        place, middle = np.eye(4), (mesh.vertices.min(axis=0) + mesh.vertices.max(axis=0)) / 2
        if needs_double(mesh.vertices):
            step = 2.0 ** round(math.log2(np.ptp(mesh.vertices, axis=0).max()))  # whole ones are exact in float32, too
            place[:3, 3] = np.round(middle / step) * step
        scene = optional("trimesh", "a GLB file").Scene()
        scene.add_geometry(_trimesh(replace(mesh, vertices=mesh.vertices - place[:3, 3]), name), transform=place)
        content["glb"] = scene.export(file_type="glb", include_normals=True)
    if "obj" in formats:
        export = optional("trimesh.exchange.obj", "an OBJ file").export_obj
        digits = 6 - min(0, math.floor(math.log10(np.ptp(mesh.vertices, axis=0).max())))
        text, beside = export(
            _trimesh(mesh, name), include_normals=True, return_texture=True, mtl_name=f"{name}.mtl", digits=digits,
            header=None,
        )  # fmt: skip
        content |= {"obj": text.encode()} | {file.rpartition(".")[2]: data for file, data in beside.items()}
    return content


def _trimesh(mesh: Mesh, name: str):
    trimesh = optional("trimesh", "a GLB or OBJ file")
    normals = mesh.normals.astype(np.float64)
    if mesh.texture is None:
        colors = (linear(mesh.colors / 255) * 255 + 0.5).astype(np.uint8)
        colors = np.concatenate([colors, np.full((len(colors), 1), 255, dtype=np.uint8)], axis=1)
        return trimesh.Trimesh(mesh.vertices, mesh.faces, vertex_normals=normals, process=False, vertex_colors=colors)
    material = trimesh.visual.material.PBRMaterial(
        name=name, baseColorTexture=Image.fromarray(mesh.texture), baseColorFactor=[255] * 4, metallicFactor=0.0,
        roughnessFactor=1.0,
    )  # fmt: skip
    visual = trimesh.visual.TextureVisuals(uv=mesh.uv, material=material)
    return trimesh.Trimesh(mesh.vertices, mesh.faces, vertex_normals=normals, process=False, visual=visual)
