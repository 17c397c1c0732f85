# SPDX-License-Identifier: Apache-2.0
"""A video of a camera path, rendered between requests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from nerfkit.rendering.video import VideoWriter
from nerfkit.viewer.path import CameraPath
from nerfkit.viewer.picture import Look, ModelPictures, Viewpoint


def render_video(
    path: CameraPath,
    pictures: ModelPictures,
    look: Look,
    chunk: Callable[[], int],
    report: Callable[[float], None],
    done: Callable[[bytes], None],
) -> Iterator[None]:
    """A job of the engine: renders frame after frame, and hands the MP4 to `done`.

    Yields after each chunk of rays. `report` gets the share that is done.
    """
    width, height = path.size
    poses, fovs = path.at(path.times())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video.mp4"
        writer = VideoWriter(file, path.fps)
        try:
            for index, (pose, fov) in enumerate(zip(poses, fovs, strict=True)):
                picture = pictures(Viewpoint(tuple(pose.flatten().tolist()), float(fov)), width, height, look)
                start = 0
                while start < picture.n_rays:
                    end = min(start + chunk(), picture.n_rays)
                    picture.render(start, end)
                    start = end
                    yield
                writer.add(torch.from_numpy(picture.finish()).float() / 255)
                report((index + 1) / len(poses))
        finally:
            writer.close()
        done(file.read_bytes())
