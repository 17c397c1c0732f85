# SPDX-License-Identifier: Apache-2.0
"""Points where rays of training views end, if neighbours and other views agree; also as flat Gaussians, or splats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from nerfkit.crop import Crop
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import UserError
from nerfkit.export.views import View, Views
from nerfkit.export.writing import EmptyError, columns, needs_double, optional, oriented_columns, ply_bytes

MIN_OPACITY = 0.9
AGREE = 0.02  # relative difference of depths that agree
OTHERS = 6  # views that are asked about a point, those that look most alike
SPARE = 4  # times the wanted number of points that are held before they are thinned
SH_0 = 0.28209479177387814  # the constant spherical harmonic
NEIGHBOURS = 3  # of a splat, whose mean distance counts
SPLATS_WITHIN = 1e4  # distance of splats from the origin, in sizes of all: steps of 1/1000 are those of their widths
FLAT = 0.1  # thickness of a splat along the normal, of the width
OPACITIES = (0.01, 0.99)  # of splats, whose logarithms of odds are finite


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points in the model's frame, or the files'."""

    positions: np.ndarray  # [P, 3] float64
    normals: np.ndarray  # [P, 3] float32, unit vectors towards the cameras
    colors: np.ndarray  # [P, 3] float32 in [0, 1], sRGB
    opacity: np.ndarray  # [P] float32
    counts: np.ndarray  # [P] float32, pixels that each is the mean of

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: np.ndarray) -> PointCloud:
        return PointCloud(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def in_files(self, transform: SceneTransform | None) -> PointCloud:
        if transform is None:
            return self
        normals = transform.directions_to_input(self.normals.astype(np.float64)).astype(np.float32)
        return PointCloud(transform.to_input(self.positions), normals, self.colors, self.opacity, self.counts)

    def ply(self) -> bytes:
        colors = (self.colors * 255 + 0.5).clip(0, 255).astype(np.uint8)
        return ply_bytes(oriented_columns(self.positions, self.normals, colors))


def joined(clouds: list[PointCloud]) -> PointCloud:
    return PointCloud(*(np.concatenate([getattr(c, name) for c in clouds]) for name in PointCloud.__dataclass_fields__))


def gather(views: Views, box: np.ndarray, crop: Crop | None, count: int) -> PointCloud:
    """About `count` points in a box [2, 3] of the model's frame and in the crop, at most."""
    others, clouds = neighbours(views), []
    for number in tqdm(range(len(views)), desc="points", unit="view"):
        cloud = points_of_view(views[number], [views[other] for other in others[number]])
        inside = ((cloud.positions >= box[0]) & (cloud.positions <= box[1])).all(axis=1)
        if crop is not None:
            inside &= crop.inside(torch.from_numpy(cloud.positions)).numpy()
        clouds.append(cloud[inside])
        if sum(map(len, clouds)) > SPARE * count:
            clouds = [thinned(joined(clouds), 2 * count)]
    cloud = joined(clouds)
    if not len(cloud):
        raise EmptyError(
            f"no points were found: no pixel of the training views has an opacity above {MIN_OPACITY} and a depth that "
            f"other views agree with; train longer{', or widen the crop' * (crop is not None)}"
        )
    return thinned(cloud, count)


def neighbours(views: Views) -> list[list[int]]:
    """For each view, the numbers of those that stand near and look alike."""
    positions = torch.stack([camera.positions[0] for camera in views.cameras]).cpu()
    looks = torch.stack([-camera.camera_to_world[0, :, 2] for camera in views.cameras]).cpu()
    apart = torch.cdist(positions, positions)
    score = apart / apart.mean().clamp(min=1e-12) + (1 - looks @ looks.T)
    score.fill_diagonal_(torch.inf)
    return score.argsort(dim=1)[:, : min(OTHERS, len(views) - 1)].tolist()


@torch.no_grad()
def points_of_view(view: View, others: list[View]) -> PointCloud:
    """The points of one view that its neighbouring pixels, and most of the others that could see them, agree with."""
    height, width = view.depth.shape
    rays = view.camera.image_rays(0)
    depth = view.depth.flatten()
    positions = (rays.origins + rays.directions * depth[:, None]).view(height, width, 3)
    smooth = agrees_with_neighbours(view.depth)
    good = (smooth & (view.opacity > MIN_OPACITY)).flatten()
    if view.known is not None:
        good &= view.known.flatten()
    normals = normals_of(positions, smooth, view.camera.positions[0]).flatten(0, 1)
    good &= normals.abs().sum(-1) > 0
    rows = good.nonzero()[:, 0]
    points = positions.flatten(0, 1)[rows]
    rows = rows[agrees_with_views(points, others)]
    values = (positions.flatten(0, 1), normals, view.rgb.flatten(0, 1).float() / 255, view.opacity.flatten())
    position, normal, color, opacity = (value[rows].cpu().numpy() for value in values)
    return PointCloud(position.astype(np.float64), normal, color, opacity, np.ones(len(rows), dtype=np.float32))


def agrees_with_neighbours(depth: Tensor) -> Tensor:
    """Whether the four neighbours of a pixel, all of which must be there, have about its depth, [H, W] bool."""
    around = F.pad(depth, (1, 1, 1, 1))
    shifted = torch.stack([around[1:-1, :-2], around[1:-1, 2:], around[:-2, 1:-1], around[2:, 1:-1]])
    return (depth > 0) & ((shifted - depth).abs() < AGREE * depth).all(0)


def normals_of(positions: Tensor, smooth: Tensor, eye: Tensor) -> Tensor:
    """Unit normals [H, W, 3] of a depth image's points, towards the camera, averaged over pixels; 0: not known."""
    across = F.pad(positions[:, 2:] - positions[:, :-2], (0, 0, 1, 1))
    down = F.pad(positions[2:] - positions[:-2], (0, 0, 0, 0, 1, 1))
    normal = torch.linalg.cross(down, across) * smooth[..., None]  # larger where a pixel sees more
    mean = F.avg_pool2d(normal.permute(2, 0, 1)[None], 3, stride=1, padding=1)[0].permute(1, 2, 0)
    mean = F.normalize(mean, dim=-1) * smooth[..., None]
    faces = ((eye - positions) * mean).sum(-1, keepdim=True)
    return torch.where(faces < 0, -mean, mean)


def agrees_with_views(points: Tensor, others: list[View]) -> Tensor:
    """Whether points [P, 3] lie at the depth of more views than see through them, and of one at least, if any are."""
    agree, deny = (torch.zeros(len(points), dtype=torch.int64, device=points.device) for _ in range(2))
    for view in others:
        seen = view.see(points)
        depth, opacity = view.depth_at(seen)
        known = seen.inside & ((depth > 0) | (opacity < 0.5))
        ahead = torch.where(depth > 0, depth / seen.distance - 1, torch.inf)  # above 0: the view sees through the point
        agree += known & (ahead.abs() < AGREE)
        deny += known & (ahead >= AGREE)
    return (agree > deny) | torch.tensor(not others, device=points.device)


def thinned(cloud: PointCloud, count: int) -> PointCloud:
    """At most `count` points: the means of those in the same cell of the finest grid that leaves so many."""
    if len(cloud) <= count:
        return cloud
    low = cloud.positions.min(axis=0)
    size = float(np.ptp(cloud.positions, axis=0).max()) or 1.0
    finest, coarsest = size / 2**20, size  # a cell's size: too many points, few enough
    cells = np.zeros(len(cloud), dtype=np.int64)
    while coarsest / finest > 1.02 and cells.max() + 1 <= 0.97 * count:
        middle = (finest * coarsest) ** 0.5
        x, y, z = np.floor((cloud.positions - low) / middle).astype(np.int64).T
        found = np.unique((x << 42) + (y << 21) + z, return_inverse=True)[1]
        if found.max() + 1 > count:
            finest = middle
        else:
            coarsest, cells = middle, found
    counts = np.bincount(cells, cloud.counts)
    values = np.column_stack([cloud.positions, cloud.normals, cloud.colors, cloud.opacity]).T  # [10, P]
    means = np.stack([np.bincount(cells, cloud.counts * column) / counts for column in values], axis=1)
    positions, normals, colors, opacity = np.split(means, (3, 6, 9), axis=1)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True).clip(1e-12)
    return PointCloud(positions, *(x.astype(np.float32) for x in (normals, colors, opacity[:, 0], counts)))


