# SPDX-License-Identifier: Apache-2.0
"""What pages promise: code runs, links lead somewhere, commands exist with their options, the site builds."""

import dataclasses
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch

import nerfkit
from nerfkit import config, jit
from nerfkit.commands import options as cli
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.load import load_capture
from nerfkit.data.readers.transforms.cameras_json import NAMED_MODELS
from nerfkit.limits import OPS
from scripts import bench_ops, bench_train, bench_viewer, counters, measure
from tests import posed_captures as posed
from tests.naming import assert_names, raises_mentioning
from tests.processes import ROOT, call_process

PAGES = sorted([*Path("docs").rglob("*.md"), Path("README.md"), Path("CONTRIBUTING.md"), *Path("cuda").rglob("*.md")])
by_page = pytest.mark.parametrize("page", PAGES, ids=str)
CODE = re.compile(r"^```(\w*)\n(.*?)^```|(?<!`)`([^`\n]+)`(?!`)|^    (\S.*)$", re.S | re.M)


def blocks(page: str) -> list[str]:
    """Python of a page, without the files that its reader is to write."""
    return re.findall(r"(?<!`:\n\n)^```python\n(.*?)^```", Path(page).read_text(), re.S | re.M)


def test_each_op_equals_the_pytorch_beside_it():
    torch.manual_seed(0)
    names, compared = {}, 0
    for code in blocks("docs/ops.md"):
        exec(code, names)
        if "equal" in names:
            assert torch.allclose(names.pop("found"), names.pop("equal"), atol=1e-5), code
            compared += 1
    assert compared == len(OPS) - 1, "all but render_rays, which is the chain of the others"
    assert names["features"].shape == (1000, 16)


@pytest.mark.parametrize("name", OPS)
def test_each_op_is_there_with_its_arguments(name: str):
    parameters = inspect.signature(getattr(nerfkit.ops, name)).parameters.values()
    wanted = ["*" * (p.kind is p.VAR_POSITIONAL) + p.name for p in parameters if p.default is p.empty]
    wanted += ["..."] * any(p.default is not p.empty for p in parameters)
    page = Path("docs/ops.md").read_text().replace("\n", " ")
    assert f"`{name}({', '.join(wanted)})`" in page


def test_the_readme_runs():
    text = Path("README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict = {}
    exec(code.replace("steps, config.ops.backend = 20", "steps, config.ops.backend = 2"), names)
    assert names["rendering"].color.shape == (2500, 3) and set(names["trainer"].backends().values()) == {"torch"}
    assert names["features"].shape == (1000, 16)
    targets = set(re.findall(r"^([\w-]+):", Path("Makefile").read_text(), re.M))
    assert {"demo", "test"} <= set(re.findall(r"^    make ([\w-]+)", text, re.M)) <= targets


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path):
    pytest.importorskip("material", reason="needs the extra 'docs'")
    pytest.importorskip("mkdocstrings_handlers.python", reason="needs the extra 'docs'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs/mkdocs.yml", "-d", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for package in ("nerfkit", "nerfkit.ops", "nerfkit.nn"):
        page = (tmp_path / "api" / package.rpartition(".")[2] / "index.html").read_text()
        names = set(importlib.import_module(package).__all__) - {"__version__", "nn", "ops"}
        assert not [name for name in names if f"{package}.{name}" not in page], package
        assert ".. math::" not in page


@pytest.mark.slow
def test_an_op_of_your_own_is_compiled_and_run(tmp_path: Path):
    """Its files are written out as they stand."""
    files = re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", Path("docs/ops.md").read_text(), re.M | re.S)
    for name, text in files:
        (tmp_path / name).write_text(text)
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TORCH_EXTENSIONS_DIR": str(tmp_path / "built")}
    assert len(files) == 7
    assert "all checks passed" in call_process("check.py", folder=tmp_path, env=os.environ | variables)


@pytest.mark.slow
def test_why_an_op_is_not_built_is_said(tmp_path: Path, monkeypatch):
    """A lock that was left behind, and the compiler's error."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "lock").touch()
    with raises_mentioning(jit.BuildError, tmp_path / "three" / "lock"):
        jit.load("three", [])
    (tmp_path / "broken.cpp").write_text("this is not C++")
    with raises_mentioning(jit.BuildError, "broken", "error:"):
        jit.load("broken", [tmp_path / "broken.cpp"])


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    """What a link may name after '#', as GitHub makes it from the headings."""
    headings = re.findall(r"^#+ (.*)", without_blocks(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@by_page
def test_links_and_files_that_are_named_exist(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert re.match("(https?://|mailto:)", target) or file.exists(), f"{page}: {target}"
        assert not anchor or not file.exists() or anchor in anchors(file), f"{page}: {target}"
    for name in re.findall(r"(?:configs|docs|scripts|tests|nerfkit|cuda)/[\w./]+\.\w+", page.read_text()):
        placeholder = re.search(r"/(test_)?(X|three_x)\b", name)  # of an op that the reader adds
        assert placeholder or Path(name).exists() or name.endswith(".so"), f"{page}: {name}"


def options_of(kind: type, prefix: str = "") -> set[str]:
    """Every option of a command, with groups as in --trainer.steps."""
    hints, names = typing.get_type_hints(kind), set()
    for field in dataclasses.fields(kind):
        group = hints[field.name]
        names |= options_of(group, f"{field.name}.") if dataclasses.is_dataclass(group) else {prefix + field.name}
    return names


OPTIONS = {
    **{name: options_of(kind) for name, kind in cli.OPTIONS.items()},
    "train": options_of(cli.TrainOptions) | {"viewer"},  # alone it is viewer.on
    "export": {"from"}.union(*(options_of(kind) for kind in cli.KINDS.values())),
    "bench_ops": options_of(bench_ops.Options),
    "bench_train": options_of(bench_train.BenchOptions),
    "bench_viewer": options_of(bench_viewer.BenchOptions),
    "counters": options_of(counters.Options),
    "measure": set().union(*(options_of(kind) for kind in measure.KINDS.values())),
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
    words, script = shlex.split(line, comments=True), named and named[1]
    if named and script is None and (command := re.match(r"[a-z-]+(?=\s|$)", named[2])):
        script = command[0]
    assert script is None or script in cli.OPTIONS or Path(f"scripts/{script}.py").exists(), where
    known = OPTIONS.get(script, set().union(*OPTIONS.values()))
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            assert word[2:].partition("=")[0] in known | {"help"}, where
            if word == "--config" and following and not following.endswith(".toml"):
                config.load([following])


def test_the_table_of_lenses_is_what_readers_read(tmp_path: Path):
    lines = Path("docs/photos.md").read_text().splitlines()
    rows = {line.split(" | ")[0].strip("| ").lower(): line for line in lines}
    lenses = [Lens("PINHOLE", (focal, focal + 2, 12, 10), *posed.SIZE) for focal in (40, 30)]
    for format, write in posed.WRITERS.items():
        write(tmp_path / format, posed.capture_in(tmp_path / format, lenses * 2))
        first, second, *_ = (image.lens for image in load_capture(str(tmp_path / format)).images)
        of_each, two_focals = first != second, first.focal[0] != first.focal[1]
        said = ("yes" if can else "no" for can in (of_each, two_focals, 2 * first.center[0] != first.width))
        row = rows[format.removesuffix(" text").replace("_", "-")]
        assert row.endswith(f" | {' | '.join(said)} |"), row
    assert_names(rows["colmap"], *(name for name in MODELS if MODELS[name].number is not None))
    assert_names(rows["nerfstudio"], *NAMED_MODELS)
