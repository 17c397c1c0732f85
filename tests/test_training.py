# SPDX-License-Identifier: Apache-2.0
import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nerfkit import checkpoint, ops, run
from nerfkit import config as config_module
from nerfkit.errors import RunError, SceneError, TrainingError
from nerfkit.evaluator import evaluate
from nerfkit.scene import load_scene
from nerfkit.trainer import NAN_REPORT, Trainer


def make_trainer(config, folder: Path) -> Trainer:
    folder.mkdir(exist_ok=True)
    views = load_scene(config.data.path).split("train")
    return Trainer(config, views.cameras, views.load(lambda text: None), folder, torch.device(config.device))


def loss_of_a_step(trainer: Trainer) -> float:
    trainer.train_step()
    return trainer.training_step.loss.item()


def state_of(trainer: Trainer) -> dict:
    return trainer.renderer.state_dict() | {"random": torch.get_rng_state()}


def test_training_learns_the_toy_scene(small_config, tmp_path):
    small_config.trainer.steps = 150
    trainer = make_trainer(small_config, tmp_path / "run")
    assert trainer.train()
    views = load_scene(small_config.data.path).split("test")
    state = {"seconds": trainer.seconds, "step": trainer.step}
    metrics = evaluate(trainer.renderer, small_config, views, state, tmp_path / "run", torch.device("cpu"))
    assert metrics["psnr"] > 20, "white scores 13"
    assert set(metrics) >= {"psnr", "ssim", "n_views", "train_seconds", "steps", "backend", "protocol"}
    assert metrics["protocol"]["background"] == [1, 1, 1] and metrics["n_views"] == 2
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == metrics
    assert len(list((tmp_path / "run" / "eval").glob("*.png"))) == 2


@pytest.mark.parametrize("background", ["white", "random"])
def test_100_steps_equal_50_and_50(small_config, tmp_path, background: str):
    """Bit for bit: model, optimiser, occupancy, number of rays and random states."""
    small_config.data.background = background
    small_config.trainer.steps = 1000
    small_config.trainer.log_every = 1000
    whole, first = (make_trainer(small_config, tmp_path / name) for name in ("whole", "parts"))
    torch.manual_seed(3)
    for _ in range(100):
        whole.train_step()
    wanted = {k: v.clone() for k, v in state_of(whole).items()}

    torch.manual_seed(3)
    for _ in range(50):
        first.train_step()
    first.save()
    config_module.dump(small_config, tmp_path / "parts" / run.CONFIG)
    second = make_trainer(small_config, tmp_path / "parts")
    torch.rand(17)
    second.restore()
    for _ in range(50):
        second.train_step()
    got = state_of(second)
    assert second.step == 100 and second.training_step.n_rays == whole.training_step.n_rays
    assert [name for name in wanted if not torch.equal(wanted[name], got[name])] == []
    for a, b in zip(whole.renderer.parameters(), second.renderer.parameters(), strict=True):
        moments_a, moments_b = whole.optimizer.state[a], second.optimizer.state[b]
        assert all(torch.equal(moments_a[key], moments_b[key]) for key in moments_a)


@pytest.mark.parametrize(
    "group, key, value, message",
    [
        ("data", "box", (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0), r"data.box is \(-0.8.*\) in the run, but \(-1.0, .*asked"),
        ("model", "hidden", 32, "model.hidden is 16 in the run, but 32 was asked for. Leave out model.hidden to go on"),
        ("sampling", "step", 0.05, "sampling.step is 0.04 in the run, but 0.05 was .* or train a new run with .*--out"),
        ("", "seed", 7, "seed is 0 in the run, but 7 was asked for"),
    ],
)
def test_resuming_with_other_options(small_config, tmp_path, group: str, key: str, value, message: str):
    config_module.dump(small_config, tmp_path / run.CONFIG)
    setattr(getattr(small_config, group) if group else small_config, key, value)
    with pytest.raises(RunError, match=message):
        make_trainer(small_config, tmp_path).restore()


def test_resuming_with_another_length_rate_and_place(small_config, tmp_path):
    make_trainer(small_config, tmp_path).save()
    config_module.dump(small_config, tmp_path / run.CONFIG)
    small_config.trainer.steps, small_config.trainer.learning_rate, small_config.trainer.log_every = 99, 0.01, 5
    small_config.out, small_config.eval.sheets, small_config.ops.lltm = "elsewhere", 1, "torch"
    make_trainer(small_config, tmp_path).restore()


