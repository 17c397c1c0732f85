# SPDX-License-Identifier: Apache-2.0
"""Images of a field with fixed weights are what they were, to the last digits, on every backend of a CPU.

A change of them that is meant: `python -m tests.test_golden_image` writes tests/golden/field.npz anew. Look at what
differs before, and say so in the changelog: the same checkpoint renders otherwise from then on.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from nerfkit import ops
from nerfkit.config import Config
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.model.renderer import Renderer
from nerfkit.model.stages import Decoder, RayAggregator
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.paths import look_at

FILE = Path(__file__).parent / "golden" / "field.npz"
WIDTH, HEIGHT = 14, 9
RENDERED = ("rgb", "depth", "opacity", "normal")  # what the file has
VIEWS = (0, 1)
BACKGROUND = torch.tensor([0.9, 0.5, 0.2])
TOLERANCE = {"normal": 2e-3}  # a direction, where the gradient may be small; all else 1e-4


class SmallState(Renderer):
    def build_aggregator(self, config, channels):
        return RayAggregator(channels, lltm_size=8)


def field() -> Renderer:
    """A small field, all of whose weights come from one generator; its middle is denser than its corners."""
    config = Config(device="cpu")
    config.data.box = (-0.8, -0.7, -0.6, 0.8, 0.7, 0.6)
    config.model.levels, config.model.features_per_level, config.model.log2_hashmap_size = 3, 2, 9
    config.model.base_resolution, config.model.max_resolution = 4, 12
    config.model.mlp_width = 16
    config.sampling.step_size, config.sampling.near, config.sampling.occupancy_resolution = 0.07, 1.9, 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "n_geometry_features", 8)
        model = SmallState(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            bound = 1.0 if name == "grid.table" else parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.4
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)
        model.decoder.density_net.layers()[-1][1][0] = 2.0
        cells = torch.stack(torch.meshgrid(*[torch.arange(8) - 3.5] * 3, indexing="ij"), -1)  # [8, 8, 8, 3]
        model.sampler.occupancy.copy_(cells.norm(dim=-1) < 3.6)
    return model.eval()


def cameras() -> Cameras:
    """Two views of an image that is no square, focal lengths and principal points of their own."""
    eyes = torch.tensor([[2.0, 1.2, 1.0], [-1.5, 1.8, -1.0]])
    poses = look_at(eyes, torch.tensor([0.05, -0.1, 0.0]), torch.tensor([0.0, 0.0, 1.0]))
    focal, center = torch.tensor([[17.0, 14.0], [13.0, 16.0]]), torch.tensor([[6.5, 5.0], [7.4, 4.1]])
    return Cameras(poses, focal, center, WIDTH, HEIGHT)


def images() -> dict[str, np.ndarray]:
    """Every output of both views by name, such as depth_z_1."""
    image_of, of_views = ImageRenderer(field(), BACKGROUND, chunk=50), cameras()
    found = {f"{name}_{view}": x for view in VIEWS for name, x in image_of(of_views, view, RENDERED).items()}
    return {name: image.numpy() for name, image in found.items()}


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_images_are_the_golden_ones(backend: str):
    if not all(backend in ops.available(op) for op in field().ops):
        pytest.skip("needs the CPU's fused ops")
    golden = np.load(FILE)
    with ops.backend(backend):
        got = images()
    assert set(got) == set(golden.files)
    for name, image in got.items():
        tolerance = TOLERANCE.get(name.rpartition("_")[0], 1e-4)
        np.testing.assert_allclose(image, golden[name], rtol=0, atol=tolerance, err_msg=name)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **images())
    print(f"{FILE}: {FILE.stat().st_size} bytes")
