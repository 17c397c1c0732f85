"""A field whose colors are corrected by what the training images show: see README.md beside this file.

field      rays                      -> color, opacity, depth   as nerfkit.Renderer has them
sources    training images           -> V small ones, kept in the checkpoint
encoder    those images              -> features of each of their pixels
look-up    the ray's expected point  -> features and color there of the K views that look at it most alike
cell       one view after the other  -> state [R, H]
residual   state                     -> what is added to the color, zero at first
"""

from dataclasses import dataclass

import torch
from torch import nn

import nerfkit
from image_based.sources import Sources

TRAINED_EVERY = 4  # steps: images are encoded, and the correction trained, in each fourth; the others train the field
MAX_RAYS = 2**16  # of an image, at a time: each is compared with all sources


class Encoder(nn.Module):
    """Images [V, 4, S, S] -> features [V, S, S, C].

    It does not name its `ops`, so that no step is recorded as a CUDA graph: for that, all would have to be alike.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.lift, self.mix = nn.Conv2d(4, channels, 1), nn.Conv2d(channels, channels, 1)
        self.around = nerfkit.nn.DepthwiseConv2d(channels, 7, padding="same")

    def forward(self, images):
        lifted = self.lift(images)
        return (lifted + self.mix(nn.functional.gelu(self.around(lifted)))).permute(0, 2, 3, 1)


@nerfkit.register_model("image_based")
class ImageBased(nerfkit.Renderer):
    @dataclass
    class Options:
        """model.options of it."""

        sources: int = 12  # training images that are kept, evenly chosen
        side: int = 96  # pixels of a kept image, each way
        nearest: int = 4  # images that a point is looked up in
        channels: int = 16  # of the encoder
        state: int = 16  # of the LLTM

    def __init__(self, config):
        super().__init__(config)
        options = self.options
        if min(options.sources, options.side) < 2 or min(options.nearest, options.channels, options.state) < 1:
            raise nerfkit.UserError(f"model.options: sources and side must be 2 or more, the others 1, got {options}")
        self.sources = Sources(options.sources, options.side)
        self.image_encoder = Encoder(options.channels)
        self.cell = nerfkit.nn.LLTMCell(options.channels + 10, options.state)
        self.residual = nn.Linear(options.state, 3)
        nn.init.zeros_(self.residual.weight)
        nn.init.zeros_(self.residual.bias)
        self.corrects = True  # in this step of a training
        self.register_buffer("encoded", None, persistent=False)  # features, while no parameter changes

    def set_source_images(self, cameras, images):
        """The trainer calls this before training."""
        self.sources.fill(cameras, images)

    def update(self, step):
        super().update(step)
        self.corrects, self.encoded = step % TRAINED_EVERY == 0, None

    def load_state_dict(self, *arguments, **options):
        self.encoded = None
        return super().load_state_dict(*arguments, **options)

    @property
    def max_rays_rendered(self):
        return min(super().max_rays_rendered, MAX_RAYS)

    def features(self):
        """Features [V, S, S, C]: once for all that is rendered between two steps, anew where gradients are needed."""
        if torch.is_grad_enabled():
            return self.image_encoder(self.sources.rgba())
        if self.encoded is None:
            self.encoded = self.image_encoder(self.sources.rgba())
        return self.encoded

    def forward(self, rays, background, jitter=None, capacity=None):
        field = super().forward(rays, background, jitter, capacity)
        if jitter is not None and not self.corrects:
            return field
        color, opacity, depth = (x.detach() for x in field[:3])  # the correction says nothing to where surfaces are
        points = rays.origins + rays.directions * depth[:, None]  # [R, 3]
        view, pixels, difference, valid = self.sources.nearest(rays, points, self.options.nearest)
        table = torch.cat([self.sources.rgba().permute(0, 2, 3, 1), self.features()], dim=-1)  # [V, S, S, 4 + C]
        rgb, alpha, features = self.sources.sample(table, view, pixels).split([3, 1, self.options.channels], dim=-1)
        rgb = rgb + (1 - alpha) * background.expand(len(points), 3)[:, None]  # [R, K, 3]
        seen = torch.cat([features, rgb, rgb - color[:, None], difference, torch.ones_like(alpha)], dim=-1)
        state = None
        for one in torch.where(valid[..., None], seen, 0).unbind(1):
            state = self.cell(one, state)
        residual = (opacity * valid.any(1))[:, None] * self.residual(state[0])  # [R, 3]
        return field._replace(color=(field.color + residual).clamp(0, 1))
