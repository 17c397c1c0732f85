# SPDX-License-Identifier: Apache-2.0
"""The page about a capture, and its drawing; of captures that fit no scene it says in a line what to change."""

import io
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nerfkit.commands import inspect, train
from nerfkit.commands.drawing import MAX_CAMERAS, draw
from nerfkit.commands.inspect import MAX_LENSES, Inspection, OnDisk
from nerfkit.config import DataConfig
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Note, PosedImage, notes_of
from nerfkit.data.load import load_scene
from nerfkit.data.scene_transform import find_scene_transform
from nerfkit.data.scene_transform.diagnostics import pixel_diagnostics
from nerfkit.data.scene_transform.transform import identity_transform
from nerfkit.errors import SceneError
from tests.camera_layouts import LAYOUTS, cloud, grid, look_at, ring
from tests.naming import assert_names, raises_mentioning
from tests.posed_captures import HEIGHT, SMALL, WIDTH, noise, write_capture
from tests.processes import run_main
from tests.test_crop import UTM
from tests.toy_scene import change, write_scene

LENS = Lens("OPENCV", (90.0, 91.0, 50.0, 40.0, 0.01, -0.02, 0.0, 0.0), 100, 80)
WIDE = Lens("OPENCV_FISHEYE", (30.0, 30.0, 50.0, 40.0, 0.1, 0.0, 0.0, 0.0), 100, 80)
RULE = "every 8th of the sorted names is a test image"


def capture_of(poses: np.ndarray, lenses: tuple[Lens, ...] = (LENS,), **values) -> Capture:
    """A capture of `poses` [V, 3, 4], whose lenses take turns."""
    names = [f"images/{k:04d}.jpg" for k in range(len(poses))]
    rows = zip(names, map(Path, names), poses, cycle(lenses), strict=False)
    images = [PosedImage(*row) for row in rows]
    return Capture("toy", "colmap", images, **values)


def splits_of(capture: Capture) -> dict[str, list[str]]:
    names = [image.name for image in capture.images]
    return {"train": [name for k, name in enumerate(names) if k % 8], "test": names[::8]}


def inspected(capture: Capture, found: list[OnDisk | None], splits: dict | None = None) -> Inspection:
    names = splits_of(capture)
    return Inspection(capture, find_scene_transform(capture), found, names if splits is None else splits, RULE)


def page(capture: Capture, found: list[OnDisk | None]) -> str:
    inspection = inspected(capture, found)
    return "\n".join([*inspection.verdict(), inspection.page()])


def test_a_verdict_is_sentences_for_whoever_took_the_images():
    """What is missing is counted everywhere; only of what training ends with it is said that it does."""
    capture = capture_of(ring(30), (LENS, WIDE))
    found = [OnDisk(50, 40)] * 28 + [None] * 2
    first, second, third, *rest = inspected(capture, found, {"train": ["1"] * 25, "test": ["2"] * 3}).verdict()
    assert_names(first, "toy: 28 images of 50x40 from 2 lenses", "around")
    assert_names(second, "2 more listed", "25 to train on", "3 held out")
    assert "works" in third and "images/0028.jpg" in rest[0]
    assert "stops" in replace(inspected(capture, found), errors=["an image that is turned"]).verdict()[2]


def test_the_page_says_what_was_found():
    poses = LAYOUTS["corridor"]
    notes = notes_of("sparse/1 of 2 was read")
    capture = capture_of(poses, (LENS, WIDE), points=cloud((0, 2, 0), 0.3, 40), notes=notes, white_ignores=True)
    found: list = [OnDisk(50, 40, ignored=0.25)] * 40
    found[3] = found[9] = None
    text = page(capture, found)
    assert_names(text, "toy", "colmap", "sparse/1 of 2 was read", RULE, "white is ignored", "25.0%")
    assert_names(text, "40 listed", "38 exist", "2 missing", "images/0003.jpg, images/0009.jpg", "sizes: 50x40")
    assert_names(text, "OPENCV 100x80", "58 x 47 degrees", "fy 91 cx 50 cy 40 k1 0.01 k2 -0.02 p1 0 p2 0: 20 images")
    assert_names(text, "OPENCV_FISHEYE 100x80", "k4 0: 18 images", "kind walk-through", "test: 5 (images/0000.jpg")
    assert all(note.text in text for note in find_scene_transform(capture).notes)


def test_every_lens_is_named_or_counted():
    lenses = tuple(replace(LENS, params=(100.0 + k, *LENS.params[1:])) for k in range(60))
    text = page(capture_of(ring(60), lenses), [OnDisk(4000, 3200)] * 60)
    assert all(f"fx {100 + k} " in text for k in range(MAX_LENSES))
    assert f"{60 - MAX_LENSES} more of OPENCV" in text and "to 159" in text


