# SPDX-License-Identifier: Apache-2.0
"""Training: pixels in, optimiser steps out; every source of randomness can be saved and restored."""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from nerfkit import checkpoint, ops, run
from nerfkit.cameras import Cameras, Rays
from nerfkit.config import Config
from nerfkit.errors import RunError, SceneError, TrainingError
from nerfkit.files import write_aside
from nerfkit.ops.march import box_span
from nerfkit.randomness import random_states, restore_random_states, seed_everything
from nerfkit.renderer import Renderer
from nerfkit.scene import BACKGROUNDS, blend
from nerfkit.versions import versions

NAN_REPORT = "nan_report.json"
MIN_RAYS = 64


class StepReport(NamedTuple):
    """What one optimiser step did."""

    loss: float
    n_rays: int
    n_samples: int


class Trainer:
    """Trains a Renderer on the pictures [V, H, W, 3 or 4] uint8 of one split."""

    def __init__(self, config: Config, cameras: Cameras, images: Tensor, folder: Path, device: torch.device):
        self.config = config
        self.folder = folder
        self.device = device
        seed_everything(config.seed)
        self.renderer = Renderer(config).to(device)
        self.cameras = cameras.to(device)
        check_box(self.cameras, self.renderer.sampler.box)
        self.images = images.to(device)
        self.optimizer = torch.optim.Adam(
            self.renderer.parameters(), lr=config.trainer.learning_rate, betas=(0.9, 0.99), eps=1e-15, fused=True
        )
        self.step = 0
        self.seconds = 0.0  # training time, of earlier parts of the run too
        self.n_rays = first_n_rays(config)
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
        meter = Meter()
        saved_at = self.step
        if not checkpoint.exists(self.folder):
            self.save()  # from now on there is something to go back to
        try:
            while self.progress < 1 and self.stop_signal is None:
                began = time.perf_counter()
                report = self.train_step()
                seconds = time.perf_counter() - began
                self.seconds += seconds
                meter.add(report, seconds)
                bar.update()
                if self.step % settings.log_every == 0:
                    self._log(meter, bar)
                    meter = Meter()
                if settings.save_every and self.step % settings.save_every == 0:
                    self.save()
                    saved_at = self.step
            if saved_at != self.step:
                self.save()
        finally:
            bar.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return self.stop_signal is None

    def train_step(self) -> StepReport:
        """One optimiser step."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self.renderer.sampler.update(self.renderer.density, self.step)
        rays, pixels, background, jitter = self.sample_batch(self.n_rays)
        rendering, samples = self.renderer(rays, background, jitter)
        loss = torch.nn.functional.mse_loss(rendering.color, blend(pixels, background))
        value = loss.item()
        if not math.isfinite(value):
            self._stop_not_finite(f"the loss is {value}", rays._asdict() | rendering._asdict())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        report = StepReport(value, self.n_rays, samples.t_starts.shape[0])
        self.n_rays = self._steered_rays(report)
        return report

    def sample_batch(self, n_rays: int) -> tuple[Rays, Tensor, Tensor, Tensor]:
        """Random rays, their pixels [R, 3 or 4] uint8, background [R, 3] and jitter [R]."""
        n_views, height, width = self.images.shape[:3]
        view, row, column = (torch.randint(n, (n_rays,), device=self.device) for n in (n_views, height, width))
        kind = self.config.data.background
        if kind == "random":
            background = torch.rand(n_rays, 3, device=self.device)
        else:
            background = torch.full((n_rays, 3), BACKGROUNDS[kind], device=self.device)
        jitter = torch.rand(n_rays, device=self.device)
        return self.cameras.rays(view, column, row), self.images[view, row, column], background, jitter

    def learning_rate(self) -> float:
        """Rises in the warm-up, then falls exponentially to its final value."""
        settings = self.config.trainer
        first, last = settings.learning_rate, settings.final_learning_rate
        warm = min(1.0, (self.step + 1) / max(settings.warmup, 1))
        return warm * first * (last / first) ** min(self.progress, 1.0)

    def _steered_rays(self, report: StepReport) -> int:
        """The number of rays that would have had about `trainer.samples` samples."""
        settings = self.config.trainer
        wanted = report.n_rays * settings.samples / max(report.n_samples, 1)
        # At most twofold a step: the first samples of a field say little about the next.
        wanted = min(max(wanted, report.n_rays / 2), report.n_rays * 2)
        return int(min(max(wanted, MIN_RAYS), settings.max_rays))

    def save(self) -> None:
        """Write a checkpoint, unless training has gone wrong: a good one is never replaced by a bad one."""
        if not all(bool(p.isfinite().all()) for p in self.renderer.parameters()):
            self._stop_not_finite("a parameter is not finite", {})
        tensors = {f"model.{name}": value for name, value in self.renderer.state_dict().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        random_tensors, random_state = random_states()
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "n_rays": self.n_rays,
            "random": random_state,
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
        self.step, self.seconds, self.n_rays = state["step"], state["seconds"], state["n_rays"]
        restore_random_states(checkpoint.part(tensors, "random"), state["random"])
        self._forget_log()

    def _remember_signal(self, number: int, frame: Any) -> None:
        if self.stop_signal is not None:  # asked twice: stop at once
            raise KeyboardInterrupt
        self.stop_signal = number

    def _log(self, meter: Meter, bar: tqdm) -> None:
        line = meter.summary() | {
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
        write_aside(self.folder / run.LOG, "".join(json.dumps(line) + "\n" for line in kept))

    def _stop_not_finite(self, what: str, trained: dict[str, Tensor]) -> None:
        """Stop; write what was being trained to a report. The last good checkpoint stays."""
        parameters = dict(self.renderer.named_parameters())
        report = {
            "step": self.step,
            "what": what,
            "learning_rate": self.learning_rate(),
            "n_rays": self.n_rays,
            "not_finite": {name: int((~x.isfinite()).sum()) for name, x in (trained | parameters).items()},
            "largest": {name: x.detach().abs().max().item() for name, x in parameters.items()},
        }
        write_aside(self.folder / NAN_REPORT, json.dumps(report, indent=1))
        raise TrainingError(
            f"{what} at step {self.step}; stopped. The last good checkpoint is kept in {self.folder}, "
            f"what was being trained is in {NAN_REPORT}. Go on from the checkpoint with a lower rate: "
            f"--resume {self.folder} --trainer.learning_rate {self.config.trainer.learning_rate / 3:.2g}"
        )


class Meter:
    """Means over the steps between two log lines."""

    def __init__(self) -> None:
        self.loss = self.seconds = 0.0
        self.steps = self.rays = self.samples = 0

    def add(self, report: StepReport, seconds: float) -> None:
        self.steps += 1
        self.loss += report.loss
        self.rays += report.n_rays
        self.samples += report.n_samples
        self.seconds += seconds

    def summary(self) -> dict[str, float]:
        loss = self.loss / self.steps
        return {
            "loss": loss,
            "psnr": -10 * math.log10(max(loss, 1e-12)),
            "rays_per_second": round(self.rays / self.seconds, 1),
            "samples_per_ray": round(self.samples / self.rays, 3),
        }


def first_n_rays(config: Config) -> int:
    """Rays of the first step: as if each had samples all along the box's diagonal."""
    box = torch.tensor(config.data.box).view(2, 3)
    longest = (box[1] - box[0]).norm().item() / config.sampling.step
    return min(max(int(config.trainer.samples / longest), MIN_RAYS), config.trainer.max_rays)


def check_box(cameras: Cameras, box: Tensor) -> None:
    """Raise SceneError if none of the views' rays meets the box."""
    height, width = cameras.height, cameras.width
    rows = torch.arange(0, height, max(height // 16, 1), device=box.device)
    columns = torch.arange(0, width, max(width // 16, 1), device=box.device)
    views = torch.arange(len(cameras), device=box.device)
    view, row, column = (x.flatten() for x in torch.meshgrid(views, rows, columns, indexing="ij"))
    enter, leave = box_span(*cameras.rays(view, column, row), box, 0.0, math.inf)
    if not (enter < leave).any():
        low, high = cameras.positions.amin(0).tolist(), cameras.positions.amax(0).tolist()
        raise SceneError(
            f"no ray of the training views meets the box {box.flatten().tolist()}; the cameras stand between "
            f"{[round(x, 3) for x in low]} and {[round(x, 3) for x in high]}. Set data.box around what they look at "
            "(and check that poses are camera-to-world, OpenGL axes)"
        )
