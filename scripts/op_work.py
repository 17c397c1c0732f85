# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench_ops.py times: each op at its sizes, and the classic exercises at theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit import ops
from nerfkit.contraction import exponential_edges
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.mlp import n_parameters
from nerfkit.ops.packed import offsets_from_counts, ray_indices
from scripts.work import Inputs, Work, dtypes, name_of, rand, rays_of, size_of, with_gradient
from scripts.work_of_layers import (
    depthwise_conv1d_work,
    depthwise_conv2d_work,
    grid_encode_work,
    lltm_cell_work,
    lltm_work,
    mlp_work,
    trilinear_work,
)

COMPOSITE = ("density", "rgb", "t_starts", "t_ends", "ray_offsets", "background")
CALLED = ("forward", "wall forward")  # parts of ops without a gradient


def composite_work(device: str, rays: int = 40000) -> Iterator[Work]:
    offsets = rays_of(device, rays, 6.0, 0.5, 60)
    n = int(offsets[-1])
    t = torch.rand(n, device=device).sort().values
    density, rgb, background = (torch.rand(*shape, device=device) for shape in ((n,), (n, 3), (3,)))
    x = with_gradient(density=density * 5, rgb=rgb, background=background)
    x |= {"t_starts": t, "t_ends": t + 0.01, "ray_offsets": offsets}
    moved = size_of(x["density"], x["rgb"], t, t, offsets) + rays * 5 * 4 + n * 4
    yield Work(
        "composite",
        f"{n} samples of {rays} rays",
        x,
        lambda x: ops.composite(*(x[name] for name in COMPOSITE))[0],
        forward_bytes=moved,
        backward_bytes=moved + n * 16,
        wrt=("density", "rgb"),
        parts=("forward", "both"),
    )


def distortion_work(device: str, rays: int = 40000) -> Iterator[Work]:
    offsets = rays_of(device, rays, 6.0, 0.5, 60)
    n = int(offsets[-1])
    t = (torch.arange(n, device=device) - offsets[ray_indices(offsets, n)]) / 64 + 0.05
    x = with_gradient(weights=torch.rand(n, device=device)) | {"t_starts": t, "t_ends": t + 1 / 64, "offsets": offsets}
    moved = size_of(x["weights"], t, t, offsets) + rays * 4
    yield Work(
        "distortion",
        f"{n} samples of {rays} rays",
        x,
        lambda x: ops.distortion(*x.values(), near=0.05, far=100.0, linear=1.0),
        forward_bytes=moved,
        backward_bytes=moved + n * 4,
        wrt=("weights",),
        parts=("forward", "both"),
    )


def shell(cells: int, half: float, radius: float, thickness: float, device: str) -> Tensor:
    """Occupancy [cells, cells, cells] of a thin sphere in the cube from -half to half."""
    side = torch.linspace(-half, half, cells, device=device)
    return (torch.stack(torch.meshgrid(side, side, side, indexing="ij")).norm(dim=0) - radius).abs() < thickness


def march_work(device: str, rays: int = 50000) -> Iterator[Work]:
    box = torch.tensor([[-1.0, -1, -1], [1, 1, 1]], device=device)
    eye = F.normalize(torch.randn(rays, 3, device=device), dim=-1) * 3
    directions = F.normalize(torch.randn(rays, 3, device=device) * 0.5 - eye, dim=-1)
    occupancy, step = shell(128, 1, 0.6, 0.03, device), 3**0.5 * 2 / 1024
    x = {"origins": eye, "directions": directions, "occupancy": occupancy, "box": box}
    for capacity in (None, 2**21):  # training gives one, so that nothing waits for the number of samples
        yield Work(
            "march",
            f"{rays} rays, 128^3, step of 1/1024 of the diagonal{', padded' if capacity else ''}",
            x,
            lambda x, capacity=capacity: ops.march(*x.values(), step, capacity=capacity)[0],
            parts=CALLED,
            check=False,  # a middle within rounding of a border may fall on either side; the tests compare in float64
        )
    yield march_along_edges(device, box)


