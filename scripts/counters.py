# SPDX-License-Identifier: Apache-2.0
"""What fills up while an op's kernels run on a GPU: a line each, by Nsight Compute's `ncu`.

    python scripts/counters.py lltm march
    python scripts/counters.py --out counters.json      # all ops of scripts/bench_ops.py

Under ncu clocks are fixed and caches empty, so times are longer than the benchmark's; the shares of the peak are what
to read. `stall` is what most warps wait for, in warps per instruction issued. Of a kernel the first launch counts.
"""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

METRICS = {
    "us": "gpu__time_duration.sum",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps": "smsp__warps_active.avg.pct_of_peak_sustained_active",
}
STALLS = ("long_scoreboard", "short_scoreboard", "lg_throttle", "mio_throttle", "math_pipe_throttle", "barrier", "wait",
          "membar", "dispatch_stall", "no_instruction")  # fmt: skip
METRICS |= {name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in STALLS}
NAMES = {metric: name for name, metric in METRICS.items()}
TO_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}


@dataclass
class Options:
    """Counters of ops' kernels. See the top of scripts/counters.py."""

    ops: Annotated[tuple[str, ...], tyro.conf.Positional] = ()  # all if left out
    out: Path | None = None  # JSON file to write


def profile(ops: tuple[str, ...]) -> str:
    """ncu's table as CSV, a line for each kernel and metric."""
    found = shutil.which("ncu") or next((str(path) for path in sorted(Path("/usr/local").glob("cuda*/bin/ncu"))), None)
    if found is None:
        sys.exit("ncu was not found; it comes with the CUDA toolkit (Nsight Compute)")
    kernels = ["--kernel-name-base", "demangled", "--kernel-name", "regex:nerfkit"]
    bench = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("bench_ops.py")), "--once"]
    bench += ["--only", ",".join(ops)] if ops else []
    command = [found, "--csv", *kernels, "--metrics", ",".join(METRICS.values()), *bench]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or '"ID"' not in done.stdout:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout[done.stdout.index('"ID"') :]


def rows_of(table: str) -> list[dict[str, float | str]]:
    """A dictionary for each kernel, in the order of their first launches."""
    launches: dict[str, dict[str, float | str]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        name = re.sub(r"nerfkit::|void |<?unnamed>?::|\(anonymous namespace\)::", "", row["Kernel Name"])
        launch = launches.setdefault(row["ID"], {"kernel": re.sub(r"\(.*", "", name)})
        value = float(row["Metric Value"].replace(",", "")) * TO_US.get(row["Metric Unit"], 1.0)
        launch[NAMES[row["Metric Name"]]] = round(value, 2)
    first: dict[str, dict] = {}
    for launch in launches.values():
        first.setdefault(launch["kernel"], launch | {"stall": max(STALLS, key=launch.get)})
    return list(first.values())


def main(options: Options) -> None:
    rows = rows_of(profile(options.ops))
    shown = ("memory", "L2", "L1", "issue", "warps")
    print(f"{'kernel':<60} {'us':>8} " + "".join(f"{name:>8}" for name in shown) + "  waits for")
    for row in rows:
        shares = "".join(f"{row[name]:7.0f}%" for name in shown)
        print(f"{row['kernel'][:60]:<60} {row['us']:8.1f} {shares}  {row['stall']} {row[row['stall']]:.2f}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
