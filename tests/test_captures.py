# SPDX-License-Identifier: Apache-2.0
"""Captures from their files to a trained run: one scene in every format, lenses, sizes, masks, and what is missing."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image

from nerfkit import config as config_module
from nerfkit import load_run
from nerfkit.commands import eval as eval_command
from nerfkit.commands import inspect, render, train
from nerfkit.commands.options import train_options
from nerfkit.commands.train import find_scene
from nerfkit.data.batch import TrainingViews
from nerfkit.data.cameras import Cameras
from nerfkit.data.capture import Capture, PosedImage
from nerfkit.data.colmap import write_model
from nerfkit.data.lens import Lens
from nerfkit.data.load import load_scene
from nerfkit.data.readers.transforms_writer import write_transforms
from nerfkit.data.scene import Scene
from nerfkit.errors import ConfigError, RunError, SceneError
from nerfkit.model.compositing import Rendering
from nerfkit.model.registry import build_model
from nerfkit.rendering.image_renderer import ImageRenderer
from nerfkit.training.evaluator import evaluate
from nerfkit.training.losses import squared_error
from nerfkit.training.randomness import seed_everything
from nerfkit.training.trainer import Trainer
from tests.naming import assert_names, raises_naming
from tests.toy_scene import look_at, plain_intrinsics, trace_directions

SIZE = (26, 22)
FOCAL = plain_intrinsics(*SIZE)["fl_x"]
PINHOLE = Lens("PINHOLE", (FOCAL, FOCAL, 13.0, 11.0), *SIZE)
WIDE = Lens("OPENCV_FISHEYE", (15.0, 15.0, 19.0, 17.0, 0.0, 0.0, 0.0, 0.0), 40, 34)  # bends straight lines by pixels
LARGE = PINHOLE.resized(52, 44)
BOX = (-0.8, -0.8, -0.8, 0.8, 0.8, 0.8)
STATE = {"seconds": 1.0, "step": 1, "backend": {}}


def poses(count: int, distance: float = 3.0) -> list[np.ndarray]:
    """4x4 around the scene."""
    generator, made = np.random.default_rng(0), []
    for _ in range(count):
        azimuth, elevation = generator.uniform(0, 2 * math.pi), generator.uniform(-0.3, 1.2)
        flat = math.cos(elevation)
        eye = np.array([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(elevation)])
        made.append(look_at(distance * generator.uniform(0.9, 1.1) * eye))
    return made


def capture_in(folder: Path, lenses: list[Lens], distance: float = 3.0) -> Capture:
    """The toy scene through each of `lenses`; its images are written to `folder`/images."""
    images = []
    (folder / "images").mkdir(parents=True)
    for index, (lens, pose) in enumerate(zip(lenses, poses(len(lenses), distance), strict=True)):
        local = lens.direction_map().directions.unflatten(0, (lens.height, lens.width))
        name = f"r_{index:02d}.png"
        Image.fromarray(trace_directions(pose, local.double().numpy())).save(folder / "images" / name)
        images.append(PosedImage(name, folder / "images" / name, pose[:3], lens))
    return Capture("toy", "test", images)


def colmap_in(folder: Path, lenses: list[Lens], text: bool = False, **options) -> Path:
    """The toy scene as a COLMAP folder."""
    write_model(folder / "sparse" / "0", capture_in(folder, lenses, **options), text)
    return folder


def write_synthetic(folder: Path, capture: Capture) -> None:
    frames = []
    for image in capture.images:
        (fl_x, fl_y), (cx, cy) = image.lens.focal, image.lens.center
        pose = [*image.camera_to_world.tolist(), [0, 0, 0, 1]]
        values = {"fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy, "transform_matrix": pose}
        frames.append({"file_path": f"images/{image.name}", **values})
    (folder / "transforms_train.json").write_text(json.dumps({"frames": frames}))


def write_nerfstudio(folder: Path, capture: Capture) -> None:
    images = [replace(image, name=f"images/{image.name}") for image in capture.images]
    write_transforms(folder / "transforms.json", replace(capture, images=images, up=(0.0, 0.0, 1.0)))


def write_llff(folder: Path, capture: Capture) -> None:
    rows = []
    for image in capture.images:
        right, up, back, position = image.camera_to_world.T
        size = [image.lens.height, image.lens.width, image.lens.focal[0]]
        rows.append([*np.stack([-up, right, back, position, size], axis=1).ravel(), 2.0, 4.0])
    np.save(folder / "poses_bounds.npy", np.array(rows))


WRITERS = {
    "nerf_synthetic": write_synthetic,
    "nerfstudio": write_nerfstudio,
    "llff": write_llff,
    "colmap": lambda folder, capture: write_model(folder / "sparse" / "0", capture),
    "colmap text": lambda folder, capture: write_model(folder / "sparse" / "0", capture, text=True),
}


@pytest.mark.parametrize("lenses", [[PINHOLE] * 20, [PINHOLE] * 5], ids=["20 images", "5 images"])
@pytest.mark.parametrize("format", WRITERS)
def test_every_format_gives_the_same_rays(tmp_path, format: str, lenses: list[Lens]):
    """After each one's frame is taken out, they are those that the images were traced along."""
    capture = capture_in(tmp_path, lenses)
    WRITERS[format](tmp_path, capture)
    scene = load_scene(str(tmp_path))
    local = PINHOLE.direction_map().directions.double()
    wanted = {image.name: image.camera_to_world for image in capture.images}
    found = 0
    for views in scene.views.values():
        for view, file in enumerate(views.files):
            rays, pose = views.cameras.image_rays(view), wanted[file.name]
            origins = scene.frame.to_input(rays.origins.double().numpy())
            directions = scene.frame.directions_to_input(rays.directions.double().numpy())
            np.testing.assert_allclose(origins, np.broadcast_to(pose[:, 3], origins.shape), atol=1e-5)
            np.testing.assert_allclose(directions, local.numpy() @ pose[:, :3].T, atol=1e-5)
            np.testing.assert_array_equal(views.load().image(view).numpy(), np.asarray(Image.open(file)))
            found += 1
    assert found == len(lenses), "all of them"
    if format != "nerf_synthetic":
        assert len(scene.views.get("test", views).files) == (3 if len(lenses) == 20 else 5)


