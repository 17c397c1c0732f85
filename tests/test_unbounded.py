# SPDX-License-Identifier: Apache-2.0
"""Unbounded space: its contraction, edges of distances, and training in it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nerfkit.config import Config, DataConfig, ModelConfig, SamplingConfig, TrainerConfig
from nerfkit.contraction import contract, exponential_edges, uncontract
from nerfkit.limits import MAX_EDGES
from nerfkit.model.renderer import Renderer
from nerfkit.model.sampling import FADE_IN_SHARE, FADE_IN_STEPS, Samples, build_sampler
from nerfkit.training import evaluator
from nerfkit.training.step.losses import TrainingLoss, spacing, squared_error
from nerfkit.training.trainer import Trainer
from tests.naming import raises_mentioning
from tests.test_sampling import forward_cameras

BOX = torch.tensor([[-3.0, 0.5, -1], [5, 1, 2]], dtype=torch.float64)
UNIT = torch.tensor([[-1.0] * 3, [1.0] * 3], dtype=torch.float64)
coordinates = st.lists(st.floats(-1000, 1000), min_size=3, max_size=3)


def magnitudes(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax(-1)


@given(u=coordinates)
def test_uncontract_is_the_inverse(u):
    u = torch.tensor([u], dtype=torch.float64)
    positions = BOX.mean(0) + u * (BOX[1] - BOX[0]) / 2
    contracted = contract(positions, BOX)
    back = (uncontract(contracted, BOX) - BOX.mean(0)) / ((BOX[1] - BOX[0]) / 2)
    assert (back - u).abs().max() <= 1e-12 * max(1.0, magnitudes(u).item())  # of the distance
    assert (contract(uncontract(contracted, BOX), BOX) - contracted).abs().max() <= 1e-14


@given(a=coordinates, b=coordinates, seed=st.integers(0, 99))
def test_no_point_moves_faster_than_four_thirds(a, b, seed):
    """What march's kernels rely on to skip cells."""
    a, b = (torch.tensor([x], dtype=torch.float64) for x in (a, b))
    b = a + (b - a) * 10.0 ** -(seed % 5)
    assert magnitudes(contract(a, UNIT) - contract(b, UNIT)) <= 4 / 3 * magnitudes(a - b) * (1 + 1e-9) + 1e-14


EXTREMES = [
    [0.0, 0, 0], [1, 1, 1], [-1, 1, 0], [1, 0.5, 0], [1 + 1e-7, -1 - 1e-7, 1], [1e30, 0, 0], [-1e30, 1e30, 1],
    [math.inf, 0, 0], [math.inf, -math.inf, 1], [1e38, 1e38, -1e38], [1e-40, 0, 0],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_at_the_centre_at_edges_and_at_infinity(dtype: torch.dtype):
    """On the way back; `contract` is tested below on all sides of a box."""
    there = contract(torch.tensor(EXTREMES, dtype=dtype), UNIT.to(dtype)).requires_grad_()
    assert (there.abs() <= 2).all()
    back = uncontract(there, UNIT.to(dtype))
    assert back.isfinite().all()
    assert dtype != torch.float64 or (magnitudes(back)[7:9] > 1e15).all(), "infinity is far but finite"
    assert torch.autograd.grad(back.sum(), there)[0].isfinite().all()


@pytest.mark.parametrize("dtype, side", [(torch.float32, 1e8), (torch.float64, 1e-8)])
@pytest.mark.parametrize("reach", [0.0, 1.0, 1 + 1e-6, 2.0, math.inf])
def test_faces_edges_and_corners_of_a_box_of_any_size(reach: float, side: float, dtype: torch.dtype):
    """The 26 of them, near and far: symmetric, in the cube, and moving at a finite speed, 0 at infinity."""
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0], dtype=dtype)] * 3)
    signs = signs[signs.abs().sum(-1) > 0]  # [26, 3]
    positions = torch.where(signs == 0, signs, signs * (reach * side)).requires_grad_()  # 0 * infinity would be NaN
    contracted = contract(positions, UNIT.to(dtype) * side)
    wanted = signs * (reach if reach <= 1 else 2 - 1 / reach)
    torch.testing.assert_close(contracted, wanted, rtol=0, atol=4 * torch.finfo(dtype).eps)
    for axis in range(3):
        (speed,) = torch.autograd.grad(contracted[:, axis].sum(), positions, retain_graph=True)
        assert speed.isfinite().all() and (speed.abs() * side).max() <= 2 * (1 + 1e-6)
        assert reach < 1e30 or (speed.abs() * side).max() < 1e-25


@settings(max_examples=60)
@given(
    near=st.floats(0, 5), length=st.floats(0.1, 1000), step=st.floats(0.05, 3),
    cone_angle=st.one_of(st.just(0.0), st.floats(1e-3, 0.5)), jitter=st.floats(0, 1),
)  # fmt: skip
def test_edges_covers_near_to_far(near, length, step, cone_angle, jitter):
    far = near + length
    t_edges = exponential_edges(near, far, step, cone_angle)
    lengths = t_edges.diff()
    assert len(t_edges) >= 3 and t_edges.dtype == torch.float64
    torch.testing.assert_close(lengths, (cone_angle * t_edges[:-1]).clamp(min=step), rtol=1e-9, atol=1e-9)
    ends = t_edges[:-1] + jitter * lengths  # of march: interval k is from ends[k] to ends[k + 1]
    assert (ends.diff() > 0).all()
    assert near <= ends[0] <= t_edges[1] and ends[-1] >= far and t_edges[-3] < far


