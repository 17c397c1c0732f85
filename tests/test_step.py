# SPDX-License-Identifier: Apache-2.0
"""A step of training: of fixed sizes, recorded, in half precision; its optimizers."""

import threading

import pytest
import torch

from nerfkit import ops
from nerfkit.data.load import load_scene
from nerfkit.errors import TrainingError
from nerfkit.rendering.image_renderer import ImageRenderer, in_eval_mode
from nerfkit.training import trainer as training
from nerfkit.training.run import checkpoint
from nerfkit.training.step import training_step
from nerfkit.training.step.losses import squared_error
from nerfkit.training.step.optim import DECAY_EVERY, LazyAdam, learning_rate
from nerfkit.training.trainer import Trainer
from tests.naming import raises_mentioning
from tests.toy_scene import write_scene
from tests.trainers import make_trainer, trained


@pytest.mark.parametrize("background, learned", [("white", False), ("random", True)])
def test_a_step_of_fixed_sizes_equals_one_of_exact_sizes(small_config, monkeypatch, background: str, learned: bool):
    """The same rays, samples and gradients, also of light and poses, with room to spare; the rows that no ray needs
    change nothing."""
    small_config.data.background = background
    if learned:
        small_config.data.appearance, small_config.data.pose_optimization = "affine", True
    monkeypatch.setattr(training_step, "MAX_RAYS", 300)
    trainers = [make_trainer(small_config) for name in ("exact", "fixed")]
    for trainer in trainers:
        trainer.training_step.n_rays.fill_(300)
        trainer.training_step.static_shapes = trainer is trainers[1]
        torch.manual_seed(5)
        for p in trainer.adjustments.parameters():
            p.data = 0.01 * torch.randn_like(p)
        trainer.model.sampler.occupancy.copy_(torch.rand(trainer.model.sampler.occupancy.shape) < 0.3)
        trainer.training_step._run()
    exact, fixed = (trainer.training_step for trainer in trainers)
    torch.testing.assert_close(fixed.last_loss, exact.last_loss)
    assert fixed.pop_stats()[1:4] == pytest.approx(exact.pop_stats()[1:4])
    for name, p in trainers[0].parameters.items():
        assert p.grad.any() or not name.startswith("views.")
        torch.testing.assert_close(trainers[1].parameters[name].grad, p.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_rays_that_are_cut_off_are_not_learned_from(small_config, monkeypatch):
    """In a step of fixed sizes: neither those that have no room nor those that only fill it."""
    monkeypatch.setattr(training_step, "MAX_RAYS", 300)
    seen = {}

    def loss_fn(rendering, batch):
        seen.update(weight=batch.weight, complete=rendering.samples.ray_complete)
        return squared_error(rendering, batch)

    trainer = make_trainer(small_config, loss_fn=loss_fn)
    trainer.training_step.n_rays.fill_(250)
    trainer.training_step.static_shapes = True
    trainer.training_step._run()
    active, complete = torch.arange(300) < 250, seen["complete"]
    assert 50 < complete[active].sum() < 250
    assert torch.equal(seen["weight"], (complete & active).float())


def test_the_background_is_random_at_first(small_config, monkeypatch):
    """And stays so where it is asked for by name."""
    monkeypatch.setattr(training, "BACKGROUND_STEPS", 2)
    small_config.data.background = "black"
    trainer = make_trainer(small_config)
    is_plain = []
    for _ in range(4):
        trainer.train_step()
        is_plain.append(not trainer.views.draw(50).background.any())
    assert is_plain == [False, False, True, True]
    small_config.data.background = "random"
    assert make_trainer(small_config).views.draw(50).background.all()


def test_images_without_alpha_keep_their_background(small_config, tmp_path):
    """What is behind them is in them: over anything else they would be learned as a solid box, unless that is asked."""
    small_config.data.path = str(write_scene(tmp_path / "scene", size=(9, 7), extension="jpg"))
    small_config.data.background = "black"
    trainer = trained(small_config, 1)
    assert not trainer.views.draw(50).background.any()
    small_config.data.background = "random"
    assert 0.2 < make_trainer(small_config).views.draw(500).background.std() < 0.4
    small_config.data.background = None
    assert (make_trainer(small_config).views.draw(50).background == 1).all(), "white, where nothing is known"


@pytest.fixture(params=["adam", "lazy_adam"])
def gpu_config(small_config, request):
    small_config.trainer.optimizer = request.param
    small_config.device = "cuda"
    small_config.model.levels, small_config.trainer.steps = 8, 1000
    small_config.trainer.deterministic = True
    return small_config


def differing(a: Trainer, b: Trainer) -> list[str]:
    ours, theirs = a.model.state_dict(), b.model.state_dict()
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]


