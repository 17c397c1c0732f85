# SPDX-License-Identifier: Apache-2.0
"""What a training step is given: rays of all pixels, each with its own, from all images or from a window of them."""

import pytest
import torch

from nerfkit.data.images import batch
from nerfkit.data.images.batch import (
    REFRESH_EVERY,
    AllPixels,
    Batch,
    ImagePool,
    TrainingViews,
    WindowOfPixels,
    pixel_source,
)
from nerfkit.data.load import load_scene
from nerfkit.errors import SceneError
from nerfkit.model.compositing import Rendering
from nerfkit.training.step.losses import squared_error
from tests.naming import raises_naming
from tests.trainers import make_trainer, state_of


@pytest.fixture(scope="module")
def views(toy_scene) -> TrainingViews:
    """Of images whose pixels say where they are: view, row and column."""
    cameras = load_scene(str(toy_scene)).split("train").cameras
    places = torch.meshgrid(*map(torch.arange, (len(cameras), cameras.height, cameras.width)), indexing="ij")
    return TrainingViews(cameras, torch.stack(places, dim=-1).to(torch.uint8), "white")


def test_background_and_jitter_are_others_for_each_ray(toy_scene):
    cameras = load_scene(str(toy_scene)).split("train").cameras
    images = torch.zeros(len(cameras), cameras.height, cameras.width, 4, dtype=torch.uint8)
    drawn = TrainingViews(cameras, images, "random").draw(1000)
    assert drawn.background.shape == (1000, 3) and drawn.background.unique().numel() > 2000
    for values in (drawn.background, drawn.jitter):
        assert values.mean() == pytest.approx(0.5, abs=0.05) and values.std() == pytest.approx(12**-0.5, abs=0.03)


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


CPU = torch.device("cpu")


def pool_of_numbers(sizes: list[tuple[int, int]], masked: bool) -> ImagePool:
    """Images whose pixels say where they are: (view, row, column); a mask ignores odd columns."""
    rows = []
    for view, (width, height) in enumerate(sizes):
        row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        rows.append(torch.stack([torch.full_like(row, view), row, column], dim=-1).flatten(0, 1))
    pixels = torch.cat(rows).to(torch.uint8)
    ends = torch.tensor([len(part) for part in rows]).cumsum(0)
    first = ends - torch.tensor([len(part) for part in rows])
    return ImagePool(pixels, first, tuple(sizes), pixels[:, 2] % 2 == 1 if masked else None)


SIZES = {"equal": [(7, 5)] * 20, "mixed": [(3 + k % 5, 9 - k % 4) for k in range(20)]}
SLOT = {"equal": 7 * 5, "mixed": 7 * 9}


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("windowed", [False, True], ids=["all", "window"])
def test_what_is_drawn_is_where_it_says(windowed: bool, kind: str, masked: bool):
    pool = pool_of_numbers(SIZES[kind], masked)
    source = WindowOfPixels(pool, CPU, 9 * 8 * 4 * 9) if windowed else AllPixels(pool)
    torch.manual_seed(3)
    for step in (0, REFRESH_EVERY, 40 * REFRESH_EVERY, 7):
        source.move_to(step)
        drawn = source.draw(4000)
        where = torch.stack([drawn.view, drawn.row, drawn.column], dim=-1)
        assert torch.equal(where, drawn.color.long())
        assert (drawn.ignored is None) != masked
        assert not masked or torch.equal(drawn.ignored, drawn.column % 2 == 1)
        if windowed:
            assert set(drawn.view.tolist()) == set(source.views), "only what is in the window, and all of it"


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("windowed", [False, True], ids=["all", "window"])
def test_pixels_are_equally_likely(windowed: bool, kind: str):
    pool = pool_of_numbers(SIZES[kind], False)
    source = WindowOfPixels(pool, CPU, 8 * 3 * SLOT[kind]) if windowed else AllPixels(pool)
    source.move_to(0)
    views = source.views if windowed else range(20)
    n_pixels = sum(pool.sizes[view][0] * pool.sizes[view][1] for view in views)
    torch.manual_seed(0)
    drawn = source.draw(200 * n_pixels)
    counts = torch.unique(torch.stack([drawn.view, drawn.row, drawn.column]), dim=1, return_counts=True)[1]
    assert len(counts) == n_pixels
    assert ((counts - 200).abs() < 6 * 200**0.5).all(), "a Poisson count of 200, within six deviations"