def splat_bytes(cloud: PointCloud, sh_degree: int) -> bytes:
    """The content of a PLY file; colors do not depend on the direction, higher harmonics up to a degree are 0."""
    if len(cloud) <= NEIGHBOURS:
        raise UserError(f"splats need more than {NEIGHBOURS} points to know their sizes, there are {len(cloud)}")
    check_single(cloud.positions)
    n_rest = 3 * ((sh_degree + 1) ** 2 - 1)
    zeros = np.zeros(len(cloud), dtype="<f4")
    opacity = cloud.opacity.astype(np.float64).clip(*OPACITIES)
    return ply_bytes(
        {
            **columns("x y z", cloud.positions, "<f4"),
            **columns("nx ny nz", cloud.normals, "<f4"),
            **columns("f_dc_0 f_dc_1 f_dc_2", (cloud.colors - 0.5) / SH_0, "<f4"),
            **{f"f_rest_{index}": zeros for index in range(n_rest)},
            "opacity": np.log(opacity / (1 - opacity)).astype("<f4"),
            **columns("scale_0 scale_1 scale_2", np.log(scales(cloud.positions)), "<f4"),
            **columns("rot_0 rot_1 rot_2 rot_3", rotations(cloud.normals), "<f4"),
        }
    )


def check_single(positions: np.ndarray) -> None:
    if needs_double(positions, SPLATS_WITHIN):
        raise UserError(
            "splats hold positions in float32, which is too coarse so far from the origin of the scene's files; export "
            "them with --frame model"
        )


def scales(positions: np.ndarray) -> np.ndarray:
    """Standard deviations [P, 3]: half the distance to the neighbours, along the normal a tenth of that."""
    tree = optional("scipy.spatial", "splats").cKDTree(positions)
    distance = tree.query(positions, NEIGHBOURS + 1)[0][:, 1:].mean(axis=1) / 2
    distance = distance.clip(max(float(np.median(distance)) * 1e-3, 1e-12))
    return distance[:, None] * [1.0, 1.0, FLAT]


def rotations(normals: np.ndarray) -> np.ndarray:
    """Unit quaternions w x y z [P, 4] that turn z to the normals [P, 3]."""
    x, y, z = normals.astype(np.float64).T
    quaternion = np.stack([1 + z, -y, x, np.zeros_like(z)], axis=1)  # half way between z and the normal
    quaternion[z < -1 + 1e-9] = [0, 1, 0, 0]
    return quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
