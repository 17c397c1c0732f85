# SPDX-License-Identifier: Apache-2.0
"""More than 2^31 elements: with LARGE=1, on a GPU of 100 GB and, what fits into 20 GB, on the CPU. Otherwise small.

An op runs on many rays (or points, or images). At their beginning, middle and end the result has to be what the op
gives for that part alone. The gradient that comes in is zero elsewhere, so those of the parameters are the sum over
the parts.
"""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nerfkit import ops
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.packed import dense_offsets
from tests.ops.harness import as_tuple, fused_params

pytestmark = pytest.mark.slow

SAMPLES = 64  # of each ray
PART = 70  # rays, points or images that are computed once more, alone; more than lltm_cell's small kernel takes
FEW = 3 * PART + 7
SHARE = {torch.float32: 2e-4, torch.float16: 2e-2}  # of the largest value: a part may take another kernel
LIMIT = 2**31
CPU_BYTES = 20e9
LEVELS, ENTRIES = [8, 16, 32, 64], 2**12
PARAMETERS = ("weight", "bias", "table", "background")  # all other arguments have as many rows for each unit

one_small_one_large = pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])


class Make:
    """Draws tensors of one dtype on one device, without a wider copy."""

    def __init__(self, dtype: torch.dtype, device: str):
        self.dtype, self.device = dtype, device

    def __call__(self, *shape: int, low: float = -1.0, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device).uniform_(low, 1)


def trilinear(units: int, make: Make) -> dict:
    return {"feats": make(units, 8, 16), "points": make(units, 3, dtype=torch.float32)}


def grid_encode(units: int, make: Make) -> dict:
    table = make(sum(level_entries(n, ENTRIES) for n in LEVELS), 8)
    points = make(units, 3, low=0.0, dtype=torch.float32)
    return {"points": points, "table": table, "resolutions": LEVELS, "max_entries": ENTRIES}


def conv1d_packed(units: int, make: Make) -> dict:
    x, rays = make(units * SAMPLES, 32), dense_offsets(units, SAMPLES, make.device)
    return {"x": x, "weight": make(32, 5), "bias": make(32), "ray_offsets": rays}


def conv1d_dense(units: int, make: Make) -> dict:
    return {"x": make(units, 32, SAMPLES), "weight": make(32, 5), "bias": make(32)}


def conv2d(units: int, make: Make) -> dict:
    return {"x": make(units, 32, 32, 32), "weight": make(32, 1, 3, 3), "bias": make(32), "padding": 1}


def conv2d_channels_last(units: int, make: Make) -> dict:
    arguments = conv2d(units, make)
    return arguments | {"x": arguments["x"].permute(0, 3, 1, 2)}


def lltm_cell(units: int, make: Make) -> dict:
    state = {name: make(units, 32) for name in ("input", "h", "c")}
    return state | {"weight": make(96, 64).mul_(0.2), "bias": make(96)}


def lltm(units: int, make: Make) -> dict:
    state = {"input": make(units * SAMPLES, 32), "h0": make(units, 32), "c0": make(units, 32)}
    rays = dense_offsets(units, SAMPLES, make.device)
    return state | {"weight": make(96, 64).mul_(0.2), "bias": make(96), "ray_offsets": rays}


def composite(units: int, make: Make) -> dict:
    n = units * SAMPLES
    t_starts = torch.linspace(0, 1 - 1 / SAMPLES, SAMPLES, device=make.device).to(make.dtype).repeat(units)
    return {
        "density": make(n, low=0.0), "rgb": make(n, 3, low=0.0), "t_starts": t_starts, "t_ends": t_starts + 1 / SAMPLES,
        "background": make(3, low=0.0), "ray_offsets": dense_offsets(units, SAMPLES, make.device),
    }  # fmt: skip


def spherical_harmonics(units: int, make: Make) -> dict:
    return {"directions": make(units, 3, dtype=torch.float32), "dtype": make.dtype}


LARGE = [  # op, arguments, units for more than 2^31 elements of 2 bytes in a tensor, about the bytes in use at the most
    ("trilinear", trilinear, 2**24 + 101, 12e9),  # feats
    ("grid_encode", grid_encode, 2**26 + 101, 14e9),  # out
    ("depthwise_conv1d", conv1d_packed, 2**20 + 101, 19e9),  # x, out
    ("depthwise_conv1d", conv1d_dense, 2**20 + 101, 19e9),  # x, out
    ("depthwise_conv2d", conv2d, 2**16 + 101, 19e9),  # x, out
    ("depthwise_conv2d", conv2d_channels_last, 2**16 + 101, 19e9),  # x, out
    ("lltm_cell", lltm_cell, 2**25 + 101, 50e9),  # gates, and h beside the input
    ("lltm", lltm, 2**20 + 101, 75e9),  # input, h, gates
    ("composite", composite, 2**25 + 101, 65e9),  # density, rgb
    ("spherical_harmonics", spherical_harmonics, 2**27 + 101, 60e9),  # out, and the definition's on the way back
]


def needs(size: float, device: str) -> None:
    """Skip where tensors of `size` bytes are not asked for, or do not fit."""
    if os.environ.get("LARGE") != "1":
        pytest.skip("tensors of more than 2^31 elements are tested with LARGE=1")
    if device == "cuda":
        torch.cuda.empty_cache()
        free, limit = torch.cuda.mem_get_info()[0], 100e9
    else:
        free, limit = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), CPU_BYTES
    if size > min(free, limit):
        pytest.skip(f"needs {size / 1e9:.0f} GB on {device}; {free / 1e9:.0f} are free, {limit / 1e9:.0f} allowed")


