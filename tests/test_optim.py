# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from nerfkit.optim import LazyAdam


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
    x = torch.randn(4, device=device, requires_grad=True)
    first = LazyAdam([x], torch.tensor(0.5, device=device))
    x.grad = torch.randn_like(x)
    first.step()
    second = LazyAdam([x], torch.tensor(0.5, device=device))
    stored = first.state_dict()
    stored["state"][0] = {name: value.cpu() for name, value in stored["state"][0].items()}
    second.load_state_dict(stored)
    assert second.state[x]["step"].device == x.device and second.state[x]["step"] == 1
    second.step()


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
