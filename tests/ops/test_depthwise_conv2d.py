# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from nerfkit.ops import depthwise_conv2d
from tests.ops.harness import checks_of

TestDepthwiseConv2d = checks_of("depthwise_conv2d")


def test_constant_picture_gives_the_kernels_sum():
    weight = torch.randn(3, 1, 3, 3).double()
    out = depthwise_conv2d(torch.full((2, 3, 6, 6), 0.5).double(), weight)
    torch.testing.assert_close(out, 0.5 * weight.sum((1, 2, 3))[None, :, None, None].expand_as(out))


def test_channels_do_not_mix():
    x = torch.zeros(1, 3, 5, 5)
    x[:, 1] = 1.0
    out = depthwise_conv2d(x, torch.ones(3, 1, 3, 3), padding=1)
    assert out[:, 0].abs().max() == 0 and out[:, 2].abs().max() == 0 and out[0, 1, 2, 2] == 9


def test_channels_last_gives_the_same():
    x, weight = torch.randn(2, 4, 7, 5), torch.randn(4, 1, 3, 3)
    other = depthwise_conv2d(x.to(memory_format=torch.channels_last), weight, padding=1)
    torch.testing.assert_close(other, depthwise_conv2d(x, weight, padding=1))


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"x": torch.rand(2, 3, 8)}, ValueError, r"x must have shape \[B, C, H, W\], got \[2, 3, 8\]"),
        (
            {"weight": torch.rand(3, 3, 3, 3)},
            ValueError,
            r"weight must have shape \[3, 1, kh, kw\], got \[3, 3, 3, 3\]",
        ),
        ({"bias": torch.rand(2)}, ValueError, r"bias must have shape \[3\], got \[2\]"),
        (
            {"weight": torch.rand(3, 1, 3, 3).double()},
            TypeError,
            "x and weight must have one dtype, got float32 and float64",
        ),
        ({"stride": 0}, ValueError, r"stride must be >= 1 along 2 axes, got \(0, 0\)"),
        ({"stride": 2.0}, ValueError, "^depthwise_conv2d: stride must be an int or 2 of them, got 2.0"),
        ({"padding": (1, 1.5)}, ValueError, r"^depthwise_conv2d: padding must be an int or 2 of them, got \(1, 1.5\)"),
        ({"padding": "same"}, ValueError, "^depthwise_conv2d: padding must be an int or 2 of them, got 'same'"),
        ({"dilation": (1, 1, 1)}, ValueError, r"dilation must be an int or 2 of them, got \(1, 1, 1\)"),
        ({"padding": (1, -1)}, ValueError, r"padding must be >= 0 along 2 axes, got \(1, -1\)"),
        ({"dilation": 5}, ValueError, "a kernel of 3 with dilation 5 does not fit into 8 values with padding 0"),
    ],
)
def test_bad_input(change, error, message):
    with pytest.raises(error, match=message):
        depthwise_conv2d(**({"x": torch.rand(2, 3, 8, 8), "weight": torch.rand(3, 1, 3, 3)} | change))
