# SPDX-License-Identifier: Apache-2.0
"""Adam, and the lazy one; their rate and the decay of tables in a training."""

import pytest
import torch

from nerfkit.training.step.optim import DECAY_EVERY, LazyAdam, learning_rate
from tests.naming import raises_mentioning
from tests.trainers import make_trainer, trained


def test_parameters_without_a_gradient_stay(device: str):
    a, b = (torch.ones(2, device=device, requires_grad=True) for _ in range(2))
    optimizer = LazyAdam([a, b], torch.tensor(0.5, device=device))
    a.grad = torch.tensor([0.0, 3.0], device=device)
    optimizer.step()
    assert a.tolist() == pytest.approx([1.0, 0.5]) and b.tolist() == [1.0, 1.0] and not optimizer.state[b]
    optimizer.zero_grad()
    optimizer.step()  # there is no gradient at all
    assert a.tolist() == pytest.approx([1.0, 0.5]) and optimizer.state[a]["step"] == 1


@pytest.mark.parametrize("kind", [LazyAdam, torch.optim.Adam])
@pytest.mark.parametrize("shape", [(6, 5), ()])
def test_is_adam_where_everything_has_a_gradient(device: str, kind, shape: tuple):
    """Also after a state dict that came from a file to the CPU, and one of torch's Adam with its rate as a float."""
    grads = torch.randn(4, *shape, device=device)
    x, wanted = (torch.ones(shape, device=device, requires_grad=True) for _ in range(2))
    first, whole = kind([x], 0.5, (0.8, 0.9), 1e-8), torch.optim.Adam([wanted], 0.5, (0.8, 0.9), 1e-8)
    for x.grad in grads[:2]:
        first.step()
    second = LazyAdam([x], 0.1)
    second.load_state_dict(torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, first.state_dict()))
    for x.grad in grads[2:]:
        second.step()
    for wanted.grad in grads:
        whole.step()
    assert second.state[x]["step"].device == x.device and second.state[x]["step"] == 4
    torch.testing.assert_close(x, wanted)


@pytest.mark.parametrize(
    "arguments, error, named",
    [
        (([torch.ones(2).half()], 0.1), TypeError, ("parameters", "float32", "float64", "float16")),
        (([torch.ones(2)], 0.1, (1.5, 0.9)), ValueError, ("betas", "(1.5, 0.9)")),
        (([torch.ones(2), torch.ones(2, device="meta")], 0.1), ValueError, ("parameters", "['cpu', 'meta']")),
    ],
)
def test_bad_input(arguments: tuple, error, named: tuple):
    with raises_mentioning(error, *named):
        LazyAdam(*arguments)


def test_a_sparse_gradient_is_refused_and_changes_nothing():
    x = torch.ones(3, requires_grad=True)
    optimizer = LazyAdam([x], 0.1)
    x.grad = torch.ones(3).to_sparse()
    with raises_mentioning(TypeError, "dense"):
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


def test_the_optimiser_takes_the_rate_of_the_schedule(small_config):
    """Adam's first step is as long as its rate, a sixth of it in a warm-up of six."""
    trainer = make_trainer(small_config)
    bias = trainer.model.decoder.color_net.layers()[-1][1]
    before = bias.detach().clone()
    trainer.train_step()
    torch.testing.assert_close((bias - before).abs(), torch.full((3,), 0.005), rtol=1e-3, atol=0)


@pytest.mark.parametrize("optimizer, stands_still", [("adam", False), ("lazy_adam", True)])
def test_the_optimiser_is_the_one_asked_for(small_config, optimizer: str, stands_still: bool):
    small_config.trainer.optimizer = optimizer
    trainer = trained(small_config, 1)
    table = trainer.model.grid.table
    before = table.detach().clone()
    table.grad = torch.zeros_like(table)
    trainer.optimizer.step()
    assert torch.equal(table, before) == stands_still


def test_how_the_rate_falls(small_config):
    settings = small_config.trainer
    settings.learning_rate, settings.final_learning_rate = 0.1, 0.001
    found = [learning_rate(settings, 100, progress) for progress in (0.0, 0.25, 0.5, 1.0, 1.7)]
    assert found == pytest.approx([0.1, 0.07525, 0.0505, 0.001, 0.001])


@pytest.mark.parametrize("steps, warmup", [(10**6, 100), (1000, 100), (100, 10), (3, 1)])
def test_how_the_rate_rises(small_config, steps: int, warmup: int):
    small_config.trainer.steps, rate = steps, small_config.trainer.learning_rate
    risen = [learning_rate(small_config.trainer, step, 0.0) / rate for step in (0, warmup - 1, warmup)]
    assert risen == pytest.approx([1 / warmup, 1, 1])


def test_tables_decay_by_the_rate_and_networks_do_not(small_config):
    """As if each step shrank a table by (1 - rate * decay), over a rate that changes, beside the optimiser's step."""
    small_config.trainer.learning_rate, small_config.trainer.weight_decay = 0.02, 0.3
    trainer, shrunk = make_trainer(small_config), 1.0
    trainer.optimizer.step = lambda: None
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for step in range(2 * DECAY_EVERY):
        if step % DECAY_EVERY == 0:
            shrunk *= (1 - trainer.learning_rate() * 0.3) ** DECAY_EVERY
        trainer.train_step()
    changed = [name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])]
    assert changed == ["grid.table"] and shrunk < 0.98
    torch.testing.assert_close(trainer.model.grid.table, before["grid.table"] * shrunk, rtol=1e-5, atol=0)
