# SPDX-License-Identifier: Apache-2.0
"""Scene formats: one module each with a Reader, listed here.

A reader recognises its format from the files in a folder, and reads cameras and picture headers into a Scene.
"""

from __future__ import annotations

from pathlib import Path

from nerfkit.data.readers import nerf_synthetic
from nerfkit.data.readers.reader import Reader
from nerfkit.errors import SceneError

READERS: dict[str, Reader] = {reader.name: reader for reader in (nerf_synthetic.READER,)}


def find_reader(folder: Path, format: str) -> Reader:
    """The reader of `format`, or with "auto" the first that recognises `folder`."""
    if format != "auto":
        if format not in READERS:
            raise SceneError(f"data.format: unknown format {format!r}; known: auto, {', '.join(READERS)}")
        return READERS[format]
    for reader in READERS.values():
        if reader.recognises(folder):
            return reader
    expected = "; ".join(f"{reader.name} needs {reader.needs}" for reader in READERS.values())
    raise SceneError(f"data.path: no known scene format in {folder} ({expected})")
