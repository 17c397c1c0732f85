# SPDX-License-Identifier: Apache-2.0
"""A field as one HTML page that evaluates it itself: table in 8 bits, occupancy as distances, networks, a shader.

The page is put together from the files in web/; what it reads is one deflated block, base64, and a JSON with what the
block holds. A weight becomes a literal of the shader: from textures or uniforms it takes 3 to 30 times as long in a
browser that draws on the CPU.
"""

from __future__ import annotations

import base64
import copy
import html
import json
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.model.base import Model
from nerfkit.model.renderer import Renderer
from nerfkit.model.sampling import BoxSampler, ContractedSampler
from nerfkit.model.stages import Decoder, FeatureGrid, RayAggregator, RayEncoder
from nerfkit.ops import spherical_harmonics
from nerfkit.ops.grid_encode import level_entries
from nerfkit.rendering.paths import look_at
from nerfkit.version import __version__

WEB = Path(__file__).parent / "web"
SCRIPTS = ("bytes.js", "networks.js", "picture.js", "camera.js", "page.js")  # later ones use earlier ones
LARGEST = 127  # of an entry in 8 bits: the table's own range, on each level and channel
MOST_HIDDEN = 32  # units: shaders with more take seconds to compile, and a second a frame where the CPU draws
MOST_CHANNELS = 32
MOST_CELLS, MOST_ROWS = 256, 2**22  # of a 3D texture a side, of a table 2048 wide: what every browser has
MOST_SKIPPED = 15  # cells at once
LOOKED_ALONG, AT_A_TIME = 2**17, 2**13  # rays, to find the units that are never above 0


def why_not(model: Model) -> str | None:
    """Why no page can show a model as it is; None if one can."""
    if not isinstance(model, Renderer):
        return f"it is a {type(model).__name__}, not the model field"
    stages = (model.grid, FeatureGrid), (model.encoder, RayEncoder), (model.aggregator, RayAggregator)
    stages += (model.decoder, Decoder), (model.sampler, BoxSampler | ContractedSampler)
    own = [type(part).__name__ for part, known in stages if part is not None and not isinstance(part, known)]
    if own:
        return f"{own[0]} is a stage of your own"
    config, features = model.config, model.grid.table.shape[1]
    if config.model.mlp_width > MOST_HIDDEN:
        return f"model.mlp_width is {config.model.mlp_width}, a page takes at most {MOST_HIDDEN}"
    if features not in (1, 2, 4) or model.grid.n_features > MOST_CHANNELS:
        most = f"at most {MOST_CHANNELS}, 1, 2 or 4 a level"
        return f"it has {model.grid.n_features} features, {features} a level; a page takes {most}"
    if len(model.grid.table) > MOST_ROWS:
        return f"its table has {len(model.grid.table)} rows, a page takes at most {MOST_ROWS}"
    if (cells := config.sampling.occupancy_resolution) > MOST_CELLS:
        return f"sampling.occupancy_resolution is {cells}, a page takes at most {MOST_CELLS}"
    return None


def in_8_bits(grid: FeatureGrid) -> tuple[Tensor, Tensor]:
    """The table [T, F] as int8, and what one step is worth on each level and channel [L, F]."""
    rows = [level_entries(n, grid.max_entries) for n in grid.resolutions]
    levels = grid.table.detach().cpu().split(rows)
    steps = torch.stack([level.abs().amax(0).clamp(min=1e-30) / LARGEST for level in levels])  # [L, F]
    table = torch.cat([(level / step).round() for level, step in zip(levels, steps, strict=True)])
    return table.to(torch.int8), steps


def as_shown(model: Renderer) -> Renderer:
    """A copy of the model with the table that a page has."""
    shown, (table, steps) = copy.deepcopy(model), in_8_bits(model.grid)
    rows = torch.tensor([level_entries(n, model.grid.max_entries) for n in model.grid.resolutions])
    shown.grid.table.data = (table * steps.repeat_interleave(rows, dim=0)).to(model.grid.table)
    return shown


