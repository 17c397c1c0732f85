# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from nerfkit.nn import DepthwiseConv1d, DepthwiseConv2d
from tests.naming import raises_naming
from tests.ops.test_bad_input import parts_of

WINDOWS_2D = [
    {"kernel_size": 3}, {"kernel_size": (1, 4), "stride": (1, 2), "padding": (0, 2)},
    {"kernel_size": 3, "dilation": 2, "padding": 2, "bias": False}, {"kernel_size": 5, "padding": "same"},
    {"kernel_size": (3, 2), "padding": "valid"},
]  # fmt: skip
WINDOWS_1D = [
    {"kernel_size": 3}, {"kernel_size": 4, "stride": 2, "padding": 1}, {"kernel_size": 5, "padding": "same"},
    {"kernel_size": (4,), "padding": "valid"},
]  # fmt: skip


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("window", WINDOWS_2D, ids=str)
def test_2d_is_conv2d_with_its_state_dict(window: dict, layout: torch.memory_format, device: str):
    reference = nn.Conv2d(6, 6, groups=6, **window).to(device)
    module = DepthwiseConv2d(6, **window).to(device)
    module.load_state_dict(reference.state_dict())
    x = torch.randn(2, 6, 9, 12, device=device).to(memory_format=layout)
    out = module(x)
    torch.testing.assert_close(out, reference(x), rtol=1e-4, atol=1e-5)
    assert out.is_contiguous(memory_format=layout)
    torch.testing.assert_close(module(x[0]), out[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS_1D, ids=str)
def test_1d_is_conv1d_with_its_state_dict(window: dict, device: str):
    reference = nn.Conv1d(6, 6, groups=6, **window).to(device)
    module = DepthwiseConv1d(6, **window).to(device)
    module.load_state_dict(reference.state_dict())
    x = torch.randn(2, 6, 12, device=device)
    torch.testing.assert_close(module(x), reference(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(module(x[0]), reference(x[0]), rtol=1e-4, atol=1e-5)


def test_1d_along_rays_is_each_ray_by_itself(device: str):
    module = DepthwiseConv1d(3, 3, padding="same").to(device)
    x, offsets = torch.randn(7, 3, device=device), torch.tensor([0, 2, 2, 7], device=device)
    out = module(x, ray_offsets=offsets)
    for ray in (slice(0, 2), slice(2, 7)):
        torch.testing.assert_close(out[ray], module(x[ray].t()).t(), rtol=1e-4, atol=1e-5)


def test_gradients_reach_all_parameters():
    module = DepthwiseConv2d(2, 3, padding=1).double()
    x = torch.randn(1, 2, 4, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: module(x), (x, *module.parameters()))


RAY = torch.tensor([0, 5])
BAD = [  # what is called, and what the error names
    (lambda: DepthwiseConv2d(3, 4, padding="same"), "DepthwiseConv2d padding='same' stride 1 kernel (4, 4) (1, 1)"),
    (lambda: DepthwiseConv1d(3, 4, padding="full"), "DepthwiseConv1d padding 'same' 'valid' 'full'"),
    (lambda: DepthwiseConv1d(3, (3, 3)), "DepthwiseConv1d kernel_size (3, 3)"),
    (lambda: DepthwiseConv2d(3, (3, 3, 3)), "DepthwiseConv2d kernel_size 2 (3, 3, 3)"),
    (lambda: DepthwiseConv2d(3, 3, stride=(1,)), "stride 2 (1,)"),
    (lambda: DepthwiseConv2d(3, 3, padding=0.5), "padding 2 0.5"),
    (lambda: DepthwiseConv1d(3, 4)(torch.zeros(5, 3), ray_offsets=RAY), "depthwise_conv1d kernel 4"),
    (lambda: DepthwiseConv1d(3, 3)(torch.zeros(5, 3), ray_offsets=RAY), "padding=1 0"),
    (lambda: DepthwiseConv1d(3, 7)(torch.zeros(3, 5)), "depthwise_conv1d kernel 7 dilation 1"),
    (lambda: DepthwiseConv2d(3, 3, stride=0)(torch.zeros(3, 5, 5)), "depthwise_conv2d stride 1"),
    (lambda: DepthwiseConv2d(3, 3)(torch.zeros(1, 4, 5, 5)), "weight [4, 1, kh, kw]"),
]


@pytest.mark.parametrize("call, named", BAD)
def test_bad_input(call, named: str):
    with raises_naming(ValueError, *parts_of(named)):
        call()
