# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution of pictures."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops.checks import FLOATS, check_dtype, check_same, check_shape
from nerfkit.ops.dispatch import implementation, implements

Pair = int | tuple[int, int]


def depthwise_conv2d(
    x: Tensor,  # [B, C, H, W]
    weight: Tensor,  # [C, 1, kh, kw]
    bias: Tensor | None = None,  # [C]
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
) -> Tensor:
    r"""Convolve every channel with a kernel of its own (cross-correlation, as in ``F.conv2d``).

    .. math::
        out_{b,c,i,j} = bias_c + \sum_{u, v} weight_{c,0,u,v}\;
                        x_{b,\,c,\; i\,stride_y + u\,dilation_y - padding_y,\; j\,stride_x + v\,dilation_x - padding_x}

    with zeros outside x.

    Args:
        x: [B, C, H, W], contiguous or channels_last.
        weight: [C, 1, kh, kw]; bias: [C] or None.
        stride, padding, dilation: pixels; one number, or (vertical, horizontal).

    Returns:
        [B, C, H_out, W_out] with H_out = (H + 2 padding - dilation (kh - 1) - 1) // stride + 1.

    dtype: one floating type for all. Differentiable in x, weight and bias.
    Raises ValueError for a shape, device or stride, TypeError for a dtype that does not fit.
    Source: ``torch.nn.functional.conv2d`` with ``groups=C``.

    >>> import torch
    >>> x = torch.tensor([[[[1.0, 2.0, 4.0]]]])
    >>> depthwise_conv2d(x, torch.tensor([[[[1.0, 0.0, -1.0]]]]), padding=(0, 1))       # 0 - 2, 1 - 4, 2 - 0
    tensor([[[[-2., -3.,  2.]]]])
    """
    check_shape("depthwise_conv2d", "x", x, ("B", "C", "H", "W"))
    check_dtype("depthwise_conv2d", "x", x, FLOATS)
    channels = x.shape[1]
    check_shape("depthwise_conv2d", "weight", weight, (channels, 1, "kh", "kw"))
    if bias is not None:
        check_shape("depthwise_conv2d", "bias", bias, (channels,))
    check_same("depthwise_conv2d", x=x, weight=weight, bias=bias)
    stride, padding, dilation = _pair(stride), _pair(padding), _pair(dilation)
    check_window(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    return implementation("depthwise_conv2d", x)(x, weight, bias, stride, padding, dilation)


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def check_window(size, kernel, stride, padding, dilation) -> None:
    """Require positive strides and a kernel that fits into the padded input."""
    for name, values, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        if len(values) != len(size) or min(values) < least:
            raise ValueError(f"depthwise_conv: {name} must be >= {least} along {len(size)} axes, got {values}")
    for n, k, p, d in zip(size, kernel, padding, dilation, strict=True):
        if k < 1 or n + 2 * p < d * (k - 1) + 1:
            raise ValueError(
                f"depthwise_conv: a kernel of {k} with dilation {d} does not fit into {n} values "
                f"with padding {p}; use more padding or a smaller kernel"
            )


@implements("depthwise_conv2d", "torch")
def _depthwise_conv2d_torch(x, weight, bias, stride, padding, dilation):
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups=x.shape[1])
