# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions as modules; their parameters are those of `nn.Conv1d` and `nn.Conv2d` with groups=channels."""

import torch
from torch import Tensor, nn

from nerfkit import ops
from nerfkit.ops.checks import per_axis
from nerfkit.ops.depthwise_conv2d import Pair


class _DepthwiseConv(nn.Module):
    """weight [C, 1, *kernel], bias [C] or None; `axes` of the window."""

    axes: int

    def __init__(
        self, channels: int, kernel_size: Pair, stride: Pair = 1, padding: Pair | str = 0, dilation: Pair = 1,
        bias: bool = True, device=None, dtype: torch.dtype | None = None,
    ):  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"{name}: padding must be a number, 'same' or 'valid', got {padding!r}")
        zeros = 0 if isinstance(padding, str) else padding
        kernel, self.stride, self.padding, self.dilation = per_axis(
            name, self.axes, kernel_size=kernel_size, stride=stride, padding=zeros, dilation=dilation
        )
        if padding == "same":
            if any(k % 2 == 0 for k in kernel) or any(s != 1 for s in self.stride):
                got = f"kernel {kernel} and stride {self.stride}"
                raise ValueError(f"{name}: padding='same' needs odd kernels and stride 1, got {got}")
            self.padding = tuple(d * (k - 1) // 2 for k, d in zip(kernel, self.dilation, strict=True))
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


class DepthwiseConv2d(_DepthwiseConv):
    """Convolve every channel of images with a kernel of its own.

    Equation at `nerfkit.ops.depthwise_conv2d`.

    Args:
        channels: C; kernel_size, stride, padding, dilation: one number, or (vertical, horizontal). padding also "same",
            for odd kernels and stride 1, or "valid", which is 0.
        bias: whether to add a learned value to each channel.

    Call: x [B, C, H, W] or [C, H, W], contiguous or channels_last; the result keeps the memory format. A state_dict of
    nn.Conv2d with groups=channels loads unchanged.

    >>> DepthwiseConv2d(8, 3, padding="same")(torch.zeros(2, 8, 5, 7)).shape
    torch.Size([2, 8, 5, 7])
    """

    axes = 2
    ops = ("depthwise_conv2d",)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            return self(x[None])[0]
        return ops.depthwise_conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)


class DepthwiseConv1d(_DepthwiseConv):
    """Convolve every channel with a kernel of its own, along sequences or along rays.

    Equation at `nerfkit.ops.depthwise_conv1d`.

    Args:
        channels: C; kernel_size, stride, dilation: samples. padding: samples, "same", for an odd kernel and stride 1,
            or "valid", which is 0.
        bias: whether to add a learned value to each channel.

    Call: dense x [B, C, L] or [C, L]; or packed x [N, C] with `ray_offsets` [R+1], which keeps the length of every ray
    and needs an odd kernel, stride 1 and padding "same". A state_dict of nn.Conv1d with groups=channels loads
    unchanged.

    >>> conv = DepthwiseConv1d(8, 3, padding="same")
    >>> conv(torch.zeros(2, 8, 5)).shape, conv(torch.zeros(7, 8), ray_offsets=torch.tensor([0, 3, 7])).shape
    (torch.Size([2, 8, 5]), torch.Size([7, 8]))
    """

    axes = 1
    ops = ("depthwise_conv1d",)

    def forward(self, x: Tensor, ray_offsets: Tensor | None = None) -> Tensor:
        weight = self.weight[:, 0]  # [C, k]
        (stride,), (padding,), (dilation,) = self.stride, self.padding, self.dilation
        if ray_offsets is not None:
            same = dilation * (weight.shape[1] - 1) // 2
            if padding != same and weight.shape[1] % 2 == 1:  # an even kernel is refused in any case
                raise ValueError(f"DepthwiseConv1d: packed rays keep their length; use padding={same}, got {padding}")
            return ops.depthwise_conv1d(x, weight, self.bias, ray_offsets, stride, None, dilation)
        if x.dim() == 2:
            return self(x[None])[0]
        return ops.depthwise_conv1d(x, weight, self.bias, None, stride, padding, dilation)
