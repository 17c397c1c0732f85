# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit import ops
from nerfkit.ops import lltm
from nerfkit.ops.gradients import no_second_derivative
from nerfkit.ops.lltm import why_no_kernel
from nerfkit.ops.packed import offsets_from_counts
from tests.naming import not_named, raises_naming
from tests.ops.cases import cases
from tests.ops.harness import checks_of, drawn_backends, fused_params

TestLltm = checks_of("lltm")
LONG = 50  # samples of one ray among short ones


def problem(counts: list[int], seed: int = 0) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    r, i, h = len(counts), 2, 3
    numbers = [torch.randn(*s).double() for s in ((sum(counts), i), (3 * h, h + i), (3 * h,), (r, h), (r, h))]
    return numbers[0], offsets_from_counts(torch.tensor(counts, dtype=torch.int64)), *numbers[1:]


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 7), min_size=1, max_size=6), seed=st.integers(0, 99), data=st.data(),
    backend=drawn_backends("lltm"),
)  # fmt: skip
def test_a_ray_can_be_cut_in_two(counts, seed, data, backend):
    name, device = backend
    x, offsets, weight, bias, h0, c0 = (x.to(device) for x in problem(counts, seed))
    first = [data.draw(st.integers(0, n)) for n in counts]
    second = [n - k for n, k in zip(counts, first, strict=True)]
    is_first = torch.cat([torch.arange(n) < k for n, k in zip(counts, first, strict=True)]).to(device)
    first, second = (offsets_from_counts(torch.tensor(n)).to(device) for n in (first, second))
    with ops.backend(name):
        h, h_n, c_n = lltm(x, offsets, weight, bias, h0, c0)
        h_a, *state = lltm(x[is_first], first, weight, bias, h0, c0)
        h_b, h_end, c_end = lltm(x[~is_first], second, weight, bias, *state)
    for got, wanted in ((h_a, h[is_first]), (h_b, h[~is_first]), (h_end, h_n), (c_end, c_n)):
        torch.testing.assert_close(got, wanted)