def march_along_edges(device: str, box: Tensor, rays: int = 20000) -> Work:
    """Unbounded space: rays from inside the box through 256^3 contracted cells."""
    x = {
        "origins": torch.rand(rays, 3, device=device) - 0.5,
        "directions": F.normalize(torch.randn(rays, 3, device=device), dim=-1),
        "occupancy": shell(256, 2, 1.3, 0.045, device),  # 3 % of the cells, outside the box at its faces
        "box": box,
        "t_edges": exponential_edges(0.05, 500.0, step_size=2 * 3**0.5 / 1024, cone_angle=1 / 200).float().to(device),
    }

    def call(x: Inputs) -> Tensor:
        return ops.march(*list(x.values())[:4], None, capacity=2**20, t_edges=x["t_edges"])[0]

    return Work("march", f"{rays} rays, 256^3, edges of {len(x['t_edges'])}, padded", x, call, parts=CALLED)


def marched_rays(device: str, rays: int = 50000) -> tuple[Tensor, Tensor]:
    """Distances [N] and ray_offsets [R+1] of rays with about ten samples each, some with none."""
    offsets = rays_of(device, rays, 10.0, 0.5, 100)
    return torch.arange(int(offsets[-1]), device=device) % 256 / 64, offsets


def count_visible_work(device: str) -> Iterator[Work]:
    t, offsets = marched_rays(device)
    # Sums of these thicknesses are exact, so both sides count the same.
    density = torch.randint(0, 64, t.shape, device=device).float() / 2
    x = {"density": density, "t_starts": t, "t_ends": t + 1 / 64, "ray_offsets": offsets}
    call = lambda x: ops.count_visible(*x.values(), 1e-4)  # noqa: E731
    rays = offsets.shape[0] - 1
    moved = int(call(x).sum()) * 12 + size_of(offsets) + rays * 8  # no sample behind the last lit one has to be read
    yield Work("count_visible", f"{len(t)} samples of {rays} rays", x, call, forward_bytes=moved, parts=CALLED)