def trained(config, cameras: Cameras, images, steps: int = 200) -> Trainer:
    seed_everything(0)
    config.trainer.steps = steps
    trainer = Trainer(config, cameras, images, model=build_model(config))
    for _ in range(steps):
        trainer.train_step()
    return trainer


def psnr_of(trainer: Trainer, cameras: Cameras, images) -> float:
    image_of = ImageRenderer(trainer.model, torch.ones(3))
    errors = []
    for view in range(len(cameras)):
        truth = images.image(view).float() / 255
        truth = truth[..., :3] * truth[..., 3:] + 1 - truth[..., 3:]
        errors.append((image_of(cameras, view)["rgb"] - truth).square().mean().item())
    return -10 * math.log10(sum(errors) / len(errors))


def test_a_lens_that_is_heeded_scores_higher(tmp_path, small_config):
    colmap_in(tmp_path, [WIDE] * 24, distance=1.2)
    scene = load_scene(str(tmp_path), box=BOX)
    views, held_out = scene.split("train"), scene.split("test")
    assert views.cameras.lenses[0] == WIDE and scene.split("test").cameras.table is not None
    heeded, ignored = (
        psnr_of(trained(small_config, change(views.cameras), views.load()), change(held_out.cameras), held_out.load())
        for change in (lambda cameras: cameras, Cameras.pinhole)
    )
    assert heeded > ignored + 2.5, (heeded, ignored)


def mixed(folder: Path) -> Scene:
    return load_scene(str(colmap_in(folder, [PINHOLE, LARGE] * 10)), box=BOX)