WITH = {  # what changes in a step with its number, or that it learns beside the model
    "the_defaults": {},
    "light_and_poses": {"data": {"appearance": "affine", "pose_optimization": True}},
    "unbounded": {"sampling": {"kind": "contracted"}, "trainer": {"distortion": 0.003, "learning_rate": 0.02}},
    "robust": {"trainer": {"robust": True}},
}


@pytest.mark.cuda
@pytest.mark.parametrize("name", WITH)
def test_a_recorded_step_is_the_step_itself(gpu_config, name: str):
    for group, values in WITH[name].items():
        for key, value in values.items():
            setattr(getattr(gpu_config, group), key, value)
    trainers = [make_trainer(gpu_config) for _ in ("recorded", "not")]
    trainers[1].training_step.eager_steps = -1000
    for trainer in trainers:
        torch.manual_seed(3)
        for _ in range(40):
            trainer.train_step()
    recorded, other = (trainer.training_step for trainer in trainers)
    assert recorded.graph is not None and other.graph is None
    assert recorded.pop_stats() == other.pop_stats() and differing(*trainers) == []
    ours, theirs = (t.adjustments.state_dict() | t.training_step.outliers.state_dict() for t in trainers)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert all(x.any() for x in ours.values()), "learned, too"


@pytest.mark.cuda
def test_40_recorded_steps_equal_20_and_20_with_images_between_replays(gpu_config, tmp_path):
    whole, first = trained(gpu_config, 40), trained(gpu_config, 20)
    first.save(tmp_path / "parts")
    second = make_trainer(gpu_config)
    second.restore(tmp_path / "parts")
    cameras = load_scene(gpu_config.data.path).split("test").cameras.to("cuda")
    for _ in range(20):
        second.train_step()
        second.settle()
        with in_eval_mode(second.model):
            ImageRenderer(second.model, torch.ones(3, device="cuda"))(cameras, 0)
    assert second.training_step.graph is not None and differing(whole, second) == []


@pytest.mark.cuda
def test_nan_in_a_recorded_step_is_found_at_the_next_log(gpu_config, tmp_path):
    trainer = trained(gpu_config, 10)
    trainer.save(tmp_path / "run")
    with torch.no_grad():
        trainer.model.decoder.color_net.layers()[-1][1].fill_(float("nan"))
    table = trainer.model.grid.table.detach().clone()
    with raises_mentioning(TrainingError, "nan", "step 50", tmp_path / "run"):
        trainer.train(tmp_path / "run")
    assert torch.equal(trainer.model.grid.table, table), "Adam stood still"
    assert checkpoint.load(tmp_path / "run")[1]["step"] == 10


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam"])
def test_a_step_that_overflows_is_skipped_and_the_scale_falls(small_config, tmp_path, optimizer: str):
    """As in half precision on a GPU, with its sizes and its scaler but without a graph; so is a loss of NaN."""
    small_config.trainer.optimizer = optimizer
    trainer = make_trainer(small_config)
    assert isinstance(trainer.optimizer, LazyAdam) == (optimizer == "lazy_adam")
    step, table, bias = trainer.training_step, trainer.model.grid.table, trainer.model.decoder.color_net.layers()[-1][1]
    step.static_shapes, step.scaler = True, torch.amp.GradScaler("cpu", init_scale=1024.0)
    step._run()
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    torch.testing.assert_close(trainer.optimizer.state[table]["exp_avg"], 0.1 * table.grad / 1024)
    hook = table.register_hook(lambda grad: grad * float("inf"))
    step._run()
    hook.remove()
    assert step.scaler.get_scale() == 512
    kept = bias.detach().clone()
    bias.data.fill_(float("nan"))
    step._run()
    bias.data.copy_(kept)
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())
    assert not step.failed and step.scaler.get_scale() == 256 and trainer.optimizer.state[table]["step"] == 1
    step._run()
    assert not torch.equal(table, before["grid.table"])
    trainer.save(tmp_path / "run")
    assert checkpoint.load(tmp_path / "run")[1]["scaler"]["scale"] == 256


