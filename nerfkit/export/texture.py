# SPDX-License-Identifier: Apache-2.0
"""A mesh unwrapped onto a square image, which is painted with what the training images show of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from nerfkit.data.scene import Views as Images
from nerfkit.export.mesh import TOLERANCE, Mesh
from nerfkit.export.views import Seen, View, Views, sized
from nerfkit.export.writing import optional
from nerfkit.rendering.image_renderer import foretold

PACKED = 1024  # texels a side, about, on which parts are laid out, one apart: finer ones take minutes
TEXELS_OF_A_FACE = 32  # at least, on average: more faces show no more, and take minutes to unwrap
FACES_OF_A_PART = 5000  # about, that are unwrapped together: of more, each takes longer
BYTES_PER_TEXEL = 96  # of all that is known of one, and of the images that are made of them
CHUNK = 2**20  # texels, or candidates for one, that are worked on at once
BEST = 4.0  # power of pixels per length of the surface by which views weigh: 2 is smoother, 8 sharper
LEAST_COSINE = 0.15  # between a normal and the way to the camera, at which a view still shows something
LEAST = 1e-12  # weight of the field's own color
AROUND, SLOPE = 5, 3.0  # pixels within which depth may not jump where a view counts in full, and tan of a steep surface
UNSURE = 1e-3  # weight of a view where it does
BORDER = 0.05  # of an image's sides, in which its weight falls to 0
NEAR = 0.25  # share of a view that is nearer than where its photograph's pixels are as large as texels
SMALLEST = 16  # side, in texels
EVERY, FEWEST = 61, 100  # of the texels from which a view's exposure is known, if there are so many
OPAQUE, CLIPPED = 0.9, (0.02, 0.98)  # of pixels that count, and colors that say nothing of exposure


def unwrapped(mesh: Mesh) -> Mesh:
    """The mesh cut into flat parts, each with its place in the unit square."""
    xatlas = optional("xatlas", "a texture")
    atlas, packing = xatlas.Atlas(), xatlas.PackOptions()
    packing.resolution, packing.padding, packing.bilinear = PACKED, 1, True
    side = np.ptp(mesh.vertices, axis=0).max() / np.ceil(np.sqrt(len(mesh.faces) / FACES_OF_A_PART)) + 1e-12
    place = ((mesh.vertices[mesh.faces].mean(axis=1) - mesh.vertices.min(axis=0)) / side).astype(np.int64)  # [F, 3]
    part = np.unique(place, axis=0, return_inverse=True)[1].ravel()
    used = []
    for number in range(part.max() + 1):
        of, faces = np.unique(mesh.faces[part == number], return_inverse=True)
        used.append(of)
        atlas.add_mesh(mesh.vertices[of].astype(np.float32), faces.reshape(-1, 3).astype(np.uint32), mesh.normals[of])
    atlas.generate(pack_options=packing)
    vertices, faces, uv = zip(*(atlas[number] for number in range(len(used))), strict=True)
    starts = np.cumsum([0, *map(len, vertices[:-1])])
    of = np.concatenate([mine[some] for mine, some in zip(used, vertices, strict=True)])
    faces = np.concatenate([some.astype(np.int64) + start for some, start in zip(faces, starts, strict=True)])
    return Mesh(mesh.vertices[of], faces, mesh.normals[of], mesh.colors[of], np.concatenate(uv))


@dataclass(frozen=True)
class Texels:
    """P texels of T * T that lie on a face."""

    number: Tensor  # [P] int64, row by row from the upper left corner
    positions: Tensor  # [P, 3] float32
    normals: Tensor  # [P, 3] float16
    colors: Tensor  # [P, 3] float16 in [0, 1], of the field

    @classmethod
    def of(cls, mesh: Mesh, size: int, device: torch.device) -> Texels:
        corners = torch.from_numpy(mesh.uv)[torch.from_numpy(mesh.faces)].to(device) * size  # [F, 3, 2]
        corners[..., 1] = size - corners[..., 1]
        low = (corners.amin(1) - 0.5).ceil().long().clamp(0, size - 1)  # [F, 2], first texel whose middle may be inside
        across, down = ((corners.amax(1) - 0.5).floor().long() - low + 1).clamp(min=0).unbind(1)
        ends, parts = (across * down).cumsum(0), []
        values = np.concatenate([mesh.vertices, mesh.normals, mesh.colors / 255], axis=1).astype(np.float32)
        values, faces = torch.from_numpy(values).to(device), torch.from_numpy(mesh.faces).to(device)
        for start in range(0, int(ends[-1]), CHUNK):
            candidate = torch.arange(start, min(start + CHUNK, int(ends[-1])), device=device)
            face = torch.searchsorted(ends, candidate, right=True)
            place = candidate - ends[face] + across[face] * down[face]
            texel = low[face] + torch.stack([place % across[face], place // across[face]], dim=1)  # [C, 2]
            a, b, c = (corners[face] - (texel + 0.5)[:, None]).unbind(1)  # [C, 2]
            areas = torch.stack([_cross(b, c), _cross(c, a), _cross(a, b)], dim=1)  # [C, 3], opposite to each corner
            share = areas / areas.sum(1, keepdim=True)
            inside = (share >= 0).all(1)  # not of a face without area
            found = (share[inside, :, None] * values[faces[face[inside]]]).sum(1)  # [C, 9]
            number = (texel[:, 1] * size + texel[:, 0])[inside]
            positions, *others = found.split(3, 1)
            parts.append((number, positions, *(x.half() for x in others)))
        return cls(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


def photo_of(images: Images | None, views: Views, number: int, texel: float) -> View:
    """A training image, as large as texels of a length can use, or its view rendered; pixels count by their opacity."""
    if images is None:
        return View(views[number].camera, views[number].rgb, torch.ones_like(views[number].depth), views[number].depth)
    one = images[[number]]
    depth = views[number].depth
    near = depth[depth > 0].sort().values
    if len(near):
        one = replace(one, cameras=sized(one.cameras, texel, near[int(NEAR * len(near))].item()))
    pool = one.load(may_be_masked=True)
    pixels, masked = pool.image(0), pool.mask(0)
    counts = pixels[..., 3] / 255 if pixels.shape[-1] == 4 else torch.ones(pixels.shape[:2])
    counts = (counts if masked is None else counts * ~masked).to(views.device)
    return View(one.cameras.to(views.device), pixels[..., :3].to(views.device), counts, counts)


@torch.no_grad()
def painted(mesh: Mesh, size: int, views: Views, images: Images | None, cell: float) -> tuple[Mesh, float]:
    r"""An unwrapped mesh with a texture of `size` texels a side, and the share of it that images show.

    A texel's color is the mean of the images in which the field has no other depth than the texel's, with weights

    .. math:: (f \cos\theta / d)^{BEST} e

    of focal length f, distance d, angle theta between the normal and the way to the camera; e falls to 0 towards the
    sides of an image and is small where depth jumps, for there a small error shows what is behind. So views blend into
    each other. Each image is first multiplied, by channel, by the ratio of what is rendered of its view to what it
    shows. A texel that no image shows has the field's color.

    `cell` is that of the surface [model units].
    """
    device = views.device
    texels = Texels.of(mesh, size, device)
    a, b, c = (mesh.vertices[mesh.faces[:, corner]] for corner in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2
    texel = float(np.sqrt(area / max(len(texels.number), 1)))
    reach = TOLERANCE * max(cell, 0.4 * np.sqrt(area / len(mesh.faces)))  # large faces lie farther off the surface
    total = torch.cat([texels.colors.float(), torch.ones(len(texels.number), 1, device=device)], dim=1) * LEAST
    for number in foretold(tqdm(range(len(views)), desc="texture", unit="view")):
        view, photo = views[number], photo_of(images, views, number, texel)
        sure = View(view.camera, view.rgb, sureness(view, cell), view.depth)
        some = torch.arange(0, len(texels.number), EVERY, device=device)
        gain = _exposure(*_shown(texels, some, sure, photo, reach, texel)[1:])
        for rows in torch.arange(len(texels.number), device=device).split(CHUNK):
            rows, color, weight, _ = _shown(texels, rows, sure, photo, reach, texel)
            total[rows] += torch.cat([(color * gain).clamp(max=1), torch.ones_like(color[:, :1])], 1) * weight[:, None]
    color = total[:, :3] / total[:, 3:]
    where = np.unravel_index(texels.number.cpu().numpy(), (size, size))
    image, bare = np.zeros((size, size, 3), dtype=np.uint8), np.ones((size, size), dtype=bool)
    image[where], bare[where] = (color * 255 + 0.5).to(torch.uint8).cpu().numpy(), False
    nearest = optional("scipy.ndimage", "a texture").distance_transform_edt
    image = image[tuple(nearest(bare, return_distances=False, return_indices=True))]  # also between the parts
    return replace(mesh, texture=image), float((total[:, 3] > 2 * LEAST).float().mean())


def _shown(
    texels: Texels, rows: Tensor, view: View, photo: View, reach: float, texel: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which of some texels an image shows, [R], their colors in it [R, 3], its weights [R], and rendered colors."""
    points = texels.positions[rows]
    towards = view.camera.positions[0] - points
    cosine = (towards * texels.normals[rows]).sum(1) / towards.norm(dim=1)
    chosen = (cosine > LEAST_COSINE).nonzero()[:, 0]
    rows, points, cosine = rows[chosen], points[chosen], cosine[chosen]
    seen = view.see(points)
    depth, _ = view.depth_at(seen)
    chosen = (seen.inside & (depth > 0) & ((seen.distance - depth).abs() < reach)).nonzero()[:, 0]
    seen = Seen(*(x[chosen] for x in seen))
    there = photo.see(points[chosen])
    counts = photo.opacity_at(there)
    pixels = cosine[chosen] * photo.camera.focal[0].mean() * texel / seen.distance  # that a texel has, at most about 1
    weight = pixels**BEST * view.opacity_at(seen) * torch.where(there.inside & (counts > OPAQUE), counts, 0)
    return rows[chosen], photo.color_at(there), weight, view.color_at(seen)


