# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import Tensor

from nerfkit import ops
from nerfkit.ops import lltm
from nerfkit.ops.packed import offsets_from_counts
from tests.naming import raises_mentioning
from tests.ops.cases import lltm as lltm_case
from tests.ops.harness import backend_params, dtype_name, fused_params

LONG = 50  # samples of one ray among short ones
SHARE = {torch.float16: 1e-2, torch.bfloat16: 8e-2, torch.float32: 1e-4}  # of the largest value


def problem(counts: tuple, n_input: int = 2, n_state: int = 3, dtype: torch.dtype = torch.float64) -> list:
    return lltm_case("rays", counts, n_input, n_state).arguments(dtype)


@pytest.mark.parametrize("backend, device", backend_params("lltm"))
def test_state_may_change_in_place_before_the_backward_pass(backend: str, device: str):
    x, offsets, weight, bias, h0, c0 = (value.to(device) for value in problem((3, 2)))
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
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=dtype_name)
@pytest.mark.parametrize("n_state, n_input", [(16, 16), (5, 3), (64, 4)])
def test_a_gradient_that_is_not_asked_for_changes_no_other(backend, device, dtype, n_state, n_input):
    x, offsets, weight, *rest = (value.to(device) for value in problem((3, 0, 5), n_input, n_state, dtype))

    def gradients(**wanted: bool) -> list[Tensor]:
        inputs = {"x": x, "weight": weight} | dict(zip(("bias", "h0", "c0"), rest, strict=True))
        inputs = {name: value.detach().requires_grad_(wanted.get(name, True)) for name, value in inputs.items()}
        with ops.backend(backend):
            total = sum(y.sum() for y in lltm(inputs["x"], offsets, *list(inputs.values())[1:]))
        total.backward()
        return [value.grad for value in inputs.values()]

    everything = gradients()
    for wanted in ({"x": False}, {"weight": False}, {"x": False, "weight": False}):
        some = gradients(**wanted)
        assert all(torch.equal(a, b) for a, b in zip(some, everything, strict=True) if a is not None)
        assert [gradient is None for gradient in some[:2]] == [name in wanted for name in ("x", "weight")]


def short_rays(n_rays: int, n_input: int, n_state: int, last: int, spread: float) -> tuple[Tensor, list[Tensor]]:
    """Offsets of rays of up to 5 samples, of which the last ray has `last`, and the other arguments of `lltm`."""
    torch.manual_seed(0)
    counts, width = torch.randint(0, 6, (n_rays,)), n_state + n_input
    counts[[0, -1]] = torch.tensor([0, last])
    x, weight = torch.randn(int(counts.sum()), n_input), torch.randn(3 * n_state, width) * spread / width**0.5
    return offsets_from_counts(counts), [x, weight, torch.randn(3 * n_state) * 0.2, *torch.randn(2, n_rays, n_state)]


@pytest.mark.cuda
@pytest.mark.parametrize("n_state, n_rays", [(32, 40), (32, 300), (64, 40), (64, 300)])
@pytest.mark.parametrize("dtype", SHARE, ids=dtype_name)
def test_without_weight_gradient(n_state: int, n_rays: int, dtype: torch.dtype):
    """The library's products are not called, so that a race checker under which they fail sees the kernels."""
    offsets, inputs = short_rays(n_rays, 5, n_state, last=5, spread=1.0)
    inputs = [t.to(dtype) for t in inputs]

    def run(backend: str, x: Tensor, weight: Tensor, *rest: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in rest]
        with ops.backend(backend):
            outputs = lltm(x, offsets.to(x.device), weight, *leaves)
        return [*outputs, *torch.autograd.grad([y.double().square().sum() for y in outputs], leaves)]

    exact = run("torch", *(t.double() for t in inputs))
    for got, wanted in zip(run("cuda", *(t.cuda() for t in inputs)), exact, strict=True):
        assert (got.detach().cpu() - wanted.detach()).abs().max() <= SHARE[dtype] * wanted.detach().abs().max()


@pytest.mark.cuda
@pytest.mark.parametrize("n_state, n_input", [(16, 16), (16, 64), (13, 29), (32, 32), (64, 16), (64, 64), (50, 47)])
@pytest.mark.parametrize("dtype", SHARE, ids=dtype_name)
@pytest.mark.parametrize("n_rays", [40, 3000, 40000], ids=["few_rays", "some_rays", "more_rays_than_fit"])
def test_a_state_of_up_to_64_units_on_a_gpu(n_state: int, n_input: int, dtype: torch.dtype, n_rays: int):
    """The same bits twice, and about as near to the exact result as the definition, which rounds at every step."""
    offsets, inputs = short_rays(n_rays, n_input, n_state, last=LONG, spread=1.4)

    def run(backend: str, wide: bool = False) -> list[Tensor]:
        leaves = [t.to("cuda", dtype) for t in inputs]
        leaves = [(t.double() if wide else t).requires_grad_() for t in leaves]
        with ops.backend(backend):
            outputs = lltm(leaves[0], offsets.cuda(), *leaves[1:])
        losses = [y.double().square().sum() / 8 for y in outputs]  # keeps the parameters' gradients within float16
        return [x.detach().double() for x in (*outputs, *torch.autograd.grad(losses, leaves))]

    def of_short_rays(results: list[Tensor]) -> list[Tensor]:
        h, h_n, c_n, grad_input, _, _, grad_h0, grad_c0 = results
        return [h[:-LONG], h_n[:-1], c_n[:-1], grad_input[:-LONG], grad_h0[:-1], grad_c0[:-1]]

    exact, definition, got, again = run("torch", wide=True), run("torch"), run("cuda"), run("cuda")
    assert all(torch.equal(*pair) for pair in zip(got, again, strict=True))
    # In float32 tensor cores cut sums off where the definition rounds them. Along short rays that was up to 76 eps of
    # the largest value, where the definition has 3; long rays amplify it, to 40 times the definition's. What half types
    # are rounded by grows along the one long ray, too: to 2.4 times the definition's in bfloat16.
    of_float32, of_half = [(of_short_rays, 16, 64), (list, 100, 16)], [(of_short_rays, 2, 1), (list, 3, 1)]
    for part, times, room in of_float32 if dtype == torch.float32 else of_half:
        for fused, defined, wanted in zip(part(got), part(definition), part(exact), strict=True):
            error, most = ((x - wanted).abs().max() / wanted.abs().max() for x in (fused, defined))
            assert error <= times * most + room * torch.finfo(dtype).eps, part.__name__


@pytest.mark.parametrize("backend, device", backend_params("lltm"))
def test_second_derivative_raises_instead_of_lying(backend: str, device: str):
    """Also where another gradient is not wanted."""
    x, offsets, *rest = (value.to(device) for value in problem((5,)))
    with ops.backend(backend):
        (gradient,) = torch.autograd.grad(lltm(x.requires_grad_(), offsets, *rest)[0].sum(), x, create_graph=True)
    with raises_mentioning(NotImplementedError, "lltm", "second derivative"):
        gradient.sum().backward()
