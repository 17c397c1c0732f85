# SPDX-License-Identifier: Apache-2.0
"""Measured depth: files of every kind as distances along the rays, units that are not those of the poses, and what
training learns of it and of sparse points."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nerfkit
from nerfkit.commands.inspect import examine
from nerfkit.config import DataConfig
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.capture import Capture, Points
from nerfkit.data.depth import depth_notes, seen_in_front
from nerfkit.data.images.batch import SIGHTED
from nerfkit.data.load import load_capture, load_scene
from nerfkit.data.readers.transforms import MAIN
from nerfkit.model.compositing import Rendering
from nerfkit.model.sampling import Samples
from nerfkit.training.step.losses import TrainingLoss, depth_error
from tests.naming import assert_names, raises_mentioning
from tests.posed_captures import SIZE, WIDE, WRITERS, capture_in, masks_in, write_colmap, write_nerfstudio
from tests.processes import ROOT
from tests.test_doors import tiny
from tests.test_quality import needs_images_of

PANORAMA = Lens("EQUIRECTANGULAR", (96.0, 48.0), 96, 48)
N, FLOOR = 16, -1.5  # views; height of a plane that all of them see, instead of the toy


Floor = list[tuple[str, np.ndarray, np.ndarray]]  # image names, distances along rays and along the axis, if any [H, W]


def above_floor(folder: Path, write: Callable = write_nerfstudio, lens: Lens = WIDE) -> Floor:
    capture = capture_in(folder, [lens] * N)
    local = lens.direction_map().directions.unflatten(0, (lens.height, lens.width)).double().numpy()
    found = []
    for image in capture.images:
        rotation, position = image.camera_to_world[:, :3], image.camera_to_world[:, 3]
        ray = (FLOOR - position[2]) / (local @ rotation.T)[..., 2]
        z = np.ones_like(ray) if lens.is_panorama else -local[..., 2]
        ray = np.where((ray > 0) & (ray < 40) & (z > 0.2), ray, 0)  # the axis measures nothing aside
        found.append((Path(image.name).stem, ray, ray * z))
    write(folder, capture)
    return found


def write_exr(file: Path, values: np.ndarray) -> None:
    exr = pytest.importorskip("OpenEXR")
    header = {"compression": exr.ZIP_COMPRESSION, "type": exr.scanlineimage}
    exr.File(header, {"Z": values.astype(np.float32)}).write(str(file))


def write_png(file: Path, values: np.ndarray) -> None:
    Image.fromarray(values.round().astype(np.uint16)).save(file)


def check_learned(scene: nerfkit.Scene, floor: Floor) -> torch.Tensor:
    """Check the distances of the training views; how much each counts."""
    views, ranges = scene.split("train"), {name: ray for name, ray, _ in floor}
    distance, counts = views.load(with_depth=True).depth.unbind(-1)
    wanted = scene.transform.scale * np.concatenate([ranges[name].ravel() for name in views.names])
    np.testing.assert_allclose(distance, wanted, rtol=5e-3)
    assert torch.equal(counts > 0, distance > 0)
    return counts


KINDS = {  # file, and how a distance along the ray and one along the axis become one
    "png": lambda file, ray, z: write_png(file, 1000 * z),
    "npy": lambda file, ray, z: np.save(file, z.astype(np.float32)[..., None]),
    "npz": lambda file, ray, z: np.savez(file, depth_ray=np.where(ray > 0, ray, np.inf), rgb=np.zeros((1, 1, 3))),
    "png.geometric.bin": lambda file, ray, z: file.write_bytes(b"40&34&1&" + z.astype("<f4").tobytes()),  # COLMAP's
    "exr": lambda file, ray, z: write_exr(file, np.where(z > 0, z, np.nan)),
}


@pytest.mark.parametrize("ending", KINDS)
def test_files_of_every_kind_become_distances_along_the_ray(tmp_path, ending):
    """In model units; what is infinite, zero or no number is a hole, and so is where the lens knows no direction."""
    of_colmap = "geometric" in ending
    floor = above_floor(tmp_path, write_colmap if of_colmap else write_nerfstudio)
    (folder := tmp_path / ("stereo/depth_maps" if of_colmap else "depth")).mkdir(parents=True)
    for name, ray, z in floor:
        KINDS[ending](folder / f"{name}.{ending}", ray, z)
        (folder / f"{name}.png.photometric.bin").touch()  # COLMAP's first guess
    scene = load_scene(str(tmp_path))
    warnings = [note.text for note in scene.notes if note.kind == "warning"]
    assert not scene.transform.warnings() and all("no points" in text for text in warnings)
    assert scene.split("train").load().depth is None, "only a training asks for it"
    assert 0.1 < check_learned(scene, floor).mean() < 0.9


@pytest.mark.parametrize("unit, lens", [(1.0, WIDE), (0.01, WIDE), (1.0, PANORAMA), (1.05, PANORAMA)])
def test_depth_in_another_unit_than_the_poses_is_noticed(tmp_path, unit, lens):
    """By what views see of each other; the option that is named mends it."""
    (tmp_path / "measured").mkdir(parents=True)
    for name, _, z in above_floor(tmp_path, lens=lens):
        np.save(tmp_path / "measured" / f"{name}.npy", (unit * z).astype(np.float32))
    content = json.loads((tmp_path / MAIN).read_text())
    for frame in content["frames"]:
        frame["depth_file_path"] = f"measured/{Path(frame['file_path']).stem}.npy"
    (tmp_path / MAIN).write_text(json.dumps(content))
    inspection = examine(load_capture(str(tmp_path)), DataConfig())
    warnings = [problem for problem in inspection.problems() if "depth" in problem]
    assert f"{len(content['frames'])} have depth images" in inspection.verdict()[1]
    assert bool(warnings) == (unit != 1), warnings
    assert_names("".join(warnings) or inspection.page(), "training images have depth", "of their pixels")
    named = float(re.search(r"--data.depth_unit ([0-9.]+)", warnings[0])[1]) if warnings else 1.0
    assert named == pytest.approx(1 / unit, rel=0.03)
    mended = examine(load_capture(str(tmp_path)), DataConfig(depth_unit=named))
    assert not [problem for problem in mended.problems() if "depth" in problem]


def test_confidence_of_a_rig_lies_in_folders_as_its_depth_does(tmp_path):
    """Of two cameras whose images have the same names; of one of them there is none."""
    images = []
    for index, image in enumerate(capture_in(tmp_path, [WIDE] * 4).images):
        name = f"{'left' if index < 2 else 'right'}/{index % 2}.png"
        for place in ("images", "depth", "confidence")[: 3 if index < 2 else 2]:
            (tmp_path / place / name).parent.mkdir(parents=True, exist_ok=True)
            write_png(tmp_path / place / name, np.full((11, 13), 1000))
        images.append(replace(image, name=name, file=image.file.rename(tmp_path / "images" / name)))
    write_nerfstudio(tmp_path, Capture("rig", "test", images))
    found = {image.file.parent.name: image.depth.confidence for image in load_capture(str(tmp_path)).images}
    assert found == {"left": tmp_path / "confidence" / "left" / "1.png", "right": None}


@pytest.mark.parametrize("format, images", {"polycam": "keyframes/images", "record3d": "rgb", "llff": "images"}.items())
def test_depth_of_exports_lies_beside_their_images(tmp_path, format, images):
    WRITERS[format](tmp_path, capture_in(tmp_path, [replace(WIDE, model="PINHOLE", params=WIDE.params[:4])] * N))
    depth, confidence = (tmp_path / images).with_name("depth"), (tmp_path / images).with_name("confidence")
    for folder, level in ((depth, 2000), (confidence, 1)):
        folder.mkdir()
        for file in [*(tmp_path / images).iterdir(), Path("nobody.png")]:
            write_png(folder / f"{file.stem}.png", np.full((11, 13), level))
    views = load_scene(str(tmp_path)).split("train")
    assert all(views.depths)
    assert views.load(with_depth=True).depth[:, 1].unique().tolist() == [0.5]


@pytest.mark.parametrize("values, says", [
    (np.ones(SIZE[::-1], np.uint8), ("8 bits", "16")), (np.ones((5, 40), np.uint16), ("40x5", "40x34")),
])  # fmt: skip
def test_files_that_measure_nothing_are_left_out_with_a_warning(tmp_path, values, says):
    for name, *_ in above_floor(tmp_path):
        (tmp_path / "depth").mkdir(exist_ok=True)
        Image.fromarray(values).save(tmp_path / "depth" / f"{name}.png")
    scene = load_scene(str(tmp_path))
    assert not scene.has_depth
    assert_names(" ".join(note.text for note in scene.notes if note.kind == "warning"), "depth image", *says)


@pytest.mark.parametrize("weights, counts, wanted", [
    ((0, 1, 1, 0), (1, 1), 0.0),  # all lies at the distance
    ((0, 1, 0, 1), (1, 1), 0.25), ((0, 1, 0, 1), (1, 0), 0.0),  # half of its distance behind; of a ray that counts not
    ((0.5, 0.5, 1, 0), (1, 1), 0.125), ((0, 0, 1, 0), (1, 1), 0.5), ((0, 0, 0, 0), (0, 0), 0.0),
])  # fmt: skip
def test_the_loss_is_how_far_weights_are_from_the_distance(weights, counts, wanted):
    """Of two rays of two samples each, at 1 and 2, and at 2 and 3."""
    t, offsets = torch.tensor([1.0, 2, 2, 3]), torch.tensor([0, 2, 4])
    samples = Samples(torch.zeros(4, 3), t - 0.1, t + 0.1, torch.tensor([0, 0, 1, 1]), offsets, torch.ones(2).bool())
    rendering = Rendering(torch.zeros(2, 3), torch.ones(2), torch.zeros(2), torch.tensor(weights), samples)
    depth = torch.tensor([[2.0, counts[0]], [2.0, counts[1]]])
    assert depth_error(rendering, depth).item() == pytest.approx(wanted)


def trainer_of(folder: Path, depth: float | None, steps: int = 60) -> nerfkit.Trainer:
    config = tiny(nerfkit.Config(device="cpu"))
    config.trainer.depth, config.trainer.steps, config.trainer.max_seconds = depth, steps, 0.0
    config.data.path = str(folder)
    return nerfkit.Trainer(config)


def test_depth_images_are_learned_from_unless_they_are_not_wanted(tmp_path):
    floor = above_floor(tmp_path)
    (tmp_path / "depth").mkdir()
    for name, ray, z in floor:
        KINDS["png"](tmp_path / "depth" / f"{name}.png", ray, z)
    errors = {}
    for depth in (0.1, 0.0):
        trainer = trainer_of(tmp_path, depth, steps=200)
        trainer.train()
        measured = trainer_of(tmp_path, None).views.draw(500)
        with torch.no_grad():
            errors[depth] = depth_error(trainer.model(measured.rays, measured.background), measured.depth)
    assert errors[0.1] < 0.8 * errors[0.0] and trainer_of(tmp_path, None).config.trainer.depth == 0.01
    rendering, loss = trainer.model(measured.rays, measured.background), TrainingLoss(trainer_of(tmp_path, 0.1).config)
    start, end = (loss(rendering, measured._replace(progress=torch.tensor(at)))["depth"] for at in (0.0, 1.0))
    assert 0 < end < 0.05 * start, "colors have the last word"


def test_depth_of_what_is_masked_does_not_count(tmp_path):
    for name, _, z in above_floor(tmp_path):
        (tmp_path / "depth").mkdir(exist_ok=True)
        write_png(tmp_path / "depth" / f"{name}.png", 1000 * z)
    masks_in(tmp_path, np.indices((WIDE.height, WIDE.width))[1] < 20)
    batch = trainer_of(tmp_path, 0.1).views.draw(500)
    assert batch.depth[batch.weight > 0, 1].any() and not batch.depth[batch.weight == 0, 1].any()


@pytest.mark.parametrize("tracked", [True, False])
def test_sparse_points_are_rays_of_known_length(tmp_path, tracked):
    """Of the training views that see them: of one that is hidden by another only where the file says so."""
    capture = capture_in(tmp_path, [WIDE] * N)
    positions = np.array([[0.0, 0, 0.3], [0.1, 0, 0.0]])
    lengths, views = np.array([2, 1] if tracked else [0, 0]), np.array([1, 2, 3] if tracked else [], np.int64)
    capture = replace(capture, points=Points(positions, np.zeros((2, 3), np.uint8), lengths, views))
    write_colmap(tmp_path, capture) if tracked else write_nerfstudio(tmp_path, capture)
    trainer = trainer_of(tmp_path, 0.1)
    batch = trainer.views.draw(40 * SIGHTED)
    some = batch.weight == 0
    assert some.sum() == 40 and torch.equal(batch.depth[:, 1] > 0, some)
    at = (batch.rays.origins + batch.rays.directions * batch.depth[:, :1])[some]
    wanted = torch.tensor(trainer.scene.transform.to_model(positions), dtype=torch.float32)
    assert torch.cdist(at, wanted).amin(1).max() < 1e-3
    assert torch.equal(batch.rays.origins[some], trainer.cameras.positions[batch.view[some]])
    names = {trainer.scene.split("train").names[view] for view in batch.view[some].tolist()}
    assert names == {"r_01", "r_02", "r_03"} if tracked else len(names) > 9
    assert trainer_of(tmp_path, None).views.sightings is None, "auto: only where there are depth images"


def test_depth_that_is_asked_for_has_to_be_there(tmp_path):
    write_colmap(tmp_path, capture_in(tmp_path, [WIDE] * N))
    with raises_mentioning(nerfkit.UserError, "trainer.depth", "depth images", "sparse points"):
        trainer_of(tmp_path, 0.1)


def test_depth_of_few_views_that_look_everywhere_is_compared_where_they_look_alike():
    """Of the shipped room, whose poses are given in another unit."""
    needs_images_of(ROOT / "data" / "room" / "images")
    capture = load_capture(str(ROOT / "data" / "room"))
    for seed in range(3):
        some = np.sort(np.random.default_rng(seed).choice(len(capture.images), 10, replace=False))
        images = [capture.images[k] for k in some]
        poses = [np.column_stack([x.camera_to_world[:, :3], 2 * x.camera_to_world[:, 3]]) for x in images]
        images = [replace(x, camera_to_world=pose) for x, pose in zip(images, poses, strict=True)]
        notes = depth_notes(capture.of_images(images), [x.name for x in images], 0.0)
        assert any(note.kind == "warning" and "not in the poses' unit" in note.text for note in notes), notes


def test_a_panorama_sees_points_all_around_it():
    cameras = Cameras.from_lenses(torch.eye(4)[None, :3], [PANORAMA])
    points = torch.tensor([(0.0, 0, -2), (0.1, 0, 3), (0.2, 0, 6), (4.0, 0, 0), (0.1, -5, 0)])
    _, seen = seen_in_front(cameras, points)
    assert sorted(seen.tolist()) == [0, 1, 3, 4]
