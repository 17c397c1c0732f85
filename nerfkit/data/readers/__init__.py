# SPDX-License-Identifier: Apache-2.0
"""Scene formats: one module each with a Reader, listed here.

A reader recognises its format from the files in a folder, and reads cameras and image headers into a Scene.
"""

from __future__ import annotations

from pathlib import Path

from nerfkit.data.readers import nerf_synthetic
from nerfkit.data.readers.reader import Reader
from nerfkit.errors import SceneError

READERS: dict[str, Reader] = {reader.name: reader for reader in (nerf_synthetic.READER,)}


NOT_YET = {  # files that identify other formats
    "transforms.json": "an instant-ngp or nerfstudio capture",
    "poses_bounds.npy": "an LLFF capture",
    "sparse": "a COLMAP reconstruction",
    "colmap": "a COLMAP reconstruction",
    "cameras.bin": "a COLMAP reconstruction",
    "cameras.txt": "a COLMAP reconstruction",
}


def find_reader(folder: Path, format: str) -> Reader:
    """The reader of `format`, or with "auto" the first that recognises `folder`."""
    if format != "auto":
        if format not in READERS:
            raise SceneError(f"data.format: unknown format {format!r}; known: auto, {', '.join(READERS)}")
        return READERS[format]
    for reader in READERS.values():
        if reader.recognises(folder):
            return reader
    for name, kind in NOT_YET.items():
        if (folder / name).exists():
            raise SceneError(
                f"data.path: {folder} is {kind} ({name}), a format that is not supported yet; convert it to "
                f"{', '.join(f'{reader.name} ({reader.needs})' for reader in READERS.values())}"
            )
    expected = "; ".join(f"{reader.name} needs {reader.needs}" for reader in READERS.values())
    raise SceneError(f"data.path: no known scene format in {folder} ({expected})")
