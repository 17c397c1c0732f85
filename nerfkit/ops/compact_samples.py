# SPDX-License-Identifier: Apache-2.0
"""Compaction: the first samples of each ray, repacked, with their positions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import INT64, POSITION_FLOATS, can_be_read, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.packed import check_rises, ray_indices


def compact_samples(
    origins: Tensor, directions: Tensor, t_starts: Tensor, t_ends: Tensor, source_offsets: Tensor, ray_offsets: Tensor,
    n_rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    r"""The first `ray_offsets.diff()` samples of each ray, copied from the rows of `source_offsets`.

    With a the `source_offsets` and b the `ray_offsets`, for every ray r and :math:`0 \le k < b_{r+1} - b_r`, row
    :math:`b_r + k` of the result is

    .. math::
        t = t_{a_r + k}, \quad position = origin_r + direction_r \tfrac{t^{start} + t^{end}}{2}, \quad ray\_index = r

    Args:
        origins, directions: [R, 3], scene units.
        t_starts, t_ends: [M] ends of each sample's interval, distance along the ray in scene units.
        source_offsets: [R+1] int64 CSR row pointers of the rays in t_starts and t_ends, which may have padding rows.
        ray_offsets: [R+1] int64 CSR row pointers of the rays in the result; no ray has more samples than in the source.
        n_rows: rows of the result, at least `ray_offsets[-1]`, which is not read back from a GPU.

    Returns:
        positions [n_rows, 3], t_starts [n_rows], t_ends [n_rows] and ray_index [n_rows] int64. In padding
        rows positions and distances are 0 and the ray is the last one.

    dtype: float32 or float64, one for all. Nothing is differentiable.
    Raises ValueError for a shape, device or n_rows, TypeError for a dtype that does not fit, RuntimeError for row
    pointers that do not fit.
    Source: a ray's points o + t d of NeRF (arXiv:2003.08934), section 4.

    >>> t, eye = torch.tensor([1.0, 2, 3, 5]), torch.eye(3)[:2]
    >>> positions, t_starts, t_ends, ray_index = compact_samples(
    ...     torch.zeros(2, 3), eye, t, t + 1, torch.tensor([0, 3, 4]), torch.tensor([0, 2, 3]), n_rows=4)
    >>> positions.tolist()
    [[1.5, 0.0, 0.0], [2.5, 0.0, 0.0], [0.0, 5.5, 0.0], [0.0, 0.0, 0.0]]
    >>> t_starts, t_ends, ray_index
    (tensor([1., 2., 5., 0.]), tensor([2., 3., 6., 0.]), tensor([0, 0, 1, 1]))
    """
    origins, directions, t_starts, t_ends = cast("compact_samples", origins, directions, t_starts, t_ends)
    check(
        "compact_samples", POSITION_FLOATS, origins=(origins, ("R", 3)), directions=(directions, ("R", 3)),
        t_starts=(t_starts, ("M",)), t_ends=(t_ends, ("M",)), source_offsets=(source_offsets, ("R+1",), INT64),
        ray_offsets=(ray_offsets, ("R+1",), INT64),
    )  # fmt: skip
    if n_rows < 0:
        raise ValueError(f"compact_samples: n_rows must not be negative, got {n_rows}")
    with torch.no_grad():
        run = implementation("compact_samples", origins)
        return run(origins, directions, t_starts, t_ends, source_offsets, ray_offsets, n_rows)


@implements("compact_samples", "torch")
def _compact_samples_torch(origins, directions, t_starts, t_ends, source_offsets, ray_offsets, n_rows):
    n_rays, n_source = origins.shape[0], t_starts.shape[0]
    check_rises("compact_samples", source_offsets, n_source, "source_offsets", padded=True)
    check_rises("compact_samples", ray_offsets, n_rows, padded=True)
    if can_be_read(ray_offsets) and (ray_offsets.diff() > source_offsets.diff()).any():
        wanted, stored = ray_offsets.diff(), source_offsets.diff()  # [R] each
        ray = int((wanted > stored).nonzero()[0])
        raise RuntimeError(
            f"compact_samples: ray_offsets give a ray more samples than source_offsets: ray {ray} has {stored[ray]}, "
            f"{wanted[ray]} are requested"
        )
    # Padding rows are those of one more ray, of zeros, whose samples read a zero appended to the source.
    ray_index = ray_indices(F.pad(ray_offsets, (0, 1), value=n_rows), n_rows)  # [n_rows], R for padding
    row = torch.arange(n_rows, device=origins.device) + (source_offsets - ray_offsets)[ray_index]
    row = torch.where(ray_index < n_rays, row, n_source)
    t_starts, t_ends = (F.pad(t, (0, 1))[row] for t in (t_starts, t_ends))
    origins, directions = (F.pad(x, (0, 0, 0, 1))[ray_index] for x in (origins, directions))  # [n_rows, 3]
    positions = origins + directions * ((t_starts + t_ends) / 2)[:, None]
    return positions, t_starts, t_ends, ray_index.clamp(max=max(n_rays - 1, 0))


implements("compact_samples", "cpp", "cuda")(lambda *arguments: torch.ops.nerfkit._compact_samples(*arguments))


@native.fake("_compact_samples")
def _(origins, directions, t_starts, t_ends, source_offsets, ray_offsets, n_rows):
    rows = origins.new_empty(n_rows)
    return origins.new_empty(n_rows, 3), rows, torch.empty_like(rows), rows.new_empty(n_rows, dtype=torch.int64)
