# SPDX-License-Identifier: Apache-2.0
"""Training: pixels in, optimiser steps out; every source of randomness can be saved and restored."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit import ops
from nerfkit.config import Config
from nerfkit.data.cameras import Cameras
from nerfkit.errors import RunError, SceneError, TrainingError
from nerfkit.files import atomic_write
from nerfkit.model.renderer import Renderer
from nerfkit.ops.march import box_span
from nerfkit.training import checkpoint, run
from nerfkit.training.optim import adam
from nerfkit.training.randomness import random_states, restore_random_states, seed_everything
from nerfkit.training.step import Sums, TrainingStep
from nerfkit.version import versions

NAN_REPORT = "nan_report.json"


class Trainer:
    """Trains a Renderer, or what `model` makes of the config, on the pictures [V, H, W, 3 or 4] uint8 of one split."""

    def __init__(
        self,
        config: Config,
        cameras: Cameras,
        images: Tensor,
        folder: Path,
        device: torch.device,
        model: Callable[[Config], Renderer] = Renderer,
    ):
        self.config = config
        self.folder = folder
        self.device = device
        seed_everything(config.seed)
        self.renderer = model(config).to(device)
        self.cameras = cameras.to(device)
        check_box(self.cameras, self.renderer.sampler.box)
        learning_rate = torch.tensor(config.trainer.learning_rate, device=device)
        self.optimizer = adam(self.renderer.parameters(), learning_rate, config.trainer.optimizer == "lazy_adam")
        self.training_step = TrainingStep(config, self.renderer, self.cameras, images.to(device), self.optimizer)
        self.step = 0
        self.seconds = 0.0  # training time, of earlier parts of the run too
        self.stop_signal: int | None = None

    @property
    def progress(self) -> float:
        """Share of the schedule that is done, 0 to 1."""
        limit = self.config.trainer.max_seconds
        return max(self.step / self.config.trainer.steps, self.seconds / limit if limit else 0.0)

    def train(self) -> bool:
        """Train to the end, saving checkpoints; False if a signal stopped it first (the run is saved)."""
        settings = self.config.trainer
        handlers = {s: signal.signal(s, self._remember_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        bar = tqdm(total=settings.steps, initial=self.step, desc="training", unit="step", dynamic_ncols=True)
        seconds_at, saved_at = self.seconds, self.step
        if not checkpoint.exists(self.folder):
            self.save()  # from now on there is something to go back to
        try:
            while self.progress < 1 and self.stop_signal is None:
                began = time.perf_counter()
                self.train_step()
                logs = self.step % settings.log_every == 0
                sums = self.training_step.read() if logs else None
                self.seconds += time.perf_counter() - began
                bar.update()
                if sums:
                    self._check_finite()
                    self._log(sums, self.seconds - seconds_at, bar)
                    seconds_at = self.seconds
                if settings.save_every and self.step % settings.save_every == 0:
                    self.save()
                    saved_at = self.step
            began = time.perf_counter()
            self._check_finite()  # waits for the steps that are still on their way
            self.seconds += time.perf_counter() - began
            if saved_at != self.step:
                self.save()
        finally:
            self.training_step.forget()  # and the memory that a recorded step holds
            bar.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return self.stop_signal is None

    def train_step(self) -> None:
        """One optimiser step. A loss that is not finite stops it at once, or at the next log if it is a CUDA graph."""
        for group in self.optimizer.param_groups:
            group["lr"].fill_(self.learning_rate())
        self.training_step.draw_background(at_random=self.step < self.config.trainer.background_warmup)
        self.renderer.sampler.update(self.renderer.density, self.step)
        self.training_step()
        if not self.training_step.is_fixed:
            self._check_finite()
        self.step += 1

    def learning_rate(self) -> float:
        """Rises in the warm-up, then falls exponentially to its final value."""
        settings = self.config.trainer
        first, last = settings.learning_rate, settings.final_learning_rate
        warm = min(1.0, (self.step + 1) / max(settings.warmup, 1))
        return warm * first * (last / first) ** min(self.progress, 1.0)

    def save(self) -> None:
        """Write a checkpoint, unless training has gone wrong: a good one is never replaced by a bad one."""
        if not all(bool(p.isfinite().all()) for p in self.renderer.parameters()):
            self._stop_not_finite("a parameter is not finite", {})
        self._check_finite()
        tensors = {f"model.{name}": value for name, value in self.renderer.state_dict().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        random_tensors, random_state = random_states()
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "n_rays": int(self.training_step.n_rays),
            "random": random_state,
            "scaler": self.training_step.scaler.state_dict(),
            "backend": self.backends(),
            "versions": versions(),
        }
        checkpoint.save(self.folder, tensors | random_tensors, state)

    def backends(self) -> dict[str, str]:
        """What each op runs on now."""
        return {op: resolved.backend for op, resolved in ops.resolved(self.device).items()}

    def restore(self) -> None:
        """Go back to the newest checkpoint of the run folder; raises RunError if the run had other options."""
        run.check_resumable(self.folder, self.config)
        tensors, state = checkpoint.load(self.folder)
        run.load_model(self.renderer, tensors, self.folder)
        optimizer = self.optimizer.state_dict()
        for name, value in checkpoint.part(tensors, "optimizer").items():
            index, _, key = name.partition(".")
            optimizer["state"].setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict(optimizer)
        self.step, self.seconds = state["step"], state["seconds"]
        self.training_step.n_rays.fill_(state["n_rays"])
        if self.training_step.scaler.is_enabled() and state.get("scaler"):
            self.training_step.scaler.load_state_dict(state["scaler"])
        self.training_step.forget()
        restore_random_states(checkpoint.part(tensors, "random"), state["random"])
        self._forget_log()

    def _remember_signal(self, number: int, frame: Any) -> None:
        if self.stop_signal is not None:  # asked twice: stop at once
            raise KeyboardInterrupt
        self.stop_signal = number

    def _log(self, sums: Sums, seconds: float, bar: tqdm) -> None:
        loss = sums.loss / sums.steps
        line = {
            "loss": loss,
            "psnr": -10 * math.log10(max(loss, 1e-12)),
            "rays_per_second": round(sums.rays / seconds, 1),
            "samples_per_ray": round(sums.samples / max(sums.rays, 1), 3),
            "step": self.step, "seconds": round(self.seconds, 3), "learning_rate": self.learning_rate(),
            "occupied": round(self.renderer.sampler.occupancy.float().mean().item(), 4),
        }  # fmt: skip
        bar.set_postfix_str(
            f"PSNR {line['psnr']:.2f} dB, {line['rays_per_second']:.0f} rays/s, "
            f"{line['samples_per_ray']:.1f} samples/ray"
        )
        if self.config.trainer.max_seconds and self.progress > 0:
            bar.total = max(self.step, round(self.step / self.progress))  # what the time allows, for the ETA
        try:
            with open(self.folder / run.LOG, "a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(
                f"cannot write {self.folder / run.LOG}: {error.strerror}; the last checkpoint is kept"
            ) from None

    def _forget_log(self) -> None:
        """Drop logged steps after the checkpoint: they are trained, and logged, again."""
        kept = [line for line in run.read_log(self.folder) if line["step"] <= self.step]
        atomic_write(self.folder / run.LOG, "".join(json.dumps(line) + "\n" for line in kept))

    def _check_finite(self) -> None:
        if self.training_step.failed:
            self._stop_not_finite(f"the loss is {self.training_step.loss.item()}", self.training_step.trained)

    def _stop_not_finite(self, what: str, trained: dict[str, Tensor]) -> None:
        """Stop; write what was being trained to a report. The last good checkpoint stays."""
        parameters = dict(self.renderer.named_parameters())
        report = {
            "step": self.step,
            "what": what,
            "learning_rate": self.learning_rate(),
            "n_rays": int(self.training_step.n_rays),
            "not_finite": {name: int((~x.isfinite()).sum()) for name, x in (trained | parameters).items()},
            "largest": {name: x.detach().abs().max().item() for name, x in parameters.items()},
        }
        atomic_write(self.folder / NAN_REPORT, json.dumps(report, indent=1))
        raise TrainingError(
            f"{what} at step {self.step}; stopped. The last good checkpoint is kept in {self.folder}, "
            f"what was being trained is in {NAN_REPORT}. Go on from the checkpoint with a lower rate: "
            f"--resume {self.folder} --trainer.learning_rate {self.config.trainer.learning_rate / 3:.2g}"
        )


def check_box(cameras: Cameras, box: Tensor) -> None:
    """Raise SceneError if none of the views' rays meets the box."""
    height, width = cameras.height, cameras.width
    rows = torch.arange(0, height, max(height // 16, 1), device=box.device)
    columns = torch.arange(0, width, max(width // 16, 1), device=box.device)
    views = torch.arange(len(cameras), device=box.device)
    view, row, column = (x.flatten() for x in torch.meshgrid(views, rows, columns, indexing="ij"))
    rays = cameras.rays(view, column, row)
    enter, leave = box_span(rays.origins, rays.directions, box, 0.0, math.inf)
    if not (enter < leave).any():
        low, high = cameras.positions.amin(0).tolist(), cameras.positions.amax(0).tolist()
        raise SceneError(
            f"no ray of the training views meets the box {box.flatten().tolist()}; the cameras stand between "
            f"{[round(x, 3) for x in low]} and {[round(x, 3) for x in high]}. Set data.box around what they look at "
            "(and check that poses are camera-to-world, OpenGL axes)"
        )
