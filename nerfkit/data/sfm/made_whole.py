# SPDX-License-Identifier: Apache-2.0
"""Folders that take long to make: there is a whole one or none, and one that is there is never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from nerfkit.errors import SceneError, UserError
from nerfkit.reading import read_json, shown

RECORD = "made_of.json"  # in the folder: files and their bytes
ELSEWHERE = "choose another folder with --data.sfm"


def is_made(folder: Path, source: dict[str, int]) -> bool:
    """Whether `folder` is there; raises SceneError if it is one that was not made of `source`."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    with suppress(UserError):  # of a record that is not there
        if read_json(folder / RECORD, SceneError) == source:
            return True
    raise SceneError(
        f"{shown(folder)} is there, and was not made of the photographs or the video as they are now: give "
        f"{shown(folder.parent)} as data.path to read it; or, to have poses found anew, move it away or {ELSEWHERE}"
    )


@contextmanager
def made_whole(folder: Path, source: dict[str, int]) -> Iterator[Path]:
    """A folder that becomes `folder` if the block ends without an error; until then it lies in a temporary one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        new = Path(work) / folder.name
        new.mkdir()
        yield new
        (new / RECORD).write_text(json.dumps(source, indent=1) + "\n")
        os.rename(new, folder)  # raises OSError if another process was faster
