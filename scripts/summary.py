#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Say what a run scored and where its pictures are.

python scripts/summary.py runs/lego
"""

from __future__ import annotations

import json
from pathlib import Path

from nerfkit.commands import options as cli
from nerfkit.errors import RunError
from nerfkit.training import run


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0] if arguments else "runs/orrery")
    file, sheets = run.scores_places(folder, run.read_config(folder).eval.split)
    if not file.exists():
        raise RunError(f"{file} is missing; score the run first: python scripts/eval.py {folder}")
    metrics = json.loads(file.read_text())
    protocol = metrics["protocol"]
    print(
        f"\n{folder}: PSNR {metrics['psnr']:.2f} dB, SSIM {metrics['ssim']:.4f} on {metrics['n_views']} "
        f"{protocol['split']} views of {protocol['width']}x{protocol['height']}, "
        f"after {metrics['steps']} steps in {metrics['train_seconds']:.0f} s"
    )
    kinds = {
        "videos": sorted(folder.glob("render/*/*.mp4")),
        "truth | render | error": [sheets],
        "loss over time": [folder / "loss.png"],
    }
    for kind, paths in kinds.items():
        for path in paths:
            if path.exists():
                print(f"  {kind:<23} {path}")
    return 0


if __name__ == "__main__":
    cli.main(main)
