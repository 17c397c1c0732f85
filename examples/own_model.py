"""A model of one's own: in this folder, nerfkit train SCENE --model.kind blobs --model.module own_model"""

import torch
from torch.nn import Parameter

import nerfkit


@nerfkit.register_model("blobs")
class Blobs(nerfkit.Model):
    def __init__(self, config):
        super().__init__(config)
        self.sampler = nerfkit.build_sampler(self.config)
        self.centers, self.colors = Parameter(torch.randn(50, 3) * 0.3), Parameter(torch.zeros(50, 3))

    def share(self, positions):  # [N, 50] of each blob at each position [N, 3]
        return torch.exp(-30 * (positions[:, None] - self.centers).square().sum(-1))

    def density(self, positions):  # [N] per model unit
        return 3 * self.share(positions).sum(-1)

    def forward(self, rays, background, jitter=None, capacity=None):
        samples = self.sampler(rays, self.density, jitter, capacity)
        rgb = (self.share(samples.positions) @ self.colors).sigmoid()  # [N, 3]
        return nerfkit.composite_samples(samples, self.density(samples.positions), rgb, background)