def _exposure(color: Tensor, weight: Tensor, rendered: Tensor) -> Tensor:
    """The factor [3] by which an image has the brightness of what is rendered; 1 where too few texels tell."""
    usable = (weight > 0) & ((color > CLIPPED[0]) & (color < CLIPPED[1])).all(1)
    if usable.sum() < FEWEST:
        return torch.ones(3, device=color.device)
    return rendered[usable].sum(0) / color[usable].sum(0)


def sureness(view: View, cell: float) -> Tensor:
    """How sure it is what each pixel shows, [H, W] from 0 at the sides and UNSURE where depth jumps to 1."""
    depth, pad = torch.where(view.depth > 0, view.depth, torch.inf)[None], AROUND // 2
    far, near = F.max_pool2d(depth, AROUND, 1, pad), -F.max_pool2d(-depth, AROUND, 1, pad)
    steep = cell + SLOPE * (AROUND - 1) / view.camera.focal[0].min() * near
    smooth = F.avg_pool2d((far - near < steep).float(), AROUND, 1, pad)[0]  # inf - inf is no jump, but shows nothing
    for axis, side in enumerate(smooth.shape):
        place = torch.arange(side, device=smooth.device) + 0.5
        ramp = (torch.minimum(place, side - place) / (BORDER * side)).clamp(max=1)
        smooth = smooth.clamp(min=UNSURE) * (ramp[:, None] if axis == 0 else ramp)
    return smooth
