# SPDX-License-Identifier: Apache-2.0
"""Time every op beside a baseline and beside what the hardware allows, after checking that both give the same.

    python scripts/bench_ops.py                        all ops on the GPU, or on the CPU where there is none
    python scripts/bench_ops.py --suite tutorials      the three classic exercises: definition, C++ and CUDA
    python scripts/bench_ops.py --only lltm,march      these ops
    python scripts/bench_ops.py --out h100.json

scripts/counters.py tells what a kernel waits for.

limit: the bytes that must move, each once, at the bandwidth that a plain copy reaches in the same run. On a CPU: a copy
of as many bytes or a product of matrices of as many multiply-adds, whichever takes longer, in turns with the op.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nerfkit.ops import native  # noqa: E402
from scripts.op_work import WORK, tutorials  # noqa: E402
from scripts.timing import Timer, copy_bandwidth, copy_of, graphed, product_of, sets_for, write_records  # noqa: E402
from scripts.work import Side, Work, size_of  # noqa: E402

TOLERANCE = {torch.float16: 1e-2, torch.int64: 0.0}  # of the largest value; of float32 a Work tells it


@dataclass
class Result:
    op: str
    case: str
    part: str
    ms: float
    baseline: str
    baseline_ms: float
    limit_ms: float | None
    error: float | None  # largest difference to the baseline, as a share of the largest value


@dataclass
class Options:
    """See the top of scripts/bench_ops.py."""

    suite: Literal["ops", "tutorials"] = "ops"
    only: str = ""  # ops, with commas; all if empty
    device: Literal["auto", "cpu", "cuda"] = "auto"
    out: Path | None = None  # JSON file to write
    repeats: int = 20
    show: Path | None = None  # print that JSON file as a Markdown table, and measure nothing
    once: bool = False  # only run each fused op once, for a profiler


def call_of(side: Side, part: str) -> Callable[[], object]:
    """What is timed for a part: "forward", "backward" alone or "both"."""
    if part == "forward":
        return lambda: side.call(side.inputs)
    wrt = [side.inputs[name] for name in side.wrt]
    with torch.no_grad():
        shape = side.call(side.inputs)
    # Not the inputs' numbers again: a sum of their squares may be more than float16 holds.
    grad = torch.randn(shape.shape, device=shape.device, generator=torch.Generator(shape.device).manual_seed(1))
    grad = torch.empty_like(shape).copy_(grad)  # the result's memory format, as the next layer would hand it back
    if part == "both":
        return lambda: torch.autograd.grad(side.call(side.inputs), wrt, grad)
    out = side.call(side.inputs)
    return lambda: torch.autograd.grad(out, wrt, grad, retain_graph=True)


def measure(work: Work, timer: Timer, bandwidth: float) -> Iterator[Result]:
    for part in work.parts:
        kind, what = part.split() if " " in part else ("", "forward" if part == "inference" else part)
        error = None
        if work.check and part != "inference":
            error = difference(*(call_of(side, what) for side in work.sides()), work.tolerance)
        with torch.set_grad_enabled(part != "inference"):
            if timer.device == "cpu" and not kind:
                *times, limit = in_turns_with_limit(work, part, timer)
            else:
                times = [time_of(kind, side, what, timer) for side in work.sides()]
                limit = work.least(part)[0] / bandwidth * 1e3 if part in ("forward", "backward") else 0
        yield Result(work.op, work.case, part, times[0], work.baseline_name, times[1], limit or None, error)


def in_turns_with_limit(work: Work, part: str, timer: Timer) -> tuple[float, float, float]:
    """Of the fused op, of the baseline, and of a copy or a product that is as much work, 0 where that is unknown."""
    n_bytes, multiply_adds = work.least(part)
    calls = [call_of(side, "forward" if part == "inference" else part) for side in work.sides()]
    calls += [copy_of(n_bytes)] if n_bytes else []
    calls += [product_of(multiply_adds)] if multiply_adds else []
    fused, baseline, *least = timer.in_turns(calls)
    return fused, baseline, max(least, default=0.0)


def time_of(kind: str, side: Side, part: str, timer: Timer) -> float:
    if kind == "wall":
        return timer.wall(call_of(side, part))
    if kind == "graph":
        return timer.row([graphed(call_of(side, part))])
    return timer.row(
        [call_of(copy, part) for copy in side.copies(sets_for(size_of(*side.inputs.values()), timer.device))]
    )


def difference(fused: Callable, baseline: Callable, tolerance: float) -> float:
    """Largest difference of the results, as a share of the largest value; raises where it is too large."""
    worst = 0.0
    as_tuple = lambda x: (x,) if isinstance(x, Tensor) else x  # noqa: E731
    for got, wanted in zip(as_tuple(fused()), as_tuple(baseline()), strict=True):
        got, wanted = got.detach(), wanted.detach()
        error = float((got.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-12))
        worst = max(worst, error)
        if not error <= TOLERANCE.get(got.dtype, tolerance):  # or is no number
            raise AssertionError(f"results differ by {error:.1e} of the largest value")
    return worst


def markdown(results: list[dict[str, Any]]) -> str:
    """A table for each op."""
    lines = []
    for op in dict.fromkeys(r["op"] for r in results):
        lines += [f"### `{op}`", "", "| case | part | ms | baseline | ms | ratio | limit, ms | share |"]
        lines += ["|---|---|---:|---|---:|---:|---:|---:|"]
        for r in (r for r in results if r["op"] == op):
            limit = f"{r['limit_ms']:.3f} | {r['limit_ms'] / r['ms']:.0%}" if r["limit_ms"] else " | "
            part = f"{r['part']}, {r['device'].upper().replace('CUDA', 'GPU')}"
            times = f"{r['ms']:.3f} | {r['baseline']} | {r['baseline_ms']:.3f} | {r['baseline_ms'] / r['ms']:.1f}x"
            lines.append(f"| {r['case']} | {part} | {times} | {limit} |")
        lines.append("")
    return "\n".join(lines)


def works_of(options: Options, device: str) -> Iterator[Work]:
    if options.suite == "tutorials":
        return tutorials(device)
    chosen = options.only.split(",") if options.only else list(WORK)
    return (work for op in chosen for work in WORK[op](device))


def measure_all(works: Iterator[Work], timer: Timer, bandwidth: float) -> tuple[list[Result], list[str]]:
    """Results, and a line for each op that failed or differed from its baseline."""
    results, failed = [], []
    for work in works:
        torch.manual_seed(0)
        try:
            results += measure(work, timer, bandwidth)
        except (AssertionError, RuntimeError) as error:
            failed.append(f"{work.op} {work.case}: {error}")
    return results, failed


def main(options: Options) -> None:
    if options.show:
        return print(markdown(json.loads(options.show.read_text())["results"]))
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if options.once:
        for work in works_of(options, device):
            for part in work.parts:
                if part in ("forward", "backward", "both"):
                    call_of(work.sides()[0], part)()
        return
    # The exercises on the GPU stand beside those in C++.
    devices = ["cpu", "cuda"] if options.suite == "tutorials" and device == "cuda" else [device]
    results, failed = [], []
    for place in devices:
        timer = Timer(place, options.repeats)
        bandwidth = copy_bandwidth(timer)
        measured, wrong = measure_all(works_of(options, place), timer, bandwidth)
        print(f"{place}, {torch.get_num_threads()} threads, copy: {bandwidth / 1e9:.0f} GB/s", flush=True)
        results += [asdict(r) | {"device": place} for r in measured]
        failed += wrong
    print(markdown(results))
    if options.out:
        machine = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
        header = {
            "suite": options.suite,
            "machine": machine,
            "torch": torch.__version__,
            "cpu_threads": torch.get_num_threads(),
            "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
            "copy_gb_s": round(bandwidth / 1e9, 1),
            "backends": {name: native.loaded(name) for name in native.LIBRARIES},
        }
        write_records(options.out, header, "results", results)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main(tyro.cli(Options))