def test_pixels_of_several_sizes_are_drawn_equally(tmp_path):
    views = mixed(tmp_path).split("train")
    images = views.load()
    assert set(images.sizes) == {SIZE, (52, 44)}
    training = TrainingViews(views.cameras, images, "white")
    view, row, column, color, _ = training.source.draw(200_000)
    pixel = images.first[view] + row * torch.tensor([width for width, _ in images.sizes])[view] + column
    for index, (width, height) in enumerate(images.sizes):
        share = (view == index).float().mean().item()
        assert share == pytest.approx(width * height / len(images.pixels), rel=0.08)
        drawn = view == index
        assert column[drawn].max() == width - 1 and row[drawn].max() == height - 1 and row.min() == column.min() == 0
        assert torch.equal(color[drawn], images.image(index)[row[drawn], column[drawn]])
    counts = pixel.bincount(minlength=len(images.pixels))
    assert counts.float().var() / counts.float().mean() == pytest.approx(1, abs=0.1), "as of a Poisson process"
    batch = training.draw(300)
    for ray in range(300):
        seen, _ = views.cameras.project((batch.rays.origins + batch.rays.directions)[ray : ray + 1], batch.view[ray])
        column, row = seen[0].floor().long().tolist()
        assert torch.equal(batch.pixels[ray], images.image(batch.view[ray])[row, column])


def test_views_of_several_sizes_are_scored(tmp_path, small_config):
    scene = mixed(tmp_path / "scene")
    views = scene.split("test")
    assert [file.name for file in views.files] == ["r_00.png", "r_08.png", "r_16.png"], "none of which is trained"
    trainer = trained(small_config, scene.split("train").cameras, scene.split("train").load(), 3)
    trainer.save(tmp_path / "run")
    metrics = evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))
    assert_names(metrics["protocol"]["size"], *{f"{width}x{height}" for width, height in views.cameras.sizes()})
    assert metrics["n_views"] == 3 and all(row["psnr"] > 5 for row in metrics["views"])


def masks_in(folder: Path, white: np.ndarray) -> None:
    """A mask for every image, white where `white` [H, W] is."""
    (folder / "masks").mkdir()
    for file in (folder / "images").iterdir():
        Image.fromarray((white * 255).astype(np.uint8)).save(folder / "masks" / file.name)


LEFT = np.arange(26)[None].repeat(22, 0) < 10


@pytest.fixture
def masked(tmp_path) -> Path:
    """A COLMAP folder whose masks are black, which ignores, on the left."""
    colmap_in(tmp_path / "scene", [PINHOLE] * 20)
    masks_in(tmp_path / "scene", ~LEFT)
    return tmp_path / "scene"


def spoilt(folder: Path) -> None:
    """Other colors where the masks are black."""
    for file in (folder / "images").iterdir():
        pixels = np.asarray(Image.open(file)).copy()
        pixels[LEFT] = 255, 0, 255, 255
        Image.fromarray(pixels).save(file)


def test_ignored_pixels_never_change_the_loss(masked):
    views = load_scene(str(masked), box=BOX).split("train")
    images = views.load()
    assert images.mask(3).equal(torch.from_numpy(LEFT))
    losses, weights = [], []
    for change in (lambda folder: None, spoilt):
        change(masked)
        torch.manual_seed(0)
        batch = TrainingViews(views.cameras, views.load(), "white").draw(500)
        losses.append(squared_error(Rendering(torch.full((500, 3), 0.3), torch.ones(500), torch.ones(500)), batch))
        weights.append(batch.weight)
    assert losses[0]["mse"].equal(losses[1]["mse"]) and losses[0]["mse"] > 0.01
    assert weights[0].unique().tolist() == [0, 1] and weights[0].mean() == pytest.approx(16 / 26, abs=0.08)
    seen = views.cameras.project(batch.rays.origins + batch.rays.directions, 0)  # of view 0 alone
    columns = seen[0][batch.view == 0, 0].floor()
    assert torch.equal(batch.weight[batch.view == 0], (columns >= 10).float())


