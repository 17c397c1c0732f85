# SPDX-License-Identifier: Apache-2.0
"""Parts of a long export, kept in a folder beside its output until that is complete: a later attempt goes on."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nerfkit.errors import RunError
from nerfkit.files import MARKER, OwnFolder
from nerfkit.reading import shown

KEY = "of.json"  # what the parts are parts of
Arrays = dict[str, np.ndarray]


class Work:
    """The folder `<output>.work`. Parts of another export, or of other options, are thrown away."""

    def __init__(self, output: Path, key: dict[str, Any]):
        self.folder = OwnFolder(output.with_name(f"{output.name}.work"), "unfinished export")
        self.folder.claim()
        self.folder.lock()
        self.folder.remove_leftovers()
        text = json.dumps(key, sort_keys=True)
        if not self.folder.owns(KEY) or (self.folder.path / KEY).read_text(encoding="utf-8", errors="replace") != text:
            self.folder.clear()
            self.folder.write(KEY, text)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *exception: object) -> None:
        self.folder.unlock()

    def part(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """The arrays of a part: as an earlier attempt left them, or else made now and kept."""
        return self.kept(name) or self.keep(name, make())

    def kept(self, name: str) -> Arrays | None:
        """The arrays of a part that was made."""
        if not self.folder.owns(f"{name}.npz"):
            return None
        try:
            with np.load(self.folder.path / f"{name}.npz", allow_pickle=False) as file:
                return dict(file)
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return None  # damaged: it is made again

    def keep(self, name: str, arrays: Arrays) -> Arrays:
        """Write the arrays of a part, and return them."""
        content = io.BytesIO()
        np.savez(content, **arrays)
        self.folder.write(f"{name}.npz", content.getvalue())
        return arrays

    def remove(self) -> None:
        """Delete the folder: the output is there."""
        self.folder.clear()
        self.folder.unlock()
        (self.folder.path / MARKER).unlink(missing_ok=True)
        try:
            self.folder.path.rmdir()
        except OSError as error:
            raise RunError(f"cannot delete the folder {shown(self.folder.path)}: {error.strerror}") from None
