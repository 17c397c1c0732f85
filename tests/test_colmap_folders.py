# SPDX-License-Identifier: Apache-2.0
"""COLMAP folders: where the model, the images and the masks are."""

import shutil
from dataclasses import replace

import pytest

from nerfkit.data.load import format_elsewhere, load_capture
from nerfkit.data.readers.colmap import reader as colmap
from nerfkit.data.readers.colmap.writer import write_model
from nerfkit.data.readers.transforms.writer import write_transforms
from tests.captures import check_refused, touch
from tests.naming import assert_names
from tests.test_colmap import a_capture, assert_equal, assert_same_points, write


@pytest.mark.parametrize("place", ["sparse/0", "sparse/7", "colmap/sparse/0", "sparse", "colmap/sparse", "."])
def test_places_of_the_model(tmp_path, place: str):
    capture = a_capture(["b.png", "a/1.png"], n_points=3)
    write(tmp_path / place, capture, "bin" if place == "sparse/0" else "txt")
    touch(tmp_path, "images/b.png")  # the other file is missing, and stays in the list
    assert colmap.recognises(tmp_path)
    read = colmap.read(tmp_path)
    assert_equal(read.images, capture.images)
    assert [image.file for image in read.images] == [tmp_path / "images" / name for name in ("a/1.png", "b.png")]
    assert (read.name, read.format, read.notes) == (tmp_path.name, "colmap", ())
    assert_same_points(read.points, capture.points)


def test_the_format_that_knows_more_is_read(tmp_path):
    """COLMAP's, where transforms.json has no sparse points: they say where the scene is. Others are named."""
    capture = a_capture(["a.png", "b.png"], n_points=3)
    for name, points in (("with", capture.points), ("without", None)):
        folder = tmp_path / name
        touch(folder, "images/a.png", "images/b.png")
        write_model(folder / "sparse/0", replace(capture, points=points))
        write_transforms(folder / "transforms.json", replace(capture, points=None))
        taken, other = ("colmap", "transforms") if points is not None else ("transforms", "colmap")
        read = load_capture(str(folder))
        assert (read.format == "colmap") == (taken == "colmap") and (read.points is None) == (points is None)
        assert_names(read.notes[0].text, f"read as {taken}", f"--data.format {other}")
        assert load_capture(str(folder), "transforms").format != "colmap"
        assert load_capture(str(folder), seeks_points=False).format != "colmap", "as by runs that say auto"
    for name, has_split in (("with", True), ("masked", False)):
        folder = tmp_path / name
        touch(folder, "images/a.png", "images/b.png", "other/a.png")
        write_model(folder / "sparse/0", capture)
        masked = [replace(image, mask=None if has_split else folder / "other/a.png") for image in capture.images]
        splits = {"train": ["a.png"], "test": ["b.png"]} if has_split else {}
        write_transforms(folder / "transforms.json", replace(capture, images=masked, points=None, splits=splits))
        assert load_capture(str(folder)).format == "transforms", "it knows which are tests, or what counts"
    check_refused(load_capture, str(tmp_path / "wiht"), "does not exist", str(tmp_path / "with"))
    check_refused(load_capture, str(tmp_path / "with/transforms.json"), "not a folder", f"folder {tmp_path / 'with'}")
    (tmp_path / "with/sparse/0/images.txt").write_bytes(b"broken")
    assert load_capture(str(tmp_path / "with")).format != "colmap"
    (tmp_path / "with/transforms.json").write_text('{"frames": [')
    check_refused(load_capture, str(tmp_path / "with"), "transforms.json", "JSON")
    (tmp_path / "with/transforms.json").unlink()
    formats = {format: format_elsewhere(str(tmp_path / "with"), format) for format in ("colmap", "transforms", "auto")}
    assert formats == {"colmap": "colmap", "transforms": "auto", "auto": "auto"}, "of a run, for its scene elsewhere"