def test_every_image_comes_once_in_a_turn():
    pool = pool_of_numbers(SIZES["equal"], False)
    source = WindowOfPixels(pool, CPU, 8 * 3 * 35)
    source.move_to(0)
    came = list(source.views)
    for refresh in range(1, 33):
        before = list(source.views)
        source.move_to(refresh * REFRESH_EVERY)
        changed = [slot for slot in range(8) if source.views[slot] != before[slot]]
        assert len(changed) <= 1, "one image is exchanged"
        came.append(source.views[(refresh - 1) % 8])
        source.move_to(refresh * REFRESH_EVERY + REFRESH_EVERY - 1)
    assert sorted(came[:20]) == sorted(came[20:40]) == list(range(20))
    assert came[:20] != came[20:40]


def test_the_window_depends_on_the_step_alone():
    step = 5000
    walked, jumped = (WindowOfPixels(pool_of_numbers(SIZES["mixed"], True), CPU, 8 * 4 * 63) for _ in range(2))
    for earlier in range(step - 400, step + 1):
        walked.move_to(earlier)
    jumped.move_to(step)
    assert walked.views == jumped.views
    assert torch.equal(walked.slot_end, jumped.slot_end)
    for slot, view in enumerate(walked.views):
        count = int(walked.counts[view])
        for name in ("colors", "ignored"):
            rows = slice(slot * walked.slot_size, slot * walked.slot_size + count)
            assert torch.equal(getattr(walked, name)[rows], getattr(jumped, name)[rows])


def test_a_device_too_small_for_a_few_images_is_refused():
    with raises_naming(SceneError, "data.downscale", "cpu"):
        WindowOfPixels(pool_of_numbers(SIZES["equal"], False), CPU, 7 * 3 * 35)


def test_training_on_a_window_resumes_to_the_bit(small_config, tmp_path, monkeypatch):
    made = []

    def window(pool: ImagePool, device: torch.device, n_steps: int) -> WindowOfPixels:
        made.append(WindowOfPixels(pool, device, 8 * pool.bytes() // len(pool)))
        return made[-1]

    monkeypatch.setattr(batch, "pixel_source", window)
    straight = make_trainer(small_config)
    while straight.step < 50:
        straight.train_step()
    first = make_trainer(small_config)
    while first.step < 21:
        first.train_step()
    first.save(tmp_path / "run")
    second = make_trainer(small_config)
    second.restore(tmp_path / "run")
    while second.step < 50:
        second.train_step()
    assert made[0].n_slots == 8 < len(made[0].pool) and made[0].views == made[2].views
    wanted = state_of(straight)
    for name, value in state_of(second).items():
        assert torch.equal(value, wanted[name]), name


@pytest.mark.cuda
def test_images_beyond_half_of_the_memory_go_through_a_window():
    device = torch.device("cuda", torch.cuda.current_device())
    pool = ImagePool(
        torch.randint(256, (64 * 2**20, 4), dtype=torch.uint8), 2**20 * torch.arange(64), ((1024, 1024),) * 64
    )
    total = torch.cuda.mem_get_info(device)[1]
    assert isinstance(pixel_source(pool, device, 100_000), AllPixels)
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved(device) + 2 * 100 * 2**20
    torch.cuda.set_per_process_memory_fraction(allowed / total, device)
    try:
        source = pixel_source(pool, device, 100_000)
        assert isinstance(source, WindowOfPixels) and 20 <= source.n_slots <= 25
        for step in range(0, 40 * REFRESH_EVERY, 8):
            source.move_to(step)
            drawn = source.draw(1000)
            number = drawn.view * 2**20 + drawn.row * 1024 + drawn.column
            assert torch.equal(drawn.color.cpu(), pool.pixels[number.cpu()])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@pytest.mark.parametrize(("n_steps", "every"), [(100_000, 16), (48, 3), (5, 1)])
def test_every_image_is_seen_in_the_steps_that_there_are(n_steps: int, every: int):
    source = WindowOfPixels(pool_of_numbers(SIZES["equal"], False), CPU, 8 * 3 * 35, n_steps)
    assert source.every == every
    assert ("TOO FEW" in source.text) == (n_steps == 5)
    seen = set()
    for step in range(min(n_steps, 400)):
        source.move_to(step)
        seen |= set(source.views)
    assert (len(seen) == 20) == (n_steps > 5)
