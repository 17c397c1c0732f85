# SPDX-License-Identifier: Apache-2.0
"""Meshes of a field whose surface is known: place, frame, crop, colors, what is hidden, what is resumed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from nerfkit.crop import CROP
from nerfkit.data.cameras.cameras import Cameras
from nerfkit.errors import RunError, UserError
from nerfkit.export import mesh
from nerfkit.export.grid import Grid, piece_of_block
from nerfkit.export.mesh import Occluder
from nerfkit.export.views import Seen
from tests import sphere_field
from tests.camera_layouts import look_at
from tests.naming import assert_names, raises_mentioning
from tests.sphere_field import CENTER, DENSITY, EDGE, RADIUS, SPECK, SPECK_RADIUS, call, frame, read_ply, write_run
from tests.test_crop import UTM

pytest.importorskip("skimage")
RESOLUTION = 48
CELL = 1.8 / RESOLUTION  # model units


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module", autouse=True)
def coarse_levels():
    with pytest.MonkeyPatch.context() as patch:
        yield patch.setattr(mesh, "LENGTHS", RESOLUTION)


def exported(run, out, *arguments):
    call(run, "mesh", "--resolution", RESOLUTION, "--out", out, *arguments)
    return read_ply(out)


# Where the opacity of CELL is 0.2, a little outside of where the density has half of what it has inside.
LEVEL_RADIUS = RADIUS + EDGE * np.log(-DENSITY * CELL / np.log(0.8) - 1)


@pytest.fixture(scope="module", params=["depth", "density"])
def shape(request, run, tmp_path_factory):
    """The mesh of a method, in the frame of the files, and the radius that it should have."""
    radius = LEVEL_RADIUS if request.param == "density" else RADIUS
    return {"radius": radius} | exported(
        run, tmp_path_factory.mktemp("mesh") / "ball.ply", "--from", request.param, "--min_part", 0.1
    )


def test_vertices_lie_on_the_ball_in_the_frame_of_the_files(shape):
    vertices, faces = shape["vertices"], shape["faces"]
    offset = frame().to_model(vertices) - CENTER
    radius = np.linalg.norm(offset, axis=1)
    assert abs(radius.mean() - shape["radius"]) < 0.2 * CELL and np.abs(radius - RADIUS).max() < CELL
    # All sides of it, and nothing of the hollow inside or of the small ball.
    assert all(offset[:, axis].min() < -0.95 * RADIUS < 0.95 * RADIUS < offset[:, axis].max() for axis in range(3))
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
    unique, counts = np.unique(edges, axis=0, return_counts=True)
    assert (counts == 2).all() and len(vertices) - len(unique) + len(faces) == 2, "one ball without a seam"
    a, b, c = (vertices[faces[:, k]] - frame().to_input(CENTER) for k in range(3))
    volume = np.einsum("ij,ij->", a, np.cross(b, c)) / 6  # turned outwards
    assert volume == pytest.approx(4 / 3 * np.pi * (shape["radius"] / 0.25) ** 3, rel=0.04)


def test_normals_point_outwards_and_colors_are_those_that_cameras_see(shape):
    outwards = shape["vertices"] - frame().to_input(CENTER)
    outwards /= np.linalg.norm(outwards, axis=1, keepdims=True)
    assert ((shape["normals"] * outwards).sum(1) > 0.85).mean() > 0.98
    assert np.linalg.norm(shape["normals"], axis=1) == pytest.approx(1, abs=1e-4)
    error = np.abs(shape["colors"] / 255 - (0.5 + 0.5 * outwards @ frame().rotation.T))
    assert error.mean() < 0.02 and np.quantile(error, 0.99) < 0.1


def test_the_models_frame_and_what_is_said_beside_the_mesh(run, tmp_path):
    shape = exported(run, tmp_path / "m.ply", "--from", "density", "--frame", "model", "--min_part", 0.1)
    assert np.linalg.norm(shape["vertices"] - CENTER, axis=1) == pytest.approx(RADIUS, abs=CELL)
    about = json.loads((tmp_path / "m.export.json").read_text())
    assert np.allclose(about["files_to_model"], frame().matrix()) and about["frame"] == "model"
    assert about["counts"]["faces"] == len(shape["faces"]) and about["counts"]["unseen_faces"] > 100
    assert about["thresholds"]["cell"] == pytest.approx(CELL) and about["options"]["resolution"] == RESOLUTION
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.export.json", "m.ply"], "nothing else is left"


def test_small_parts_stay_if_that_is_asked_and_a_frame_may_be_none(tmp_path):
    run = write_run(tmp_path / "run", turned=False)
    vertices = exported(run, tmp_path / "m.ply", "--from", "density", "--min_part", 0)["vertices"]
    small = np.linalg.norm(vertices - SPECK, axis=1) < 0.2
    assert small.any() and np.linalg.norm(vertices[~small] - CENTER, axis=1) == pytest.approx(RADIUS, abs=CELL)


def test_what_a_shell_that_lets_light_through_hides_is_left_out(tmp_path):
    """The depth of its pixels is that of the core within."""
    run = write_run(tmp_path / "run", kind="shell")
    shape = exported(run, tmp_path / "m.ply", "--from", "density", "--min_part", 0)
    radius = np.linalg.norm(frame().to_model(shape["vertices"]) - CENTER, axis=1)
    assert radius.min() > RADIUS - sphere_field.SHELL - CELL and (radius > RADIUS - 1.5 * CELL).mean() > 0.98
    assert len(shape["faces"]) > 1000


@pytest.mark.parametrize("more", [("--resolution", 32), ("--crop", -0.2, -0.4, -0.2, 0.5, 0.3, 0.5)])
def test_neither_cells_nor_a_crop_move_a_surface_from_density(tmp_path, more):
    run = write_run(tmp_path / "run", kind="mist", amount=1000.0)
    shape = exported(run, tmp_path / "m.ply", "--from", "density", "--frame", "model", *more)
    radius = RADIUS + np.log(0.8) / CELL / 50  # where its density is that of an opacity of 0.2
    assert np.linalg.norm(shape["vertices"] - CENTER, axis=1) == pytest.approx(radius, abs=0.01)


def test_a_flat_floor_does_not_hide_itself():
    """Seen at a grazing angle by one camera; a second floor three cells below is hidden."""
    place = torch.arange(-60, 61) * 0.02
    points = torch.cartesian_prod(place, place, torch.zeros(1))
    angle = np.radians(15)
    eye = 3 * np.array([np.cos(angle), 0, np.sin(angle)])
    pose = torch.tensor(look_at(eye[None], np.zeros(3)), dtype=torch.float32)
    camera = Cameras(pose, torch.full((1, 2), 150.0), torch.full((1, 2), 64.0), 128, 128)
    size, position = camera.size(0), camera.positions[0]

    def seen(points):
        pixel, depth = camera.project(points, 0)
        inside = ((pixel >= 0) & (pixel < 128)).all(-1) & (depth > 0)
        distance = (points - position).norm(dim=-1)
        return Seen(distance, pixel, inside), (position - points)[:, 2] / distance

    on_floor, cosine = seen(points)
    occluder = Occluder(on_floor, 0.02, camera.focal[0, 0], size)
    assert not occluder.hides(on_floor, cosine).any()
    below, cosine = seen(points - torch.tensor([0, 0, 0.06]))
    inner = below.inside & (points[:, :2].abs() < 0.6).all(-1)
    assert occluder.hides(below, cosine)[inner].float().mean() > 0.99


def test_a_single_vertex_makes_no_hole_and_no_island():
    n = 9  # vertices a side of a square of triangles
    k = np.arange(n * n).reshape(n, n)
    corner, right, down, far = (part.ravel() for part in (k[:-1, :-1], k[:-1, 1:], k[1:, :-1], k[1:, 1:]))
    faces = np.concatenate([np.stack([corner, right, down], 1), np.stack([right, far, down], 1)])
    seen = np.zeros((n, n), dtype=bool)
    seen[:, :5] = True
    wanted = seen.copy()
    seen[4, 1], seen[2, 7] = False, True
    found = mesh.by_most_neighbours(faces, seen.ravel()).reshape(n, n)
    assert (found == wanted)[1:-1, 1:-1].all()


def test_glb_holds_the_same_mesh(run, tmp_path):
    trimesh = pytest.importorskip("trimesh")
    call(run, "mesh", "--resolution", 24, "--from", "density", "--out", tmp_path / "m", "--formats", "ply,glb")
    ply, glb = read_ply(tmp_path / "m.ply"), trimesh.load(tmp_path / "m.glb", process=False)
    (glb,) = glb.geometry.values()
    assert np.allclose(glb.vertices, ply["vertices"], atol=1e-4) and (glb.faces == ply["faces"]).all()
    assert np.allclose(glb.vertex_normals, ply["normals"], atol=1e-3)
    linear = (ply["colors"] / 255) ** 2.2
    assert np.abs(glb.visual.vertex_colors[:, :3] / 255 - linear).max() < 0.02
    again = trimesh.load(tmp_path / "m.ply", process=False)
    assert (again.faces == ply["faces"]).all() and np.allclose(again.vertices, ply["vertices"])


def test_glb_far_from_the_origin_has_its_place_in_a_node(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    vertices = UTM + np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0.123456]])
    normals, colors = np.tile(np.float32([0, 0, 1]), (4, 1)), np.full((4, 3), 99, np.uint8)
    shape = mesh.Mesh(vertices, np.array([[0, 1, 2], [0, 2, 3]]), normals, colors)
    (tmp_path / "far.glb").write_bytes(mesh.mesh_bytes(shape, ("glb",), "far")["glb"])
    scene = trimesh.load(tmp_path / "far.glb", process=False)
    (name,) = scene.graph.nodes_geometry
    place, (local,) = scene.graph[name][0][:3, 3], scene.geometry.values()
    assert (place.astype(np.float32) == place).all() and np.abs(local.vertices).max() < 3
    np.testing.assert_allclose(local.vertices + place, vertices, rtol=0, atol=1e-6)


@pytest.mark.parametrize("of", ["files", "model"])
def test_the_crop_of_the_run_or_of_the_option(tmp_path, of):
    run = write_run(tmp_path / "run")
    low, high = np.add(frame().to_input(CENTER) if of == "files" else CENTER, [[-9, -9, 0], [9, 9, 18]])

    def places(name: str, *arguments) -> np.ndarray:
        call(run, "mesh", "--resolution", 32, "--out", tmp_path / name, "--from", "density", "--frame", of, *arguments)
        return read_ply(tmp_path / name)["vertices"]

    def kept(**more) -> None:
        (run / CROP).write_text(json.dumps({"min": list(low), "max": list(high), "frame": of} | more))

    asked = places("asked.ply", "--crop", *low, *high)
    kept()
    cut = places("cut.ply")
    assert low[2] - 1e-3 <= cut[:, 2].min() < low[2] + 0.3 and len(cut) > 500 and np.allclose(cut, asked)
    assert places("none.ply", "--crop", "none")[:, 2].min() < low[2] - 0.1
    kept(on=False)
    assert places("whole.ply")[:, 2].min() < low[2] - 0.1, "a crop that is off cuts nothing"
    kept(max=[0, 0, 0])
    with raises_mentioning(UserError, CROP, "min", "max"):
        places("other.ply")


def test_a_mesh_is_from_depth_where_one_from_density_lacks_more(run, tmp_path, capsys, monkeypatch):
    """Most pixels show the core, which the shell hides in a mesh from density."""
    shell, out = write_run(tmp_path / "run", kind="shell"), tmp_path / "m.ply"

    def said(folder: Path, *options: object) -> tuple[np.ndarray, str]:
        return exported(folder, out, "--overwrite", *options)["vertices"], capsys.readouterr().out

    whole, notes = said(run)
    assert np.array_equal(whole, said(run, "--from", "density")[0]) and "--from depth" not in notes
    density, lacking = said(shell, "--from", "density")
    assert_names(lacking, "warning", "% of what the photos show has no surface", "--from depth")
    automatic, notes = said(shell)
    assert np.array_equal(automatic, said(shell, "--from", "depth")[0])
    assert_names(notes, "note", "--from depth is tried", "the mesh is from depth")
    level, lacking = said(shell, "--level", 0.21)
    assert not np.array_equal(level, automatic), "who gives a level wants one from density"
    assert_names(lacking, "warning", "--from depth")
    monkeypatch.setattr(mesh, "gaps", lambda shape, *_: 0.3 if len(shape.vertices) == len(density) else 0.4)
    kept, notes = said(shell)
    assert np.array_equal(kept, density) and "depth lacks 40%" in notes
    assert_names(notes.split("warning")[1], "30%", "longer training")


@pytest.mark.parametrize("kind, amount, said", [("balls", 4, "--from depth"), ("mist", 300, "no mesh from density")])
def test_a_mesh_is_from_depth_where_density_has_none(tmp_path, capsys, kind, amount, said):
    run = write_run(tmp_path / "run", kind=kind, amount=amount)
    call(run, "mesh", "--resolution", 64, "--out", f"{tmp_path}/new/")
    assert len(read_ply(tmp_path / "new" / "mesh.ply")["faces"]) > 1000
    assert_names(capsys.readouterr().out, "note", said)


def test_a_mesh_is_from_density_where_depth_has_none(tmp_path, capsys, monkeypatch):
    shell = write_run(tmp_path / "run", kind="shell")
    wanted = exported(shell, tmp_path / "wanted.ply", "--from", "density")["vertices"]
    monkeypatch.setattr(mesh.DepthField, "blocks", Mock(side_effect=RunError("too little memory")))
    assert np.array_equal(exported(shell, tmp_path / "m.ply")["vertices"], wanted)
    assert_names(capsys.readouterr().out, "note", "no mesh from depth: too little memory")
    assert not (tmp_path / "m.ply.work").exists()


def test_unbounded_space_reaches_as_far_as_the_crop(tmp_path, capsys):
    """Its grid of occupancy is of contracted space, and its box ends nothing."""
    box = (-0.3, -0.3, -0.3, 0.3, 0.3, 0.3)  # in which there is a part of the ball
    run = write_run(tmp_path / "run", space="contracted", box=box)
    inner = frame().to_model(exported(run, tmp_path / "inner.ply", "--from", "density")["vertices"])
    assert np.abs(inner).max() < 0.32 and len(inner) > 100
    call(run, "points", "--frame", "model", "--out", tmp_path / "points.ply")
    assert np.abs(read_ply(tmp_path / "points.ply")["vertices"]).max() <= 0.3
    said = capsys.readouterr().out
    assert "the middle of the place" in said and " left out " in said
    named = np.array(re.findall(r"--crop((?: [-.\d]+){6}) has", said)[-1].split(), dtype=float).reshape(2, 3)
    assert (np.abs(named - [CENTER - RADIUS, CENTER + RADIUS]) < 0.3 * RADIUS).all(), "what photos show is the ball"
    crop = ("--frame", "model", "--crop", -0.8, -0.8, -0.8, 0.8, 0.8, 0.8)
    whole = exported(run, tmp_path / "whole.ply", "--from", "density", *crop)["vertices"] - CENTER
    assert "inner cube" not in capsys.readouterr().out
    ball = whole[np.linalg.norm(whole, axis=1) < 1.2 * RADIUS]
    assert np.allclose([-ball.min(0), ball.max(0)], RADIUS, atol=0.03)
    assert (np.linalg.norm(whole + CENTER - SPECK, axis=1) < 1.5 * SPECK_RADIUS).any(), "none of it is in the box"


def test_a_crop_of_nothing_is_refused_before_views_are_rendered(run, tmp_path, monkeypatch):
    monkeypatch.setattr("nerfkit.export.views.Views.render", None)
    for crop, named in (
        ((900, 900, 900, 901, 901, 901), ("900",)),
        ((1, 1, 1, 0, 2, 2), ("min", "max")),
        ((-0.9, -0.8, -0.7, -0.7, -0.6, -0.5), ("--level", "training cameras", "--frame model")),
    ):
        with raises_mentioning(UserError, "--crop", *named):
            call(run, "mesh", "--frame", "model", "--crop", *crop, "--out", tmp_path / "m.ply")
    assert not list(tmp_path.iterdir())


# ---- files, resuming, memory


def test_without_a_name_it_goes_to_the_run_folder_and_nothing_is_replaced_unasked(tmp_path):
    run = write_run(tmp_path / "run")
    file = run / "export" / "mesh.ply"
    for options in ((), ("--overwrite",)):
        call(run, "mesh", "--resolution", 24, "--from", "density", *options)
        assert len(read_ply(file)["faces"]) > 100
        before = file.read_bytes()
        with raises_mentioning(UserError, file, "--overwrite"):
            call(run, "mesh")
        assert file.read_bytes() == before


@pytest.mark.parametrize("source", ["density", "depth", "auto"])
def test_a_killed_export_goes_on_with_the_same_options(run, tmp_path, monkeypatch, capsys, source):
    run = write_run(tmp_path / "run", kind="shell") if source == "auto" else run  # of which both are made
    monkeypatch.setattr(mesh, "BLOCKS_OF_A_PART", 1)
    monkeypatch.setattr(mesh.DensityField, "is_empty", lambda *_: False)  # which looks at some blocks, too
    kind = mesh.DensityField if source == "density" else mesh.DepthField  # of auto it is killed in the second
    inside, calls, killed_at = kind.inside, [], None

    def counted(self, *arguments):
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        calls.append(1)
        return inside(self, *arguments)

    monkeypatch.setattr(kind, "inside", counted)
    arguments = ("mesh", "--from", source, "--resolution", RESOLUTION, "--out")
    call(run, *arguments, tmp_path / "whole.ply")
    total = len(calls)
    for options in (("--resolution", RESOLUTION - 2), ()):
        killed_at = len(calls) + 3
        with pytest.raises(KeyboardInterrupt):
            call(run, *arguments, tmp_path / "m.ply", *options)
        assert_names(capsys.readouterr().out, "kept", tmp_path / "m.ply.work", "same command goes on")
    killed_at = None
    call(run, *arguments, tmp_path / "m.ply")
    assert total > 3 and len(calls) == 2 * total + 3, "three blocks were taken from before, none of another grid"
    assert (tmp_path / "m.ply").read_bytes() == (tmp_path / "whole.ply").read_bytes()
    assert not (tmp_path / "m.ply.work").exists()


def test_an_empty_scene_and_more_than_fits_into_memory_are_refused(run, tmp_path, monkeypatch):
    empty = write_run(tmp_path / "run", amount=1e-6)
    for source, option in (("density", "--level"), ("depth", "--crop")):
        with raises_mentioning(UserError, "surface", option):
            exported(empty, tmp_path / "m.ply", "--from", source)
    with raises_mentioning(UserError, "points"):
        call(empty, "points", "--out", tmp_path / "p.ply")
    assert not list(tmp_path.glob("*.work")), "nothing is left of them"
    monkeypatch.setattr("nerfkit.device.free_memory", lambda: 2**20)
    with raises_mentioning(UserError, "--resolution", "48"):
        exported(run, tmp_path / "m.ply", "--from", "density")


def test_what_cannot_be_exported_is_named(run):
    for option, value in (("--resolution", 1), ("--level", 1.5), ("--min_part", -0.5), ("--formats", "obj")):
        with raises_mentioning(UserError, option, value):
            call(run, "mesh", "--from", "density", option, value)
    with raises_mentioning(UserError, "scene.obj", ".obj", "ply", "glb"):
        call(run, "mesh", "--out", "scene.obj")
    with raises_mentioning(UserError, "mesh", "cameras"):
        call(run, "texture")


def test_corners_of_which_nothing_is_known_have_no_surface():
    grid, block = Grid.over(np.array([[-1.0, -1, -1], [1, 1, 1]]), 32), np.zeros(3, int)
    points = grid.points(block[None], torch.device("cpu"))
    (values,) = grid.split(block[None], torch.sigmoid((0.6 - points.norm(dim=-1)) / 0.05))  # inside of a ball
    values[:9] = np.nan
    piece = piece_of_block(grid, block, values)
    assert 9 <= piece.vertices[piece.faces][..., 0].min() < 10 and len(piece.faces) > 50


def test_noise_has_no_triangle_larger_than_a_cell(monkeypatch):
    """Whose cells have vertices inside of them, which belong to no edge of the grid."""
    grid, generator = Grid(np.zeros(3), 1.0, (40, 20, 20)), np.random.default_rng(0)
    values = torch.from_numpy(generator.random([n + 1 for n in grid.cells]))

    def inside(grid: Grid, blocks: np.ndarray) -> list[np.ndarray]:
        return grid.split(blocks, values[tuple(grid.points(blocks, torch.device("cpu")).long().T)])

    noise = SimpleNamespace(name="", blocks=lambda grid: np.argwhere(np.ones(grid.n_blocks)), inside=inside)
    monkeypatch.setattr(mesh, "BLOCKS_OF_A_PART", 2)
    shape = mesh.surface(grid, noise, SimpleNamespace(part=lambda name, make: make()))
    corners = shape.vertices[shape.faces]
    assert len(corners) > 20_000 and np.abs(corners - np.roll(corners, 1, axis=1)).max() <= 1
