# SPDX-License-Identifier: Apache-2.0
"""The scenes of `scripts/make_scenes.py`: rays meet shapes where they are, light and mirrors, the command's folders."""

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nerfkit.data.load import load_scene
from nerfkit.errors import ConfigError, RunError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import make_scenes  # noqa: E402
from orrery import arrangements, casting, lighting, shading  # noqa: E402
from orrery.cameras import look_at, on_sphere  # noqa: E402
from orrery.parts import TEXTURES, UP, Material, Parts, frame_of  # noqa: E402
from orrery.shapes import ELLIPSE, LEAF, RECTANGLE, Ellipsoids, Patches, Rods, Tori  # noqa: E402

from tests.naming import assert_names, raises_naming  # noqa: E402

DARK = lighting.Light((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), ())
EVEN = lighting.Light((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), ())
WHITE = Material((1.0, 1.0, 1.0))
by_seed = pytest.mark.parametrize("seed", range(3))


def random_shapes(rng: np.random.Generator, n: int = 6) -> dict[type, object]:
    """n of each kind, within 0.6 of the origin, in tensors."""
    parts = Parts()
    for _ in range(n):
        center, frame = rng.uniform(-0.6, 0.6, 3), frame_of(rng.normal(size=3), rng.uniform(0, 6))
        parts.rod(center, center + rng.normal(size=3) * 0.2, rng.uniform(0.05, 0.2), WHITE)
        parts.ellipsoid(center, frame, rng.uniform(0.05, 0.3, 3), WHITE)
        parts.patch(center, 0.3 * frame[:, 0], 0.2 * frame[:, 1], (ELLIPSE, RECTANGLE, LEAF)[rng.integers(3)], WHITE)
        parts.ring(center, frame[:, 2], rng.uniform(0.15, 0.3), rng.uniform(0.02, 0.1), WHITE)
    return {type(kind): kind for kind in parts.scene(DARK).kinds}


