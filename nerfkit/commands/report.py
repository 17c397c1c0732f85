# SPDX-License-Identifier: Apache-2.0
"""`nerfkit report`: one page about a run, RUN/report.html, that needs no other file and no network.

Whatever a run says of itself may come from others: every text is escaped, and the page may load and run nothing.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import tomli_w

from nerfkit.commands import command_line
from nerfkit.commands.options import ReportOptions
from nerfkit.commands.render import FILES, LEGEND, PATH_FILE
from nerfkit.commands.summary import outcome
from nerfkit.config.files import changes_of, read_decisions
from nerfkit.config.recipe import value_text
from nerfkit.data.images.pixels import image_header, read_image
from nerfkit.errors import RunError
from nerfkit.files import read_marker
from nerfkit.rendering.images import moving_bytes
from nerfkit.safe_io import printable, read_json
from nerfkit.training.evaluator import evenly_chosen
from nerfkit.training.run import files as run_files
from nerfkit.training.run.folder import RunFolder, run_transform

COMPARISONS, RENDERINGS, FRAMES, ROWS, FPS = 8, 2, 60, 1000, 20  # at most, rows of a table; frames a second
WIDE, SMALL = 1600, 400  # pixels of the longest side of an image, and of a moving one
SHARE = 300_000  # bytes of an image in the page, at most; of a moving one twice that: 4.2 MB with all of them
# Beginnings of names, in a rendering, of what is not its colors.
NO_COLORS = (LEGEND, *(f"{name}_" for names in FILES.values() for name in names if name != "rgb"))
HEAD = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<style>
body { font-family: sans-serif; max-width: 75rem; margin: auto; padding: 1rem }
img { display: block; max-width: 100%; margin: 0.5rem 0 }
th, td { padding-right: 1rem; text-align: left; vertical-align: top }
pre { overflow: auto; background: #8882; padding: 0.5rem }
</style>
"""


def main(options: ReportOptions) -> int:
    folder = RunFolder.existing(options.run)
    folder.write(run_files.REPORT, page_of(folder))
    print(f"report: {folder.path / run_files.REPORT}")
    return 0


def page_of(folder: RunFolder) -> str:
    run, config, transform = folder.path, run_files.read_config(folder.path), run_transform(folder.path)
    title, file = _text(run.resolve().name), run_files.scores_file(run, config.eval.split)
    rendered = [png_files(run, name) for name in sorted(folder.names) if name.startswith("render/")]
    in_color = [[frame for frame in frames if not frame.name.startswith(NO_COLORS)] for frames in rendered]
    compared = png_files(run, run_files.score_name(config.eval.split))
    chosen = [compared[i] for i in evenly_chosen(len(compared), COMPARISONS)]
    drawn = [*png_files(run, ""), *png_files(run, run_files.PREVIEWS)]
    drawn = [file for file in drawn if file.name in (run_files.LOSS_PLOT, run_files.STRIP)]
    decided = [(option, value_text(made.value), made.by, made.why) for option, made in read_decisions(run).items()]
    decided += [("transform", "", "scene", str(note)) for note in (transform.notes if transform is not None else ())]
    again = command_line("train", "SCENE", "--config", "again.toml", "--out", "runs/again")
    recipe = changes_of(run / run_files.CONFIG)  # without what this scene decided
    places = ("out", recipe), ("path", recipe["data"]), ("sfm_dir", recipe["data"]), ("lpips", recipe["eval"])
    for name, options in places:  # on this computer
        options.pop(name, None)
    codes = f"<p>Save this recipe as again.toml:</p>\n<pre>{escape(tomli_w.dumps(recipe))}</pre>\n"
    codes += f"<p>SCENE is the folder of the scene:</p>\n<pre>{escape(again)}</pre>\n"
    sections = [
        *((rendering(frames[0].parent), _image(frames)) for frames in [*filter(None, in_color)][:RENDERINGS]),
        (f"{len(chosen)} views beside their truth", "".join(_image([file]) for file in chosen)),
        ("Curves, and images on the way", "".join(_image([file]) for file in drawn)),
        *(scores(file) if file.exists() else []),
        ("What was decided, and why", _table(("option", "value", "decided by", "why"), decided)),
        ("How to repeat it", codes),
    ]
    text = "".join(f"<h2>{_text(title)}</h2>\n{content}" for title, content in sections if content)
    head = f"{HEAD}<title>{title}</title>\n<h1>{title}</h1>\n"
    return f"{head}<p>{_text(outcome(run, config.eval.split))}</p>\n{text}"


def rendering(folder: Path) -> str:
    """What a rendering is, and after which step it was made: the training may have gone on."""
    try:
        return f"Rendering: {folder.name}, at step {int(read_json(folder / PATH_FILE, RunError)['checkpoint_step'])}"
    except (RunError, KeyError, TypeError, ValueError):  # of the viewer, or changed by others
        return f"Rendering: {folder.name}"


def scores(file: Path) -> list[tuple[str, str]]:
    with run_files.metrics_in(file) as metrics:
        names = [name for name, score in metrics["views"][0].items() if isinstance(score, float)]
        worst = sorted(metrics["views"], key=lambda row: row["psnr"])
        rows = [(printable(row["view"], 100), *(f"{row[name]:.4f}" for name in names)) for row in worst]
        protocol = [(name, json.dumps(value).strip('"')) for name, value in metrics["protocol"].items()]
    return [("Each view, the worst first", _table(("view", *names), rows)), ("How it was scored", _table((), protocol))]


def png_files(run: Path, folder: str) -> list[Path]:
    """PNG files that nerfkit wrote into a folder of the run, in their order; a link may lead anywhere and is none."""
    _, names = read_marker(run / folder)
    files = [run / folder / name for name in sorted(names) if name.endswith(".png")]
    return [file for file in files if file.is_file() and file.resolve() == run.resolve() / folder / file.name]


def _image(files: Sequence[Path]) -> str:
    """An image, or several that are shown in turn, as WebP and as small as the page needs it."""
    chosen = [files[i] for i in evenly_chosen(len(files), FRAMES)]
    headers = [image_header(file) for file in chosen]
    side, most = (WIDE, SHARE) if len(files) == 1 else (SMALL, 2 * SHARE)
    scale, uri = min(1.0, side / max(headers[0].width, headers[0].height)), ""
    while not uri or len(uri) > most:
        size = (max(1, round(headers[0].height * scale)), max(1, round(headers[0].width * scale)), 3)
        pixels = [np.empty(size, np.uint8) for _ in chosen]
        for file, header, out in zip(chosen, headers, pixels, strict=True):
            read_image(file, header, out)
        content = moving_bytes("WEBP", pixels, FPS * len(chosen) / len(files))
        uri = f"data:image/webp;base64,{b64encode(content).decode()}"
        scale *= 0.7
    return f'<img alt="{_text(files[0].stem)}" src="{uri}">\n'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Nothing where there are no rows."""
    lines = ["".join(f"<td>{_text(text)}</td>" for text in row) for row in rows[:ROWS]]
    lines.insert(0, "".join(f"<th>{_text(text)}</th>" for text in head))
    more = f"<p>and {len(rows) - ROWS} more</p>\n" if len(rows) > ROWS else ""
    return "<table>\n" + "".join(f"<tr>{line}</tr>\n" for line in lines) + f"</table>\n{more}" if rows else ""


def _text(text: str) -> str:
    return escape(printable(text, 1000))
