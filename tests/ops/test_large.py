# SPDX-License-Identifier: Apache-2.0
"""More than 2^31 elements: with LARGE=1, on a GPU of 100 GB and, what fits into 20 GB, on the CPU. Otherwise small.

An op runs on many rays (or points, or images). At their beginning, middle and end the result has to be what the op
gives for that part alone. The gradient that comes in is zero elsewhere, so those of the parameters are the sum over
the parts.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

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

one_small_one_large = pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])


class Make:
    """Draws tensors of one dtype on one device, without a wider copy."""

    def __init__(self, dtype: torch.dtype, device: str):
        self.dtype, self.device = dtype, device

    def __call__(self, *shape: int, low: float = -1.0, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device).uniform_(low, 1)


@dataclass(frozen=True)
class Problem:
    """Arguments for `units` rays, points or images; those in `rows` have so many rows for each unit."""

    arguments: dict
    rows: dict[str, int]
    out_rows: tuple[int, ...] = (1,)  # of each output for a unit
    fixed: tuple[str, ...] = ()  # arguments in `rows` without a gradient
    shared: tuple[str, ...] = field(default=("weight", "bias"))  # parameters

    @property
    def differentiable(self) -> list[str]:
        return [name for name in (*self.rows, *self.shared) if name not in self.fixed]

    def part(self, first: int, last: int) -> dict:
        """Copies of the arguments for units first .. last; all rays are of one length."""
        part = dict(self.arguments)
        for name, rows in self.rows.items():
            part[name] = part[name].detach()[first * rows : last * rows].clone()
        for name in self.shared:
            part[name] = part[name].detach().clone()
        return part | (
            {"ray_offsets": part["ray_offsets"][: last - first + 1].clone()} if "ray_offsets" in part else {}
        )


def rays(units: int, make: Make) -> dict[str, Tensor]:
    return {"ray_offsets": dense_offsets(units, SAMPLES, make.device)}


def trilinear(units: int, make: Make) -> Problem:
    arguments = {"feats": make(units, 8, 16), "points": make(units, 3, dtype=torch.float32)}
    return Problem(arguments, {"feats": 1, "points": 1}, shared=())


def grid_encode(units: int, make: Make) -> Problem:
    table = make(sum(level_entries(n, ENTRIES) for n in LEVELS), 8)
    points = make(units, 3, low=0.0, dtype=torch.float32)
    arguments = {"points": points, "table": table, "resolutions": LEVELS, "max_entries": ENTRIES}
    return Problem(arguments, {"points": 1}, shared=("table",))


def conv1d_packed(units: int, make: Make) -> Problem:
    arguments = {"x": make(units * SAMPLES, 32), "weight": make(32, 5), "bias": make(32)}
    return Problem(arguments | rays(units, make), {"x": SAMPLES}, (SAMPLES,))


def conv1d_dense(units: int, make: Make) -> Problem:
    return Problem({"x": make(units, 32, SAMPLES), "weight": make(32, 5), "bias": make(32)}, {"x": 1})


def conv2d(units: int, make: Make) -> Problem:
    x = make(units, 32, 32, 32)
    return Problem({"x": x, "weight": make(32, 1, 3, 3), "bias": make(32), "padding": 1}, {"x": 1})


def conv2d_channels_last(units: int, make: Make) -> Problem:
    problem = conv2d(units, make)
    problem.arguments["x"] = problem.arguments["x"].permute(0, 3, 1, 2)
    return problem


def lltm_cell(units: int, make: Make) -> Problem:
    arguments = {name: make(units, 32) for name in ("input", "h", "c")}
    parameters = {"weight": make(96, 64).mul_(0.2), "bias": make(96)}
    return Problem(arguments | parameters, dict.fromkeys(arguments, 1), (1, 1))


def lltm(units: int, make: Make) -> Problem:
    arguments = {"input": make(units * SAMPLES, 32), "h0": make(units, 32), "c0": make(units, 32)}
    parameters = {"weight": make(96, 64).mul_(0.2), "bias": make(96)} | rays(units, make)
    return Problem(arguments | parameters, {"input": SAMPLES, "h0": 1, "c0": 1}, (SAMPLES, 1, 1))


def composite(units: int, make: Make) -> Problem:
    n = units * SAMPLES
    t_starts = torch.linspace(0, 1 - 1 / SAMPLES, SAMPLES, device=make.device).to(make.dtype).repeat(units)
    of_samples = {"density": make(n, low=0.0), "rgb": make(n, 3, low=0.0)}
    of_samples |= {"t_starts": t_starts, "t_ends": t_starts + 1 / SAMPLES}
    arguments = of_samples | {"background": make(3, low=0.0)} | rays(units, make)
    fixed = "t_starts", "t_ends"
    return Problem(arguments, dict.fromkeys(of_samples, SAMPLES), (1, 1, 1, SAMPLES), fixed, shared=("background",))


def spherical_harmonics(units: int, make: Make) -> Problem:
    directions = make(units, 3, dtype=torch.float32)
    return Problem({"directions": directions, "dtype": make.dtype}, {"directions": 1}, shared=())


@dataclass(frozen=True)
class Large:
    op: str
    make: Callable[[int, Make], Problem]
    units: int  # so many that a tensor has more than 2^31 elements of 2 bytes
    bytes: float  # at the most in use, about


LARGE = [
    Large("trilinear", trilinear, 2**24 + 101, 12e9),  # feats
    Large("grid_encode", grid_encode, 2**26 + 101, 14e9),  # out
    Large("depthwise_conv1d", conv1d_packed, 2**20 + 101, 19e9),  # x, out
    Large("depthwise_conv1d", conv1d_dense, 2**20 + 101, 19e9),  # x, out
    Large("depthwise_conv2d", conv2d, 2**16 + 101, 19e9),  # x, out
    Large("depthwise_conv2d", conv2d_channels_last, 2**16 + 101, 19e9),  # x, out
    Large("lltm_cell", lltm_cell, 2**25 + 101, 50e9),  # gates, and h beside the input
    Large("lltm", lltm, 2**20 + 101, 75e9),  # input, h, gates
    Large("composite", composite, 2**25 + 101, 65e9),  # density, rgb
    Large("spherical_harmonics", spherical_harmonics, 2**27 + 101, 60e9),  # out, and the definition's on the way back
]


def check_parts(op: str, problem: Problem, units: int, share: float) -> int:
    """The op's result at the beginning, middle and end is that of these parts alone; so are the gradients.

    Returns how many elements the largest input or output has.
    """
    function = getattr(ops, op)
    firsts = sorted({0, (units - PART) // 2, units - PART})
    assert len(firsts) == 3 and firsts[0] + PART <= firsts[1] <= firsts[2] - PART
    inputs = [problem.arguments[name].requires_grad_() for name in problem.differentiable]
    outputs = as_tuple(function(**problem.arguments))
    grads = [torch.zeros_like(out) for out in outputs]
    for grad, rows in zip(grads, problem.out_rows, strict=True):
        for first in firsts:
            part = grad[first * rows : (first + PART) * rows]
            part.copy_((torch.arange(part.numel(), device=part.device) % 7 / 64 - 1 / 32).view(part.shape))
    gradients = dict(zip(problem.differentiable, torch.autograd.grad(outputs, inputs, grads), strict=True))
    outputs = [x.detach() for x in outputs]

    sums = dict.fromkeys(problem.shared, 0.0)
    for first in firsts:
        arguments = problem.part(first, first + PART)
        inputs = [arguments[name].requires_grad_() for name in problem.differentiable]
        alone = as_tuple(function(**arguments))
        grads_alone = []
        for index, (x, rows) in enumerate(zip(outputs, problem.out_rows, strict=True)):
            place = slice(first * rows, (first + PART) * rows)
            assert_near(x[place], alone[index].detach(), share, f"output {index} from unit {first}")
            grads_alone.append(grads[index][place].clone())
        gradients_alone = torch.autograd.grad(alone, inputs, grads_alone)
        for name, gradient in zip(problem.differentiable, gradients_alone, strict=True):
            if name in problem.shared:
                sums[name] = sums[name] + gradient.double()
            else:
                rows = problem.rows[name]
                place = slice(first * rows, (first + PART) * rows)
                assert_near(gradients[name][place], gradient, share, f"gradient of {name} from unit {first}")
    for name, wanted in sums.items():
        assert_near(gradients[name], wanted, share, f"gradient of {name}")
    for name in problem.rows.keys() & gradients.keys():
        for first, following in zip(firsts, firsts[1:], strict=False):
            between = slice((first + PART) * problem.rows[name], following * problem.rows[name])
            assert not gradients[name][between].any(), f"gradient of {name} where none came in"
    return max(x.numel() for x in (*problem.arguments.values(), *outputs) if isinstance(x, Tensor))


def assert_near(got: Tensor, wanted: Tensor, share: float, what: str) -> None:
    difference = (got.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-6)
    assert difference < share, f"{what}: {difference:.1e} of the largest value"


def check_march(rays: int, device: str) -> int:
    """Samples of the first and last rays are those of these rays alone; the number of all samples."""
    make = Make(torch.float32, device)
    origins = make(rays, 3).mul_(0.9)
    origins[:, 0] = -1.5
    directions = torch.tensor([1.0, 0, 0], device=device).repeat(rays, 1)
    jitter, occupancy = make(rays, low=0.0), torch.ones(4, 4, 4, dtype=torch.bool, device=device)
    box = torch.tensor([[-1.0] * 3, [1.0] * 3], device=device)
    t_starts, t_ends, ray_offsets = ops.march(origins, directions, occupancy, box, 2 / 1024, jitter=jitter)
    assert ray_offsets[-1] == len(t_starts) == len(t_ends) and (ray_offsets.diff() >= 1023).all()
    for first in (0, (rays - PART) // 2, rays - PART):
        place = slice(first, first + PART)
        alone = ops.march(
            origins[place].clone(), directions[place].clone(), occupancy, box, 2 / 1024, jitter=jitter[place].clone()
        )
        offsets = ray_offsets[first : first + PART + 1]
        assert torch.equal(offsets - offsets[0], alone[2])
        samples = slice(offsets[0].item(), offsets[-1].item())
        torch.testing.assert_close((t_starts[samples], t_ends[samples]), alone[:2], rtol=1e-6, atol=1e-6)
    return len(t_starts)


def check_table(resolutions: list[int], entries: int, dtype: torch.dtype, device: str) -> int:
    """The last level of a large table gives what it gives as a table of its own; the table's elements."""
    make = Make(dtype, device)
    points = make(1000, 3, low=0.0, dtype=torch.float32)
    table = make(sum(level_entries(n, entries) for n in resolutions), 4).requires_grad_()
    own = level_entries(resolutions[-1], entries)
    level = table.detach()[-own:].clone().requires_grad_()
    whole = ops.grid_encode(points, table, resolutions, entries)
    alone = ops.grid_encode(points, level, resolutions[-1:], entries)
    assert_near(whole[:, -4:].detach(), alone.detach(), SHARE[dtype], "features")
    (of_whole,) = torch.autograd.grad(whole[:, -4:].sum(), table)
    (of_level,) = torch.autograd.grad(alone.sum(), level)
    # Compared where it is not zero, and by its sum: a copy in float64 would not fit.
    rows = of_level.any(1).nonzero()[:, 0]
    assert_near(of_whole[-own:][rows], of_level[rows], SHARE[dtype], "gradient of the level")
    assert of_whole.any(1).nonzero().shape[0] == rows.shape[0]
    return table.numel()


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


