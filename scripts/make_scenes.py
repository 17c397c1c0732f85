#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make scenes to measure on, and scenes at random to learn from, in the NeRF-synthetic format, on a CPU.

python scripts/make_scenes.py --kind wires                       # also metal and leaves; into runs/scenes/wires
python scripts/make_scenes.py --kind random --seed 0 --count 30  # runs/scenes/random/00 to 29
python scripts/make_scenes.py --kind leaves --size 100 --views 8 2 --out /tmp/look
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import tyro
from orrery import arrangements, leaves, metal, shading, wires
from orrery.cameras import CAMERA_ANGLE_X, View, cameras
from orrery.casting import Pinhole
from orrery.render import to_image
from tqdm import tqdm

from nerfkit.errors import ConfigError, RunError, UserError
from nerfkit.files import OwnFolder

FAMILIES = {"wires": wires, "metal": metal, "leaves": leaves, "random": arrangements}
MADE = "made.json"  # in a scene's folder: the options that made its pictures
MOST_SAMPLES = 1024
MOST_PIXELS = 2048  # along an edge
CAMERA_SEED = 7  # of the scene of seed 0


@dataclass(frozen=True)
class Options:
    """Render a scene of thin wires, of metal or of leaves, or scenes at random.

    A scene is the same for the same options. A folder that is begun is gone on with; one that holds anything else is
    left as it is.
    """

    kind: Literal["wires", "metal", "leaves", "random"]  # what to render
    out: Path | None = None  # folder to write, of random scenes one of numbered ones; runs/scenes/<kind> if left out
    seed: int = 0  # of the arrangement; of random scenes, that of the first
    count: int = 1  # random scenes, of successive seeds
    size: int | None = None  # width and height of a picture, pixels; 400, of random scenes 100
    views: tuple[int, int] | None = None  # to train on and to test on; 60 10, of random scenes 16 4
    samples: int = 16  # per pixel: steps of alpha


def main(arguments: list[str]) -> None:
    options = checked(tyro.cli(Options, args=arguments, prog="scripts/make_scenes.py", use_underscores=True))
    for seed in range(options.seed, options.seed + options.count):
        folder = options.out / f"{seed:02d}" if options.kind == "random" else options.out
        make_scene(replace(options, out=folder, seed=seed, count=1))


def checked(options: Options) -> Options:
    """The options with what was left out; raises ConfigError if one does not fit."""
    is_random = options.kind == "random"
    options = replace(
        options,
        out=options.out or Path("runs") / "scenes" / options.kind,
        size=(100 if is_random else 400) if options.size is None else options.size,
        views=((16, 4) if is_random else (60, 10)) if options.views is None else options.views,
    )
    limits = {"seed": (0, 2**31), "count": (1, 10_000), "size": (8, MOST_PIXELS), "samples": (1, MOST_SAMPLES)}
    for name, (least, most) in limits.items():
        if not least <= getattr(options, name) <= most:
            raise ConfigError(f"{name} must be from {least} to {most}, not {getattr(options, name)}")
    if min(options.views) < 1:
        raise ConfigError(f"views must be at least 1 to train on and 1 to test on, not {options.views}")
    if options.count > 1 and not is_random:
        raise ConfigError(
            f"count is of random scenes; of {options.kind} there is one for each seed, not {options.count}"
        )
    return options


def make_scene(options: Options) -> None:
    """Render the views that the folder lacks, then list them; raises RunError if it holds what was made otherwise."""
    folder = own_folder(options)
    chosen = views_of(options)
    missing = [view for view in chosen if not folder.owns(image_name(view))]
    if missing:
        lit = shading.light_up(FAMILIES[options.kind].build(options.seed), options.size)
    for view in tqdm(missing, unit="view", desc=f"{options.kind} {options.seed}"):
        rgba = shading.picture(lit, camera(view, options.size), options.samples)
        png = io.BytesIO()
        to_image(rgba).save(png, format="PNG", optimize=True)
        folder.write(image_name(view), png.getvalue())
    for split in ("train", "test"):
        folder.write(f"transforms_{split}.json", transforms([view for view in chosen if view.split == split]))
    print(f"{len(chosen)} views of {options.size}x{options.size} in {options.out}, {len(missing)} of them new")


def own_folder(options: Options) -> OwnFolder:
    """The scene's folder, new or begun with the same options; raises RunError otherwise."""
    folder = OwnFolder(options.out, "scene")
    made_with = {name: value for name, value in asdict(options).items() if name not in ("out", "count")}
    made_with = json.loads(json.dumps({**made_with, "generator": digest(options.kind)}))
    folder.claim()
    folder.lock()
    folder.remove_leftovers()
    if folder.owns(MADE):
        try:
            found = dict(json.loads((options.out / MADE).read_text()))
        except (TypeError, ValueError):
            raise RunError(f"{options.out / MADE} lists no options; choose another --out, or delete it") from None
        other = [name for name in made_with if found.get(name) != made_with[name]]
        if other:
            named = ", ".join(f"{name} {found.get(name)} instead of {made_with[name]}" for name in other)
            raise RunError(f"{options.out} was made with {named}; choose another --out, or delete it")
    else:
        folder.write(MADE, json.dumps(made_with, indent=1))
    for split in ("train", "test"):
        (options.out / split).mkdir(exist_ok=True)
    return folder


def digest(kind: str) -> str:
    """Of the code that makes a kind: pictures of two generators do not belong into one scene."""
    parts = Path(shading.__file__).parent
    of_kind = Path(FAMILIES[kind].__file__).name
    shared = ("shapes.py", "casting.py", "lighting.py", "shading.py", "parts.py", "cameras.py", "render.py", "wires.py")
    files = sorted({*shared, of_kind})
    return hashlib.sha256(b"".join((parts / name).read_bytes() for name in files)).hexdigest()[:16]


def views_of(options: Options) -> list[View]:
    """Where the pictures are taken from: those to train on an even cover, those to test on a loop."""
    n_train, n_test = options.views
    poses = cameras(n_train, 0, n_test, CAMERA_SEED + options.seed)
    return [View(split, k, 0, pose) for split in ("train", "test") for k, pose in enumerate(poses[split])]


def camera(view: View, size: int) -> Pinhole:
    pose = torch.tensor(view.camera_to_world, dtype=torch.float32)
    return Pinhole(pose, size / 2 / math.tan(CAMERA_ANGLE_X / 2), size, size)


def image_name(view: View) -> str:
    return f"{view.file_stem}.png"


def transforms(views: list[View]) -> str:
    """The file that lists the views of a split, as JSON."""
    frames = [{"file_path": f"./{v.file_stem}", "transform_matrix": v.camera_to_world.tolist()} for v in views]
    return json.dumps({"camera_angle_x": CAMERA_ANGLE_X, "frames": frames}, indent=1)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on")
