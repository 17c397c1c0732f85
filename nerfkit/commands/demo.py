# SPDX-License-Identifier: Apache-2.0
"""`nerfkit demo`: the small scene that the package carries, trained, scored and rendered, for a first look."""

from importlib.util import find_spec
from itertools import count
from pathlib import Path

from nerfkit.commands import command_line, render, summary, train
from nerfkit.commands.options import DemoOptions, SummaryOptions, parse
from nerfkit.config.files import shipped
from nerfkit.errors import UserError
from nerfkit.viewer.page import INSTALL

SIZE = 200  # pixels a side of the turntable's frames, twice the scene's


def main(options: DemoOptions) -> int:
    names = ("runs/demo" if number == 1 else f"runs/demo_{number}" for number in count(1))
    if options.out and Path(options.out).exists():
        raise UserError(f"--out {options.out} exists already; choose another folder")
    out = options.out or next(name for name in names if not Path(name).exists())
    device, steps = ["--device", options.device], ["--trainer.steps", str(options.steps or 0)]
    scene = [str(shipped("data/demo")), "--config", "demo", *device, *steps[: 2 * bool(options.steps)]]
    if status := train.main(parse("train", [*scene, "--out", out]), is_last=False):
        return status
    orbit = ["--cameras", "orbit", "--frames", str(options.frames), "--size", str(SIZE), str(SIZE)]
    render.main(parse("render", [out, *orbit, *device]))
    print()
    summary.main(SummaryOptions(Path(out)))
    install = "" if find_spec("viser") else f"   (first: {INSTALL})"
    print(f"\nto look around in a browser:  {command_line('view', out)}{install}")
    print(f"to send it to a friend:       {command_line('export', out, 'web')}")
    print(f"with photos of your own:      {command_line('inspect', 'FOLDER')}")
    return 0
