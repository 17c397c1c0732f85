#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the scene Orrery: model it, path-trace it, write it in the NeRF-synthetic format.

pip install "nerfkit[orrery]"
python scripts/make_orrery.py --out scenes/orrery                    # all views: 25 minutes on two cores
python scripts/make_orrery.py --out scenes/look --only test/0 test/5 # two of them, the same bits
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from orrery import OrreryError, model
from orrery.cameras import CAMERA_ANGLE_X, View, views
from orrery.render import load_mitsuba, load_scene, render, save_png
from tqdm import tqdm


@dataclass
class Options:
    """Render the scene Orrery. The defaults give the shipped images, bit for bit.

    Mitsuba compiles for the LLVM library, 17 or later: DRJIT_LIBLLVM_PATH says where its libLLVM*.so is.
    """

    out: Path = Path("scenes/orrery")  # scene folder to write
    size: int = 400  # width and height of an image, pixels
    spp: int = 256  # samples per pixel of the train views
    spp_eval: int = 576  # samples per pixel of the val and test views: their noise bounds the PSNR
    only: tuple[str, ...] = ()  # views to render, e.g. test/0 train/17; each looks as it does among all
    variant: Literal["llvm_ad_rgb", "scalar_rgb"] = "llvm_ad_rgb"  # scalar_rgb needs no LLVM; other noise
    overwrite: bool = False  # replace images that the folder holds already


def main(arguments: list[str]) -> None:
    options = tyro.cli(Options, args=arguments, prog="scripts/make_orrery.py", use_underscores=True)
    chosen = choose(views(), options)
    if not options.overwrite and any(options.out.glob("*/r_*.png")):
        raise OrreryError(f"{options.out} holds images already; choose another --out or add --overwrite")
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
