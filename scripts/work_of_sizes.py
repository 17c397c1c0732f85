# SPDX-License-Identifier: Apache-2.0
"""Sizes that no kernel was tuned at: of common networks, odd ones, few and many."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nerfkit import ops
from nerfkit.ops.packed import dense_offsets
from scripts.work import Work, rand, size_of, under, with_gradient
from scripts.work_of_layers import conv2d_of, lltm_beside_definition, lltm_beside_lstm, lltm_inputs

# Size, kernel, stride, dilation.
CONV2D = [
    ((32, 32, 112, 112), 3, 1, 1),
    ((32, 96, 112, 112), 3, 2, 1),
    ((32, 144, 56, 56), 5, 2, 1),
    ((32, 240, 28, 28), 5, 1, 1),
    ((32, 480, 14, 14), 5, 1, 1),
    ((16, 256, 14, 14), 3, 1, 1),
    ((32, 960, 7, 7), 3, 1, 1),
    ((8, 512, 7, 7), 7, 1, 1),
    ((16, 128, 56, 56), 7, 1, 1),
    ((16, 384, 14, 14), 7, 1, 1),
    ((8, 64, 128, 128), 9, 1, 1),
    ((4, 96, 33, 33), 13, 1, 1),
    ((4, 32, 65, 65), 4, 1, 1),
    ((16, 100, 60, 60), 5, 2, 1),
    ((4, 24, 240, 320), 2, 2, 1),
    ((2, 48, 120, 160), 3, 1, 2),
    ((1, 3, 480, 640), 5, 1, 1),
    ((2, 40, 99, 101), 3, 1, 1),
    ((1, 16, 1080, 1920), 3, 1, 1),
    ((8, 30, 64, 64), 3, 3, 1),
    ((4, 192, 127, 127), 7, 2, 1),
    ((55, 33, 60, 48), 5, 2, 1),
    ((16, 64, 112, 112), 7, 2, 1),
    ((8, 64, 128, 128), 4, 2, 1),
    ((4, 64, 100, 100), 7, 1, 2),
]
# Rays, samples of each, input, state.
LLTM = [
    (100, 64, 16, 16),
    (1000, 256, 32, 64),
    (4096, 32, 64, 64),
    (65536, 16, 8, 8),
    (512, 128, 128, 256),
    (64, 64, 128, 256),
    (40, 100, 64, 96),
    (1, 1000, 32, 32),
    (16, 100, 32, 128),
    (300, 50, 16, 72),
]
CONV1D = [(4096, 48, 100, 5), (128, 32, 7, 3), (16, 512, 4000, 3)]  # size, kernel
TRILINEAR = [(1_000_000, 4), (50_000, 3), (2000, 32), (20_000, 1000)]  # points, features


def sizes_work(device: str) -> Iterator[Work]:
    fewer = 1 if device == "cuda" else 8
    dtypes = (torch.float32, torch.float16) if device == "cuda" else (torch.float32,)
    for (b, *image), k, stride, dilation in CONV2D:
        yield from conv2d_of((-(-b // fewer), *image), k, stride, dilation, device)
    for dtype in dtypes:
        for rays, samples, i, h in LLTM:
            yield lltm_of(-(-rays // fewer), samples, i, h, dtype, device)
        for b, c, length, k in CONV1D:
            yield conv1d_of(-(-b // fewer), c, length, k, dtype, device)
        for n, f in TRILINEAR:
            yield trilinear_of(n // fewer, f, dtype, device)


def lltm_of(rays: int, samples: int, i: int, h: int, dtype: torch.dtype, device: str) -> Work:
    if device == "cuda":
        return lltm_beside_lstm(rays, samples, i, h, dtype)
    x = lltm_inputs(dense_offsets(rays, samples, device), i, h, dtype, device)
    return lltm_beside_definition(f"{rays} rays x {samples}, {i} -> {h}, {str(dtype)[6:]}", x)


def conv1d_of(b: int, c: int, length: int, k: int, dtype: torch.dtype, device: str) -> Work:
    x = with_gradient(
        x=rand(b, c, length, dtype=dtype, device=device),
        weight=rand(c, k, dtype=dtype, device=device),
        bias=rand(c, dtype=dtype, device=device),
    )
    call = lambda x: ops.depthwise_conv1d(*x.values())  # noqa: E731
    name, moved = f"dense ({b},{c},{length}) k{k} {str(dtype)[6:]}", 2 * size_of(x["x"])
    return Work("depthwise_conv1d", name, x, call, under("torch", call), "F.conv1d", moved, moved * 3 // 2, tuple(x))


def trilinear_of(n: int, f: int, dtype: torch.dtype, device: str) -> Work:
    x = with_gradient(feats=rand(n, 8, f, dtype=dtype, device=device), points=torch.rand(n, 3, device=device) * 2 - 1)
    call = lambda x: ops.trilinear(x["feats"], x["points"])  # noqa: E731
    moved = size_of(*x.values()) + n * f * dtype.itemsize
    name = f"({n},8,{f}) {str(dtype)[6:]}, to feats and points"
    return Work(
        "trilinear", name, x, call, under("torch", call), "definition", moved, moved + size_of(x["feats"]), tuple(x)
    )
