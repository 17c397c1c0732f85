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
from tests.camera_layouts import LAYOUTS, cloud, grid, look_at, moved, ring, similarity
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
    assert "can be trained" in third and "images/0028.jpg" in rest[0]
    assert "stops" in replace(inspected(capture, found), errors=["an image that is turned"]).verdict()[2]


def test_every_lens_is_named_or_counted():
    lenses = tuple(replace(LENS, params=(100.0 + k, *LENS.params[1:])) for k in range(60))
    text = page(capture_of(ring(60), lenses), [OnDisk(4000, 3200)] * 60)
    assert all(f"fx {100 + k} " in text for k in range(MAX_LENSES))
    assert f"{60 - MAX_LENSES} more of OPENCV" in text and "to 159" in text


def test_problems():
    fine, capture = [OnDisk(100, 80)] * 30, capture_of(ring(30))
    for found in (fine, [OnDisk(33, 27)] * 30):  # a third, rounded
        assert not inspected(capture, found).problems()
    assert inspected(capture, fine).verdict()[-1] == "Ready to train."
    for broken, named in (
        ([*fine[:-1], OnDisk(100, 80, has_alpha=True)], ("1 images have alpha",)),
        ([*fine[:-3], *[OnDisk(100, 80, ignored=0.1)] * 3], ("27 of 30", "mask")),
    ):
        assert_names("\n".join(inspected(capture, broken).problems()), *named)
    noted = replace(capture, notes=notes_of("warning: of no kind", Note("warning", "mend this")))
    assert inspected(noted, fine).problems() == ["mend this"], "by what a note is, not by what it says"
    stray = replace(capture, points=cloud((50, 0, 0), 10, 30))
    assert_names("\n".join(inspected(stray, fine, {}).problems()), "training", "outside of the box")


@pytest.mark.parametrize("times, wanted", [(1, ""), (16, "--data.downscale 4"), (1e5, "--data.downscale 8")])
def test_images_are_proposed_as_small_as_rays_suffice_for(monkeypatch, times: float, wanted: str):
    """Of pixels that are so many times as many as a training's rays; most have no side below 128."""
    monkeypatch.setattr(inspect, "forecast", lambda *_: (7 * 1600 * 1280 / times, 60.0, "cpu"))
    for sizes in ([(1600, 1280)] * 8, [(1600, 1280)] * 7 + [(100, 80)]):
        large = inspected(capture_of(ring(8), (LENS.resized(1600, 1280),)), [OnDisk(*size) for size in sizes])
        assert inspect.next_command(large, DataConfig(path="scene"))[-1].endswith(f"train scene {wanted}".rstrip())


def test_report_is_printable_whatever_names_there_are():
    capture = capture_of(ring(20), notes=notes_of("a\nb\x1b[31m"))
    images = [replace(image, name=f"\n{k}\x1b" + "n" * 500) for k, image in enumerate(capture.images)]
    text = page(replace(capture, name="x\n\x1by" * 300, images=images), [None] * 20)
    assert all(line.isprintable() for line in text.split("\n")) and len(text) < 8000


