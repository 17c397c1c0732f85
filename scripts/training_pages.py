# SPDX-License-Identifier: Apache-2.0
"""Tables of training for the pages, from docs/benchmarks/*.json; `scripts/benchmark_tables.py` writes them there."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nerfkit.config import TrainerConfig
from nerfkit.training.scene_options import RECIPE
from scripts import lltm_forms
from scripts.train_tables import OF_THE_H200, stages_of, unusual

MEASURED = Path(__file__).resolve().parent.parent / "docs/benchmarks"


def runs_of(name: str) -> list[dict[str, Any]]:
    return json.loads((MEASURED / f"{name}.json").read_text())["runs"]


def mean_of(scores: list[float]) -> str:
    """With half the distance between the best and the worst."""
    spread = f" ± {(max(scores) - min(scores)) / 2:.2f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.2f}{spread}"


class Group(NamedTuple):
    """Runs that differ in their seed only."""

    scene: str
    stages: str
    budget: str
    runs: list[dict[str, Any]]

    def mean(self, key: str) -> float:
        return statistics.mean(r[key] for r in self.runs)

    @property
    def psnr(self) -> str:
        scores = [r["psnr"] for r in self.runs]
        return f"{mean_of(scores)} dB"


def groups() -> Iterator[Group]:
    """Runs of the presets as they shipped then, in the order of the file."""
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for r in runs_of("train_h200"):
        if "case" in r or unusual(r["preset"], OF_THE_H200) or r["background"] != "white":
            continue
        seconds = r["preset"]["max_seconds"]
        budget = f"{seconds:g} s" if seconds else f"{r['steps']} steps"
        grouped.setdefault((r["scene"], stages_of(r), budget), []).append(r)
    return (Group(*key, runs) for key, runs in grouped.items())


def training() -> str:
    lines = [
        "| scene | training | PSNR | runs | steps | ms a step | frames/s | GB |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for g in groups():
        if g.stages == "encoder and LLTM" and g.budget.endswith(" s"):
            memory = max(r["peak_gb"] for r in g.runs)
            lines.append(
                f"| {g.scene} | {g.budget} | {g.psnr} | {len(g.runs)} | {g.mean('steps'):.0f} | "
                f"{g.mean('ms_per_step'):.2f} | {g.mean('fps'):.0f} | {memory:.1f} |"
            )
    return "\n".join(lines)


def modes() -> str:
    """Fused beside PyTorch, and deterministic beside not."""
    lines = ["| scene | mode | steps | runs | ms a step | PSNR |", "|---|---|---:|---:|---:|---|"]
    for g in groups():
        if g.stages.startswith("encoder and LLTM") and g.budget == "1000 steps":
            mode = "PyTorch" if "torch backend" in g.stages else "fused"
            steps = g.mean("steps")
            lines.append(
                f"| {g.scene} | {mode} | {steps:.0f} | {len(g.runs)} | {g.mean('ms_per_step'):.2f} | {g.psnr} |"
            )
    runs = runs_of("deterministic_h200")
    for wanted in (False, True):
        g = Group(runs[0]["scene"], "", "", [r for r in runs if r["preset"]["deterministic"] is wanted])
        mode = "fused, deterministic" if wanted else "fused"
        steps = g.mean("steps")
        lines.append(f"| {g.scene} | {mode} | {steps:.0f} | {len(g.runs)} | {g.mean('ms_per_step'):.2f} | {g.psnr} |")
    return "\n".join(lines)


def stages() -> str:
    """What the stages along the ray add, at equal time and at equal steps."""
    by = {(g.stages, g.budget): g for g in groups() if g.scene.startswith("lego")}
    lines = ["| along the ray | PSNR after 30 s | ms a step | PSNR after 2000 steps |", "|---|---|---:|---|"]
    for name in ("field", "LLTM", "encoder", "encoder and LLTM"):
        time, steps = by[name, "30 s"], by[name, "2000 steps"]
        label = "neither" if name == "field" else name
        lines.append(f"| {label} | {time.psnr} | {time.mean('ms_per_step'):.2f} | {steps.psnr} |")
    return "\n".join(lines)


CONTEXTS = ("both", "encoder", "LLTM", "neither", "sees what is opaque", "rate x 0.1", "enters rgb")
OBJECTS = ("lego", "wires", "metal", "leaves")


def outdoors() -> str:
    """What the stages along the ray add on captures, at equal time."""
    return _contexts("capture", lambda scene: scene not in OBJECTS)


def small() -> str:
    """The same on captures at a fraction of their size, on a CPU."""
    lines = ["| capture, pixels | encoder and LLTM | encoder |", "|---|---:|---:|"]
    grouped: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in runs_of("context_cpu"):
        grouped.setdefault(f"{run['scene']}, {run['size']}", {}).setdefault(run["case"], []).append(run)
    for scene, cases in grouped.items():
        both, encoder = (", ".join(f"{run['psnr']:.2f}" for run in cases[name]) for name in ("both", "encoder"))
        lines.append(f"| {scene} | {both} dB | {encoder} dB |")
    return "\n".join(lines)


def indoors() -> str:
    """The same on objects."""
    return _contexts("object", lambda scene: scene in OBJECTS)


def _contexts(title: str, belongs: Callable[[str], bool]) -> str:
    lines = [f"| {title} | along the ray | runs | PSNR | training views | ms a step |", "|---|---|---:|---|---:|---:|"]
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs_of("context_h200"):
        if belongs(run["scene"]):
            grouped.setdefault((run["scene"], run["device"], run["case"]), []).append(run)
    scenes = list(dict.fromkeys(scene for scene, *_ in grouped))
    for key in sorted(grouped, key=lambda key: (scenes.index(key[0]), "H100" in key[1], CONTEXTS.index(key[2]))):
        (scene, device, case), runs = key, grouped[key]
        if any(run["preset"] != runs[0]["preset"] for run in runs):
            raise ValueError(f"context_h200.json: the runs of {key} differ in their options")
        train, ms = (statistics.mean(run[name] for run in runs) for name in ("train_psnr", "ms_per_step"))
        scores = mean_of([run["psnr"] for run in runs])
        label = case if case in CONTEXTS[:4] else f"both, {case}"
        label += " (H100)" if "H100" in device else ""
        lines.append(f"| {scene} | {label} | {len(runs)} | {scores} dB | {train:.1f} dB | {ms:.2f} |")
    return "\n".join(lines)


def warmup() -> str:
    """What random backgrounds in the first steps change, on a CPU."""
    lines = ["| random steps | runs | mean PSNR | worst |", "|---:|---:|---:|---:|"]
    by_steps: dict[int, list[float]] = {}
    for r in runs_of("background_cpu"):
        by_steps.setdefault(r["preset"]["background_warmup"], []).append(r["psnr"])
    for steps, scores in by_steps.items():
        lines.append(f"| {steps} | {len(scores)} | {statistics.mean(scores):.2f} dB | {min(scores):.2f} dB |")
    return "\n".join(lines)


def recipe() -> str:
    """Scores of schedule, learning rate and decay of the table on each scene; the defaults are bold."""
    runs = [run for run in runs_of("recipe_h100") if _is_of_the_recipe(run)]
    scenes = list(dict.fromkeys(run["scene"] for run in runs))
    rows: dict[tuple[str, float, float], dict[str, float]] = {}
    for run in runs:
        preset = run["preset"]
        key = (preset["schedule"], preset["learning_rate"], preset["table_decay"])
        rows.setdefault(key, {})[run["scene"]] = run["psnr"]
    ours = (TrainerConfig().schedule, *RECIPE.values())
    lines = [f"| schedule, rate, table decay | {' | '.join(scenes)} | mean |", f"|---|{'---:|' * (len(scenes) + 1)}"]
    for key, scores in rows.items():
        title = ", ".join(f"{value:g}" if isinstance(value, float) else value for value in key)
        cells = [f"{scores[scene]:.2f}" if scene in scores else "" for scene in scenes]
        mean = f"{statistics.mean(scores.values()):.2f}" if len(scores) == len(scenes) else ""
        lines.append(f"| {f'**{title}**' if key == ours else title} | {' | '.join(cells)} | {mean} |")
    return "\n".join(lines)


def _is_of_the_recipe(run: dict[str, Any]) -> bool:
    preset = run["preset"]
    usual = (preset["final_learning_rate"], preset["samples"]) == (3e-4, 2**18)
    return usual and run["background"] == "white"


def finest() -> str:
    """Scores of a finest level of so many cells a side on each scene; the best of a scene are bold."""
    runs = runs_of("finest_level_h100")
    scenes, cases = (list(dict.fromkeys(run[key] for run in runs)) for key in ("scene", "case"))
    best = {scene: max(run["psnr"] for run in runs if run["scene"] == scene) for scene in scenes}
    lines = [f"| cells a side | {' | '.join(scenes)} | ms a step |", f"|---|{'---:|' * (len(scenes) + 1)}"]
    for case in cases:
        of_case = [run for run in runs if run["case"] == case]
        texts = {scene: [f"{run['psnr']:.2f}" for run in of_case if run["scene"] == scene] for scene in scenes}
        bold = {run["scene"] for run in of_case if run["psnr"] == best[run["scene"]]}
        cells = [f"**{', '.join(texts[scene])}**" if scene in bold else ", ".join(texts[scene]) for scene in scenes]
        times = [run["ms_per_step"] for run in of_case]
        span = " to ".join(dict.fromkeys(f"{ms:.2f}" for ms in (min(times), max(times))))
        lines.append(f"| {case} | {' | '.join(cells)} | {span} |")
    return "\n".join(lines)


def seconds() -> str:
    """Lego after so many seconds, a budget each."""
    lines = [
        "| | GPU | training | PSNR | runs | training views | SSIM | steps | ms a step | rays a step | GB |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    budgets: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for gpu in ("H200", "H100"):
        for run in runs_of(f"train_{gpu.lower()}"):
            if "case" in run and run["scene"] == "lego":
                budgets.setdefault((run["case"], gpu, run["seconds"]), []).append(run)
    for (case, gpu, budget), runs in sorted(budgets.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])):
        steps, ms, rays = (statistics.mean(r[key] for r in runs) for key in ("steps", "ms_per_step", "rays_per_step"))
        train, ssim = (statistics.mean(r[key] for r in runs) for key in ("train_psnr", "ssim"))
        memory = max(r["peak_gb"] for r in runs)
        lines.append(
            f"| {case} | {gpu} | {budget:.0f} s | {mean_of([r['psnr'] for r in runs])} dB | {len(runs)} | "
            f"{train:.2f} dB | {ssim:.3f} | {steps:.0f} | {ms:.2f} | {rays:,.0f} | {memory:.1f} |"
        )
    return "\n".join(lines)


def scenes() -> str:
    """The recipe of before and the present one, 30 s."""
    lines = ["| scene, 400x400, 30 s | recipe of before | now | gain | training views, now | ms a step |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    by: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in (*runs_of("train_h200"), *runs_of("train_h100")):
        if "case" in run and run["scene"] != "lego":
            by.setdefault(run["scene"], {}).setdefault(run["case"], []).append(run)
    gains = []
    for scene, cases in by.items():
        before, now = ([run["psnr"] for run in cases[name]] for name in ("before", "default"))
        gains.append(statistics.mean(now) - statistics.mean(before))
        train, ms = (statistics.mean(run[key] for run in cases["default"]) for key in ("train_psnr", "ms_per_step"))
        title = f"{scene} (H100)" if scene == "Orrery" else scene
        scores = f"{mean_of(before)} dB | {mean_of(now)} dB | {gains[-1]:+.2f}"
        lines.append(f"| {title} | {scores} | {train:.1f} dB | {ms:.2f} |")
    return "\n".join([*lines, f"| mean | | | {statistics.mean(gains):+.2f} | | |"])


def frames() -> str:
    """Frames as they are rendered, and recorded as one graph."""
    lines = [
        "| scene, size | frames/s | ms | GPU, ms | kernels | one graph, frames/s | its GPU, ms |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for scene, sizes in json.loads((MEASURED / "frames_h200.json").read_text())["frames"].items():
        for size, frame in sizes.items():
            graph = f"{frame['graph']:.0f} | {frame['graph_gpu_ms']:.1f}" if "graph" in frame else " | "
            rate, gpu = frame["eager"], frame["eager_gpu_ms"]
            lines.append(
                f"| {scene}, {size} | {rate:.0f} | {1e3 / rate:.1f} | {gpu:.1f} | {frame['eager_kernels']} | {graph} |"
            )
    return "\n".join(lines)


def thin() -> str:
    """What leaving out thin samples is worth."""
    runs = runs_of("thin_samples_h100")
    scenes, cases = (list(dict.fromkeys(run[key] for run in runs)) for key in ("scene", "case"))
    lines = [f"| left out below, rays end at, distortion | {' | '.join(scenes)} | mean | rays a step | ms a step |"]
    lines.append(f"|---|{'---:|' * (len(scenes) + 1)}---|---|")
    for case in cases:
        of = {run["scene"]: run for run in runs if run["case"] == case}
        cells = [f"{of[scene]['psnr']:.2f}" for scene in scenes]
        mean = statistics.mean(run["psnr"] for run in of.values())
        rays = ", ".join(f"{of[scene]['rays_per_step'] / 1e3:.0f}k" for scene in scenes)
        ms = [run["ms_per_step"] for run in of.values()]
        lines.append(f"| {case} | {' | '.join(cells)} | {mean:.2f} | {rays} | {min(ms):.2f} to {max(ms):.2f} |")
    return "\n".join(lines)


def thin_cpu() -> str:
    """The same on a CPU, on scenes of both kinds."""
    lines = ["| scene, pixels | before | now | rays a step |", "|---|---:|---:|---|"]
    grouped: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in runs_of("thin_samples_cpu"):
        grouped.setdefault(f"{run['scene']}, {run['size']}", {}).setdefault(run["case"], []).append(run)
    for scene, cases in grouped.items():
        before, now = (", ".join(f"{run['psnr']:.2f}" for run in cases[name]) for name in ("before", "now"))
        rays = " to ".join(f"{cases[name][0]['rays_per_step']:,}" for name in ("before", "now"))
        lines.append(f"| {scene} | {before} dB | {now} dB | {rays} |")
    return "\n".join(lines)


def forms() -> str:
    return lltm_forms.markdown(runs_of("lltm_forms_h200"))


TABLES: dict[str, Callable[[], str]] = {
    "training": training,
    "modes": modes,
    "recipe": recipe,
    "finest": finest,
    "thin": thin,
    "thin_cpu": thin_cpu,
    "seconds": seconds,
    "scenes": scenes,
    "frames": frames,
    "stages": stages,
    "outdoors": outdoors,
    "indoors": indoors,
    "small": small,
    "forms": forms,
    "warmup": warmup,
}
