# SPDX-License-Identifier: Apache-2.0
"""nerfkit as a method of nerfbaselines, which trains and scores methods alike on public data.

    export NERFBASELINES_REGISTER=PATH/nerfkit/integrations/nerfbaselines_spec.py
    nerfbaselines train --method nerfkit --data ...

Overrides are options of `nerfkit train`, such as trainer.steps=5000; `preset` names one of its presets.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.data.assemble import scene_frame
from nerfkit.data.cameras import Cameras
from nerfkit.data.capture import Capture, Points, PosedImage
from nerfkit.data.frame import Frame
from nerfkit.data.lens import Lens
from nerfkit.data.pixels import background_color
from nerfkit.data.pool import ImagePool
from nerfkit.data.readers.transforms import to_json
from nerfkit.data.scene import Scene, Views
from nerfkit.device import pick_device
from nerfkit.errors import ConfigError, SceneError
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training import checkpoint as checkpoints
from nerfkit.training.randomness import seed_everything
from nerfkit.training.run import load_run
from nerfkit.training.run_folder import RunFolder, RunScene
from nerfkit.training.run_images import read_images, save_images
from nerfkit.training.scene_options import box_is_given, fit_to_scene
from nerfkit.training.trainer import Trainer

METHOD = "nerfkit"
MODELS = {  # of nerfbaselines by number: its name, nerfkit's, and its coefficients among k1 k2 p1 p2 k3 k4 k5 k6
    0: ("pinhole", "PINHOLE", ()),
    1: ("opencv", "OPENCV", (0, 1, 2, 3)),
    2: ("opencv_fisheye", "OPENCV_FISHEYE", (0, 1, 4, 5)),
    3: ("full_opencv", "FULL_OPENCV", (0, 1, 2, 3, 4, 5, 6, 7)),
}
TO_OPENGL = np.array([1.0, -1.0, -1.0])  # factors of a pose's columns, from OpenCV's axes
STATS_EVERY = 50  # steps between two looks at the loss, which wait for the GPU
SYNTHETIC = ("blender",)  # data sets in a box that is known


class NerfKit:
    """A training, or a checkpoint of one, under the interface `Method` of nerfbaselines."""

    def __init__(
        self,
        *,
        checkpoint: str | None = None,
        train_dataset: dict[str, Any] | None = None,
        config_overrides: dict[str, Any] | None = None,
    ):
        self.checkpoint, self.trainer, self.run = checkpoint, None, None
        self.last: dict[str, float] = {}
        if checkpoint is not None:
            self.run = load_run(checkpoint)
            self.config, self.scene = self.run.config, self.run.scene
            check_same(self.config, config_overrides or {})
        else:
            self.config = configured(config_overrides or {})
        self.loaded_step = self.run.state["step"] if self.run else None
        if train_dataset is not None:
            self._start(train_dataset, given_in(config_overrides or {}))
        elif self.run is None:
            raise SceneError("nerfkit needs a checkpoint, a train_dataset, or both")
        self.device = self.trainer.device if self.trainer else self.run.device
        self.model = self.trainer.model if self.trainer else self.run.model
        self.frame: Frame = self.capture_frame if self.trainer else self.run.frame

    @classmethod
    def get_method_info(cls) -> dict[str, Any]:
        """What data the method takes and what it renders."""
        return {
            "method_id": METHOD,
            "required_features": frozenset(("color",)),
            "supported_camera_models": frozenset(name for name, _, _ in MODELS.values()),
            "supported_outputs": ("color", "depth", "accumulation"),
            "can_resume_training": True,
        }

    def get_info(self) -> dict[str, Any]:
        """The method's info with this model's numbers."""
        return {
            **self.get_method_info(),
            "num_iterations": self.config.trainer.steps,
            "loaded_step": self.loaded_step,
            "loaded_checkpoint": self.checkpoint,
            "hparams": config_module.flat(config_module.to_dict(self.config)),
        }

    def train_iteration(self, step: int) -> dict[str, float]:
        """One step; the loss and PSNR of the steps since they were looked at last."""
        if self.trainer is None:
            raise SceneError("this method was loaded without a train_dataset, so that it cannot be trained")
        self.model.train()
        self.trainer.timed_step()
        if not self.last or self.trainer.step % STATS_EVERY == 0:
            stats = self.trainer.pop_stats()
            self.last = {name: stats[name] for name in ("loss", "psnr") if name in stats}
        return dict(self.last)

    def render(self, camera: Any, *, options: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Color [H, W, 3], depth along rays [H, W] in the data's units, accumulation [H, W] of one camera, float32."""
        self.model.eval()
        cameras = cameras_of([pose_of(camera.poses)], [lens_of(camera)], self.frame).to(self.device)
        background = background_color(self.config.data.background, self.device)
        images = ImageRenderer(self.model, background)(cameras, 0, ("rgb", "depth", "opacity"))
        depth = images["depth_ray"].numpy()
        depth = depth if self.frame is None else self.frame.distance_to_input(depth)
        return {"color": images["rgb"].numpy(), "depth": depth, "accumulation": images["opacity"].numpy()}

    def save(self, path: str) -> None:
        """Write a run folder of nerfkit's, which its commands take, too."""
        if self.trainer is None:
            if Path(path).resolve() == self.run.folder.resolve():
                return  # it is there
            tensors, state = checkpoints.load(self.run.folder)
            images = read_images(self.run.folder, self.run.cameras()) if self.model.needs_images else None
        else:
            self.trainer.check_finite()  # before the folder's files go
        folder = RunFolder.for_new_run(path, overwrite=True)
        folder.start(self.config, self.scene)
        if self.trainer is None:
            if images is not None:
                save_images(folder, images)
            checkpoints.save(folder, tensors, state)
        else:
            self.trainer.save(folder)
        folder.unlock()

    def get_train_embedding(self, index: int) -> None:
        """None: images have no embeddings."""
        return None

    def optimize_embedding(self, dataset: Any, *, embedding: Any = None) -> dict[str, Any]:
        """The benchmark's way to hear that a method has none: it asks each, and takes this error for the answer."""
        raise NotImplementedError("nerfkit has no embeddings of images")

    def _start(self, dataset: dict[str, Any], given: Collection[str]) -> None:
        """A trainer of the data set, which goes on with the checkpoint if there is one; else options that were not
        `given` follow from the scene, as of `nerfkit train`."""
        capture, metadata = capture_of(dataset), dataset.get("metadata") or {}
        has_alpha = np.shape(dataset["images"][0])[-1] == 4
        data = self.config.data
        box = data.box if box_is_given(self.config, given) or metadata.get("id") in SYNTHETIC else None
        found = self.run.frame if self.run else None
        names = [image.name for image in capture.images]
        is_unbounded = self.config.sampling.kind == "contracted"
        self.capture_frame = frame = found or scene_frame(capture, names, has_alpha, box, is_unbounded)
        images = capture.images
        cameras = cameras_of([i.camera_to_world for i in images], [i.lens for i in images], frame)
        up = tuple(frame.up.tolist())
        if self.run is None:
            if data.background == "auto" and (color := metadata.get("background_color")) is not None:
                data.background = "white" if np.mean(color) > 127 else "black"
            views = {"train": Views(cameras, [], [])}
            fit_to_scene(self.config, Scene(capture.name, capture.format, views, up, frame), given)
        self.scene = RunScene(capture.name, up, {"train": to_json(cameras, names)}, frame.to_json())
        seed_everything(self.config.seed)
        pool = pool_of(dataset["images"], dataset.get("masks"))
        self.trainer = Trainer(self.config, cameras, pool, device=pick_device(self.config.device))
        if self.checkpoint is not None:
            self.trainer.restore(self.checkpoint)