def test_masked_pixels_are_transparent_where_an_object_is_cut_out(masked):
    scene = load_scene(str(masked), cutout=True)
    views = scene.split("train")
    images = views.load()
    assert scene.frame.kind == "object" and views.channels == 4 and images.ignored is None
    assert views.bytes() == images.bytes()
    plain = load_scene(str(masked), box=BOX).split("train").load()
    for view in range(len(images)):
        image = images.image(view)
        assert torch.equal(image[..., 3], plain.image(view)[..., 3] * ~torch.from_numpy(LEFT))
        assert torch.equal(image[..., :3], plain.image(view)[..., :3])
    batch = TrainingViews(views.cameras, images, "white").draw(500)
    assert (batch.weight == 1).all() and 0 < (batch.pixels[:, 3] == 0).float().mean() < 1


def test_an_image_that_would_keep_its_background_is_refused(tmp_path):
    scene = colmap_in(tmp_path / "scene", [PINHOLE] * 20)
    for file in (scene / "images").iterdir():
        Image.open(file).convert("RGB").save(file)
    masks_in(scene, ~LEFT)
    masks = sorted((scene / "masks").iterdir())
    masks[3].unlink()
    with raises_naming(SceneError, "data.masks", "1 of 20", "r_03"):
        load_scene(str(scene), cutout=True)


def test_a_place_is_trained_over_random_backgrounds_and_an_object_over_white(tmp_path):
    options = ["--config", "cpu", "--device", "cpu"]
    place = train_options([*options, "--data.path", str(colmap_in(tmp_path / "place", [PINHOLE] * 20))])
    for file in (tmp_path / "place" / "images").iterdir():
        Image.open(file).convert("RGB").save(file)
    assert find_scene(place).frame.kind != "object" and place.data.background == "random"
    assert (place.sampling.kind, place.data.box) == ("contracted", (-1.0, -1, -1, 1, 1, 1))
    assert place.sampling.far < 1e4 and place.sampling.occupancy_resolution == 96, "the preset's, not that of a GPU"
    given = train_options([*options, "--data.path", str(tmp_path / "place"), "--data.background", "black"])
    find_scene(given)
    assert given.data.background == "black"
    boxed = train_options([*options, "--data.path", str(tmp_path / "place"), "--data.box", *map(str, BOX)])
    find_scene(boxed, {"data.box"})
    assert boxed.data.background == "white" and boxed.sampling.kind == "box"
    chosen = train_options([*options, "--data.path", str(tmp_path / "place")])
    find_scene(chosen, {"trainer.distortion", "sampling.near"})
    assert chosen.trainer.distortion == 0 and chosen.sampling.near == 0, "given as the defaults are"
    in_box = train_options([*options, "--data.path", str(tmp_path / "place"), "--sampling.kind", "box"])
    frame = find_scene(in_box).frame
    assert in_box.sampling.kind == "box" and in_box.data.box == tuple(frame.box.flatten().tolist())
    scene = load_scene(str(tmp_path / "place"))
    views = scene.split("train")
    config = config_module.load(["cpu"])
    config.device, config.data.box = "cpu", tuple(scene.frame.box.flatten().tolist())
    trainer = Trainer(config, views.cameras, views.load(), scene=scene)
    assert trainer.config.data.background == "random", "from Python, too, so that the run can go on"


def test_ignored_pixels_leave_the_scores_alone(masked, tmp_path, small_config):
    scene = load_scene(str(masked), box=BOX)
    trainer = trained(small_config, scene.split("train").cameras, scene.split("train").load(), 3)
    trainer.save(tmp_path / "run")

    def scores() -> dict:
        views = load_scene(str(masked), box=BOX).split("test")
        return evaluate(trainer.model, small_config, views, STATE, trainer.folder, torch.device("cpu"))

    before = scores()
    spoilt(masked)
    after = scores()
    assert [row["psnr"] for row in before["views"]] == [row["psnr"] for row in after["views"]]
    assert after["protocol"]["ignored_pixels"] == 3 * LEFT.sum()
    render, truth = rendered_and_truth(trainer, load_scene(str(masked), box=BOX).split("test"))
    error = (render - truth).square()[~torch.from_numpy(LEFT)].mean().item()
    assert after["views"][0]["psnr"] == pytest.approx(-10 * math.log10(error), abs=1e-3)