def compact_samples_work(device: str, n_rows: int = 2**19) -> Iterator[Work]:
    t, source_offsets = marched_rays(device)
    counts = source_offsets.diff()
    offsets = offsets_from_counts(counts - counts // 8)
    rays = len(counts)
    x = {name: rand(rays, 3, device=device) for name in ("origins", "directions")}
    read = size_of(*x.values(), source_offsets, offsets) + int(offsets[-1]) * 8
    x |= {"t_starts": t, "t_ends": t + 1 / 64, "source_offsets": source_offsets, "ray_offsets": offsets}
    case = f"{offsets[-1]} of {len(t)} samples of {rays} rays, {n_rows} rows"
    call = lambda x: ops.compact_samples(*x.values(), n_rows)  # noqa: E731
    yield Work("compact_samples", case, x, call, forward_bytes=read + n_rows * 28, parts=CALLED)


def spherical_harmonics_work(device: str) -> Iterator[Work]:
    _, offsets = marched_rays(device, rays=25000)
    rays, n = offsets.shape[0] - 1, int(offsets[-1])
    x = {"directions": F.normalize(rand(rays, 3, device=device), dim=-1), "ray_index": ray_indices(offsets, n)}
    for dtype in dtypes(device):
        case, moved = f"{n} samples of {rays} rays, {name_of(dtype)}", size_of(*x.values()) + n * 16 * dtype.itemsize
        call = lambda x, dtype=dtype: ops.spherical_harmonics(*x.values(), dtype)  # noqa: E731
        yield Work("spherical_harmonics", case, x, call, forward_bytes=moved, parts=CALLED)


def render_rays_work(device: str) -> Iterator[Work]:
    """A frame of a shell of fog, of the default model for an object; beside the chain of fused ops."""
    rays, levels, channels, hidden = (640000 if device == "cuda" else 4000), 16, 32, 64
    resolutions = [round(16 * 128 ** (level / 15)) for level in range(levels)]
    rows = sum(level_entries(n, 2**19) for n in resolutions)
    widths = (channels, hidden, 16), (32 + channels + 16, hidden, hidden, 3)
    eye = F.normalize(torch.randn(rays, 3, device=device), dim=-1) * 3
    x = {
        "origins": eye, "directions": F.normalize(torch.randn(rays, 3, device=device) * 0.5 - eye, dim=-1),
        "occupancy": shell(128, 1, 0.6, 0.03, device), "box": torch.tensor([[-1.0] * 3, [1.0] * 3], device=device),
        "background": torch.ones(3, device=device), "threshold": torch.tensor(0.003, device=device),
    }  # fmt: skip
    sizes = {
        "table": (rows, 2), "density_net": (n_parameters(widths[0]),), "color_net": (n_parameters(widths[1]),),
        "conv_weight": (channels, 3), "conv_bias": (channels,), "lltm_weight": (48, 48), "lltm_bias": (48,),
    }  # fmt: skip
    dtype = torch.float16 if device == "cuda" else torch.float32
    x |= {name: rand(*size, device=device).mul(0.1).to(dtype) for name, size in sizes.items()}
    numbers = {"resolutions": resolutions, "max_entries": 2**19, "hidden": hidden, "step": 0.005, "density_bias": 3.0}

    def chain(x: Inputs) -> Tensor:
        with ops.backend(overrides={"render_rays": "torch"}):
            return ops.render_rays(**x, **numbers)[0]

    call = lambda x: ops.render_rays(**x, **numbers)[0]  # noqa: E731
    case, moved = f"{rays} rays, {name_of(dtype)}", rays * 48 + size_of(x["table"])
    yield Work("render_rays", case, x, call, chain, "chain of ops", moved, parts=CALLED, check=False)


def lazy_adam_work(device: str, share: float = 0.15) -> Iterator[Work]:
    """A table of which blocks of four rows, a sector of the cache, have a gradient or not."""
    rows = 11_000_000 if device == "cuda" else 400_000
    grad = rand(rows // 4, 4, 2, device=device) * (torch.rand(rows // 4, 1, 1, device=device) < share)
    state = [torch.zeros_like(grad) for _ in range(3)]
    number = lambda value: torch.tensor(value, device=device)  # noqa: E731
    step, lr = number(1.0), number(0.01)
    other = torch.zeros_like(grad)
    other.grad = grad
    adam = torch.optim.Adam([other], lr=lr, betas=(0.9, 0.99), eps=1e-15, fused=True, capturable=device == "cuda")

    def baseline(_: Inputs) -> Tensor:
        adam.step()
        return other

    yield Work(
        "lazy_adam",
        f"{rows} rows of 2, {share:.0%} with a gradient, float32",
        {},
        lambda _: ops.lazy_adam(state[0], grad, *state[1:], step, lr)[0],
        baseline,
        "torch.optim.Adam, fused",
        size_of(grad) + int(grad.count_nonzero()) * 4 * 6,
        parts=("forward",),  # in place: only the first step is the same on both sides
    )


WORK: dict[str, Callable[[str], Iterator[Work]]] = {
    "trilinear": trilinear_work,
    "grid_encode": grid_encode_work,
    "depthwise_conv2d": depthwise_conv2d_work,
    "depthwise_conv1d": depthwise_conv1d_work,
    "lltm_cell": lltm_cell_work,
    "lltm": lltm_work,
    "mlp": mlp_work,
    "composite": composite_work,
    "distortion": distortion_work,
    "march": march_work,
    "count_visible": count_visible_work,
    "compact_samples": compact_samples_work,
    "spherical_harmonics": spherical_harmonics_work,
    "render_rays": render_rays_work,
    "lazy_adam": lazy_adam_work,
}


def tutorials(device: str) -> Iterator[Work]:
    """The classic extension exercises at their own sizes."""
    yield from lltm_cell_work(device)
    for shape, window in (
        ((4, 3, 7, 7), {"padding": 1}),
        ((4, 3, 7, 7), {"stride": 2, "padding": 0}),
        ((8, 64, 112, 112), {"padding": 1}),
    ):
        for dtype in dtypes(device):
            shapes = {"x": shape, "weight": (shape[1], 1, 3, 3), "bias": (shape[1],)}
            x = with_gradient(**{key: rand(*size, dtype=dtype, device=device) for key, size in shapes.items()})
            call = lambda x, w=window: ops.depthwise_conv2d(*x.values(), **w)  # noqa: E731
            name = f"{shape} k3 {window} {name_of(dtype)}".replace("'", "")
            yield Work("depthwise_conv2d", name, x, call, wrt=tuple(x))
    n, f = (65536, 256) if device == "cuda" else (8192, 256)
    x = with_gradient(feats=rand(n, 8, f, device=device), points=torch.rand(n, 3, device=device) * 2 - 1)
    call = lambda x: ops.trilinear(x["feats"], x["points"])  # noqa: E731
    yield Work("trilinear", f"({n},8,{f}) float32", x, call, wrt=tuple(x))
