# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nerfkit import ops
from nerfkit.ops import lazy_adam
from tests.naming import raises_naming
from tests.ops.cases import adam_inputs
from tests.ops.harness import backend_params, checks_of, drawn_backends

TestLazyAdam = checks_of("lazy_adam")

PARTS = [(slice(1, None), slice(1, None)), (slice(1, 5), slice(None)), (slice(None), slice(0, 3))]  # of 7 x 5


@settings(max_examples=25, deadline=None)
@given(size=st.integers(0, 5000), share=st.sampled_from([0.0, 0.01, 0.5, 1.0]), on=drawn_backends("lazy_adam"))
def test_only_what_has_a_gradient_changes(size: int, share: float, on: tuple[str, str]):
    backend, device = on
    arguments = [x.to(device) if isinstance(x, Tensor) else x for x in adam_inputs(size, share=share)]
    state = [arguments[place] for place in (0, 2, 3)]
    before, changes = [x.clone() for x in state], arguments[1] != 0
    with ops.backend(backend):
        after = lazy_adam(*arguments)
    for old, x, returned in zip(before, state, after, strict=True):
        assert returned is x and torch.equal(x != old, changes)


@pytest.mark.parametrize("backend, device", backend_params("lazy_adam"))
def test_is_adam_where_all_elements_have_a_gradient(backend: str, device: str):
    dtype = torch.float64
    wanted = torch.randn(6, 5, dtype=dtype, device=device).requires_grad_()
    param = wanted.detach().clone()
    adam = torch.optim.Adam([wanted], lr=2.0**-7, betas=(0.8, 0.95), eps=1e-3)
    moments = [torch.zeros_like(param) for _ in range(2)]
    with ops.backend(backend):
        for step in range(1, 6):
            wanted.grad = torch.randn_like(param)
            adam.step()
            number = torch.tensor(float(step), device=device)
            lazy_adam(param, wanted.grad, *moments, number, torch.tensor(2.0**-7, device=device), 0.8, 0.95, 1e-3)
    torch.testing.assert_close(param, wanted.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend, device", backend_params("lazy_adam"))
def test_the_first_step_is_as_long_as_the_rate_even_for_tiny_gradients(backend: str, device: str):
    grad = torch.tensor([1e-9, -3e-7, 5.0, 0.0], device=device)
    param, *moments = (torch.zeros(4, device=device) for _ in range(3))
    step, lr = torch.tensor(1.0, device=device), torch.tensor(0.5, device=device)
    with ops.backend(backend):
        lazy_adam(param, grad, *moments, step, lr)
    torch.testing.assert_close(param.cpu(), torch.tensor([-0.5, 0.5, -0.5, 0.0]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("backend, device", backend_params("lazy_adam"))
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_tensor_is_written_in_place(backend: str, device: str, part: tuple):
    whole = [x.to(device) if isinstance(x, Tensor) else x for x in adam_inputs(7, 5, share=0.7)]
    wanted = [x[part].clone() if isinstance(x, Tensor) and x.dim() else x for x in whole]
    before = [whole[place].clone() for place in (0, 2, 3)]
    with ops.backend("torch"):
        results = lazy_adam(*wanted)
    with ops.backend(backend):
        lazy_adam(*(x[part] if isinstance(x, Tensor) and x.dim() else x for x in whole))
    for place, old, result in zip((0, 2, 3), before, results, strict=True):
        torch.testing.assert_close(whole[place][part], result)
        old[part] = whole[place][part]
        assert torch.equal(whole[place], old), "nothing beside the part changes"


@pytest.mark.parametrize("backend, device", backend_params("lazy_adam"))
def test_a_graph_of_the_old_values_raises(backend: str, device: str):
    arguments = [x.to(device) if isinstance(x, Tensor) else x for x in adam_inputs(4, share=1.0)]
    param = arguments[0].requires_grad_()
    squares = (param * param).sum()
    with ops.backend(backend):
        lazy_adam(*arguments)
    with pytest.raises(RuntimeError, match="inplace"):
        squares.backward()


@pytest.mark.parametrize("backend, device", backend_params("lazy_adam"))
def test_nan_stays_in_its_element(backend: str, device: str):
    arguments = [x.to(device) if isinstance(x, Tensor) else x for x in adam_inputs(50, share=1.0)]
    arguments[1][17] = math.nan
    with ops.backend(backend):
        for x in lazy_adam(*arguments):
            assert (~x.isfinite()).nonzero().flatten().tolist() == [17]


@pytest.mark.parametrize(
    "change, error, named",
    [
        ({"grad": torch.rand(3)}, ValueError, ("grad", "[4, 2]", "[3]")),
        ({"exp_avg": torch.rand(4, 1)}, ValueError, ("exp_avg", "[4, 2]", "[4, 1]")),
        ({"exp_avg_sq": torch.rand(4, 2).double()}, TypeError, ("param", "exp_avg_sq", "float32")),
        ({"param": torch.rand(4, 2).half()}, TypeError, ("param", "float32", "float64", "float16")),
        ({"step": torch.ones(2)}, ValueError, ("step", "[2]")),
        ({"lr": torch.tensor(0.1).double()}, TypeError, ("lr", "float32", "float64")),
        ({"found_inf": torch.zeros(0)}, ValueError, ("found_inf", "[0]")),
        ({"beta1": 1.0}, ValueError, ("beta1", "0", "1", "1.0")),
        ({"beta2": math.nan}, ValueError, ("beta2", "0", "1", "nan")),
    ],
)
def test_bad_input(change, error, named):
    good = {name: torch.rand(4, 2) for name in ("param", "grad", "exp_avg", "exp_avg_sq")}
    good |= {"step": torch.tensor(1.0), "lr": torch.tensor(0.1)}
    with raises_naming(error, *named):
        lazy_adam(**(good | change))
