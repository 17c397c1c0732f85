# SPDX-License-Identifier: Apache-2.0
"""The cases of every op, in one list: they drive all tests that are the same for all ops.

A case makes its inputs in float64; a test casts them. `arguments` are given to the op as they are, in order; those
named in `differentiable` are tensors with a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nerfkit import ops
from nerfkit.contraction import exponential_edges
from nerfkit.limits import GPU_ONLY, OPS
from nerfkit.ops.grid_encode import level_entries
from nerfkit.ops.mlp import n_parameters
from nerfkit.ops.packed import offsets_from_counts, ray_indices


@dataclass(frozen=True)
class Case:
    op: str
    name: str
    make: Callable[[], tuple]  # arguments, float64
    differentiable: tuple[int, ...]  # places of the arguments with a gradient
    keep_wide: tuple[int, ...] = ()  # places of positions, which never go below float32
    second_order: bool = True
    float32: tuple[int, ...] = ()  # places of tensors that are so in any case
    in_place: tuple[int, ...] = ()  # places of the arguments that the op writes

    @property
    def function(self) -> Callable:
        op = getattr(ops, self.op)
        if not self.in_place:
            return op
        return lambda *args: op(*(x.clone() if place in self.in_place else x for place, x in enumerate(args)))

    def arguments(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list:
        """The arguments in `dtype` on `device`, the same values every time."""
        generator_state = torch.get_rng_state()
        torch.manual_seed(1)
        values = list(self.make())
        torch.set_rng_state(generator_state)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                if value.is_floating_point() and place not in self.float32:
                    value = value.to(wide if place in self.keep_wide else dtype)
                values[place] = value.to(device)
        return values

    def with_gradients(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list:
        """The same, of which the differentiable ones require a gradient."""
        arguments = self.arguments(dtype, device)
        for tensor in self.tensors(arguments):
            tensor.requires_grad_()
        return arguments

    def widened(self, arguments: list) -> list:
        """`arguments` on the CPU and in float64, as far as they may be."""
        wide = list(arguments)
        for place, x in enumerate(wide):
            if isinstance(x, Tensor):
                wide[place] = x.cpu().double() if x.is_floating_point() and place not in self.float32 else x.cpu()
        return wide

    def tensors(self, arguments: list) -> list[Tensor]:
        return [arguments[place] for place in self.differentiable]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def offsets(*counts: int) -> Tensor:
    return offsets_from_counts(torch.tensor(counts, dtype=torch.int64))


RAYS = {  # samples per ray
    "one_ray": (5,),
    "empty_rays": (0, 3, 0, 0, 4, 1, 0),
    "long_and_short": (40, 1, 2, 1),
    "no_samples": (0, 0),
    "no_rays": (),
}


def trilinear(n: int, f: int, spread: float) -> Case:
    make = lambda: (normal(n, 8, f), (torch.rand(n, 3).double() * 2 - 1) * spread)  # noqa: E731
    return Case("trilinear", f"{n}x{f}_to_{spread:g}", make, differentiable=(0, 1), keep_wide=(1,))


def grid(name: str, n: int, resolutions: list[int], f: int, max_entries: int, place: Callable[[int], Tensor]) -> Case:
    rows = sum(level_entries(r, max_entries) for r in resolutions)
    make = lambda: (place(n), normal(rows, f), resolutions, max_entries)  # noqa: E731
    return Case("grid_encode", name, make, differentiable=(0, 1), keep_wide=(0,))


def inside(n: int) -> Tensor:
    return torch.rand(n, 3).double() * 0.98 + 0.01


def along_a_line(n: int) -> Tensor:
    return torch.rand(1, 3).double() * 0.5 + torch.linspace(0, 0.4, n).double()[:, None]


def beside_borders(n: int) -> Tensor:
    """Points 1e-3 of a cell off the vertices of a grid of 4 cells a side."""
    vertex = torch.randint(0, 5, (n, 3)).double()
    return ((vertex + torch.where(vertex == 0, 1e-3, -1e-3)) / 4).clamp(0, 1)


def outside(n: int) -> Tensor:
    return torch.rand(n, 3).double() * 0.8 + torch.tensor([1.1, -1.3, 0.1])


def conv2d(name: str, size: tuple, kernel: tuple, bias: bool, **window: int | tuple) -> Case:
    def make() -> tuple:
        c = size[1]
        return normal(*size), normal(c, 1, *kernel), normal(c) if bias else None, *window.values()

    return Case("depthwise_conv2d", name, make, differentiable=(0, 1, 2) if bias else (0, 1))


def conv1d_packed(name: str, counts: tuple, c: int, kernel: int, bias: bool = True, dilation: int = 1) -> Case:
    def make() -> tuple:
        bias_value = normal(c) if bias else None
        return normal(sum(counts), c), normal(c, kernel), bias_value, offsets(*counts), 1, None, dilation

    return Case("depthwise_conv1d", f"packed_{name}", make, differentiable=(0, 1, 2) if bias else (0, 1))


def conv1d_dense(name: str, size: tuple, kernel: int, stride: int, padding: int | None, dilation: int) -> Case:
    window = None, stride, padding, dilation
    make = lambda: (normal(*size), normal(size[1], kernel), normal(size[1]), *window)  # noqa: E731
    return Case("depthwise_conv1d", f"dense_{name}", make, differentiable=(0, 1, 2))


def lltm_cell(b: int, i: int, h: int) -> Case:
    def make() -> tuple:
        return normal(b, i), normal(b, h), normal(b, h), normal(3 * h, h + i) / (h + i) ** 0.5, normal(3 * h)

    return Case("lltm_cell", f"{b}_{i}_{h}", make, differentiable=(0, 1, 2, 3, 4))


def lltm(name: str, counts: tuple, i: int, h: int) -> Case:
    def make() -> tuple:
        r = len(counts)
        weight = normal(3 * h, h + i) / (h + i) ** 0.5
        return normal(sum(counts), i), offsets(*counts), weight, normal(3 * h), normal(r, h), normal(r, h)

    return Case("lltm", name, make, differentiable=(0, 2, 3, 4, 5), second_order=False)


def mlp(name: str, n: int, inputs: tuple, hidden: tuple, n_out: int) -> Case:
    widths = (sum(inputs), *hidden, n_out)
    make = lambda: (normal(n_parameters(widths)) / 2, widths, *(normal(n, width) for width in inputs))  # noqa: E731
    return Case("mlp", name, make, differentiable=(0, *range(2, 2 + len(inputs))))


def march(
    name: str, n: int, cells: tuple, step: float, near: float = 0.0, far: float = 1e9, jitter: bool = True
) -> Case:
    def make() -> tuple:
        directions = torch.nn.functional.normalize(normal(n, 3), dim=-1)
        if n > 3:
            directions[:3] = torch.eye(3).double() * torch.tensor([1.0, -1, 1])[:, None]
        origins = torch.tensor([0.1, 0.2, -0.1]) - directions * torch.rand(n, 1).double() * 3
        box = torch.tensor([[-1.0, -0.8, -1.2], [1.0, 1.1, 0.9]]).double()
        shift = torch.rand(n).double() if jitter else None
        return origins, directions, torch.rand(cells) < 0.3, box, step, near, far, shift

    return Case("march", name, make, differentiable=(), keep_wide=(0, 1, 3, 7))


MARCH_BOX = torch.tensor([[-1.0, -0.75, -1.25], [1.0, 1.25, 0.5]], dtype=torch.float64)


def march_edges(
    name: str, n: int, cells: tuple, filled: float, distance: float, capacity: int | None = None,
    cone_angle: float = 1 / 32, far: float = 300.0, jitter: bool = True,
) -> Case:  # fmt: skip
    """`n` rays of all directions from `distance` half sides off the centre of the box."""

    def make() -> tuple:
        directions, away = unit_vectors(n), unit_vectors(n)
        around = torch.cat([torch.eye(3), -torch.eye(3), torch.tensor([[1.0, 1, 1], [1, -1, 0], [0, 0, 0]])]).double()
        if n > len(around):  # along axes and diagonals, and one without direction
            directions[: len(around)] = around
            away[: len(around)] = around.flip(0).sign()  # on faces and edges for a distance of 1
        origins = MARCH_BOX.mean(0) + away * distance * (MARCH_BOX[1] - MARCH_BOX[0]) / 2
        shift = torch.rand(n).double() if jitter else None
        t_edges = exponential_edges(0.05, far, 0.03, cone_angle)
        grid = torch.rand(cells) < filled, MARCH_BOX
        return origins, directions, *grid, None, 0.0, math.inf, shift, capacity, t_edges

    return Case("march", f"edges_{name}", make, differentiable=(), keep_wide=(0, 1, 3, 7, 9))


def composite(name: str, counts: tuple, per_ray_background: bool) -> Case:
    def make() -> tuple:
        n, r = sum(counts), len(counts)
        t = torch.cat([torch.rand(k).double().sort().values for k in counts] or [torch.zeros(0).double()])
        background = torch.rand(*((r, 3) if per_ray_background else (3,))).double()
        return torch.rand(n).double() * 8, torch.rand(n, 3).double(), t, t + 0.05, offsets(*counts), background

    return Case("composite", name, make, differentiable=(0, 1, 5))


def distortion(name: str, counts: tuple, linear: float) -> Case:
    def make() -> tuple:
        n = sum(counts)
        t = torch.cat([(torch.rand(k).double() * 4).exp().sort().values for k in counts] or [torch.zeros(0).double()])
        return torch.rand(n).double(), t, t * 1.01, offsets(*counts), 0.5, 100.0, linear

    return Case("distortion", f"{name}_{linear:g}", make, differentiable=(0,))


def visible_inputs(counts: tuple, behind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Density, t_starts, t_ends and ray_offsets: thicknesses are whole multiples of 1/32, so any sum of them is exact.

    `behind` rows come after those of the rays.
    """
    n = sum(counts) + behind
    t = torch.arange(n).double() % 64 / 8
    return torch.randint(0, 16, (n,)).double() / 4, t, t + 1 / 8, offsets(*counts)


