# SPDX-License-Identifier: Apache-2.0
"""Photographs and videos without poses: when they are looked for, and when not."""

import shutil
from pathlib import Path

import pytest

from nerfkit.data.colmap import write_model
from nerfkit.data.load import load_scene
from nerfkit.errors import SceneError
from tests.naming import assert_names, raises_naming
from tests.posed_captures import PINHOLE, capture_in, colmap_in


@pytest.fixture
def solved(monkeypatch) -> list[tuple]:
    """What poses were looked for, of the toy scene."""
    asked = []

    def solve(source: Path, out: Path | None, report) -> Path:
        asked.append((source, out))
        capture = capture_in(source.parent / "again", [PINHOLE] * 20)
        folder = out or source.with_name(f"{source.stem}_frames")
        folder.mkdir()
        capture.images[0].file.parent.rename(folder / "images")
        write_model(folder / "sparse" / "0", capture)
        return folder

    monkeypatch.setattr("nerfkit.data.load.solve", solve)
    return asked


@pytest.mark.parametrize("name", ["photos", "film.mp4"])
def test_poses_of_photographs_and_videos_are_looked_for(tmp_path, solved, capsys, name: str):
    source = tmp_path / name
    source.touch() if "." in name else capture_in(source, [PINHOLE] * 20)
    scene = load_scene(str(source), sfm=str(tmp_path / "poses"))
    assert solved == [(source, tmp_path / "poses")] and scene.format == "colmap"
    assert len(scene.split("train").cameras) == 17
    assert_names(capsys.readouterr().out, name, "poses")


def test_photographs_may_lie_in_subfolders_but_not_in_those_of_several_scenes(tmp_path, solved):
    for side in ("left", "right"):
        shutil.move(capture_in(tmp_path / side, [PINHOLE] * 20).images[0].file.parent, tmp_path / "photos" / side)
    assert load_scene(str(tmp_path / "photos"), sfm=str(tmp_path / "poses")).format == "colmap"
    assert len(solved) == 1
    colmap_in(tmp_path / "photos" / "scene", [PINHOLE] * 20)
    with raises_naming(SceneError, "data.path", tmp_path / "photos", "colmap"):
        load_scene(str(tmp_path / "photos"))


@pytest.mark.parametrize("below", ["", "images"])
def test_a_folder_that_holds_images_of_other_kinds(tmp_path, solved, below: str):
    """As a phone may give them: what is in the way is named, not the formats that the folder is not of."""
    place = tmp_path / "photos" / below
    place.mkdir(parents=True)
    for name in ("a.HEIC", "b.heic", "c.tif"):
        (place / name).touch()
    with raises_naming(SceneError, "data.path", place, "2 .heic", "1 .tif", "JPEG"):
        load_scene(str(tmp_path / "photos"))
    assert not solved


def test_poses_are_not_looked_for_where_they_are(tmp_path, solved):
    folder = colmap_in(tmp_path, [PINHOLE] * 20)
    load_scene(str(folder))
    with raises_naming(SceneError, "data.path", folder / "images", folder):
        load_scene(str(folder / "images"))
    (tmp_path / "empty").mkdir()
    with raises_naming(SceneError, "data.path", tmp_path / "empty", "colmap"):
        load_scene(str(tmp_path / "empty"))
    assert not solved
