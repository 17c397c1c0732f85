# SPDX-License-Identifier: Apache-2.0
"""Image metrics, each named and defined."""

from __future__ import annotations

from torch import Tensor
from torchmetrics.functional.image import (
    peak_signal_noise_ratio,
    structural_similarity_index_measure,
)

SSIM_DEFINITION = "gaussian window 11x11, sigma 1.5, K1 0.01, K2 0.03, data range 1, mean over RGB (torchmetrics)"
MIN_SIDE = 6  # pixels, needed by SSIM's window, mirrored at the edges
MAX_PSNR = 100.0  # dB, of identical images: keeps a mean over views finite


def psnr(render: Tensor, truth: Tensor) -> float:
    """-10 log10 of the mean squared error of two images [H, W, 3] in [0, 1], in dB, at most MAX_PSNR."""
    return peak_signal_noise_ratio(render, truth, data_range=1.0).clamp(max=MAX_PSNR).item()


def ssim(render: Tensor, truth: Tensor) -> float:
    """Structural similarity of two images [H, W, 3] in [0, 1]: SSIM_DEFINITION."""
    batch = [image.movedim(-1, 0)[None] for image in (render, truth)]  # [1, 3, H, W]
    return structural_similarity_index_measure(
        *batch, gaussian_kernel=True, sigma=1.5, kernel_size=11, k1=0.01, k2=0.03, data_range=1.0
    ).item()
