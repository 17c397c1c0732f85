# SPDX-License-Identifier: Apache-2.0
"""Work of ops that layers are made of: interpolation, convolutions, the LLTM, networks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit import ops
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.mlp import n_parameters
from nerfkit.ops.packed import dense_offsets, offsets_from_counts
from scripts.work import Call, Inputs, Work, rand, size_of, under, with_gradient


def trilinear_work(device: str, n: int = 65536, f: int = 256) -> Iterator[Work]:
    feats, points = rand(n, 8, f, device=device), torch.rand(n, 3, device=device) * 2 - 1
    moved = size_of(feats, points) + n * f * 4
    call = lambda x: ops.trilinear(x["feats"], x["points"])  # noqa: E731
    for wrt, more in (("feats",), 0), (("feats", "points"), size_of(feats)):
        x = {"feats": feats.requires_grad_(), "points": points.detach().requires_grad_("points" in wrt)}
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
            call = lambda x: ops.grid_encode(x["points"], x["table"], resolutions, max_entries)  # noqa: E731
            case, x = f"hash 16x2, 2^19, {str(dtype)[6:]}, {n} points {name}", {"points": points, "table": table}
            yield Work("grid_encode", case, x, call, under("torch", call), "definition", wrt=("table",))
            if dtype == torch.float16:
                yield repeatable_work(call, x, case)
    for f in (4, 28):
        x = with_gradient(table=rand(128**3, f, device=device), points=torch.rand(n, 3, device=device))
        y = with_gradient(
            table=x["table"].detach().t().reshape(1, f, 128, 128, 128).contiguous(),
            points=(x["points"].detach()[None, None, None] * 2 - 1).flip(-1),
        )
        call = lambda x: ops.grid_encode(x["points"], x["table"], [127], 2**24)  # noqa: E731
        sample = lambda y: F.grid_sample(y["table"], y["points"], align_corners=True)[0, :, 0, 0].t()  # noqa: E731
        yield Work(
            "grid_encode",
            f"dense 128^3 x {f} float32, {n} points",
            x,
            call,
            sample,
            "F.grid_sample",
            wrt=("table", "points"),
            baseline_inputs=y,
            check=False,
        )


def repeatable_work(call: Call, x: Inputs, case: str) -> Work:
    """The table's gradient with the same bits every time, beside the usual one."""
    out = call(x)
    grad = torch.randn_like(out)
    usual = lambda _: torch.autograd.grad(out, x["table"], grad, retain_graph=True)[0]  # noqa: E731

    def repeatable(x: Inputs) -> Tensor:
        torch.use_deterministic_algorithms(True)
        try:
            return usual(x)
        finally:
            torch.use_deterministic_algorithms(False)

    case = f"{case}, deterministic gradient"
    return Work("grid_encode", case, {}, repeatable, usual, "not so", parts=("forward",))


# Size, kernel, stride.
CONV2D = [((8, 64, 256, 256), 3, 1), ((32, 96, 56, 56), 7, 1), ((16, 128, 512, 512), 5, 1), ((16, 64, 112, 112), 3, 2)]
CONV2D_CPU = [((1, 64, 256, 256), 3, 1), ((4, 96, 56, 56), 7, 1), ((1, 128, 128, 128), 5, 1), ((2, 64, 112, 112), 3, 2)]


def depthwise_conv2d_work(device: str) -> Iterator[Work]:
    for size, k, stride in CONV2D if device == "cuda" else CONV2D_CPU:
        yield from conv2d_of(size, k, stride, 1, device)


