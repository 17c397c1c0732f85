# SPDX-License-Identifier: Apache-2.0
"""One recipe through every door: the command, Python, and a model's empty subclass train the same bits."""

import threading
from pathlib import Path

import pytest
import torch

import nerfkit
from nerfkit.commands import train
from nerfkit.commands.options import train_options
from nerfkit.model.registry import MODELS
from nerfkit.ops import dispatch
from nerfkit.training.run import checkpoint
from tests.camera_layouts import ring
from tests.posed_captures import PINHOLE, colmap_in, write_capture
from tests.test_quality import needs_images_of
from tests.trainers import make_trainer, trained

needs_cpp = pytest.mark.skipif("cpp" not in nerfkit.ops.available("march"), reason="needs the C++ ops")
STEPS = 20
BOX = (-4.0, -4, -4, 4, 4, 4)
TINY = {
    "model.log2_hashmap_size": 10, "trainer.samples_per_step": 2048, "sampling.occupancy_resolution": 16,
    "trainer.steps": STEPS,
}  # fmt: skip


def tiny(config: nerfkit.Config) -> nerfkit.Config:
    for name, value in TINY.items():
        group, _, key = name.partition(".")
        setattr(getattr(config, group), key, value)
    return config


def copy_of(config: nerfkit.Config) -> nerfkit.Config:
    return nerfkit.config.from_dict(nerfkit.config.to_dict(config), "copy")


def changed(before: nerfkit.Config, after: nerfkit.Config) -> set[str]:
    one, other = (nerfkit.config.flat(nerfkit.config.to_dict(options)) for options in (before, after))
    return {name for name in one if one[name] != other[name]}


def scene_folder(kind: str, folder: Path) -> tuple[Path, float]:
    """A scene of that kind, and what to divide its images' size by."""
    if kind == "transforms":
        return write_capture(folder, ring(20)), 1.0
    if kind == "colmap":
        return colmap_in(folder, [PINHOLE] * 20), 1.0
    needs_images_of(Path("data") / kind / ("images" if kind == "room" else "train"))
    return Path("data") / kind, 8.0


@pytest.mark.parametrize("kind", ["orrery", "room", "colmap", "transforms"])
def test_every_door_trains_the_same_bits(kind: str, device: str, tmp_path: Path, monkeypatch):
    path, downscale = scene_folder(kind, tmp_path / kind)
    words = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    run = tmp_path / "run"
    options = [str(path), "--data.downscale", str(downscale), "--out", str(run), "--device", device, *words]
    options += ["--trainer.deterministic", "true"]
    train.main(train_options([*options, "--trainer.max_seconds", "0", "--eval.after_training", "false"]))
    wanted = {name: x for name, x in checkpoint.load(run)[0].items() if name.startswith(("model.", "optimizer."))}

    class Same(nerfkit.Renderer):
        pass

    monkeypatch.setitem(MODELS, "same", Same)
    scene = nerfkit.load_scene(str(path), downscale=downscale)
    for kind_of_model in ("field", "same") if kind == "transforms" else ("field",):
        config = tiny(nerfkit.Config(device=device))
        config.model.kind, config.trainer.max_seconds, config.trainer.deterministic = kind_of_model, 0.0, True
        trainer = nerfkit.Trainer(config, scene=scene)
        trainer.train()
        trainer.save(tmp_path / kind_of_model)
        found = checkpoint.load(tmp_path / kind_of_model)[0]
        assert all(torch.equal(found[name], x) for name, x in wanted.items()), kind_of_model
        assert trainer.config.data.path == str(path), "so that a run finds its scene"


def ran(monkeypatch) -> set[str]:
    """Backends of the ops that are called from now on."""
    found: set[str] = set()
    for (op, backend), function in list(dispatch._implementations.items()):

        def noted(*arguments, backend=backend, function=function):
            found.add(backend)
            return function(*arguments)

        monkeypatch.setitem(dispatch._implementations, (op, backend), noted)
    return found


@needs_cpp
def test_the_backend_that_is_asked_for_runs(small_config, tmp_path, monkeypatch):
    found = ran(monkeypatch)
    small_config.ops.backend = "torch"
    trainer = trained(small_config, 1)
    assert found == {"torch"} and set(trainer.backends().values()) == {"torch"}
    trainer.save(tmp_path / "run")
    assert set(checkpoint.load(tmp_path / "run")[1]["backend"].values()) == {"torch"}
    run = nerfkit.load_run(tmp_path / "run", "cpu")
    run.render(run.cameras(), 0, ("rgb", "normal"))
    run.model.density(torch.zeros(1, 3))
    assert found == {"torch"}
    with nerfkit.ops.backend("torch"):
        nerfkit.load_run(tmp_path / "run", "cpu", ops=nerfkit.config.OpsConfig("cpp")).render(run.cameras(), 0)
    assert found == {"torch", "cpp"}


