# SPDX-License-Identifier: Apache-2.0
"""Tables and curves of what scripts/bench_train.py measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from nerfkit.config import ModelConfig, SamplingConfig, TrainerConfig
from nerfkit.errors import UserError


def stages_of(r: dict[str, Any]) -> str:
    """What of the model a run had along the ray, and on which backend."""
    named = [name for name, key in (("encoder", "encoder"), ("LLTM", "aggregator")) if r["preset"][key]]
    return (" and ".join(named) or "field") + (", torch backend" if "torch" in r["backend"].values() else "")


def markdown(runs: list[dict[str, Any]]) -> str:
    """A line for each preset, stages and budget: mean and half the spread over the runs whose loss stayed finite."""
    lines = [
        "| scene | along the ray | rows, state, rate | training | PSNR | runs | steps | ms a step | samples, rays | "
        "frames/s | GB |",
        "|---|---|---|---|---|---|---:|---:|---|---:|---:|",
    ]
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for r in runs:
        preset = r["preset"]
        budget = f"{r['steps']} steps" if preset["max_seconds"] == 0 else f"{preset['max_seconds']:g} s"
        sizes = f"2^{preset['log2_table']}, {preset['state']}, {preset['learning_rate']:g}"
        sizes += "".join(f", {k} {v:g}" for k, v in unusual(preset).items())
        sizes += ", random background" if r["background"] == "random" else ""
        case = r.get("case", "")  # of scripts/sweep.py, whose cases differ in options that are not told
        groups.setdefault((r["scene"], stages_of(r), sizes, budget, case), []).append(r)
    for (*names, case), group in groups.items():
        names[-1] += f" ({case})" if case else ""
        scores = [r["psnr"] for r in group if r["psnr"] is not None]
        spread = f" ± {(max(scores) - min(scores)) / 2:.2f}" if len(scores) > 1 else ""
        score = f"{sum(scores) / len(scores):.2f}{spread} dB" if scores else "none"
        keys = ("steps", "ms_per_step", "samples_per_step", "rays_per_step", "fps")
        steps, ms, samples, rays, fps = (sum(r[k] for r in group) / len(group) for k in keys)
        memory = max(r["peak_gb"] or 0 for r in group)
        lines.append(
            f"| {' | '.join(names)} | {score} | {len(scores)} of {len(group)} | {steps:.0f} | {ms:.2f} | "
            f"{samples / 1e3:.0f}k, {rays / 1e3:.0f}k | {fps:.0f} | {memory:.1f} |"
        )
    return "\n".join(lines)


TOLD = ("final_learning_rate", "candidates_per_sample", "occupancy_threshold", "max_resolution", "samples",
        "background_warmup")  # fmt: skip
DEFAULTS = asdict(ModelConfig()) | asdict(SamplingConfig()) | asdict(TrainerConfig())
OF_THE_H200 = DEFAULTS | {"candidates_per_sample": 3.0, "occupancy_threshold": 0.01}  # defaults of then


def unusual(preset: dict[str, Any], usual: dict[str, Any] = DEFAULTS) -> dict[str, float]:
    """Options of a run that are told because they differ from `usual`."""
    return {name: preset[name] for name in TOLD if preset[name] != usual[name]}


def is_of_the_defaults(r: dict[str, Any]) -> bool:
    """Whether a run is one of lego by the recipe as it ships, with a budget of its own: of scripts/sweep.py."""
    return (r.get("case"), r["scene"]) == ("default", "lego")


# nerfacc 0.5.3 with tiny-cuda-nn, its own lego example on one H200: training batches, at the end of 25 test views.
PEER = ((8, 31.2), (16, 33.4), (38, 34.8), (148, 35.86))


def draw(runs: list[dict[str, Any]], file: Path) -> None:
    """PSNR over seconds of the default variant on lego, a schedule each, and of the peer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    budgets: dict[float, list[float]] = {}
    for r in filter(is_of_the_defaults, runs):
        budgets.setdefault(r["seconds"], []).append(r["psnr"])
    if not budgets:
        raise UserError("nothing to draw: no run of scripts/sweep.py on a scene called lego, of the case 'default'")
    means = [(seconds, sum(scores) / len(scores)) for seconds, scores in sorted(budgets.items())]
    axes.plot(*zip(*means, strict=True), "o-", color="tab:blue", label="nerfkit, test views; a schedule each")
    *batches, last = PEER
    axes.plot(*zip(*batches, strict=True), "s--", color="tab:orange", label="nerfacc + tiny-cuda-nn, training batches")
    axes.plot(*last, "*", color="tab:orange", markersize=12, label="the same, test views")
    axes.set(xscale="log", xlabel="seconds of training, one H200", ylabel="PSNR [dB]", title="lego 800x800")
    axes.set_xticks([5, 10, 20, 40, 80, 160], ["5", "10", "20", "40", "80", "160"])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
