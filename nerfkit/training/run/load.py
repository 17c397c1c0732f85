# SPDX-License-Identifier: Apache-2.0
"""A trained run, loaded for scoring, rendering, exports or a viewer."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nerfkit.config import OpsConfig, ResolvedConfig
from nerfkit.config.files import read_decisions
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.images.pixels import background_color
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.device import pick_device
from nerfkit.model.base import Model
from nerfkit.model.registry import build_model, import_models, model_class
from nerfkit.ops.dispatch import UNFIT
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.run import checkpoint
from nerfkit.training.run.files import SCENE, read_config
from nerfkit.training.run.folder import RunScene, read_scene
from nerfkit.training.step.adjustments import ViewAdjustments


@dataclass(frozen=True, repr=False)
class Run:
    """A run folder's model, options, scene and state."""

    folder: Path
    config: ResolvedConfig
    model: Model  # on `device`, in eval mode
    scene: RunScene
    state: dict[str, Any]  # of the checkpoint: step, seconds, backend, versions
    device: torch.device
    refined: Cameras | None = None  # training views where data.pose_optimization put them; None if as given

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, step={self.state['step']}, device={self.device})"

    @property
    def background(self) -> Tensor:
        """Color [3] behind the scene; white where training used random ones."""
        return background_color(self.config.data.background, self.device)

    @property
    def transform(self) -> SceneTransform | None:
        """How the model's frame lies in that of the scene's files; None where they are one."""
        values, where = self.scene.transform, str(self.folder / SCENE)
        return None if values is None else SceneTransform.from_json(values, where)

    def cameras(self, split: str = "train") -> Cameras:
        """Cameras of one split, in the model's frame, on the CPU; raises RunError if the run knows none.

        Training views stand where data.pose_optimization has found them; `given_cameras` are those of the scene's
        files.
        """
        return self.refined if split == "train" and self.refined is not None else self.given_cameras(split)

    def given_cameras(self, split: str = "train") -> Cameras:
        """Cameras of one split as the scene's files have them, in the model's frame, on the CPU."""
        return self.scene.cameras(split, self.folder / SCENE)

    def lenses(self, split: str = "train") -> list[Lens]:
        """Lens of each image of one split; cameras of a run are pinholes, as what is rendered has no distortion."""
        return self.scene.lenses(split, self.folder / SCENE)

    def seeing_cameras(self, split: str = "train") -> Cameras:
        """Cameras of one split, with their lenses where a pinhole would see too little of what the images show."""
        cameras, lenses = self.cameras(split), self.lenses(split)
        is_wide = any(lens.is_wide for lens in lenses)
        return Cameras.from_lenses(cameras.camera_to_world, lenses) if is_wide else cameras

    def render(self, cameras: Cameras, view: int = 0, outputs: tuple[str, ...] = ("rgb",)) -> dict[str, Tensor]:
        """Images of one view, float32 on the CPU: see `ImageRenderer`."""
        return ImageRenderer(self.model, self.background)(cameras.to(self.device), view, outputs)


def load_run(folder: str | Path, device: str = "auto", module: str = "", ops: OpsConfig | None = None) -> Run:
    """The trained model of a run folder, of any registered kind.

    Args:
        folder: run folder, which may have been moved; the scene is not needed.
        device: cpu, cuda, cuda:1 ...; auto takes a GPU if there is one.
        module: Python module that registers the run's kind of model. A run folder never imports code by itself.
        ops: the backends that the model runs on; None, or those of backend "same": as the run was trained.

    Raises RunError, ConfigError, or BackendError that say what is wrong, and what to pass.
    """
    folder = Path(folder)
    config = read_config(folder)
    if ops is not None and ops.backend == "same":
        ops = OpsConfig(config.ops.backend, config.ops.overrides | ops.overrides)
    config.ops = OpsConfig(ops.backend, ops.overrides) if ops is not None else config.ops
    import_models(module)
    chosen = pick_device(device)
    config = config.resolved(None, chosen, model_class(config))
    config.decisions = read_decisions(folder)
    scene = read_scene(folder)
    tensors, state = checkpoint.load(folder)
    model = build_model(config).to(chosen).eval()
    of_images = model.resolved(chosen).get("render_rays")  # raises BackendError for one that cannot run here
    if of_images and of_images.backend == "torch" and UNFIT in of_images.reason:
        warnings.warn(f"images take longer, as they are rendered op by op: {of_images.reason}", stacklevel=2)
    checkpoint.fill(model, "model", tensors, folder)
    refined = None
    if config.data.pose_optimization:
        given = scene.cameras("train", folder / SCENE)
        adjustments = ViewAdjustments(config.data, len(given))
        checkpoint.fill(adjustments, "views", tensors, folder)
        refined = adjustments.cameras(given)
    return Run(folder, config, model, scene, state, chosen, refined)