HARD = {
    "many": capture_of(np.tile(ring(50), (3 * MAX_CAMERAS // 50, 1, 1))),
    "one": replace(capture_of(ring(1)), name="$\\frac{\\ \u706b \n"),
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


def standing(eyes: np.ndarray) -> np.ndarray:
    """A ring of cameras at other places, [20, 3] or [3]."""
    poses = ring(20)
    poses[:, :, 3] = eyes
    return poses


def gray(index: int) -> np.ndarray:
    return np.full((HEIGHT, WIDTH, 3), 140, dtype=np.uint8) + np.uint8(index % 2)


def points_around(center: tuple[float, float, float], size: float) -> np.ndarray:
    return np.array(center) + size * np.random.default_rng(0).normal(size=(300, 3))


RING = ring(20)[:, :, 3]
ONE_FAR = RING + 5e5 * (np.arange(20) == 7)[:, None]
FAR = standing(30 * RING + UTM)  # 60 m across
ROUNDED = FAR.astype(np.float32).astype(np.float64)  # as programs write them that keep float32
OUTWARDS = np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]])  # of four cameras, 62 x 44 degrees each
AROUND = {"points": points_around((0, 0, 0), 0.1)}
OBJECT = points_around((0, 0, 0.5), 0.2)
BESIDE, EMPTY = (2.2, 2.2, 2.2, 2.7, 2.7, 2.7), (1, -3, -3, 7, 3, 3)  # the second is met by many rays
FEW = (-0.9, 0.3, 1.3, -0.85, 0.35, 1.35)
MANY = np.concatenate([points_around((0, 0, 0.5), 1.0), points_around((0.7, 0.2, 0.5), 0.01)[:20]])
BY_RAYS = ("data.box", "of the rays of the training views meet it", "look at (")
FOUND = {  # poses, a box or other values of write_capture, what a warning has to name
    "one_far": (standing(ONE_FAR), {}, ("1 of 17", "images/007.png", "correct their poses")),
    "turned_on_the_spot": (standing(np.ones(3)), AROUND, ("one point", "move the camera")),
    "no_overlap": (look_at(OUTWARDS.copy(), 2 * OUTWARDS), {}, ("no point", "4 training views", "OpenGL")),
    "one_view": (ring(1), {"points": points_around((0, 0, 0.5), 0.3)}, ("one training view", "images/000.png")),
    "no_depth": (ring(1), {}, ("sparse points", "data.box")),
    "points_of_another_unit": (ring(20), {"points": points_around((0, 0, 0.5), 1e5)}, ("near", "points", "unit")),
    "rounded_positions": (ROUNDED, {}, ("4.5", "digits end at 0.5", "subtract one point")),
    "focal_in_mm": (ring(20), {"fl_x": 3, "fl_y": 3}, ("focal length 3", "152 degrees", "17 of 17", "millimeters")),
    "unit_of_no_box": (standing(1e-4 * RING), {"box": (-1, -1, -1, 1, 1, 1)}, ("data.box", "3.46")),
    "far_box": (FAR, {"box": (*(UTM - 40), *(UTM + 40))}, ("digits end at 0.5", "leave out data.box", "subtract one")),
    "box_beside": (ring(20), {"box": BESIDE}, BY_RAYS),
    "box_beside_points": (ring(20), {"box": BESIDE, "points": OBJECT}, BY_RAYS),
    "box_of_nothing": (ring(20), {"box": EMPTY}, BY_RAYS),
    "box_of_no_points": (ring(20), {"box": EMPTY, "points": OBJECT}, BY_RAYS),
    "box_of_few_points": (ring(20), {"box": FEW, "points": MANY}, ("data.box", "sparse points are inside")),
    "no_parallax": (grid(), {"points": points_around((0, 5e5, 0), 1e4)}, ("pixels", "parallax", "unit")),
}


@pytest.mark.parametrize("name", FOUND)
def test_cameras_that_fit_no_scene_are_warned_of(name: str, tmp_path: Path, capsys):
    poses, values, named = FOUND[name]
    box = values.get("box", ())
    folder = write_capture(tmp_path / "odd", poses, **values)
    warnings = load_scene(str(folder), box=box or None).transform.warnings()
    assert any(all(part in line for part in named) for line in warnings), warnings
    assert all(line.isprintable() and len(line) < 400 for line in warnings)
    assert run_main(inspect, folder, *["--data.box", *box][: 7 * bool(box)]) == 1
    said = capsys.readouterr().out
    assert all(line in said for line in warnings) and "Ready to train" not in said


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("scale, origin", [(1e-8, np.zeros(3)), (3e4, np.zeros(3)), (1, UTM), (1000, 1000 * UTM)])
def test_captures_of_any_unit_and_place_that_are_fine(name: str, scale: float, origin: np.ndarray, tmp_path: Path):
    """The frame has the same numbers whatever the unit, axes and origin, and no warning but that of a guess."""
    poses, change = LAYOUTS[name], (similarity(0)[0], origin, scale)
    points = points_around({"grid": (0, 9, 0), "corridor": (33, 0, 1.6)}.get(name, (0, 0, 0.5)), 0.6)
    one = load_scene(str(write_capture(tmp_path / "one", poses, points=points))).transform
    elsewhere = write_capture(tmp_path / name, moved(poses, change), points=moved(points, change))
    frame = load_scene(str(elsewhere)).transform
    ours = [line for line in frame.warnings() if any(word in line for word in ("training", "unit", "positions"))]
    assert not ours and frame.kind == one.kind
    assert (frame.near, frame.far) == pytest.approx((one.near, one.far), rel=1e-3)
    assert frame.scale * scale == pytest.approx(one.scale, rel=1e-6)
    np.testing.assert_allclose(frame.to_model(moved(poses, change)), one.to_model(poses), atol=1e-5)
    np.testing.assert_allclose(frame.box, one.box, atol=1e-5)


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


def test_a_box_that_next_to_no_ray_meets_is_refused_before_a_run_is_replaced(tmp_path: Path):
    (run := tmp_path / "run").mkdir()
    (run / ".nerfkit").write_text("nerfkit run\nmetrics.jsonl\n")
    (run / "metrics.jsonl").write_text("{}\n")
    options = [write_capture(tmp_path / "ring", ring(20), points=OBJECT), "--out", run, *SMALL]
    with raises_mentioning(SceneError, "data.box", "100.0", "101.0", "almost no ray"):
        run_main(train, *options, "--overwrite", "--data.box", "100", "100", "100", "101", "101", "101")
    assert (run / "metrics.jsonl").read_text() == "{}\n"


def test_a_small_box_around_one_of_many_things_is_fine(tmp_path: Path):
    folder = str(write_capture(tmp_path / "many", ring(20), points=MANY))
    assert not load_scene(folder, box=(0.55, 0.05, 0.35, 0.85, 0.35, 0.65)).transform.warnings()


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


def test_test_images_that_are_missing_are_a_warning_where_those_to_train_on_are_there(tmp_path, capsys):
    scene = write_scene(tmp_path, counts={"train": 6, "test": 14})
    for file in sorted((scene / "test").glob("*.png"))[1:]:
        file.unlink()
    assert run_main(inspect, str(scene)) == 1
    assert_names(capsys.readouterr().out, "13 of 20 listed images are missing", "left out")
    assert len(load_scene(str(scene)).split("train").files) == 6, "it can be trained"
