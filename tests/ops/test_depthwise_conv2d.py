# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F

from nerfkit import ops
from nerfkit.ops import depthwise_conv2d
from tests.naming import raises_naming
from tests.ops.harness import backend_params, checks_of, fused_params

TestDepthwiseConv2d = checks_of("depthwise_conv2d")


def test_constant_image_gives_the_kernels_sum():
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


# Sizes on both sides of what kernels take at once: 4, 16 or 32 channels, 1, 4, 8, 16 or 64 columns, 8 rows, tiles of
# 32, 256 partial sums; strips that go on over many images.
BRANCHES = [
    ((1, 16, 9, 5), (3, 3), {"padding": 1}),
    ((2, 40, 13, 37), (3, 3), {"padding": 1}),
    ((1, 32, 8, 3), (5, 5), {"padding": 4}),
    ((1, 18, 41, 33), (5, 5), {"padding": 2}),
    ((2, 40, 37, 70), (5, 5), {"padding": 2}),
    ((2, 16, 16, 56), (7, 7), {"padding": 3}),
    ((2, 36, 25, 28), (7, 7), {"padding": 3}),
    ((1, 100, 61, 12), (7, 7), {"padding": 3}),
    ((1, 56, 45, 70), (7, 7), {"padding": 3}),
    ((1, 2, 11, 600), (7, 3), {"padding": (3, 1)}),
    ((1, 17, 12, 19), (3, 4), {"padding": (2, 1), "stride": 2}),
    ((1, 16, 12, 19), (3, 5), {"padding": 3, "stride": (1, 2), "dilation": (1, 2)}),
    ((2, 33, 9, 18), (2, 3), {"dilation": (2, 1)}),
    ((1, 20, 21, 45), (3, 5), {"padding": (1, 2), "stride": 2}),
    ((2, 17, 14, 14), (3, 3), {"padding": 1}),
    ((1, 3, 6, 45), (3, 3), {"padding": 1, "stride": (1, 2)}),
    ((1, 6, 19, 33), (9, 9), {"padding": 4}),
    ((1, 18, 13, 26), (3, 3), {"padding": 3, "dilation": 3}),
    ((1, 16, 3, 3), (3, 3), {"padding": 4, "dilation": 4}),
    ((3, 35, 1, 100), (1, 3), {"padding": (0, 1)}),
    ((3, 35, 1, 100), (1, 5), {"padding": (0, 2)}),
    ((3, 10, 9, 33), (1, 3), {"padding": (0, 1)}),
    ((2, 3, 1, 15), (1, 5), {"padding": (0, 4), "stride": (1, 2)}),
    ((2, 5, 33, 70), (3, 3), {"padding": 1, "stride": 2}),
    ((1, 35, 17, 21), (5, 5), {"padding": 1, "stride": 2, "dilation": 3}),
    ((1, 34, 12, 30), (9, 9), {"padding": 4}),
    ((1, 3, 40, 35), (16, 11), {"padding": (9, 5), "stride": (2, 1)}),
    ((2, 9, 20, 11), (7, 1), {"stride": (3, 1), "dilation": (2, 1)}),
    ((3, 4, 1, 90), (1, 13), {"padding": (0, 6)}),
    ((1, 3, 4, 5), (2, 2), {"padding": 4, "stride": (4, 6)}),
    ((1200, 1, 5, 5), (3, 3), {"padding": 1}),
    ((300, 70, 7, 7), (3, 3), {"padding": 1}),
    ((20, 40, 7, 12), (7, 7), {"padding": 3}),
    ((4, 17, 96, 96), (3, 3), {"padding": 1, "stride": 2}),
    ((3, 21, 14, 14), (3, 3), {"padding": 1}),
    ((3, 40, 7, 7), (7, 7), {"padding": 3}),
    ((2, 68, 13, 21), (5, 5), {"padding": 2, "stride": 2}),
    ((2, 12, 11, 30), (3, 3), {"padding": 1, "stride": (1, 3)}),
    ((1, 8, 12, 19), (3, 3), {"padding": 2, "stride": 2, "dilation": (1, 2)}),
    ((2, 20, 31, 57), (5, 5), {"padding": 2, "stride": 2}),
    ((1, 18, 17, 100), (7, 4), {"padding": (3, 1), "stride": (2, 4)}),
    ((1, 5, 13, 101), (1, 2), {"stride": 3}),
    ((1, 17, 9, 90), (3, 3), {"padding": 9, "stride": (2, 4), "dilation": (3, 6)}),
    ((5, 24, 30, 37), (7, 7), {"padding": 3}),
    ((5, 24, 30, 37), (5, 5), {"padding": 2}),
    ((40, 8, 1, 3), (7, 7), {"padding": 3}),
    ((90, 8, 2, 3), (5, 5), {"padding": 2}),
    ((3, 64, 23, 33), (5, 5), {"padding": 2}),
    ((2, 72, 60, 18), (7, 7), {"padding": 3}),
    ((155, 8, 5, 18), (7, 7), {"padding": 3}),
    ((120, 8, 5, 18), (5, 5), {"padding": 2}),
    ((4, 8, 1, 3), (7, 7), {"padding": 3}),
    ((3, 16, 5, 1), (3, 3), {"padding": 1}),
    ((1, 20, 6, 150), (3, 3), {"padding": 1}),
    ((3, 32, 9, 1), (3, 3), {"padding": 1, "stride": 2}),
    ((2, 36, 8, 135), (3, 3), {"padding": 1, "stride": 2}),
    ((1, 16, 1, 70), (3, 3), {"padding": 1, "stride": 2}),
    ((1, 4, 2, 32), (3, 3), {"padding": 1, "stride": 2}),
    ((1, 2, 66, 33), (3, 3), {"padding": 1, "stride": 2}),
    ((3, 5, 21, 34), (2, 2), {"padding": 1, "stride": 2}),
    ((2, 35, 23, 30), (4, 4), {"padding": 1, "stride": 2}),
    ((2, 6, 40, 27), (6, 6), {"padding": 2, "stride": 2}),
    ((2, 70, 27, 40), (7, 7), {"padding": 3, "stride": 2}),
    ((1, 24, 31, 29), (7, 7), {"padding": 2, "stride": 2}),
    ((2, 3, 33, 30), (7, 7), {"padding": (4, 6), "stride": 2, "dilation": (1, 2)}),
    ((2, 11, 25, 31), (7, 7), {"padding": 0}),
    ((1, 33, 22, 30), (7, 7), {"padding": 5, "dilation": (2, 3)}),
    ((2, 33, 25, 28), (3, 3), {"padding": 1, "stride": 3}),
    ((3, 64, 130, 132), (2, 2), {"stride": 2}),
    ((3, 64, 130, 132), (3, 3), {"padding": 1, "stride": 2}),
    ((3, 64, 130, 132), (3, 3), {"padding": 1, "stride": (1, 3)}),
    ((3, 64, 132, 130), (5, 5), {"padding": 2, "stride": 2}),
    ((3, 64, 132, 130), (7, 7), {"padding": 3, "stride": 2}),
    ((1, 33, 184, 186), (3, 3), {"padding": 1}),
    ((1, 33, 184, 186), (5, 5), {"padding": 2}),
    ((1, 33, 184, 186), (7, 7), {"padding": 3}),
    ((2, 3, 9, 16), (3, 3), {"padding": 1}),
    ((1, 2, 70, 17), (5, 5), {"padding": 2}),
    ((1, 24, 97, 40), (5, 5), {"padding": 2}),
    ((2, 5, 8, 64), (7, 7), {"padding": 0}),
    ((1, 6, 12, 31), (4, 6), {"padding": (3, 5)}),
    ((1, 4, 33, 41), (3, 11), {"padding": (1, 20), "dilation": (1, 4)}),
    ((1, 3, 1, 33), (3, 5), {"padding": (1, 2)}),
    ((1, 2, 3, 9), (5, 3), {"padding": (2, 1)}),
]