def distances(occupancy: Tensor) -> Tensor:
    """How many cells away the next occupied one is, along the axis that is farthest, [X, Y, Z] uint8."""
    reached = occupancy.float()[None, None]  # [1, 1, X, Y, Z]
    far = torch.full_like(reached, MOST_SKIPPED)
    for distance in range(MOST_SKIPPED):
        far = torch.where((reached > 0) & (far == MOST_SKIPPED), distance, far)
        for window in ((3, 1, 1), (1, 3, 1), (1, 1, 3)):
            reached = F.max_pool3d(reached, window, stride=1, padding=tuple(side // 2 for side in window))
    return far[0, 0].to(torch.uint8)


def awake(model: Renderer, cameras: Cameras) -> list[Tensor]:
    """Which units of each hidden layer are above 0 anywhere along rays of cameras [H] bool, and the first of each."""
    generator, found = torch.Generator().manual_seed(0), []
    view = torch.randint(len(cameras), (LOOKED_ALONG,), generator=generator)
    pixel = (torch.rand(LOOKED_ALONG, 2, generator=generator) * torch.tensor(cameras.sizes())[view]).long()
    cameras = cameras.to(model.grid.table.device)
    for part in torch.cat([view[:, None], pixel], dim=1).to(model.grid.table.device).split(AT_A_TIME):
        rays = cameras.rays(*part.unbind(1))
        samples = model.sampler(rays, model.density)
        features = model.grid(samples.positions)
        inputs = [model.decoder.log_density(features)[1]]
        inputs.append(spherical_harmonics(rays.directions, samples.ray_index, features.dtype))
        encoded = model.encoder(features, samples.ray_offsets) if model.encoder else features
        inputs += [encoded] if model.encoder else []
        inputs += [model.aggregator(encoded, samples.ray_offsets)] if model.aggregator else []
        hidden = [F.linear(features, *model.decoder.density_net.layers()[0]).relu()]
        x = torch.cat(inputs, dim=1)
        for layer in model.decoder.color_net.layers()[:-1]:
            x = F.linear(x, *layer).relu()
            hidden.append(x)
        found.append(torch.stack([(x > 0).any(0) for x in hidden]))
    units = torch.stack(found).any(0).cpu()  # [layers, H]
    units[:, 0] = True
    return list(units)


def networks(model: Renderer, units: list[Tensor]) -> dict[str, Tensor]:
    """The model's layers for the shader, [rows, columns + 1] each, in the last column the bias.

    The table's steps are in the layers that read it, and what the density network ends with in those that read that.
    Of hidden layers it has the `units` [H] bool.
    """
    grid, decoder = model.grid, model.decoder
    steps = in_8_bits(grid)[1].flatten()  # [C]
    of_density, *of_color = units
    (first, first_bias), (second, second_bias) = _kept(decoder.density_net.layers(), [of_density])
    (mixed, mixed_bias), *others = _kept(decoder.color_net.layers(), of_color)
    of_geometry, of_direction, *of_context = mixed.split(decoder.color_inputs, dim=1)
    taps, tap_bias = torch.eye(3)[1].repeat(len(steps), 1), torch.zeros(len(steps), 1)
    if model.encoder is not None:
        weight = model.encoder.weight + model.encoder.identity_tap.to(model.encoder.weight)
        taps, tap_bias = weight.cpu(), model.encoder.bias[:, None].cpu()
    found = {
        "density": _layer(first * steps, first_bias),
        "log_density": _layer(second[:1], second_bias[:1] + decoder.density_bias),
        "convolution": torch.cat([taps * steps[:, None], tap_bias], dim=1),  # [C, 4]
        "direction": _layer(of_direction, mixed_bias + of_geometry @ second_bias),
        "mixed": torch.cat([of_geometry @ second, *of_context], dim=1),
    }
    found |= {f"color_{number}": _layer(*layer) for number, layer in enumerate(others)}
    if model.aggregator is not None:
        found["gates"] = _layer(model.aggregator.weight.cpu(), model.aggregator.bias.cpu())
    return {name: values.detach().float() for name, values in found.items()}


def _kept(layers: list[tuple[Tensor, Tensor]], units: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Layers with these units alone between them."""
    columns, rows = [slice(None), *units], [*units, slice(None)]
    return [(w.cpu()[r][:, c], b.cpu()[r]) for (w, b), c, r in zip(layers, columns, rows, strict=True)]


def _layer(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight, bias[:, None]], dim=1)


def start_view(cameras: Cameras, up: Sequence[float], box: Sequence[float]) -> dict[str, Any]:
    """The first camera, upright, and the point on its axis that is nearest to the middle of the box."""
    middle, up = torch.tensor(box).view(2, 3).mean(0), torch.tensor(up)
    eye, ahead = cameras.positions[0].cpu(), -cameras.camera_to_world[0, :, 2].cpu()
    way = ((middle - eye) @ ahead).clamp(min=0.05 * (torch.tensor(box[3:]) - torch.tensor(box[:3])).norm())
    target = eye + way * ahead
    axes = look_at(eye[None], target, up)[0, :, :3].T
    fov = 2 * math.atan(cameras.size(0)[1] / 2 / cameras.focal[0, 1].item())
    return {"eye": eye.tolist(), "axes": axes.tolist(), "fov": fov, "target": target.tolist()}


@torch.no_grad()
def page(model: Renderer, cameras: Cameras, about: dict[str, Any]) -> bytes:
    """The page that shows a model as well as `cameras` see it, with what there is to say of its scene: name, up,
    background, view, crop, meters."""
    config, sampler, grid = model.config, model.sampler, model.grid
    layers, first, levels = networks(model, awake(as_shown(model), cameras)), 0, []
    for cells in grid.resolutions:
        levels.append({"cells": cells, "first": first, "hashed": (cells + 1) ** 3 > grid.max_entries})
        first += level_entries(cells, grid.max_entries)
    arrays = {name: values.numpy().astype("<f4") for name, values in layers.items()}
    if isinstance(sampler, ContractedSampler):
        arrays["edges"] = sampler.t_edges.cpu().numpy().astype("<f4")
    arrays |= {"table": in_8_bits(grid)[0].numpy(), "distances": distances(sampler.occupancy.cpu()).numpy()}
    scene = {
        **about,
        "kind": config.sampling.kind,
        "box": sampler.box.tolist(),
        **{name: getattr(config.sampling, name) for name in ("step_size", "near", "far", "cone_angle")},
        "threshold": sampler.threshold.item(),
        "least_transmittance": sampler.early_stop_transmittance,
        "levels": levels,
        "max_entries": grid.max_entries,
        "encoded": model.encoder is not None,  # whether colors see what the convolution gives
        "arrays": {name: [values.dtype.str[1:], list(values.shape)] for name, values in arrays.items()},
    }
    block = base64.b64encode(zlib.compress(b"".join(values.tobytes() for values in arrays.values()), 9)).decode()
    parts = {
        "TITLE": html.escape(str(about["name"])),
        "MADE_BY": f"nerfkit {__version__}",
        "SCENE": json.dumps(scene).replace("<", "\\u003c"),
        "BLOCK": block,
        "SHADER": (WEB / "field.glsl").read_text(encoding="utf-8"),
        "SCRIPT": "\n".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    text = (WEB / "page.html").read_text(encoding="utf-8")
    return re.sub(r"%([A-Z_]+)%", lambda found: parts[found[1]], text).encode()
