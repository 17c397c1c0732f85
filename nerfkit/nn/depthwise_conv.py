# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions as modules; their parameters are those of `nn.Conv1d` and `nn.Conv2d` with groups=channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nerfkit import ops
from nerfkit.ops.depthwise_conv2d import Pair


class _DepthwiseConv(nn.Module):
    """weight [C, 1, *kernel], bias [C] or None."""

    def __init__(self, channels: int, kernel: tuple[int, ...], bias: bool, device, dtype: torch.dtype | None):
        super().__init__()
        self.channels = channels
        self.weight = nn.Parameter(torch.empty(channels, 1, *kernel, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(number of taps), as nn.Conv1d and nn.Conv2d."""
        bound = max(self.weight[0].numel(), 1) ** -0.5 if self.channels else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        window = f"stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}"
        return f"{self.channels}, kernel_size={tuple(self.weight.shape[2:])}, {window}, bias={self.bias is not None}"


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _same(kernel: tuple[int, ...], dilation: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The padding that keeps the size."""
    if any(k % 2 == 0 for k in kernel) or any(s != 1 for s in stride):
        raise ValueError(f"padding='same' needs odd kernels and stride 1, got kernel {kernel} and stride {stride}")
    return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))


class DepthwiseConv2d(_DepthwiseConv):
    """Convolve every channel of pictures with a kernel of its own.

    Equation at `nerfkit.ops.depthwise_conv2d`.

    Args:
        channels: C; kernel_size, stride, padding, dilation: one number, or (vertical, horizontal). padding also "same".
        bias: whether to add a learned value to each channel.

    Call: x [B, C, H, W] or [C, H, W], contiguous or channels_last; the result keeps the memory format. A state_dict of
    nn.Conv2d with groups=channels loads unchanged.

    >>> DepthwiseConv2d(8, 3, padding="same")(torch.zeros(2, 8, 5, 7)).shape
    torch.Size([2, 8, 5, 7])
    """

    def __init__(
        self,
        channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        bias: bool = True,
        device=None,
        dtype: torch.dtype | None = None,
    ):
        kernel = _pair(kernel_size)
        super().__init__(channels, kernel, bias, device, dtype)
        self.stride, self.dilation = _pair(stride), _pair(dilation)
        self.padding = _same(kernel, self.dilation, self.stride) if padding == "same" else _pair(padding)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            return self(x[None])[0]
        return ops.depthwise_conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)


class DepthwiseConv1d(_DepthwiseConv):
    """Convolve every channel with a kernel of its own, along sequences or along rays.

    Equation at `nerfkit.ops.depthwise_conv1d`.

    Args:
        channels: C; kernel_size, stride, dilation: samples. padding: samples, or "same".
        bias: whether to add a learned value to each channel.

    Call: dense x [B, C, L] or [C, L]; or packed x [N, C] with `ray_offsets` [R+1], which keeps the length of every ray
    and needs stride 1 and padding "same". A state_dict of nn.Conv1d with groups=channels loads unchanged.

    >>> conv = DepthwiseConv1d(8, 3, padding="same")
    >>> conv(torch.zeros(2, 8, 5)).shape, conv(torch.zeros(7, 8), ray_offsets=torch.tensor([0, 3, 7])).shape
    (torch.Size([2, 8, 5]), torch.Size([7, 8]))
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | str = 0,
        dilation: int = 1,
        bias: bool = True,
        device=None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(channels, (kernel_size,), bias, device, dtype)
        self.stride, self.dilation = stride, dilation
        self.padding = _same((kernel_size,), (dilation,), (stride,))[0] if padding == "same" else padding

    def forward(self, x: Tensor, ray_offsets: Tensor | None = None) -> Tensor:
        weight = self.weight[:, 0]  # [C, k]
        if ray_offsets is not None:
            kept = self.dilation * (weight.shape[1] - 1) // 2
            if self.padding != kept:
                raise ValueError(
                    f"DepthwiseConv1d: packed rays keep their length; use padding={kept}, got {self.padding}"
                )
            return ops.depthwise_conv1d(x, weight, self.bias, ray_offsets, self.stride, None, self.dilation)
        if x.dim() == 2:
            return self(x[None])[0]
        return ops.depthwise_conv1d(x, weight, self.bias, None, self.stride, self.padding, self.dilation)
