# SPDX-License-Identifier: Apache-2.0
"""A field whose surface is known: a hollow ball and a small one beside it, in a run whose frame is turned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from plyfile import PlyData

from nerfkit.commands import export
from nerfkit.config import Config
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.readers.transforms.cameras_json import to_json
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.model.base import Model
from nerfkit.model.compositing import composite_samples
from nerfkit.model.registry import build_model, register_model
from nerfkit.model.sampling import build_sampler
from nerfkit.training.run import checkpoint
from nerfkit.training.run.folder import RunFolder, RunScene
from tests.camera_layouts import look_at
from tests.processes import run_main

CENTER, RADIUS, HOLLOW = np.array([0.1, -0.05, 0.15]), 0.5, 0.25  # model frame
SPECK, SPECK_RADIUS = np.array([-0.6, 0.6, 0.5]), 0.1
BOX = (-0.9, -0.8, -0.7, 0.9, 0.8, 0.9)
DENSITY, EDGE = 400.0, 0.004  # inside, and how far the density takes to rise


@register_model("balls")
class Balls(Model):
    """Colors are those of the normal of the large ball."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.sampler = build_sampler(self.config)
        self.amount = torch.nn.Parameter(torch.tensor(DENSITY))

    def density(self, positions):
        r = (positions - torch.tensor(CENTER, dtype=positions.dtype)).norm(dim=-1)
        speck = (positions - torch.tensor(SPECK, dtype=positions.dtype)).norm(dim=-1)
        depth = torch.maximum(torch.minimum(RADIUS - r, r - HOLLOW), SPECK_RADIUS - speck)  # below the surface
        return self.amount * torch.sigmoid(depth / EDGE)

    def forward(self, rays, background, jitter=None, capacity=None):
        samples = self.sampler(rays, self.density, jitter, capacity)
        outwards = torch.nn.functional.normalize(samples.positions - torch.tensor(CENTER).float(), dim=-1)
        return composite_samples(samples, self.density(samples.positions), self.color(outwards), background)

    def color(self, outwards):
        return 0.5 + 0.5 * outwards


@register_model("gray")
class Gray(Balls):
    """One that has learned nothing but the mean of what is painted on the ball."""

    def color(self, outwards):
        return torch.full_like(outwards, 0.5)


SHELL, SHELL_DENSITY, CORE = 0.1, 6.3, 0.2  # thickness, density and the radius of what is opaque within


@register_model("shell")
class Shell(Balls):
    """A ball of which half of the light goes through the shell, to an opaque core."""

    def density(self, positions):
        r = (positions - torch.tensor(CENTER, dtype=positions.dtype)).norm(dim=-1)
        shell = torch.sigmoid(torch.minimum(RADIUS - r, r - RADIUS + SHELL) / EDGE)
        return SHELL_DENSITY * shell + self.amount * torch.sigmoid((CORE - r) / EDGE)


@register_model("mist")
class Mist(Balls):
    """A ball that is denser towards its center: if that is little, the level is reached behind the median depth."""

    def density(self, positions):
        r = (positions - torch.tensor(CENTER, dtype=positions.dtype)).norm(dim=-1)
        return self.amount / 20 * (RADIUS - r).clamp(min=0)


def frame() -> SceneTransform:
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    box = np.array(BOX).reshape(2, 3)
    return SceneTransform(rotation, np.array([10.0, -20, 5]), 0.25, "inward", 0.0, 9.0, box, np.array([0.0, 0, 1]))


def cameras(n: int = 14, size: tuple[int, int] = (44, 40)) -> Cameras:
    """Cameras on a sphere around the large ball, in the model's frame."""
    k = np.arange(n) + 0.5
    z, turn = 1 - 2 * k / n, k * np.pi * (1 + 5**0.5)
    eyes = CENTER + 2.5 * np.stack([np.sqrt(1 - z * z) * np.cos(turn), np.sqrt(1 - z * z) * np.sin(turn), z], axis=1)
    poses = torch.tensor(look_at(eyes, CENTER), dtype=torch.float32)
    return Cameras(poses, torch.tensor([[60.0, 62.0]]).repeat(n, 1), torch.tensor([[21.5, 20.3]]).repeat(n, 1), *size)


def config(space: str = "box", box: tuple[float, ...] = BOX, scene: str = "", downscale: float = 1.0) -> Config:
    config = Config()
    config.data.path, config.data.downscale = scene, downscale
    config.model.kind, config.data.box, config.device = "balls", box, "cpu"
    config.sampling.kind, config.sampling.far = space, 20.0
    config.sampling.step_size, config.sampling.occupancy_resolution = 0.01, 32
    return config


def write_run(
    path: Path, amount: float = DENSITY, turned: bool = True, kind: str = "balls", views: Cameras | None = None,
    **changes,
) -> Path:  # fmt: skip
    folder, views, from_run = RunFolder.for_new_run(path), views or cameras(), config(**changes)
    from_run.model.kind = kind
    splits = {
        "train": to_json(views, [f"photo_{index}" for index in range(len(views))]),
        "test": to_json(views[:2], ["held_out_0", "held_out_1"]),
    }
    folder.start(from_run, RunScene("balls", (0.0, 0.0, 1.0), splits, frame().to_json() if turned else None))
    torch.manual_seed(0)
    model = build_model(from_run)
    with torch.no_grad():
        model.amount.fill_(amount)
        model.update(0)
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    checkpoint.save(folder, tensors, {"step": 7, "seconds": 1.5, "n_rays": 1, "random": {}})
    folder.unlock()
    return path


def call(run: Path, kind: str, *arguments: object) -> None:
    assert run_main(export, str(run), kind, "--device", "cpu", *map(str, arguments)) == 0


GROUPS = {"vertices": "x y z", "normals": "nx ny nz", "colors": "red green blue"}


def read_ply(file: Path) -> dict[str, np.ndarray]:
    """Columns of a binary PLY file by name, read independently of what writes it; "vertices", "normals", "colors" and
    "faces" of those that are there."""
    content = PlyData.read(file)
    assert not content.text and content.byte_order == "<"
    table = content["vertex"].data
    result = {name: table[name] for name in table.dtype.names}
    for name, parts in GROUPS.items():
        if parts.split()[0] in result:
            result[name] = np.stack([result[part] for part in parts.split()], axis=1)
    result["vertices"] = result["vertices"].astype(np.float64)
    if "face" in content:
        result["faces"] = np.stack(content["face"].data[content["face"].properties[0].name])
    return result
