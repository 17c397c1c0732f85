# SPDX-License-Identifier: Apache-2.0
"""What is written down when a loss or a parameter is not finite."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

from nerfkit.errors import TrainingError
from nerfkit.reading import typed
from nerfkit.training.run import checkpoint
from nerfkit.training.run.files import NAN_REPORT
from nerfkit.training.run.folder import RunFolder


def not_finite(
    found: dict[str, Any],  # what, step and more
    rate: float,
    batch: dict[str, Tensor],
    parameters: dict[str, Tensor],
    folder: RunFolder | None,
    writes: bool,
) -> TrainingError:
    """The error that stops training at what was `found`. A run with a checkpoint keeps that and, if this process
    `writes`, gets a report of the last batch and of the parameters in its folder."""
    stopped, lower = f"{found['what']} at step {found['step']}; stopped.", f"--trainer.learning_rate {rate / 3:.2g}"
    if folder is None or not checkpoint.exists(folder.path):
        return TrainingError(f"{stopped} Try a lower rate: {lower}")
    report = found | {
        "not_finite": {name: int((~x.isfinite()).sum()) for name, x in (batch | parameters).items()},
        "largest": {name: x.detach().abs().max().item() for name, x in parameters.items()},
    }
    if writes:
        folder.write(NAN_REPORT, json.dumps(report, indent=1))
    return TrainingError(
        f"{stopped} The last good checkpoint is kept in {folder.path}, what was being trained is in {NAN_REPORT}. "
        f"Go on from the checkpoint with a lower rate: {typed('--resume', folder.path)} {lower}"
    )
