# SPDX-License-Identifier: Apache-2.0
"""What is looked at: a model with the cameras, images and points of its scene, of a run folder or of a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nerfkit.config import Config
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.capture import Points
from nerfkit.data.images.batch import ImagePool
from nerfkit.data.images.pixels import background_color, blend
from nerfkit.data.load import scene_of
from nerfkit.data.scene import Scene
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import UserError
from nerfkit.model.base import Model
from nerfkit.training.run.files import read_lines
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.run.load import Run

KEPT_IMAGES = 8  # decoded
MAX_VIEWS = 200  # evenly spaced, that are asked for what they saw
MAX_POINTS = 100_000  # that are shown, evenly spaced
SHORTEST_TRACK = 3  # images that see a point, where that is known


@dataclass
class ViewerScene:
    """A model and what surrounds it, in the model's frame."""

    name: str
    config: Config
    model: Model
    background: Tensor  # [3], on the model's device
    cameras: Cameras  # of the training views, on the CPU
    up: tuple[float, float, float]
    transform: SceneTransform | None  # how the model's frame lies in that of the files
    folder: RunFolder  # where files are kept
    names: list[str] = field(default_factory=list)  # of the training views
    photo: Callable[[int], Tensor] | None = None  # the image [H, W, 3] in [0, 1] of a training view
    points: Points | None = None  # in the model's frame
    history: list[dict[str, Any]] = field(default_factory=list)  # lines of the log
    notes: list[str] = field(default_factory=list)  # what is missing, and why

    @classmethod
    def from_run(cls, run: Run) -> ViewerScene:
        """A finished run; its scene's images and points, where they still are."""
        scene = cls(
            run.scene.name, run.config, run.model, run.background, run.seeing_cameras(), run.scene.up, run.transform,
            RunFolder.existing(run.folder), run.scene.names("train"), history=read_lines(run.folder),
        )  # fmt: skip
        try:
            scene.add_images(run.given_cameras("train"))
        except UserError as error:
            scene.notes.append(f"no images of the scene: {error}")
        return scene

    @classmethod
    def from_training(
        cls, config: Config, model: Model, device: torch.device, scene: Scene, images: ImagePool, folder: RunFolder
    ) -> ViewerScene:
        """A training that has the scene's images in memory."""
        views, background = scene.split("train"), background_color(config.data.background, device)
        return cls(
            scene.name, config, model, background, views.cameras, scene.up, scene.transform, folder, views.names,
            photos(images.image, background), shown_points(scene.points, scene.transform), read_lines(folder.path),
        )  # fmt: skip

    @property
    def box(self) -> np.ndarray:
        return np.array(self.config.data.box).reshape(2, 3)

    @property
    def size(self) -> float:
        """Half of the box's diagonal."""
        return float(np.linalg.norm(self.box[1] - self.box[0])) / 2

    def in_files(self, distance: float) -> float:
        return distance if self.transform is None else self.transform.distance_to_input(distance)

    @property
    def has_edge(self) -> bool:
        """Whether the cameras saw a part of the surroundings, and were not all around an object."""
        is_wide = any(lens.is_wide for lens in self.cameras.lenses or ())
        return self.transform is not None and self.transform.kind != "object" and not is_wide

    def saw(self, points: Tensor) -> Tensor:
        """Which points [P, 3] lie in the image of some training view, without regard to distortion, bool [P]."""
        cameras = self.cameras[:: -(-len(self.cameras) // MAX_VIEWS)]
        sizes, cameras = points.new_tensor(cameras.sizes())[:, None], cameras.pinhole().to(points.device)
        poses = cameras.camera_to_world
        x, y, z = ((points - poses[:, None, :, 3]) @ poses[:, :, :3]).unbind(-1)  # [V, P] each
        pixel = torch.stack([x, -y], dim=-1) / -z[..., None] * cameras.focal[:, None] + cameras.center[:, None]
        return ((z < 0) & (pixel >= 0).all(-1) & (pixel <= sizes).all(-1)).any(0)

    def add_images(self, given: Cameras) -> None:
        """Add images and points from the scene's folder; raises UserError if its cameras are not those `given`."""
        data = self.config.data
        scene = scene_of(self.config, self.transform)
        views = scene.split("train")
        poses = views.cameras.camera_to_world
        same_sizes = views.cameras.sizes() == given.sizes()
        if not same_sizes or not torch.allclose(poses, given.camera_to_world, rtol=1e-4, atol=1e-4):
            raise UserError(f"{data.path} has other training views than the run")
        if data.pose_optimization:
            poses = self.cameras.camera_to_world
        self.photo = photos(lambda view: views[[view]].load().image(0), self.background)
        self.cameras = replace(views.cameras, camera_to_world=poses)
        self.points = shown_points(scene.points, self.transform)


def photos(read: Callable[[int], Tensor], background: Tensor) -> Callable[[int], Tensor]:
    """Images of training views over the run's background; the last few stay in memory."""
    return lru_cache(KEPT_IMAGES)(lambda view: blend(read(view).cpu(), background.cpu()))


def shown_points(points: Points | None, transform: SceneTransform | None) -> Points | None:
    """Points to show, in the model's frame: at most MAX_POINTS, those that many images see where that is known."""
    if points is None:
        return None
    lengths = points.track_lengths
    is_known = len(lengths) and lengths.max() > 0
    chosen = np.flatnonzero(lengths >= SHORTEST_TRACK) if is_known else np.arange(len(lengths))
    chosen = chosen[:: max(-(-len(chosen) // MAX_POINTS), 1)]
    positions = points.positions[chosen]
    positions = positions if transform is None else transform.to_model(positions)
    return Points(positions, points.colors[chosen], lengths[chosen], np.zeros(0, dtype=np.int64))