def problems(found: list[OnDisk | None], splits: dict | None = None, **values) -> str:
    return "\n".join(inspected(capture_of(ring(len(found)), **values), found, splits).problems())


def test_verdict():
    fine = [OnDisk(100, 80)] * 30
    assert not problems(fine) and inspected(capture_of(ring(30)), fine).verdict()[-1] == "Ready to train."
    assert not problems([OnDisk(33, 27)] * 30)  # a third, rounded
    for broken, named in (
        ([*fine[:-1], OnDisk(100, 80, has_alpha=True)], ("1 images have alpha",)),
        ([*fine[:-3], *[OnDisk(100, 80, ignored=0.1)] * 3], ("27 of 30", "mask")),
        ([OnDisk(100, 80, ignored=0.9)] * 30, ("90%", "black", "white", "--data.masks alpha")),
    ):
        assert_names(problems(broken), *named)
    noted = problems(fine, notes=notes_of("warning: of no kind", Note("warning", "mend this")))
    assert noted == "mend this", "by what a note is, not by what it says"
    assert "training" in problems(fine, {})
    stray = cloud((50, 0, 0), 10, 30)
    assert "outside of the box" in problems(fine, points=stray)


@pytest.mark.parametrize("times, wanted", [(1, ""), (16, "--data.downscale 4"), (1e5, "--data.downscale 8")])
def test_images_are_proposed_as_small_as_rays_suffice_for(monkeypatch, times: float, wanted: str):
    """Of pixels that are so many times as many as a training's rays; none of a side below 128."""
    large = inspected(capture_of(ring(8), (LENS.resized(1600, 1280),)), [OnDisk(1600, 1280)] * 8)
    monkeypatch.setattr(inspect, "forecast", lambda *_: (7 * 1600 * 1280 / times, 60.0, "cpu"))
    assert inspect.next_command(large, DataConfig(path="scene"))[-1].endswith(f"train scene {wanted}".rstrip())


def test_report_is_printable_whatever_names_there_are():
    capture = capture_of(ring(20), notes=notes_of("a\nb\x1b[31m"))
    images = [replace(image, name=f"\n{k}\x1b" + "n" * 500) for k, image in enumerate(capture.images)]
    text = page(replace(capture, name="x\n\x1by" * 300, images=images), [None] * 20)
    assert all(line.isprintable() for line in text.split("\n")) and len(text) < 8000


