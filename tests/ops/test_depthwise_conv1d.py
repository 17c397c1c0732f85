# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import depthwise_conv1d
from nerfkit.ops.packed import dense_offsets, offsets_from_counts
from tests.naming import raises_naming
from tests.ops.harness import checks_of, drawn_backends, fused_params

TestDepthwiseConv1d = checks_of("depthwise_conv1d")


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), max_size=6), c=st.integers(1, 4), half=st.integers(0, 3),
    dilation=st.integers(1, 3), seed=st.integers(0, 99), backend=drawn_backends("depthwise_conv1d"),
)  # fmt: skip
def test_each_ray_is_convolved_by_itself(counts, c, half, dilation, seed, backend):
    torch.manual_seed(seed)
    kernel = 2 * half + 1
    x, weight = torch.randn(sum(counts), c).double(), torch.randn(c, kernel).double()
    offsets = offsets_from_counts(torch.tensor(counts, dtype=torch.int64))
    with ops.backend(backend[0]):
        inputs = x.to(backend[1]), weight.to(backend[1]), None, offsets.to(backend[1])
        out = depthwise_conv1d(*inputs, dilation=dilation).cpu()
    for ray, got in zip(x.split(counts), out.split(counts), strict=True):
        if len(ray):
            alone = F.conv1d(ray.t()[None], weight[:, None], padding=half * dilation, dilation=dilation, groups=c)
            torch.testing.assert_close(got, alone[0].t())


@pytest.mark.parametrize("backend, device", fused_params("depthwise_conv1d"))
@pytest.mark.parametrize("kernel, channels", [(3, 32), (7, 8)])
def test_hundreds_of_empty_rays_between_two_samples(backend: str, device: str, kernel: int, channels: int):
    torch.manual_seed(0)
    counts = torch.randint(0, 4, (2000,)) * (torch.rand(2000) < 0.7)
    counts[300:1000] = 0
    counts[1500:1502] = 700
    x = torch.randn(int(counts.sum()), channels)
    weight, bias = torch.randn(channels, kernel), torch.randn(channels)
    grad, results = torch.randn_like(x), []
    for name, place in ("torch", "cpu"), (backend, device):
        inputs = [value.to(place, copy=True).requires_grad_() for value in (x, weight, bias)]
        with ops.backend(name):
            out = depthwise_conv1d(*inputs, offsets_from_counts(counts).to(place))
            results.append([value.cpu() for value in (out, *torch.autograd.grad(out, inputs, grad.to(place)))])
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)


def test_packed_equals_dense():
    x, weight, bias = torch.randn(4, 3, 6).double(), torch.randn(3, 5).double(), torch.randn(3).double()
    packed = depthwise_conv1d(x.transpose(1, 2).reshape(24, 3), weight, bias, dense_offsets(4, 6))
    torch.testing.assert_close(packed.view(4, 6, 3).transpose(1, 2), depthwise_conv1d(x, weight, bias))


DENSE = {"x": torch.rand(1, 2, 5), "ray_offsets": None}


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"x": torch.rand(5, 2, 1)}, ValueError, ("x", "[N, C]", "[5, 2, 1]")),
        ({"weight": torch.rand(3, 3)}, ValueError, ("weight", "[2, k]", "[3, 3]")),
        ({"weight": torch.rand(2, 4)}, ValueError, ("kernel", "4")),
        ({"bias": torch.rand(2).half()}, TypeError, ("x", "bias", "float32", "float16")),
        ({"ray_offsets": torch.tensor([0, 5]).int()}, TypeError, ("ray_offsets", "int64", "int32")),
        ({"ray_offsets": torch.zeros(0).long()}, ValueError, ("ray_offsets", "[R+1]", "0")),
        ({"stride": 2}, ValueError, ("stride", "1")),
        ({"padding": 1}, ValueError, ("padding", "1")),
        ({"stride": 2.0}, ValueError, ("depthwise_conv1d", "stride", "2.0")),
        ({"dilation": 1.0}, ValueError, ("depthwise_conv1d", "dilation", "1.0")),
        (DENSE | {"stride": (1,)}, ValueError, ("depthwise_conv1d", "stride", "(1,)")),
        (DENSE | {"padding": 1.5}, ValueError, ("depthwise_conv1d", "padding", "1.5")),
    ],
)
def test_bad_input(change, error, named):
    good = {"x": torch.rand(5, 2), "weight": torch.rand(2, 3), "ray_offsets": torch.tensor([0, 2, 5])}
    with raises_naming(error, *named):
        depthwise_conv1d(**(good | change))