def params_of(problems: list[Large]) -> list:
    return [
        pytest.param(large, *p.values, id=f"{large.make.__name__}-{p.id}", marks=p.marks)
        for large in problems
        for p in fused_params(large.op)
    ]


@pytest.mark.parametrize("large, backend, device", params_of(LARGE))
@one_small_one_large
def test_parts(large: Large, backend: str, device: str, is_large: bool):
    if is_large:
        needs(large.bytes, device)
    for dtype in [torch.float16] if is_large else SHARE:
        units = large.units if is_large else FEW
        with ops.backend(backend):
            problem = large.make(units, Make(dtype, device))
            n_largest = check_parts(large.op, problem, units, SHARE[dtype])
    # The cell also keeps gates, which are three times its state.
    assert not is_large or n_largest * (3 if large.op == "lltm_cell" else 1) > LIMIT


@pytest.mark.parametrize("backend, device", fused_params("march"))
@one_small_one_large
def test_samples(backend: str, device: str, is_large: bool):
    if is_large:
        needs(19e9, device)
    with ops.backend(backend):
        n_samples = check_march(2**21 + 2**15 if is_large else FEW, device)
    assert n_samples > (LIMIT if is_large else FEW * 1022)


@pytest.mark.parametrize("backend, device", fused_params("grid_encode"))
@one_small_one_large
def test_a_table(backend: str, device: str, is_large: bool):
    if is_large:
        needs(55e9, device)
    with ops.backend(backend):
        for dtype in [torch.float16] if is_large else SHARE:
            resolutions, entries = ([644, 700, 1000], 2**28) if is_large else ([6, 8, 20], 2**9)
            assert check_table(resolutions, entries, dtype, device) > (LIMIT if is_large else 0)