@pytest.mark.cuda
def test_another_backend_on_the_way_is_taken(small_config, tmp_path):
    small_config.device, small_config.model.levels = "cuda", 8
    trainer = make_trainer(small_config)
    for backend, fixed in (("cuda", True), ("torch", False), ("cuda", True)):
        with ops.backend(backend):
            for _ in range(6):
                trainer.train_step()
            assert trainer.training_step.static_shapes == fixed and (trainer.training_step.graph is not None) == fixed
    trainer.save(tmp_path / "run")
    trainer.restore(tmp_path / "run")
    trainer.train_step()
    assert trainer.training_step.graph is None, "what it was recorded with is gone"


@pytest.mark.two_gpus
def test_training_on_the_second_gpu(small_config, tmp_path):
    small_config.device, small_config.model.levels = "cuda:1", 8
    trainer = make_trainer(small_config)
    before = trainer.model.grid.table.detach().clone()
    for _ in range(6):
        trainer.train_step()
    assert trainer.training_step.graph is not None and not torch.equal(trainer.model.grid.table, before)


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["torch", "cuda"])
def test_training_on_a_gpu_learns_the_toy_scene(small_config, backend: str):
    small_config.device, small_config.model.levels = "cuda", 8
    with ops.backend(backend):
        trainer = trained(small_config, 150)
        assert trainer.training_step.static_shapes == (backend == "cuda")
        trainer.pop_stats()
        for _ in range(50):
            trainer.train_step()
    assert trainer.pop_stats()["psnr"] > 17, "white scores 12"


@pytest.mark.cuda
def test_recording_leaves_other_threads_free(small_config):
    """A viewer's thread allocates and waits on the GPU while a step is recorded. (It may not draw random numbers from
    torch's own generator of the device, which is the recording's meanwhile.)"""
    small_config.device, small_config.model.levels = "cuda", 8
    trainer, errors = make_trainer(small_config), []

    def train() -> None:
        try:
            for _ in trainer.steps():
                pass
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    while thread.is_alive():
        torch.ones(1000, 100 + int(torch.randint(9, ())), device="cuda").sum().item()
    assert errors == [] and trainer.step == 60


def test_deterministic_is_asked_of_torch_for_a_step_alone(small_config):
    seen = []
    small_config.trainer.deterministic = True
    trainer = make_trainer(small_config)
    trainer.model.update = lambda step: seen.append(torch.are_deterministic_algorithms_enabled())
    trainer.train_step()
    assert seen == [True] and not torch.are_deterministic_algorithms_enabled()


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
def test_lazy_adam_is_adam_where_everything_has_a_gradient(device: str, kind, shape: tuple):
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
def test_what_lazy_adam_cannot_take_is_named(arguments: tuple, error, named: tuple):
    with raises_mentioning(error, *named):
        LazyAdam(*arguments)


def test_a_sparse_gradient_is_refused_and_changes_nothing():
    x = torch.ones(3, requires_grad=True)
    optimizer = LazyAdam([x], 0.1)
    x.grad = torch.ones(3).to_sparse()
    with raises_mentioning(TypeError, "dense"):
        optimizer.step()
    assert not optimizer.state[x]


def test_how_the_rate_rises_and_falls(small_config):
    settings = small_config.trainer
    settings.learning_rate, settings.final_learning_rate = 0.1, 0.001
    for settings.steps, warmup in ((10**6, 100), (1000, 100), (100, 10), (3, 1)):
        risen = [learning_rate(settings, step, 0.0) for step in (0, warmup - 1, warmup)]
        assert risen == pytest.approx([0.1 / warmup, 0.1, 0.1])
    falling = [learning_rate(settings, 100, progress) for progress in (0.0, 0.25, 0.5, 1.0, 1.7)]
    assert falling == pytest.approx([0.1, 0.07525, 0.0505, 0.001, 0.001])


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
