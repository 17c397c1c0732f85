"""One op elsewhere: the feature grid alone learns the distance to a ring, in plain PyTorch."""

import torch

import nerfkit

grid = nerfkit.nn.FeatureGrid(
    levels=8, features_per_level=2, log2_hashmap_size=14, base_resolution=4, max_resolution=128
)
net = torch.nn.Sequential(grid, torch.nn.Linear(grid.n_features, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = nerfkit.LazyAdam(net.parameters(), lr=0.01)


def distance(points):  # [N, 3] in [0, 1] -> [N, 1]
    x, y, z = (points - 0.5).unbind(-1)
    return (((x**2 + y**2).sqrt() - 0.3) ** 2 + z**2).sqrt()[:, None] - 0.1


for _ in range(300):
    points = torch.rand(4096, 3)
    loss = (net(points) - distance(points)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"mean error {loss.item():.4f} of the unit cube's side")
