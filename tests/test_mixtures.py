# SPDX-License-Identifier: Apache-2.0
"""Folders that nobody makes on purpose: two formats in one, a fault in each of two files.

Whatever is in them, a command ends by itself, with its exit status and a line or a verdict, and changes no file of the
user's. EXAMPLES=1000 tries as many.
"""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.captures import mutated, with_another_value
from tests.posed_captures import LEFT, PINHOLE, SMALL, WIDE, WRITERS, capture_in, masks_in
from tests.processes import ended

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """The toy scene in each format."""
    folders = {}
    for name, write in WRITERS.items():
        folders[name] = tmp_path_factory.mktemp("made") / "toy"
        write(folders[name], capture_in(folders[name], [WIDE if name == "nerfstudio" else PINHOLE] * 18))
        if (folders[name] / "images").is_dir():
            masks_in(folders[name], LEFT)
    return folders


# ---- faults of a file


def damaged(file: Path, chance: random.Random) -> None:
    file.write_bytes(mutated(file.read_bytes(), np.random.default_rng(chance.randrange(2**32))))


def gone(file: Path, chance: random.Random) -> None:
    file.unlink()


def a_folder(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.mkdir()


def a_broken_link(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.symlink_to(chance.choice(["nowhere", file.name, "/dev/zero"]))


def renamed(file: Path, chance: random.Random) -> None:
    file.rename(file.with_name(chance.choice([file.name.upper(), f"{file.name}{file.suffix}", f"\x1b[31m{file.name}"])))


def of_another(file: Path, chance: random.Random) -> None:
    others = sorted(other for other in file.parent.rglob("*") if other.is_file() and not other.is_symlink())
    file.write_bytes(chance.choice(others).read_bytes())


def another_value(file: Path, chance: random.Random) -> None:
    """In JSON; in other files some bytes."""
    try:
        content = json.loads(file.read_text())
        with_another_value(content, np.random.default_rng(chance.randrange(2**32)))
        file.write_text(json.dumps(content))
    except (ValueError, UnicodeError):
        damaged(file, chance)


def another_image(file: Path, chance: random.Random) -> None:
    mode = chance.choice(["1", "L", "LA", "P", "RGBA", "I;16", "CMYK"])
    size = chance.choice([(26, 22), (52, 44), (22, 26), (1, 1), (2, 999)])
    Image.new(mode, size, chance.randrange(2)).save(file, format="JPEG" if mode == "CMYK" else "PNG")


FAULTS = [damaged, gone, a_folder, a_broken_link, renamed, of_another, another_value, another_image]


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
            fault = chance.choice(FAULTS)
            fault(file, chance)
            said.append(f"{file.relative_to(folder)} {fault.__name__}")
    return said


def content_of(folder: Path) -> dict[str, object]:
    """Of each file, link and folder."""

    def content(path: Path) -> object:
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else None

    return {str(path): content(path) for path in folder.rglob("*")}


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
