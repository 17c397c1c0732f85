# SPDX-License-Identifier: Apache-2.0
import torch

from nerfkit.nn import MLP, FeatureGrid
from tests.naming import raises_naming


def test_any_number_of_leading_axes(device: str):
    grid = FeatureGrid(levels=3, log2_table=10, max_resolution=32, device=device)
    points = torch.rand(4, 5, 3, device=device)
    out = grid(points)
    assert out.shape == (4, 5, 6) and grid(points[:0]).shape == (0, 5, 6)
    torch.testing.assert_close(out[2, 3], grid(points[2, 3]))


def test_it_learns_a_function_of_position():
    torch.manual_seed(0)
    grid = FeatureGrid(levels=4, features=1, log2_table=12, base_resolution=4, max_resolution=32)
    points = torch.rand(512, 3)
    target = (points * 6).sin().prod(-1)
    optimizer = torch.optim.Adam(grid.parameters(), lr=0.05)
    for _ in range(60):
        loss = (grid(points).sum(-1) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02 * target.var()


def test_layers_of_a_network_are_views():
    net = MLP(2, 3, 1, 1)
    with torch.no_grad():
        for weight, bias in net.layers():
            weight.zero_()
            bias.fill_(2.0)
    assert net(torch.randn(4, 2)).tolist() == [[2.0]] * 4


def test_bad_input():
    with raises_naming(ValueError, "points", "3", "[5, 2]"):
        FeatureGrid(levels=2, log2_table=8)(torch.rand(5, 2))
