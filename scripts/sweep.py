#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare variants of a recipe: cases x scenes x seeds, each trained for the same seconds.

    python scripts/sweep.py --json sweep.json --scenes lego=scenes/lego fox=scenes/fox,data.downscale=2 \\
        --cases "" "small step:sampling.step_size=0.003" --seeds 0 1 2 --seconds 30
    python scripts/sweep.py --json sweep.json            prints the table of what is there

A scene is NAME=FOLDER, a case [NAME:]options with commas between; options of a scene follow its folder. What is in the
JSON file is not trained again, so a sweep that was stopped goes on. The first case is what others are compared with.
Options are those of bench_train.py.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nerfkit import config  # noqa: E402
from nerfkit.commands import status_of  # noqa: E402
from nerfkit.data.load import scene_of  # noqa: E402
from nerfkit.data.scene import Scene, format_sizes  # noqa: E402
from nerfkit.device import device_name, pick_device  # noqa: E402
from nerfkit.errors import UserError  # noqa: E402
from nerfkit.model.registry import import_models, model_class  # noqa: E402
from scripts import bench_train  # noqa: E402
from scripts.bench_train import BenchOptions, Case, loaded  # noqa: E402

OF_A_CASE = ("data.background", "data.appearance", "data.pose_optimization")  # others change the images
KEY = ("case", "scene", "seed", "seconds", "steps_asked", "device", "options")  # of a run


@dataclass
class SweepOptions(BenchOptions):
    """See the top of scripts/sweep.py."""

    scenes: tuple[str, ...] = ()  # NAME=FOLDER, options that are the scene's own after commas
    cases: tuple[str, ...] = ("",)  # [NAME:]options with commas between
    metric: str = "psnr"  # or ssim, what is compared


def parsed_case(text: str) -> Case:
    name, colon, changes = text.rpartition(":")
    case = Case(changes if colon else text, name=name if colon else "")
    for change in case.changes.split(","):
        name = change.partition("=")[0]
        if name.startswith("data.") and name not in OF_A_CASE:
            raise UserError(f"--cases {text!r}: the images are loaded once for all cases; put {name} into --scenes")
    return case


def main(arguments: list[str]) -> int:
    options = bench_train.parse(arguments, __doc__, "scripts/sweep.py", SweepOptions)
    if options.json is None:
        raise UserError("--json FILE is where the results go, and where a stopped sweep goes on")
    cases = [parsed_case(text) for text in options.cases]
    for scene in options.scenes:
        sweep_scene(options, scene, cases)
    if not options.json.exists():
        raise UserError(f"{options.json} is not there; --scenes NAME=FOLDER ... begins it")
    for budget, runs in by_budget(json.loads(options.json.read_text())["runs"]).items():
        print(f"{budget}\n\n{table(runs, options.metric)}\n")
    return 0


def by_budget(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs that may be compared: of one device and one time, or number of steps."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        steps = run.get("steps_asked")
        budget = f"{steps} steps" if steps else f"{run['seconds']:g} s"
        found.setdefault(f"{budget}, {run.get('device', 'unknown device')}", []).append(run)
    return found


def sweep_scene(options: SweepOptions, scene: str, cases: list[Case]) -> None:
    """Train every case on a scene, as of --scenes, with every seed, but for what the file has."""
    name, _, rest = scene.partition("=")
    folder, _, changes = rest.partition(",")
    if not folder:
        raise UserError(f"--scenes {scene!r}: write NAME=FOLDER")
    device = pick_device(options.device)
    done = json.loads(options.json.read_text())["runs"] if options.json.exists() else []
    done = {tuple(run.get(key) for key in KEY) for run in done}
    varied = bench_train.changed(replace(options, data=replace(options.data, path=folder)), changes)
    settings = replace(options, **{group: getattr(varied, group) for group in config.Config.__dataclass_fields__})
    found = scene_of(settings)
    budget = {"seconds": 0.0 if options.steps else options.seconds, "steps_asked": options.steps}
    wanted = [
        (
            case,
            {"case": case.title, "scene": name, "seed": seed, **budget, "device": device_name(device)}
            | {"options": recipe(bench_train.changed(settings, case.changes), found, device)},
        )
        for case in cases
        for seed in options.seeds
    ]
    wanted = [(case, key) for case, key in wanted if tuple(key.values()) not in done]
    if not wanted:
        return
    train, test = loaded(found, "train"), loaded(found, options.eval.split or "test")
    for case, key in wanted:
        run = bench_train.measure(settings, case, key["seed"], found, train, test, device)
        run = {"size": format_sizes(test.images.sizes), "views": bench_train.n_scored(options, test)} | run | key
        print(bench_train.line_of(case, run), flush=True)
        bench_train.add_to(options.json, run, device)


def recipe(settings: config.Config, scene: Scene, device: torch.device) -> str:
    """What tells one recipe from another, with what scene, device and model decide, whatever its seed."""
    import_models(settings.model.module)
    values = config.to_dict(settings.resolved(scene, device, model_class(settings))) | {"seed": 0}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def table(runs: list[dict[str, Any]], metric: str = "psnr") -> str:
    """Markdown: mean and spread of each case on each scene, and what the first case's rows say of the others."""
    cases, scenes = (list(dict.fromkeys(run[key] for run in runs)) for key in ("case", "scene"))
    values = {(case, scene): _of(runs, case, scene, lambda run: run[metric]) for case in cases for scene in scenes}
    lines = [
        f"| case | {' | '.join(scenes)} | ms a step | against the first |",
        f"|---|{'---:|' * len(scenes)}---:|---|",
    ]
    for case in cases:
        cells = [_with_spread(values[case, scene]) for scene in scenes]
        steps = " ".join(f"{mean(_of(runs, case, scene, lambda r: r['ms_per_step']) or [0]):.2f}" for scene in scenes)
        lines.append(f"| {case} | {' | '.join(cells)} | {steps} | {verdict(values, cases[0], case, scenes)} |")
    return "\n".join(lines)


def verdict(values: dict[tuple[str, str], list[float]], first: str, case: str, scenes: list[str]) -> str:
    """Mean difference over the scenes, and whether it is more than the spread of the seeds explains."""
    if case == first:
        return ""
    pairs = [(values[case, scene], values[first, scene]) for scene in scenes]
    pairs = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    if not pairs:
        return "no scene in common"
    gains = [mean(ours) - mean(theirs) for ours, theirs in pairs]
    if any(len(side) < 2 for pair in pairs for side in pair):
        return f"{mean(gains):+.2f}; one seed says nothing of the spread"
    errors = [2 * math.hypot(*(stdev(side) / math.sqrt(len(side)) for side in pair)) for pair in pairs]
    error = math.hypot(*errors) / len(errors)
    worse = sum(gain < -error for gain, error in zip(gains, errors, strict=True))
    word = "better" if mean(gains) > error and not worse else "worse" if mean(gains) < -error else "no clear difference"
    return f"{mean(gains):+.2f} ± {error:.2f}: {word}" + (f", worse on {worse} of {len(gains)} scenes" if worse else "")


def _of(runs: list[dict[str, Any]], case: str, scene: str, value: Callable[[dict[str, Any]], float]) -> list[float]:
    return [value(run) for run in runs if (run["case"], run["scene"]) == (case, scene)]


def _with_spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.2f}" + (f" ± {(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    sys.exit(status_of(lambda: main(sys.argv[1:])))
