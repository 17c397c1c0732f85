# SPDX-License-Identifier: Apache-2.0
"""LPIPS: how different two images look, by features of a network that was trained to name what images show.

    LPIPS(x, y) = sum_l mean_hw sum_c w_lc (f_l(x) / |f_l(x)| - f_l(y) / |f_l(y)|)^2

f_l are the features of VGG-16 after its convolutions 2, 4, 7, 10 and 13, at each pixel divided by their length, w the
weights that were fitted to what people say (Zhang et al. 2018, version 0.1, as torchmetrics ships them). VGG's own
weights are a file that a user has: nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.errors import UserError
from nerfkit.reading import shown

LPIPS_DEFINITION = "VGG-16, version 0.1, images scaled to [-1, 1] (torchmetrics' linear weights)"
CONVOLUTIONS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)  # `features.N` of torchvision's VGG-16
POOLED_BEFORE, COMPARED_AFTER = (5, 10, 17, 24), (2, 7, 14, 21, 28)  # of those
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of the colors that VGG saw, in [-1, 1]
MIN_SIDE = 16  # pixels: four poolings leave one


class Lpips:
    """Compares images on one device.

    Args:
        file: torchvision's weights of VGG-16, such as vgg16-397923af.pth.
        device: where the comparison runs.

    Raises UserError if the file holds no such weights.
    """

    def __init__(self, file: str | Path, device: torch.device | str = "cpu"):
        self.layers = {}
        state = _state_of(Path(file).expanduser())
        for n in CONVOLUTIONS:
            weight, bias = (state.get(f"features.{n}.{name}") for name in ("weight", "bias"))
            if not isinstance(weight, Tensor) or not isinstance(bias, Tensor) or weight.shape[2:] != (3, 3):
                raise UserError(f"eval.lpips: {shown(file)} has no weights of VGG-16: features.{n}.weight is missing")
            self.layers[n] = weight.float().to(device), bias.float().to(device)
        linear = torch.load(_linear_weights(), map_location="cpu", weights_only=True)
        self.linear = [linear[f"lin{k}.model.1.weight"].to(device) for k in range(len(COMPARED_AFTER))]
        self.device = torch.device(device)

    @torch.no_grad()
    def __call__(self, render: Tensor, truth: Tensor) -> float | None:
        """Distance of two images [H, W, 3] in [0, 1], 0 if they are equal; None if a side is under MIN_SIDE."""
        if min(truth.shape[:2]) < MIN_SIDE:
            return None
        features = self._features(torch.stack([render, truth]).to(self.device).movedim(-1, 1) * 2 - 1)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for weight, feature in zip(self.linear, features, strict=True):  # [1, C, 1, 1], [2, C, h, w]
            unit = feature / (feature.square().sum(1, keepdim=True) + 1e-8).sqrt()
            total += (weight * (unit[:1] - unit[1:]).square()).sum(1).mean()
        return total.item()

    def _features(self, images: Tensor) -> list[Tensor]:
        """Features [2, C, h, w] of two images [2, 3, H, W] in [-1, 1], after each layer that is compared."""
        shift, scale = (images.new_tensor(values)[:, None, None] for values in (SHIFT, SCALE))
        x, found = (images - shift) / scale, []
        for n, (weight, bias) in self.layers.items():
            if n in POOLED_BEFORE:
                x = F.max_pool2d(x, 2)
            x = F.conv2d(x, weight, bias, padding=1).relu()
            if n in COMPARED_AFTER:
                found.append(x)
        return found


def _state_of(file: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)  # runs no code of the file
    except FileNotFoundError:
        raise UserError(
            f"eval.lpips: {shown(file)} is not there; it is to be torchvision's weights of VGG-16"
        ) from None
    except Exception as error:  # whatever a file that holds no tensors leads to
        raise UserError(f"eval.lpips: {shown(file)} cannot be read: {shown(str(error))[:200]}") from None
    return state if isinstance(state, dict) else {}


def _linear_weights() -> Path:
    from torchmetrics.functional.image import lpips

    return Path(lpips.__file__).parent / "lpips_models" / "vgg.pth"
