# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench_ops.py times: each op at its sizes, with its baseline and the bytes that must move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit import ops
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.mlp import n_parameters
from nerfkit.ops.packed import dense_offsets, offsets_from_counts, ray_indices


@dataclass
class Work:
    """One op at one size. `fused` and `baseline` take no argument; `parts` are what is timed."""

    op: str
    case: str
    inputs: dict[str, Tensor]
    fused: Callable[[], Tensor]
    baseline: Callable[[], Tensor]
    baseline_name: str
    forward_bytes: int = 0
    backward_bytes: int = 0
    wrt: Sequence[str] = ()  # inputs to differentiate with respect to
    parts: tuple[str, ...] = ("forward", "backward")
    baseline_inputs: dict[str, Tensor] = field(default_factory=dict)  # where they differ
    check: bool = True


def rand(*shape: int, dtype: torch.dtype = torch.float32, device: str) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def size_of(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def with_gradient(**tensors: Tensor) -> dict[str, Tensor]:
    return {name: x.requires_grad_() for name, x in tensors.items()}


def under(backend: str, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with ops.backend(backend):
            return call()

    return run


def trilinear_work(device: str, n: int = 65536, f: int = 256) -> Iterator[Work]:
    x = with_gradient(feats=rand(n, 8, f, device=device), points=torch.rand(n, 3, device=device) * 2 - 1)
    moved = size_of(x["feats"], x["points"]) + n * f * 4
    for wrt, more in (("feats",), 0), (("feats", "points"), size_of(x["feats"])):
        points = x["points"] if "points" in wrt else x["points"].detach()
        call = lambda p=points: ops.trilinear(x["feats"], p)  # noqa: E731
        yield Work(
            "trilinear",
            f"({n},8,{f}) float32, to {' and '.join(wrt)}",
            x,
            call,
            under("torch", call),
            "definition",
            moved,
            moved + more,
            wrt,
            ("forward", "backward") if len(wrt) == 1 else ("backward",),
        )


def points_along_rays(n: int, device: str, samples: int = 64) -> Tensor:
    start = torch.rand(n // samples, 1, 3, device=device)
    direction = F.normalize(torch.randn(n // samples, 1, 3, device=device), dim=-1)
    t = torch.arange(samples, device=device)[None, :, None] / 512
    return (start + direction * t).flatten(0, 1).frac().abs()


def grid_encode_work(device: str) -> Iterator[Work]:
    n = 2**20 if device == "cuda" else 2**15
    growth = (4096 / 16) ** (1 / 15)
    resolutions = [round(16 * growth**level) for level in range(16)]
    max_entries = 2**19
    rows = sum(level_entries(r, max_entries) for r in resolutions)
    for dtype in (torch.float16, torch.float32) if device == "cuda" else (torch.float32,):
        table = rand(rows, 2, dtype=dtype, device=device).requires_grad_()
        for name, points in ("random", torch.rand(n, 3, device=device)), ("along rays", points_along_rays(n, device)):
            call = lambda p=points, t=table: ops.grid_encode(p, t, resolutions, max_entries)  # noqa: E731
            case = f"hash 16x2, 2^19, {str(dtype)[6:]}, {n} points {name}"
            yield Work("grid_encode", case, {"table": table}, call, under("torch", call), "definition", wrt=("table",))
            if dtype == torch.float16:
                yield repeatable_work(call, table, case)
    for f in (4, 28):
        table = rand(128**3, f, device=device).requires_grad_()
        points = torch.rand(n, 3, device=device).requires_grad_()
        volume = table.detach().t().reshape(1, f, 128, 128, 128).contiguous().requires_grad_()
        coordinates = (points.detach()[None, None, None] * 2 - 1).flip(-1).requires_grad_()
        call = lambda p=points, t=table: ops.grid_encode(p, t, [127], 2**24)  # noqa: E731
        sample = lambda v=volume, c=coordinates: F.grid_sample(v, c, align_corners=True)[0, :, 0, 0].t()  # noqa: E731
        yield Work(
            "grid_encode",
            f"dense 128^3 x {f} float32, {n} points",
            {"table": table, "points": points},
            call,
            sample,
            "F.grid_sample",
            wrt=("table", "points"),
            baseline_inputs={"table": volume, "points": coordinates},
            check=False,
        )


def repeatable_work(call: Callable[[], Tensor], table: Tensor, case: str) -> Work:
    """The table's gradient with the same bits every time, beside the usual one."""
    out = call()
    grad = torch.randn_like(out)
    usual = lambda: torch.autograd.grad(out, table, grad, retain_graph=True)[0]  # noqa: E731

    def repeatable() -> Tensor:
        torch.use_deterministic_algorithms(True)
        try:
            return usual()
        finally:
            torch.use_deterministic_algorithms(False)

    case = f"{case}, deterministic gradient"
    return Work("grid_encode", case, {"table": table}, repeatable, usual, "not so", parts=("forward",))


CONV2D = [((8, 64, 256, 256), 3), ((32, 96, 56, 56), 7), ((16, 128, 512, 512), 5)]


def depthwise_conv2d_work(device: str) -> Iterator[Work]:
    shapes = CONV2D if device == "cuda" else [((1, 64, 256, 256), 3), ((4, 96, 56, 56), 7), ((1, 128, 128, 128), 5)]
    for (b, c, h, w), k in shapes:
        for dtype in (torch.float32, torch.float16) if device == "cuda" else (torch.float32,):
            for layout in torch.contiguous_format, torch.channels_last:
                x = with_gradient(
                    x=rand(b, c, h, w, dtype=dtype, device=device).to(memory_format=layout),
                    weight=rand(c, 1, k, k, dtype=dtype, device=device),
                    bias=rand(c, dtype=dtype, device=device),
                )
                name = f"({b},{c},{h},{w}) k{k} {str(dtype)[6:]} {'NHWC' if layout == torch.channels_last else 'NCHW'}"
                call = lambda x=x, k=k: ops.depthwise_conv2d(*x.values(), padding=k // 2)  # noqa: E731
                moved = 2 * size_of(x["x"])
                yield Work(
                    "depthwise_conv2d",
                    name,
                    x,
                    call,
                    under("torch", call),
                    "F.conv2d, same layout",
                    moved,
                    moved * 3 // 2,
                    tuple(x),
                )


def depthwise_conv1d_work(device: str) -> Iterator[Work]:
    b = 65536 if device == "cuda" else 2048
    for dtype in (torch.float32, torch.float16) if device == "cuda" else (torch.float32,):
        x = with_gradient(
            x=rand(b, 32, 64, dtype=dtype, device=device),
            weight=rand(32, 3, dtype=dtype, device=device),
            bias=rand(32, dtype=dtype, device=device),
        )
        moved = 2 * size_of(x["x"])
        call = lambda x=x: ops.depthwise_conv1d(*x.values())  # noqa: E731
        yield Work(
            "depthwise_conv1d",
            f"dense ({b},32,64) k3 {str(dtype)[6:]}",
            x,
            call,
            under("torch", call),
            "F.conv1d",
            moved,
            moved * 3 // 2,
            tuple(x),
        )
        counts = torch.randint(1, 128, (b // 2,), device=device)
        offsets = offsets_from_counts(counts)
        n = int(offsets[-1])
        y = with_gradient(
            x=rand(n, 32, dtype=dtype, device=device),
            weight=rand(32, 3, dtype=dtype, device=device),
            bias=rand(32, dtype=dtype, device=device),
        )
        moved = 2 * size_of(y["x"])
        call = lambda y=y, o=offsets: ops.depthwise_conv1d(*y.values(), ray_offsets=o)  # noqa: E731
        yield Work(
            "depthwise_conv1d",
            f"packed {b // 2} rays of 1..127, C 32, k3 {str(dtype)[6:]}",
            y,
            call,
            under("torch", call),
            "definition",
            moved,
            moved * 3 // 2,
            tuple(y),
        )


def lltm_cell_work(device: str, b: int = 16, i: int = 32, h: int = 128) -> Iterator[Work]:
    x = with_gradient(
        input=rand(b, i, device=device),
        h=rand(b, h, device=device),
        c=rand(b, h, device=device),
        weight=rand(3 * h, h + i, device=device) * 0.1,
        bias=rand(3 * h, device=device),
    )
    x = {name: value.detach().requires_grad_() for name, value in x.items()}
    call = lambda: torch.cat(ops.lltm_cell(*x.values()))  # noqa: E731
    parts = ("wall forward", "wall both", "graph both") if device == "cuda" else ("wall forward", "wall both")
    yield Work("lltm_cell", f"{b}/{i}/{h} float32", x, call, under("torch", call), "eager", wrt=tuple(x), parts=parts)


def lltm_inputs(n: int, r: int, i: int, h: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    state = h**-0.5
    x = {
        "input": rand(n, i, device=device),
        "weight": (torch.rand(3 * h, h + i, device=device) * 2 - 1) * state,
        "bias": torch.zeros(3 * h, device=device),
    }
    zero = torch.zeros(r, h, device=device, dtype=dtype)
    return {name: value.to(dtype).requires_grad_() for name, value in x.items()} | {"h0": zero, "c0": zero.clone()}


def lltm_beside_definition(name: str, x: dict[str, Tensor], call: Callable[[], Tensor], moved: int = 0) -> Work:
    wrt, parts = ("input", "weight", "bias"), ("forward", "both")
    return Work("lltm", name, x, call, under("torch", call), "definition", moved, 2 * moved, wrt, parts)


def lltm_work(device: str) -> Iterator[Work]:
    rays, steps, i, h = (8192, 128, 32, 64) if device == "cuda" else (256, 64, 32, 64)
    for dtype in (torch.float16, torch.float32) if device == "cuda" else (torch.float32,):
        x = lltm_inputs(rays * steps, rays, i, h, dtype, device)
        offsets = dense_offsets(rays, steps, device)
        call = lambda x=x, o=offsets: ops.lltm(x["input"], o, x["weight"], x["bias"], x["h0"], x["c0"])[0]  # noqa: E731
        name = f"{rays} rays x {steps}, {i} -> {h}, {str(dtype)[6:]}"
        moved = size_of(x["input"]) + rays * steps * h * x["input"].element_size()
        if device == "cuda":
            lstm = torch.nn.LSTM(i, h, batch_first=True, device=device, dtype=dtype)
            sequence = x["input"].detach().view(rays, steps, i).requires_grad_()
            parameters = dict(lstm.named_parameters())
            yield Work(
                "lltm",
                name,
                x,
                call,
                lambda m=lstm, s=sequence: m(s)[0],
                "cuDNN nn.LSTM",
                moved,
                2 * moved,
                ("input", "weight", "bias"),
                ("forward", "inference", "both"),
                {"input": sequence, **parameters},
                check=False,
            )
        else:
            yield lltm_beside_definition(name, x, call, moved)
    yield lltm_along_rays(device, 40000 if device == "cuda" else 4000, 40, 16, 32)
    if device == "cuda":
        yield lltm_along_rays(device, 34000, 100, 32, 16)  # as in training


def lltm_along_rays(device: str, rays: int, longest: int, i: int, h: int) -> Work:
    """Rays of lengths that fall off exponentially."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    counts = (torch.distributions.Exponential(1 / 6.0).sample((rays,)) + 1).clamp(1, longest).long().to(device)
    offsets = offsets_from_counts(counts)
    x = lltm_inputs(int(offsets[-1]), rays, i, h, dtype, device)
    call = lambda: ops.lltm(x["input"], offsets, x["weight"], x["bias"], x["h0"], x["c0"])[0]  # noqa: E731
    name = f"{rays} rays of 1..{counts.max()} (mean {counts.float().mean():.1f}), {i} -> {h}, {str(dtype)[6:]}"
    return lltm_beside_definition(name, x, call)


def mlp_work(device: str) -> Iterator[Work]:
    n = 2**18 if device == "cuda" else 2**14
    dtype = torch.float16 if device == "cuda" else torch.float32
    for widths, inputs in ((32, 64, 16), (32,)), ((96, 64, 64, 3), (16, 16, 32, 32)):
        x = {f"input{k}": rand(n, width, dtype=dtype, device=device) for k, width in enumerate(inputs)}
        x["parameters"] = rand(n_parameters(widths), dtype=dtype, device=device) * 0.1
        x = {name: value.detach().requires_grad_() for name, value in x.items()}
        rows = [x[f"input{k}"] for k in range(len(inputs))]
        call = lambda p=x["parameters"], w=widths, r=rows: ops.mlp(p, w, *r)  # noqa: E731
        moved = size_of(*rows) + n * widths[-1] * x["parameters"].element_size()
        name = f"{n} rows, {'-'.join(map(str, widths))} {str(dtype)[6:]}"
        yield Work("mlp", name, x, call, under("torch", call), "F.linear", moved, moved + size_of(*rows), tuple(x))


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
    )
    call = lambda: ops.composite(x["density"], x["rgb"], t, t + 0.01, offsets, x["background"])[0]  # noqa: E731
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


def march_work(device: str) -> Iterator[Work]:
    rays = 50000
    side = torch.linspace(-1, 1, 128, device=device)
    radius = torch.stack(torch.meshgrid(side, side, side, indexing="ij")).norm(dim=0)
    occupancy = (radius - 0.6).abs() < 0.03  # a thin shell
    box = torch.tensor([[-1.0, -1, -1], [1, 1, 1]], device=device)
    eye = F.normalize(torch.randn(rays, 3, device=device), dim=-1) * 3
    directions = F.normalize(torch.randn(rays, 3, device=device) * 0.5 - eye, dim=-1)
    step = 3**0.5 * 2 / 1024
    for capacity in (None, 2**21):  # training gives one, so that nothing waits for the number of samples
        call = lambda capacity=capacity: ops.march(eye, directions, occupancy, box, step, capacity=capacity)[0]  # noqa: E731
        yield Work(
            "march",
            f"{rays} rays, 128^3, step of 1/1024 of the diagonal{', padded' if capacity else ''}",
            {},
            call,
            under("torch", call),
            "definition",
            parts=("forward", "wall forward"),
            check=False,  # a middle within rounding of a border may fall on either side; the tests compare in float64
        )


def marched_rays(device: str, rays: int = 50000) -> tuple[Tensor, Tensor]:
    """Distances [N] and ray_offsets [R+1] of rays with about ten samples each, some with none."""
    counts = (torch.distributions.Exponential(1 / 10.0).sample((rays,)) + 0.5).clamp(0, 100).long().to(device)
    offsets = offsets_from_counts(counts)
    return torch.arange(int(offsets[-1]), device=device) % 256 / 64, offsets


def visible_work(device: str) -> Iterator[Work]:
    t, offsets = marched_rays(device)
    # Sums of these thicknesses are exact, so both sides count the same.
    density, t_ends = torch.randint(0, 64, t.shape, device=device).float() / 2, t + 1 / 64
    call = lambda: ops.visible(density, t, t_ends, offsets, 1e-4)  # noqa: E731
    rays = offsets.shape[0] - 1
    moved = int(call().sum()) * 12 + size_of(offsets) + rays * 8  # no sample behind the last lit one has to be read
    yield Work(
        "visible",
        f"{len(t)} samples of {rays} rays",
        {},
        call,
        under("torch", call),
        "definition",
        moved,
        parts=("forward", "wall forward"),
    )


def place_work(device: str, n_rows: int = 2**19) -> Iterator[Work]:
    t, source_offsets = marched_rays(device)
    counts = source_offsets.diff()
    offsets, t_ends = offsets_from_counts(counts - counts // 8), t + 1 / 64
    rays = len(counts)
    x = {name: rand(rays, 3, device=device) for name in ("origins", "directions")}
    call = lambda: ops.place(*x.values(), t, t_ends, source_offsets, offsets, n_rows)  # noqa: E731
    moved = size_of(*x.values(), source_offsets, offsets) + int(offsets[-1]) * 8 + n_rows * 28
    yield Work(
        "place",
        f"{offsets[-1]} of {len(t)} samples of {rays} rays, {n_rows} rows",
        x,
        call,
        under("torch", call),
        "definition",
        moved,
        parts=("forward", "wall forward"),
    )


def spherical_harmonics_work(device: str) -> Iterator[Work]:
    _, offsets = marched_rays(device, rays=25000)
    rays, n = offsets.shape[0] - 1, int(offsets[-1])
    directions, ray_index = F.normalize(rand(rays, 3, device=device), dim=-1), ray_indices(offsets, n)
    for dtype in (torch.float16, torch.float32) if device == "cuda" else (torch.float32,):
        call = lambda dtype=dtype: ops.spherical_harmonics(directions, ray_index, dtype)  # noqa: E731
        yield Work(
            "spherical_harmonics",
            f"{n} samples of {rays} rays, {str(dtype)[6:]}",
            {"directions": directions},
            call,
            under("torch", call),
            "definition",
            size_of(directions, ray_index) + n * 16 * dtype.itemsize,
            parts=("forward", "wall forward"),
        )


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

    def baseline() -> Tensor:
        adam.step()
        return other

    yield Work(
        "lazy_adam",
        f"{rows} rows of 2, {share:.0%} with a gradient, float32",
        {},
        lambda: ops.lazy_adam(state[0], grad, *state[1:], step, lr)[0],
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
    "march": march_work,
    "visible": visible_work,
    "place": place_work,
    "spherical_harmonics": spherical_harmonics_work,
    "lazy_adam": lazy_adam_work,
}


def tutorials(device: str) -> Iterator[Work]:
    """The classic extension exercises at their own sizes."""
    yield from lltm_cell_work(device)
    for shape, k, window in (
        ((4, 3, 7, 7), 3, {"padding": 1}),
        ((4, 3, 7, 7), 3, {"stride": 2, "padding": 0}),
        ((8, 64, 112, 112), 3, {"padding": 1}),
    ):
        for dtype in (torch.float32, torch.float16) if device == "cuda" else (torch.float32,):
            x = with_gradient(
                x=rand(*shape, dtype=dtype, device=device),
                weight=rand(shape[1], 1, k, k, dtype=dtype, device=device),
                bias=rand(shape[1], dtype=dtype, device=device),
            )
            call = lambda x=x, w=window: ops.depthwise_conv2d(*x.values(), **w)  # noqa: E731
            name = f"{shape} k{k} {window} {str(dtype)[6:]}".replace("'", "")
            yield Work("depthwise_conv2d", name, x, call, under("torch", call), "definition", wrt=tuple(x))
    n, f = (65536, 256) if device == "cuda" else (8192, 256)
    x = with_gradient(feats=rand(n, 8, f, device=device), points=torch.rand(n, 3, device=device) * 2 - 1)
    call = lambda: ops.trilinear(x["feats"], x["points"])  # noqa: E731
    yield Work("trilinear", f"({n},8,{f}) float32", x, call, under("torch", call), "definition", wrt=tuple(x))
