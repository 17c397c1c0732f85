# SPDX-License-Identifier: Apache-2.0
"""Image metrics, each named and defined."""

from __future__ import annotations

import torch
from torch import Tensor

SSIM_DEFINITION = "gaussian window 11x11, sigma 1.5, K1 0.01, K2 0.03, data range 1, mean over RGB (torchmetrics)"
CORRECTED_DEFINITION = (
    "psnr after the least-squares affine transform of all channels from the render, less its background, to the truth; "
    "channels that the truth clips are left out of the fit, and the result is clamped to [0, 1]"
)
UNCLIPPED = (0.5 / 255, 254.5 / 255)  # 8-bit values of a picture that were not cut off
MAX_GPU_PIXELS = 2**21  # of an image whose SSIM a GPU computes, in about 600 bytes a pixel
MIN_SIDE = 6  # pixels, needed by SSIM's window, mirrored at the edges
MAX_PSNR = 100.0  # dB, of identical images: keeps a mean over views finite


def psnr(render: Tensor, truth: Tensor) -> float:
    """-10 log10 of the mean squared error of two images [H, W, 3] in [0, 1], in dB, at most MAX_PSNR."""
    from torchmetrics.functional.image import peak_signal_noise_ratio  # which takes a second to import

    return peak_signal_noise_ratio(render, truth, data_range=1.0).clamp(max=MAX_PSNR).item()


def ssim(render: Tensor, truth: Tensor, device: torch.device | str = "cpu") -> float:
    """Structural similarity of two images [H, W, 3] in [0, 1]: SSIM_DEFINITION.

    It is computed on `device`, of large images on the CPU; on a GPU in float64, as convolutions of float32 are rounded
    to TF32 there.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    on_cpu = torch.device(device).type == "cpu" or render[..., 0].numel() > MAX_GPU_PIXELS
    device, dtype = ("cpu", torch.float32) if on_cpu else (device, torch.float64)
    batch = [image.movedim(-1, 0)[None].to(device, dtype) for image in (render, truth)]  # [1, 3, H, W]
    return structural_similarity_index_measure(
        *batch, gaussian_kernel=True, sigma=1.5, kernel_size=11, k1=0.01, k2=0.03, data_range=1.0
    ).item()


def color_corrected(
    render: Tensor, opacity: Tensor, truth: Tensor, background: Tensor, counts: Tensor | None = None
) -> Tensor:
    r"""A render [H, W, 3] in the light of the `truth` [H, W, 3]: what is not background, and the opacity a [H, W],

    .. math:: A c + a b + (1 - a)\, background

    with A [3, 3] and b [3] by least squares over the pixels that count (`counts` [H, W] bool, or all), clamped to
    [0, 1]. A value that the truth clips is a bound, not a color, and is left out of its channel's fit. Where colors do
    not determine the transform it is the one nearest to none.

    Source: metrics after a color transform of each test image, as of RawNeRF (arXiv:2111.13679) and Zip-NeRF
    (arXiv:2304.06706); there without the opacity.
    """
    behind = (1 - opacity)[..., None] * background  # [H, W, 3]
    own = torch.cat([render - behind, opacity[..., None]], dim=-1)  # [H, W, 4]
    chosen = (truth > UNCLIPPED[0]) & (truth < UNCLIPPED[1])  # [H, W, 3]
    if counts is not None:
        chosen = chosen & counts[..., None]
    a, missing, weight = (x.flatten(0, 1).double() for x in (own, truth - render, chosen))  # [P, 4], [P, 3], [P, 3]
    squares = torch.einsum("pi,pj,pc->cij", a, a, weight)  # [3, 4, 4]
    products = torch.einsum("pi,pc->ci", a, missing * weight)  # [3, 4]
    change = (torch.linalg.pinv(squares, rtol=1e-9, hermitian=True) @ products[..., None])[..., 0]  # [3, 4]
    return (render + (own.double() @ change.mT).to(render.dtype)).clamp(0, 1)
