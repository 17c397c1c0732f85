# SPDX-License-Identifier: Apache-2.0
"""What rays of the model "images" look up: which images, where in them, and whether they see the point."""

import math

import pytest
import torch

from nerfkit.config import SamplingConfig
from nerfkit.data.cameras import Cameras, Rays
from nerfkit.data.lens import Lens
from nerfkit.data.pool import ImagePool
from nerfkit.model.images import lookup
from nerfkit.model.images.blender import Blender
from nerfkit.model.images.depth_maps import DepthMaps
from nerfkit.model.images.lookup import look_up
from nerfkit.model.images.sources import Sources
from tests.image_based import disturb, mixed_sources, of_images
from tests.rigs import look_at
from tests.trainers import make_trainer


def test_a_look_up_finds_the_pixel_that_the_lens_says():
    """Of a point on the ray of a pixel, each lens and size finds that pixel, and so its color."""
    sources, maps, cameras, pool = mixed_sources()
    for view, (width, height) in enumerate(cameras.sizes()):
        column, row = torch.arange(2, width - 2, 3), torch.arange(2, width - 2, 3) % (height - 4) + 2
        rays = cameras.rays(torch.full_like(column, view), column, row)
        points = rays.origins + rays.directions * 2.0
        pixels, inside = sources.project(points, torch.arange(3).expand(len(points), 3))
        for x, y in zip(sources.project_into_all(points), (pixels, inside), strict=True):
            torch.testing.assert_close(x, y, atol=1e-3, rtol=0)
        assert inside[:, view].all()
        assert (pixels[:, view] - torch.stack([column, row], -1) - 0.5).abs().max() < 0.02
        found = look_up(sources, maps, Rays(rays.origins, rays.directions), points, torch.ones(3), 1)
        assert (found.view == view).all(), "the image that the ray is of is the nearest"
        wanted = torch.stack([column, row], -1) * 4 / 255
        assert (found.color[:, 0, :2] - wanted).abs().max() < 0.1 / 255 * 4
        assert found.direction.abs().max() < 1e-3 and (found.agreement > 0.99).all()


@pytest.mark.parametrize("own", (True, False))
def test_a_point_is_projected_into_the_images_that_look_its_way(small_config, monkeypatch, own: bool):
    """Half of twelve images suffice for three: where all of them have the point, the look-ups are the same."""
    trainer = make_trainer(of_images(small_config))
    sources, maps, cameras = trainer.model.sources, trainer.model.depth_maps, trainer.cameras
    maps.depths.fill_(torch.inf)
    rays = cameras.rays(*(torch.tensor(x) for x in ([3, 3, 3, 8, 8, 8], [5, 9, 13, 5, 9, 13], [8, 4, 6, 8, 4, 6])))
    rays = rays if own else rays._replace(view=None)
    points = rays.origins + rays.directions * rays.origins.norm(dim=-1, keepdim=True)  # about the middle
    every = look_up(sources, maps, rays, points, torch.ones(3), 3)
    pixels, inside = sources.project_into_all(points)
    again = sources.project(points, torch.arange(12).expand(len(points), 12))
    assert torch.equal(again[1], inside) and (again[0] - pixels).abs().max() < 1e-3
    monkeypatch.setattr(lookup, "CANDIDATES", 2)
    monkeypatch.setattr(lookup, "LEAST", 6)
    counts = []
    project = sources.project
    monkeypatch.setattr(
        sources, "project", lambda points, view: (counts.append(view.shape[1]), project(points, view))[1]
    )
    few = look_up(sources, maps, rays, points, torch.ones(3), 3)
    assert counts == [6] and every.valid.all()
    for name, x in every._asdict().items():
        torch.testing.assert_close(getattr(few, name), x, rtol=0, atol=1e-5, msg=name)  # exact for views
    assert own == (every.view != torch.tensor([3, 3, 3, 8, 8, 8])[:, None]).all()


def test_masked_pixels_weigh_nothing():
    sources, maps, cameras, pool = mixed_sources(masked=True)
    maps.depths.fill_(torch.inf)
    maps.agreement = lambda view, pixels, distance: torch.ones_like(distance)
    sources.ignored[pool.rows(1)] = True
    rays = cameras.image_rays(0)._replace(view=None)
    found = look_up(sources, maps, rays, rays.origins + 2 * rays.directions, torch.ones(3), 3)
    assert (found.agreement == found.valid).all()
    assert not found.valid[found.view == 1].any() and found.valid[found.view == 0].any()
    blender = Blender(6)
    disturb(blender)
    color = torch.full((len(rays.origins), 3), 0.5)
    residual = blender(found, color)
    other = blender(found._replace(color=torch.where(found.valid[..., None], found.color, 0.9)), color)
    assert torch.equal(residual, other)
    nothing = found._replace(valid=torch.zeros_like(found.valid), agreement=torch.zeros_like(found.agreement))
    assert (blender(nothing, color) == 0).all()


