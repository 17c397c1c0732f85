# SPDX-License-Identifier: Apache-2.0
"""Training: pixels in, optimiser steps out; every source of randomness can be saved and restored."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit import ops
from nerfkit.config import Config, ResolvedConfig, from_dict, to_dict
from nerfkit.config.recipe import UNLIMITED
from nerfkit.config.resolve import check_names
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.images.batch import ImagePool, StreamingPixels, TrainingViews
from nerfkit.data.load import scene_of
from nerfkit.data.readers.transforms.cameras_json import to_json
from nerfkit.data.scene import Scene
from nerfkit.device import deterministic, drawing_from, pick_device
from nerfkit.errors import ConfigError, TrainingError
from nerfkit.model.base import Model
from nerfkit.model.registry import MODELS
from nerfkit.ops import Resolved
from nerfkit.parallel import SINGLE_PROCESS, Processes
from nerfkit.safe_io import shell_join
from nerfkit.training.building import built, check_seen, class_of
from nerfkit.training.held_back import CHECKS, HeldBack
from nerfkit.training.run import checkpoint
from nerfkit.training.run.files import LOG, PREVIOUS, warn_of_run
from nerfkit.training.run.folder import RunFolder, RunScene, describe, drop_later_lines
from nerfkit.training.step.adjustments import ViewAdjustments
from nerfkit.training.step.distributed import AGREED_EVERY, Distributed, OneProcess
from nerfkit.training.step.losses import LossFn, TrainingLoss, data_term, name_of
from nerfkit.training.step.optim import adam, decay_tables, learning_rate
from nerfkit.training.step.training_step import TrainingStep

BACKGROUND_STEPS = 500  # first ones, with random backgrounds behind images with alpha, against fog; an eighth at most
SECONDS_A_STEP = 0.005  # about, on a GPU
LOG_EVERY = 50  # steps between two lines of metrics.jsonl; a twentieth of a short training


class Trainer:
    """Trains a model on the images of a scene; handles no signals, and writes files only on request.

    Args:
        config: the options; those that are auto follow from scene, device and model, as of `nerfkit train`:
            `trainer.config` is the outcome, with `decisions`.
        cameras: V of them; None: the training views of the scene, or of that in config.data.path.
        images: [V, H, W, 3 or 4] uint8, or a `nerfkit.data.images.batch.ImagePool` of any sizes; with alpha they are
            trained over data.background. None: those of the scene's training views.
        scene: that of cameras and images; None: they show an object in config.data.box or the default box.
        model: what is trained, or its class; None: that of config.model.kind.
        loss_fn: a Rendering and its Batch -> data terms of the loss by name, scalars, which are added to what the
            options ask for besides, such as trainer.distortion; None: trainer.loss, else the squared error.
        device: cpu, cuda, ...; config.device if None.
        processes: of which this is one; each calls the same methods at the same steps, the first writes.

    Model and training draw from config.seed and leave torch's own generators as they are; so two trainers may train at
    once, in two threads. What code of one's own draws by torch.rand comes from torch's generator: seed that. Raises
    ConfigError for options that contradict each other, BackendError for one that cannot run.

    >>> import nerfkit
    >>> config = nerfkit.Config()
    >>> config.model.log2_hashmap_size, config.trainer.steps, config.trainer.samples_per_step = 8, 3, 256
    >>> config.sampling.step_size, config.sampling.occupancy_resolution, config.device = 0.1, 8, "cpu"
    >>> pose = torch.eye(4)[:3] + torch.tensor([0.0, 0, 0, 1]) * torch.tensor([[0.0], [0], [4]])
    >>> cameras = nerfkit.Cameras(pose[None], focal=torch.full((1, 2), 9.0), center=torch.full((1, 2), 4.0), width=8, height=8)
    >>> trainer = Trainer(config, cameras, torch.full((1, 8, 8, 3), 128, dtype=torch.uint8))
    >>> [step for step in trainer.steps()]
    [1, 2, 3]
    """  # noqa: E501

    def __init__(
        self,
        config: Config,
        cameras: Cameras | None = None,
        images: Tensor | ImagePool | None = None,
        *,
        scene: Scene | None = None,
        model: Model | type[Model] | None = None,
        loss_fn: LossFn | None = None,
        device: torch.device | str | None = None,
        processes: Processes = SINGLE_PROCESS,
    ):
        check_names(config)
        checked = from_dict(to_dict(config), "config")  # raises ConfigError for a value of the wrong type
        config = config if isinstance(config, ResolvedConfig) else checked
        self.device = pick_device(str(device or config.device))
        kind = class_of(config, model)
        loss_fn = data_term(config.trainer.loss, loss_fn)
        with ops.backend(overrides=config.ops.choices()):
            ops.resolved(self.device)  # raises BackendError before images are read
        if (cameras is None) != (images is None) or (scene is cameras is None and not config.data.path):
            raise TypeError("Trainer needs a scene, config.data.path, or cameras and images")
        if not isinstance(scene, Scene | None):
            raise TypeError(f"scene must be a Scene, such as that of nerfkit.load_scene, got {type(scene).__name__}")
        if scene is None and cameras is None:
            scene = scene_of(config)
        is_decided = scene is None and isinstance(config, ResolvedConfig)
        known = (None, None) if is_decided else (scene, self.device)
        self.config = config = config.resolved(*known, kind)
        self.scene = scene
        if model is not None and MODELS.get(config.model.kind) is not kind:  # so that nobody takes it for another one
            config.model.kind = next((name for name, known in MODELS.items() if known is kind), kind.__qualname__)
        if loss_fn is not None:
            config.trainer.loss = name_of(loss_fn)
        if cameras is None:
            views = scene.split("train")
            cameras, images = views.cameras, views.load(with_depth=config.trainer.depth > 0)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.model = built(config, kind if model is None else model, self.generator)
        self.cameras = cameras.to(self.device)
        with self._own():
            check_seen(self.model, self.cameras, config.data.box)
        self.adjustments = ViewAdjustments(config.data, len(cameras)).to(self.device)
        rate = torch.tensor(config.trainer.learning_rate, device=self.device)
        groups = [{"params": list(self.model.parameters())}, *self.adjustments.groups(self.device)]
        self.optimizer = adam(groups, rate, config.trainer.optimizer == "lazy_adam")
        self.processes, self.together = processes, OneProcess()
        if processes.size > 1:
            self.together = Distributed(processes, config.seed, self.model, self.adjustments, self.generator)
        self.step = 0
        self.seconds = 0.0  # training time, of earlier parts of the run too
        self._resumed_at = 0, 0.0  # step, and place in the schedule
        steps, limit = self.last_step, config.trainer.max_seconds
        if limit:  # about how many there will be, for images that take turns on the GPU
            steps = min(steps, max(int(limit / SECONDS_A_STEP), 1))
        self.views = TrainingViews(self.cameras, images, config.data.background, self.device, steps)
        if config.trainer.depth and self.views.source.pool.depth is None:
            if scene is not None and scene.has_depth:
                raise ConfigError("the scene has depth images that were not loaded: views.load(with_depth=True)")
            self.views.sightings = None if scene is None else scene.sightings(self.device)
            if self.views.sightings is None:
                raise ConfigError("trainer.depth needs depth images or sparse points: there are none; leave it out")
        self.held_back = HeldBack(config, self.views)
        with self._own():
            self.model.set_training_cameras(self.cameras, not isinstance(self.views.source, StreamingPixels))
            if hasattr(self.model, "set_source_images"):  # of a model that renders from them, too
                self.model.set_source_images(self.cameras, self.views.source.pool)
            loss = TrainingLoss(config, loss_fn)
            self.training_step = TrainingStep(
                config.trainer, self.model, self.views, self.adjustments, self.optimizer, loss, self.together
            )
        self.folder: RunFolder | None = None  # last saved to or restored from
        self.on_step: list[Callable[[Trainer], None]] = []  # called after each step; not part of the training time
        self.on_log: list[Callable[[dict[str, float]], None]] = []  # called with each line of the log
        self._log_folder: RunFolder | None = None  # while it is trained in
        self._popped_at = 0.0  # training time of the last `pop_stats`
        self._saved_step: int | None = None
        self._should_stop: Callable[[], bool] = lambda: False

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Inside, ops run on the backends that config.ops names, and random numbers come from config.seed."""
        with ops.backend(overrides=self.model.backends), drawing_from(self.generator):
            yield

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    @property
    def parameters(self) -> dict[str, Tensor]:
        """All that is trained, by name, in the optimiser's order: of the model, then of the training views."""
        of_views = {f"views.{name}": x for name, x in self.adjustments.named_parameters()}
        return dict(self.model.named_parameters()) | of_views

    @property
    def scheduled(self) -> float:
        """Steps of the schedule that are done, of trainer.steps; a step of several processes counts as several."""
        step, scheduled = self._resumed_at
        return scheduled + (self.step - step) * self.together.steps_at_once

    @property
    def last_step(self) -> int:
        """The step at which the schedule ends, unless its time ends before."""
        return self.step + max(0, math.ceil((self.config.trainer.steps - self.scheduled) / self.together.steps_at_once))

    @property
    def log_every(self) -> int:
        """Steps between two lines of the log."""
        return min(LOG_EVERY, max(1, self.config.trainer.steps // 20))

    @property
    def progress(self) -> float:
        """Share of the schedule that is done, 0 to 1."""
        limit = self.config.trainer.max_seconds
        seconds = self.together.clock(self.seconds)
        return max(self.scheduled / self.config.trainer.steps, seconds / limit if limit else 0.0)

    def steps(self) -> Iterator[int]:
        """Train to the end of the schedule; yields the number of steps done, after each."""
        try:
            while self.progress < 1:
                self.timed_step()
                for call in self.on_step:
                    call(self)
                yield self.step
            with self._timed():
                self.check_finite(of_loss_alone=True)  # synchronizes with the last steps
        finally:
            self.training_step.release_graph()

    def train(
        self,
        folder: RunFolder | str | Path | None = None,
        progress_bar: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Train to the end (True) or until `should_stop()` (False); with a folder, log and save there."""
        self._should_stop = should_stop
        if folder is None:
            return self._train(None, progress_bar)
        folder = self._folder(folder)
        if self.processes.is_first:
            folder.lock()
        try:
            if self.processes.is_first:
                drop_later_lines(folder, self.step)
            if not self.processes.all_gather(checkpoint.exists(folder.path))[0]:
                self.save(folder)  # so that there is a checkpoint from the start
            self._log_folder = folder
            ended = self._train(folder, progress_bar)
            if self._saved_step != self.step:
                self.save(folder)
            if ended and self.processes.is_first:
                folder.clear({PREVIOUS})
        finally:
            self._log_folder = None
            folder.unlock()
        return ended

    def _train(self, folder: RunFolder | None, progress_bar: bool) -> bool:
        """The same in a folder that is locked, but for the last checkpoint."""
        settings = self.config.trainer
        self.agree()
        stopped = self.together.stops(self._should_stop)
        known = None if self.last_step == UNLIMITED else self.last_step
        is_hidden = not (progress_bar and self.processes.is_first)
        with tqdm(total=known, initial=self.step, desc="training", unit="step", disable=is_hidden) as bar:
            for step in self.steps() if not stopped else ():
                bar.update()
                if step % self.log_every == 0:
                    self._log(bar)
                if folder is not None and settings.save_every and step % settings.save_every == 0:
                    self.save(folder)
                stopped = self.together.stops(self._should_stop)
                if stopped:
                    break
            bar.total = self.step if self.progress >= 1 else bar.total
        return not stopped or self.progress >= 1

    def timed_step(self) -> None:
        """One optimiser step, whose time counts as training; after it, a check of the views held back if it is due."""
        with self._timed():
            self.train_step()
        if self.step % (AGREED_EVERY if self.training_step.static_shapes else 1) == 0:
            self.agree()
        if self.held_back.is_due(self.progress) and self.processes.is_first:
            self.settle()
            self.log(scores := self.held_back.scores(self.model))
            if self.held_back.checks == CHECKS:
                warn_of_run([scores])

    def agree(self) -> None:
        """Of several processes: the time is that of the first, and all stop if one is to. `timed_step` calls it."""
        self.seconds = self.together.agree(self.seconds, self._should_stop)

    def settle(self) -> None:
        """Wait until the device has done all steps, as part of the training time; what follows then takes none."""
        if self.device.type == "cuda":
            with self._timed():
                torch.cuda.synchronize(self.device)

    def train_step(self) -> None:
        """One optimiser step. A loss that is not finite stops it at once, or at the next log if it is a CUDA graph."""
        rates = (self.learning_rate(), *self.adjustments.rates(self.progress))
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"].fill_(rate)
        decay_tables(self.model, self.config, self.step, self.learning_rate())
        self.views.progress.fill_(self.progress)
        self.held_back.hold(self.progress)
        self.views.source.advance(self.step)
        self.views.background.draw_at_random(self.step < min(BACKGROUND_STEPS, self.config.trainer.steps // 8))
        with deterministic(self.config.trainer.deterministic), self._own():
            self.together.before_update(self.step)
            self.model.progress = self.progress
            self.model.update(self.step)
            self.together.before_rays(self.step)
            self.training_step()
        if not self.training_step.static_shapes:
            self.check_finite(of_loss_alone=True)
        self.step += 1

    def learning_rate(self) -> float:
        """The optimiser's, in the next step."""
        return learning_rate(self.config.trainer, self.step, self.progress)

    def pop_stats(self) -> dict[str, float]:
        """Means over the steps since the last call: loss and its terms, PSNR, samples per ray, rays per second."""
        with self._timed():
            stats = self.training_step.pop_stats()  # synchronizes with the GPU
        self.check_finite(of_loss_alone=True)
        seconds, self._popped_at = self.seconds - self._popped_at, self.seconds
        steps = max(stats.steps, 1)
        psnr = -10 * math.log10(max(stats.pixel_error / steps, 1e-12))
        line = {"loss": stats.loss / steps, "psnr": psnr}
        if len(stats.terms) > 1 or "mse" not in stats.terms:
            line |= {f"loss.{name}": value / steps for name, value in stats.terms.items()}
        return line | {
            "rays_per_second": round(stats.rays / max(seconds, 1e-9), 1),
            "samples_per_ray": round(stats.samples / max(stats.rays, 1), 3),
            "step": self.step, "seconds": round(self.seconds, 3), "learning_rate": self.learning_rate(),
            **self.model.stats(), **self.adjustments.stats(),
        }  # fmt: skip

    def save(self, folder: RunFolder | str | Path) -> None:
        """Write a checkpoint; TrainingError if a parameter or the loss is not finite: no good one is replaced by a bad.

        A path becomes a run folder that `nerfkit.load_run` loads; one that holds another run raises RunError.
        """
        self.check_finite()
        folder = self._folder(folder)
        self.model.sync_ranks(self.processes)
        tensors, state = checkpoint.taken(self)
        self._saved_step = self.step
        if self.processes.is_first:
            checkpoint.save(folder, tensors, state)

    def backends(self) -> dict[str, str]:
        """What each op of model and optimiser runs on now."""
        return {op: resolved.backend for op, resolved in self.resolved().items()}

    def resolved(self) -> dict[str, Resolved]:
        """The backend of each op of model, loss and optimiser, and why; raises BackendError if one cannot run."""
        with self._own():
            return self.training_step.resolved()

    def restore(self, folder: RunFolder | str | Path) -> None:
        """Go back to the newest checkpoint of a run folder; raises RunError if the run had other options or cameras.

        The scene of a run is read in the run's frame by `nerfkit.load_scene(path, transform=run.transform)`. Torch's,
        Python's and numpy's own generators go back, too: code of one's own may draw from them.
        """
        folder = folder if isinstance(folder, RunFolder) else RunFolder.existing(folder)
        folder.check_resumable(self.config, None if self.scene is None else describe(self.scene))
        tensors, state = checkpoint.load(folder.path, folder.whole)
        scheduled = checkpoint.put_back(self, tensors, state, folder.path)
        self._popped_at, self._saved_step, self.folder = self.seconds, self.step, folder
        self._resumed_at = self.step, scheduled
        self.together.resume(self.step, self.seconds)
        self.held_back.is_due(self.progress)  # what was, has been checked

    def _folder(self, folder: RunFolder | str | Path) -> RunFolder:
        """`folder` as a run folder of this training, created with a description of the scene if it is a path."""
        if isinstance(folder, RunFolder):
            self.folder = folder
        elif not self.processes.is_first:
            self.folder = RunFolder(folder)
        elif self.folder is None or self.folder.path.resolve() != Path(folder).resolve():
            new = RunFolder(folder)
            if self.scene is not None:
                scene = describe(self.scene)
            else:  # the training cameras are all that is known of it
                names = [f"{view:04d}" for view in range(len(self.cameras))]
                splits = {"train": to_json(self.cameras.to("cpu"), names)}
                scene = RunScene(Path(folder).resolve().name, (0.0, 0.0, 1.0), splits)
            new.start(self.config, scene)
            new.unlock()
            self.folder = new
        return self.folder

    def _log(self, bar: tqdm) -> None:
        line = self.pop_stats()
        speed = f"{line['rays_per_second']:.0f} rays/s, {line['samples_per_ray']:.1f} samples/ray"
        bar.set_postfix_str(f"PSNR {line['psnr']:.2f} dB, {speed}", refresh=False)
        if self.config.trainer.max_seconds and self.progress > 0:
            at_next_log = self.step + self.log_every  # a bar beyond its total has no ETA
            bar.total = max(at_next_log, round(self.step / self.progress))  # estimated from the time limit
        self.log(line)

    def log(self, line: dict[str, float]) -> None:
        """A line of the log: to `on_log`, and to the folder that is trained in, if any."""
        line = {"step": self.step, "seconds": round(self.seconds, 3)} | line
        if self._log_folder is not None and self.processes.is_first:
            self._log_folder.append(LOG, json.dumps(line))
        for call in self.on_log:
            call(line)

    def check_finite(self, of_loss_alone: bool = False) -> None:
        """Raise TrainingError if the loss or a parameter is not finite; a run keeps its last checkpoint."""
        wrong = [name for name, p in self.parameters.items() if not p.isfinite().all()] if not of_loss_alone else []
        if not wrong and not self.training_step.failed:
            return
        what = f"the parameter {wrong[0]} is not finite" if wrong else f"the loss is {self.training_step.last_loss}"
        lower = f"--trainer.learning_rate {self.config.trainer.learning_rate / 3:.2g}"
        if self.folder is None or not checkpoint.exists(self.folder.path):
            raise TrainingError(f"{what} at step {self.step}; stopped. Try a lower rate: {lower}")
        raise TrainingError(
            f"{what} at step {self.step}; stopped. The last good checkpoint is kept in {self.folder.path}. "
            f"Go on from it with a lower rate: {shell_join('--resume', self.folder.path)} {lower}"
        )
