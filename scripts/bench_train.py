#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a scene against the clock: PSNR on held-out views over seconds, time per step, frames per second.

    python scripts/bench_train.py --config configs/lego.toml --data.path scenes/lego --seconds 60 --seeds 0 1 2
    python scripts/bench_train.py --config configs/lego.toml --variants "" "model.aggregator=false" --json ablation.json
    torchrun --nproc_per_node 2 scripts/bench_train.py --config configs/lego.toml --reach 36.5 --json several_gpus.json

The clock starts before the first step and stands still while views are scored. With --steps, every variant trains that
many steps, however long they take. Of several processes each has a GPU, and the times with and without the addition of
their gradients are measured, too.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nerfkit import config  # noqa: E402
from nerfkit.commands import status_among_processes  # noqa: E402
from nerfkit.commands.options import TYRO, first_look  # noqa: E402
from nerfkit.data.images.batch import ImagePool  # noqa: E402
from nerfkit.data.images.pixels import background_color, blend  # noqa: E402
from nerfkit.data.load import scene_of  # noqa: E402
from nerfkit.data.scene import Scene, Views, format_sizes  # noqa: E402
from nerfkit.device import device_name, pick_device  # noqa: E402
from nerfkit.errors import TrainingError, UserError  # noqa: E402
from nerfkit.model.registry import import_models  # noqa: E402
from nerfkit.parallel import SINGLE_PROCESS, Processes  # noqa: E402
from nerfkit.rendering.image_renderer import ImageRenderer  # noqa: E402
from nerfkit.training.evaluator import in_order, pixels_that_count, scores  # noqa: E402
from nerfkit.training.trainer import Trainer  # noqa: E402
from nerfkit.version import versions  # noqa: E402
from scripts.timing import write_records  # noqa: E402

NOISE = r"void |\(anonymous namespace\)::|at::native::"  # in the names of kernels


@dataclass
class BenchOptions(config.Config):
    """See the top of scripts/bench_train.py."""

    config: tuple[str, ...] = ()  # TOML files
    seconds: float = 60.0  # of training
    steps: int = 0  # of training, instead
    at: tuple[float, ...] = (5, 10, 20, 30, 45)  # also score at these times [s]
    seeds: tuple[int, ...] = (0,)
    variants: tuple[str, ...] = ("",)  # each: options with commas between, as in "model.encoder=false,model.levels=8"
    views: int = 0  # score on that many views; 0: all
    reach: tuple[float, ...] = ()  # PSNR [dB] of which the seconds are told, between two scores
    frames: int = 50  # rendered to measure frames per second
    profile: bool = False  # add what a GPU spends a step on
    json: Path | None = None  # file to which the results are added


def parse(arguments: list[str], description: str | None, prog: str, kind: type = BenchOptions) -> BenchOptions:
    base = config.load(first_look(arguments).config or [])
    default = kind(**{k: getattr(base, k) for k in config.Config.__dataclass_fields__})
    return tyro.cli(kind, args=arguments, default=default, prog=prog, description=description, **TYRO)


def main(arguments: list[str], processes: Processes = SINGLE_PROCESS) -> int:
    """Train each variant with each seed, and write down how it went."""
    options = parse(arguments, __doc__, "scripts/bench_train.py")
    device = pick_device(processes.join(options.device))
    scene = scene_of(options)
    train, test = loaded(scene, "train"), loaded(scene, options.eval.split or "test")
    n_views = min(options.views or len(test.images), len(test.images))
    about = {"scene": f"{scene.name} {format_sizes(test.images.sizes)}", "views": n_views}
    for variant in options.variants:
        for seed in options.seeds:
            result = about | measure(options, variant, seed, scene, train, test, device, processes)
            print(line_of(result), flush=True)
            if options.json and processes.is_first:
                add_to(options.json, result, device)
    return 0


class LoadedViews(NamedTuple):
    """Views with their images."""

    views: Views
    images: ImagePool


def loaded(scene: Scene, split: str) -> LoadedViews:
    views = scene.split(split)
    return LoadedViews(views, views.load(with_depth=split == "train"))


