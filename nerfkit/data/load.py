# SPDX-License-Identifier: Apache-2.0
"""A scene folder -> Scene: the one place that knows which formats there are."""

from __future__ import annotations

from pathlib import Path

from nerfkit.data.readers import find_reader
from nerfkit.data.scene import Scene
from nerfkit.errors import SceneError


def load_scene(path: str, format: str = "auto", downscale: float = 1.0) -> Scene:
    """Read cameras and picture headers of the scene in folder `path`."""
    if not path:
        raise SceneError("no scene given: set data.path to the folder of a scene")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise SceneError(f"data.path: {folder} is not a folder")
    return find_reader(folder, format).read(folder, downscale)
