# SPDX-License-Identifier: Apache-2.0
"""Images of a mesh as a file has it, with its texture or the colors of its vertices: numpy alone, and no lights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trimesh

NEAR = 1e-3  # distance along the axis at which faces are left out
AT_ONCE = 2**22  # pixels that are looked at together


class Surface:
    def __init__(self, file: Path):
        loaded = trimesh.load(file, process=False)
        shape = loaded.to_geometry() if isinstance(loaded, trimesh.Scene) else loaded
        self.vertices, self.faces = np.asarray(shape.vertices, dtype=np.float64), np.asarray(shape.faces)
        self.normals, self.texture = np.asarray(shape.vertex_normals), None
        if shape.visual.kind == "texture":
            material = shape.visual.material
            image = material.image if hasattr(material, "image") else material.baseColorTexture
            self.texture, self.values = np.asarray(image.convert("RGB")) / 255, np.asarray(shape.visual.uv)
        else:
            self.values = np.asarray(shape.visual.vertex_colors)[:, :3] / 255
            if file.suffix == ".glb":  # whose colors of vertices are linear
                self.values = np.where(
                    self.values <= 0.0031308, 12.92 * self.values, 1.055 * self.values ** (1 / 2.4) - 0.055
                )

    def image(self, pose, focal, center, size, background=1.0, finer: int = 2) -> np.ndarray:
        """What a pinhole sees, [H, W, 3] in [0, 1]; its pose [3, 4] leads to the world, in OpenGL axes.

        Each pixel is the mean of `finer`**2 samples.
        """
        width, height = (side * finer for side in size)
        face, share = self._hits(np.asarray(pose), np.asarray(focal) * finer, np.asarray(center) * finer, width, height)
        color = np.full((height * width, 3), float(background))
        hit = face >= 0
        values = (self.values[self.faces[face[hit]]] * share[hit, :, None]).sum(1)
        color[hit] = values if self.texture is None else self.sampled(values)
        return color.reshape(size[1], finer, size[0], finer, 3).mean((1, 3))

    def sampled(self, uv: np.ndarray) -> np.ndarray:
        """Colors [N, 3] of the texture, interpolated; v runs upwards."""
        height, width = self.texture.shape[:2]
        x, y = (uv[:, 0] * width - 0.5).clip(0, width - 1), ((1 - uv[:, 1]) * height - 0.5).clip(0, height - 1)
        left, above = np.floor(x).astype(int), np.floor(y).astype(int)
        right, below = (left + 1).clip(max=width - 1), (above + 1).clip(max=height - 1)
        x, y = (x - left)[:, None], (y - above)[:, None]
        upper = self.texture[above, left] * (1 - x) + self.texture[above, right] * x
        return upper * (1 - y) + (self.texture[below, left] * (1 - x) + self.texture[below, right] * x) * y

    def _hits(self, pose, focal, center, width, height) -> tuple[np.ndarray, np.ndarray]:
        """The nearest face [P] behind each sample, -1 of none, and the shares [P, 3] of its corners."""
        local = (self.vertices - pose[:, 3]) @ pose[:, :3]
        z = -local[:, 2]
        pixel = local[:, :2] * [1, -1] / z.clip(min=NEAR)[:, None] * focal + center
        faces = np.flatnonzero((z[self.faces] > NEAR).all(1))
        corners, depths = pixel[self.faces[faces]], z[self.faces[faces]]
        low = np.ceil(corners.min(1) - 0.5).clip(0, [width, height]).astype(int)
        sides = (np.floor(corners.max(1) - 0.5).clip(-1, [width - 1, height - 1]).astype(int) - low + 1).clip(min=0)
        ends = sides.prod(1).cumsum()
        nearest = np.full(width * height, np.inf)
        found, shares = np.full(width * height, -1), np.zeros((width * height, 3))
        for start in range(0, int(ends[-1]) if len(ends) else 0, AT_ONCE):
            candidate = np.arange(start, min(start + AT_ONCE, ends[-1]))
            k = np.searchsorted(ends, candidate, side="right")
            place = candidate - ends[k] + sides[k].prod(1)
            column, row = low[k, 0] + place % sides[k, 0], low[k, 1] + place // sides[k, 0]
            a, b, c = np.moveaxis(corners[k] - np.stack([column + 0.5, row + 0.5], 1)[:, None], 1, 0)
            areas = np.stack([_cross(b, c), _cross(c, a), _cross(a, b)], axis=1)
            with np.errstate(invalid="ignore", divide="ignore"):
                share = areas / areas.sum(1, keepdims=True) / depths[k]  # straight in the image is 1 / depth
                inside = (share >= 0).all(1)
            k, share, sample = k[inside], share[inside], (row * width + column)[inside]
            depth = 1 / share.sum(1)
            order = np.lexsort((depth, sample))
            order = order[np.unique(sample[order], return_index=True)[1]]  # the nearest of each sample
            order = order[depth[order] < nearest[sample[order]]]
            nearest[sample[order]], found[sample[order]] = depth[order], faces[k[order]]
            shares[sample[order]] = share[order] * depth[order, None]
        return found, shares


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


def decibels(image: np.ndarray, truth: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((image - truth) ** 2)))
