# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from nerfkit.training.step.optim import LazyAdam, adam
from tests.naming import raises_naming


def trained(optimizer_of, device: str, steps: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(0)
    params = [torch.randn(3, 2, device=device).requires_grad_(), torch.randn(4, device=device).requires_grad_()]
    optimizer = optimizer_of(params)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
    return params


def test_is_adam_where_everything_has_a_gradient(device: str):
    rate = torch.tensor(0.1, device=device)
    got = trained(lambda params: LazyAdam(params, rate, (0.8, 0.9), 1e-8), device)
    wanted = trained(lambda params: torch.optim.Adam(params, 0.1, (0.8, 0.9), 1e-8), device)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_parameters_without_a_gradient_stay(device: str):
    a, b = (torch.ones(2, device=device, requires_grad=True) for _ in range(2))
    optimizer = LazyAdam([a, b], torch.tensor(0.5, device=device))
    a.grad = torch.tensor([0.0, 3.0], device=device)
    optimizer.step()
    assert a.tolist() == pytest.approx([1.0, 0.5]) and b.tolist() == [1.0, 1.0] and not optimizer.state[b]
    optimizer.zero_grad()
    optimizer.step()  # there is no gradient at all
    assert a.tolist() == pytest.approx([1.0, 0.5]) and optimizer.state[a]["step"] == 1


def test_state_goes_through_a_state_dict(device: str):
    """Also one that came from a file to the CPU, and from torch's Adam with its rate as a float."""
    grads = torch.randn(3, 4, device=device)
    results = []
    for first_of in (
        lambda params: LazyAdam(params, 0.5, (0.8, 0.9), 1e-8),
        lambda params: torch.optim.Adam(params, 0.5, (0.8, 0.9), 1e-8),
    ):
        x = torch.ones(4, device=device, requires_grad=True)
        first = first_of([x])
        for x.grad in grads[:2]:
            first.step()
        stored = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, first.state_dict())
        second = LazyAdam([x], 0.1)
        second.load_state_dict(stored)
        x.grad = grads[2]
        second.step()
        assert second.state[x]["step"].device == x.device and second.state[x]["step"] == 3
        results.append(x.detach())
    x = torch.ones(4, device=device, requires_grad=True)
    adam = torch.optim.Adam([x], 0.5, (0.8, 0.9), 1e-8)
    for x.grad in grads:
        adam.step()
    for result in results:
        torch.testing.assert_close(result, x.detach())


@pytest.mark.parametrize(
    "arguments, error, named",
    [
        (([torch.ones(2).half()], 0.1), TypeError, ("parameters", "float32", "float64", "float16")),
        (([torch.ones(2)], 0.1, (1.5, 0.9)), ValueError, ("betas", "0", "1", "(1.5, 0.9)")),
        (
            ([torch.ones(2), torch.ones(2, device="meta")], 0.1),
            ValueError,
            ("parameters", "['cpu', 'meta']"),
        ),
    ],
)
def test_bad_input(arguments: tuple, error, named: tuple):
    with raises_naming(error, *named):
        LazyAdam(*arguments)


def test_a_sparse_gradient_is_refused_and_changes_nothing():
    x = torch.ones(3, requires_grad=True)
    optimizer = LazyAdam([x], 0.1)
    x.grad = torch.ones(3).to_sparse()
    with raises_naming(TypeError, "dense"):
        optimizer.step()
    assert not optimizer.state[x]


@pytest.mark.cuda
def test_a_scaler_skips_what_overflows():
    x = torch.zeros(3, device="cuda", requires_grad=True)
    optimizer = LazyAdam([x], torch.tensor(0.5, device="cuda"))
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    slope = torch.tensor([1e-5, 0.0, -2.0], device="cuda")
    for factor, step in (1.0, 1), (float("inf"), 1), (1.0, 2):
        optimizer.zero_grad()
        scaler.scale((x * slope * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.state[x]["step"] == step
    torch.testing.assert_close(x.detach().cpu(), torch.tensor([-1.0, 0.0, 1.0]), rtol=1e-5, atol=0)
    assert scaler.get_scale() == 512.0


@pytest.mark.parametrize("lazy", [False, True])
def test_the_optimiser_of_a_run(lazy: bool):
    """Hash grids want a short memory of squared gradients, and no epsilon that small gradients drown in."""
    optimizer = adam([torch.nn.Parameter(torch.ones(3))], torch.tensor(0.01), lazy)
    assert isinstance(optimizer, LazyAdam if lazy else torch.optim.Adam)
    assert optimizer.defaults["betas"] == (0.9, 0.99) and optimizer.defaults["eps"] == 1e-15