def rendered_and_truth(trainer: Trainer, views) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the first view, over white, [H, W, 3] each."""
    truth = views.load().image(0).float() / 255
    render = ImageRenderer(trainer.model, torch.ones(3))(views.cameras, 0)["rgb"]
    return render, truth[..., :3] * truth[..., 3:] + 1 - truth[..., 3:]


@pytest.mark.parametrize("dialect, white_ignores", [("nerfstudio", False), ("instant-ngp", True), ("colmap", False)])
def test_what_masks_ignore_is_the_dialects_affair(tmp_path, dialect: str, white_ignores: bool):
    capture = capture_in(tmp_path, [PINHOLE] * 6)
    if dialect == "instant-ngp":  # which looks for masks beside the images, by name
        write_nerfstudio(tmp_path, capture)
        content = json.loads((tmp_path / "transforms.json").read_text())
        content = {key: value for key, value in content.items() if key not in ("camera_model", "up")}
        (tmp_path / "transforms.json").write_text(json.dumps(content | {"aabb_scale": 4}))
        for image in capture.images:
            mask = image.file.with_name(f"dynamic_mask_{image.name}")
            Image.fromarray((LEFT * 255).astype(np.uint8)).save(mask)
    else:
        masks_in(tmp_path, ~LEFT)
        if dialect == "colmap":
            write_model(tmp_path / "sparse" / "0", capture)
        else:
            masks = [replace(image, mask=tmp_path / "masks" / image.name) for image in capture.images]
            write_nerfstudio(tmp_path, replace(capture, images=masks))
    views = load_scene(str(tmp_path), box=BOX).split("train")
    assert views.white_ignores == white_ignores
    assert all(views.load().mask(view).equal(torch.from_numpy(LEFT)) for view in range(6))


@pytest.mark.parametrize("orientation, turn", [(6, Image.Transpose.ROTATE_90), (8, Image.Transpose.ROTATE_270)])
def test_an_image_on_its_side_gives_the_same_pixels(tmp_path, orientation: int, turn: Image.Transpose):
    """Where the lens is of the image as EXIF turns it; of the stored pixels where that is the lens's shape."""
    folder = colmap_in(tmp_path, [PINHOLE] * 5)
    plain = load_scene(str(folder)).split("train").load().stack()
    tags = Image.Exif()
    tags[274] = orientation
    image = Image.open(folder / "images" / "r_01.png")
    image.load()
    image.transpose(turn).save(folder / "images" / "r_01.png", exif=tags)
    image.save(folder / "images" / "r_03.png", exif=tags)  # a tag that is a lie: these pixels are not turned
    assert torch.equal(load_scene(str(folder)).split("train").load().stack()[1], plain[1])
    shown = load_scene(str(folder)).split("train").load().stack()[3]
    other = Image.open(folder / "images" / "r_03.png")
    assert torch.equal(shown, torch.from_numpy(np.asarray(other).copy())), "as they are stored"


@pytest.mark.parametrize("aside", [0.0, 1.0, 4.0])
def test_a_default_box_beside_what_is_looked_at(tmp_path, capsys, aside: float):
    """The default box of NeRF-synthetic scenes is around the origin, which is not where every such file looks."""
    capture = capture_in(tmp_path, [PINHOLE] * 20)
    offset = np.array([[0, 0, 0, aside], [0, 0, 0, 0], [0, 0, 0, 0]])
    images = [replace(image, camera_to_world=image.camera_to_world + offset) for image in capture.images]
    write_synthetic(tmp_path, replace(capture, images=images))
    warned = load_scene(str(tmp_path)).frame.warnings()
    assert len(warned) == (aside > 1.5) and all("data.box" in line and f"({aside:g}, " in line for line in warned)
    call(inspect, tmp_path)
    assert ("data.box" in capsys.readouterr().out.split("verdict")[1]) == (aside > 1.5)
    box = (aside - 1, -1, -1, aside + 1, 1, 1)
    assert not load_scene(str(tmp_path), box=box).frame.warnings()