def add_to(file: Path, result: dict[str, Any], device: torch.device) -> None:
    """Add a result to a file of results, a line each, or begin one."""
    runs = json.loads(file.read_text())["runs"] if file.exists() else []
    write_records(file, {"device": device_name(device), "versions": versions()}, "runs", [*runs, result])


def varied(options: BenchOptions, variant: str, seed: int) -> config.Config:
    """The configuration with the changes of a variant."""
    settings = changed(options, variant)
    settings.seed = seed
    settings.trainer.max_seconds = 0.0 if options.steps else options.seconds
    if options.steps:
        settings.trainer.steps = options.steps
    config.check(settings)
    return settings


def changed(options: config.Config, changes: str) -> config.Config:
    """The configuration with changes, as of a variant."""
    values = config.to_dict(options)
    for change in filter(None, changes.split(",")):
        name, _, value = change.partition("=")
        group, _, key = name.partition(".")
        if not key or not isinstance(values.get(group), dict):
            raise UserError(f"{changes!r}: write GROUP.OPTION=VALUE, with commas between")
        try:
            values[group][key] = json.loads(value)  # a number, true or false
        except ValueError:
            values[group][key] = value
    return config.from_dict(values, changes or "options")


def measure(
    options: BenchOptions,
    variant: str,
    seed: int,
    scene: Scene,
    train: LoadedViews,
    test: LoadedViews,
    device: torch.device,
    processes: Processes = SINGLE_PROCESS,
) -> dict[str, Any]:
    settings, title = varied(options, variant, seed), variant or "default"
    import_models(settings.model.module)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(settings, train.views.cameras, train.images, scene=scene, device=device, processes=processes)
    settings = trainer.config
    of_views: dict[str, float] = {}  # the last scores of the test views

    def score(views: LoadedViews = test) -> float:
        found = mean_scores(trainer, views, options.views or len(test.images), device)
        if views is test:
            of_views.update(found)
        return found["psnr"]

    curve: list[dict[str, float]] = []
    end = float("inf") if options.steps else options.seconds
    samples = rays = 0
    for mark in sorted({*(t for t in options.at if t < end), end}):
        seen = train_until(trainer, mark, f"{title}, seed {seed}")
        if curve and curve[-1]["steps"] == trainer.step:
            continue  # it ended before this mark, or was past it at the last
        samples, rays = samples + seen[0], rays + seen[1]
        curve.append({"seconds": round(trainer.seconds, 2), "steps": trainer.step, "psnr": round(score(), 3)})
        print(f"  {title} seed {seed}: {curve[-1]}", flush=True)
        processes.barrier()
    result = {
        "name": title,
        "variant": variant,
        "seed": seed,
        "preset": asdict(settings.model) | asdict(settings.sampling) | asdict(settings.trainer),
        "background": settings.data.background,
        "backend": trainer.backends(),
        "curve": curve,
        "seconds": curve[-1]["seconds"],
        "steps": trainer.step,
        "psnr": curve[-1]["psnr"],
        "ssim": round(of_views["ssim"], 4),
        "train_psnr": round(score(train), 3),
        "ms_per_step": round(trainer.seconds / trainer.step * 1e3, 3),
        "samples_per_step": round(samples / trainer.step),
        "rays_per_step": round(rays / trainer.step),
        "fps": round(frames_per_second(trainer, test.views, options.frames, device), 1),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if device.type == "cuda" else None,
    }
    if options.reach:
        result["seconds_to"] = {f"{psnr:g}": seconds_to(psnr, curve) for psnr in options.reach}
    if processes.size > 1:
        result["parallel"] = times_of_processes(trainer)
    return result | ({"profile": step_profile(trainer)} if options.profile else {})


