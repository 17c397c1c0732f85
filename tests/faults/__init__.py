# SPDX-License-Identifier: Apache-2.0
"""Faults that a user would notice, a module for each part of nerfkit; `__main__.py` asks whether the tests bite."""

from tests.faults import (
    captures,
    commands,
    contracted,
    data,
    export,
    images_model,
    mesh,
    model,
    parallel,
    rendering,
    scenes,
    training,
    viewer,
)
from tests.faults.fault import Fault

FAULTS: list[Fault] = [
    *viewer.FAULTS,
    *data.FAULTS,
    *captures.FAULTS,
    *model.FAULTS,
    *rendering.FAULTS,
    *training.FAULTS,
    *commands.FAULTS,
    *contracted.FAULTS,
    *mesh.FAULTS,
    *parallel.FAULTS,
    *scenes.FAULTS,
    *export.FAULTS,
    *images_model.FAULTS,
]
