# SPDX-License-Identifier: Apache-2.0
"""A run of a capture: its frame and range, going on, scores, paths; what `inspect` prints, what masks do; panoramas."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit import load_run
from nerfkit.commands import eval as eval_command
from nerfkit.commands import inspect, render, train
from nerfkit.commands.inspect import examine
from nerfkit.config import DataConfig
from nerfkit.data.assemble import CUT_OUT
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.images.batch import TrainingViews
from nerfkit.data.load import load_capture, load_scene
from nerfkit.data.scene_transform.diagnostics import image_diagnostics
from nerfkit.errors import RunError, SceneError
from nerfkit.metrics import ssim
from nerfkit.rendering import images
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.rendering.paths import with_size
from nerfkit.training.evaluator import evaluate
from nerfkit.training.trainer import Trainer
from nerfkit.viewer.frames import NO_PHOTO, Look, ModelFrame, Viewpoint
from nerfkit.viewer.scene import ViewerScene
from tests import posed_captures as posed
from tests.naming import assert_names, raises_mentioning
from tests.processes import run_main


@pytest.fixture(scope="module")
def run_of_capture(tmp_path_factory) -> Path:
    """A run of a COLMAP folder by the commands, and the scene beside it."""
    folder = tmp_path_factory.mktemp("capture")
    posed.colmap_in(folder / "scene", [posed.WIDE] * 20, distance=1.3)
    posed.call(train, folder / "scene", *posed.SMALL, "--trainer.steps", 4, "--out", folder / "run")
    return folder / "run"


def test_going_on_and_scoring_use_the_transform_of_the_run(run_of_capture, monkeypatch, capsys):
    run, scene = load_run(run_of_capture, "cpu"), load_scene(str(run_of_capture.parent / "scene"))
    assert run.config.data.box == pytest.approx(scene.transform.box.ravel().tolist(), abs=1e-6)
    assert run.config.sampling.near == pytest.approx(scene.transform.near)
    torch.testing.assert_close(run.cameras("train").camera_to_world, scene.split("train").cameras.camera_to_world)
    before = (run_of_capture / "scene.json").read_text()
    score = json.loads((run_of_capture / "metrics.json").read_text())["psnr"]
    fail = lambda *_, **__: pytest.fail("a frame was looked for")  # noqa: E731
    monkeypatch.setattr("nerfkit.data.assemble.find_scene_transform", fail)
    posed.call(eval_command, run_of_capture)
    again = json.loads((run_of_capture / "metrics.json").read_text())["psnr"]
    assert again == pytest.approx(score, abs=0.01), "a GPU adds in another order each time"
    posed.call(train, "--resume", run_of_capture, "--trainer.steps", 6, "-v")
    assert (run_of_capture / "scene.json").read_text() == before
    assert "kind object" in capsys.readouterr().out


def test_paths_depths_and_normals_are_in_the_scenes_own_frame(run_of_capture, tmp_path, monkeypatch):
    """A path that is written is read again as the same cameras, and depths are in the units of the files."""
    ends, bar = [], images.color_bar
    monkeypatch.setattr(images, "color_bar", lambda *given: ends.append(given[1:3]) or bar(*given))
    size = ("--size", 26, 22)
    posed.call(
        render, run_of_capture, "--cameras", "test", "--out", tmp_path / "a", *size, "--outputs", "rgb,depth,normal"
    )
    written = json.loads((tmp_path / "a" / "path.json").read_text())["frames"]
    got = np.array([frame["transform_matrix"] for frame in written])
    np.testing.assert_allclose(got, np.stack(posed.poses(20, 1.3))[[0, 8, 16]], atol=1e-5)
    posed.call(render, run_of_capture, "--cameras", tmp_path / "a" / "path.json", "--out", tmp_path / "b", *size)
    stems = [frame["file_path"] for frame in written]
    run = load_run(run_of_capture)  # on the device that the command took
    assert run.transform is not None and run.transform.scale != 1
    assert stems == run.scene.names("test") and "0000" not in stems, "frames are called as the photos"
    for view in (0, 2):
        files = (tmp_path / "a" / f"{stems[view]}.png", tmp_path / "b" / f"{view:04d}.png")
        one, other = (np.asarray(Image.open(file)).astype(int) for file in files)
        assert np.abs(one - other).max() <= 2, "but for rounding, where a GPU adds in another order"
    seen = run.render(with_size(run.cameras("test"), 26, 22), 1, ("depth", "normal"))
    depth, normal = (np.load(tmp_path / "a" / f"{name}_{stems[1]}.npz")[name] for name in ("depth_z", "normal"))
    np.testing.assert_allclose(depth, seen["depth_z"].numpy() / run.transform.scale, rtol=1e-4)
    colors = images.preview("depth_z", seen | {"depth_z": torch.from_numpy(depth)}, ends[0])
    shown = np.asarray(Image.open(tmp_path / "a" / f"depth_z_{stems[1]}.png")) / 255
    np.testing.assert_allclose(shown, colors.numpy(), atol=0.03, err_msg="the legend is in the files' units")
    np.testing.assert_allclose(normal, seen["normal"].numpy() @ run.transform.rotation, atol=1e-3)


def test_the_path_follows_from_where_the_views_stand(run_of_capture, tmp_path, capsys):
    """All around an orbit, as high as the views are, else between the test views."""
    scene = json.loads((run_of_capture / "scene.json").read_text())
    scene["transform"]["kind"] = "inward"
    around, turn = scene["splits"]["train"]["frames"], np.diag([-1.0, 1, -1, 1])
    for name, path, frames in (
        ("all around", "orbit", around),
        ("out", "interpolate", [f | {"transform_matrix": (f["transform_matrix"] @ turn).tolist()} for f in around]),
        ("from one side", "interpolate", [f for f in around if f["transform_matrix"][0][3] > 0]),
    ):
        run = Path(shutil.copytree(run_of_capture, tmp_path / name))
        scene["splits"]["train"]["frames"] = frames
        (run / "scene.json").write_text(json.dumps(scene))
        posed.call(render, run, "--frames", 2, "--size", 20, 16)
        first, second = (np.asarray(Image.open(run / "render" / path / f"000{k}.png")) for k in range(2))
        assert first.shape == (16, 20, 3) and (first != second).any()
    posed.call(render, run, "--frames", 2, "--cameras", "orbit")
    assert_names(capsys.readouterr().out, "stand on one side")
    seen = load_run(tmp_path / "all around", "cpu")
    flown = json.loads((tmp_path / "all around" / "render" / "orbit" / "path.json").read_text())["frames"]
    flown = seen.transform.to_model(np.array([frame["transform_matrix"] for frame in flown])[:, :3])
    middle = np.reshape(seen.config.data.box, (2, 3)).mean(0)
    stands = (poses[:, :, 3] - middle for poses in (flown, seen.cameras("train").camera_to_world.numpy()))
    orbit, views = (np.arcsin(of @ seen.scene.up / np.linalg.norm(of, axis=1)).mean() for of in stands)
    assert orbit == pytest.approx(views, abs=1e-3)


def test_inspect_prints_a_page_and_writes_it_where_it_is_asked_to(tmp_path, capsys, monkeypatch):
    scene = posed.colmap_in(tmp_path / "scene", [posed.PINHOLE, posed.WIDE] * 10)
    posed.masks_in(scene, ~posed.LEFT)
    for index, file in enumerate(sorted((scene / "masks").iterdir())):
        if index % 2:
            file.unlink()  # of the wide images: they have another shape
    (scene / "images" / "r_03.png").unlink()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert run_main(inspect, scene, "-v") == 1
    printed = capsys.readouterr().out
    assert_names(printed, "colmap", "20 listed", "19 exist", "1 missing", "r_03.png", "38.5%", "kind object")
    assert_names(printed, "PINHOLE 26x22", "OPENCV_FISHEYE 40x34", "cx 19 cy 17 k1 0", "degrees", "test: 3 (r_00.png")
    assert sorted(tmp_path.rglob("*")) == before, "it only prints"
    assert run_main(inspect, scene, "-v", "--out", tmp_path / "out", "--data.downscale", 2) == 1
    written = (tmp_path / "out" / "inspect.txt").read_text()
    assert written.strip() in capsys.readouterr().out and "13x11" in written and "data.downscale 2" in written
    assert Image.open(tmp_path / "out" / "inspect.png").size[0] > 1000
    assert run_main(inspect, scene, "--out", tmp_path / "out", "--data.box", *posed.BOX) == 1  # again
    assert all(str(abs(side)) in (tmp_path / "out" / "inspect.txt").read_text() for side in posed.BOX)
    with raises_mentioning(RunError, scene):  # a folder of the user's
        run_main(inspect, scene, "--out", scene)


@pytest.fixture
def masked(tmp_path) -> Path:
    """A COLMAP folder whose masks are black, which ignores, on the left."""
    posed.colmap_in(tmp_path / "scene", [posed.PINHOLE] * 20)
    posed.masks_in(tmp_path / "scene", ~posed.LEFT)
    return tmp_path / "scene"


def test_masks_that_leave_little_are_doubted(masked):
    assert image_diagnostics(load_scene(str(masked)).split("train").load()) == [], "10 of 26 columns"
    posed.masks_in(masked, np.arange(26)[None].repeat(22, 0) >= 20)
    views = load_scene(str(masked)).split("train")
    (line,) = image_diagnostics(views.load(), views.white_ignores)
    assert_names(line, "77%", "the black ones", "white", "--data.masks alpha")
    assert image_diagnostics(load_scene(str(masked), masks="alpha").split("train").load()) == []


def test_inspection_of_what_is_cut_out(masked):
    """Masks are alpha then; what training would refuse is in the verdict, with status 1."""
    for file in (masked / "images").iterdir():
        Image.open(file).convert("RGB").save(file)
    cut = examine(load_capture(str(masked)), DataConfig(masks="alpha"))
    assert_names(cut.page(), "with alpha: 20, with mask: 0", CUT_OUT, "kind object")
    assert all("no points" in problem for problem in cut.problems())
    posed.masks_in(masked, np.pad(np.zeros((12, 16), dtype=bool), 5, constant_values=True))
    inverted = examine(load_capture(str(masked)), DataConfig(masks="alpha")).problems()
    assert_names("\n".join(inverted), "20 images", "invert them")
    next(iter((masked / "masks").iterdir())).unlink()
    (refused,) = examine(load_capture(str(masked)), DataConfig(masks="alpha")).refused
    assert_names(refused, "1 of 20 images have neither mask nor alpha")
    with raises_mentioning(SceneError, "data.masks", "1 of 20"):
        load_scene(str(masked), masks="alpha")


def test_masked_pixels_are_transparent_where_an_object_is_cut_out(masked):
    scene = load_scene(str(masked), masks="alpha")
    views = scene.split("train")
    images = views.load()
    assert scene.transform.kind == "object" and views.channels == 4 and images.ignored is None
    assert views.bytes() == images.bytes()
    plain = load_scene(str(masked), box=posed.BOX).split("train").load()
    for view in range(len(images)):
        image = images.image(view)
        assert torch.equal(image[..., 3], plain.image(view)[..., 3] * ~torch.from_numpy(posed.LEFT))
        assert torch.equal(image[..., :3], plain.image(view)[..., :3])
    batch = TrainingViews(views.cameras, images, "white").draw(500)
    assert (batch.weight == 1).all() and 0 < (batch.pixels[:, 3] == 0).float().mean() < 1


def test_ignored_pixels_leave_the_scores_alone(masked, tmp_path, small_config):
    trainer = Trainer(small_config, scene=load_scene(str(masked), box=posed.BOX))
    trainer.save(tmp_path / "run")
    views = load_scene(str(masked), box=posed.BOX).split("test")
    scores = evaluate(trainer.model, small_config, views, posed.STATE, trainer.folder, torch.device("cpu"))
    assert scores["protocol"]["ignored_pixels"] == 3 * posed.LEFT.sum()
    assert scores["share_of_pixels"] == pytest.approx(1 - posed.LEFT.mean(), abs=1e-4)
    truth, kept = views.load().image(0).float() / 255, ~torch.from_numpy(posed.LEFT)
    render = ImageRenderer(trainer.model, torch.ones(3))(views.cameras, 0)["rgb"]
    truth = truth[..., :3] * truth[..., 3:] + 1 - truth[..., 3:]
    error = (render - truth)[kept].square().mean()
    assert scores["views"][0]["psnr"] == pytest.approx(-10 * math.log10(error), abs=1e-3)
    similarity = ssim(torch.where(kept[..., None], render, truth), truth)
    assert scores["views"][0]["ssim"] == pytest.approx(similarity, abs=1e-5)


# ---- a tour of panoramas: whatever shows, exports or compares its cameras knows that they see all around


PANORAMA = Lens("EQUIRECTANGULAR", (64.0, 32.0), 64, 32)


@pytest.fixture(scope="module")
def tour(tmp_path_factory) -> Path:
    """A folder with a scene and a run of it."""
    folder = tmp_path_factory.mktemp("tour")
    posed.colmap_in(folder / "scene", [PANORAMA] * 16, distance=1.2)
    for file in (folder / "scene" / "images").iterdir():
        Image.open(file).convert("RGB").save(file)
    posed.call(train, folder / "scene", *posed.SMALL, "--out", folder / "run")
    return folder


def test_a_tour_is_inspected_and_drawn(tour, tmp_path, capsys):
    run_main(inspect, tour / "scene", "--out", tmp_path / "page", "-v")
    assert_names(capsys.readouterr().out, "16 panoramas of 64x32", "about 360 x 180 degrees", "kind walk-through")
    assert Image.open(tmp_path / "page" / "inspect.png").width == 1500


@pytest.mark.slow
@pytest.mark.parametrize("cameras", ["auto", "orbit", "train"])
def test_paths_take_views_of_90_degrees_or_panoramas(tour, tmp_path, cameras):
    frames = [] if cameras == "train" else ["--frames", 2]
    for lens, size in (("pinhole", ()), ("equirectangular", ("--size", 40, 20))):
        out = tmp_path / lens
        posed.call(render, tour / "run", "--cameras", cameras, *frames, *size, "--lens", lens, "--out", out)
        assert Image.open(next(out.glob("*.png"))).size == (size[1:] or (64, 32))


def test_the_viewer_knows_what_they_saw(tour, tmp_path):
    """With the scene at hand, and without: nothing fades out where a view of 90 degrees would end, and what is behind a
    camera is compared with too."""
    alone = load_run(shutil.copytree(tour / "run", tmp_path / "run"), "cpu")
    alone.config.data.path = str(tmp_path / "gone")
    for run in (alone, load_run(tour / "run", "cpu")):
        scene = ViewerScene.from_run(run)
        assert not scene.has_edge and scene.cameras.lenses[0] == PANORAMA
    behind = scene.cameras.camera_to_world[3].numpy() * [-1, 1, -1, 1]
    frame = ModelFrame(scene, Viewpoint.of(behind, 1.5), 24, 24, Look(view=3, split=0.0))
    frame.render(0, 24 * 24)
    shown = torch.from_numpy(frame.finish()).float() / 255
    assert ((shown - NO_PHOTO).abs().amax(-1) > 0.01).float().mean() > 0.9
