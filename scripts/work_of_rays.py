# SPDX-License-Identifier: Apache-2.0
"""Work of ops on rays and their samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit import ops
from nerfkit.contraction import exponential_ladder
from nerfkit.ops.packed import offsets_from_counts, ray_indices
from scripts.work import Inputs, Work, rand, size_of, under, with_gradient

COMPOSITE = ("density", "rgb", "t_starts", "t_ends", "ray_offsets", "background")


def composite_work(device: str) -> Iterator[Work]:
    rays = 40000
    counts = (torch.distributions.Exponential(1 / 6.0).sample((rays,)) + 0.5).clamp(0, 60).long().to(device)
    offsets = offsets_from_counts(counts)
    n = int(offsets[-1])
    t = torch.rand(n, device=device).sort().values
    x = with_gradient(
        density=torch.rand(n, device=device) * 5,
        rgb=torch.rand(n, 3, device=device),
        background=torch.rand(3, device=device),
    ) | {"t_starts": t, "t_ends": t + 0.01, "ray_offsets": offsets}
    call = lambda x: ops.composite(*(x[name] for name in COMPOSITE))[0]  # noqa: E731
    moved = size_of(x["density"], x["rgb"], t, t, offsets) + rays * 5 * 4 + n * 4
    yield Work(
        "composite",
        f"{n} samples of {rays} rays",
        x,
        call,
        under("torch", call),
        "definition",
        moved,
        moved + n * 16,
        ("density", "rgb"),
        ("forward", "both"),
    )


def distortion_work(device: str) -> Iterator[Work]:
    rays = 40000
    counts = (torch.distributions.Exponential(1 / 6.0).sample((rays,)) + 0.5).clamp(0, 60).long().to(device)
    offsets = offsets_from_counts(counts)
    n = int(offsets[-1])
    index = ray_indices(offsets, n)
    t = (torch.arange(n, device=device) - offsets[index]) / 64 + 0.05
    x = with_gradient(weights=torch.rand(n, device=device)) | {"t_starts": t, "t_ends": t + 1 / 64, "offsets": offsets}
    call = lambda x: ops.distortion(*x.values(), near=0.05, far=100.0, linear=1.0)  # noqa: E731
    moved = size_of(x["weights"], t, t, offsets) + rays * 4
    yield Work(
        "distortion",
        f"{n} samples of {rays} rays",
        x,
        call,
        under("torch", call),
        "definition",
        moved,
        moved + n * 4,
        ("weights",),
        ("forward", "both"),
    )


def march_work(device: str) -> Iterator[Work]:
    rays = 50000
    side = torch.linspace(-1, 1, 128, device=device)
    radius = torch.stack(torch.meshgrid(side, side, side, indexing="ij")).norm(dim=0)
    occupancy = (radius - 0.6).abs() < 0.03  # a thin shell
    box = torch.tensor([[-1.0, -1, -1], [1, 1, 1]], device=device)
    eye = F.normalize(torch.randn(rays, 3, device=device), dim=-1) * 3
    directions = F.normalize(torch.randn(rays, 3, device=device) * 0.5 - eye, dim=-1)
    step = 3**0.5 * 2 / 1024
    x = {"origins": eye, "directions": directions, "occupancy": occupancy, "box": box}
    for capacity in (None, 2**21):  # training gives one, so that nothing waits for the number of samples
        call = lambda x, capacity=capacity: ops.march(*x.values(), step, capacity=capacity)[0]  # noqa: E731
        yield Work(
            "march",
            f"{rays} rays, 128^3, step of 1/1024 of the diagonal{', padded' if capacity else ''}",
            x,
            call,
            under("torch", call),
            "definition",
            parts=("forward", "wall forward"),
            check=False,  # a middle within rounding of a border may fall on either side; the tests compare in float64
        )
    yield from march_ladder_work(device)


def march_ladder_work(device: str, rays: int = 20000) -> Iterator[Work]:
    """Unbounded space: rays from inside the box through 256^3 contracted cells."""
    side = torch.linspace(-2, 2, 256, device=device)
    radius = torch.stack(torch.meshgrid(side, side, side, indexing="ij")).norm(dim=0)
    occupancy = (radius - 1.3).abs() < 0.045  # a shell of 3 % of the cells, outside the box at its faces
    x = {
        "origins": torch.rand(rays, 3, device=device) - 0.5,
        "directions": F.normalize(torch.randn(rays, 3, device=device), dim=-1),
        "occupancy": occupancy,
        "box": torch.tensor([[-1.0, -1, -1], [1, 1, 1]], device=device),
        "ladder": exponential_ladder(0.05, 500.0, step=2 * 3**0.5 / 1024, cone=1 / 200).float().to(device),
    }

    def call(x: Inputs) -> Tensor:
        return ops.march(*list(x.values())[:4], None, capacity=2**20, ladder=x["ladder"])[0]

    name = f"{rays} rays, 256^3, a ladder of {len(x['ladder'])}, padded"
    yield Work("march", name, x, call, under("torch", call), "definition", parts=("forward", "wall forward"))


def marched_rays(device: str, rays: int = 50000) -> tuple[Tensor, Tensor]:
    """Distances [N] and ray_offsets [R+1] of rays with about ten samples each, some with none."""
    counts = (torch.distributions.Exponential(1 / 10.0).sample((rays,)) + 0.5).clamp(0, 100).long().to(device)
    offsets = offsets_from_counts(counts)
    return torch.arange(int(offsets[-1]), device=device) % 256 / 64, offsets


def count_visible_work(device: str) -> Iterator[Work]:
    t, offsets = marched_rays(device)
    # Sums of these thicknesses are exact, so both sides count the same.
    density = torch.randint(0, 64, t.shape, device=device).float() / 2
    x = {"density": density, "t_starts": t, "t_ends": t + 1 / 64, "ray_offsets": offsets}
    call = lambda x: ops.count_visible(*x.values(), 1e-4)  # noqa: E731
    rays = offsets.shape[0] - 1
    moved = int(call(x).sum()) * 12 + size_of(offsets) + rays * 8  # no sample behind the last lit one has to be read
    yield Work(
        "count_visible",
        f"{len(t)} samples of {rays} rays",
        x,
        call,
        under("torch", call),
        "definition",
        moved,
        parts=("forward", "wall forward"),
    )


def compact_samples_work(device: str, n_rows: int = 2**19) -> Iterator[Work]:
    t, source_offsets = marched_rays(device)
    counts = source_offsets.diff()
    offsets = offsets_from_counts(counts - counts // 8)
    rays = len(counts)
    x = {name: rand(rays, 3, device=device) for name in ("origins", "directions")}
    read = size_of(*x.values(), source_offsets, offsets) + int(offsets[-1]) * 8
    x |= {"t_starts": t, "t_ends": t + 1 / 64, "source_offsets": source_offsets, "ray_offsets": offsets}
    call = lambda x: ops.compact_samples(*x.values(), n_rows)  # noqa: E731
    yield Work(
        "compact_samples",
        f"{offsets[-1]} of {len(t)} samples of {rays} rays, {n_rows} rows",
        x,
        call,
        under("torch", call),
        "definition",
        read + n_rows * 28,
        parts=("forward", "wall forward"),
    )


def spherical_harmonics_work(device: str) -> Iterator[Work]:
    _, offsets = marched_rays(device, rays=25000)
    rays, n = offsets.shape[0] - 1, int(offsets[-1])
    x = {"directions": F.normalize(rand(rays, 3, device=device), dim=-1), "ray_index": ray_indices(offsets, n)}
    for dtype in (torch.float16, torch.float32) if device == "cuda" else (torch.float32,):
        call = lambda x, dtype=dtype: ops.spherical_harmonics(*x.values(), dtype)  # noqa: E731
        yield Work(
            "spherical_harmonics",
            f"{n} samples of {rays} rays, {str(dtype)[6:]}",
            x,
            call,
            under("torch", call),
            "definition",
            size_of(*x.values()) + n * 16 * dtype.itemsize,
            parts=("forward", "wall forward"),
        )
