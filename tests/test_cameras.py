# SPDX-License-Identifier: Apache-2.0
"""Cameras and lenses: rays that lead back to their pixels, projections as COLMAP's, errors instead of wrong rays."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.cameras.plausible import lens_diagnostics, refused_lens
from nerfkit.data.load import load_scene
from nerfkit.errors import SceneError
from nerfkit.rendering import paths
from tests.naming import assert_names, raises_mentioning


@pytest.fixture
def cameras(toy_scene):
    return load_scene(str(toy_scene)).split("train").cameras


def test_rays_go_back_to_their_pixels(cameras):
    rays = cameras.image_rays(3)
    pixels, depth = cameras.project(rays.origins + 2.5 * rays.directions, 3)
    row, column = torch.meshgrid(torch.arange(cameras.height), torch.arange(cameras.width), indexing="ij")
    torch.testing.assert_close(pixels, torch.stack([column, row], -1).flatten(0, 1) + 0.5, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(depth, 2.5 * cameras.z_per_distance(3, rays.directions))
    large, _ = cameras.resized(52, 66).project(rays.origins + 2.5 * rays.directions, 3)
    torch.testing.assert_close(large, torch.tensor([2, 3]) * pixels)


@pytest.mark.parametrize("path", ["orbit", "spiral", "interpolate"])
def test_paths_are_rigid_and_closed(cameras, path: str):
    target, up = torch.zeros(3), torch.tensor([0.0, 0, 1])
    made = paths.interpolate(cameras, 48) if path == "interpolate" else getattr(paths, path)(cameras, target, up, 48)
    rotation = made.camera_to_world[:, :, :3]
    torch.testing.assert_close(rotation @ rotation.mT, torch.eye(3).expand(48, 3, 3), rtol=0, atol=1e-5)
    assert (torch.linalg.det(rotation) > 0).all()
    assert torch.equal(made.focal, cameras.focal[:1].expand(48, 2)), "intrinsics are the first camera's"
    assert torch.equal(made.center, cameras.center[:1].expand(48, 2)) and (made.width, made.height) == (26, 22)
    steps = (made.positions - made.positions.roll(1, 0)).norm(dim=-1)
    assert steps[0] < 3 * steps[1:].max(), "the last frame leads back to the first"


def test_interpolation_goes_through_the_cameras_and_is_smooth_there(cameras):
    """Velocity is continuous where it meets one, as that of straight lines to the next would not be."""
    n = 200
    made = paths.interpolate(cameras, n * len(cameras))
    torch.testing.assert_close(made.camera_to_world[::n], cameras.camera_to_world, rtol=0, atol=1e-5)
    before, after = (made.positions[n + k :: n] - made.positions[n + k - 1 : -1 : n] for k in (0, 1))
    assert ((after - before).norm(dim=-1) < 0.2 * before.norm(dim=-1)).all()


def test_orbit_goes_round_the_up_axis(cameras):
    """Counter-clockwise, at one height and distance, in equal steps, the last of which leads back to the first."""
    target, up = torch.tensor([0.1, -0.2, 0.3]), torch.tensor([-0.6, 0.0, 0.8])
    made = paths.orbit(cameras, target, up, 8, elevation=30)
    offsets = made.positions - target
    radius = (cameras.positions - target).norm(dim=-1).mean()
    torch.testing.assert_close(offsets.norm(dim=-1), radius.expand(8))
    torch.testing.assert_close(offsets @ up, (radius / 2).expand(8), msg="the sine of 30 degrees")
    flat = offsets - (offsets @ up)[:, None] * up
    turns = torch.linalg.vecdot(flat, flat.roll(-1, 0)) / flat.square().sum(-1)
    torch.testing.assert_close(turns, torch.full((8,), 0.5**0.5), msg="45 degrees each")
    pixels, depth = made.project(target[None], 4)
    torch.testing.assert_close(pixels[0], made.center[4], rtol=0, atol=1e-3, msg="it looks at the target")
    assert depth > 0 and torch.linalg.cross(flat[0], flat[1]) @ up > 0
    assert (made.camera_to_world[:, :, 1] @ up > 0.8).all()


SHARED = Lens("OPENCV", (50.0, 52.0, 49.0, 41.0, -0.2, 0.03, 1e-3, -1e-3), 100, 83)
FISHEYE = Lens("OPENCV_FISHEYE", (33.0, 33.0, 30.0, 30.5, 0.02, -0.005, 0.001, 0.0), 61, 60)
NARROW = Lens("SIMPLE_RADIAL", (40.0, 0.5, 10.0, 0.1), 1, 20)


@pytest.mark.parametrize(("most", "spacing", "off"), [(10**6, 1, 1e-4), (1300, 4, 0.25)])
def test_directions_of_many_lenses_lie_between_those_of_nodes(monkeypatch, most: int, spacing: int, off: float):
    """In a table that would be too large, every n-th pixel has a direction; projected back, few pixels are far off."""
    monkeypatch.setattr("nerfkit.data.cameras.cameras.MAX_DIRECTIONS", most)
    lenses = [SHARED, FISHEYE, NARROW, SHARED]
    cameras = Cameras.from_lenses(torch.eye(4)[:3].expand(4, 3, 4), lenses)
    assert cameras.table.spacing == spacing
    for view, lens in enumerate(lenses):
        rays = cameras.image_rays(view)
        local = rays.directions.double() * torch.tensor([1.0, -1, -1])  # OpenCV's axes
        pixel = torch.arange(lens.width * lens.height)
        wanted = torch.stack([pixel % lens.width, pixel // lens.width], dim=-1) + 0.5
        assert (lens.project(local) - wanted).norm(dim=-1).max() < off
        assert cameras.known_image(view) is None
    one, reordered = cameras[[1]], cameras[[3, 1]]
    torch.testing.assert_close(one.image_rays(0).directions, cameras.image_rays(1).directions)
    torch.testing.assert_close(reordered.image_rays(0).directions, cameras.image_rays(0).directions)


def test_pixels_between_nodes_without_a_direction_are_not_known(monkeypatch):
    folding = Lens("SIMPLE_RADIAL", (50.0, 50.0, 50.0, -0.078), 100, 100)  # corners lie beyond its fold
    exact = Cameras.from_lenses(torch.eye(4)[None, :3], [folding]).known_image(0)
    monkeypatch.setattr("nerfkit.data.cameras.cameras.MAX_DIRECTIONS", 6000)
    cameras = Cameras.from_lenses(torch.eye(4)[:3].expand(2, 3, 4), [folding, SHARED])
    known = cameras.known_image(0)
    assert cameras.table.spacing == 2 and not exact.all()
    assert not (known & ~exact).any(), "none is made up"
    assert (exact & ~known).float().mean() < 0.02
    monkeypatch.setattr("nerfkit.data.cameras.cameras.MAX_DIRECTIONS", 10)
    with raises_mentioning(SceneError, "data.downscale", "2 lenses"):
        Cameras.from_lenses(torch.eye(4)[:3].expand(2, 3, 4), [SHARED, FISHEYE])


SIZE = (640, 500)
POINTS = torch.tensor([(-1.2, 0.7, 2.5), (0.8, 0.9, 1.6), (-0.05, -1.1, 3)], dtype=torch.float64)
PROJECTED = {  # parameters, and the pixel of the first of POINTS: those of COLMAP's models by pycolmap 4.2.1
    "SIMPLE_PINHOLE": ((500, 320, 250), (80, 390)),
    "PINHOLE": ((500, 520, 310, 250), (70, 395.6)),
    "SIMPLE_RADIAL": ((500, 320, 250, -0.12), (88.89344, 384.81216)),
    "RADIAL": ((500, 320, 250, -0.12, 0.03), (88.206866432, 385.212661248)),
    "OPENCV": ((500, 520, 310, 250, -0.12, 0.03, 0.002, -0.001), (77.553266432, 391.24516769792)),
    "OPENCV_FISHEYE": ((300, 310, 320, 245, 0.02, -0.008, 0.003, -0.0007), (187.95257062177, 324.59525604188)),
    "FULL_OPENCV": ((500, 520, 310, 250, 0.4, 0.05, 0.002, -0.001, 0.01, 0.5, 0.07,
        0.02), (76.181067658589, 392.07763495379)),
    "SIMPLE_RADIAL_FISHEYE": ((300, 320, 245, -0.03), (189.5799275245, 321.07837561071)),
    "RADIAL_FISHEYE": ((300, 320, 245, -0.03, 0.004), (189.54513301414, 321.09867240842)),
    "SIMPLE_FISHEYE": ((300, 320, 245), (188.56554622073, 321.67009803791)),
    "FISHEYE": ((300, 310, 320, 245), (188.56554622073, 324.2257679725)),
    "FOV": ((300, 310, 320, 245, 0.9), (178.1378355602, 330.51136023177)),
    "THIN_PRISM_FISHEYE": ((300, 310, 320, 245, 0.02, -0.008, 0.002, -0.001, 0.003, -0.0007,
        0.004, -0.003), (187.93457581381, 324.66591565446)),
    "RAD_TAN_THIN_PRISM_FISHEYE": ((300, 310, 320, 245, 0.02, -0.008, 0.003, -0.0007, 0.0004,
        -0.0001, 0.002, -0.001, 0.004, -0.0005, -0.003, 0.0006), (188.71009337415, 324.10483493202)),
    "SIMPLE_DIVISION": ((500, 320, 250, -0.12), (88.289685055947, 385.16435038403)),
    "DIVISION": ((500, 520, 310, 250, -0.12), (78.289685055947, 390.57092439939)),
    "EUCM": ((300, 310, 320, 245, 0.6, 1.1), (188.42914090288, 324.30799006688)),
    "EQUIRECTANGULAR": ((640, 320), (274.41598964568, 185.18580673727)),
    "RADIAL4_TANGENTIAL": ((500, 520, 310, 250, -0.12, 0.03, -0.005, 0.001, 0.002,
        -0.001), (77.586419755039, 391.22505468194)),
}  # fmt: skip
FISHEYES = [name for name, model in MODELS.items() if model.projection == "angle"]
WIDE = [*FISHEYES, "SIMPLE_DIVISION", "DIVISION", "EUCM", "EQUIRECTANGULAR"]  # with the parameters of PROJECTED
BARREL = Lens("RADIAL", (500.0, 320.0, 240.0, -0.8, 0.1), 640, 480)


def lens_of(model: str, **change) -> Lens:
    return replace(Lens(model, PROJECTED[model][0], *SIZE), **change)


def random_lens(model: str, seed: int) -> Lens:
    params = np.array(PROJECTED[model][0])
    return lens_of(model, params=tuple(params * np.random.default_rng(seed).uniform(0.8, 1.15, len(params))))


def random_pixels(lens: Lens, n: int, seed: int = 0) -> torch.Tensor:
    unit = torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return unit * torch.tensor([lens.width, lens.height])


def grid_of_pixels(lens: Lens) -> torch.Tensor:
    pixel = torch.arange(lens.width * lens.height)
    return torch.stack([pixel % lens.width, pixel // lens.width], dim=-1).double() + 0.5


@pytest.mark.parametrize("model", MODELS)
def test_stored_projections(model: str):
    assert lens_of(model).project(POINTS)[0].tolist() == pytest.approx(PROJECTED[model][1], abs=1e-9)


def test_a_panorama_reaches_all_directions_and_has_no_seam():
    panorama = Lens("EQUIRECTANGULAR", (256.0, 128.0), 256, 128)
    everywhere = torch.nn.functional.normalize(torch.randn(2000, 3, dtype=torch.float64), dim=-1)
    pixels = panorama.project(everywhere)
    assert (pixels >= 0).all() and (pixels <= torch.tensor([256, 128])).all()
    torch.testing.assert_close(panorama.unproject(pixels)[0], everywhere)
    poles = panorama.project(torch.tensor([(0.0, -1, 0), (0, 1, 0), (0, 0, 0)]))
    assert poles[:2, 1].tolist() == pytest.approx([0, 128]) and poles[2].isnan().all()
    rows = torch.arange(128).double() + 0.5
    left, right = (panorama.unproject(torch.stack([rows * 0 + x, rows], -1))[0] for x in (0.5, 255.5))
    one_pixel = rows.sub(64).mul(math.pi / 128).cos() * 2 * math.sin(math.pi / 256)
    torch.testing.assert_close((left - right).norm(dim=-1), one_pixel, msg="neighbours across the seam")
    assert panorama.unproject(torch.tensor([(256.6, 5)]))[1].isinf()
    depth = Cameras.from_lenses(torch.eye(4)[None, :3], [panorama]).project(7 * everywhere.float(), 0)[1]
    torch.testing.assert_close(depth, torch.full((2000,), 7.0))


def test_pinholes_instead_of_lenses_show_what_a_plane_can():
    """90 degrees of a lens that may see beyond 90 from its axis; as much as without distortion of any other."""
    focals = {"panorama": 800, "whole circle of 180 degrees": 600, "GoPro": 600, "wide angle of a telephone": 620}
    for name, focal in focals.items():
        pinhole = Cameras.from_lenses(torch.eye(4)[None, :3], [LIKELY[name]]).pinhole()
        assert not pinhole.lenses and pinhole.focal.tolist() == [[focal, focal]], name


@pytest.mark.parametrize("model", MODELS)
def test_unprojected_directions_are_those_projected(model: str):
    for seed in range(8):
        lens = random_lens(model, seed)
        pixels = torch.cat([random_pixels(lens, 200, seed), torch.full((1, 2), math.nan)])
        directions, residual = lens.unproject(pixels)
        good = residual.isfinite()
        assert good.double().mean() > 0.4 and residual[good].max() < 1e-6 and not good[-1]
        assert directions[~good].isnan().all() and residual[~good].isinf().all()
        torch.testing.assert_close(lens.project(directions[good] * 7), pixels[good], rtol=0, atol=1e-6)
        torch.testing.assert_close(directions[good].norm(dim=-1), torch.ones(int(good.sum())).double())


@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_projections(model: str):
    lens = lens_of(model)
    axis = torch.tensor([(0.0, 0, 2)], dtype=torch.float64)
    assert torch.autograd.gradcheck(lens.project, torch.cat([axis, POINTS]).requires_grad_())
    unseen = torch.tensor([(0.0, 0, -1), (0, 0, 0), (3, 4, -1e-300)], dtype=torch.float64)  # the last one by fisheyes
    points = torch.cat([POINTS, unseen]).requires_grad_()
    pixels = lens.project(points)
    assert pixels[3].isnan().all() == (model != "EQUIRECTANGULAR") and pixels[4].isnan().all()
    assert pixels[5].isnan().all() == (not lens.is_wide) == (model not in WIDE)
    pixels.nansum().backward()
    assert points.grad.isfinite().all() and points.grad[0].abs().sum() > 0


@pytest.mark.parametrize("model", MODELS)
def test_resized_lenses_project_like_scaled_pixels(model: str):
    lens = lens_of(model)
    assert lens.resized(320, 250).model == model and lens.resized(320, 250).resized(*SIZE) == lens
    for size in ((320, 250), (641, 499)):
        scale = torch.tensor(size) / torch.tensor(SIZE).double()
        seen, wanted = lens.resized(*size).project(POINTS), lens.project(POINTS) * scale
        torch.testing.assert_close(seen, wanted, rtol=1e-12, atol=0)


def camera(focal: float, *center: float, fy: float = 0, size: tuple[int, int] = (1200, 800)) -> Lens:
    return Lens("PINHOLE", (focal, fy or focal, *(center or (size[0] / 2, size[1] / 2))), *size)


def distorting(model: str, focal: float, *coefficients: float) -> Lens:
    return Lens(model, (focal, *(focal,) * ("fx" in MODELS[model].names), 600.0, 400.0, *coefficients), 1200, 800)


LIKELY = {
    "9 mm on 36 mm": camera(300),
    "600 mm on 36 mm": camera(20000),
    "cropped to a quarter": camera(1300, 400, 500),
    "pixels of HDV": camera(1300, fy=1300 * 4 / 3),
    "GoPro": distorting("OPENCV_FISHEYE", 560, 0.045, 0.012, -0.02, 0.006),
    "whole circle of 180 degrees": distorting("SIMPLE_FISHEYE", 255),
    "wide angle of a telephone": distorting("OPENCV", 620, -0.28, 0.07, 1e-3, -5e-4),
    "panorama": Lens("EQUIRECTANGULAR", (1600.0, 800.0), 1600, 800),
    "long lens, of which high orders are large": distorting("SIMPLE_RADIAL", 20000, 46),
    "rational polynomial of a depth camera": distorting("FULL_OPENCV", 610, 0.5, -2.7, 1e-3, 0, 1.6, 0.38, -2.5, 1.5),
}
UNLIKELY = {  # and what has to be named
    "shares": (camera(1.1, 0.5, 0.5, fy=1.6), "(0.5, 0.5)", "shares of the image"),
    "from the middle": (camera(1300, 6, -9), "(6, -9)", "from the middle", "Add half"),
    "mm": (camera(29, 18, 12), "millimeters, or of images of 36x24"),
    "of the next image": (camera(1300, 1150, 300), "was it found for other images"),
    "mm, without a principal point": (camera(24), "175 degrees", "millimeters"),
    "radians": (camera(600 / math.tan(math.radians(0.5))), "1 degrees", "radians"),
    "fisheye of 400 degrees": (distorting("SIMPLE_FISHEYE", 100), "688 degrees"),
    "collapsed": (camera(1300, fy=3900), "1300 and 3900", "3.00 times"),
    "k1 of a failed solve": (distorting("SIMPLE_RADIAL", 1300, 46), "k1 46 of SIMPLE_RADIAL", "times as far out"),
}


@pytest.mark.parametrize("name", UNLIKELY)
def test_a_lens_that_no_camera_has_is_doubted_with_the_likely_unit(name: str):
    lens, *named = UNLIKELY[name]
    (line,) = lens_diagnostics([*LIKELY.values(), lens, lens])
    assert_names(line, *named, f"2 of {len(LIKELY) + 2} images")
    assert not lens_diagnostics(LIKELY.values())


def test_the_fold_of_a_barrel():
    u = (2.4 - math.sqrt(2.4**2 - 4 * 0.5)) / (2 * 0.5)  # 1 - 2.4 u + 0.5 u^2 = 0, u = r^2
    fold = math.sqrt(u)
    farthest = 500 * fold * (1 - 0.8 * u + 0.1 * u * u)  # pixels from the centre that anything reaches
    for share, reached in ((0.9, True), (0.9999, True), (1.0001, False), (50.0, False)):
        directions, residual = BARREL.unproject(torch.tensor([(320 + share * farthest, 240)], dtype=torch.float64))
        assert (residual < 1e-6).all() if reached else (residual.isinf().all() and directions.isnan().all())
    points = torch.tensor([(share * fold, 0, 1) for share in (0.99, 1.01, 2.0, 4.0)], dtype=torch.float64)
    assert BARREL.project(points).isnan().any(-1).tolist() == [False, True, True, True]
    share = BARREL.unproject(grid_of_pixels(BARREL))[1].isinf().double().mean().item()
    named = ("RADIAL", "640x480", "-0.8", f"{100 * share:.3g} %", f"{farthest:.4g} pixels")
    for lens, parts in ((BARREL, named), (distorting("EUCM", 400, 0.7, 1.2), ("EUCM", "folds"))):
        with raises_mentioning(SceneError, *parts):
            lens.direction_map()
        assert_names(refused_lens([*LIKELY.values(), lens])[0], lens.model, "folds")  # known before
    assert not refused_lens(LIKELY.values())
    lens = replace(BARREL, params=(500.0, 180.0, 131.0, -0.8, 0.1), width=360, height=262)  # of a few such corners
    directions, valid = lens.direction_map()
    radius = (grid_of_pixels(lens) - torch.tensor(lens.center, dtype=torch.float64)).norm(dim=-1)
    assert 0.98 < valid.double().mean() < 1
    assert valid.equal(radius < (radius[valid].max() + radius[~valid].min()) / 2), "those farthest from the centre"
    assert (directions[~valid] == torch.tensor([0.0, 0, -1])).all()


@pytest.mark.parametrize("model", MODELS)
def test_no_ray_is_silently_wrong(model: str):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        names = MODELS[model].names
        values = [dict(cx=300, cy=200, w=600).get(name, 400) for name in names if name[0] in "fcwh"]
        values += [float(v) for v in rng.normal(0, 1, len(names) - len(values))]  # of no real lens
        values = [abs(v) % 1 if name in ("alpha", "beta") else v for name, v in zip(names, values, strict=True)]
        lens = Lens(model, tuple(values), 600, 400)
        pixels = random_pixels(lens, 500, seed)
        directions, residual = lens.unproject(pixels)
        found = residual <= 0.05
        assert directions[residual.isinf()].isnan().all()
        error = (lens.project(directions[found]) - pixels[found]).norm(dim=-1)
        assert (error <= 0.05).all()
        # The way from the axis to each direction is seen all along, and moves outwards: it is on the first branch.
        if "p1" not in names and model != "EQUIRECTANGULAR":
            assert residual[~found].isinf().all()
            axis = torch.tensor([0.0, 0, 1], dtype=torch.float64)
            ways = torch.stack([axis + t * (directions[found] - axis) for t in np.linspace(0, 1, 20)])
            offsets = lens.project(ways.flatten(0, 1)) - torch.tensor(lens.center, dtype=torch.float64)
            assert (offsets.norm(dim=-1).unflatten(0, (20, -1)).diff(dim=0) > 0).all()


def test_the_fold_of_tangential_distortion():
    lens = Lens("OPENCV", (100.0, 100.0, 320.0, 240.0, 0.0, 0.0, 0.0, 0.1), 640, 480)  # at y = 0: x' = x + 0.3 x^2
    points = torch.tensor([(x, 0, 1) for x in (-7, -1.67, -1.66, 3)], dtype=torch.float64)
    assert lens.project(points).isnan().any(-1).tolist() == [True, True, False, False]
    pixels = torch.tensor([(320 + 100 * x, 240) for x in (-0.8334, -0.8333, 5.7)], dtype=torch.float64)
    directions, residual = lens.unproject(pixels)
    assert residual.isinf().tolist() == [True, False, False] and residual[1:].max() < 1e-6
    assert (directions[:, 0] / directions[:, 2])[2].item() == pytest.approx(3.0, abs=1e-9)


@pytest.mark.parametrize(
    "arguments, named",
    [
        (("SIMPLE_PINHOLE", (500.0, math.nan, 240.0), 640, 480), ("cx", "nan")),
        (("PINHOLE", (500.0, 500.0, 320.0, 24000.0), 640, 480), ("cy", "24000", "640x480")),
        (("SIMPLE_PINHOLE", (5.0, 3.0, 3.0), 4, 100_001), ("height", "100001")),
        (("EUCM", (500.0, 500.0, 320.0, 240.0, 1.2, 1.0), 640, 480), ("EUCM", "alpha", "from 0 to 1", "1.2")),
    ],
)
def test_bad_lenses(arguments: tuple, named: tuple):
    with raises_mentioning(SceneError, *named):
        Lens(*arguments)