@pytest.mark.parametrize("orientation", [3, 6])
def test_images_that_are_turned_are_counted(tmp_path, capsys, orientation: int):
    """Turned by 180 degrees their shape tells nothing, so that a user has to know."""
    folder = colmap_in(tmp_path, [PINHOLE] * 5)
    assert not any("EXIF" in note for note in load_scene(str(folder)).notes)
    tags = Image.Exif()
    tags[274] = orientation
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}[orientation]
    for name in ("r_01.png", "r_02.png"):
        image = Image.open(folder / "images" / name)
        image.load()
        image.transpose(turn).save(folder / "images" / name, exif=tags)
    note = next(note for note in load_scene(str(folder)).notes if "EXIF" in note)
    assert "2 of 5" in note and "r_01.png" in note
    call(inspect, folder)
    assert "EXIF orientation: 2" in capsys.readouterr().out


def test_missing_images_are_left_out_with_a_count(tmp_path):
    folder = colmap_in(tmp_path, [PINHOLE] * 20)
    names = [f"r_{index:02d}.png" for index in range(20)]
    for name in names[:10]:
        (folder / "images" / name).unlink()
    scene = load_scene(str(folder))
    assert {split: len(views.files) for split, views in scene.views.items()} == {"train": 10}, "too few for a test view"
    (note,) = [note for note in scene.notes if "missing" in note]
    assert_names(note, "10 of 20", "10", names[0])
    assert sorted(file.name for file in scene.split("train").files) == names[10:]
    (folder / "images" / names[10]).unlink()
    with raises_naming(SceneError, "data.path", "9 of 20", "11", names[0]):
        load_scene(str(folder))


@pytest.mark.parametrize("smaller", [(13, 11), (9, 8), (7, 6)])
def test_reduced_images_stand_in_for_missing_ones(tmp_path, smaller: tuple[int, int]):
    folder = colmap_in(tmp_path, [PINHOLE] * 5)
    (folder / "images").rename(folder / "images_2")
    for file in (folder / "images_2").iterdir():
        Image.open(file).resize(smaller, Image.Resampling.BOX).save(file)
    cameras = load_scene(str(folder)).split("train").cameras
    assert (cameras.width, cameras.height) == smaller
    factors = torch.tensor(smaller) / torch.tensor(SIZE)
    torch.testing.assert_close(cameras.focal[0], FOCAL * factors)


@pytest.fixture(scope="module")
def run_of_capture(tmp_path_factory) -> Path:
    """A run of a COLMAP folder by the commands; beside it the scene and the options."""
    folder = tmp_path_factory.mktemp("capture")
    colmap_in(folder / "scene", [WIDE] * 20, distance=1.3)
    changes = {  # alone: what a file says is given, a box, too
        "device": "cpu",
        "data": {"path": str(folder / "scene")},
        "model": {"levels": 2, "log2_table": 10, "max_resolution": 24, "hidden": 16, "state": 16},
        "sampling": {"step": 0.08, "occupancy_resolution": 8},
        "trainer": {"steps": 4, "samples": 1024, "log_every": 2},
    }
    (folder / "options.toml").write_text(tomli_w.dumps(changes))
    call(train, "--config", folder / "options.toml", "--out", folder / "run")
    return folder / "run"


def call(command, *arguments) -> None:
    """Run a command that has to succeed."""
    assert not command.main([str(argument) for argument in arguments])


def test_a_run_has_the_frames_box_and_range(run_of_capture):
    run = load_run(run_of_capture, "cpu")
    scene = load_scene(str(run_of_capture.parent / "scene"))
    assert run.config.data.box == pytest.approx(scene.frame.box.ravel().tolist(), abs=1e-6)
    assert run.config.sampling.near == pytest.approx(scene.frame.near)
    assert len(run.cameras("train")) == 17 and len(run.cameras("test")) == 3
    torch.testing.assert_close(run.cameras("train").camera_to_world, scene.split("train").cameras.camera_to_world)