def test_a_model_that_does_not_fit_the_configuration(small_config, tmp_path):
    make_trainer(small_config, tmp_path).save()
    small_config.model.hidden = 32
    config_module.dump(small_config, tmp_path / run.CONFIG)
    with pytest.raises(RunError, match="does not fit this configuration: (?s:.*)size mismatch for decoder"):
        make_trainer(small_config, tmp_path).restore()
    with pytest.raises(RunError, match="does not fit this configuration: (?s:.*)size mismatch for decoder"):
        run.load_renderer(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize("order", [("torch", "cpp", "torch"), ("cpp", "torch", "cpp")], ids="-".join)
def test_switching_the_backend_in_the_middle(small_config, tmp_path, order: tuple[str, ...]):
    """20 steps with one, 20 with the other, then resumed with the first; a switch changes no step that follows it."""
    if not all("cpp" in ops.available(op) for op in ops.resolved("cpu")):
        pytest.skip("needs the CPU's fused ops")
    config_module.dump(small_config, tmp_path / run.CONFIG)
    trainer = make_trainer(small_config, tmp_path)
    names = sorted(trainer.renderer.state_dict())
    losses = []
    for part, backend in enumerate(order):
        if part:
            random_state = torch.get_rng_state()
            twin = make_trainer(small_config, tmp_path)
            twin.restore()
            with ops.backend(order[part - 1]):
                stayed = loss_of_a_step(twin)
            torch.set_rng_state(random_state)
        if part == 2:
            trainer = make_trainer(small_config, tmp_path)
            trainer.restore()
        with ops.backend(backend):
            losses += [loss_of_a_step(trainer) for _ in range(20)]
            trainer.save()
        if part:
            assert losses[20 * part] == pytest.approx(stayed, rel=1e-3)
        tensors, state = checkpoint.load(tmp_path)
        assert sorted(checkpoint.part(tensors, "model")) == sorted(trainer.renderer.state_dict()) == names
        assert state["step"] == 20 * (part + 1) and set(state["backend"].values()) == {backend}
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])


@pytest.mark.parametrize("encoder, aggregator", [(False, False), (True, False), (False, True), (True, True)])
def test_ray_context_starts_as_a_plain_field(small_config, tmp_path, encoder: bool, aggregator: bool):
    """Zero-initialised residuals: before training, what the ray sees changes no color."""
    small_config.model.encoder, small_config.model.aggregator = encoder, aggregator
    renderer = make_trainer(small_config, tmp_path / "run").renderer
    n_context = renderer.grid.n_features * encoder + small_config.model.state * aggregator
    assert n_context == 0 or not renderer.decoder.color_net.layers()[0][0][:, -n_context:].any()
    positions = torch.rand(5, 3)
    density = renderer.density(positions)
    features = renderer.grid(positions)
    torch.testing.assert_close(renderer.decoder.density(features)[0], density)


@pytest.mark.parametrize("background", ["white", "random"])
def test_a_step_of_fixed_sizes_equals_one_of_exact_sizes(small_config, tmp_path, background: str):
    """The same rays, samples and gradients, with room to spare; the rows that no ray needs change nothing."""
    small_config.data.background = background
    small_config.trainer.max_rays = 300
    trainers = [make_trainer(small_config, tmp_path / name) for name in ("exact", "fixed")]
    for trainer in trainers:
        trainer.training_step.n_rays.fill_(300)
        trainer.training_step.is_fixed = trainer is trainers[1]
        torch.manual_seed(5)
        trainer.renderer.sampler.occupancy.copy_(torch.rand(trainer.renderer.sampler.occupancy.shape) < 0.3)
        trainer.training_step._run()
    exact, fixed = (trainer.training_step for trainer in trainers)
    torch.testing.assert_close(fixed.loss, exact.loss)
    assert fixed.read()[1:] == pytest.approx(exact.read()[1:])
    for a, b in zip(*(trainer.renderer.named_parameters() for trainer in trainers), strict=True):
        torch.testing.assert_close(a[1].grad, b[1].grad, rtol=1e-4, atol=1e-5, msg=a[0])


@pytest.mark.parametrize("min_transmittance", [1e-4, 0.0])
def test_rays_that_have_no_room_do_not_count(small_config, tmp_path, min_transmittance: float):
    small_config.sampling.min_transmittance = min_transmittance
    trainer = make_trainer(small_config, tmp_path / "run")
    step, renderer = trainer.training_step, trainer.renderer
    rays, _, background, jitter = step.batch(200)
    wanted, samples = renderer(rays, background, jitter)
    capacity = int(samples.ray_offsets[100]) + 1
    got, cut = renderer(rays, background, jitter, capacity)
    whole = samples.ray_offsets[1:] <= capacity
    assert torch.equal(cut.whole, whole) and 100 <= whole.sum() < 200 and cut.positions.shape[0] == capacity
    torch.testing.assert_close(got.color[whole], wanted.color[whole])
    torch.testing.assert_close(got.color[~whole], background[~whole])


