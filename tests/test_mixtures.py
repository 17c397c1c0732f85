# SPDX-License-Identifier: Apache-2.0
"""Folders that nobody makes on purpose: a damaged file, two formats in one, a fault in each of two files.

Whatever is in them, a command ends by itself, with its exit status and a line or a verdict, and changes no file of the
user's. EXAMPLES=1000 tries as many.
"""

import json
import os
import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nerfkit.data.load import load_capture
from tests.camera_layouts import cloud
from tests.captures import mutated, refusal, with_another_value
from tests.posed_captures import LEFT, PINHOLE, SMALL, WIDE, WRITERS, capture_in, masks_in
from tests.processes import ended

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """The toy scene in each format."""
    folders = {}
    for name, write in WRITERS.items():
        folders[name] = tmp_path_factory.mktemp("made") / "toy"
        capture = capture_in(folders[name], [WIDE if name == "nerfstudio" else PINHOLE] * 18)
        write(folders[name], replace(capture, points=cloud((0, 0, 0), 0.3, 18, n=20)))
        if (folders[name] / "images").is_dir():
            masks_in(folders[name], LEFT)
    return folders


@pytest.mark.parametrize("format", WRITERS)
def test_a_damaged_file_is_read_or_refused_in_a_line(format: str, made, tmp_path):
    """Cut at any length, with some bytes changed, or with another value in JSON."""
    folder, generator = Path(shutil.copytree(made[format], tmp_path / "it")), np.random.default_rng(0)
    why = partial(refusal, lambda _: load_capture(str(folder), of_run=True), folder)
    assert not why()
    results = set()
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix != ".png")
    for file in files[-5:]:
        content = file.read_bytes()
        for part in range(10):
            file.write_bytes(content[: part * len(content) // 10])
            refused = why()
            assert not refused or file.name in refused or "known: none" in refused, "it is named, or who needs it"
            assert refused or file.suffix != ".bin", "a binary file that is cut is an error"
        for _ in range(20):
            file.write_bytes(mutated(content, generator))
            results.add(not why())
            if file.suffix == ".json":
                with_another_value(changed := json.loads(content), generator)
                file.write_text(json.dumps(changed))
                results.add(not why())
        file.write_bytes(content)
    assert results == {True, False}, "both happen among them"


FAULTS = "damaged", "gone", "a folder", "a broken link", "renamed", "of another", "another image"


def spoil(file: Path, fault: str, chance: random.Random) -> None:
    content = file.read_bytes()
    others = sorted(other for other in file.parent.rglob("*") if other.is_file() and not other.is_symlink())
    file.unlink()
    match fault:
        case "damaged":
            file.write_bytes(mutated(content, np.random.default_rng(chance.randrange(2**32))))
        case "a folder":
            file.mkdir()
        case "a broken link":
            file.symlink_to(chance.choice(["nowhere", file.name, "/dev/zero"]))
        case "renamed":
            names = [file.name.upper(), f"{file.name}{file.suffix}", f"\x1b[31m{file.name}"]
            file.with_name(chance.choice(names)).write_bytes(content)
        case "of another":
            other = chance.choice(others)
            file.write_bytes(content if other == file else other.read_bytes())
        case "another image":
            mode = chance.choice(["1", "L", "LA", "P", "RGBA", "I;16", "CMYK"])
            size = chance.choice([(26, 22), (52, 44), (22, 26), (1, 1), (2, 999)])
            Image.new(mode, size, chance.randrange(2)).save(file, format="JPEG" if mode == "CMYK" else "PNG")


def mixture(made: dict[str, Path], folder: Path, chance: random.Random) -> list[str]:
    """Make a folder of one or two formats with a fault in two files, or in none; what it is."""
    formats = chance.sample(sorted(made), chance.choice([1, 2, 2, 3]))
    for name in formats:
        shutil.copytree(made[name], folder, dirs_exist_ok=True)
    if chance.random() < 0.5:
        shutil.rmtree(folder / "masks", ignore_errors=True)
    if chance.random() < 0.1 and (folder / "images").is_dir():
        (folder / "images").rename(folder / chance.choice(["Images", "images_2", "input", "pictures"]))
    said = list(formats)
    for _ in range(chance.choice([0, 1, 2, 2, 2, 3])):
        files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        descriptions = [file for file in files if file.parent.name not in ("images", "masks")]
        file = chance.choice(descriptions if descriptions and chance.random() < 0.6 else files)
        if file.stat().st_size:
            spoil(file, fault := chance.choice(FAULTS), chance)
            said.append(f"{file.relative_to(folder)} {fault}")
    return said


def content_of(folder: Path) -> dict[Path, object]:
    """Of each file, link and folder."""
    links = {path: os.readlink(path) for path in folder.rglob("*") if path.is_symlink()}
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} | links


@pytest.mark.parametrize("part", range(6))
def test_a_mixture_ends_in_words_and_leaves_files_as_they_are(part: int, made, tmp_path):
    for seed in range(part, EXAMPLES, 6):
        chance, folder = random.Random(seed), tmp_path / f"mixture {seed}"
        said = f"seed {seed}: {mixture(made, folder, chance)}"
        before = content_of(folder)
        train = ["train.py", folder, "--out", tmp_path / f"run {seed}", *SMALL]
        for command in [["inspect.py", folder], train][: 1 + (chance.random() < 0.3)]:
            try:
                status, printed = ended(*command, folder=tmp_path)
            except Exception as error:
                raise AssertionError(said) from error
            last = printed.rstrip().rpartition("\n")[2]
            assert status in (0, 1) and "\x1b" not in printed and len(last) < 1500, (said, printed)
        assert content_of(folder) == before, said