def test_no_cone_gives_equal_steps():
    assert exponential_edges(1.0, 2.0, 0.25, 0.0).tolist() == [1, 1.25, 1.5, 1.75, 2, 2.25]
    assert len(exponential_edges(0.0, MAX_EDGES - 2.0, 1.0, 0.0)) == MAX_EDGES


@pytest.mark.parametrize(
    "arguments, named",
    [
        ((0.0, 1e6, 1e-3, 0.0), ("step_size", "0.001", "cone_angle", str(MAX_EDGES))),
        ((1e20, 1e21, 1e-3, 0.0), ("step_size", "0.001", "cone_angle")),
        ((2.0, 1.0, 0.1, 0.0), ("near", "far", "2.0", "1.0")),
    ],
)
def test_bad_edges(arguments: tuple, named: tuple):
    with raises_mentioning(ValueError, *named):
        exponential_edges(*arguments)


def small_config(**trainer) -> Config:
    data = DataConfig(box=(-1.0, -1, -1, 1, 1, 1))
    model = ModelConfig(levels=4, log2_hashmap_size=10, max_resolution=64)
    sampling = SamplingConfig("contracted", 0.05, cone_angle=0.05, near=0.1, far=100.0, occupancy_resolution=16)
    options = TrainerConfig(**{"steps": 4, "samples_per_step": 2048} | trainer)
    return Config(device="cpu", data=data, model=model, sampling=sampling, trainer=options).resolved()


def test_the_field_is_defined_everywhere_with_finite_gradients():
    model = Renderer(small_config())
    far = [1.0, 1e3, 1e10, 1e30]
    points = torch.tensor([[0.0, 0, 0], [1, 1, 1], [-1, 0.5, 1]] + [[x, -x / 3, x] for x in far], requires_grad=True)
    density = model.density(points)
    density.sum().backward()
    assert density.isfinite().all() and points.grad.isfinite().all()
    assert model.normals(points).isfinite().all()
    assert -1.2 < density.log().mean() < -0.8, "a thin haze at first"
    with torch.no_grad():
        model.grid.table.normal_()
    assert len(model.density(torch.tensor([[2.0, 0, 0], [5, 0, 0], [50, 0, 0], [50, 20, 0]])).unique()) == 4


def test_the_distortion_losss_weight_rises_to_its_full_value():
    """From nothing, so that samples do not draw together in front of a camera before there is a scene."""
    config = small_config(steps=20, distortion=0.5)
    seen, distortion = [], lambda *both: TrainingLoss(config)(*both)["distortion"]

    def wrapped(rendering, batch):  # a loss of one's own, beside it
        seen.append((distortion(rendering, batch) / distortion(rendering, batch._replace(progress=None))).item())
        return squared_error(rendering, batch)

    images = torch.full((2, 16, 16, 3), 99, dtype=torch.uint8)
    Trainer(config, forward_cameras(), images, loss_fn=wrapped).train()
    assert seen[0] == 0 and seen[2] == pytest.approx(0.5) and seen[-1] == pytest.approx(1)


def test_what_is_near_a_camera_learns_slower_at_first():
    """So that no fog before each camera is there before the scene; the radius of the box is 1 here."""
    sampler = build_sampler(small_config(steps=80_000))
    starts = torch.tensor([0.1, 0.5, 3.0])
    samples = Samples(torch.zeros(3, 3), starts, starts, torch.arange(3), torch.arange(4), torch.ones(3).bool())

    def gradients() -> list[float]:
        density, rgb = torch.ones(3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
        of_model = density * 1, rgb * 1
        sampler.fade_in(samples, *of_model)
        (of_model[0].sum() + of_model[1].sum()).backward()
        assert torch.equal(rgb.grad, density.grad[:, None].expand(3, 3))
        return density.grad.tolist()

    sampler.update(lambda positions: torch.zeros(len(positions)), 0)
    assert gradients() == pytest.approx([0.01, 0.25, 1])
    sampler.progress = FADE_IN_SHARE / 2
    sampler.update(lambda positions: torch.zeros(len(positions)), 1)
    assert gradients() == pytest.approx([0.04, 1, 1]), "a short training has no 1000 steps for it"
    sampler.update(lambda positions: torch.zeros(len(positions)), FADE_IN_STEPS)
    assert gradients() == [1, 1, 1]


def test_a_pose_that_is_looked_for_leaves_the_sampler_alone(monkeypatch):
    """What training rays reach is noted; the rays of a view that is scored are none."""
    monkeypatch.setattr(evaluator, "STEPS", 3)
    config = small_config()
    trainer = Trainer(config, forward_cameras(), torch.full((2, 16, 16, 3), 99, dtype=torch.uint8))
    trainer.train()
    trainer.model.sampler.unreached.fill_(7)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    truth = torch.full((16, 16, 3), 0.4)
    evaluator.aligned(trainer.model, config, trainer.cameras, 1, truth, None, torch.ones(3))
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    trainer.train_step()
    assert (trainer.model.sampler.unreached == 0).any(), "those of a step do count"


def test_distortion_counts_distances_as_the_intervals_are_long():
    config = small_config()
    near, far, linear = spacing(config)
    assert near == 0 and far == linear == pytest.approx(1.0), "one unit, whatever the range of the scene"
    config.sampling.kind = "box"
    assert spacing(config)[1] == pytest.approx(12**0.5)
