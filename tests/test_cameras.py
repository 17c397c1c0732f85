# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from nerfkit.data.cameras.cameras import Cameras
from nerfkit.data.cameras.lens import Lens
from nerfkit.data.load import load_scene
from nerfkit.errors import SceneError
from nerfkit.rendering import paths
from tests.naming import raises_naming
from tests.toy_scene import BALLS, RADII


@pytest.fixture
def cameras(toy_scene):
    return load_scene(str(toy_scene)).split("train").cameras


def test_rays_go_back_to_their_pixels(cameras):
    rays = cameras.image_rays(3)
    pixels, depth = cameras.project(rays.origins + 2.5 * rays.directions, 3)
    row, column = torch.meshgrid(torch.arange(cameras.height), torch.arange(cameras.width), indexing="ij")
    torch.testing.assert_close(pixels, torch.stack([column, row], -1).flatten(0, 1) + 0.5, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(depth, 2.5 * cameras.z_per_distance(3, rays.directions))


def test_known_points_project_into_the_images(toy_scene):
    """Centres of the balls, projected, lie on the ball's pixels: the camera convention of the images."""
    views = load_scene(str(toy_scene)).split("test")
    images = views.load().stack()
    for view in range(2):
        pixels, depth = views.cameras.project(torch.tensor(BALLS, dtype=torch.float32), view)
        nearest = depth.argmin()
        column, row = pixels[nearest].long().tolist()
        assert images[view, row, column, 3] == 255
        radius = (RADII[nearest] / depth[nearest] * views.cameras.focal[view, 1]).item()
        assert images[view, min(int(row + 3 * radius), views.cameras.height - 1), column, 3] == 0 or radius > 4


def test_resized_cameras_see_the_same(cameras):
    large = cameras.resized(52, 66)
    points = torch.randn(5, 3) * 0.3
    torch.testing.assert_close(large.project(points, 2)[0], torch.tensor([2, 3]) * cameras.project(points, 2)[0])


@pytest.mark.parametrize("path", ["orbit", "spiral", "interpolate"])
def test_paths_are_rigid_and_closed(cameras, path: str):
    target, up = torch.zeros(3), torch.tensor([0.0, 0, 1])
    made = paths.interpolate(cameras, 48) if path == "interpolate" else getattr(paths, path)(cameras, target, up, 48)
    rotation = made.camera_to_world[:, :, :3]
    torch.testing.assert_close(rotation @ rotation.mT, torch.eye(3).expand(48, 3, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(48), rtol=0, atol=1e-5)
    assert torch.equal(made.focal, cameras.focal[:1].expand(48, 2)) and (made.width, made.height) == (26, 22)
    assert torch.equal(made.center, cameras.center[:1].expand(48, 2)), "intrinsics are the first camera's"
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
    """At one height and distance, in equal steps, the last of which leads back to the first."""
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
    turned = torch.linalg.cross(flat[0], flat[1]) @ up
    assert depth > 0 and turned > 0, "counter-clockwise, seen from above"
    assert (made.camera_to_world[:, :, 1] @ up > 0.8).all() and (made.camera_to_world[:, :, 0] @ up).abs().max() < 1e-5


def test_spiral_rises_from_5_to_70_degrees_and_back_in_two_turns(cameras):
    made = paths.spiral(cameras, torch.zeros(3), torch.tensor([0.0, 0, 1]), 64)
    x, y, z = made.positions.unbind(-1)
    heights = torch.rad2deg(torch.asin(z / made.positions.norm(dim=-1)))
    assert heights[0] == pytest.approx(5, abs=0.01) and heights[32] == pytest.approx(70, abs=0.01)
    assert heights.argmax() == 32 and heights[63] == pytest.approx(heights[1].item(), abs=0.01)
    angles = torch.atan2(y, x)
    turned = (angles.roll(-1) - angles + 9 * torch.pi) % (2 * torch.pi) - torch.pi
    assert turned.sum() == pytest.approx(4 * torch.pi, abs=1e-3)


BARREL = Lens("OPENCV", (50.0, 52.0, 49.0, 41.0, -0.2, 0.03, 1e-3, -1e-3), 100, 83)
FISHEYE = Lens("OPENCV_FISHEYE", (33.0, 33.0, 30.0, 30.5, 0.02, -0.005, 0.001, 0.0), 61, 60)
NARROW = Lens("SIMPLE_RADIAL", (40.0, 0.5, 10.0, 0.1), 1, 20)


@pytest.mark.parametrize(("most", "spacing", "off"), [(10**6, 1, 1e-4), (1300, 4, 0.25)])
def test_directions_of_many_lenses_lie_between_those_of_nodes(monkeypatch, most: int, spacing: int, off: float):
    """In a table that would be too large, every n-th pixel has a direction; projected back, few pixels are far off."""
    monkeypatch.setattr("nerfkit.data.cameras.cameras.MAX_DIRECTIONS", most)
    lenses = [BARREL, FISHEYE, NARROW, BARREL]
    cameras = Cameras.of_lenses(torch.eye(4)[:3].expand(4, 3, 4), lenses)
    assert cameras.table.spacing == spacing
    for view, lens in enumerate(lenses):
        rays = cameras.image_rays(view)
        local = rays.directions.double() * torch.tensor([1.0, -1, -1])  # OpenCV's axes
        pixel = torch.arange(lens.width * lens.height)
        wanted = torch.stack([pixel % lens.width, pixel // lens.width], dim=-1) + 0.5
        assert (lens.project(local) - wanted).norm(dim=-1).max() < off
        assert cameras.known_image(view).all()
    one, reordered = cameras[[1]], cameras[[3, 1]]
    torch.testing.assert_close(one.image_rays(0).directions, cameras.image_rays(1).directions)
    torch.testing.assert_close(reordered.image_rays(0).directions, cameras.image_rays(0).directions)


def test_pixels_between_nodes_without_a_direction_are_not_known(monkeypatch):
    folding = Lens("SIMPLE_RADIAL", (50.0, 50.0, 50.0, -0.078), 100, 100)  # corners lie beyond its fold
    exact = Cameras.of_lenses(torch.eye(4)[None, :3], [folding]).known_image(0)
    monkeypatch.setattr("nerfkit.data.cameras.cameras.MAX_DIRECTIONS", 6000)
    cameras = Cameras.of_lenses(torch.eye(4)[:3].expand(2, 3, 4), [folding, BARREL])
    known = cameras.known_image(0)
    assert cameras.table.spacing == 2 and not exact.all()
    assert not (known & ~exact).any(), "none is made up"
    assert (exact & ~known).float().mean() < 0.02


def test_lenses_of_too_many_pixels_are_refused(monkeypatch):
    monkeypatch.setattr("nerfkit.data.cameras.cameras.MAX_DIRECTIONS", 10)
    with raises_naming(SceneError, "data.downscale", "2 lenses"):
        Cameras.of_lenses(torch.eye(4)[:3].expand(2, 3, 4), [BARREL, FISHEYE])
