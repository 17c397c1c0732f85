# SPDX-License-Identifier: Apache-2.0
"""What fills up while an op's kernels run on a GPU: a line each, by Nsight Compute's `ncu`.

    python scripts/counters.py lltm march       # all ops of scripts/bench_ops.py if none is named

Under ncu clocks are fixed and caches empty, so times are longer than the benchmark's; the shares of the peak are what
to read. Last is what most warps wait for, in warps per instruction issued. Of a kernel the first launch counts.
"""

import csv
import re
import shutil
import subprocess
import sys
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
STALLS = ("long_scoreboard", "short_scoreboard", "lg_throttle", "mio_throttle", "math_pipe_throttle", "barrier", "wait",
          "membar", "dispatch_stall", "no_instruction")  # fmt: skip
METRICS = {"ns": "gpu__time_duration.sum"} | SHARES
METRICS |= {name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in STALLS}


@dataclass
class Options:
    """Counters of ops' kernels. See the top of scripts/counters.py."""

    ops: tyro.conf.Positional[tuple[str, ...]] = ()  # all if left out


def main(options: Options) -> None:
    bench = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("bench_ops.py")), "--once"]
    bench += ["--only", ",".join(options.ops)] if options.ops else []
    ncu = [shutil.which("ncu") or "/usr/local/cuda/bin/ncu", "--csv", "--print-units", "base"]
    ncu += ["--kernel-name-base", "demangled", "--kernel-name", "regex:nerfkit"]
    ncu += ["--metrics", ",".join(METRICS.values())]
    done = subprocess.run([*ncu, *bench], capture_output=True, text=True)
    if done.returncode or '"ID"' not in done.stdout:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    kernels: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(done.stdout[done.stdout.index('"ID"') :].splitlines()):
        name = re.sub(r"nerfkit::|void |<?unnamed>?::|\(anonymous namespace\)::|\(.*", "", row["Kernel Name"])
        kernels.setdefault(name, {}).setdefault(row["Metric Name"], float(row["Metric Value"].replace(",", "")))
    for name, counters in kernels.items():
        shares = "".join(f"{share:>8} {counters[metric]:3.0f}%" for share, metric in SHARES.items())
        waits, stall = max((counters[METRICS[stall]], stall) for stall in STALLS)
        print(f"{name[:60]:<60} {counters[METRICS['ns']] / 1000:8.1f} us {shares}  {stall} {waits:.2f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