def of_units(x: Tensor, units: int, first: int) -> Tensor:
    rows = x.shape[0] // units
    return x[first * rows : (first + PART) * rows]


def own_arguments(arguments: dict, units: int, first: int) -> dict:
    """Copies of the arguments for PART units from the first one on; all rays are of one length."""
    own = {name: x.detach() if isinstance(x, Tensor) else x for name, x in arguments.items()}
    for name, x in own.items():
        if isinstance(x, Tensor):
            rows = x[: PART + 1] if name == "ray_offsets" else x if name in PARAMETERS else of_units(x, units, first)
            own[name] = rows.clone()
    return own


def simple_numbers(x: Tensor) -> Tensor:
    return torch.empty_like(x).copy_((torch.arange(x.numel(), device=x.device) % 7 / 64 - 1 / 32).view(x.shape))


def results(op: str, arguments: dict, grads_of: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Outputs, numbered, and the gradient of each argument that has one."""
    inputs = {name: x for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()}
    inputs = {name: x.requires_grad_() for name, x in inputs.items() if name not in ("t_starts", "t_ends")}
    outputs = as_tuple(getattr(ops, op)(**arguments))
    gradients = torch.autograd.grad(outputs, list(inputs.values()), [grads_of(x) for x in outputs])
    numbered = {f"output {index}": x.detach() for index, x in enumerate(outputs)}
    return numbered | dict(zip(inputs, gradients, strict=True))


def assert_near(got: Tensor, wanted: Tensor, share: float, what: str) -> None:
    difference = (got.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-6)
    assert difference < share, f"{what}: {difference:.1e} of the largest value"


def check_parts(op: str, arguments: dict, units: int, share: float) -> int:
    """Require of the beginning, middle and end what the op gives for them alone; elements of the largest tensor."""
    firsts = 0, (units - PART) // 2, units - PART

    def zero_elsewhere(x: Tensor) -> Tensor:
        grad = torch.zeros_like(x)
        for first in firsts:
            part = of_units(grad, units, first)
            part.copy_(simple_numbers(part))
        return grad

    whole, sums = results(op, arguments, zero_elsewhere), {}
    for first in firsts:
        for name, alone in results(op, own_arguments(arguments, units, first), simple_numbers).items():
            if name in PARAMETERS:
                sums[name] = sums.get(name, 0.0) + alone.double()
            else:
                assert_near(of_units(whole[name], units, first), alone, share, f"{name} from unit {first}")
    for name, wanted in sums.items():
        assert_near(whole[name], wanted, share, f"gradient of {name}")
    return max(x.numel() for x in (*arguments.values(), *whole.values()) if isinstance(x, Tensor))


@pytest.mark.parametrize(
    "op, arguments, units, size, backend, device",
    [
        pytest.param(*large, *p.values, id=f"{large[1].__name__}-{p.id}", marks=p.marks)
        for large in LARGE
        for p in fused_params(large[0])
    ],
)
@one_small_one_large
def test_parts(op, arguments: Callable, units: int, size: float, backend: str, device: str, is_large: bool):
    if is_large:
        needs(size, device)
    units = units if is_large else FEW
    for dtype in [torch.float16] if is_large else SHARE:
        with ops.backend(backend):
            n_largest = check_parts(op, arguments(units, Make(dtype, device)), units, SHARE[dtype])
    # The cell also keeps gates, which are three times its state.
    assert not is_large or n_largest * (3 if op == "lltm_cell" else 1) > LIMIT


@pytest.mark.parametrize("backend, device", fused_params("march"))
@one_small_one_large
def test_samples(backend: str, device: str, is_large: bool):
    if is_large:
        needs(19e9, device)
    n_rays, make = 2**21 + 2**15 if is_large else FEW, Make(torch.float32, device)
    origins = make(n_rays, 3).mul_(0.9)
    origins[:, 0] = -1.5
    directions = torch.tensor([1.0, 0, 0], device=device).repeat(n_rays, 1)
    jitter, occupancy = make(n_rays, low=0.0), torch.ones(4, 4, 4, dtype=torch.bool, device=device)
    grid = occupancy, torch.tensor([[-1.0] * 3, [1.0] * 3], device=device), 2 / 1024
    with ops.backend(backend):
        t_starts, t_ends, ray_offsets = ops.march(origins, directions, *grid, jitter=jitter)
        assert ray_offsets[-1] == len(t_starts) == len(t_ends) > (LIMIT if is_large else FEW * 1022)
        for first in (0, (n_rays - PART) // 2, n_rays - PART):
            own = (of_units(x, n_rays, first).clone() for x in (origins, directions, jitter))
            origins_alone, directions_alone, jitter_alone = own
            alone = ops.march(origins_alone, directions_alone, *grid, jitter=jitter_alone)
            offsets = ray_offsets[first : first + PART + 1]
            assert torch.equal(offsets - offsets[0], alone[2])
            samples = slice(offsets[0].item(), offsets[-1].item())
            torch.testing.assert_close((t_starts[samples], t_ends[samples]), alone[:2], rtol=1e-6, atol=1e-6)