def configured(overrides: dict[str, Any]) -> Config:
    """The options: defaults, or the preset for a CPU where there is no GPU, and what is overridden."""
    values = config_module.to_dict(config_module.merged(presets_of(overrides)))
    for name, value in overrides.items():
        if name == "preset":
            continue
        *groups, key = name.split(".")
        table = values
        for group in groups:
            if not isinstance(table.get(group), dict):
                raise ConfigError(f"config_overrides: unknown option {name!r}")
            table = table[group]
        table[key] = _parsed(value)
    return config_module.from_dict(values, "config_overrides")


def check_same(config: Config, overrides: dict[str, Any]) -> None:
    """Raise ConfigError for an override that a checkpoint with these options does not have."""
    has, asked = (config_module.flat(config_module.to_dict(values)) for values in (config, configured(overrides)))
    differing = sorted(name for name in overrides if name != "preset" and asked[name] != has[name])
    if differing:
        texts = ", ".join(f"{name} {has[name]!r}" for name in differing)
        raise ConfigError(f"config_overrides: the checkpoint was trained with {texts}; leave {differing[0]} out")


def presets_of(overrides: dict[str, Any]) -> list[str]:
    """The preset that the overrides name, or that for a CPU where there is no GPU."""
    preset = overrides.get("preset") or ("cpu" if pick_device("auto").type == "cpu" else None)
    return [preset] if preset else []


