# SPDX-License-Identifier: Apache-2.0
"""`nerfkit report`: one page about a run, RUN/report.html, that needs no other file and no network.

Whatever a run says of itself may come from others: every text is escaped, and the page may load and run nothing.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from nerfkit.commands import as_typed
from nerfkit.commands.options import ReportOptions
from nerfkit.commands.render import FILES
from nerfkit.commands.summary import of_scores, without_scores
from nerfkit.config.files import read_decisions
from nerfkit.config.recipe import value_text
from nerfkit.data.images.pixels import image_header, read_image
from nerfkit.errors import RunError
from nerfkit.files import OwnFolder
from nerfkit.reading import read_json, read_text_utf8, shown
from nerfkit.training.evaluator import evenly_chosen
from nerfkit.training.run import files as run_files
from nerfkit.training.run.folder import RunFolder, run_frame

COMPARISONS, RENDERINGS, FRAMES, ROWS = 8, 2, 60, 1000  # of a table, at most
WIDE, SMALL = 1600, 400  # pixels of the longest side of a picture, and of a moving one
SHARE = 300_000  # bytes of a picture in the page, at most; of a moving one twice that: 4.2 MB with all of them
FRAME = 50  # milliseconds
NO_COLORS = ("legend_", *(f"{name}_" for names in FILES.values() for name in names))  # of files of a rendering
HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
img { max-width: 100%; margin: 0.3rem 0 }
table { border-collapse: collapse }
th, td { border-bottom: 1px solid #8886; padding: 0.1rem 1rem 0.1rem 0; text-align: left; vertical-align: top }
pre { overflow: auto; background: #8882; padding: 0.7rem }
</style>
"""


def main(options: ReportOptions) -> int:
    folder = RunFolder.existing(options.run)
    page = page_of(folder)
    folder.write(run_files.REPORT, page)
    print(f"report: {folder.path / run_files.REPORT} ({len(page.encode()) / 1e6:.1f} MB)")
    return 0


def page_of(folder: RunFolder) -> str:
    """The page as HTML."""
    run, config = folder.path, run_files.read_config(folder.path)
    split = config.eval.split
    file, name = run_files.scores_file(run, split), run_files.score_name(split)
    title, frame = _text(run.resolve().name), run_frame(run)
    parts = [HEAD, f"<title>{title}</title>\n<h1>{title}</h1>\n"]
    parts.append(f"<p>{_text(of_scores(file) if file.exists() else without_scores(run))}</p>\n")
    rendered = [pictures(run / name, "rendering") for name in sorted(folder.names) if name.startswith("render/")]
    in_color = [[file for file in files if not file.name.startswith(NO_COLORS)] for files in rendered]
    for frames in list(filter(None, in_color))[:RENDERINGS]:
        parts.append(_images(f"Rendering: {frames[0].parent.name}", [frames], SMALL, 2 * SHARE))
    compared = pictures(run / name, "scores")
    chosen = [[compared[i]] for i in evenly_chosen(len(compared), COMPARISONS)]
    parts.append(_images(f"Views beside their truth ({len(chosen)} of {len(compared)} that are saved)", chosen))
    parts.append(_images("Curves", [[run / run_files.LOSS_PLOT] * folder.owns(run_files.LOSS_PLOT)]))
    strips = [file for file in pictures(run / run_files.PREVIEWS, run_files.PREVIEWS) if file.name == run_files.STRIP]
    parts.append(_images("On the way", [strips]))
    parts += scores(file) if file.exists() else []
    decided = [(option, value_text(made.value), made.by, made.why) for option, made in read_decisions(run).items()]
    decided += [("frame", "", "scene", str(note)) for note in (frame.notes if frame is not None else ())]
    parts.append(_table("What was decided, and why", ("option", "value", "decided by", "why"), decided))
    again = as_typed("train", config.data.path or "SCENE", "--config", "config.toml", "--out", "runs/again")
    parts.append(f"<h2>How to repeat it</h2>\n<p>With the options below as config.toml:</p>\n{_code(again)}")
    parts.append(_code(read_text_utf8(run / run_files.CONFIG, RunError)))
    return "".join(parts)


def scores(file: Path) -> list[str]:
    """Tables of each view's scores, the worst first, and of how they were taken."""
    metrics = read_json(file, RunError, "the scores")
    try:
        names = [name for name, score in metrics["views"][0].items() if isinstance(score, float)]
        worst = sorted(metrics["views"], key=lambda row: row["psnr"])
        rows = [(shown(row["view"], 100), *(f"{row[name]:.4f}" for name in names)) for row in worst]
        protocol = [(name, json.dumps(value).strip('"')) for name, value in metrics["protocol"].items()]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RunError(f"{file} is not what nerfkit writes ({error}); score the run again") from None
    return [
        _table("Each view, the worst first", ("view", *names), rows),
        _table("How it was scored", ("what", "how"), protocol),
    ]


def pictures(folder: Path, kind: str) -> list[Path]:
    """PNG files in a folder of nerfkit's, and its own alone, in their order."""
    own = OwnFolder(folder, kind)
    own.read()
    return [folder / name for name in sorted(own.names) if name.endswith(".png") and own.owns(name)]


def _images(title: str, images: Sequence[Sequence[Path]], side: int = WIDE, most: int = SHARE) -> str:
    """A section of pictures, each of a file or of several that are shown in turn; nothing where there is none."""
    uris = [(_text(files[0].stem), _data_uri(files, side, most)) for files in images if files]
    lines = "".join(f'<p><img alt="{name}" src="{uri}"></p>\n' for name, uri in uris)
    return f"<h2>{_text(title)}</h2>\n{lines}" if lines else ""


def _data_uri(files: Sequence[Path], side: int, most: int) -> str:
    """WebP of at most `most` bytes in the page, as small as that takes."""
    chosen = [files[i] for i in evenly_chosen(len(files), FRAMES)]
    headers = [image_header(file) for file in chosen]
    width, height = headers[0].width, headers[0].height
    scale = min(1.0, side / max(width, height))
    while True:
        frames = []
        for file, header in zip(chosen, headers, strict=True):
            pixels = np.empty((max(1, round(height * scale)), max(1, round(width * scale)), 3), np.uint8)
            read_image(file, header, pixels)
            frames.append(Image.fromarray(pixels))
        content = BytesIO()
        options = {"save_all": True, "append_images": frames[1:], "duration": FRAME * len(files) // len(frames)}
        frames[0].save(content, "WEBP", quality=80, loop=0, **options)
        uri = f"data:image/webp;base64,{b64encode(content.getvalue()).decode()}"
        if len(uri) <= most:
            return uri
        scale *= 0.7


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A section of a table; nothing where it has no rows."""

    def line(cell: str, texts: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{cell}>{_text(text)}</{cell}>' for text in texts)}</tr>\n"

    more = f"<p>and {len(rows) - ROWS} more</p>\n" if len(rows) > ROWS else ""
    lines = "".join(line("td", row) for row in rows[:ROWS])
    return f"<h2>{_text(title)}</h2>\n<table>\n{line('th', head)}{lines}</table>\n{more}" if rows else ""


def _code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>\n"


def _text(text: str) -> str:
    return escape(shown(text, 1000))
