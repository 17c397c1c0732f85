# SPDX-License-Identifier: Apache-2.0
"""What exports have in common: where they go, their frame, crop and scale, and what is said of them."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from nerfkit.commands import options as cli
from nerfkit.crop import CROP, Crop, active_crop, crop_of
from nerfkit.data.scene_transform.transform import SceneTransform
from nerfkit.errors import UserError
from nerfkit.export import scale, writing
from nerfkit.safe_io import printable
from nerfkit.training.run.folder import RunFolder
from nerfkit.training.run.load import Run

OUTER = 0.02  # of positions, along each axis, on each side of the crop that is named


def target_transform(run: Run, options: cli.ExportOptions) -> SceneTransform | None:
    """The frame whose inverse leads to the wanted coordinates; None where these are the model's."""
    return run.transform if options.frame == "files" else None


def opened(
    run: Run, options: cli.GeometryOptions, name: str, formats: tuple[str, ...], known: tuple[str, ...]
) -> tuple[writing.Output, Crop | None, scale.Scale | None]:
    """Where an export of geometry goes, and the crop and scale of the options, or else the run's."""
    is_model = options.frame == "model"
    if is_model and (options.scale or options.measure):
        raise UserError("--scale and --measure need --frame files; leave out --frame model")
    output = writing.Output(run.folder, options.out, name, formats, known)
    output.check(options.overwrite)
    unit = None if is_model else scale.scale_of(run, options.scale, options.measure)
    cut = active_crop(run.folder, run.transform) if options.crop is None else None
    if cut is not None:
        print(f"cropped as {printable(run.folder / CROP)} says; --crop none leaves that out")
    elif options.crop not in (None, "none"):
        cut = crop_of(options.crop[:3], options.crop[3:], options.frame, "--crop").placed(run.transform)
    if is_middle(run, cut) and name != "web":
        print("exporting the middle of the place; --crop chooses another part")
    if unit is not None:
        why = "" if options.scale or options.measure else f", as {scale.SCALE} of the run says"
        print(f"in meters: a unit of the scene's files is {unit.meters_per_unit:g} m{why}")
    elif not is_model and name != "web":
        print("note: lengths are in the unit of the scene's files; for meters give --scale or --measure")
    return output, cut, unit


def is_middle(run: Run, cut: Crop | None) -> bool:
    """Whether the export is of a place and no part of it was chosen: its middle, then."""
    return cut is None and run.config.sampling.kind == "contracted"


def note_rest(run: Run, options: cli.GeometryOptions, shown: np.ndarray) -> None:
    """Say how much of the positions [P, 3] the middle of a place holds, and which crop would hold most of them."""

    def inside(box: np.ndarray) -> float:
        return ((shown >= box[0]) & (shown <= box[1])).all(axis=1).mean()

    if not len(shown):
        return
    in_middle, transform = inside(np.array(run.config.data.box).reshape(2, 3)), target_transform(run, options)
    shown = shown if transform is None else transform.to_input(shown)
    larger = np.quantile(shown, (OUTER, 1 - OUTER), axis=0)
    larger = larger.round(2 - math.floor(math.log10(np.ptp(larger, axis=0).max() or 1.0)))
    more = f"; --crop {' '.join(f'{x:.12g}' for x in larger.flatten())} has {inside(larger):.0%}"
    print(f"note: the middle holds {in_middle:.0%} of what the photos show{more * bool(inside(larger) > in_middle)}")


def about(
    run: Run, options: cli.ExportOptions, cut: Crop | None, unit: scale.Scale | None = None, **more: Any
) -> dict[str, Any]:
    """What the JSON beside an output says; `cut` and `unit` are what it was made with, whatever the run has now."""
    matrix = np.eye(4) if run.transform is None else run.transform.matrix()
    given = dataclasses.asdict(options) | {"run": str(options.run)}
    return {
        "frame": options.frame,
        "files_to_model": matrix.tolist(),
        "crop": None if cut is None else json.loads(cut.to_json()),
        "scale": None if unit is None else to_builtins(unit),
        "checkpoint_step": run.state["step"],
        "options": {name: value for name, value in given.items() if name != "ops"},
        **more,
    }


def key(run: Run, **more: Any) -> dict[str, Any]:
    """What an unfinished export is of: it goes on only with the same."""
    return {"step": run.state["step"], "seconds": run.state["seconds"], "scene": run.scene.name, **more}


def report(files: list[Path], counts: dict[str, int]) -> None:
    texts = {name: f"{number or 'no'} {name.replace('_', ' ')}" for name, number in counts.items()}
    texts |= {"bytes": f"{counts['bytes'] / 1e6:.2f} MB"} if "bytes" in counts else {}
    cleaned = [texts.pop(name) for name in ("faces_in_holes", "small_parts", "unseen_faces") if name in texts]
    cleaning = "; cleaning added {} and left out {}, {}".format(*cleaned) if cleaned else ""
    print(", ".join(texts.values()) + cleaning)
    for file in files:
        print(f"  {file}")


def keep(run: Run, options: cli.GeometryOptions, unit: scale.Scale | None) -> None:
    """Keep the scale of the options, once what was made with it is written; a run that cannot be written loses that."""
    if unit is None or not (options.scale or options.measure):
        return
    try:
        scale.keep(RunFolder.existing(run.folder), unit)
        print(f"{scale.SCALE} of the run keeps the scale for later exports")
    except (UserError, OSError) as error:
        print(f"note: the scale could not be saved in the run ({error}); give it again to later exports")
