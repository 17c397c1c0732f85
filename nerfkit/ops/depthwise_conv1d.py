# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution along rays, packed or dense."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, INT64, cast, check, per_axis
from nerfkit.ops.depthwise_conv2d import _depthwise_conv2d_native, check_window
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native, like, wants_gradient
from nerfkit.ops.packed import ray_indices


def depthwise_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, ray_offsets: Tensor | None = None, stride: int = 1,
    padding: int | None = None, dilation: int = 1,
) -> Tensor:  # fmt: skip
    r"""Convolve every channel with a kernel of its own along the samples of each ray (cross-correlation).

    .. math::
        out_{i,c} = bias_c + \sum_u weight_{c,u}\; x_{\,i\,stride + u\,dilation - padding,\; c}

    with zero padding at both ends of each ray: rays do not mix.

    Args:
        x: [N, C] packed samples with `ray_offsets`, or dense [B, C, L] without.
        weight: [C, k]; bias: [C] or None.
        ray_offsets: [R+1] int64 CSR row pointers of the rays.
        stride: samples from one output to the next; a packed x allows 1 only.
        padding: zeros at both ends. None, the only choice for a packed x, keeps the length: dilation (k - 1) / 2,
            for an odd k.
        dilation: samples from one tap to the next.

    Returns:
        [N, C], or [B, C, L_out] with L_out = (L + 2 padding - dilation (k - 1) - 1) // stride + 1.

    dtype: one floating type for all; half types are summed in float32. Differentiable in x, weight and bias.
    Raises ValueError for a shape, device or stride, TypeError for a dtype that does not fit, RuntimeError for row
    pointers that do not rise from 0 to N.
    Source: ``torch.nn.functional.conv1d`` with ``groups=C``, on each ray by itself.

    >>> x = torch.tensor([[1.0], [2.0], [4.0]])                        # a ray of two samples and a ray of one
    >>> depthwise_conv1d(x, torch.tensor([[1.0, 0.0, -1.0]]), ray_offsets=torch.tensor([0, 2, 3])).flatten()
    tensor([-2.,  1.,  0.])
    """
    op = "depthwise_conv1d"
    packed = ray_offsets is not None
    x, weight, bias = cast(op, x, weight, bias)
    check(
        op, FLOATS, x=(x, ("N", "C") if packed else ("B", "C", "L")), weight=(weight, ("C", "k")),
        bias=bias is not None and (bias, ("C",)), ray_offsets=packed and (ray_offsets, ("R+1",), INT64),
    )  # fmt: skip
    per_axis(op, 1, stride=stride, padding=0 if padding is None else padding, dilation=dilation)
    kernel = weight.shape[1]
    if padding is None:
        if kernel % 2 == 0:
            advice = "" if packed else "; give a padding"
            raise ValueError(f"{op}: keeping the length needs an odd kernel, got {kernel}{advice}")
        padding = dilation * (kernel - 1) // 2
    elif packed:
        raise ValueError(f"{op}: packed rays keep their length; leave padding out, got {padding}")
    if not packed:
        check_window(op, x.shape[2:], (kernel,), (stride,), (padding,), (dilation,))
    elif stride != 1 or dilation < 1:
        raise ValueError(f"{op}: packed rays need stride 1 and dilation >= 1, got {stride} and {dilation}")
    return implementation(op, x)(x, weight, bias, ray_offsets, stride, padding, dilation)


@implements("depthwise_conv1d", "torch")
def _depthwise_conv1d_torch(x, weight, bias, ray_offsets, stride, padding, dilation):
    if ray_offsets is None:
        return F.conv1d(x, weight[:, None], bias, stride, padding, dilation, groups=x.shape[1])
    dtype = x.dtype
    if dtype in (torch.float16, torch.bfloat16):
        x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
    n = x.shape[0]
    ray_index = ray_indices(ray_offsets, n, "depthwise_conv1d")  # [N]
    padded = F.pad(x, (0, 0, padding, padding))  # [N + 2 padding, C]
    ray_padded = F.pad(ray_index, (padding, padding), value=-1)
    out = x.new_zeros(x.shape) if bias is None else bias.expand_as(x)
    for tap in range(weight.shape[1]):
        window = slice(tap * dilation, tap * dilation + n)
        same_ray = (ray_padded[window] == ray_index)[:, None]  # [N, 1]
        out = out + torch.where(same_ray, padded[window], 0) * weight[:, tap]
    return out.to(dtype)


def _packed_forward(x, weight, bias, ray_offsets, stride, padding, dilation):
    return torch.ops.nerfkit._depthwise_conv1d(x, weight, bias, ray_offsets, dilation), ()


def _packed_backward(grads, arguments, _, needs_grad):
    x, weight, _, ray_offsets, *_, dilation = arguments
    to_weight = needs_grad[1] or needs_grad[2]
    return torch.ops.nerfkit._depthwise_conv1d_bwd(*grads, x, weight, ray_offsets, dilation, needs_grad[0], to_weight)


_packed = implement_native("depthwise_conv1d", _depthwise_conv1d_torch, _packed_forward, _packed_backward)


@implements("depthwise_conv1d", "cpp", "cuda")
def _depthwise_conv1d_native(x, weight, bias, ray_offsets, stride, padding, dilation):
    if ray_offsets is not None:
        return _packed(x, weight, bias, ray_offsets, stride, padding, dilation)
    wants_gradient("depthwise_conv1d", x, weight, bias)  # forward mode is refused by this name
    window = (1, stride), (0, padding), (1, dilation)  # an image of height 1
    return _depthwise_conv2d_native(x.unsqueeze(2), weight[:, None, None], bias, *window).squeeze(2)


native.fake("_depthwise_conv1d")(lambda x, weight, bias, ray_offsets, dilation: like(x))