def test_going_on_and_scoring_use_the_frame_of_the_run(run_of_capture, monkeypatch, capsys):
    """Even if another would be found now: the cameras are the same to the last bit."""
    before = (run_of_capture / "scene.json").read_text()
    score = json.loads((run_of_capture / "metrics.json").read_text())["psnr"]
    monkeypatch.setattr("nerfkit.data.assemble.frame_of", lambda *_, **__: pytest.fail("a frame was looked for"))
    call(eval_command, run_of_capture)
    again = json.loads((run_of_capture / "metrics.json").read_text())["psnr"]
    assert again == pytest.approx(score, abs=0.01), "a GPU adds in another order each time"
    call(train, "--resume", run_of_capture, "--trainer.steps", 6)
    assert (run_of_capture / "scene.json").read_text() == before
    assert "frame" in capsys.readouterr().out


def test_an_orbit_of_a_capture_is_rendered(run_of_capture, tmp_path):
    call(render, run_of_capture, "--frames", 2, "--size", 20, 16, "--out", tmp_path / "orbit")
    frames = [np.asarray(Image.open(tmp_path / "orbit" / f"000{k}.png")) for k in range(2)]
    assert frames[0].shape == (16, 20, 3) and (frames[0] != frames[1]).any()


def test_paths_depths_and_normals_are_in_the_scenes_own_frame(run_of_capture, tmp_path):
    """A path that is written is read again as the same cameras, and depths are in the units of the files."""
    size = ("--size", 26, 22)
    call(render, run_of_capture, "--path", "test", "--out", tmp_path / "a", *size, "--outputs", "rgb,depth,normal")
    written = json.loads((tmp_path / "a" / "path.json").read_text())["frames"]
    got = np.array([frame["transform_matrix"] for frame in written])
    np.testing.assert_allclose(got, np.stack(poses(20, 1.3))[[0, 8, 16]], atol=1e-5)
    call(render, run_of_capture, "--path", tmp_path / "a" / "path.json", "--out", tmp_path / "b", *size)
    for frame in ("0000.png", "0002.png"):
        one, other = (np.asarray(Image.open(tmp_path / name / frame)).astype(int) for name in "ab")
        assert np.abs(one - other).max() <= 2, "but for rounding, where a GPU adds in another order"
    run = load_run(run_of_capture)  # on the device that the command took
    assert run.frame is not None and run.frame.scale != 1
    images = run.render(run.cameras("test").resized(26, 22), 1, ("depth", "normal"))
    depth, normal = (np.load(tmp_path / "a" / f"{name}_0001.npz")[name] for name in ("depth_z", "normal"))
    np.testing.assert_allclose(depth, images["depth_z"].numpy() / run.frame.scale, rtol=1e-4)
    np.testing.assert_allclose(normal, images["normal"].numpy() @ run.frame.rotation, atol=1e-3)


def test_the_path_follows_from_where_the_views_stand(run_of_capture, tmp_path):
    call(render, run_of_capture, "--frames", 2, "--size", 8, 8)
    assert (run_of_capture / "render" / "orbit" / "0001.png").exists(), "all around"
    scene = json.loads((run_of_capture / "scene.json").read_text())
    train = [frame for frame in scene["splits"]["train"]["frames"] if frame["transform_matrix"][0][3] > 0]
    outwards = tmp_path / "outwards"
    shutil.copytree(run_of_capture, outwards)
    turned = json.loads((run_of_capture / "scene.json").read_text())
    for frame in turned["splits"]["train"]["frames"]:
        for row in frame["transform_matrix"][:3]:
            row[0], row[2] = -row[0], -row[2]
    (outwards / "scene.json").write_text(json.dumps(turned))
    call(render, outwards, "--frames", 2, "--size", 8, 8)
    assert (outwards / "render" / "interpolate" / "0001.png").exists(), "all around, but looking outwards"
    half = tmp_path / "half"
    shutil.copytree(run_of_capture, half)
    scene["splits"]["train"]["frames"] = train
    (half / "scene.json").write_text(json.dumps(scene))
    call(render, half, "--frames", 2, "--size", 8, 8)
    assert (half / "render" / "interpolate" / "0001.png").exists(), "from one side"