def test_folders_without_a_model(tmp_path):
    (tmp_path / "sparse" / "0").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "a\0b"):
        assert not colmap.recognises(folder)
        check_refused(colmap.read, folder, "sparse/0")
    touch(tmp_path, "sparse/0/cameras.bin", "sparse/0/frames.bin", "sparse/0/images.txt")
    assert colmap.recognises(tmp_path)
    check_refused(colmap.read, tmp_path, "sparse/0: ", "cameras.bin, frames.bin, images.txt")


def test_the_model_with_most_images_is_read(tmp_path):
    names = [f"{index}.png" for index in range(9)]
    for number, count in ((0, 2), (1, 5), (2, 5), (10, 9)):
        write_model(tmp_path / "sparse" / str(number), a_capture(names[:count]))
    read = colmap.read(tmp_path)
    assert len(read.images) == 9
    assert_names(read.notes[0].text, "sparse/10", "of 4", "9", "sparse/0 2", "sparse/1 5", "sparse/2 5")
    shutil.rmtree(tmp_path / "sparse" / "10")
    read = colmap.read(tmp_path)
    assert len(read.images) == 5 and "sparse/1 is read" in read.notes[0].text and "of 3" in read.notes[0].text
    write_model(tmp_path / "colmap" / "sparse" / "0", a_capture(names))
    assert "colmap/sparse/0" in colmap.read(tmp_path).notes[1].text


@pytest.mark.parametrize(
    "files, place",
    [
        (["images/x/a.png", "images_2/x/a.png"], "images"),
        (["images_8/x/a.png", "images_2/x/a.png"], "images_2"),
        (["images_4/x/a.png"], "images_4"),
        (["photos/x/a.png", "images/other.png"], "photos"),
        (["x/a.png", "images/other.png"], "."),
        (["other/c.png"], "images"),
    ],
)
def test_places_of_the_images(tmp_path, files: list[str], place: str):
    write_model(tmp_path / "sparse" / "0", a_capture(["x/a.png"]))
    touch(tmp_path, *files)
    read = colmap.read(tmp_path)
    assert read.images[0].file == tmp_path / place / "x" / "a.png"
    assert place == "images" or any(place in note.text or "itself" in note.text for note in read.notes)
    assert read.images[0].file.exists() or any("x/a.png" in note.text for note in read.notes)


def test_images_without_a_pose_are_counted(tmp_path):
    write_model(tmp_path / "sparse" / "0", a_capture(["b.png", "c/d.png"]))
    touch(tmp_path, "images/b.png", "images/c/d.png", "images/read.me", "images/.hidden.png")
    assert colmap.read(tmp_path).notes == ()
    touch(tmp_path, "images/a.JPG", "images/c/e.png", "images/z.png", "images/y.png")
    (tmp_path / "images" / "round").symlink_to(tmp_path / "images")
    (note,) = colmap.read(tmp_path).notes
    assert_names(note.text, "4 of 6", "a.JPG", "c/e.png", "y.png")


def test_masks(tmp_path):
    names = ["a/1.jpg", "a/2.jpg", "3.png", "4.png"]
    write_model(tmp_path / "sparse" / "0", a_capture(names))
    touch(tmp_path, *(f"images/{name}" for name in names))
    touch(tmp_path, "masks/a/1.jpg", "masks/a/1.jpg.png", "masks/a/2.jpg.png", "masks/a/2.png", "masks/3.png")
    read = colmap.read(tmp_path)
    masks = {image.name: image.mask and image.mask.relative_to(tmp_path / "masks").as_posix() for image in read.images}
    assert masks == {"a/1.jpg": "a/1.jpg", "a/2.jpg": "a/2.jpg.png", "3.png": "3.png", "4.png": None}
    assert not read.white_ignores
    assert_names(read.notes[0].text, "1 of 4", "4.png")
    assert_names(read.notes[1].text, "2 of 5", "a/1.jpg.png", "a/2.png")