def random_rays(seed: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Origins on a sphere of radius 2, unit directions to near the origin, each [3, n]."""
    generator = torch.Generator().manual_seed(seed)
    origins = torch.nn.functional.normalize(torch.randn(3, n, generator=generator), dim=0) * 2
    targets = torch.rand(3, n, generator=generator) * 1.2 - 0.6
    return origins, torch.nn.functional.normalize(targets - origins, dim=0)


def outside(kind, k: int, p: torch.Tensor) -> torch.Tensor:
    """Function [...] of points [3, ...] that is negative within shape k, written anew for each solid."""

    def column(a):
        return a.reshape(3, *[1] * (p.ndim - 1))

    if isinstance(kind, Rods):
        start, axis = column(kind.start[:, k]), column(kind.end[:, k] - kind.start[:, k])
        along = (((p - start) * axis).sum(0) / (axis * axis).sum()).clamp(0, 1)
        return (p - start - along * axis).norm(dim=0) - kind.radius[k]
    if isinstance(kind, Ellipsoids):
        return (
            torch.linalg.solve(kind.axes[..., k], (p - column(kind.center[:, k])).reshape(3, -1))
            .norm(dim=0)
            .reshape(p.shape[1:])
            - 1
        )
    axis = column(kind.frame[:, 2, k])
    offset = p - column(kind.center[:, k])
    height = (offset * axis).sum(0)
    flat = offset - height * axis
    circle = flat / flat.norm(dim=0) * kind.major[k]
    return (offset - circle).norm(dim=0) - kind.minor[k]


@by_seed
@pytest.mark.parametrize("of", [Rods, Ellipsoids, Tori])
def test_solids_are_met_where_a_walk_along_the_ray_enters_them(of, seed):
    kind = random_shapes(np.random.default_rng(seed))[of]
    origins, directions = random_rays(seed, 150)
    t = torch.arange(0.5, 3.5, 0.005)
    n_met = 0
    for k in range(len(kind)):
        found = kind.hit(torch.tensor([k]), origins, directions)
        within = outside(kind, k, origins[..., None] + t * directions[..., None]) < 0  # [R, T]
        walked = torch.where(within.any(1), t[within.int().argmax(1)], torch.inf)
        assert (found[walked.isfinite()] - walked[walked.isfinite()]).abs().amax(0) < 0.01
        grazed = found.isfinite() & walked.isinf()  # between two steps
        assert grazed.float().mean() < 0.03
        points = (origins + found * directions)[:, found.isfinite()].requires_grad_()
        value = outside(kind, k, points)
        assert value.abs().max() < 2e-3
        gradient = torch.autograd.grad(value.sum(), points)[0]
        normals = kind.normal(torch.full((points.shape[1],), k), points.detach())
        torch.testing.assert_close(normals, torch.nn.functional.normalize(gradient, dim=0), atol=0.02, rtol=0)
        n_met += len(normals[0])
    assert n_met > 30


@by_seed
def test_patches_are_met_within_their_outline(seed):
    kind = random_shapes(np.random.default_rng(seed), 9)[Patches]
    origins, directions = random_rays(seed, 400)
    for k in range(len(kind)):
        u, v, center = kind.u[:, k, None], kind.v[:, k, None], kind.center[:, k, None]
        a, b, t = torch.linalg.solve(
            torch.stack([u.expand_as(origins), v.expand_as(origins), -directions], -1).permute(1, 0, 2),
            (origins - center).T,
        ).T
        inside = {
            ELLIPSE: a**2 + b**2 < 1,
            RECTANGLE: (a.abs() < 1) & (b.abs() < 1),
            LEAF: (a.abs() < 1) & (b.abs() < 0.95 * (1 - a * a) * (1 - 0.35 * a)),
        }[int(kind.outline[k])]
        found = kind.hit(torch.tensor([k]), origins, directions)
        assert (found.isfinite() == inside).float().mean() > 0.995 and inside.any()
        both = found.isfinite() & inside
        torch.testing.assert_close(found[both], t[both], atol=2e-3, rtol=0)


@by_seed
def test_a_picture_meets_what_its_rays_meet(seed):
    """Shape by shape within bounding rectangles, or all shapes by all rays."""
    kinds = list(random_shapes(np.random.default_rng(seed)).values())
    view, places = pinhole(0.4 + seed, 0.3, 31, 22), casting.sample_places(4)
    hits = casting.first_hits(kinds, view, places)
    row, column = torch.meshgrid(torch.arange(22), torch.arange(31), indexing="ij")
    right, down = ((base[..., None] + place).reshape(-1) for base, place in zip((column, row), places.T, strict=True))
    every = casting.nearest_hits(kinds, *view.rays(right, down))
    assert (hits.shape == every.shape).float().mean() > 0.999
    assert 0.1 < (hits.shape >= 0).float().mean() < 0.9
    same = (hits.shape == every.shape) & (hits.shape >= 0)
    torch.testing.assert_close(hits.distance[same], every.distance[same], atol=1e-4, rtol=0)


def pinhole(azimuth: float, elevation: float, width: int, height: int) -> casting.Pinhole:
    pose = torch.tensor(look_at(on_sphere(azimuth, elevation)), dtype=torch.float32)
    return casting.Pinhole(pose, 1.39 * max(width, height), width, height)


def shot(parts: Parts, light: lighting.Light, view: casting.Pinhole, samples: int = 16) -> np.ndarray:
    return shading.picture(shading.light_up(parts.scene(light), 64), view, samples)


@pytest.mark.parametrize("samples", [9, 16, 25])
def test_alpha_is_the_share_of_a_pixel(samples):
    """The area of a disc that faces the camera, of which no texel is wider than a step."""
    view = pinhole(0.7, 0.4, 40, 28)
    parts = Parts()
    parts.disc((0, 0, 0), view.pose[:3, 2].numpy(), 0.71, WHITE)
    alpha = shot(parts, DARK, view, samples)[..., 3]
    radius = 0.71 * view.focal / 4.031129
    assert alpha.sum() == pytest.approx(math.pi * radius**2, rel=0.01)
    np.testing.assert_allclose(alpha * samples, np.round(alpha * samples), atol=1e-4)
    assert alpha.min() == 0 and alpha.max() == 1 and ((alpha > 0) & (alpha < 1)).sum() > 20


@pytest.mark.parametrize("turn", [0.0, 0.35, math.pi / 4, math.pi / 2])
def test_a_wire_covers_its_width_at_any_slope(turn):
    view = pinhole(0.2, 0.1, 60, 60)
    across, up = view.pose[:3, 0].numpy(), view.pose[:3, 1].numpy()
    along = math.cos(turn) * across + math.sin(turn) * up
    pixel = 4.031129 / view.focal
    parts = Parts()
    parts.wire([-0.5 * along, 0.5 * along], 0.6 * pixel, WHITE, 0.1)
    alpha = shot(parts, DARK, view, 64)[..., 3]
    expected = 1.0 / pixel * 1.2 + math.pi * 0.6**2  # a rectangle and two half discs, square pixels
    assert alpha.sum() == pytest.approx(expected, rel=0.03)


def test_places_of_samples_cover_both_axes():
    for samples in (4, 16, 64):
        places = casting.sample_places(samples).numpy()
        assert (places >= 0).all() and (places < 1).all()
        for axis in places.T:
            assert sorted((axis * samples).astype(int)) == list(range(samples))


def plate_and_ball() -> Parts:
    parts = Parts()
    parts.disc((0, 0, -0.3), UP, 1.0, WHITE)
    parts.ball((0, 0, 0.2), 0.2, Material((0.9, 0.0, 0.0)))
    return parts


def test_shadows_fall_away_from_the_light():
    box = lighting.SoftBox((1.0, 0.0, 1.0), 0.02, 0.02, (1000.0, 1000.0, 1000.0), 1)
    image = shot(plate_and_ball(), DARK._replace(boxes=(box,)), pinhole(-math.pi / 2, 1.5, 64, 64))
    # Seen from above with x to the right: the ball is 0.5 over the plate, so that its shadow lies 0.5 to the left.
    right, down = pinhole(-math.pi / 2, 1.5, 64, 64).project(torch.tensor([[-0.5, 0.5], [0.0, 0.0], [-0.3, -0.3]]))
    shadow, lit = (image[int(y), int(x), 1] for x, y in zip(right, down, strict=True))
    expected = 1000 * 4 * 0.02**2 / math.pi * math.cos(math.pi / 4)
    assert shadow == 0 and lit == pytest.approx(expected, rel=0.01)


def test_an_even_sky_lights_evenly_and_less_beneath_a_ball():
    alone, view = Parts(), pinhole(0.3, 1.3, 48, 48)
    alone.disc((0, 0, -0.3), UP, 1.0, WHITE)
    free, covered = (shot(parts, EVEN, view)[..., 1] for parts in (alone, plate_and_ball()))
    right, down = view.project(torch.tensor([[0.3, -0.9], [0.0, 0.0], [-0.3, -0.3]]))
    near, far = ((int(y), int(x)) for x, y in zip(right, down, strict=True))
    assert free[near] == pytest.approx(free[far], rel=0.01) and 0.9 < free[near] < 1.1
    assert covered[near] < 0.95 * free[near] and covered[far] > 0.97 * free[far]


@pytest.mark.parametrize("roughness", [0.0, 0.1, 0.3])
def test_a_lobe_blurs_the_light_and_keeps_its_amount(roughness):
    box = lighting.SoftBox((1.0, 0.3, 0.2), 0.2, 0.1, (1.0, 1.0, 1.0), 1)
    across, up, center = lighting._frame(box)
    at = torch.linspace(-2.5, 2.5, 401)
    x, y = torch.meshgrid(at, at, indexing="ij")
    rays = torch.stack([c * 1 + a * x + b * y for a, b, c in zip(across, up, center, strict=True)])
    seen = lighting._covered(box, rays / rays.norm(dim=0), roughness)
    assert seen.sum() * (at[1] - at[0]) ** 2 == pytest.approx(4 * 0.2 * 0.1, rel=0.02)
    assert (seen.max() > 0.99) == (roughness == 0) and seen.min() >= 0


def test_a_mirror_shows_what_stands_before_it_in_its_place():
    """Where the camera would see a ball below a mirror without the mirror, it sees that of a ball above it."""
    mirror = Material(mirror=(1.0, 1.0, 1.0), roughness=0.0)
    parts, twin = Parts(), Parts()
    parts.disc((0, 0, 0), UP, 1.2, mirror)
    parts.ball((0.1, 0.1, 0.6), 0.25, Material((0.9, 0.0, 0.0)))
    twin.ball((0.1, 0.1, -0.6), 0.25, WHITE)
    view = pinhole(0.6, 0.75, 50, 50)
    image = shot(parts, EVEN, view)
    expected = shot(twin, DARK, view)[..., 3] == 1
    is_red = (image[..., 3] == 1) & (image[..., 1] < 0.05)  # the sky in the mirror is white
    assert is_red[expected].mean() > 0.9 and expected.sum() > 30
    from_beside = shot(parts, EVEN, pinhole(3.0, 0.75, 50, 50))
    assert np.abs(from_beside - image).max() > 0.3  # it depends on the view


def test_textures_lie_between_their_two_colors():
    points = torch.rand(3, 5000, generator=torch.Generator().manual_seed(0)) * 40 - 20
    for k, name in enumerate(TEXTURES):
        values = shading._textured(torch.full((5000,), k), points if name != "veins" else points / 20)
        assert values.min() >= 0 and values.max() <= 1 and (name == "plain") == (values.std() < 0.05), name


def hulls(scene) -> torch.Tensor:
    return torch.cat([kind.hull().reshape(3, -1) for kind in scene.kinds], 1)


@pytest.mark.parametrize("kind", list(make_scenes.FAMILIES))
def test_all_of_a_scene_is_in_the_box_that_is_modelled(kind):
    for seed in range(25 if kind == "random" else 3):
        assert hulls(make_scenes.FAMILIES[kind].build(seed)).abs().max() < 1.4


@pytest.mark.parametrize("kind", ["wires", "metal", "leaves"])
def test_a_scene_is_rich(kind):
    image = shading.picture(shading.light_up(make_scenes.FAMILIES[kind].build(0), 40), pinhole(-1.2, 0.4, 40, 40), 4)
    alpha = image[..., 3]
    assert 0.15 < alpha.mean() < 0.6
    colors = (image[..., :3] / alpha[..., None].clip(0.01))[alpha == 1]
    assert np.isfinite(image).all() and colors.min() >= 0 and colors.std(0).min() > 0.05
    assert np.median(colors) < 0.8  # not burnt out


@pytest.mark.parametrize("kind", list(make_scenes.FAMILIES))
def test_a_scene_is_seen_whole(kind):
    kinds = make_scenes.FAMILIES[kind].build(3).kinds
    for view in make_scenes.views_of(make_scenes.checked(make_scenes.Options(kind, views=(4, 2)))):
        seen = casting.first_hits(kinds, make_scenes.camera(view, 160), casting.sample_places(1)).shape >= 0
        seen = seen.reshape(160, 160)
        assert seen.float().mean() > 0.08
        assert not any(edge.any() for edge in (seen[0], seen[-1], seen[:, 0], seen[:, -1]))


def test_mirrors_are_metal_and_wires_are_thin():
    metal, wires, leaves = (make_scenes.FAMILIES[name].build(0) for name in ("metal", "wires", "leaves"))
    widths = {kind: 2 * kind.radius for kind in wires.kinds if isinstance(kind, Rods)}
    pixel = 4.031 * 2 * math.tan(0.3455) / 400
    (rods,) = widths.values()
    assert ((rods > 0.9 * pixel) & (rods < 2.1 * pixel)).float().mean() > 0.95
    roughness = metal.table[(metal.table[:, 6:9].amax(1) > 0.3), 9]
    assert roughness.min() == 0 and roughness.max() > 0.2
    assert max(len(kind) for kind in leaves.kinds if isinstance(kind, Patches)) > 500


@by_seed
def test_a_seed_is_an_arrangement(seed):
    same, other = (hulls(arrangements.build(seed + k)) for k in (0, 1))
    torch.testing.assert_close(hulls(arrangements.build(seed)), same, atol=0, rtol=0)
    assert same.shape != other.shape or not torch.equal(same, other)


SMALL = ("--kind", "random", "--size", "24", "--views", "3", "2", "--samples", "4")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Scenes 01 and 02, which no test may change."""
    folder = tmp_path_factory.mktemp("scenes")
    make_scenes.main([*SMALL, "--seed", "1", "--count", "2", "--out", str(folder)])
    return folder


@pytest.fixture
def copied(made, tmp_path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(made, tmp_path / "scenes"))


def test_the_folder_loads_and_shows_the_scene(made):
    assert sorted(path.name for path in made.iterdir()) == ["01", "02"]
    images = {}
    for name in ("01", "02"):
        scene = load_scene(str(made / name))
        assert {split: len(views.files) for split, views in scene.views.items()} == {"train": 3, "test": 2}
        for split, n in (("train", 3), ("test", 2)):
            pixels = scene.views[split].load().stack()
            assert tuple(pixels.shape) == (n, 24, 24, 4)
        images[name] = np.asarray(Image.open(made / name / "train" / "r_1.png"))
        assert 0.03 < (images[name][..., 3] > 0).mean() < 0.8
    assert (images["01"] != images["02"]).any()


def test_the_scene_stands_where_the_files_say(made):
    points = hulls(arrangements.build(2))
    for split in ("train", "test"):
        content = json.loads((made / "02" / f"transforms_{split}.json").read_text())
        for frame in content["frames"]:
            pose = torch.tensor(frame["transform_matrix"], dtype=torch.float32)
            x, y, z = pose[:3, :3].T @ (points - pose[:3, 3:])
            focal = 12 / math.tan(content["camera_angle_x"] / 2)
            right, down = 12 - focal * x / z, 12 + focal * y / z
            alpha = np.asarray(Image.open(made / "02" / f"{frame['file_path']}.png"))[..., 3]
            rows, columns = np.nonzero(alpha)
            assert rows.min() >= down.min() - 1 and rows.max() <= down.max() and rows.max() - rows.min() > 4
            assert columns.min() >= right.min() - 1 and columns.max() <= right.max()
            assert columns.min() - right.min() < 5 and right.max() - columns.max() < 5


def test_what_is_there_stays_and_what_is_missing_comes_again(copied):
    arguments = [*SMALL, "--seed", "1", "--out", str(copied)]
    files = sorted((copied / "01").glob("t*/*.png"))
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    files[0].unlink()
    make_scenes.main(arguments)
    assert files[0].read_bytes() == before[files[0]][0]
    assert all(file.stat().st_mtime_ns == before[file][1] for file in files[1:])


@pytest.mark.parametrize(("name", "value"), [("size", "25"), ("samples", "5"), ("views", "4 2")])
def test_a_scene_of_other_options_is_refused_by_name(copied, name, value):
    arguments = [*SMALL, "--seed", "1", "--out", str(copied)]
    files = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    with raises_naming(RunError, copied / "01", name, "--out"):
        make_scenes.main([*arguments, f"--{name}", *value.split()])
    assert files == {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "00").mkdir()
    mine = tmp_path / "00" / "transforms_train.json"
    mine.write_text("{}")
    with raises_naming(RunError, tmp_path / "00"):
        make_scenes.main([*SMALL, "--out", str(tmp_path)])
    assert mine.read_text() == "{}" and list(tmp_path.rglob("*.*")) == [mine]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--size", "4"], ("size", 4, 8)),
        (["--samples", "0"], ("samples", 0, 1)),
        (["--views", "0", "3"], ("views", 0)),
        (["--seed", "-1"], ("seed", -1)),
        (["--count", "0"], ("count", 0)),
        (["--kind", "metal", "--count", "3"], ("count", "metal", 3)),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path, arguments, named):
    with raises_naming(ConfigError, *named):
        make_scenes.main(["--kind", "random", "--out", str(tmp_path / "made"), *arguments])
    assert not (tmp_path / "made").exists()


def test_a_kind_that_there_is_not_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        make_scenes.main(["--kind", "clouds", "--out", str(tmp_path / "made")])
    assert_names(capsys.readouterr().err, "clouds", "wires")