@pytest.fixture
def gpu_config(small_config):
    """Training on a GPU that gives the same bits every time."""
    small_config.device = "cuda"
    small_config.model.levels, small_config.trainer.steps, small_config.trainer.log_every = 8, 1000, 10
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield small_config
    torch.use_deterministic_algorithms(before)


def differing(a: Trainer, b: Trainer) -> list[str]:
    """Names of parameters and buffers that are not the same to the bit."""
    ours, theirs = a.renderer.state_dict(), b.renderer.state_dict()
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]


@pytest.mark.cuda
def test_a_recorded_step_is_the_step_itself(gpu_config, tmp_path):
    trainers = [make_trainer(gpu_config, tmp_path / name) for name in ("recorded", "not")]
    trainers[1].training_step.eager_steps = -1000
    for trainer in trainers:
        torch.manual_seed(3)
        for _ in range(40):
            trainer.train_step()
    recorded, other = (trainer.training_step for trainer in trainers)
    assert recorded.graph is not None and other.graph is None
    assert recorded.read() == other.read() and differing(*trainers) == []


@pytest.mark.cuda
def test_40_recorded_steps_equal_20_and_20(gpu_config, tmp_path):
    whole, first = (make_trainer(gpu_config, tmp_path / name) for name in ("whole", "parts"))
    for trainer, steps in ((whole, 40), (first, 20)):
        torch.manual_seed(3)
        for _ in range(steps):
            trainer.train_step()
    first.save()
    config_module.dump(gpu_config, tmp_path / "parts" / run.CONFIG)
    second = make_trainer(gpu_config, tmp_path / "parts")
    second.restore()
    for _ in range(20):
        second.train_step()
    assert second.training_step.graph is not None and differing(whole, second) == []


@pytest.mark.cuda
def test_nan_in_a_recorded_step_is_found_at_the_next_log(gpu_config, tmp_path):
    trainer = make_trainer(gpu_config, tmp_path / "run")
    for _ in range(10):
        trainer.train_step()
    trainer.save()
    with torch.no_grad():
        trainer.renderer.decoder.color_net.layers()[-1][1].fill_(float("nan"))
    table = trainer.renderer.grid.table.detach().clone()
    with pytest.raises(TrainingError, match="the loss is nan at step 20; stopped. The last good checkpoint is kept"):
        trainer.train()
    assert torch.equal(trainer.renderer.grid.table, table), "Adam stood still"
    assert checkpoint.load(tmp_path / "run")[1]["step"] == 10


@pytest.mark.cuda
def test_a_single_loss_that_is_not_finite_is_passed_over(gpu_config, tmp_path):
    trainer = make_trainer(gpu_config, tmp_path / "run")
    for _ in range(10):
        trainer.train_step()
    bias = trainer.renderer.decoder.color_net.layers()[-1][1]
    with torch.no_grad():
        kept = bias.clone()
        bias.fill_(float("nan"))
        trainer.train_step()
        bias.copy_(kept)
    for _ in range(10):
        trainer.train_step()
    assert not trainer.training_step.failed and trainer.training_step.loss.isfinite()
    assert all(p.isfinite().all() for p in trainer.renderer.parameters())


def test_a_step_that_overflows_is_skipped_and_the_scale_falls(small_config, tmp_path):
    """As in half precision on a GPU, with its sizes and its scaler but without a graph."""
    trainer = make_trainer(small_config, tmp_path / "run")
    step = trainer.training_step
    step.is_fixed, step.scaler = True, torch.amp.GradScaler("cpu", init_scale=1024.0)
    step._run()
    before = {name: p.detach().clone() for name, p in trainer.renderer.named_parameters()}
    hook = trainer.renderer.grid.table.register_hook(lambda grad: grad * float("inf"))
    step._run()
    hook.remove()
    assert all(torch.equal(p, before[name]) for name, p in trainer.renderer.named_parameters())
    assert not step.failed and step.scaler.get_scale() == 512
    step._run()
    assert not torch.equal(trainer.renderer.grid.table, before["grid.table"])
    trainer.save()
    assert checkpoint.load(tmp_path / "run")[1]["scaler"]["scale"] == 512