@pytest.mark.parametrize("corner", range(4))
def test_one_masked_pixel_of_the_four_around_suffices(corner: int):
    """Each of them gives a share of the color."""
    sources, _, _, pool = mixed_sources(masked=True)
    (width, _), row, column = pool.sizes[1], 7 + corner // 2, 5 + corner % 2
    sources.ignored[pool.first[1] + row * width + column] = True
    pixels = torch.tensor([[[6.1, 8.1], [4.1, 8.1], [6.1, 10.1]]])  # between columns 5 and 6, rows 7 and 8; others
    _, counts = sources.colors(torch.ones(1, 3, dtype=torch.int64), pixels, torch.ones(3))
    assert counts.tolist() == [[False, True, True]]


def test_what_no_image_has_is_not_valid():
    sources, maps, _, _ = mixed_sources()
    behind = torch.tensor([[50.0, 60.0, 70.0]])
    rays = Rays(torch.zeros(1, 3), torch.nn.functional.normalize(behind, dim=-1))
    found = look_up(sources, maps, rays, behind, torch.ones(3), 2)
    assert not found.valid.any() and (found.color == 0).all() and found.direction.isfinite().all()


def test_a_fisheye_of_more_than_180_degrees_sees_beside_and_behind_itself():
    """Points at 100 degrees from its axis have pixels; a pinhole that stands there has none of them."""
    lens = Lens("FISHEYE", (10.0, 10.0, 20.0, 20.0), 40, 40)
    pose = torch.tensor(look_at(torch.tensor([[1.0, 0.0, 0.0]]).double().numpy(), torch.zeros(1, 3).double().numpy()))
    cameras = Cameras.of_lenses(pose.float().repeat(2, 1, 1), [lens, Lens("PINHOLE", (20.0, 20.0, 20.0, 20.0), 40, 40)])
    pixels = torch.zeros(2 * 40 * 40, 3, dtype=torch.uint8)
    sources = Sources(cameras, ImagePool(pixels, torch.tensor([0, 40 * 40]), tuple(cameras.sizes()), None))
    angle = math.radians(100)
    places = torch.tensor([[20.0, 20 + 10 * angle], [20 - 10 * angle, 20.0]])
    towards = torch.tensor([[0.0, -math.sin(angle)], [-math.sin(angle), 0.0]])  # right and up of the camera
    local = torch.cat([towards, torch.full((2, 1), -math.cos(angle))], dim=1)
    points = cameras.positions[0] + 3 * local @ cameras.camera_to_world[0, :, :3].T
    for found, inside in (
        sources.project(points, torch.arange(2).expand(2, 2)),
        sources.project_into_all(points),
    ):
        assert inside.tolist() == [[True, False]] * 2
        torch.testing.assert_close(found[:, 0], places, atol=1e-3, rtol=0)


def test_a_point_behind_a_surface_is_not_seen():
    """Agreement is 1 at the depth that a camera sees, falls to nothing on both sides, and is 0 where it sees none."""
    _, maps, cameras, _ = mixed_sources()
    view = torch.tensor([0, 1, 2])[:, None]
    middle = torch.tensor(cameras.sizes())[:, None] / 2  # [3, 1, 2]
    seen = [maps.agreement(view, middle, torch.full((3, 1), distance)) for distance in (2.0, 2.05, 1.95, 3.0, 1.0)]
    assert (seen[0] > 0.999).all() and (seen[1] < 0.9).all() and (seen[2] < 0.9).all()
    assert (seen[3] < 1e-3).all() and (seen[4] < 1e-3).all()
    maps.depths[1, :, :32] = 0
    assert maps.agreement(view, middle - torch.tensor([3.0, 0]), torch.full((3, 1), 2.0))[1] == 0


def test_in_unbounded_space_depths_are_as_uncertain_as_intervals_are_long():
    """Far away they grow with the distance; near the cameras, and in a box, they have one length."""
    _, _, cameras, _ = mixed_sources()
    view, middle = torch.tensor([[0]]), torch.tensor([[cameras.sizes()[0]]]) / 2  # [1, 1], [1, 1, 2]
    for kind, distance, interval in (("contracted", 40.0, 2.0), ("contracted", 0.1, 0.01), ("box", 40.0, 0.01)):
        maps = DepthMaps(cameras, SamplingConfig(kind=kind, cone=0.05, step=0.01))
        maps.depths.fill_(distance + interval)
        found = maps.agreement(view, middle, torch.tensor([[distance]])).item()
        texel = distance * maps.angle[0].item()
        assert found == pytest.approx(math.exp(-interval / (texel + interval)), rel=1e-3), (kind, distance)
