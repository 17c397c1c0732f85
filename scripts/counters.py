# SPDX-License-Identifier: Apache-2.0
"""What fills up while a kernel runs: the hardware counters of every kernel of the op benchmark, a line each.

    python scripts/counters.py                         all ops
    python scripts/counters.py --only lltm,march       these
    python scripts/counters.py --out counters.json

Needs a GPU and Nsight Compute's `ncu`. Under it clocks are fixed and caches empty, so times are longer than the
benchmark's; the shares are what to read. Columns: of the peak, memory, L2, L1 and shared memory, instructions issued,
warps resident; then, in warps per instruction issued, how many wait for instructions, of which a cache holds not three
thousand, and what most wait for. Of a kernel the first launch.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import tyro

SHARES = {
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps": "smsp__warps_active.avg.pct_of_peak_sustained_active",
}
TIME = "gpu__time_duration.sum"
STALLS = {
    name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
    for name in (
        "long_scoreboard",
        "short_scoreboard",
        "lg_throttle",
        "mio_throttle",
        "math_pipe_throttle",
        "barrier",
        "wait",
        "membar",
        "dispatch_stall",
        "no_instruction",
    )
}


@dataclass
class Options:
    """See the top of scripts/counters.py."""

    only: str = ""  # ops, with commas; all if empty
    out: Path | None = None  # JSON file to write


def profile(options: Options) -> str:
    """ncu's table, as CSV with a line for each kernel and metric."""
    found = shutil.which("ncu") or next((str(p) for p in sorted(Path("/usr/local").glob("cuda*/bin/ncu"))), None)
    if found is None:
        sys.exit("ncu was not found; it comes with the CUDA toolkit (Nsight Compute)")
    script = Path(__file__).with_name("bench_ops.py")
    metrics = ",".join([TIME, *SHARES.values(), *STALLS.values()])
    names = ["--kernel-name-base", "demangled", "--kernel-name", "regex:nerfkit"]
    command = [found, "--csv", *names, "--metrics", metrics, sys.executable, "-W", "ignore", str(script), "--once"]
    command += ["--only", options.only] if options.only else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout[done.stdout.index('"ID"') :]


def kernels(table: str) -> list[dict[str, float | str]]:
    """A dictionary for each kernel that ran, in order; of one that runs again only the first."""
    runs: dict[str, dict[str, float | str]] = defaultdict(dict)
    for row in csv.DictReader(io.StringIO(table)):
        name = re.sub(r"nerfkit::|void |unnamed>?::|<unnamed>::|\(anonymous namespace\)::", "", row["Kernel Name"])
        runs[row["ID"]]["kernel"] = re.sub(r"\(.*", "", name)
        value = float(row["Metric Value"].replace(",", ""))
        if row["Metric Name"] == TIME:
            value *= {"ns": 1e-3, "us": 1, "ms": 1e3, "nsecond": 1e-3, "usecond": 1, "msecond": 1e3}[row["Metric Unit"]]
        runs[row["ID"]][row["Metric Name"]] = value
    out = []
    seen = set()
    for run in runs.values():
        if run["kernel"] in seen:
            continue
        seen.add(run["kernel"])
        stall, waits = max(((name, run.get(metric, 0.0)) for name, metric in STALLS.items()), key=lambda x: x[1])
        shares = {name: round(run[metric], 1) for name, metric in SHARES.items()}
        out.append(
            {
                "kernel": run["kernel"],
                "us": round(run[TIME], 1),
                **shares,
                "stall": stall,
                "waits": round(waits, 2),
                "no_instruction": round(run[STALLS["no_instruction"]], 2),
            }
        )
    return out


def main(options: Options) -> None:
    rows = kernels(profile(options))
    shares = "".join(f"{name:>8}" for name in SHARES)
    print(f"{'kernel':<60} {'us':>8} {shares} {'no_instruction':>15}  waits for")
    for r in rows:
        shares = "".join(f"{r[name]:7.0f}%" for name in SHARES)
        print(f"{r['kernel'][:60]:<60} {r['us']:8.1f} {shares} {r['no_instruction']:15.2f}  {r['stall']} {r['waits']}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