@pytest.mark.parametrize("backend, device", fused_params("depthwise_conv2d"))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size, kernel, window", BRANCHES)
@pytest.mark.slow
def test_sizes_that_kernels_branch_on(size, kernel, window, dtype, layout, backend, device):
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(shape).to(device, dtype)  # noqa: E731
    inputs = draw(*size).to(memory_format=layout), draw(size[1], 1, *kernel), draw(size[1])
    inputs = [x.requires_grad_() for x in inputs]
    exact = [x.detach().double().cpu().requires_grad_() for x in inputs]
    wanted = F.conv2d(*exact, **window, groups=size[1])
    grad = draw(*wanted.shape).to(memory_format=layout)
    with ops.backend(backend):
        out = depthwise_conv2d(*inputs, **window)
        got = out, *torch.autograd.grad(out, inputs, grad)
    wanted = wanted.detach(), *torch.autograd.grad(wanted, exact, grad.double().cpu())
    share = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    for g, w in zip(got, wanted, strict=True):
        assert float((g.detach().double().cpu() - w).abs().max()) <= share * float(w.abs().max())


@pytest.mark.parametrize("backend, device", fused_params("depthwise_conv2d"))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_gradients_one_after_another(kernel, dtype, layout, backend, device):
    """The next one may be given the memory of the last one's partial sums while these are still read."""
    x = torch.randn(4, 32, 28, 28).to(device, dtype, memory_format=layout)
    inputs = [x, torch.randn(32, 1, kernel, kernel).to(device, dtype), torch.randn(32).to(device, dtype)]
    inputs = [value.requires_grad_() for value in inputs]
    with ops.backend(backend):
        out = depthwise_conv2d(*inputs, padding=kernel // 2)
        grads = [torch.randn_like(out) for _ in range(8)]
        in_a_row = [torch.autograd.grad(out, inputs, grad, retain_graph=True) for grad in grads]
        for grad, got in zip(grads, in_a_row, strict=True):
            if device == "cuda":
                torch.cuda.synchronize()
            alone = torch.autograd.grad(out, inputs, grad, retain_graph=True)
            assert all(torch.equal(*pair) for pair in zip(got, alone, strict=True))


@pytest.mark.parametrize("backend, device", fused_params("depthwise_conv2d"))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kernel, stride, width", [(3, 1, 120), (3, 2, 120), (5, 1, 120), (7, 1, 120), (7, 1, 56)])
def test_blocks_with_many_rows(kernel, stride, width, dtype, layout, backend, device):
    """More work than a GPU holds at once: blocks then take several images, or many rows; and each gradient alone."""
    torch.manual_seed(0)
    size = (64, 64, 12, width) if device == "cuda" else (5, 32, 12, 40)
    draw = lambda *shape: torch.randn(shape, device=device, dtype=dtype)  # noqa: E731
    inputs = draw(*size).to(memory_format=layout), draw(size[1], 1, kernel, kernel), draw(size[1])
    grad = draw(*size[:2], *(-(-n // stride) for n in size[2:])).to(memory_format=layout)
    of, results = {"all": (0, 1, 2), "x": (0,), "weight": (1, 2)}, {}
    for name in (*of, "exact"):
        own = [v.double() if name == "exact" else v.clone(memory_format=torch.preserve_format) for v in inputs]
        wanted = [own[i].requires_grad_() for i in of.get(name, of["all"])]
        with ops.backend("torch" if name == "exact" else backend):
            out = depthwise_conv2d(*own, padding=kernel // 2, stride=stride)
            results[name] = out.detach(), *torch.autograd.grad(out, wanted, grad.to(out.dtype))
    share = 1e-5 if dtype == torch.float32 else 2e-3
    for got, exact in zip(results["all"], results["exact"], strict=True):
        assert float((got.double() - exact).abs().max()) <= share * float(exact.abs().max())
    for name in ("x", "weight"):
        together = [results["all"][1 + i] for i in of[name]]
        assert all(torch.equal(*pair) for pair in zip(results[name][1:], together, strict=True))


@pytest.mark.skipif("cpp" not in ops.available("depthwise_conv2d"), reason="needs the C++ ops")
@pytest.mark.parametrize("channels, dtype", [(64, torch.float32), (65, torch.float32), (32, torch.float64)])
@pytest.mark.parametrize("layout, width", [(torch.channels_last, 513), (torch.contiguous_format, 528)])
@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (5, 1)])
@pytest.mark.long
def test_images_that_no_cache_keeps(kernel, stride, layout, width, channels, dtype):
    """More than 32 MB: written past the caches where pixels or rows are whole lines of them."""
    check_beside_library((1, channels, 300, width), kernel, stride, layout, dtype)


# More than 32 MB, too: rows that are whole lines, cut in tiles that are not; rows of gradients that are so two or
# eight at a time; a row of gradients without outputs; 5 taps in phases of 3; rows that are no lines, that come from
# rows which are none, or few; rows of lines of which none is a pack of float64.
ODD_LINES = [
    ((16, 3, 336, 336), 3, 1, torch.channels_last, torch.float32),
    ((8, 5, 400, 304), 5, 1, torch.channels_last, torch.float32),
    ((300, 15, 251, 8), 3, (2, 1), torch.contiguous_format, torch.float32),
    ((200, 10, 241, 18), 3, (8, 1), torch.contiguous_format, torch.float32),
    ((300, 7, 241, 18), 3, (8, 1), torch.contiguous_format, torch.float32),
    ((1, 64, 301, 512), 3, 2, torch.channels_last, torch.float32),
    ((1, 64, 300, 512), 5, 2, torch.channels_last, torch.float32),
    ((1, 3, 1440, 1000), 3, 1, torch.contiguous_format, torch.float32),
    ((1, 3, 1440, 1008), 5, 1, torch.contiguous_format, torch.float32),
    ((1, 3, 1440, 1007), 4, 1, torch.contiguous_format, torch.float32),
    ((3000, 3, 3, 320), 3, 1, torch.contiguous_format, torch.float32),
    ((100, 2, 1200, 24), 3, 1, torch.contiguous_format, torch.float64),
    ((4, 24, 300, 100), 3, 1, torch.channels_last, torch.float64),
]


@pytest.mark.skipif("cpp" not in ops.available("depthwise_conv2d"), reason="needs the C++ ops")
@pytest.mark.parametrize("shape, kernel, stride, layout, dtype", ODD_LINES)
@pytest.mark.slow
def test_lines_that_no_cache_keeps(shape, kernel, stride, layout, dtype):
    check_beside_library(shape, kernel, stride, layout, dtype)


def check_beside_library(shape, kernel, stride, layout, dtype):
    """The outputs, and the gradients of x alone and of all inputs, beside those of F.conv2d."""
    torch.manual_seed(0)
    channels = shape[1]
    x = torch.randn(shape, dtype=dtype).to(memory_format=layout)
    inputs = [x, torch.randn(channels, 1, kernel, kernel, dtype=dtype), torch.randn(channels, dtype=dtype)]
    inputs = [v.requires_grad_() for v in inputs]
    wanted = F.conv2d(*inputs, padding=kernel // 2, stride=stride, groups=channels)
    grad = torch.randn_like(wanted)
    with ops.backend("cpp"):
        out = depthwise_conv2d(*inputs, padding=kernel // 2, stride=stride)
    pairs = [(out, wanted)]
    for wrt in (inputs[:1], inputs):
        both = [torch.autograd.grad(result, wrt, grad, retain_graph=True) for result in (out, wanted)]
        pairs += zip(*both, strict=True)
    for got, exact in pairs:
        assert float((got - exact).detach().abs().max()) <= 3e-5 * float(exact.detach().abs().max())


@pytest.mark.skipif("cpp" not in ops.available("depthwise_conv2d"), reason="needs the C++ ops")
@pytest.mark.parametrize("kernel", [5, 7])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_prefetched_sizes(layout, kernel):
    """More than 24 MB of inputs and outputs, from which on they are prefetched; rows are cut in several tiles."""
    torch.manual_seed(0)
    x = torch.randn(1, 32, 330, 331).to(memory_format=layout)
    inputs = [v.requires_grad_() for v in (x, torch.randn(32, 1, kernel, kernel), torch.randn(32))]
    wanted = F.conv2d(*inputs, padding=kernel // 2, groups=32)
    grad = torch.randn_like(wanted)
    with ops.backend("cpp"):
        out = depthwise_conv2d(*inputs, padding=kernel // 2)
    gradients = [torch.autograd.grad(result, inputs, grad) for result in (out, wanted)]
    for got, exact in [(out, wanted), *zip(*gradients, strict=True)]:
        assert float((got - exact).detach().abs().max()) <= 3e-5 * float(exact.detach().abs().max())


@pytest.mark.parametrize("backend, device", fused_params("depthwise_conv2d"))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("channels, width", [(20, 9), (3, 9), (3, 33), (3, 64)])
def test_what_lies_beside_a_image_does_not_count(channels, width, dtype, layout, backend, device):
    """Of x and of the outputs' gradient, in memory full of NaN."""
    torch.manual_seed(0)

    def within_nan() -> torch.Tensor:
        n = channels * 11 * width
        some = torch.full((3 * n,), float("nan"), dtype=dtype, device=device)[n : 2 * n]
        last = layout == torch.channels_last
        image = some.view(1, 11, width, -1).permute(0, 3, 1, 2) if last else some.view(1, -1, 11, width)
        return image.copy_(torch.randn(image.shape))

    inputs = within_nan().requires_grad_(), torch.randn(channels, 1, 3, 3, dtype=dtype, device=device).requires_grad_()
    grad, results = within_nan(), []
    for name in (backend, "torch"):
        with ops.backend(name):
            out = depthwise_conv2d(*inputs, padding=1)
            results.append((out, *torch.autograd.grad(out, inputs, grad)))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend, device", backend_params("depthwise_conv2d"))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kernel", [5, 7])
def test_how_far_a_nan_reaches(kernel, layout, backend, device):
    """Its channel or, channels last, at most four; of the gradients of taps, its channel's."""
    x = torch.randn(2, 32, 24, 64).to(device, torch.bfloat16, memory_format=layout)
    weight = torch.randn(32, 1, kernel, kernel).to(device, torch.bfloat16).requires_grad_()
    x[0, 5, 12, 30] = float("nan")
    with ops.backend(backend):
        out = depthwise_conv2d(x, weight, padding=kernel // 2)
        (grad,) = torch.autograd.grad(out, weight, torch.ones_like(out))
    own, quad = torch.arange(32) == 5, torch.arange(32) // 4 == 1
    assert out[:, ~quad].isfinite().all() and out[1].isfinite().all()
    assert out[0, 5, 12 - kernel // 2 : 13 + kernel // 2, 30 - kernel // 2 : 31 + kernel // 2].isnan().all()
    assert out[0, quad, :, :8].isfinite().all() and out[0, quad, 12 + kernel // 2 + 1 :].isfinite().all()
    assert grad[~own].isfinite().all() and grad[own].isnan().any()


@pytest.mark.skipif("cpp" not in ops.available("depthwise_conv2d"), reason="needs the C++ ops")
@pytest.mark.parametrize(
    "channels, layout", [(17, torch.channels_last), (31, torch.channels_last), (40, torch.contiguous_format)]
)
@pytest.mark.slow
def test_threads_with_channels_in_common(channels, layout):
    """Groups of 16 channels overlap where they are not a multiple of 16."""
    x = torch.randn(1, channels, 9, 9).to(memory_format=layout)
    parameters = [torch.randn(channels, 1, 9, 9).requires_grad_(), torch.randn(channels).requires_grad_()]
    wanted = torch.autograd.grad(F.conv2d(x, *parameters, padding=4, groups=channels).sum(), parameters)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for _ in range(500):
            with ops.backend("cpp"):
                got = torch.autograd.grad(depthwise_conv2d(x, *parameters, padding=4).sum(), parameters)
            for g, w in zip(got, wanted, strict=True):
                torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-3)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif("cpp" not in ops.available("depthwise_conv2d"), reason="needs the C++ ops")
@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("size", [(2, 40, 39, 41), (1, 400, 7, 9)])
def test_the_number_of_threads_changes_no_bit(size, kernel, stride):
    x, weight = torch.randn(size).to(memory_format=torch.channels_last), torch.randn(size[1], 1, kernel, kernel)
    inputs = [value.requires_grad_() for value in (x, weight)]
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            with ops.backend("cpp"):
                out = depthwise_conv2d(*inputs, padding=kernel // 2, stride=stride)
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.skipif("cpp" not in ops.available("depthwise_conv2d"), reason="needs the C++ ops")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "channels, rows, columns, stride", [(2, 1, 3, 2**28 + 1), (16, 1, 3, 2**28 + 1), (16, 3, 25, 2**26)]
)
def test_padding_that_no_memory_holds(channels, rows, columns, stride, layout):
    """Of a row as long as the stride and the padding make it only one position is in the image."""
    x = torch.randn(1, channels, 1, 1000).to(memory_format=layout).requires_grad_()
    weight, bias = (torch.randn(channels, *axes).requires_grad_() for axes in ((1, rows, 1), ()))
    middle = columns // 2
    with ops.backend("cpp"):
        out = depthwise_conv2d(x, weight, bias, (1, stride), (rows // 2, middle * stride))
    wanted = bias[:, None].detach().repeat(1, columns)  # [channels, columns]
    wanted[:, middle] += weight[:, 0, rows // 2, 0].detach() * x[0, :, 0, 0].detach()
    torch.testing.assert_close(out, wanted[None, :, None])
    grad_x, grad_weight = torch.autograd.grad(out[..., middle].sum(), (x, weight))
    assert grad_x[..., 1:].abs().max() == 0 and torch.equal(grad_x[0, :, 0, 0], weight[:, 0, rows // 2, 0])
    assert (
        torch.equal(grad_weight[:, 0, rows // 2, 0], x[0, :, 0, 0]) and grad_weight.abs().sum() == x[..., 0].abs().sum()
    )


@pytest.mark.skipif("cpp" not in ops.available("depthwise_conv2d"), reason="needs the C++ ops")
def test_positions_near_the_end_of_an_int():
    """Output 1 meets the first column: a stride or a dilation more is beyond 2^31."""
    x = torch.randn(1, 16, 2, 3).to(memory_format=torch.channels_last).requires_grad_()
    with ops.backend("cpp"):
        out = depthwise_conv2d(x, torch.ones(16, 1, 1, 1), None, (1, 2**30 + 2**29), (0, 2**30 - 2))
    assert out.shape[-1] == 2 and out.abs().max() == 0  # positions -(2^30 - 2) and 2^29 + 2
    x = torch.randn(1, 16, 5, 100).to(memory_format=torch.channels_last)
    weight = torch.randn(16, 1, 1, 2)
    window = (2**30, 2**31 - 1), (0, 2**30 - 60), (2, 2**30 + 7)
    with ops.backend("cpp"):
        out = depthwise_conv2d(x, weight, None, *window)
    assert out.shape == (1, 16, 1, 1)  # its taps meet columns -(2^30 - 60) and 67
    torch.testing.assert_close(out[0, :, 0, 0], weight[:, 0, 0, 1] * x[0, :, 0, 67])


@pytest.mark.skipif("cpp" not in ops.available("depthwise_conv2d"), reason="needs the C++ ops")
def test_dilation_that_no_memory_holds():
    """Of three taps so far apart only the middle one meets the image."""
    x, weight = torch.randn(1, 2, 5, 9), torch.randn(2, 1, 1, 3)
    inputs = [value.requires_grad_() for value in (x, weight)]
    with ops.backend("cpp"):
        out = depthwise_conv2d(*inputs, padding=(0, 2**29), dilation=(1, 2**29))
        grad_x, grad_weight = torch.autograd.grad(out.sum(), inputs)
    middle = weight[:, :, :, 1:2].reshape(1, 2, 1, 1).expand_as(x)
    assert torch.equal(out, middle * x) and torch.equal(grad_x, middle)
    torch.testing.assert_close(grad_weight[:, 0, 0], x.sum((0, 2, 3))[:, None] * torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"x": torch.rand(2, 3, 8)}, ValueError, ("x", "[B, C, H, W]", "[2, 3, 8]")),
        (
            {"weight": torch.rand(3, 3, 3, 3)},
            ValueError,
            ("weight", "[3, 1, kh, kw]", "[3, 3, 3, 3]"),
        ),
        ({"bias": torch.rand(2)}, ValueError, ("bias", "[3]", "[2]")),
        (
            {"weight": torch.rand(3, 1, 3, 3).double()},
            TypeError,
            ("x", "weight", "float32", "float64"),
        ),
        ({"stride": 0}, ValueError, ("stride", "1", "2", "(0, 0)")),
        ({"stride": 2.0}, ValueError, ("depthwise_conv2d", "stride", "2", "2.0")),
        ({"padding": (1, 1.5)}, ValueError, ("depthwise_conv2d", "padding", "2", "(1, 1.5)")),
        ({"padding": "same"}, ValueError, ("depthwise_conv2d", "padding", "2", "'same'")),
        ({"dilation": (1, 1, 1)}, ValueError, ("dilation", "2", "(1, 1, 1)")),
        ({"padding": (1, -1)}, ValueError, ("padding", "0", "2", "(1, -1)")),
        ({"dilation": 5}, ValueError, ("kernel", "3", "dilation", "5", "8", "padding", "0")),
    ],
)
def test_bad_input(change, error, named):
    with raises_naming(error, *named):
        depthwise_conv2d(**({"x": torch.rand(2, 3, 8, 8), "weight": torch.rand(3, 1, 3, 3)} | change))
