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
from scripts.work import Call, Inputs, Work, dtypes, name_of, rand, rays_of, size_of, with_gradient


def trilinear_work(device: str, n: int = 65536, f: int = 256) -> Iterator[Work]:
    feats, points = rand(n, 8, f, device=device), torch.rand(n, 3, device=device) * 2 - 1
    moved = size_of(feats, points) + n * f * 4
    for wrt, more in (("feats",), 0), (("feats", "points"), size_of(feats)):
        yield Work(
            "trilinear",
            f"({n},8,{f}) float32, to {' and '.join(wrt)}",
            {"feats": feats.requires_grad_(), "points": points.detach().requires_grad_("points" in wrt)},
            lambda x: ops.trilinear(x["feats"], x["points"]),
            forward_bytes=moved,
            backward_bytes=moved + more,
            wrt=wrt,
            parts=("forward", "backward") if len(wrt) == 1 else ("backward",),
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
    call = lambda x: ops.grid_encode(x["points"], x["table"], resolutions, max_entries)  # noqa: E731
    for dtype in dtypes(device):
        table = rand(rows, 2, dtype=dtype, device=device).requires_grad_()
        for name, points in ("random", torch.rand(n, 3, device=device)), ("along rays", points_along_rays(n, device)):
            case, x = f"hash 16x2, 2^19, {name_of(dtype)}, {n} points {name}", {"points": points, "table": table}
            yield Work("grid_encode", case, x, call, wrt=("table",))
            if dtype == torch.float16:
                yield repeatable_work(call, x, case)
    for f in (4, 28):
        x = with_gradient(table=rand(128**3, f, device=device), points=torch.rand(n, 3, device=device))
        table = x["table"].detach().t().reshape(1, f, 128, 128, 128).contiguous()
        y = with_gradient(table=table, points=(x["points"].detach()[None, None, None] * 2 - 1).flip(-1))
        yield Work(
            "grid_encode",
            f"dense 128^3 x {f} float32, {n} points",
            x,
            lambda x: ops.grid_encode(x["points"], x["table"], [127], 2**24),
            lambda y: F.grid_sample(y["table"], y["points"], align_corners=True)[0, :, 0, 0].t(),
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
    """Sizes in their dtypes and both layouts, padded so that stride 1 keeps height and width."""
    layouts = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
    for size, k, stride in CONV2D if device == "cuda" else CONV2D_CPU:
        window = {"stride": stride, "padding": (k - 1) // 2}
        for dtype, layout in ((dtype, layout) for dtype in dtypes(device) for layout in layouts):
            x = rand(*size, dtype=dtype, device=device).to(memory_format=layouts[layout])
            weight, bias = rand(size[1], 1, k, k, dtype=dtype, device=device), rand(size[1], dtype=dtype, device=device)
            how = f"k{k} stride {stride}" if stride > 1 else f"k{k}"
            image = size_of(x)
            result = image // stride**2
            yield Work(
                "depthwise_conv2d",
                f"({','.join(map(str, size))}) {how} {name_of(dtype)} {layout}",
                with_gradient(x=x, weight=weight, bias=bias),
                lambda x, window=window: ops.depthwise_conv2d(*x.values(), **window),
                baseline_name="F.conv2d, same layout",
                forward_bytes=image + result,
                backward_bytes=2 * image + result,
                wrt=("x", "weight", "bias"),
                products=x.numel() // stride**2 * k * k,
                tolerance=2e-3,  # PyTorch's sums over two million pixels of noise are off by a thousandth
            )


def depthwise_conv1d_work(device: str) -> Iterator[Work]:
    b = 65536 if device == "cuda" else 2048
    counts = torch.randint(1, 128, (b // 2,), device=device)
    offsets = offsets_from_counts(counts)
    n = int(offsets[-1])
    for dtype in dtypes(device):
        weight, bias = rand(32, 3, dtype=dtype, device=device), rand(32, dtype=dtype, device=device)
        for case, shape, baseline, other in (
            (f"dense ({b},32,64) k3", (b, 32, 64), "F.conv1d", {}),
            (f"packed {b // 2} rays of 1..127, C 32, k3", (n, 32), "definition", {"ray_offsets": offsets}),
        ):
            x = rand(*shape, dtype=dtype, device=device)
            yield Work(
                "depthwise_conv1d",
                f"{case} {name_of(dtype)}",
                with_gradient(x=x, weight=weight, bias=bias) | other,
                lambda x: ops.depthwise_conv1d(x["x"], x["weight"], x["bias"], ray_offsets=x.get("ray_offsets")),
                baseline_name=baseline,
                forward_bytes=2 * size_of(x),
                backward_bytes=3 * size_of(x),
                wrt=("x", "weight", "bias"),
                products=x.numel() * 3,
            )


def lltm_cell_work(device: str, b: int = 16, i: int = 32, h: int = 128) -> Iterator[Work]:
    x = with_gradient(
        input=rand(b, i, device=device),
        h=rand(b, h, device=device),
        c=rand(b, h, device=device),
        weight=rand(3 * h, h + i, device=device) * 0.1,
        bias=rand(3 * h, device=device),
    )
    parts = ("wall forward", "wall both", "graph both") if device == "cuda" else ("wall forward", "wall both")
    call = lambda x: torch.cat(ops.lltm_cell(*x.values()))  # noqa: E731
    yield Work("lltm_cell", f"{b}/{i}/{h} float32", x, call, baseline_name="eager", wrt=tuple(x), parts=parts)


def lltm_inputs(offsets: Tensor, i: int, h: int, dtype: torch.dtype, device: str) -> Inputs:
    n, r, state = int(offsets[-1]), len(offsets) - 1, h**-0.5
    x = {
        "input": rand(n, i, device=device),
        "weight": (torch.rand(3 * h, h + i, device=device) * 2 - 1) * state,
        "bias": torch.zeros(3 * h, device=device),
    }
    zero = torch.zeros(r, h, device=device, dtype=dtype)
    x = with_gradient(**{name: value.to(dtype) for name, value in x.items()})
    return x | {"ray_offsets": offsets, "h0": zero, "c0": zero.clone()}


def run_lltm(x: Inputs) -> Tensor:
    return ops.lltm(x["input"], x["ray_offsets"], x["weight"], x["bias"], x["h0"], x["c0"])[0]


def lltm_beside_definition(name: str, x: Inputs) -> Work:
    return Work(
        "lltm",
        name,
        x,
        run_lltm,
        forward_bytes=bytes_of_lltm(x),
        backward_bytes=2 * bytes_of_lltm(x),
        wrt=("input", "weight", "bias"),
        parts=("forward", "both"),
        products=x["input"].shape[0] * x["weight"].numel(),
    )


def lltm_work(device: str) -> Iterator[Work]:
    if device == "cuda":
        for dtype in dtypes(device):
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
        f"{rays} rays x {steps}, {i} -> {h}, {name_of(dtype)}",
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
    dtype = torch.float16 if device == "cuda" else torch.float32
    offsets = rays_of(device, rays, 6.0, 1, longest)
    counts = offsets.diff()
    x = lltm_inputs(offsets, i, h, dtype, device)
    name = f"{rays} rays of 1..{counts.max()} (mean {counts.float().mean():.1f}), {i} -> {h}, {name_of(dtype)}"
    return lltm_beside_definition(name, x)


def mlp_work(device: str) -> Iterator[Work]:
    n = 2**18 if device == "cuda" else 2**14
    dtype = torch.float16 if device == "cuda" else torch.float32
    for widths, inputs in ((32, 64, 16), (32,)), ((96, 64, 64, 3), (16, 16, 32, 32)):
        rows = {f"input{k}": rand(n, width, dtype=dtype, device=device) for k, width in enumerate(inputs)}
        parameters = rand(n_parameters(widths), dtype=dtype, device=device) * 0.1
        moved = size_of(*rows.values()) + n * widths[-1] * dtype.itemsize
        yield Work(
            "mlp",
            f"{n} rows, {'-'.join(map(str, widths))} {name_of(dtype)}",
            with_gradient(parameters=parameters, **rows),
            lambda x, widths=widths: ops.mlp(x["parameters"], widths, *list(x.values())[1:]),
            baseline_name="F.linear",
            forward_bytes=moved,
            backward_bytes=moved + size_of(*rows.values()),
            wrt=("parameters", *rows),
            products=n * sum(a * b for a, b in pairwise(widths)),
        )
