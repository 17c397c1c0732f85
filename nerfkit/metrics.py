# SPDX-License-Identifier: Apache-2.0
"""Image metrics, each named and defined."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.errors import UserError
from nerfkit.safe_io import open_regular, printable

SSIM_DEFINITION = "gaussian window 11x11, sigma 1.5, K1 0.01, K2 0.03, data range 1, mean over RGB (torchmetrics)"
CORRECTED_DEFINITION = (
    "psnr after the least-squares affine transform of all channels from the render, less its background, to the truth; "
    "channels that the truth clips are left out of the fit, and the result is clamped to [0, 1]"
)
UNCLIPPED = (0.5 / 255, 254.5 / 255)  # 8-bit values of an image that were not cut off
MAX_GPU_PIXELS = 2**21  # of an image whose SSIM a GPU computes, in about 600 bytes a pixel
MIN_SIDE = 6  # pixels, needed by SSIM's window, mirrored at the edges
MAX_PSNR = 100.0  # dB, of identical images: keeps a mean over views finite
LPIPS_DEFINITION = "VGG-16, version 0.1, images scaled to [-1, 1] (torchmetrics' linear weights)"
# `features.N` of torchvision's VGG-16
CONVOLUTIONS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
POOLED_BEFORE, COMPARED_AFTER = (5, 10, 17, 24), (2, 7, 14, 21, 28)  # of those
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of the colors that VGG saw, in [-1, 1]
MAX_WEIGHTS = 2**30  # bytes of a file; those of VGG-16 are 528 MB
LPIPS_MIN_SIDE = 16  # pixels: four poolings leave one


def psnr(render: Tensor, truth: Tensor, counts: Tensor | None = None) -> float:
    """-10 log10 of the mean squared error of two images [H, W, 3] in [0, 1], in dB, at most MAX_PSNR; of the pixels
    that count, `counts` [H, W] bool, or all."""
    if counts is not None:
        render, truth = render[counts], truth[counts]
    error = (render - truth).square().sum() / render.numel()
    return (-torch.log(error) * (10 / torch.log(torch.tensor(10.0)))).clamp(max=MAX_PSNR).item()


def ssim(render: Tensor, truth: Tensor, device: torch.device | str = "cpu") -> float:
    """Structural similarity of two images [H, W, 3] in [0, 1]: SSIM_DEFINITION.

    It is computed on `device`, of large images on the CPU; on a GPU in float64, as convolutions of float32 are rounded
    to TF32 there. Source: Z. Wang et al., "Image quality assessment: from error visibility to structural similarity"
    (2004).
    """
    on_cpu = torch.device(device).type == "cpu" or render[..., 0].numel() > MAX_GPU_PIXELS
    device, dtype = ("cpu", torch.float32) if on_cpu else (device, torch.float64)
    x, y = (image.movedim(-1, 0)[None].to(device, dtype) for image in (render, truth))  # [1, 3, H, W]
    x, y = (F.pad(image, (5, 5, 5, 5), mode="reflect") for image in (x, y))
    weight = torch.exp(-((torch.arange(-5, 6, dtype=dtype, device=device) / 1.5) ** 2) / 2)  # [11]
    weight = weight / weight.sum()
    window = (weight[:, None] * weight).expand(3, 1, 11, 11)
    mean_x, mean_y, xx, yy, xy = F.conv2d(torch.cat([x, y, x * x, y * y, x * y]), window, groups=3)  # [3, H, W] each
    squares, product, c1, c2 = mean_x**2 + mean_y**2, mean_x * mean_y, 0.01**2, 0.03**2
    variances = (xx - mean_x**2).clamp(min=0) + (yy - mean_y**2).clamp(min=0)
    return ((2 * product + c1) * (2 * (xy - product) + c2) / ((squares + c1) * (variances + c2))).mean().item()


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


class Lpips:
    r"""LPIPS: how different two images look, by features of a network that was trained to name what images show.

    .. math:: \sum_l mean_{hw} \sum_c w_{lc} (f_l(x) / |f_l(x)| - f_l(y) / |f_l(y)|)^2

    f_l are the features of VGG-16 after its convolutions 2, 4, 7, 10 and 13, at each pixel divided by their length, w
    the weights that were fitted to what people say (Zhang et al. 2018, version 0.1, as torchmetrics ships them). VGG's
    own weights are a file that a user has: nothing is downloaded.

    Args:
        file: torchvision's weights of VGG-16, such as vgg16-397923af.pth.
        device: where the comparison runs.

    Raises UserError if the file holds no such weights, or torchmetrics is missing.
    """

    def __init__(self, file: str | Path, device: torch.device | str = "cpu"):
        try:
            from torchmetrics.functional.image import lpips
        except ImportError:
            raise UserError('eval.lpips needs the package torchmetrics: pip install "nerfkit[lpips]"') from None
        self.layers = {}
        state = _state_of(Path(file).expanduser())
        for n in CONVOLUTIONS:
            weight, bias = (state.get(f"features.{n}.{name}") for name in ("weight", "bias"))
            if not isinstance(weight, Tensor) or not isinstance(bias, Tensor) or weight.shape[2:] != (3, 3):
                raise UserError(
                    f"eval.lpips: {printable(file)} has no weights of VGG-16: features.{n}.weight is missing"
                )
            self.layers[n] = weight.float().to(device), bias.float().to(device)
        linear = torch.load(
            Path(lpips.__file__).parent / "lpips_models" / "vgg.pth", map_location="cpu", weights_only=True
        )
        self.linear = [linear[f"lin{k}.model.1.weight"].to(device) for k in range(len(COMPARED_AFTER))]
        self.device = torch.device(device)

    @torch.no_grad()
    def __call__(self, render: Tensor, truth: Tensor) -> float | None:
        """Distance of two images [H, W, 3] in [0, 1], 0 if they are equal; None if a side is under LPIPS_MIN_SIDE."""
        if min(truth.shape[:2]) < LPIPS_MIN_SIDE:
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
    if not file.exists():
        give = "give the path of torchvision's weights of VGG-16, or leave LPIPS out"
        raise UserError(f"eval.lpips: the file '{printable(file)}' does not exist; {give}")
    with open_regular(file, MAX_WEIGHTS, "eval.lpips:", UserError) as content:
        try:
            state = torch.load(content, map_location="cpu", weights_only=True)  # runs no code of the file
        except Exception as error:  # whatever a file that holds no tensors leads to
            raise UserError(f"eval.lpips: {printable(file)} cannot be read: {printable(str(error))}") from None
    return state if isinstance(state, dict) else {}
