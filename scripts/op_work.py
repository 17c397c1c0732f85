# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench_ops.py times: each op at its sizes, and the classic exercises at theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nerfkit import ops
from scripts.work import Inputs, Work, dtypes, name_of, rand, size_of, with_gradient
from scripts.work_of_layers import (
    depthwise_conv1d_work,
    depthwise_conv2d_work,
    grid_encode_work,
    lltm_cell_work,
    lltm_work,
    mlp_work,
    trilinear_work,
)
from scripts.work_of_rays import (
    compact_samples_work,
    composite_work,
    count_visible_work,
    distortion_work,
    march_work,
    spherical_harmonics_work,
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