def given_in(overrides: dict[str, Any]) -> set[str]:
    """Names of the options that the overrides or their preset set."""
    in_presets = (config_module.flat(config_module.changes_of(preset)) for preset in presets_of(overrides))
    return set(overrides).union(*in_presets)


def _parsed(value: Any) -> Any:
    """A value that was typed as text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def capture_of(dataset: dict[str, Any]) -> Capture:
    """The cameras and points of a data set."""
    cameras, points = dataset["cameras"], dataset.get("points3D_xyz")
    images = [
        PosedImage(f"{index:05d}", Path(str(file)), pose_of(cameras.poses[index]), lens_of(cameras[index]))
        for index, file in enumerate(dataset["image_paths"])
    ]
    found = None
    seen = dataset.get("images_points3D_indices")
    if points is not None and len(points) and seen is not None:
        point = np.concatenate([np.asarray(indices, dtype=np.int64) for indices in seen])
        view = np.repeat(np.arange(len(seen)), [len(indices) for indices in seen])
        order = np.argsort(point, kind="stable")
        colors = dataset.get("points3D_rgb")
        colors = np.full((len(points), 3), 128, np.uint8) if colors is None else np.asarray(colors).astype(np.uint8)
        lengths = np.bincount(point, minlength=len(points))
        found = Points(np.asarray(points, dtype=np.float64), colors, lengths, view[order])
    return Capture("nerfbaselines", "nerfbaselines", images, found)


def pose_of(pose: Any) -> np.ndarray:
    """Camera-to-world [3, 4] in OpenGL axes of one in OpenCV's."""
    pose = np.asarray(pose, dtype=np.float64)[:3, :4].copy()
    pose[:, :3] *= TO_OPENGL
    return pose


def lens_of(camera: Any) -> Lens:
    """The lens of one camera."""
    number = int(camera.camera_models)
    if number not in MODELS:
        raise SceneError(f"camera model number {number} of nerfbaselines is not known to nerfkit")
    _, model, used = MODELS[number]
    terms = np.zeros(8)
    given = np.asarray(camera.distortion_parameters, dtype=np.float64).reshape(-1)[:8]
    terms[: len(given)] = given
    width, height = (int(side) for side in np.asarray(camera.image_sizes).reshape(2))
    focal_and_center = np.asarray(camera.intrinsics, dtype=np.float64).reshape(4).tolist()
    return Lens(model, (*focal_and_center, *(float(terms[index]) for index in used)), width, height)


def cameras_of(poses: Sequence[np.ndarray], lenses: list[Lens], frame: Frame | None) -> Cameras:
    """Cameras in the model's frame."""
    moved = np.stack(poses) if frame is None else frame.to_model(np.stack(poses))
    return Cameras.of_lenses(torch.tensor(moved, dtype=torch.float32), lenses)


def pool_of(images: Sequence[np.ndarray], masks: Sequence[np.ndarray] | None) -> ImagePool:
    """Images as nerfkit keeps them; pixels whose mask is 0 do not count."""
    sizes = tuple((image.shape[1], image.shape[0]) for image in images)
    counts = torch.tensor([width * height for width, height in sizes])
    pixels = torch.cat([torch.from_numpy(_bytes(image)).flatten(0, 1) for image in images])
    ignored = None
    if masks is not None:
        ignored = torch.cat([torch.from_numpy(np.asarray(mask) == 0).flatten() for mask in masks])
    return ImagePool(pixels, counts.cumsum(0) - counts, sizes, ignored)


def _bytes(image: np.ndarray) -> np.ndarray:
    """An image as uint8; float images are in [0, 1]."""
    image = np.asarray(image)
    return image if image.dtype == np.uint8 else (image.clip(0, 1) * 255 + 0.5).astype(np.uint8)
