# SPDX-License-Identifier: Apache-2.0
"""What a training step is given: rays of all pixels, each with its own pixel, and the loss that is made of them."""

import pytest
import torch

from nerfkit.data.images.batch import Batch, TrainingViews
from nerfkit.data.images.pixels import blend
from nerfkit.data.load import load_scene
from nerfkit.model.compositing import Rendering
from nerfkit.training.step.losses import squared_error


@pytest.fixture(scope="module")
def views(toy_scene) -> TrainingViews:
    """Of images whose pixels say where they are: view, row and column."""
    cameras = load_scene(str(toy_scene)).split("train").cameras
    places = torch.meshgrid(*map(torch.arange, (len(cameras), cameras.height, cameras.width)), indexing="ij")
    return TrainingViews(cameras, torch.stack(places, dim=-1).to(torch.uint8), "white")


def test_a_ray_leads_through_its_pixel(views):
    batch = views.draw(500)
    for ray, pixel in enumerate(batch.pixels[:100].tolist()):
        view, row, column = pixel
        point = batch.rays.origins[ray] + 2 * batch.rays.directions[ray]
        seen, depth = views.cameras.project(point[None], view)
        assert seen[0].tolist() == pytest.approx([column + 0.5, row + 0.5], abs=2e-3) and depth > 0
        assert batch.view[ray] == view


def test_every_view_row_and_column_is_drawn(views):
    pixels, cameras = views.draw(4000).pixels, views.cameras
    for axis, n in enumerate((len(cameras), cameras.height, cameras.width)):
        counts = pixels[:, axis].long().bincount(minlength=n)
        assert len(counts) == n and counts.min() > 0.5 * 4000 / n and counts.max() < 2 * 4000 / n


def test_samples_are_shifted_by_a_random_part_of_a_step(views):
    jitter = views.draw(4000).jitter
    assert 0 <= jitter.min() < 0.01 and 0.99 < jitter.max() <= 1
    assert jitter.mean() == pytest.approx(0.5, abs=0.03) and jitter.std() == pytest.approx(12**-0.5, abs=0.02)


def test_a_random_background_is_another_for_each_ray(toy_scene):
    cameras = load_scene(str(toy_scene)).split("train").cameras
    images = torch.zeros(len(cameras), cameras.height, cameras.width, 4, dtype=torch.uint8)
    background = TrainingViews(cameras, images, "random").draw(1000).background
    assert background.shape == (1000, 3) and background.unique().numel() > 2000
    assert background.mean() == pytest.approx(0.5, abs=0.05)


def test_the_loss_is_the_weighted_mean_of_squared_errors(views):
    """Of colors over the batch's own background: by hand, a pixel that is half transparent."""
    pixels = torch.tensor([[255, 0, 0, 255], [0, 255, 0, 102], [7, 7, 7, 0], [9, 9, 9, 9]], dtype=torch.uint8)
    background = torch.tensor([[1.0, 1, 1], [0, 0, 0.5], [0.2, 0.4, 0.6], [0, 0, 0]])
    color = torch.tensor([[0.5, 0, 0], [0, 0, 0], [0.2, 0.4, 0.6], [1, 1, 1]])
    weight = torch.tensor([1.0, 3.0, 1.0, 0.0])
    batch = Batch(views.draw(4).rays, pixels, weight, background, torch.zeros(4))
    errors = [0.5**2 / 3, (0.4**2 + (0.6 * 0.5) ** 2) / 3, 0.0]
    wanted = (errors[0] + 3 * errors[1] + errors[2]) / 5
    loss = squared_error(Rendering(color, torch.ones(4), torch.ones(4)), batch)["mse"]
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    torch.testing.assert_close(blend(pixels, background)[1], torch.tensor([0.0, 0.4, 0.3]))
