# SPDX-License-Identifier: Apache-2.0
"""What pages promise: code runs, links lead somewhere, commands exist, tables are those of the measurements."""

import dataclasses
import json
import re
import shlex
import statistics
import sys
import typing
from pathlib import Path

import pytest

from nerfkit import config
from nerfkit.commands import COMMANDS, eval, export, render, view
from nerfkit.commands.options import TrainOptions
from nerfkit.errors import UserError
from scripts import (
    bench_ops,
    bench_train,
    bench_viewer,
    benchmark_tables,
    soak_viewer,
    sweep,
    train_tables,
    training_pages,
)
from scripts.bench_ops import summary
from tests.naming import raises_naming



PAGES = sorted([*Path("docs").rglob("*.md"), Path("README.md"), Path("CONTRIBUTING.md"), *Path("cuda").rglob("*.md")])
by_page = pytest.mark.parametrize("page", PAGES, ids=str)
CODE = re.compile(r"^```(\w*)\n(.*?)^```|(?<!`)`([^`\n]+)`(?!`)|^    (\S.*)$", re.S | re.M)


def test_the_modules_page_runs():
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", Path("docs/nn.md").read_text(), re.S):
        exec(code, names)
    assert names["features"].shape == (1000, 16)


def anchors(page: Path) -> set[str]:
    """What a link may name after '#', as GitHub makes it from the headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)", without_blocks(page.read_text()), re.M):
        kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(kept.replace(" ", "-"))
    return found


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


@by_page
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page.read_text())):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(file), f"{page}: {target}"


@by_page
def test_files_that_are_named_exist(page: Path):
    for name in re.findall(r"(?:configs|docs|scripts|tests|nerfkit|cuda)/[\w./]+\.\w+", page.read_text()):
        placeholder = re.search(r"/(test_)?(X|three_x)\b", name)  # of an op that the reader adds
        assert placeholder or Path(name).exists() or name.endswith(".so"), f"{page}: {name}"


def options_of(kind: type, prefix: str = "") -> set[str]:
    """Every option of a command, with groups as in --trainer.steps."""
    hints = typing.get_type_hints(kind)
    names = set()
    for field in dataclasses.fields(kind):
        group = hints[field.name]
        names |= options_of(group, f"{field.name}.") if dataclasses.is_dataclass(group) else {prefix + field.name}
    return names


OPTIONS = {
    "train": options_of(TrainOptions) | {"viewer"},  # alone it is viewer.on
    "view": options_of(view.ViewOptions),
    "render": options_of(render.RenderOptions),
    "eval": options_of(eval.EvalOptions),
    "export": {"from"}.union(*(options_of(kind) for kind in export.KINDS.values())),
    "bench_ops": options_of(bench_ops.Options),
    "bench_train": options_of(bench_train.BenchOptions),
    "bench_viewer": options_of(bench_viewer.BenchOptions),
    "soak_viewer": options_of(soak_viewer.SoakOptions),
    "lltm_forms": options_of(bench_train.BenchOptions),
    "sweep": options_of(sweep.SweepOptions),
}


@by_page
def test_commands_exist_with_their_options(page: Path):
    for match in CODE.finditer(page.read_text()):
        for line in (match[2] or match[3] or match[4]).replace("\\\n", " ").splitlines():
            check_command(line.strip(), f"{page}: {line}")


def check_command(line: str, where: str) -> None:
    named = re.match(r"(?:\w+=\S+ )*(?:python (?:-m )?)?(?:scripts/(\w+)\.py|nerfkit) ?(.*)", line)
    if not named and not line.startswith("--"):
        return
    words = shlex.split(line, comments=True)
    if named:
        script = named[1]
        rest = shlex.split(named[2], comments=True)
        if script is None and rest and re.fullmatch("[a-z-]+", rest[0]):
            assert rest[0] in COMMANDS, where
            script = rest[0]
        assert script is None or script in COMMANDS or Path(f"scripts/{script}.py").exists(), where
        known = OPTIONS.get(script)
    else:
        known = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            assert name == "help" or name in (set().union(*OPTIONS.values()) if known is None else known), where
            if name == "config" and following and not following.endswith(".toml"):
                config.load([following])


def test_regenerated_pages_are_those_that_are_committed():
    for name, content in benchmark_tables.pages().items():
        assert Path(name).read_text() == content, f"{name}: run scripts/benchmark_tables.py"


def test_every_table_of_the_pages_is_generated():
    for name in benchmark_tables.WITH_TABLES:
        lines = Path(name).read_text().splitlines()
        heads = [i for i, line in enumerate(lines) if line.startswith("|") and not lines[i - 1].startswith("|")]
        assert heads and all(lines[i - 2].startswith("<!-- table: ") for i in heads), name
        ends = [i for i, line in enumerate(lines[:-1]) if line.startswith("|") and not lines[i + 1].startswith("|")]
        assert not any(lines[i + 1] for i in ends), f"{name}: what follows a table at once becomes a row of it"


def test_a_page_is_generated_from_what_was_measured():
    page = "text 36.0\n\n<!-- table: modes -->\n\n| old |\n|---|\n| 1.00 |\n\nmore\n"
    filled = benchmark_tables.filled(page)
    assert filled == page.replace("| old |\n|---|\n| 1.00 |", training_pages.modes())
    assert benchmark_tables.filled(filled) == filled


def test_notes_have_the_times_of_their_own_op():
    for file in Path("cuda").glob("*/NOTES.md"):
        for op in re.findall(r"<!-- times: (\w+) -->", file.read_text()):
            assert op == file.parent.name and len(benchmark_tables.times(op).splitlines()) > 2, file


def test_generated_pages_say_so_first():
    for name, page in benchmark_tables.WHOLE.items():
        first = page().splitlines()[0]
        assert "scripts/benchmark_tables.py" in first, name


def test_ops_have_their_present_names():
    pages = [Path(name).read_text() for name in (*benchmark_tables.WHOLE, *benchmark_tables.WITH_TABLES)]
    for old, new in benchmark_tables.NAMES.items():
        assert not any(f"`{old}`" in page for page in pages)
        assert any(f"`{new}`" in page for page in pages)


def test_scores_in_the_readme_are_measured_ones():
    runs = [r["psnr"] for r in json.loads(Path("docs/measured.json").read_text())]
    means = {f"{statistics.mean(r['psnr'] for r in group.runs):.2f}" for group in training_pages.groups()}
    runs += [run["psnr"] for run in training_pages.runs_of("recipe_h100")]
    swept: dict[tuple[str, str, float], list[float]] = {}
    for run in training_pages.runs_of("train_h200"):
        if "case" in run:
            swept.setdefault((run["case"], run["scene"], run["seconds"]), []).append(run["psnr"])
    runs += [statistics.mean(scores) for scores in swept.values()]
    measured = means | {f"{psnr:.2f}" for psnr in runs} | {f"{train_tables.PEER[-1][1]:.2f}"}
    shown = re.findall(r"(\d+\.\d\d) dB", Path("README.md").read_text())
    assert shown and set(shown) <= measured


def test_the_curve_has_runs_to_draw(tmp_path):
    runs = training_pages.runs_of("train_h200")
    assert any(train_tables.is_of_the_defaults(run) for run in runs)
    with raises_naming(UserError, "nothing to draw", "sweep.py"):
        train_tables.draw([run for run in runs if "case" not in run], tmp_path / "no.png")


def test_cases_of_a_sweep_are_not_mixed():
    """They may differ in options that the table does not tell."""
    lego = [r for r in training_pages.runs_of("train_h200") if (r.get("case"), r["scene"]) != (None, "lego")]
    lines = train_tables.markdown([run for run in lego if run.get("seconds") == 20.0 and "case" in run]).splitlines()
    assert len(lines) == 4 and "(default)" in lines[2] and "3 of 3" in lines[2] and "(hidden blocks kept)" in lines[3]


def test_a_summary_compares_with_the_better_layout():
    rows = [
        {"case": "a NCHW", "ms": 2.0, "baseline_ms": 4.0},
        {"case": "a NHWC", "ms": 1.0, "baseline_ms": 1.5},
        {"case": "b", "ms": 1.0, "baseline_ms": 3.0},
    ]
    rows = [{"op": "depthwise_conv2d", "part": "forward", "device": "cuda"} | row for row in rows]
    lines = summary({"results": rows}).splitlines()
    assert lines[2] == "| `depthwise_conv2d` | 3 | 1 | 1.5x | 0.75x |"
    assert lines[-1] == "| `depthwise_conv2d` a NCHW | forward | 2.000 | 0.75x |"
