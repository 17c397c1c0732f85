# SPDX-License-Identifier: Apache-2.0
"""Where in the model's frame an export looks."""

from __future__ import annotations

import numpy as np

from nerfkit.config import Config
from nerfkit.crop import Crop
from nerfkit.data.scene_transform.frame import Frame, corner_text
from nerfkit.errors import UserError
from nerfkit.model.base import Model


def domain(model: Model, config: Config, crop: Crop | None, frame: Frame | None) -> np.ndarray:
    """The box [2, 3] float64, in the model's frame, that holds what is exported.

    It is where the sampler looks, cut to the crop's bounds. Raises UserError if nothing is left. In unbounded space it
    is the crop's bounds, wherever they lie, and without a crop what is not contracted.
    """
    if config.sampling.kind == "contracted":
        return np.array(config.data.box).reshape(2, 3) if crop is None else crop.bounds()
    sampler = getattr(model, "sampler", None)
    box = getattr(sampler, "box", None)
    box = np.array(config.data.box).reshape(2, 3) if box is None else box.double().cpu().numpy()
    if crop is None:
        return box
    bounds = crop.bounds()
    cut = np.stack([np.maximum(box[0], bounds[0]), np.minimum(box[1], bounds[1])])
    if not (cut[0] < cut[1]).all():
        whole = box if crop.frame == "model" else _in_files(box, frame)
        raise UserError(
            f"the crop from {corner_text(np.array([crop.low, crop.high]))} (frame: {crop.frame}) lies outside of what "
            f"the run has, from {corner_text(whole)}; change --crop, or delete the run's crop.json"
        )
    return cut


def _in_files(box: np.ndarray, frame: Frame | None) -> np.ndarray:
    """The smallest box [2, 3] of the files' frame that holds one of the model's."""
    if frame is None:
        return box
    corners = frame.to_input(np.stack(np.meshgrid(*box.T, indexing="ij"), axis=-1).reshape(8, 3))
    return np.stack([corners.min(axis=0), corners.max(axis=0)])
