# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution of images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, cast, check, per_axis
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native, like

Pair = int | tuple[int, int]


def depthwise_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1
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
    x, weight, bias = cast("depthwise_conv2d", x, weight, bias)
    x_shape, weight_shape = ("B", "C", "H", "W"), ("C", 1, "kh", "kw")
    of_bias = bias is not None and (bias, ("C",))
    check("depthwise_conv2d", FLOATS, x=(x, x_shape), weight=(weight, weight_shape), bias=of_bias)
    window = per_axis("depthwise_conv2d", 2, stride=stride, padding=padding, dilation=dilation)
    check_window("depthwise_conv2d", x.shape[2:], weight.shape[2:], *window)
    return implementation("depthwise_conv2d", x)(x, weight, bias, *window)


def check_window(op: str, size, kernel, stride, padding, dilation) -> None:
    """Require positive strides and a kernel that fits into the padded input."""
    for name, values, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        if min(values) < least:
            raise ValueError(f"{op}: {name} must be >= {least} along {len(size)} axes, got {values}")
    for n, k, p, d in zip(size, kernel, padding, dilation, strict=True):
        if k < 1 or n + 2 * p < d * (k - 1) + 1:
            raise ValueError(f"{op}: a kernel of {k} with dilation {d} is larger than {n} values with padding {p}")


@implements("depthwise_conv2d", "torch")
def _depthwise_conv2d_torch(x, weight, bias, stride, padding, dilation):
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups=x.shape[1])


def _is_channels_last(x: Tensor) -> bool:
    return not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _depthwise_conv2d_forward(x, weight, bias, stride, padding, dilation):
    channels_last = _is_channels_last(x)
    x = x.permute(0, 2, 3, 1) if channels_last else x  # [B, H, W, C]
    out = torch.ops.nerfkit._depthwise_conv2d(x, weight, bias, (*stride, *padding, *dilation), channels_last)
    return out.permute(0, 3, 1, 2) if channels_last else out, ()


def _depthwise_conv2d_backward(grads, arguments, _, needs_grad):
    (grad_out,), (x, weight, _, *window) = grads, arguments
    channels_last = _is_channels_last(x)
    if channels_last:
        x, grad_out = x.permute(0, 2, 3, 1), grad_out.permute(0, 2, 3, 1)
    to_x, to_weight = needs_grad[0], needs_grad[1] or needs_grad[2]
    window = [pixels for pair in window for pixels in pair]
    grad_x, *others = torch.ops.nerfkit._depthwise_conv2d_bwd(
        grad_out, x, weight, window, channels_last, to_x, to_weight
    )
    return grad_x.permute(0, 3, 1, 2) if to_x and channels_last else grad_x, *others


_depthwise_conv2d_native = implement_native(
    "depthwise_conv2d", _depthwise_conv2d_torch, _depthwise_conv2d_forward, _depthwise_conv2d_backward
)


@native.fake("_depthwise_conv2d")
def _(x, weight, bias, window, channels_last):
    first = 1 if channels_last else 2
    axes = zip(x.shape[first:], weight.shape[2:], window[:2], window[2:4], window[4:], strict=False)
    sizes = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k, stride, padding, dilation in axes]
    channels = x.shape[3 if channels_last else 1]
    return x.new_empty((x.shape[0], *sizes, channels) if channels_last else (x.shape[0], channels, *sizes))


@native.fake("_depthwise_conv1d_bwd")
@native.fake("_depthwise_conv2d_bwd")
def _(grad_out, x, weight, *others):
    *_, to_x, to_weight = others
    return like(x, to_x), like(weight, to_weight), x.new_empty(weight.shape[0] if to_weight else 0)