def check_channels(channels: int, device: str) -> int:
    """The first and last of many channels, channels last, are as these alone; the image's elements."""
    make = Make(torch.float16, device)
    x, grad = (make(1, 1, 64, channels).permute(0, 3, 1, 2) for _ in range(2))
    inputs = [value.requires_grad_() for value in (x, make(channels, 1, 7, 7), make(channels))]
    names = "result", "gradient of x", "gradient of weight", "gradient of bias"

    def results(place: slice) -> list[Tensor]:
        own = [v.detach()[:, place] if v is x else v.detach()[place].clone() for v in inputs]
        own[0] = own[0].clone(memory_format=torch.channels_last)
        own = [value.requires_grad_() for value in own]
        out = ops.depthwise_conv2d(*own, padding=3)
        return [
            out.detach(),
            *torch.autograd.grad(out, own, grad[:, place].contiguous(memory_format=torch.channels_last)),
        ]

    out = ops.depthwise_conv2d(*inputs, padding=3)
    whole = [out.detach(), *torch.autograd.grad(out, inputs, grad)]
    for first in (0, (channels - PART) // 2, channels - PART):
        place = slice(first, first + PART)
        for name, of_whole, alone in zip(names, whole, results(place), strict=True):
            got = of_whole[:, place] if of_whole.dim() == 4 and of_whole.shape[0] == 1 else of_whole[place]
            assert_near(got, alone, SHARE[torch.float16], f"{name} from channel {first}")
    return x.numel()


@pytest.mark.parametrize("backend, device", fused_params("depthwise_conv2d"))
@one_small_one_large
def test_channels(backend: str, device: str, is_large: bool):
    if is_large:
        needs(45e9, device)
    with ops.backend(backend):
        assert check_channels(2**25 + 8 if is_large else FEW - 3, device) > (LIMIT if is_large else 0)


@pytest.mark.parametrize("backend, device", fused_params("depthwise_conv2d"))
def test_a_wide_row(backend: str, device: str):
    """Nearly as many columns as an axis may have."""
    needs(10e9, device)
    padding = (2**31 - 1 - 1000) // 2
    with ops.backend(backend):
        x, weight = torch.ones(1, 1, 2, 1000, device=device), torch.ones(1, 1, 2, 3, device=device)
        out = ops.depthwise_conv2d(x, weight, padding=(0, padding)).flatten()
    own = out[padding - 2 : padding + 1000]  # the taps meet x
    assert own.sum() == 6 * 1000 and own.count_nonzero() == 1002 == out.count_nonzero()