@pytest.mark.cuda
def test_another_backend_on_the_way_is_taken(small_config, tmp_path):
    small_config.device, small_config.model.levels = "cuda", 8
    trainer = make_trainer(small_config, tmp_path / "run")
    for backend, fixed in (("cuda", True), ("torch", False), ("cuda", True)):
        with ops.backend(backend):
            for _ in range(6):
                trainer.train_step()
            assert trainer.training_step.is_fixed == fixed and (trainer.training_step.graph is not None) == fixed
    trainer.save()
    config_module.dump(small_config, tmp_path / "run" / run.CONFIG)
    trainer.restore()
    trainer.train_step()
    assert trainer.training_step.graph is None, "what it was recorded with is gone"


@pytest.mark.two_gpus
def test_training_on_the_second_gpu(small_config, tmp_path):
    small_config.device, small_config.model.levels = "cuda:1", 8
    trainer = make_trainer(small_config, tmp_path / "run")
    before = trainer.renderer.grid.table.detach().clone()
    for _ in range(6):
        trainer.train_step()
    assert trainer.training_step.graph is not None and not torch.equal(trainer.renderer.grid.table, before)


def test_a_loss_that_is_not_finite_after_the_last_log_is_found(small_config, tmp_path):
    small_config.trainer.steps, small_config.trainer.log_every = 5, 100
    trainer = make_trainer(small_config, tmp_path / "run")
    trainer.save()
    trainer.training_step.is_fixed = True  # the sizes alone: there is no graph on a CPU
    trainer.training_step._is_fixed = lambda: True
    trainer.train_step = lambda: (trainer.training_step._run(), setattr(trainer, "step", trainer.step + 1))
    with torch.no_grad():
        trainer.renderer.decoder.color_net.layers()[-1][1].fill_(float("nan"))
    with pytest.raises(TrainingError, match="the loss is nan"):
        trainer.train()


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["torch", "cuda"])
def test_training_on_a_gpu_learns_the_toy_scene(small_config, tmp_path, backend: str):
    small_config.device, small_config.trainer.steps, small_config.model.levels = "cuda", 200, 8
    with ops.backend(backend):
        trainer = make_trainer(small_config, tmp_path / "run")
        assert trainer.training_step.is_fixed == (backend == "cuda")
        trainer.train()
        views = load_scene(small_config.data.path).split("test")
        state = {"seconds": trainer.seconds, "step": trainer.step}
        metrics = evaluate(trainer.renderer, small_config, views, state, tmp_path / "run", torch.device("cuda"))
    assert metrics["psnr"] > 20


def test_nan_stops_and_reports(small_config, tmp_path):
    trainer = make_trainer(small_config, tmp_path / "run")
    trainer.train_step()
    trainer.save()
    with torch.no_grad():
        trainer.renderer.decoder.color_net.layers()[-1][1].fill_(float("nan"))
    with pytest.raises(TrainingError, match="the loss is nan at step 1; stopped. The last good checkpoint is kept"):
        trainer.train()
    report = json.loads((tmp_path / "run" / NAN_REPORT).read_text())
    assert report["step"] == 1 and report["not_finite"]["decoder.color_net.packed"] == 3
    assert report["not_finite"]["color"] > 0 and report["not_finite"]["origins"] == 0
    with pytest.raises(TrainingError, match="a parameter is not finite at step 1"):
        trainer.save()
    tensors, state = checkpoint.load(tmp_path / "run")
    assert state["step"] == 1 and tensors["model.decoder.color_net.packed"].isfinite().all()


def test_rays_that_miss_the_box(small_config, tmp_path):
    small_config.data.box = (50.0, 50.0, 50.0, 51.0, 51.0, 51.0)
    with pytest.raises(SceneError, match="no ray of the training views meets the box .* Set data.box around"):
        make_trainer(small_config, tmp_path / "run")


def test_an_empty_batch_trains_on(small_config, tmp_path):
    trainer = make_trainer(small_config, tmp_path / "run")
    trainer.step = 1  # no occupancy update
    trainer.renderer.sampler.occupancy.zero_()
    trainer.train_step()
    assert trainer.training_step.read().samples == 0


def test_time_limit_ends_with_the_schedule(small_config, tmp_path):
    small_config.trainer.steps, small_config.trainer.max_seconds = 10**6, 0.5
    small_config.trainer.warmup = 1
    trainer = make_trainer(small_config, tmp_path / "run")
    assert trainer.train() and trainer.seconds >= 0.5
    assert trainer.learning_rate() == pytest.approx(small_config.trainer.final_learning_rate, rel=0.05)


# ---- checkpoints and run folders


