# SPDX-License-Identifier: Apache-2.0
"""Images in one kernel: its definition is what the model does, and the kernel of a GPU gives the same pictures."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit import ops
from nerfkit.config import Config, DataConfig, ModelConfig, SamplingConfig
from nerfkit.contraction import exponential_edges
from nerfkit.crop import Crop
from nerfkit.data.cameras.cameras import Cameras, Rays
from nerfkit.metrics import psnr
from nerfkit.model.cropping import cropped
from nerfkit.model.renderer import Renderer
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.render_rays import N_GEOMETRY, N_STATE, why_no_kernel
from nerfkit.rendering.image_renderer import ImageRenderer
from tests.naming import raises_mentioning

CHAIN = {"render_rays": "torch"}


def field(
    n_rays: int = 40, levels: int = 16, n_features: int = 2, hidden: int = 64, taps: int = 3, has_lltm: bool = True,
    contracted: bool = False, filled: float = 0.3, cells: tuple[int, int, int] = (24, 20, 28), step: float = 0.02,
    density_bias: float = 2.0, threshold: float = 0.02,
) -> dict:  # fmt: skip
    """Arguments of a random field in float32, seen from outside of its box, or contracted from within."""
    box = torch.tensor([[-1.0, -1.1, -0.9], [1.0, 0.9, 1.1]])
    resolutions = [round(4 * 16 ** (level / max(levels - 1, 1))) for level in range(levels)]
    rows, channels = sum(level_entries(n, 2**10) for n in resolutions), levels * n_features
    origins = F.normalize(torch.randn(n_rays, 3), dim=-1) * (0.3 if contracted else 3.0)
    seen = (torch.rand(n_rays, 3) * 2 - 1) * 0.9

    def net(*widths: int) -> Tensor:
        parts = [(torch.randn(a * b) * 1.4 * a**-0.5, torch.randn(b) * 0.1) for a, b in pairwise(widths)]
        return torch.cat([x for part in parts for x in part])

    context = channels * bool(taps) + N_STATE * has_lltm
    arguments = {
        "origins": origins, "directions": F.normalize(seen - origins, dim=-1), "box": box, "hidden": hidden,
        "occupancy": torch.rand(cells) < filled, "table": torch.randn(rows, n_features), "resolutions": resolutions,
        "max_entries": 2**10, "density_net": net(channels, hidden, N_GEOMETRY), "density_bias": density_bias,
        "color_net": net(32 + context, hidden, hidden, 3), "background": torch.rand(n_rays, 3),
        "threshold": torch.tensor(threshold), "step": None if contracted else step,
    }  # fmt: skip
    if contracted:
        arguments["t_edges"] = exponential_edges(0.05, 200.0, step, 1 / 32).float()
    if taps:
        arguments |= {"conv_weight": torch.randn(channels, taps) / 2, "conv_bias": torch.randn(channels) * 0.1}
    if has_lltm:
        gates = 3 * N_STATE
        arguments["lltm_weight"] = torch.randn(gates, N_STATE + channels) * 0.3
        arguments["lltm_bias"] = torch.randn(gates) * 0.1
    return arguments


def drawn_field(seed: int) -> dict:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    n_features = draw.choice((2, 2, 4))
    arguments = field(
        n_rays=draw.choice((1, 33, 700)), levels=draw.randint(1, 16), n_features=n_features,
        hidden=draw.choice((16, 32, 64, 64, 5)), taps=draw.choice((0, 1, 3, 3, 5, 7)), has_lltm=draw.random() < 0.5,
        contracted=draw.random() < 0.4, filled=draw.choice((0.0, 0.02, 0.3, 1.0)), step=draw.choice((0.005, 0.02, 0.3)),
        density_bias=draw.choice((-3.0, 0.0, 2.0, 5.0)), threshold=draw.choice((0.0, 0.003, 0.05)),
        cells=draw.choice(((24, 20, 28), (1, 1, 1), (5, 3, 2), (32, 32, 32), (7, 9, 31))),
    )  # fmt: skip
    for _ in range(3):
        ray, axis = draw.randrange(len(arguments["origins"])), draw.randrange(3)
        arguments["origins"][ray, axis] = draw.choice((math.nan, math.inf, 1e30, 0.0))
        arguments["directions"][ray] = draw.choice((torch.zeros(3), torch.eye(3)[axis], torch.full((3,), math.nan)))
    return arguments


def on_gpu(arguments: dict) -> dict:
    """The same on a GPU, table and weights in half precision."""
    half = ("table", "density_net", "color_net", "conv_weight", "conv_bias", "lltm_weight", "lltm_bias")
    moved = {name: x.cuda() if isinstance(x, Tensor) else x for name, x in arguments.items()}
    return {name: x.half() if name in half else x for name, x in moved.items()}


def test_rays_without_samples_have_the_background():
    arguments = field(n_rays=3)
    arguments["origins"][0, 1] = math.nan
    arguments["directions"][1] = 0
    arguments["directions"][2] *= -1  # away from the box
    color, *others = ops.render_rays(**arguments)
    assert color.equal(arguments["background"]) and not torch.stack(others).any()


def small_renderer(kind: str, **model) -> Renderer:
    torch.manual_seed(1)
    model = dict(levels=8, log2_hashmap_size=12, max_resolution=64, mlp_width=32, features_per_level=2) | model
    sampling = SamplingConfig(kind, occupancy_resolution=32, step_size=0.05, near=0.1, far=50.0)
    config = Config(data=DataConfig(box=(-1.0,) * 3 + (1.0,) * 3), sampling=sampling, model=ModelConfig(**model))
    renderer = Renderer(replace(config, size="small")).eval()
    with torch.no_grad():
        for name, x in renderer.named_parameters():
            if name == "grid.table":
                x.normal_()
            elif name == "decoder.color_net.packed":  # what sees along the ray begins without any weight
                x.normal_(0, 0.3)
        weight, bias = renderer.decoder.density_net.layers()[-1]
        weight[0] *= 15  # so that some samples are thin, and some opaque
        bias[0] -= renderer.density(torch.rand(1000, 3) * 2 - 1).log().mean()
        renderer.sampler.occupancy.copy_(torch.rand(renderer.sampler.occupancy.shape) < 0.15)
        renderer.sampler.threshold.fill_(0.05)
    return renderer


STAGES = {"field": (False, False), "conv": (True, False), "conv_lltm": (True, True), "lltm": (False, True)}


@pytest.mark.parametrize("kind", ["box", "contracted"])
@pytest.mark.parametrize("encoder, aggregator", STAGES.values(), ids=STAGES)
@torch.no_grad()
def test_the_definition_is_what_the_renderer_does(kind: str, encoder: bool, aggregator: bool):
    renderer = small_renderer(kind, encoder=encoder, aggregator=aggregator)
    origins = F.normalize(torch.randn(50, 3), dim=-1) * 2
    rays, background = Rays(origins, F.normalize(torch.randn(50, 3) * 0.3 - origins, dim=-1)), torch.rand(50, 3)
    wanted = renderer(rays, background)
    color, opacity, depth, _ = ops.render_rays(*rays[:2], background=background, **renderer._arguments(torch.float32))
    assert 0.1 < opacity.mean() < 0.99, "there has to be something to see, and to see through"
    for got, of_chain in ((color, wanted.color), (opacity, wanted.opacity), (depth, wanted.depth)):
        torch.testing.assert_close(got, of_chain, rtol=1e-4, atol=1e-5)


def test_there_is_no_kernel_for_a_cpu():
    with ops.backend("cpp"):  # of those that have it
        assert ops.resolved("cpu")["render_rays"].backend == "torch"
    with ops.backend(overrides={"render_rays": "cpp"}), raises_mentioning(ops.BackendError, "render_rays", "'cpp'"):
        ops.render_rays(**field(n_rays=2))


@pytest.mark.parametrize(
    "sizes, why",
    [
        ({"dtype": torch.float32}, "float16, got float32"), ({"n_features": 8}, "2 or 4 features a level, got 8"),
        ({"channels": 80}, "at most 64", ), ({"hidden": 128}, "at most 64"), ({"taps": 9}, "at most 7, got 9"),
    ],
)  # fmt: skip
def test_sizes_without_a_kernel(sizes: dict, why: str):
    fitting = {"dtype": torch.float16, "n_features": 2, "channels": 32, "hidden": 64, "taps": 3}
    assert why in why_no_kernel("cuda", **(fitting | sizes))


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(24))
def test_the_kernel_gives_what_the_chain_gives(seed: int):
    arguments = on_gpu(drawn_field(seed))
    with ops.backend(overrides={"render_rays": "cuda"}):
        got = ops.render_rays(**arguments)
    with ops.backend(overrides=CHAIN):
        wanted = ops.render_rays(**arguments)
    for what, x, y in zip(("color", "opacity", "depth", "median"), got, wanted, strict=True):
        scale = 1 + y.abs() if what in ("depth", "median") else 1  # far away, float32 has few digits
        off = ((x - y) / scale).abs()
        assert off.max() < 0.03 and off.mean() < 1e-3, f"{what} is off by {off.max():.4f}, on average {off.mean():.5f}"


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(4))
def test_a_ray_does_not_depend_on_those_beside_it(seed: int):
    torch.manual_seed(seed)
    arguments = on_gpu(field(n_rays=3000, taps=3, has_lltm=seed % 2 == 0, contracted=seed > 1))
    broken = {name: arguments[name].clone() for name in ("origins", "directions")}
    broken["origins"][::3] = math.nan
    broken["directions"][1::3] = 0
    order = torch.randperm(3000, device="cuda")
    moved = {name: arguments[name][order] for name in ("origins", "directions", "background")}
    with ops.backend(overrides={"render_rays": "cuda"}):
        once, again, beside = (ops.render_rays(**(arguments | x)) for x in ({}, {}, broken))
        elsewhere = ops.render_rays(**(arguments | moved))
    for a, b, c, d in zip(once, again, beside, elsewhere, strict=True):
        assert a.equal(b) and a[2::3].equal(c[2::3]) and a[order].equal(d)


@pytest.mark.cuda
def test_a_broken_network_shows():
    arguments = on_gpu(field(filled=1.0))
    arguments["color_net"][-1] = math.nan  # of blue
    with ops.backend(overrides={"render_rays": "cuda"}):
        color, opacity, *_ = ops.render_rays(**arguments)
    assert color[opacity > 0, 2].isnan().all() and color[:, :2].isfinite().all()


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["box", "contracted"])
@pytest.mark.parametrize("encoder, aggregator", STAGES.values(), ids=STAGES)
def test_an_image_is_that_of_the_chain(kind: str, encoder: bool, aggregator: bool):
    renderer = small_renderer(kind, encoder=encoder, aggregator=aggregator).cuda()
    pose = torch.tensor([[[1.0, 0, 0, 0.1], [0, 1, 0, 0.2], [0, 0, 1, 2.5]]])
    cameras = Cameras(pose, torch.tensor([[90.0, 90]]), torch.tensor([[45.0, 35]]), 90, 70).to("cuda")
    image_of = ImageRenderer(renderer, torch.ones(3, device="cuda"), stays_on_device=True)
    outputs = ("rgb", "opacity", "depth", "median_depth")
    assert renderer.is_one_kernel
    got = image_of(cameras, 0, outputs)
    with ops.backend(overrides=CHAIN):
        wanted = image_of(cameras, 0, outputs)
    assert psnr(got["rgb"], wanted["rgb"]) > 55
    bits, wanted_bits = ((x["rgb"] * 255).round() for x in (got, wanted))
    assert ((bits - wanted_bits).abs() <= 1).float().mean() > 0.999
    for name in ("depth_ray", "depth_median_ray"):
        assert ((got[name] - wanted[name]).abs() < 0.01 * (1 + wanted[name])).float().mean() > 0.99, name


def test_with_gradients_the_chain_runs():
    renderer = small_renderer("box")
    rays = Rays(torch.tensor([[0.0, 0.1, 3]]), torch.tensor([[0.0, 0, -1]]))
    renderer.render(rays, torch.zeros(3)).color.sum().backward()
    assert renderer.grid.table.grad.any()


@pytest.mark.cuda
@torch.no_grad()
def test_what_the_kernel_does_not_know_is_rendered_by_the_chain_or_refused():
    class Grayer(Renderer):
        def density(self, positions: Tensor) -> Tensor:
            return super().density(positions) / 2

    torch.manual_seed(0)
    plain = small_renderer("box").cuda()
    wide, own = small_renderer("box", mlp_width=128).cuda(), Grayer(plain.config).eval().cuda()
    rays, background = Rays(torch.tensor([[0.0, 0, 3]]), torch.tensor([[0.0, 0, -1]])), torch.zeros(3, device="cuda")
    rays = Rays(*(x.cuda() for x in rays[:2]))
    with cropped(plain, Crop((-0.5,) * 3, (0.5,) * 3)):
        with ops.backend("cuda"):  # of all ops: where their kernels take the model
            assert not plain.is_one_kernel and plain.render(rays, background).samples is not None
    for model, word in ((wide, "128"), (own, "Grayer.density")):
        assert model.resolved("cuda")["render_rays"].backend == "torch"
        assert model.render(rays, background).samples is not None
        with ops.backend(overrides={"render_rays": "cuda"}), raises_mentioning(ops.BackendError, "render_rays", word):
            model.render(rays, background)
