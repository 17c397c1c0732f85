# SPDX-License-Identifier: Apache-2.0
"""What a trained model's step and frame take: with and without the addition of gradients, kernel by kernel."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from nerfkit.data.images.pixels import background_color
from nerfkit.data.scene import Views
from nerfkit.parallel import ALONE
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.trainer import Trainer


def times_of_processes(trainer: Trainer, steps: int = 200) -> dict[str, Any]:
    """A step with the gradients added, and without [ms]; the trainer is done then.

    The slowest process counts. Without the addition the models train apart, and no process waits for another.
    """
    step, processes = trainer.training_step, trainer.processes
    shared, ms = step.together, {}
    for name, adding in (("added", processes), ("alone", ALONE)):
        step.release_graph()
        shared.processes = adding
        times = []
        for _ in range(5):
            for _ in range(shared.warm_up_steps + 2):
                step()
            synchronize(trainer.device)
            processes.wait()
            began = time.perf_counter()
            for _ in range(steps):
                step()
            synchronize(trainer.device)
            times.append((time.perf_counter() - began) / steps * 1e3)
        step.release_graph()  # NCCL cannot end while a graph holds its calls
        ms[name] = round(processes.most(torch.tensor(statistics.median(times))).item(), 4)
    return {
        "processes": processes.size,
        "text": processes.text,
        "precision": trainer.config.parallel.precision,
        "bytes_added": shared.bytes_added,
        "ms": ms,
        "share_of_addition": round(1 - ms["alone"] / ms["added"], 4),
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_profile(trainer: Trainer, steps: int = 64) -> dict[str, Any]:
    """Share of the time that the GPU computes, and the kernels that take most of it [us a step]."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            trainer.train_step()
        torch.cuda.synchronize()
    kernels = sorted(
        (e.time_range.start, e.time_range.end, e.name)
        for e in trace.events()
        if e.device_type == torch.autograd.DeviceType.CUDA
    )
    busy, until, by_name = 0.0, kernels[0][0], {}
    for start, end, name in kernels:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
        by_name[name] = by_name.get(name, 0.0) + (end - start) / steps
    top = sorted(by_name.items(), key=lambda item: -item[1])[:20]
    return {
        "busy_share": round(busy / (until - kernels[0][0]), 4),
        "kernels_per_step": round(len(kernels) / steps),
        "us_per_step": {short_name(name): round(us, 1) for name, us in top},
    }


def short_name(kernel: str) -> str:
    """A kernel's name as far as it tells one from another."""
    for noise in ("void ", "(anonymous namespace)::", "at::native::"):
        kernel = kernel.replace(noise, "")
    return kernel[:90]


def frames_per_second(trainer: Trainer, test: Views, n_frames: int, device: torch.device) -> float:
    """Of whole images, which stay on the device."""
    background = background_color(trainer.config.data.background, device)
    image_of = ImageRenderer(trainer.model, background, stays_on_device=True)
    cameras = test.cameras.to(device)

    def render(frames: range) -> None:
        for frame in frames:
            image = image_of(cameras, frame % len(cameras))
        image["rgb"][0, 0].tolist()  # waits

    render(range(2))
    began = time.perf_counter()
    render(range(n_frames))
    return n_frames / (time.perf_counter() - began)