def test_a_cut_checkpoint_falls_back_to_the_previous(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, {"x": torch.full((1000,), float(step))}, {"step": step})
    file = tmp_path / checkpoint.NEWEST
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="checkpoint.safetensors is cut short .*; using .*previous.* of step 1"):
        tensors, state = checkpoint.load(tmp_path)
    assert state["step"] == 1 and tensors["x"][0] == 1
    (tmp_path / checkpoint.PREVIOUS).unlink()
    with pytest.raises(RunError, match="no whole checkpoint in .*checkpoint.safetensors is cut short"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("broken", [b"", b"no checkpoint", None])
def test_a_broken_checkpoint_never_becomes_the_previous(tmp_path, broken: bytes | None):
    for step in (1, 2):
        checkpoint.save(tmp_path, {"x": torch.full((1000,), float(step))}, {"step": step})
    file = tmp_path / checkpoint.NEWEST
    file.write_bytes(file.read_bytes()[:-100] if broken is None else broken)
    checkpoint.save(tmp_path, {"x": torch.zeros(1)}, {"step": 3})
    assert checkpoint.load(tmp_path)[1]["step"] == 3
    file.unlink()
    assert checkpoint.load(tmp_path)[1]["step"] == 1


def test_no_and_other_checkpoints(tmp_path, monkeypatch):
    with pytest.raises(RunError, match="no checkpoint in .*; is it a run folder"):
        checkpoint.load(tmp_path)
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 99)
    checkpoint.save(tmp_path, {"x": torch.zeros(1)}, {})
    monkeypatch.undo()
    with pytest.raises(RunError, match="has checkpoint format 99, this nerfkit reads 2"):
        checkpoint.load(tmp_path)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path):
    """The file size limit makes the write fail as a full disk does."""
    checkpoint.save(tmp_path, {"x": torch.zeros(10)}, {"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(RunError, match="cannot save the checkpoint in .*File too large; the last one is kept"):
            checkpoint.save(tmp_path, {"x": torch.zeros(10**6)}, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert checkpoint.load(tmp_path)[1]["step"] == 1
    assert not list(tmp_path.glob("*.tmp"))


def test_run_folders_are_not_overwritten(small_config, tmp_path):
    run.create(tmp_path / "run")
    run.save_description(tmp_path / "run", small_config, load_scene(small_config.data.path))
    with pytest.raises(RunError, match="holds a run already; go on with --resume .* or replace it with --overwrite"):
        run.create(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    run.create(tmp_path / "run", overwrite=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"], "what is not the run's stays"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to the run folder .*; choose another with --out"):
        run.create(tmp_path / "file" / "run")


def test_the_scene_is_found_from_any_working_folder(small_config, toy_scene, tmp_path, monkeypatch):
    monkeypatch.chdir(toy_scene.parent)
    small_config.data.path = toy_scene.name
    run.save_description(tmp_path, small_config, load_scene(small_config.data.path))
    assert small_config.data.path == toy_scene.name
    monkeypatch.chdir(tmp_path)
    assert load_scene(run.read_config(tmp_path).data.path).name == toy_scene.name


@pytest.mark.parametrize("name", ["tpux", "mps", "meta"])
def test_unknown_device(name: str):
    with pytest.raises(RunError, match=f"'{name}' is unknown; use auto, cpu"):
        run.pick_device(name)


def test_a_gpu_that_is_not_there(monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(RunError, match="sees no GPU; run .python -m nerfkit doctor"):
            run.pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert run.pick_device("cuda:1").index == 1
    with pytest.raises(RunError, match="cuda:7 was asked for, but there are cuda:0 to cuda:1 only"):
        run.pick_device("cuda:7")


def test_a_signal_saves_and_says_how_to_resume(small_config, tmp_path):
    """scripts/train.py as its own process: SIGTERM in mid-run, then --resume to the end."""
    small_config.trainer.steps, small_config.eval.after_training = 3000, False
    config_module.dump(small_config, tmp_path / "options.toml")
    folder = tmp_path / "run"
    command = [sys.executable, "scripts/train.py"]
    process = subprocess.Popen(
        [*command, "--config", str(tmp_path / "options.toml"), "--out", str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        while not (folder / run.LOG).exists():
            assert process.poll() is None, "ended before its first step"
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                pass
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert f"python scripts/train.py --resume {folder}" in output
    step = checkpoint.load(folder)[1]["step"]
    assert 0 < step < 3000
    done = subprocess.run(
        [*command, "--resume", str(folder), "--trainer.steps", str(step + 5)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert checkpoint.load(folder)[1]["step"] == step + 5