def train_until(trainer: Trainer, mark: float, title: str) -> tuple[int, int]:
    """Train to a time [s] or the end of the schedule: how many samples and rays that took."""
    samples = rays = 0
    began = time.perf_counter()
    while trainer.progress < 1 and trainer.seconds < mark:
        for _ in range(trainer.log_every if trainer.training_step.static_shapes else 1):
            trainer.train_step()
            if trainer.progress >= 1:
                break
        sums = trainer.training_step.pop_stats()
        if trainer.training_step.failed:
            raise TrainingError(f"{title}: no finite loss at step {trainer.step}")
        samples, rays = samples + sums.samples, rays + sums.rays
        trainer.seconds += time.perf_counter() - began
        began = time.perf_counter()
        trainer.agree()
    return samples, rays


def seconds_to(psnr: float, curve: list[dict[str, float]]) -> float | None:
    """Training time after which a score was reached, on a line between two points of the curve; None if it was not."""
    before = {"seconds": 0.0, "psnr": 0.0}
    for point in curve:
        if point["psnr"] >= psnr:
            share = (psnr - before["psnr"]) / (point["psnr"] - before["psnr"])
            return round(before["seconds"] + share * (point["seconds"] - before["seconds"]), 2)
        before = point
    return None


def mean_scores(trainer: Trainer, of: LoadedViews, n_views: int, device: torch.device) -> dict[str, float]:
    """Means over the first views: PSNR [dB] and SSIM of the pixels that count."""
    background = background_color(trainer.config.data.background, device)
    image_of = ImageRenderer(trainer.model, background)
    cameras = of.views.cameras.to(device)
    rows = [
        scores(
            image_of(cameras, view)["rgb"],
            blend(of.images.image(view), background.cpu()),
            pixels_that_count(of.images, of.views, view),
            None,
            device,
        )
        for view in trainer.processes.shard(min(n_views, len(cameras)))
    ]
    rows = in_order(trainer.processes.all_gather(rows))
    return {name: sum(row[name] for row in rows) / len(rows) for name in ("psnr", "ssim")}


def line_of(result: dict[str, Any]) -> str:
    seconds, budget = result["curve"][-1]["seconds"], result["preset"]["max_seconds"]
    early = f" of {budget:.0f}, ended by trainer.steps" if seconds < 0.9 * budget else ""
    return (
        f"{result['name']:<40} seed {result['seed']}  {result['psnr']:.2f} dB in {seconds:.0f} s{early}, "
        f"{result['steps']} steps of {result['ms_per_step']:.2f} ms ({result['samples_per_step']} samples, "
        f"{result['rays_per_step']} rays), {result['fps']} frames/s, {result['peak_gb']} GB"
    )


def times_of_processes(trainer: Trainer, steps: int = 200) -> dict[str, Any]:
    """A step with the gradients added, and without [ms]; the trainer is done then.

    The slowest process counts. Without the addition the models train apart, and no process waits for another.
    """
    step, processes = trainer.training_step, trainer.processes
    shared, ms = step.together, {}
    wait = torch.cuda.synchronize if trainer.device.type == "cuda" else lambda: None
    for name, adding in (("added", processes), ("alone", SINGLE_PROCESS)):
        step.release_graph()
        shared.processes = adding
        times = []
        for _ in range(5):
            for _ in range(shared.warm_up_steps + 2):
                step()
            wait()
            processes.barrier()
            began = time.perf_counter()
            for _ in range(steps):
                step()
            wait()
            times.append((time.perf_counter() - began) / steps * 1e3)
        step.release_graph()  # NCCL cannot end while a graph holds its calls
        ms[name] = round(processes.all_reduce_max(torch.tensor(statistics.median(times))).item(), 4)
    return {
        "processes": processes.size,
        "text": processes.description,
        "bytes_added": shared.bytes_added,
        "ms": ms,
        "share_of_addition": round(1 - ms["alone"] / ms["added"], 4),
    }


def step_profile(trainer: Trainer, steps: int = 64) -> dict[str, Any]:
    """Share of the time that the GPU computes, and the kernels that take most of it [us a step]."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
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
        "us_per_step": {re.sub(NOISE, "", name)[:90]: round(us, 1) for name, us in top},
    }


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


if __name__ == "__main__":
    sys.exit(status_among_processes(lambda *processes: main(sys.argv[1:], *processes)))
