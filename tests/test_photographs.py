# SPDX-License-Identifier: Apache-2.0
"""Photographs and videos without poses: when they are looked for, and when not."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from nerfkit.data.colmap import write_model
from nerfkit.data.load import load_scene
from nerfkit.data.sfm import photographs as ph
from nerfkit.data.sfm.attempts import Attempts
from nerfkit.data.sfm.model_folder import ModelFolder
from nerfkit.data.sfm.plan import Plan
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
    assert len(scene.split("train").cameras) == 17 and scene.format_again == "auto", "poses are looked for again"
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


TURNED, MODEL = 274, 272  # tags of EXIF


def photographs_in(folder: Path) -> list[ph.Photograph]:
    """Of one phone, upright, turned and cropped; of another one; a drawing without EXIF."""
    folder.mkdir()
    for name, size, turn, model in (
        ("a.jpg", (40, 60), 1, "one"), ("b.jpg", (60, 40), 6, "one"), ("c.jpg", (40, 60), 3, "one"),
        ("d.jpg", (30, 60), 1, "one"), ("e.jpg", (40, 60), 1, "two"), ("f.png", (40, 60), 1, ""),
        ("g.webp", (40, 60), 8, ""),
    ):  # fmt: skip
        image = Image.new("RGB", size, "white")
        image.paste("red", (0, 0, size[0] // 2, size[1] // 4))
        exif = Image.Exif()
        exif[TURNED], exif[MODEL] = turn, model
        image.save(folder / name, exif=exif if model or turn != 1 else None)
    return ph.find_photographs(folder, print)


def test_photographs_of_one_size_and_camera_share_a_lens(tmp_path):
    found = photographs_in(tmp_path / "photos")
    mode = ph.camera_mode(found)
    groups = ph.of_one_lens(found, mode)
    assert mode == "PER_LENS" and groups == [["a.jpg", "b.jpg", "c.jpg"], ["d.jpg"], ["e.jpg"], ["f.png"], ["g.webp"]]
    attempts = Attempts(
        ModelFolder(tmp_path / "sparse"), tmp_path / "photos", found, Plan(mode, "OPENCV", False), None, print
    )
    alone = (["d.jpg", "e.jpg", "f.png", "g.webp"], None, "PER_IMAGE")
    assert attempts._groups({}) == [(["a.jpg", "b.jpg", "c.jpg"], None, "SINGLE"), alone]
    assert attempts._groups({"b.jpg": 7})[0] == (["a.jpg", "b.jpg", "c.jpg"], 7, "SINGLE"), "as it has begun"
    same = [photo for photo in found if photo.name in groups[0]]
    assert ph.camera_mode(same) == "SINGLE" and ph.of_one_lens(same, "SINGLE") == groups[:1]


def test_photographs_are_matched_upright(tmp_path):
    """pycolmap does not heed their EXIF orientation, by which they are trained."""
    found = photographs_in(tmp_path / "photos")
    assert [photo.is_turned for photo in found] == [False, True, True, False, False, False, True]
    plan = Plan("PER_LENS", "OPENCV", False)
    folder = Attempts(ModelFolder(tmp_path / "sparse"), tmp_path / "photos", found, plan, None, print)._readable()
    for photo in found:
        with Image.open(folder / photo.name) as image:
            assert image.size == (photo.width, photo.height) and image.getexif().get(TURNED, 1) == 1
            assert image.getexif().get(MODEL, "") == photo.camera[0], "by which COLMAP knows focal lengths"
            assert image.format == {"jpg": "JPEG"}.get(photo.name[-3:], "PNG")
    red = {"b.jpg": (38, 2), "c.jpg": (38, 58), "g.webp": (2, 38)}  # the corner in which the stored first one is seen
    for name, place in red.items():
        with Image.open(folder / name) as image:
            assert image.convert("RGB").getpixel(place)[1] < 40, name
