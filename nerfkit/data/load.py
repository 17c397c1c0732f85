# SPDX-License-Identifier: Apache-2.0
"""A scene folder -> Scene, of any known format."""

from __future__ import annotations

import os
from pathlib import Path

from nerfkit.data.assemble import assemble
from nerfkit.data.frame import Frame
from nerfkit.data.readers import find_reader
from nerfkit.data.scene import Scene
from nerfkit.errors import SceneError
from nerfkit.reading import native_name, shown


def load_scene(
    path: str,
    format: str = "auto",
    downscale: float = 1.0,
    box: tuple[float, ...] | None = None,
    frame: Frame | None = None,
) -> Scene:
    """Read cameras and image headers of the scene in folder `path`.

    With a `box` [6], x, y, z of its lowest and highest corner, the files' frame is the model's; with the `frame` of a
    run that goes on, that is. Otherwise the frame is found, except for a format whose scenes stand in a known box.
    """
    if not path:
        raise SceneError("no scene given: set data.path to the folder of a scene")
    try:
        folder = Path(native_name(path)).expanduser()
    except (RuntimeError, ValueError) as error:  # an unknown user; an invalid file name
        raise SceneError(f"data.path: {shown(path)} cannot be a folder: {error}") from None
    if not os.path.isdir(folder):
        raise SceneError(f"data.path: {shown(folder)} is not a folder")
    return assemble(find_reader(folder, format).read(folder), downscale, box, frame)
