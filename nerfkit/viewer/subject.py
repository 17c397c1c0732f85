# SPDX-License-Identifier: Apache-2.0
"""What is looked at: a model with the cameras, images and points of its scene, of a run folder or of a training."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from os.path import exists
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.cameras import Cameras
from nerfkit.data.capture import Points
from nerfkit.data.frame import Frame
from nerfkit.data.load import scene_of
from nerfkit.data.pixels import background_color, blend
from nerfkit.data.pool import ImagePool
from nerfkit.data.scene import Scene, Views
from nerfkit.errors import UserError
from nerfkit.model.base import Model
from nerfkit.training.run import Run
from nerfkit.training.run_files import read_lines
from nerfkit.training.run_folder import RunFolder
from nerfkit.viewer.picture import Photos

KEPT_IMAGES = 8  # decoded
MAX_POINTS = 100_000  # that are shown, evenly spaced
SHORTEST_TRACK = 3  # images that see a point, where that is known


@dataclass
class Subject:
    """A model and what surrounds it, in the model's frame."""

    name: str
    config: Config
    model: Model
    background: Tensor  # [3], on the model's device
    cameras: Cameras  # of the training views, on the CPU
    up: tuple[float, float, float]
    frame: Frame | None  # how the model's frame lies in that of the files
    folder: RunFolder | None  # where files are kept
    names: list[str] = field(default_factory=list)  # of the training views
    photos: Photos | None = None
    points: Points | None = None  # in the model's frame
    history: list[dict[str, Any]] = field(default_factory=list)  # lines of the log
    notes: list[str] = field(default_factory=list)  # what is missing, and why

    @property
    def box(self) -> np.ndarray:
        """[2, 3], of the model."""
        return np.array(self.config.data.box).reshape(2, 3)

    def place(self, cameras: Cameras) -> None:
        """Let the training views stand where `cameras` do, which have their lenses."""
        self.cameras = cameras
        if self.photos is not None:
            self.photos.cameras = cameras


def of_run(run: Run) -> Subject:
    """A finished run; its scene's images and points, where they still are."""
    names = [str(frame.get("file_path", index)) for index, frame in enumerate(run.scene.splits["train"]["frames"])]
    subject = Subject(
        run.scene.name, run.config, run.model, run.background, run.cameras("train"), run.scene.up, run.frame,
        RunFolder.existing(run.folder), names, history=read_lines(run.folder),
    )  # fmt: skip
    try:
        add_scene(subject, run.given_cameras("train"))
    except UserError as error:
        subject.notes.append(f"no images of the scene: {error}")
    return subject


def add_scene(subject: Subject, given: Cameras) -> None:
    """Add images and points from the scene's folder; raises UserError if they are not there, or if the cameras are not
    those that were `given`."""
    data = subject.config.data
    if not exists(data.path):
        raise UserError(f"its folder {data.path} is not there")
    scene = scene_of(subject.config, subject.frame)
    views = scene.split("train")
    if views.cameras.sizes() != given.sizes() or not same_poses(views.cameras, given):
        raise UserError(f"{data.path} has other training views than the run")
    refined = subject.cameras.camera_to_world if data.poses == "refine" else None
    subject.photos = FilePhotos(views, subject.background.cpu())
    subject.place(views.cameras if refined is None else replace(views.cameras, camera_to_world=refined))
    subject.points = shown_points(scene.points, subject.frame)


def of_training(
    config: Config, model: Model, device: torch.device, scene: Scene, images: ImagePool, folder: RunFolder
) -> Subject:
    """A training that has the scene's images in memory."""
    views = scene.split("train")
    background = background_color(config.data.background, device)
    return Subject(
        scene.name, config, model, background, views.cameras, scene.up, scene.frame, folder, views.names,
        photos=PoolPhotos(images, views.cameras, background.cpu()), points=shown_points(scene.points, scene.frame),
        history=read_lines(folder.path),
    )  # fmt: skip


def same_poses(a: Cameras, b: Cameras) -> bool:
    """Whether two sets of as many cameras stand in the same places."""
    return torch.allclose(a.camera_to_world, b.camera_to_world, rtol=1e-4, atol=1e-4)


def shown_points(points: Points | None, frame: Frame | None) -> Points | None:
    """Points to show, in the model's frame: at most MAX_POINTS, those that many images see where that is known."""
    if points is None:
        return None
    lengths = points.track_lengths
    chosen = (
        np.flatnonzero(lengths >= SHORTEST_TRACK) if len(lengths) and lengths.max() > 0 else np.arange(len(lengths))
    )
    chosen = chosen[:: max(-(-len(chosen) // MAX_POINTS), 1)]
    positions = points.positions[chosen]
    positions = positions if frame is None else frame.to_model(positions)
    return Points(positions, points.colors[chosen], lengths[chosen], np.zeros(0, dtype=np.int64))


class PoolPhotos:
    """Training images in memory."""

    def __init__(self, pool: ImagePool, cameras: Cameras, background: Tensor):
        self.pool, self.cameras, self.background = pool, cameras, background

    def image(self, view: int) -> Tensor:
        """One of them, [H, W, 3] in [0, 1], over the background."""
        return blend(self.pool.image(view).cpu(), self.background)


class FilePhotos:
    """Training images on disk; the last few stay in memory."""

    def __init__(self, views: Views, background: Tensor):
        self.views, self.cameras, self.background = views, views.cameras, background
        self._kept: OrderedDict[int, Tensor] = OrderedDict()

    def image(self, view: int) -> Tensor:
        """One of them, [H, W, 3] in [0, 1], over the background."""
        if view not in self._kept:
            self._kept[view] = blend(self.views[[view]].load().image(0), self.background)
        self._kept.move_to_end(view)
        while len(self._kept) > KEPT_IMAGES:
            self._kept.popitem(last=False)
        return self._kept[view]