def between(levels: int) -> float:
    """A transmittance between those of `levels` times 1/32 of thickness and the next."""
    return math.exp(-(levels + 0.5) / 32)


def count_visible(name: str, counts: tuple, behind: int, levels: int = 30) -> Case:
    return Case("count_visible", name, lambda: (*visible_inputs(counts, behind), between(levels)), differentiable=())


def place_inputs(source: list[int], kept: list[int], source_behind: int, behind: int) -> tuple:
    """Arguments that keep `kept[r]` samples of the `source[r]` of each ray, with rows behind in source and result."""
    rays, rows = len(source), sum(source) + source_behind
    t = torch.rand(rows).double() * 4
    return (
        normal(rays, 3), normal(rays, 3), t, t + 0.05, offsets(*source), offsets(*kept), sum(kept) + behind,
    )  # fmt: skip


def compact_samples(name: str, counts: tuple, source_behind: int, behind: int, keeps: int = 3) -> Case:
    kept = [(keeps * n + 1) // 4 for n in counts]
    make = lambda: place_inputs(list(counts), kept, source_behind, behind)  # noqa: E731
    return Case("compact_samples", name, make, differentiable=(), keep_wide=(0, 1, 2, 3))


def unit_vectors(n: int) -> Tensor:
    return torch.nn.functional.normalize(normal(n, 3), dim=-1)


def spherical_harmonics(name: str, counts: tuple) -> Case:
    make = lambda: (unit_vectors(len(counts)), ray_indices(offsets(*counts), sum(counts)))  # noqa: E731
    return Case("spherical_harmonics", name, make, differentiable=(0,), keep_wide=(0,))


def adam_inputs(*size: int, share: float, scale: float | None = None, found_inf: float | None = None) -> tuple:
    """Arguments for step 3; that share of the elements has a gradient."""
    grad = normal(*size) * (torch.rand(size) < share)
    numbers = [None if x is None else torch.tensor([x]) for x in (scale, found_inf)]
    state = normal(*size), grad, normal(*size), normal(*size) ** 2
    return *state, torch.tensor(3.0), torch.tensor(2.0**-7), 0.9, 0.99, 1e-8, *numbers


ADAM_PLACES = {"keep_wide": (0, 1, 2, 3), "float32": (4, 5, 9, 10), "in_place": (0, 2, 3)}


def lazy_adam(name: str, *size: int, share=0.5, scale: float | None = None, found_inf: float | None = None) -> Case:
    make = lambda: adam_inputs(*size, share=share, scale=scale, found_inf=found_inf)  # noqa: E731
    return Case("lazy_adam", name, make, differentiable=(), **ADAM_PLACES)


CASES: list[Case] = [
    *(trilinear(n, f, spread) for n, f, spread in ((5, 3, 1.0), (33, 1, 1.0), (4, 2, 2.5), (1, 7, 1.0), (0, 3, 1.0))),
    grid("dense", 9, [2, 4], 2, 4096, inside), grid("hashed", 9, [3, 5, 9], 2, 16, inside),
    grid("one_feature", 33, [1, 4], 1, 64, inside), grid("beside_borders", 9, [4], 3, 128, beside_borders),
    grid("outside", 5, [2, 4], 2, 64, outside), grid("no_points", 0, [2, 4], 2, 64, inside),
    conv2d("k3", (2, 3, 5, 7), (3, 3), True, stride=1, padding=1, dilation=1),
    conv2d("k1x4_stride", (1, 2, 4, 9), (1, 4), True, stride=(1, 2), padding=(0, 2), dilation=(1, 1)),
    conv2d("dilated_no_bias", (1, 1, 9, 9), (3, 3), False, stride=2, padding=0, dilation=3),
    conv2d("fast_k3", (1, 2, 5, 8), (3, 3), True, stride=1, padding=1, dilation=1),
    conv2d("fast_k7", (1, 1, 3, 8), (7, 7), True, stride=1, padding=3, dilation=1),
    conv2d("empty_batch", (0, 2, 4, 4), (3, 3), True, stride=1, padding=1, dilation=1),
    *(conv1d_packed(name, counts, 3, 3) for name, counts in RAYS.items()),
    conv1d_packed("k5_dilated_no_bias", (4, 9, 0, 2), 2, 5, bias=False, dilation=2), conv1d_packed("k1", (3, 2), 1, 1),
    conv1d_packed("fast_k5", (4, 0, 9), 4, 5),
    conv1d_dense("k3", (2, 3, 7), 3, 1, None, 1), conv1d_dense("k4_stride", (1, 2, 12), 4, 3, 2, 2),
    *(lltm_cell(*size) for size in ((3, 2, 4), (1, 1, 1), (5, 3, 2), (0, 2, 3))),
    *(lltm(name, counts, 2, 3) for name, counts in RAYS.items()),
    lltm("one_state", (3, 1), 1, 1), lltm("state16", (2, 0, 3), 16, 16), lltm("state16_32_inputs", (1, 2), 32, 16),
    lltm("wide_input", (2, 0, 1), 64, 2),
    mlp("one_hidden", 3, (16,), (16,), 2), mlp("two_hidden", 2, (16, 16), (16, 16), 1),
    mlp("odd_sizes", 3, (3, 2), (4, 5, 3), 2), mlp("no_hidden", 3, (2,), (), 3), mlp("no_rows", 0, (16,), (16,), 2),
    march("fine", 17, (8, 8, 8), 0.03), march("coarse", 17, (6, 9, 5), 0.7),
    march("near_far", 9, (16, 4, 8), 0.11, near=1.0, far=2.5, jitter=False), march("no_rays", 0, (4, 4, 4), 0.1),
    march_edges("inside", 17, (16, 16, 16), 0.3, 0.4), march_edges("faces", 17, (8, 12, 5), 0.5, 1.0, jitter=False),
    march_edges("outside_few_cells", 30, (13, 20, 9), 0.01, 1.7),
    march_edges("far_away", 17, (8, 8, 32), 0.3, 40.0, capacity=200),
    march_edges("equal_steps_empty", 5, (8, 8, 8), 0.0, 0.4, cone_angle=0.0, far=20.0),
    *(count_visible(name, counts, behind=20 - 5 * i) for i, (name, counts) in enumerate(RAYS.items())),
    *(compact_samples(name, counts, 3 * i, 5 * i) for i, (name, counts) in enumerate(RAYS.items())),
    compact_samples("none_kept", (3, 4), 0, 0, keeps=0),
    *(spherical_harmonics(name, counts) for name, counts in RAYS.items()),
    Case("spherical_harmonics", "a_row_a_ray", lambda: (unit_vectors(9),), differentiable=(0,), keep_wide=(0,)),
    *(composite(name, counts, per_ray) for name, counts in RAYS.items() for per_ray in (False, True)),
    *(distortion(name, counts, 3.0) for name, counts in RAYS.items()),
    distortion("long_and_short", RAYS["long_and_short"], 1000.0),
    lazy_adam("rows", 40, 2, share=0.3), lazy_adam("scaled", 7, 3, scale=1024.0, found_inf=0.0),
    lazy_adam("overflow", 5, 4, scale=0.5, found_inf=1.0), lazy_adam("no_gradient", 33, share=0.0),
    lazy_adam("no_rows", 0, 2),
]  # fmt: skip


def cases(op: str) -> list[Case]:
    return [case for case in CASES if case.op == op]


assert {case.op for case in CASES} == set(OPS) - set(GPU_ONLY), "every op needs cases"  # GPU_ONLY: a test file
