# SPDX-License-Identifier: Apache-2.0
"""scripts/measure.py: errors of depth and meshes that are known beforehand, and density in the air before surfaces."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nerfkit.commands import train
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.errors import RunError, SceneError
from nerfkit.model.stages import Decoder
from scripts import measure
from tests.camera_layouts import ring
from tests.naming import raises_mentioning
from tests.posed_captures import HEIGHT, SMALL, WIDTH, write_capture
from tests.processes import run_main

N_PIXELS = 3 * WIDTH * HEIGHT  # of the test views


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A place and a run of it."""
    folder = tmp_path_factory.mktemp("measured")
    points = np.array([0, 0, 0.5]) + 0.5 * np.random.default_rng(0).normal(size=(300, 3))
    data = ["--data.path", str(write_capture(folder / "place", ring(20), points=points))]
    assert run_main(train, *SMALL, *data, "--out", str(folder / "run")) == 0
    return folder


@pytest.fixture
def ranges(folder):
    """Writes true ranges of the test views, in the files' units; they are gone after the test."""
    (folder / "place" / "depth").mkdir()
    files = [folder / "place" / "depth" / f"{view:03d}.npz" for view in (0, 8, 16)]
    yield lambda values: [np.savez(file, depth_ray=values) for file in files]
    for file in files:
        file.unlink(missing_ok=True)
    (folder / "place" / "depth").rmdir()


def measured(kind: str, folder: Path, *arguments: str) -> dict:
    out = folder / "measured.json"
    out.unlink(missing_ok=True)
    assert measure.main([kind, str(folder / "run"), "--device", "cpu", "--out", str(out), *arguments]) == 0
    return json.loads(out.read_text())


def filled(monkeypatch, density: float) -> None:
    """Have runs load with a field of one density everywhere."""
    real, load_run = Decoder.density, measure.load_run

    def occupied(*arguments):
        run = load_run(*arguments)
        run.model.sampler.occupancy.fill_(True)
        return run

    monkeypatch.setattr(Decoder, "density", lambda self, x: (real(self, x)[0] * 0 + density, real(self, x)[1]))
    monkeypatch.setattr(measure, "load_run", occupied)


@pytest.mark.parametrize("density, opacity", [(0.0, 0.0), (1e4, 1.0)], ids=["air", "fog"])
def test_floaters_are_what_is_before_half_the_true_range(folder, ranges, monkeypatch, density, opacity):
    filled(monkeypatch, density)
    ranges(np.where(np.arange(WIDTH) < 6, np.inf, np.ones((HEIGHT, WIDTH), np.float32)))
    found = measured("floaters", folder)
    assert found["rays"] == 3 * 18 * HEIGHT, "not those that meet no surface"
    assert found["mean_opacity"] == pytest.approx(opacity, abs=1e-3) and found["share_above_half"] == opacity
    assert [view["view"] for view in found["views"]] == ["000", "008", "016"]


def test_without_true_ranges_floaters_are_before_half_the_median_depth(folder, monkeypatch):
    """Where the transmittance is 1/2 at a distance, it is the square root of that at half the distance."""
    filled(monkeypatch, 0.3)
    found = measured("floaters", folder)
    assert found["rays"] == N_PIXELS and found["mean_opacity"] == pytest.approx(1 - 0.5**0.5, abs=0.05)
    together = measured("floaters", folder, "--beside", str(folder / "run"), str(folder / "run"))
    assert together["mean_opacity"] == pytest.approx(1 - 0.5**0.5, abs=0.05)


def test_a_run_is_measured_at_the_size_of_the_ranges(folder, ranges):
    ranges(np.ones((2 * HEIGHT, 2 * WIDTH), np.float16))
    assert measured("depth", folder)["pixels"] == 4 * N_PIXELS


def test_depth_without_truth_is_an_error(folder, ranges):
    with raises_mentioning(SceneError, "000", "depth"):
        measured("depth", folder)
    ranges(np.ones((3, 30)))
    with raises_mentioning(SceneError, "depth_ray", "24x16", "000.npz", "[3, 30]"):
        measured("depth", folder)
    with raises_mentioning(RunError, "--out", "exists"):
        measure.main(["depth", str(folder / "run"), "--out", str(folder / "run")])


def test_depth_errors_are_relative():
    """Of a model that sees a sphere of radius 1.1 around each camera."""

    def sphere(rays, background):
        n = len(rays.directions)
        return SimpleNamespace(color=torch.zeros(n, 3), opacity=torch.full((n,), 0.25), depth=torch.full((n,), 1.1))

    box = [-100.0, -100, -100, 100, 100, 100]
    config = SimpleNamespace(data=SimpleNamespace(box=box))
    run = SimpleNamespace(model=sphere, background=torch.ones(3), device=torch.device("cpu"), config=config)
    cameras = Cameras(torch.eye(3, 4)[None], torch.full((1, 2), 8.0), torch.full((1, 2), 4.0), 8, 8)
    near, far = torch.ones(8, 8), torch.full((8, 8), 1000.0)  # far out of the box
    near[0] = torch.inf
    found = measure.depth_errors(run, [measure.View("near", cameras, near), measure.View("far", cameras, far)])
    assert found["without_surface"] == {"pixels": 8, "mean_opacity": 0.25} and found["pixels"] == 120
    assert found["inside_box"]["quantile_90"] == pytest.approx(0.1, abs=1e-4)
    assert [view["median"] for view in found["views"]] == pytest.approx([0.1, 0.9989], abs=1e-4)


def test_distances_of_a_mesh(tmp_path, monkeypatch):
    """A ball that is 2 % too large, with a stray triangle far outside that does not count."""
    trimesh = pytest.importorskip("trimesh")
    monkeypatch.setattr(measure, "DENSE", 100_000)
    monkeypatch.setattr(measure, "POINTS", 5000)
    ball = trimesh.creation.icosphere(subdivisions=4)  # of radius 1
    grid = np.round((ball.vertices + 1) / 2 * measure.GRID).astype(int)
    to_files = np.eye(4)
    to_files[:3] = np.c_[np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]]) * 6 / measure.GRID, [1, 2, 3]]  # turned, size 6
    rows = {"vertices": (grid, np.uint16), "faces": (ball.faces, np.int32), "visible": (grid, np.uint16)}
    arrays = {name: np.diff(x, axis=0, prepend=0).astype(kind).T for name, (x, kind) in rows.items()}
    np.savez(tmp_path / "surface.npz", to_files=to_files, **arrays)
    large = np.c_[(1.02 * ball.vertices + 1) / 2 * measure.GRID, np.ones(len(ball.vertices))] @ to_files[:3].T
    stray = np.array([[60.0, 60, 60], [61, 60, 60], [60, 61, 60]])
    faces = np.r_[ball.faces, len(large) + np.arange(3)[None]]
    trimesh.Trimesh(np.r_[large, stray], faces, process=False).export(tmp_path / "mesh.ply")
    found = measure.mesh_errors(tmp_path / "mesh.ply", tmp_path)
    assert found["size"] == pytest.approx(6) and found["chamfer_percent"] == pytest.approx(1.0, abs=0.02)
    assert found["truth_to_mesh_median_percent"] == pytest.approx(1.0, abs=0.02)
    with raises_mentioning(SceneError, "surface.npz"):
        measure.mesh_errors(tmp_path / "mesh.ply", tmp_path / "elsewhere")