@needs_cpp
def test_two_trainings_on_two_backends_at_once(small_config, device):
    small_config.device, small_config.trainer.deterministic = device, True
    small_config.model.levels = 8  # which the kernel of the networks takes

    def trainer_on(backend: str) -> nerfkit.Trainer:
        small_config.ops.backend = backend
        return make_trainer(copy_of(small_config))

    def train(trainer: nerfkit.Trainer) -> None:
        for _ in range(10):
            trainer.train_step()

    backends = ("torch", "cuda" if device == "cuda" else "cpp")
    alone, together = ([trainer_on(backend) for backend in backends] for _ in range(2))
    for trainer in alone:
        train(trainer)
    threads = [threading.Thread(target=train, args=[trainer]) for trainer in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        assert other.step == 10
        assert all(torch.equal(one.model.state_dict()[name], x) for name, x in other.model.state_dict().items())


def test_a_model_of_other_options_is_refused(small_config):
    model = nerfkit.Renderer(small_config)
    other = copy_of(small_config)
    other.sampling.step_size = 0.03
    with pytest.raises(nerfkit.UserError, match="sampling.step_size"):
        make_trainer(other, model=lambda config: model)


def test_options_that_contradict_the_scene_are_refused(tmp_path: Path):
    """They say how it is read: one that was read otherwise is another one."""
    scene = nerfkit.load_scene(str(write_capture(tmp_path / "scene", ring(20))))
    for name, value in {"downscale": 2.0, "masks": "alpha", "box": (-1.5, -1, -1, 1, 1, 1)}.items():
        config = nerfkit.Config()
        setattr(config.data, name, value)
        with pytest.raises(nerfkit.UserError, match=f"data.{name}"):
            nerfkit.Trainer(config, scene=scene)


class Bright(nerfkit.Renderer):
    """A field whose images are negatives."""

    def forward(self, *arguments):
        rendering = super().forward(*arguments)
        return rendering._replace(color=1 - rendering.color)


def test_a_run_knows_the_class_of_its_model(small_config, tmp_path, monkeypatch):
    make_trainer(small_config, model=Bright).save(tmp_path / "unnamed")
    with pytest.raises(nerfkit.UserError, match="Bright"):
        nerfkit.load_run(tmp_path / "unnamed", "cpu")
    monkeypatch.setitem(MODELS, "bright", Bright)
    make_trainer(small_config, model=Bright).save(tmp_path / "named")
    assert isinstance(nerfkit.load_run(tmp_path / "named", "cpu").model, Bright)
    assert small_config.model.kind == "field", "the caller's options stay"


def test_a_run_goes_on_in_its_own_frame_alone(tmp_path: Path):
    one, other = (write_capture(tmp_path / name, ring(n)) for name, n in (("one", 20), ("other", 24)))

    def trainer(folder: Path, **options) -> nerfkit.Trainer:
        return nerfkit.Trainer(tiny(nerfkit.Config(device="cpu")), scene=nerfkit.load_scene(str(folder), **options))

    trainer(one).save(tmp_path / "run")
    trainer(one, transform=nerfkit.load_run(tmp_path / "run", "cpu").transform).restore(tmp_path / "run")
    for wrong in (trainer(other), nerfkit.Trainer(tiny(nerfkit.Config()), scene=nerfkit.load_scene(str(one), box=BOX))):
        with pytest.raises(nerfkit.UserError):
            wrong.restore(tmp_path / "run")


def test_the_options_of_a_run_repeat_it(tmp_path: Path):
    """Given as a file: what the scene decided, in the frame that was found, is decided anew."""
    folder = write_capture(tmp_path / "scene", ring(20))
    first = nerfkit.Trainer(tiny(nerfkit.Config(device="cpu")), scene=nerfkit.load_scene(str(folder)))
    first.save(tmp_path / "run")
    again = nerfkit.Trainer(nerfkit.config.load([tmp_path / "run" / "config.toml"]))
    assert changed(first.config, again.config) <= {"data.path"}, "which is written whole"
    assert torch.equal(again.cameras.camera_to_world, first.cameras.camera_to_world)
