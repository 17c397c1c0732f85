# SPDX-License-Identifier: Apache-2.0
"""People who walk through the pictures: what one image shows and the others do not have counts less."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nerfkit.data.cameras.cameras import Rays
from nerfkit.data.images.batch import Batch, ImagePool
from nerfkit.model.compositing import Rendering
from nerfkit.model.occupancy import OccupancyGrid
from nerfkit.training.step.outliers import Outliers
from tests.test_quality import score_of_object, small_object
from tests.trainers import make_trainer, state_of, trained

V = 8  # views of the made-up errors


def drawn(n_rays: int, device: str = "cpu") -> tuple[Rendering, Batch]:
    """Rays of views whose lower halves are hard everywhere, and in the first of which somebody stands."""
    view, place = torch.randint(V, (n_rays,), device=device), torch.rand(n_rays, 2, device=device)
    is_hard, is_passing = place[:, 0] > 0.5, (view == 0) & (place[:, 1] < 0.3)
    off = (0.3 * is_passing + 0.05 * is_hard + 0.02)[:, None].expand(-1, 3)
    nothing = torch.zeros(n_rays, 3, device=device)
    rays, ones = Rays(nothing, nothing, view), torch.ones(n_rays, device=device)
    batch = Batch(rays, torch.zeros_like(nothing, dtype=torch.uint8), ones, nothing, ones, place=place)
    return Rendering(off * (0.5 + torch.rand(n_rays, 1, device=device)), ones, ones), batch


def test_what_one_image_alone_shows_counts_less(device):
    """But not what is hard in all of them, nor anything at the start of a training."""
    outliers = Outliers(V).to(device)
    for _ in range(60):
        rendering, batch = drawn(2000, device)
        weight = outliers(rendering, batch)
    near_edge = (batch.place[:, 1] - 0.3).abs() < 0.07
    is_passing = (batch.view == 0) & (batch.place[:, 1] < 0.3)
    assert weight[is_passing & ~near_edge].max() < 0.1 and weight[~is_passing & ~near_edge].min() > 0.8
    assert (outliers(rendering, batch._replace(progress=torch.zeros((), device=device))) == 1).all()


def test_rays_tell_where_in_their_images_they_are(small_config):
    views = make_trainer(small_config).views
    batch = views.draw(50)
    for view, place, pixel in zip(batch.view.tolist(), batch.place, batch.pixels, strict=True):
        image = views.source.pool.image(view)
        row, column = (place * torch.tensor(image.shape[:2])).round().long().tolist()
        assert torch.equal(image[row, column], pixel)


def test_a_step_that_is_not_finite_is_forgotten():
    outliers = Outliers(V)
    rendering, batch = drawn(2000)
    outliers(rendering._replace(color=torch.full_like(rendering.color, torch.nan)), batch)
    assert all(outliers(*drawn(2000)).isfinite().all() for _ in range(3))


def test_resumed_training_remembers_who_passed_by(small_config, tmp_path):
    small_config.trainer.robust, small_config.trainer.steps = True, 20
    whole, first = trained(small_config, 20), trained(small_config, 12)
    first.save(tmp_path / "run")
    second = make_trainer(small_config)
    second.restore(tmp_path / "run")
    for _ in range(8):
        second.timed_step()
    assert whole.training_step.outliers.error.any()
    ours, theirs = state_of(whole), state_of(second)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def with_figures(pool: ImagePool, share: float = 0.3, area: float = 0.1) -> ImagePool:
    """Striped figures over so much of the `area` of a `share` of the images, elsewhere in each."""
    pool, draw = replace(pool, pixels=pool.pixels.clone()), np.random.default_rng(0)
    for view in draw.permutation(len(pool))[: round(share * len(pool))].tolist():
        image = pool.image(view).numpy()
        height, width = image.shape[:2]
        row, column = np.mgrid[:height, :width] + 0.5
        covered = np.zeros((height, width), bool)
        while covered.mean() < area:
            tall = height * draw.uniform(0.25, 0.4)
            down, across = (row - height * draw.uniform(0.2, 0.9)) / tall, (column - width * draw.uniform()) / tall
            figure = (2 * down) ** 2 + (6 * across) ** 2 < 1
            colors = draw.integers(0, 256, (2, 3))
            image[figure, :3] = colors[(3 * down[figure]).astype(int) % 2]
            image[figure, 3:] = 255
            covered |= figure
    return pool


def score(passing: bool, robust: bool) -> float:
    """Mean PSNR of the test views, which nobody walks through, after a training in miniature."""
    config = small_object(1500, 4)
    config.trainer.robust, config.model.log2_hashmap_size = robust, 15
    return score_of_object(config, with_figures if passing else lambda pool: pool)


@pytest.mark.slow
def test_an_object_is_learned_in_spite_of_passers_by(monkeypatch):
    monkeypatch.setattr(OccupancyGrid, "warmup_steps", 64)
    clean, plain, robust = (score(*how) for how in ((False, False), (True, False), (True, True)))
    assert plain < clean - 1.5 and robust > clean - 0.7, (clean, plain, robust)
