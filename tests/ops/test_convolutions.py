# SPDX-License-Identifier: Apache-2.0
"""Convolutions: what kernels take at once and what is left over, memory formats, and how far a sample reaches."""

import pytest
import torch

from nerfkit import ops
from nerfkit.ops import depthwise_conv1d, depthwise_conv2d
from nerfkit.ops.packed import offsets_from_counts
from tests.ops.harness import fused_params

every_fused = pytest.mark.parametrize("backend, device", fused_params("depthwise_conv2d"))
both_layouts = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "NHWC"])

# Sizes on both sides of what kernels take at once (4, 8, 16 or 32 channels, 1, 4, 8 or 1024 columns, 16 rows, 9 taps,
# strips of rows and images), and every way to leave the fast ones: even kernels, strides, dilation, odd rows.
SIZES = [
    ((2, 40, 37, 72), (3, 3), {"padding": 1}),
    ((300, 17, 7, 7), (3, 3), {"padding": 1}),
    ((1, 33, 184, 186), (5, 5), {"padding": 2}),
    ((2, 24, 61, 64), (7, 7), {"padding": 3}),
    ((40, 8, 1, 3), (7, 7), {"padding": 3}),
    ((1, 2, 6, 1100), (7, 3), {"padding": (3, 1)}),
    ((2, 5, 33, 70), (3, 3), {"padding": 1, "stride": 2}),
    ((1, 17, 9, 90), (3, 4), {"padding": (9, 2), "stride": (2, 4), "dilation": (3, 6)}),
    ((1, 3, 40, 35), (16, 11), {"padding": (9, 5), "stride": (2, 1)}),
    ((3, 35, 1, 100), (1, 3), {"padding": (0, 1)}),
    ((1, 16, 3, 3), (3, 3), {"padding": 4, "dilation": 4}),
]


def draw(size: tuple, kernel: tuple, dtype: torch.dtype, layout: torch.memory_format, device: str) -> list:
    """x, weight and bias that want gradients, the same values on every device."""
    torch.manual_seed(0)
    x, *rest = (torch.randn(s).to(device, dtype) for s in (size, (size[1], 1, *kernel), size[1:2]))
    return [value.requires_grad_() for value in (x.to(memory_format=layout), *rest)]


def results(backend: str, inputs: list, window: dict, grad: torch.Tensor | None = None) -> list:
    """Result and gradients for `grad`, else for one of few bits that only depends on the place."""
    with ops.backend(backend):
        out = depthwise_conv2d(*inputs, **window)
        if grad is None:
            grad = (torch.arange(out.numel(), device=out.device) % 7 / 4 - 0.5).to(out.dtype).view(out.shape)
        wanted = [value for value in inputs if value.requires_grad]
        return [out.detach(), *torch.autograd.grad(out, wanted, grad)]


def assert_near(got: list, exact: list, share: float) -> None:
    for g, w in zip(got, exact, strict=True):
        assert float((g.double().cpu() - w.double().cpu()).abs().max()) <= share * float(w.abs().max())


@every_fused
@both_layouts
@pytest.mark.parametrize("dtype, share", [(torch.float32, 1e-5), (torch.float16, 2e-3)], ids=["float32", "float16"])
@pytest.mark.parametrize("size, kernel, window", SIZES, ids=lambda value: str(value).replace(" ", ""))
def test_sizes(size, kernel, window, dtype, share, layout, backend, device):
    inputs = draw(size, kernel, dtype, layout, device)
    exact = [value.detach().double().cpu().requires_grad_() for value in inputs]
    assert_near(results(backend, inputs, window), results("torch", exact, window), share)


@every_fused
@both_layouts
@pytest.mark.parametrize("kernel", [3, 7])
def test_memory_format_and_gradients_alone(kernel, layout, backend, device):
    x, *parameters = draw((3, 16, 24, 32), (kernel, kernel), torch.float32, layout, device)
    out, *together = results(backend, [x, *parameters], {"padding": kernel // 2})
    assert out.is_contiguous(memory_format=layout)
    for alone in ([0], [1, 2]):
        own = [value.detach().requires_grad_(i in alone) for i, value in enumerate((x, *parameters))]
        _, *gradients = results(backend, own, {"padding": kernel // 2})
        assert all(torch.equal(g, together[i]) for g, i in zip(gradients, alone, strict=True))


@every_fused
@pytest.mark.parametrize("width", [9, 64])
def test_what_lies_beside_an_image_does_not_count(width, backend, device):
    """Of x and of the result's gradient, in memory full of NaN."""
    x, weight, bias = draw((1, 8, 11, width), (3, 3), torch.float32, torch.contiguous_format, device)

    def within_nan(values: torch.Tensor) -> torch.Tensor:
        n = values.numel()
        return torch.full((3 * n,), float("nan"), device=device)[n : 2 * n].view(values.shape).copy_(values)

    inputs = [within_nan(x.detach()).requires_grad_(), weight, bias]
    got = results(backend, inputs, {"padding": 1}, within_nan(torch.ones_like(x)))
    assert_near(got, results("torch", [x, weight, bias], {"padding": 1}, torch.ones_like(x)), 1e-5)


@every_fused
@pytest.mark.parametrize("kernel", [3, 7])
def test_gradients_one_after_another(kernel, backend, device):
    """The next one may be given the memory of the last one's partial sums while these are still read."""
    inputs = draw((4, 32, 28, 28), (kernel, kernel), torch.float32, torch.contiguous_format, device)
    with ops.backend(backend):
        out = depthwise_conv2d(*inputs, padding=kernel // 2)
        grads = [torch.randn_like(out) for _ in range(8)]
        in_a_row = [torch.autograd.grad(out, inputs, grad, retain_graph=True) for grad in grads]
        for grad, got in zip(grads, in_a_row, strict=True):
            alone = [x.cpu() for x in torch.autograd.grad(out, inputs, grad, retain_graph=True)]
            assert all(torch.equal(a.cpu(), b) for a, b in zip(got, alone, strict=True))


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
