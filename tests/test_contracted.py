# SPDX-License-Identifier: Apache-2.0
"""Training and options in unbounded space."""

import pytest
import torch

from nerfkit.config import Config
from nerfkit.model.renderer import Renderer
from nerfkit.training import alignment
from nerfkit.training.step.losses import Distortion, spacing, squared_error
from nerfkit.training.trainer import Trainer
from tests.test_sampling import forward_cameras


def small_config(**trainer) -> Config:
    config = Config(device="cpu")
    config.data.box = (-1.0, -1, -1, 1, 1, 1)
    config.model.levels, config.model.log2_table, config.model.max_resolution = 4, 10, 64
    for name, value in {
        "kind": "contracted", "step": 0.05, "cone": 0.05, "near": 0.1, "far": 100.0, "occupancy_resolution": 16,
    }.items():  # fmt: skip
        setattr(config.sampling, name, value)
    for name, value in ({"steps": 4, "samples": 2048} | trainer).items():
        setattr(config.trainer, name, value)
    return config.resolved()


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


def test_training_lowers_both_terms_of_the_loss():
    torch.manual_seed(0)
    images = torch.tensor([220, 60, 30], dtype=torch.uint8).expand(2, 16, 16, 3)
    trainer = Trainer(small_config(steps=60, distortion=0.1), forward_cameras(), images)
    seen = []
    for step in trainer.steps():
        if step in (5, 60):
            seen.append(trainer.pop_stats())
    assert set(seen[0]) >= {"loss.mse", "loss.distortion", "psnr", "seen"}
    assert seen[1]["loss.mse"] < seen[0]["loss.mse"]
    assert seen[0]["loss.distortion"] > 0
    assert trainer.model.sampler.seen.float().mean() < 1


def test_the_distortion_losss_weight_rises_to_its_full_value():
    """From nothing, so that samples do not draw together in front of a camera before there is a scene."""
    config = small_config(steps=20, distortion=0.5)
    distortion = Distortion(config)
    seen = []

    def wrapped(rendering, batch):  # a loss of one's own, beside it
        seen.append((distortion(rendering, batch) / distortion(rendering, batch._replace(progress=None))).item())
        return squared_error(rendering, batch)

    images = torch.full((2, 16, 16, 3), 99, dtype=torch.uint8)
    Trainer(config, forward_cameras(), images, loss_fn=wrapped).train()
    assert seen[0] == 0 and seen[2] == pytest.approx(0.5) and seen[-1] == pytest.approx(1)


def test_a_pose_that_is_looked_for_leaves_the_sampler_alone(monkeypatch):
    """What training rays reach is noted; the rays of a view that is scored are none."""
    monkeypatch.setattr(alignment, "STEPS", 3)
    config = small_config()
    trainer = Trainer(config, forward_cameras(), torch.full((2, 16, 16, 3), 99, dtype=torch.uint8))
    trainer.train()
    trainer.model.sampler.unreached.fill_(7)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    truth = torch.full((16, 16, 3), 0.4)
    alignment.aligned(trainer.model, config, trainer.cameras, 1, truth, None, torch.ones(3))
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    trainer.train_step()
    assert (trainer.model.sampler.unreached == 0).any(), "those of a step do count"


def test_distortion_counts_distances_as_the_intervals_are_long():
    config = small_config()
    near, far, linear = spacing(config)
    assert near == 0 and far == linear == pytest.approx(1.0), "one unit, whatever the range of the scene"
    config.sampling.kind = "box"
    assert spacing(config)[1] == pytest.approx(12**0.5)