@pytest.mark.parametrize("box", [BOX, (-1.5, -1.5, -1.5, 1.5, 1.5, 1.5)], ids=["a box", "the default"])
def test_a_box_is_meant_in_the_files_own_frame(run_of_capture, tmp_path, box: tuple):
    options = run_of_capture.parent / "options.toml"
    call(train, "--config", options, "--data.box", *box, "--out", tmp_path / "run", "--eval.after_training", "false")
    run = load_run(tmp_path / "run", "cpu")
    assert run.config.data.box == box
    wanted = np.stack(poses(20, 1.3))[[k for k in range(20) if k % 8], :3]
    np.testing.assert_allclose(run.cameras("train").camera_to_world.numpy(), wanted, atol=1e-6)


def test_what_was_found_is_printed(run_of_capture, tmp_path, capsys):
    scene = colmap_in(tmp_path / "scene", [PINHOLE] * 20)
    (scene / "images" / "r_03.png").unlink()
    options = run_of_capture.parent / "options.toml"
    call(train, "--config", options, "--data.path", scene, "--out", tmp_path / "run", "--eval.after_training", "false")
    printed = capsys.readouterr().out
    assert_names(printed, "colmap", "19 of 20", "r_03.png", "every 8th")
    frame = load_scene(str(scene)).frame
    assert frame.text and all(line in printed for line in frame.text)


def test_inspect_prints_a_page_and_writes_it_where_it_is_asked_to(tmp_path, capsys, monkeypatch):
    scene = colmap_in(tmp_path / "scene", [PINHOLE, WIDE] * 10)
    masks_in(scene, ~LEFT)
    for index, file in enumerate(sorted((scene / "masks").iterdir())):
        if index % 2:
            file.unlink()  # of the wide images: they have another shape
    (scene / "images" / "r_03.png").unlink()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    call(inspect, scene)
    printed = capsys.readouterr().out
    assert_names(printed, "colmap", "20 listed", "1 missing", "r_03.png", "PINHOLE", "OPENCV_FISHEYE", "38.5%")
    assert sorted(tmp_path.rglob("*")) == before, "it only prints"
    call(inspect, scene, "--out", tmp_path / "out", "--data.downscale", 2)
    written = (tmp_path / "out" / "inspect.txt").read_text()
    assert written.strip() in capsys.readouterr().out and "13x11" in written and "data.downscale 2" in written
    assert Image.open(tmp_path / "out" / "inspect.png").size[0] > 1000
    call(inspect, scene, "--out", tmp_path / "out", "--data.box", *BOX)  # again
    assert all(str(abs(side)) in (tmp_path / "out" / "inspect.txt").read_text() for side in BOX)


def test_inspect_says_what_training_would(tmp_path):
    scene = colmap_in(tmp_path / "scene", [PINHOLE] * 5)
    with raises_naming(RunError, scene):
        inspect.main([str(scene), "--out", str(scene)])
    with raises_naming(SceneError, "'ply'", "colmap"):
        inspect.main([str(scene), "--data.format", "ply"])
    for option, values in (("downscale", ["0"]), ("box", "1 1 1 0 0 0".split())):
        with raises_naming(ConfigError, f"data.{option}"):
            inspect.main([str(scene), f"--data.{option}", *values])


def test_inspect_of_a_scene_of_which_most_is_missing(tmp_path, capsys):
    """Unlike training it goes on, for this is when its page is wanted."""
    scene = colmap_in(tmp_path, [PINHOLE] * 20)
    for index in range(15):
        (scene / "images" / f"r_{index:02d}.png").unlink()
    call(inspect, scene)
    assert_names(capsys.readouterr().out, "15 of 20", "more than half")


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
