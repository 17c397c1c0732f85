# SPDX-License-Identifier: Apache-2.0
"""A run folder: it can be moved, and rendered without the scene; resuming and scoring read the scene's pictures.

config.toml               every option, resolved
checkpoint.safetensors    model, optimiser, occupancy and random states (see nerfkit.training.checkpoint)
scene.json                cameras of every split, up axis
metrics.jsonl             one line per logged step
metrics.json              scores on the test views, with their protocol
loss.png  eval/  render/  pictures; eval/<split>/ has pictures and metrics.json of another split
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nerfkit import config as config_module
from nerfkit.config import Config
from nerfkit.data.cameras import Cameras
from nerfkit.data.pixels import BACKGROUNDS
from nerfkit.data.readers.transforms import parse_cameras, to_json
from nerfkit.data.scene import Scene
from nerfkit.errors import RunError
from nerfkit.files import atomic_write
from nerfkit.model.renderer import Renderer
from nerfkit.training import checkpoint

CONFIG, SCENE, LOG, METRICS = "config.toml", "scene.json", "metrics.jsonl", "metrics.json"
OWN_FILES = (
    CONFIG,
    SCENE,
    LOG,
    METRICS,
    "checkpoint.safetensors",
    "checkpoint.previous.safetensors",
    "checkpoint.json",
    "loss.png",
    "nan_report.json",
)
OWN_FOLDERS = ("eval", "render")


def create(folder: Path, overwrite: bool = False) -> None:
    """Make an empty run folder; raises RunError if it holds a run already or cannot be written."""
    if ((folder / CONFIG).exists() and (folder / SCENE).exists()) or checkpoint.exists(folder):
        if not overwrite:
            raise RunError(
                f"{folder} holds a run already; go on with --resume {folder}, "
                "choose another folder with --out, or replace it with --overwrite"
            )
        _delete(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise RunError(
            f"cannot write to the run folder {folder}: {error.strerror}; choose another with --out"
        ) from None


def _delete(folder: Path) -> None:
    """Delete what a run writes, and nothing else that may be in its folder."""
    for name in OWN_FILES:
        (folder / name).unlink(missing_ok=True)
        (folder / f"{name}.tmp").unlink(missing_ok=True)  # left by a kill in the middle of writing
    for name in OWN_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def save_description(folder: Path, config: Config, scene: Scene) -> None:
    """Write the configuration, with the scene's folder as seen from anywhere, and the scene's cameras."""
    path = str(Path(config.data.path).expanduser().resolve())
    splits = {name: to_json(views.cameras, [file.stem for file in views.files]) for name, views in scene.views.items()}
    config_module.dump(replace(config, data=replace(config.data, path=path)), folder / CONFIG)
    atomic_write(folder / SCENE, json.dumps({"name": scene.name, "up": scene.up, "splits": splits}))


def read_config(folder: Path) -> Config:
    """The configuration of a run."""
    if not (folder / CONFIG).exists():
        raise RunError(f"{folder} is not a run folder: {CONFIG} is missing")
    return config_module.load([folder / CONFIG])


def check_resumable(folder: Path, config: Config) -> None:
    """Raise RunError if `config` changes what the run in `folder` was trained with."""
    changed = config_module.fixed_differences(read_config(folder), config)
    if changed:
        options = "; ".join(f"{name} is {old} in the run, but {new} was asked for" for name, old, new in changed)
        raise RunError(
            f"cannot resume {folder}: {options}. Leave out {', '.join(name for name, _, _ in changed)} to go on, "
            "or train a new run with another --out instead of --resume"
        )


def read_scene(folder: Path) -> dict[str, Any]:
    """Name, up axis and splits of the run's scene."""
    try:
        return json.loads((folder / SCENE).read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {folder / SCENE}: {error}") from None


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Logged steps; a line that a kill or a full disk cut short is passed over."""
    log = folder / LOG
    lines = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def scores_places(folder: Path, split: str) -> tuple[Path, Path]:
    """File of a split's scores and folder of its sheets; another split's are below those of the test views."""
    sheets = folder / "eval" if split == "test" else folder / "eval" / split
    return (folder if split == "test" else sheets) / METRICS, sheets


def read_cameras(folder: Path, split: str) -> Cameras:
    """Cameras of one split of the run's scene."""
    splits = read_scene(folder)["splits"]
    if split not in splits:
        raise RunError(f"the run in {folder} knows no split {split!r}; it has {', '.join(splits)}")
    return parse_cameras(splits[split], folder / SCENE)


def load_renderer(folder: Path, device: torch.device) -> tuple[Renderer, Config, dict[str, Any]]:
    """The trained renderer of a run, its configuration and its checkpoint's state."""
    config = read_config(folder)
    tensors, state = checkpoint.load(folder)
    renderer = Renderer(config)
    load_model(renderer, tensors, folder)
    return renderer.to(device).eval(), config, state


def load_model(renderer: Renderer, tensors: dict[str, Tensor], folder: Path) -> None:
    """Fill `renderer` from a checkpoint's tensors; raises RunError if they do not fit."""
    try:
        renderer.load_state_dict(checkpoint.part(tensors, "model"))
    except RuntimeError as error:
        raise RunError(f"the checkpoint in {folder} does not fit this configuration: {error}") from None


def background_color(config: Config, device: torch.device) -> torch.Tensor:
    """Background [3] for rendering and evaluation; white where training drew it at random."""
    return torch.full((3,), BACKGROUNDS.get(config.data.background, 1.0), device=device)