def conv2d_of(size: tuple[int, int, int, int], k: int, stride: int, dilation: int, device: str) -> Iterator[Work]:
    """One size in its dtypes and both layouts, padded so that stride 1 keeps height and width where k is odd."""
    how = f"k{k}" + (f" stride {stride}" if stride > 1 else "") + (f" dilation {dilation}" if dilation > 1 else "")
    window = {"stride": stride, "padding": dilation * (k - 1) // 2, "dilation": dilation}
    call = lambda x: ops.depthwise_conv2d(*x.values(), **window)  # noqa: E731
    for dtype in (torch.float32, torch.float16) if device == "cuda" else (torch.float32,):
        for name, layout in ("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last):
            x = with_gradient(
                x=rand(*size, dtype=dtype, device=device).to(memory_format=layout),
                weight=rand(size[1], 1, k, k, dtype=dtype, device=device),
                bias=rand(size[1], dtype=dtype, device=device),
            )
            case = f"({','.join(map(str, size))}) {how} {str(dtype)[6:]} {name}"
            image = size_of(x["x"])
            result = image // stride**2
            yield Work(
                "depthwise_conv2d",
                case,
                x,
                call,
                under("torch", call),
                "F.conv2d, same layout",
                image + result,
                2 * image + result,
                tuple(x),
                products=x["x"].numel() // stride**2 * k * k,
                tolerance=2e-3,  # PyTorch's sums over two million pixels of noise are off by a thousandth
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
        call = lambda x: ops.depthwise_conv1d(*x.values())  # noqa: E731
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
            products=x["x"].numel() * 3,
        )
        counts = torch.randint(1, 128, (b // 2,), device=device)
        offsets = offsets_from_counts(counts)
        n = int(offsets[-1])
        y = with_gradient(
            x=rand(n, 32, dtype=dtype, device=device),
            weight=rand(32, 3, dtype=dtype, device=device),
            bias=rand(32, dtype=dtype, device=device),
        ) | {"ray_offsets": offsets}
        moved = 2 * size_of(y["x"])
        call = lambda y: ops.depthwise_conv1d(y["x"], y["weight"], y["bias"], ray_offsets=y["ray_offsets"])  # noqa: E731
        yield Work(
            "depthwise_conv1d",
            f"packed {b // 2} rays of 1..127, C 32, k3 {str(dtype)[6:]}",
            y,
            call,
            under("torch", call),
            "definition",
            moved,
            moved * 3 // 2,
            ("x", "weight", "bias"),
            products=y["x"].numel() * 3,
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
    call = lambda x: torch.cat(ops.lltm_cell(*x.values()))  # noqa: E731
    parts = ("wall forward", "wall both", "graph both") if device == "cuda" else ("wall forward", "wall both")
    yield Work("lltm_cell", f"{b}/{i}/{h} float32", x, call, under("torch", call), "eager", wrt=tuple(x), parts=parts)


def lltm_inputs(offsets: Tensor, i: int, h: int, dtype: torch.dtype, device: str) -> Inputs:
    n, r, state = int(offsets[-1]), len(offsets) - 1, h**-0.5
    x = {
        "input": rand(n, i, device=device),
        "weight": (torch.rand(3 * h, h + i, device=device) * 2 - 1) * state,
        "bias": torch.zeros(3 * h, device=device),
    }
    zero = torch.zeros(r, h, device=device, dtype=dtype)
    x = {name: value.to(dtype).requires_grad_() for name, value in x.items()}
    return x | {"ray_offsets": offsets, "h0": zero, "c0": zero.clone()}


def run_lltm(x: Inputs) -> Tensor:
    return ops.lltm(x["input"], x["ray_offsets"], x["weight"], x["bias"], x["h0"], x["c0"])[0]


def lltm_beside_definition(name: str, x: Inputs) -> Work:
    wrt, parts, moved = ("input", "weight", "bias"), ("forward", "both"), bytes_of_lltm(x)
    products = x["input"].shape[0] * x["weight"].numel()
    baseline = under("torch", run_lltm)
    return Work("lltm", name, x, run_lltm, baseline, "definition", moved, 2 * moved, wrt, parts, products=products)


def lltm_work(device: str) -> Iterator[Work]:
    if device == "cuda":
        for dtype in (torch.float16, torch.float32):
            yield lltm_beside_lstm(8192, 128, 32, 64, dtype)
    else:
        x = lltm_inputs(dense_offsets(256, 64, device), 32, 64, torch.float32, device)
        yield lltm_beside_definition("256 rays x 64, 32 -> 64, float32", x)
    yield lltm_along_rays(device, 40000 if device == "cuda" else 4000, 40, 16, 32)
    if device == "cuda":
        yield lltm_along_rays(device, 34000, 100, 32, 16)  # as in training


def bytes_of_lltm(x: Inputs) -> int:
    return size_of(x["input"]) + x["input"].shape[0] * x["h0"].shape[1] * x["input"].element_size()


def lltm_beside_lstm(rays: int, steps: int, i: int, h: int, dtype: torch.dtype) -> Work:
    x = lltm_inputs(dense_offsets(rays, steps, "cuda"), i, h, dtype, "cuda")
    lstm = torch.nn.LSTM(i, h, batch_first=True, device="cuda", dtype=dtype)
    sequence = x["input"].detach().view(rays, steps, i).requires_grad_()
    return Work(
        "lltm",
        f"{rays} rays x {steps}, {i} -> {h}, {str(dtype)[6:]}",
        x,
        run_lltm,
        lambda x, m=lstm: m(x["input"])[0],
        "cuDNN nn.LSTM",
        bytes_of_lltm(x),
        2 * bytes_of_lltm(x),
        ("input", "weight", "bias"),
        ("forward", "inference", "both"),
        {"input": sequence, **dict(lstm.named_parameters())},
        check=False,
    )


def lltm_along_rays(device: str, rays: int, longest: int, i: int, h: int) -> Work:
    """Rays of lengths that fall off exponentially."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    counts = (torch.distributions.Exponential(1 / 6.0).sample((rays,)) + 1).clamp(1, longest).long().to(device)
    offsets = offsets_from_counts(counts)
    x = lltm_inputs(offsets, i, h, dtype, device)
    name = f"{rays} rays of 1..{counts.max()} (mean {counts.float().mean():.1f}), {i} -> {h}, {str(dtype)[6:]}"
    return lltm_beside_definition(name, x)


def mlp_work(device: str) -> Iterator[Work]:
    n = 2**18 if device == "cuda" else 2**14
    dtype = torch.float16 if device == "cuda" else torch.float32
    for widths, inputs in ((32, 64, 16), (32,)), ((96, 64, 64, 3), (16, 16, 32, 32)):
        x = {f"input{k}": rand(n, width, dtype=dtype, device=device) for k, width in enumerate(inputs)}
        x["parameters"] = rand(n_parameters(widths), dtype=dtype, device=device) * 0.1
        x = {name: value.detach().requires_grad_() for name, value in x.items()}
        rows = tuple(f"input{k}" for k in range(len(inputs)))
        call = lambda x, w=widths, rows=rows: ops.mlp(x["parameters"], w, *(x[row] for row in rows))  # noqa: E731
        read = size_of(*(x[row] for row in rows))
        moved = read + n * widths[-1] * dtype.itemsize
        name = f"{n} rows, {'-'.join(map(str, widths))} {str(dtype)[6:]}"
        sizes, products = (moved, moved + read), n * sum(a * b for a, b in pairwise(widths))
        yield Work("mlp", name, x, call, under("torch", call), "F.linear", *sizes, tuple(x), products=products)
