# SPDX-License-Identifier: Apache-2.0
"""What is written down when a loss or a parameter is not finite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torch import Tensor

from nerfkit.errors import TrainingError
from nerfkit.training import checkpoint
from nerfkit.training.run_folder import NAN_REPORT

if TYPE_CHECKING:
    from nerfkit.training.trainer import Trainer


def not_finite(trainer: Trainer, what: str, last_batch: dict[str, Tensor]) -> TrainingError:
    """The error that stops training. Of a run with a checkpoint, which stays, the first process writes a report of the
    last batch and the parameters."""
    lower = f"--trainer.learning_rate {trainer.config.trainer.learning_rate / 3:.2g}"
    if trainer.folder is None or not checkpoint.exists(trainer.folder.path):
        return TrainingError(f"{what} at step {trainer.step}; stopped. Try a lower rate: {lower}")
    parameters = trainer.parameters
    report = {
        "step": trainer.step,
        "what": what,
        "learning_rate": trainer.learning_rate(),
        "n_rays": int(trainer.training_step.n_rays),
        "not_finite": {name: int((~x.isfinite()).sum()) for name, x in (last_batch | parameters).items()},
        "largest": {name: x.detach().abs().max().item() for name, x in parameters.items()},
    }
    if trainer.processes.is_first:
        trainer.folder.write(NAN_REPORT, json.dumps(report, indent=1))
    path = trainer.folder.path
    return TrainingError(
        f"{what} at step {trainer.step}; stopped. The last good checkpoint is kept in {path}, "
        f"what was being trained is in {NAN_REPORT}. Go on from the checkpoint with a lower rate: "
        f"--resume {path} {lower}"
    )
