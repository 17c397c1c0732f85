#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the scene Orrery: model it, path-trace it, write it in the NeRF-synthetic format. Or the room around it.

pip install "nerfkit[orrery]"
python scripts/make_orrery.py --out scenes/orrery                    # all views: 25 minutes on two cores
python scripts/make_orrery.py --out scenes/look --only test/0 test/5 # two of them, the same bits
python scripts/make_orrery.py --scene room --out scenes/room         # the capture data/room: 20 minutes
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from orrery import OrreryError, model, room_views
from orrery.cameras import CAMERA_ANGLE_X, View, views
from orrery.render import load_mitsuba, load_scene, render, save_png
from tqdm import tqdm


@dataclass
class Options:
    """Render the scene Orrery, or the room. The defaults give the shipped images, bit for bit.

    Mitsuba compiles for the LLVM library, 17 or later: DRJIT_LIBLLVM_PATH says where its libLLVM*.so is.
    """

    scene: Literal["orrery", "room"] = "orrery"  # the object alone, or a capture of the room that it stands in
    out: Path | None = None  # folder to write; scenes/<scene> if left out
    size: int | None = None  # width of an image, pixels; 400, of the room 240
    spp: int | None = None  # samples per pixel of the train views; 256, of the room 144
    spp_eval: int | None = None  # of the val and test views: their noise bounds the PSNR; 576, of the room 256
    only: tuple[str, ...] = ()  # views to render, e.g. test/0 train/17; each looks as it does among all
    variant: Literal["llvm_ad_rgb", "scalar_rgb"] = "llvm_ad_rgb"  # scalar_rgb needs no LLVM; other noise
    overwrite: bool = False  # replace images that the folder holds already


DEFAULTS = {
    "orrery": {"size": 400, "spp": 256, "spp_eval": 576},
    "room": {"size": room_views.WIDTH, "spp": 144, "spp_eval": 256},
}


def main(arguments: list[str]) -> None:
    options = tyro.cli(Options, args=arguments, prog="scripts/make_orrery.py", use_underscores=True)
    options = with_defaults(options)
    chosen = choose(views() if options.scene == "orrery" else room_views.views(), options)
    if not options.overwrite and any(options.out.glob("*/r_*.png" if options.scene == "orrery" else "images/*.jpg")):
        raise OrreryError(f"{options.out} holds images already; choose another --out or add --overwrite")
    (make_orrery if options.scene == "orrery" else make_room)(chosen, options)


def with_defaults(options: Options) -> Options:
    """The options with what was left out."""
    found = {"out": Path("scenes") / options.scene, **DEFAULTS[options.scene]}
    return replace(options, **{name: value for name, value in found.items() if getattr(options, name) is None})


def make_orrery(chosen: list[View], options: Options) -> None:
    mi = load_mitsuba(options.variant)
    scene = load_scene(mi, model.build())
    progress = tqdm(chosen, unit="view")
    for view in progress:
        progress.set_description(view.name)
        samples = options.spp if view.split == "train" else options.spp_eval
        file = image_file(options.out, view)
        file.parent.mkdir(parents=True, exist_ok=True)
        save_png(render(mi, scene, view.camera_to_world, options.size, samples, view.seed), file)
    write_transforms(options.out)
    print(f"{len(chosen)} views of {options.size}x{options.size} in {options.out}")


def make_room(chosen: list[View], options: Options) -> None:
    """The capture of all views; of some of them, without the sparse points, for which all have to be seen."""
    from orrery import room_capture, room_render

    mi = load_mitsuba(options.variant)
    scene = room_render.load_room(mi)
    lens, shots = room_views.lens(options.size), []
    for split, samples in (("train", options.spp), ("test", options.spp_eval)):
        of_split = [view for view in chosen if view.split == split]
        renderer = room_render.LensRenderer(mi, scene, lens, samples) if of_split else None
        for view in tqdm(of_split, unit="view", desc=split):
            shots.append(room_capture.shoot(renderer, view))
            room_capture.write_shot(options.out, shots[-1])
    room_capture.write_transforms(options.out, lens, sorted(chosen, key=lambda view: view.index))
    points = "no points, for views were left out"
    if len(chosen) == len(room_views.views()):
        points = (
            f"{room_capture.write_cloud(options.out, lens, sorted(shots, key=lambda shot: shot.view.index))} points"
        )
    print(f"{len(chosen)} views of {lens.width}x{lens.height} in {options.out}, {points}")


def choose(available: list[View], options: Options) -> list[View]:
    """The views to render; raises OrreryError if an option does not fit."""
    for name in ("size", "spp", "spp_eval"):
        if getattr(options, name) < 1:
            raise OrreryError(f"{name} must be at least 1, not {getattr(options, name)}")
    unknown = set(options.only) - {view.name for view in available}
    if unknown:
        last = {view.split: view.name for view in available}
        ranges = ", ".join(f"{split}/0 to {name}" for split, name in last.items())
        raise OrreryError(f"no view {', '.join(sorted(unknown))}; there are {ranges}")
    return [view for view in available if not options.only or view.name in options.only]


def image_file(folder: Path, view: View) -> Path:
    return folder / f"{view.file_stem}.png"


def write_transforms(folder: Path) -> None:
    """List the views whose images are there, one file per split."""
    for split in ("train", "val", "test"):
        frames = [
            {"file_path": f"./{view.file_stem}", "transform_matrix": view.camera_to_world.tolist()}
            for view in views()
            if view.split == split and image_file(folder, view).exists()
        ]
        if frames:
            content = {"camera_angle_x": CAMERA_ANGLE_X, "frames": frames}
            (folder / f"transforms_{split}.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OrreryError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped")