HARD = {
    "one": capture_of(ring(1)),
    "many": capture_of(np.tile(ring(50), (3 * MAX_CAMERAS // 50, 1, 1))),
    "named": replace(capture_of(ring(1)), name="$\\frac{\\ \u706b \n"),
    "usual": capture_of(ring(), (LENS, WIDE), points=cloud((0, 2, 0), 0.3, 30)),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.filterwarnings("error")
def test_drawing(name: str):
    capture = HARD[name]
    splits = splits_of(capture) if name == "usual" else {"$_": [capture.images[0].name]}
    for frame in (find_scene_transform(capture), identity_transform(np.array([[-1e6] * 3, [1e6] * 3]), up=(0, 1, 0))):
        with Image.open(io.BytesIO(draw(capture, frame, splits))) as image:
            assert (image.format, image.size) == ("PNG", (1500, 600))
            pixels = np.asarray(image.convert("RGB")).astype(int)
        for third in np.split(pixels, 3, axis=1):
            assert (third < 200).any(-1).sum() > 300
        for color in ((31, 119, 180), (255, 127, 14), (214, 39, 40)) if name == "usual" else ():  # train, test, up
            assert (np.abs(pixels - color).max(-1) < 20).sum() > 20, color


# ---- captures that fit no scene


def moved(view: int, far: float) -> np.ndarray:
    poses = ring(20)
    poses[view, :, 3] += far
    return poses


def at_one_point() -> np.ndarray:
    poses = ring(20)
    poses[:, :, 3] = 1.0, 2.0, 3.0
    return poses


def away_from_each_other() -> np.ndarray:
    """Four cameras around a point, which look outwards, of 62 x 44 degrees."""
    eyes = np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]])
    return look_at(eyes.copy(), 2 * eyes)


def gray(index: int) -> np.ndarray:
    return np.full((HEIGHT, WIDTH, 3), 140, dtype=np.uint8) + np.uint8(index % 2)


def points_around(center: tuple[float, float, float], size: float) -> np.ndarray:
    return np.array(center) + size * np.random.default_rng(0).normal(size=(300, 3))


def far_away(rounded: bool) -> np.ndarray:
    """A ring 60 m across in UTM coordinates, as programs write them that keep float32."""
    poses = ring(20)
    poses[:, :, 3] = 30 * poses[:, :, 3] + UTM
    return poses.astype(np.float32).astype(np.float64) if rounded else poses


FOUND = {  # poses, other values of write_capture, what a warning has to name
    "one_far": (moved(7, 5e5), {}, ("1 of 17", "images/007.png", "correct their poses")),
    "turned_on_the_spot": (at_one_point(), {"points": points_around((0, 0, 0), 0.1)}, ("one point", "move the camera")),
    "no_overlap": (away_from_each_other(), {}, ("no point", "4 training views", "OpenGL")),
    "one_view": (ring(1), {"points": points_around((0, 0, 0.5), 0.3)}, ("one training view", "images/000.png")),
    "no_depth": (ring(1), {}, ("sparse points", "data.box")),
    "points_of_another_unit": (ring(20), {"points": points_around((0, 0, 0.5), 1e5)}, ("near", "points", "unit")),
    "rounded_positions": (far_away(rounded=True), {}, ("4.5", "digits end at 0.5", "subtract one point")),
    "focal_in_mm": (ring(20), {"fl_x": 3, "fl_y": 3}, ("focal length 3", "152 degrees", "17 of 17", "millimetres")),
    "no_parallax": (grid(), {"points": points_around((0, 5e5, 0), 1e4)}, ("pixels", "parallax", "unit")),
}


@pytest.mark.parametrize("name", FOUND)
def test_cameras_that_fit_no_scene_are_warned_of(name: str, tmp_path: Path, capsys):
    poses, values, named = FOUND[name]
    folder = write_capture(tmp_path / "odd", poses, **values)
    warnings = load_scene(str(folder)).transform.warnings()
    assert any(all(part in line for part in named) for line in warnings), warnings
    assert all(line.isprintable() and len(line) < 400 for line in warnings)
    assert run_main(inspect, str(folder)) == 1
    said = capsys.readouterr().out
    assert all(line in said for line in warnings) and "Ready to train" not in said


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("scale, origin", [(1e-8, 0), (3e4, 0), (1, UTM), (1000, 1000 * UTM)])
def test_captures_of_any_unit_and_place_that_are_fine(name: str, scale: float, origin: np.ndarray, tmp_path: Path):
    """The frame has the same numbers whatever the unit and the origin, and no warning but that of a guess."""
    poses = LAYOUTS[name].copy()
    points = points_around({"grid": (0, 9, 0), "corridor": (33, 0, 1.6)}.get(name, (0, 0, 0.5)), 0.6)
    one = load_scene(str(write_capture(tmp_path / "one", poses, points=points))).transform
    poses[:, :, 3] = scale * poses[:, :, 3] + origin
    frame = load_scene(str(write_capture(tmp_path / name, poses, points=scale * points + origin))).transform
    ours = [line for line in frame.warnings() if any(word in line for word in ("training", "unit", "positions"))]
    assert not ours
    assert (frame.near, frame.far) == pytest.approx((one.near, one.far), rel=1e-3)
    assert frame.scale * scale == pytest.approx(one.scale, rel=1e-6)


def test_poses_of_another_unit_than_the_box(tmp_path: Path):
    poses = ring(20)
    poses[:, :, 3] *= 1e-4
    folder = str(write_capture(tmp_path / "odd", poses))
    (warning,) = load_scene(folder, box=(-1.0, -1, -1, 1, 1, 1)).transform.warnings()
    assert_names(warning, "data.box", "3.46")
    poses = ring(20)
    folder = str(write_capture(tmp_path / "fine", poses))
    assert not load_scene(folder, box=(-1.0, -1, -1, 1, 1, 1)).transform.warnings()
    assert not load_scene(str(write_scene(tmp_path / "toy"))).transform.warnings()


def test_a_box_is_in_the_coordinates_of_the_files_which_must_not_be_far_away(tmp_path: Path, capsys):
    folder, box = str(write_capture(tmp_path / "far", far_away(rounded=False))), [*(UTM - 40), *(UTM + 40)]
    assert run_main(inspect, folder, "--data.box", *map(str, box)) == 1
    assert_names(capsys.readouterr().out, "digits end at 0.5", "leave out data.box", "subtract one point")
    assert not any("subtract" in line for line in load_scene(folder).transform.warnings())


def test_a_solve_that_failed_and_a_lens_that_folds_are_not_ready_to_train(tmp_path: Path, capsys):
    folder = write_capture(tmp_path / "odd", ring(20))
    change(folder, lambda c: c.update(frames=c["frames"][::3]), "transforms.json")
    run_main(inspect, str(folder))
    assert "have a pose" not in capsys.readouterr().out, "every third, on purpose"
    write_capture(folder, ring(20))
    change(folder, lambda c: c.update(frames=c["frames"][:9]), "transforms.json")
    (folder / "images" / "depth_000.png").write_bytes(b"")  # named unlike the images
    assert run_main(inspect, str(folder)) == 1
    assert_names(capsys.readouterr().out, "9 of 20 images have a pose", "find the poses again")
    write_capture(folder, ring(20), camera_model="OPENCV", k1=-3.0)
    assert run_main(inspect, str(folder)) == 1
    assert_names(capsys.readouterr().out, "OPENCV", "k1 -3", "folds")


def with_points(folder: Path) -> str:
    return str(write_capture(folder / "ring", ring(20), points=points_around((0, 0, 0.5), 0.2)))


@pytest.mark.parametrize("box", ["2.2 2.2 2.2 2.7 2.7 2.7", "1 -3 -3 7 3 3"])
def test_a_box_beside_the_scene_is_not_ready_to_train(box: str, tmp_path: Path, capsys):
    """Also one that many rays meet, but that nothing is in."""
    for folder in (with_points(tmp_path), str(write_capture(tmp_path / "bare", ring(20)))):
        assert run_main(inspect, folder, "--data.box", *box.split()) == 1
        assert_names(capsys.readouterr().out, "data.box", "of the rays of the training views meet it", "look at (")


def test_a_box_that_next_to_no_ray_meets_is_refused_before_a_run_is_replaced(tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".nerfkit").write_text("nerfkit run\nmetrics.jsonl\n")
    (run / "metrics.jsonl").write_text("{}\n")
    options = ["--data.path", with_points(tmp_path), "--out", str(run), *SMALL]
    with raises_mentioning(SceneError, "data.box", "100.0", "101.0", "almost no ray"):
        run_main(train, *options, "--overwrite", "--data.box", "100", "100", "100", "101", "101", "101")
    assert (run / "metrics.jsonl").read_text() == "{}\n"


def test_a_small_box_around_one_of_many_things_is_trained(tmp_path: Path, capsys):
    """A warning at most: none where some of the points are inside."""
    points = np.concatenate([points_around((0, 0, 0.5), 1.0), points_around((0.7, 0.2, 0.5), 0.01)[:20]])
    folder = str(write_capture(tmp_path / "many", ring(20), points=points))
    box = (0.55, 0.05, 0.35, 0.85, 0.35, 0.65)
    assert not load_scene(folder, box=box).transform.warnings()
    few = (-0.9, 0.3, 1.3, -0.85, 0.35, 1.35)
    options = ["--data.path", folder, "--out", str(tmp_path / "run"), *SMALL, "--data.box", *map(str, few)]
    assert run_main(train, *options) == 0
    assert_names(capsys.readouterr().out, "warning: data.box", "sparse points are inside")


def test_images_that_show_nothing():
    images = [noise(k).reshape(-1, 3) for k in range(20)]
    plain = [gray(k).reshape(-1, 3) for k in range(20)]
    assert_names(pixel_diagnostics(plain[:19] + images[:1])[0], "19 of 20", "one color", "140, 140, 140")
    assert not pixel_diagnostics(plain[:15] + images[:5]), "a view or two of a wall are usual"
    assert_names(pixel_diagnostics([images[0]] * 20)[0], "20 of 20", "copies")
    assert not pixel_diagnostics([*images[:10], *images[:1] * 5])
    silhouette = [np.concatenate([0 * p, p[:, :1]], axis=1) for p in images]
    assert not pixel_diagnostics(silhouette), "black, but for where it is opaque"


def test_training_goes_on_with_images_of_nothing_but_says_so(tmp_path: Path, capsys):
    folder = write_capture(tmp_path / "odd", ring(20), gray)
    with pytest.warns(UserWarning, match="one color"):
        assert run_main(train, *SMALL, "--data.path", str(folder), "--out", str(tmp_path / "run")) == 0
    assert "test views: PSNR" in capsys.readouterr().out
    assert run_main(inspect, str(folder)) == 1
    assert "one color" in capsys.readouterr().out


def test_no_test_views(tmp_path: Path, capsys):
    folder = write_capture(tmp_path / "few", ring(10))
    assert run_main(train, *SMALL, "--data.path", str(folder), "--out", str(tmp_path / "run")) == 0
    said = capsys.readouterr().out
    assert_names(said, "scoring", "none", "no test views")
    assert run_main(inspect, str(folder)) == 1
    assert_names(capsys.readouterr().out, "10 training images are few", "none held out for scoring")
    assert run_main(inspect, str(write_capture(tmp_path / "enough", ring(15)))) == 0
    assert_names(capsys.readouterr().out, "15 to train on, none held out for scoring", "Ready to train.")