@pytest.mark.skipif("cpp" not in ops.available("lltm"), reason="needs the C++ ops")
@pytest.mark.parametrize("backend", ["cpp"])
@pytest.mark.parametrize("i, h", [(19, 21), (16, 32), (1, 40), (40, 7)])
def test_packs_and_what_is_left_of_them(backend, i, h):
    torch.manual_seed(0)
    counts = torch.randint(0, 9, (30,))
    counts[7] = LONG
    r, n, offsets = len(counts), int(counts.sum()), offsets_from_counts(counts)
    shapes = (n, i), (3 * h, h + i), (3 * h,), (r, h), (r, h)
    tensors = [torch.randn(*shape).double() * scale for shape, scale in zip(shapes, (1, 0.3, 1, 1, 1), strict=True)]
    grads = [torch.randn(*shape).double() for shape in ((n, h), (r, h), (r, h))]

    def run(backend: str, dtype: torch.dtype) -> list[torch.Tensor]:
        x, *rest = (tensor.to(dtype).requires_grad_() for tensor in tensors)
        with ops.backend(backend):
            outputs = lltm(x, offsets, *rest)
        gradients = torch.autograd.grad(outputs, [x, *rest], [grad.to(dtype) for grad in grads])
        return [result.detach().double() for result in (*outputs, *gradients)]

    for got, wanted in zip(run(backend, torch.float32), run("torch", torch.float64), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


def test_rays_do_not_see_one_another():
    x, offsets, *rest = problem([3, 4])
    changed = x.clone()
    changed[:3] += 1
    before, after = (lltm(value, offsets, *rest)[0] for value in (x, changed))
    assert torch.equal(before[3:], after[3:]) and not torch.equal(before[:3], after[:3])


def test_an_empty_ray_hands_its_state_back():
    x, offsets, weight, bias, h0, c0 = problem([0, 2, 0])
    _, h_n, c_n = lltm(x, offsets, weight, bias, h0, c0)
    assert torch.equal(h_n[[0, 2]], h0[[0, 2]]) and torch.equal(c_n[[0, 2]], c0[[0, 2]])


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_state_may_change_in_place_before_the_backward_pass(backend):
    if backend not in ops.available("lltm"):
        pytest.skip("needs the C++ ops")
    x, offsets, weight, bias, h0, c0 = problem([3, 2])
    results = []
    for changed in (False, True):
        parameter, start, cell = weight.clone().requires_grad_(), h0.clone(), c0.clone()
        with ops.backend(backend):
            h, h_n, c_n = lltm(x, offsets, parameter, bias, start, cell)
        loss = h.sum() + c_n.sum()
        if changed:
            start.copy_(h_n.detach()), cell.copy_(c_n.detach()), h.mul_(2)
        results.append(torch.autograd.grad(loss, parameter)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("backend, device", fused_params("lltm"))
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("n_state, n_input", [(16, 16), (5, 3), (64, 4)])
def test_a_gradient_that_is_not_asked_for_changes_no_other(backend, device, dtype, n_state, n_input):
    torch.manual_seed(0)
    width, offsets = n_state + n_input, offsets_from_counts(torch.tensor([3, 0, 5])).to(device)
    sizes = (8, n_input), (3 * n_state, width), (3 * n_state,), (3, n_state), (3, n_state)
    x, weight, *rest = (torch.randn(*size).to(device, dtype).requires_grad_() for size in sizes)
    results = []
    for to_x, to_weight in ((True, True), (False, True), (True, False), (False, False)):
        x.requires_grad_(to_x), weight.requires_grad_(to_weight)
        wanted = [t for t in (x, weight, *rest) if t.requires_grad]
        with ops.backend(backend):
            outputs = lltm(x, offsets, weight, *rest)
        gradients = torch.autograd.grad([y.sum() for y in outputs], wanted)
        results.append(dict(zip(map(id, wanted), gradients, strict=True)))
    everything = results[0]
    assert len(everything) == 5
    for some in results[1:]:
        assert all(torch.equal(gradient, everything[key]) for key, gradient in some.items())


@pytest.mark.skipif("cpp" not in ops.available("lltm"), reason="needs the C++ ops")
def test_the_number_of_threads_changes_no_bit():
    torch.manual_seed(0)
    counts = torch.randint(0, 20, (300,))
    sizes = (int(counts.sum()), 5), (51, 22), (51,), (300, 17), (300, 17)
    x, *rest = (torch.randn(*size).requires_grad_() for size in sizes)
    results = []
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            with ops.backend("cpp"):
                outputs = lltm(x, offsets_from_counts(counts), *rest)
            results.append([*outputs, *torch.autograd.grad([y.sum() for y in outputs], [x, *rest])])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_closed_gates_have_finite_gradients(dtype):
    x, offsets, weight, bias, h0, c0 = problem([3, 2])
    for closed in (slice(0, 3), slice(3, 6), slice(0, 6)):  # input gates, output gates, both
        shut = bias.clone()
        shut[closed] = -1000
        inputs = [t.to(dtype).requires_grad_() for t in (x, weight, shut, h0, c0)]
        h, h_n, c_n = lltm(inputs[0], offsets, *inputs[1:])
        gradients = torch.autograd.grad(h.sum() + h_n.sum() + c_n.sum(), inputs)
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.cuda
@pytest.mark.parametrize("n_input", [16, 32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n_rays", [3, 40000], ids=["few_rays", "more_rays_than_fit"])
def test_a_state_of_16_units_on_a_gpu(n_input, dtype, n_rays):
    check_on_gpu(16, n_input, dtype, n_rays)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "n_state, n_input",
    [(16, 16), (16, 32), (16, 64), (13, 29), (32, 16), (32, 32), (32, 64), (64, 16), (64, 32), (64, 64), (50, 47)],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize(
    "n_rays", [40, 200, 3000, 9000], ids=["few_rays", "two_a_processor", "some_rays", "more_rays_than_fit"]
)
def test_a_state_of_up_to_64_units_on_a_gpu(n_state, n_input, dtype, n_rays):
    check_on_gpu(n_state, n_input, dtype, n_rays)


@pytest.mark.cuda
@pytest.mark.parametrize("n_state, n_rays", [(32, 40), (32, 300), (64, 40), (64, 300)])
@pytest.mark.parametrize(
    "dtype, limit", [(torch.float16, 1e-2), (torch.bfloat16, 8e-2), (torch.float32, 1e-4)],
    ids=["float16", "bfloat16", "float32"],
)  # fmt: skip
def test_without_weight_gradient(n_state, n_rays, dtype, limit):
    """The library's products are not called, so that a race checker under which they fail sees the kernels."""
    torch.manual_seed(0)
    counts, width = torch.randint(0, 6, (n_rays,)), n_state + 5
    inputs = [torch.randn(int(counts.sum()), 5), torch.randn(3 * n_state, width) / width**0.5]
    inputs += [torch.randn(3 * n_state) * 0.2, *torch.randn(2, n_rays, n_state)]
    inputs = [t.to(dtype) for t in inputs]

    def run(backend: str, x: torch.Tensor, weight: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
        leaves = [t.detach().requires_grad_() for t in rest]
        with ops.backend(backend):
            outputs = lltm(x, offsets_from_counts(counts).to(x.device), weight, *leaves)
        return [*outputs, *torch.autograd.grad([y.double().square().sum() for y in outputs], leaves)]

    exact = run("torch", *(t.double() for t in inputs))
    for got, wanted in zip(run("cuda", *(t.cuda() for t in inputs)), exact, strict=True):
        assert (got.detach().cpu() - wanted.detach()).abs().max() <= limit * wanted.detach().abs().max()


@pytest.mark.cuda
@pytest.mark.parametrize("n_state", [16, 32, 64])
@pytest.mark.parametrize("dtype, limit", [(torch.float16, 2e-2), (torch.float32, 1e-3)], ids=["float16", "float32"])
def test_saved_tensors_at_an_odd_address(n_state, dtype, limit):
    torch.manual_seed(0)
    counts = torch.randint(0, 4, (5000,))
    sizes = (int(counts.sum()), 16), (3 * n_state, n_state + 16), (3 * n_state,), (5000, n_state), (5000, n_state)
    numbers = [torch.randn(*size, device="cuda", dtype=dtype) / n_state**0.5 for size in sizes]
    x, *rest = (t.requires_grad_() for t in numbers)
    offsets = offsets_from_counts(counts).cuda()

    def moved(saved: torch.Tensor) -> torch.Tensor:
        shifted = torch.empty(saved.numel() + 1, device="cuda", dtype=saved.dtype)
        return shifted[1:].view(saved.shape).copy_(saved.detach())

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(lltm(x, offsets, *rest)[0].square().sum(), [x, *rest])

    with ops.backend("cuda"):
        straight = gradients()
        with torch.autograd.graph.saved_tensors_hooks(moved, lambda saved: saved):
            shifted = gradients()
    for got, wanted in zip(shifted, straight, strict=True):
        assert (got - wanted).abs().max() <= limit * wanted.abs().max()


@pytest.mark.parametrize("n_state, n_input", [(65, 16), (16, 65)])
def test_more_than_a_gpus_kernels_take(n_state, n_input):
    named = str(n_state), str(n_input), "64"
    assert not not_named(why_no_kernel("cuda", n_state, n_input), *named)
    assert why_no_kernel("cuda", 64, 64) is None and why_no_kernel("cpu", n_state, n_input) is None


@pytest.mark.cuda
@pytest.mark.parametrize("n_state, n_input", [(65, 16), (16, 65)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_what_has_no_kernel_is_refused_by_name(n_state, n_input, dtype):
    torch.manual_seed(0)
    sizes = (8, n_input), (3 * n_state, n_state + n_input), (3 * n_state,), (3, n_state), (3, n_state)
    x, *rest = (torch.randn(*size).to("cuda", dtype) / 4 for size in sizes)
    offsets = torch.tensor([0, 3, 3, 8], device="cuda")
    named = "lltm", "'cuda'", str(n_state), str(n_input), "64", "ops.backend=auto"
    with ops.backend("cuda"), raises_naming(ops.BackendError, *named):
        lltm(x, offsets, *rest)
    results = []
    for backend in ("torch", "auto"):
        with ops.backend(backend):
            results.append(lltm(x, offsets, *rest))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def check_on_gpu(n_state: int, n_input: int, dtype: torch.dtype, n_rays: int) -> None:
    """The same bits twice, and about as near to the exact result as the definition, which rounds at every step."""
    torch.manual_seed(0)
    counts = torch.randint(0, 6, (n_rays,))
    counts[[0, -1]] = torch.tensor([0, LONG])
    width = n_state + n_input
    inputs = [torch.randn(int(counts.sum()), n_input), torch.randn(3 * n_state, width) * 1.4 / width**0.5]
    inputs += [torch.randn(3 * n_state) * 0.2, *torch.randn(2, n_rays, n_state)]
    offsets = offsets_from_counts(counts).cuda()

    def run(backend: str, first: int, wide: bool = False) -> list[torch.Tensor]:
        storage = [torch.empty(t.numel() + first, device="cuda", dtype=dtype) for t in inputs]
        leaves = [empty[first:].view(t.shape).copy_(t) for empty, t in zip(storage, inputs, strict=True)]
        leaves = [(t.double() if wide else t).requires_grad_() for t in leaves]
        with ops.backend(backend):
            outputs = lltm(leaves[0], offsets, *leaves[1:])
        losses = [y.double().square().sum() / 8 for y in outputs]  # keeps the parameters' gradients within float16
        return [*outputs, *torch.autograd.grad(losses, leaves)]

    exact, definition = run("torch", 0, wide=True), run("torch", 0)
    got, again = run("cuda", 0), run("cuda", 0)
    assert all(torch.equal(*pair) for pair in zip(got, again, strict=True))
    moved = run("cuda", 1)  # rows at odd places, as in a slice of something larger

    def errors(results: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
        pairs = ((result.detach().double(), wanted.detach()) for result, wanted in zip(results, exact, strict=True))
        return [float((result - wanted).abs().max() / wanted.abs().max()) for result, wanted in pairs]

    def of_short_rays(results: list[torch.Tensor]) -> list[torch.Tensor]:
        h, h_n, c_n, grad_input, _, _, grad_h0, grad_c0 = results
        return [h[:-LONG], h_n[:-1], c_n[:-1], grad_input[:-LONG], grad_h0[:-1], grad_c0[:-1]]

    # In float32 tensor cores cut sums off where the definition rounds them. Along short rays that was up to 76 eps of
    # the largest value, where the definition has 3; long rays amplify it, to 40 times the definition's. What half types
    # are rounded by grows along the one long ray, too: to 2.4 times the definition's in bfloat16.
    of_float32, of_half = [(of_short_rays, 16, 64), (list, 100, 16)], [(of_short_rays, 2, 1), (list, 3, 1)]
    limits = of_float32 if dtype == torch.float32 else of_half
    for part, times, room in limits:
        far = [times * error + room * torch.finfo(dtype).eps for error in errors(part(definition), part(exact))]
        for results in (got, moved):
            pairs = zip(errors(part(results), part(exact)), far, strict=True)
            too_far = [(error, most) for error, most in pairs if error > most]
            assert not too_far, (part.__name__, too_far)


def test_second_derivative_raises_instead_of_lying():
    (case,) = (c for c in cases("lltm") if c.name == "one_ray")
    arguments = case.arguments()
    x = arguments[0].requires_grad_()
    (gradient,) = torch.autograd.grad(lltm(*arguments)[0].sum(), x, create_graph=True)
    with raises_naming(NotImplementedError, "lltm", "second derivative"):
        gradient.sum().backward()


def test_second_derivative_beside_a_gradient_that_is_not_wanted():
    x = torch.ones(2, requires_grad=True)
    unwanted, gradient = no_second_derivative("lltm", (None, 2 * x), (x,))
    assert unwanted is None
    with raises_naming(NotImplementedError, "lltm", "second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"input": torch.rand(5)}, ValueError, ("input", "[N, I]", "[5]")),
        ({"ray_offsets": torch.tensor([0.0, 5])}, TypeError, ("ray_offsets", "int64", "float32")),
        ({"h0": torch.rand(3, 2)}, ValueError, ("h0", "[2, H]", "[3, 2]")),
        ({"c0": torch.rand(2, 3)}, ValueError, ("c0", "[2, 2]", "[2, 3]")),
        ({"weight": torch.rand(5, 6)}, ValueError, ("weight", "[6, 5]", "[5, 6]")),
        ({"h0": torch.rand(2, 2).double()}, TypeError, ("input", "h0", "float32", "float64")),
    ],
)
def test_bad_input(change, error, named):
    good = {
        "input": torch.rand(5, 3), "ray_offsets": torch.tensor([0, 2, 5]), "weight": torch.rand(6, 5),
        "bias": torch.rand(6), "h0": torch.rand(2, 2), "c0": torch.rand(2, 2),
    }  # fmt: skip
    with raises_naming(error, *named):
        lltm(**(good | change))
