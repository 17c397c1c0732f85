# SPDX-License-Identifier: Apache-2.0
"""Inputs that do not fit: the error names the op, what is wrong, what was expected and what was given."""

import math
import re

import pytest
import torch

from nerfkit import ops
from nerfkit.ops.dispatch import OPS
from tests.naming import raises_mentioning
from tests.ops.cases import offsets
from tests.ops.harness import as_tuple

rand = torch.rand
ONE_RAY = offsets(4)

GOOD = {
    "trilinear": {"feats": rand(2, 8, 1), "points": rand(2, 3)},
    "grid_encode": {"points": rand(2, 3), "table": rand(32, 2), "resolutions": [2], "max_entries": 32},
    "depthwise_conv1d": {"x": rand(5, 2), "weight": rand(2, 3), "ray_offsets": offsets(2, 3)},
    "depthwise_conv2d": {"x": rand(2, 3, 8, 8), "weight": rand(3, 1, 3, 3)},
    "lltm_cell": {"input": rand(4, 3), "h": rand(4, 2), "c": rand(4, 2), "weight": rand(6, 5), "bias": rand(6)},
    "lltm": {
        "input": rand(5, 3), "ray_offsets": offsets(2, 3), "weight": rand(6, 5), "bias": rand(6), "h0": rand(2, 2),
        "c0": rand(2, 2),
    },
    "mlp": {"parameters": rand(26), "widths": (3, 4, 2), "inputs": [rand(5, 3)]},
    "march": {
        "origins": rand(2, 3), "directions": rand(2, 3), "occupancy": torch.ones(4, 4, 4).bool(), "box": rand(2, 3),
        "step": 0.1,
    },
    "count_visible": {
        "density": rand(4), "t_starts": rand(4), "t_ends": rand(4), "ray_offsets": ONE_RAY,
        "early_stop_transmittance": 0.1,
    },
    "compact_samples": {
        "origins": rand(2, 3), "directions": rand(2, 3), "t_starts": rand(4), "t_ends": rand(4),
        "source_offsets": offsets(2, 2), "ray_offsets": offsets(1, 1), "n_rows": 3,
    },
    "spherical_harmonics": {"directions": rand(2, 3)},
    "composite": {
        "density": rand(4), "rgb": rand(4, 3), "t_starts": rand(4), "t_ends": rand(4), "ray_offsets": ONE_RAY,
        "background": rand(3),
    },
    "distortion": {
        "weights": rand(4), "t_starts": rand(4), "t_ends": rand(4), "ray_offsets": ONE_RAY, "near": 0.0, "far": 1.0,
        "linear": 1.0,
    },
    "render_rays": {
        "origins": rand(2, 3), "directions": rand(2, 3), "occupancy": torch.ones(4, 4, 4).bool(),
        "box": torch.tensor([[0.0, 0, 0], [1, 1, 1]]), "table": rand(32, 2), "resolutions": [2], "max_entries": 32,
        "density_net": rand(3 * 4 + 5 * 16), "color_net": rand(51 * 4 + 5 * 4 + 5 * 3), "hidden": 4,
        "background": rand(3), "threshold": torch.tensor(0.0), "step": 0.1, "conv_weight": rand(2, 3),
        "conv_bias": rand(2), "lltm_weight": rand(48, 18), "lltm_bias": rand(48),
    },
    "lazy_adam": {
        "param": rand(4, 2), "grad": rand(4, 2), "exp_avg": rand(4, 2), "exp_avg_sq": rand(4, 2),
        "step": torch.tensor(1.0), "lr": torch.tensor(0.1),
    },
}  # fmt: skip
DENSE = {"x": rand(1, 2, 5), "ray_offsets": None}
EDGES = {"step": None, "t_edges": torch.arange(4.0)}

WRONG_SHAPE = [  # op, change, what is named: an error of value
    ("trilinear", {"feats": rand(2, 7, 1)}, "feats [N, 8, F] [2, 7, 1]"),
    ("trilinear", {"points": torch.ones(2, 3, device="meta")}, "points cpu meta"),
    ("grid_encode", {"table": rand(9, 2)}, "table 32 9"),
    ("grid_encode", {"resolutions": [4, 2]}, "resolutions [4, 2]"),
    ("grid_encode", {"max_entries": 48}, "max_entries 48"),
    ("grid_encode", {"resolutions": [2] * 65}, "64 65"),
    ("depthwise_conv1d", {"x": rand(5, 2, 1)}, "x [N, C] [5, 2, 1]"),
    ("depthwise_conv1d", {"weight": rand(2, 4)}, "kernel 4"),
    ("depthwise_conv1d", {"ray_offsets": torch.zeros(0).long()}, "ray_offsets [R+1] 0"),
    ("depthwise_conv1d", {"stride": 2}, "stride 1"),
    ("depthwise_conv1d", {"padding": 1}, "padding 1"),
    ("depthwise_conv1d", {"stride": 2.0}, "stride 2.0"),
    ("depthwise_conv1d", DENSE | {"padding": 1.5}, "padding 1.5"),
    ("depthwise_conv2d", {"x": rand(2, 3, 8)}, "x [B, C, H, W] [2, 3, 8]"),
    ("depthwise_conv2d", {"stride": 2.0}, "stride 2 2.0"),
    ("depthwise_conv2d", {"padding": (1, -1)}, "padding 0 2 (1, -1)"),
    ("depthwise_conv2d", {"dilation": 5}, "kernel 3 dilation 5 8 padding 0"),
    ("lltm_cell", {"input": rand(4, 3, 1)}, "input [B, I] [4, 3, 1]"),
    ("lltm_cell", {"weight": rand(6, 4)}, "weight [6, 5] [6, 4]"),
    ("lltm_cell", {"bias": rand(4)}, "bias [6] [4]"),
    ("lltm", {"h0": rand(3, 2)}, "h0 [2, H] [3, 2]"),
    ("lltm", {"weight": rand(5, 6)}, "weight [6, 5] [5, 6]"),
    ("mlp", {"inputs": []}, "1 4 inputs 0 widths [3, 4, 2]"),
    ("mlp", {"inputs": [rand(5, 2)]}, "inputs widths[0] 3 2"),
    ("mlp", {"parameters": rand(25)}, "parameters [26] [25]"),
    ("march", {"occupancy": torch.ones(4, 4).bool()}, "occupancy [X, Y, Z] [4, 4]"),
    ("march", {"step": 0.0}, "step 0.0"),
    ("march", {"step": None}, "step t_edges"),
    ("march", {"jitter": rand(3)}, "jitter [2] [3]"),
    ("march", {"capacity": -1}, "capacity -1"),
    ("march", {"t_edges": rand(4)}, "t_edges step 0.1"),
    ("march", EDGES | {"far": 9.0}, "t_edges far 9.0"),
    ("march", EDGES | {"t_edges": torch.arange(2.0**16 + 1)}, "t_edges 65536 65537"),
    ("march", EDGES | {"t_edges": torch.zeros(4)}, "t_edges increasing"),
    ("march", EDGES | {"t_edges": torch.tensor([0, 1, math.inf])}, "t_edges finite"),
    ("count_visible", {"t_starts": rand(5)}, "t_starts [4] [5]"),
    ("count_visible", {"early_stop_transmittance": -0.1}, "early_stop_transmittance 0 1 -0.1"),
    ("compact_samples", {"source_offsets": offsets(4)}, "source_offsets [3] [2]"),
    ("compact_samples", {"n_rows": -1}, "n_rows -1"),
    ("spherical_harmonics", {"directions": rand(2, 4)}, "directions [R, 3] [2, 4]"),
    ("spherical_harmonics", {"ray_index": torch.zeros(2, 1).long()}, "ray_index [N] [2, 1]"),
    ("composite", {"rgb": rand(4, 4)}, "rgb [4, 3] [4, 4]"),
    ("composite", {"background": rand(2, 3)}, "background [1, 3] [2, 3]"),
    ("distortion", {"t_starts": rand(3)}, "t_starts [4] [3]"),
    ("distortion", {"near": 2.0}, "near far 2.0 1.0"),
    ("distortion", {"far": math.inf}, "far inf"),
    ("distortion", {"linear": 0.0}, "linear 0.0"),
    ("render_rays", {"color_net": rand(9)}, "color_net [239] [9]"),
    ("render_rays", {"lltm_weight": rand(48, 16)}, "lltm_weight [48, 18] [48, 16]"),
    ("render_rays", {"background": rand(3, 3)}, "background [2, 3] [3, 3]"),
    ("render_rays", {"step": math.inf}, "step inf"),
    ("render_rays", {"early_stop_transmittance": 2.0}, "early_stop_transmittance 0 1 2.0"),
    ("lazy_adam", {"grad": rand(3)}, "grad [4, 2] [3]"),
    ("lazy_adam", {"step": torch.ones(2)}, "step [2]"),
    ("lazy_adam", {"beta1": 1.0}, "beta1 0 1 1.0"),
    ("lazy_adam", {"beta2": math.nan}, "beta2 0 1 nan"),
]
WRONG_TYPE = [
    ("trilinear", {"feats": torch.ones(2, 8, 1).int()}, "feats float32 int32"),
    ("trilinear", {"points": rand(2, 3).half()}, "points float32 float16"),
    ("grid_encode", {"points": rand(2, 3).half()}, "points float32 float64 float16"),
    ("depthwise_conv1d", {"bias": rand(2).half()}, "x bias float32 float16"),
    ("depthwise_conv2d", {"weight": rand(3, 1, 3, 3).double()}, "x weight float32 float64"),
    ("lltm_cell", {"c": rand(4, 2).double()}, "input c float32 float64"),
    ("lltm", {"ray_offsets": torch.tensor([0.0, 2, 5])}, "ray_offsets int64 float32"),
    ("mlp", {"parameters": rand(26).double()}, "inputs[0] parameters float32 float64"),
    ("march", {"occupancy": torch.ones(4, 4, 4)}, "occupancy bool float32"),
    ("march", EDGES | {"t_edges": torch.arange(4.0).double()}, "t_edges float32 float64"),
    ("count_visible", {"density": torch.ones(4).long()}, "density float32 bfloat16 int64"),
    ("compact_samples", {"source_offsets": [0, 2, 4]}, "source_offsets int64 [3] list"),
    ("spherical_harmonics", {"ray_index": torch.zeros(2).int()}, "ray_index int64 int32"),
    ("spherical_harmonics", {"dtype": torch.int64}, "dtype torch.float32 torch.int64"),
    ("composite", {"rgb": rand(4, 3).double()}, "density rgb float32 float64"),
    ("distortion", {"t_ends": rand(4).double()}, "weights t_ends float32 float64"),
    ("render_rays", {"density_net": rand(92).half()}, "table density_net float32 float16"),
    ("render_rays", {"origins": rand(2, 3).double()}, "origins float32 float64"),
    ("lazy_adam", {"lr": torch.tensor(0.1).double()}, "lr float32 float64"),
]


CALLS = [(ValueError, *bad) for bad in WRONG_SHAPE] + [(TypeError, *bad) for bad in WRONG_TYPE]


def call(op: str, change: dict) -> object:
    arguments = GOOD[op] | change
    if op == "mlp":
        return ops.mlp(arguments["parameters"], arguments["widths"], *arguments["inputs"])
    return getattr(ops, op)(**arguments)


def parts_of(named: str) -> list[str]:
    """Words, numbers and shapes, which are set in brackets."""
    return re.findall(r"\[[^]]*\]|\([^)]*\)|\S+\[\d\]|\S+", named)


@pytest.mark.parametrize("op", OPS)
def test_good_input(op: str):
    """So what a bad input raises is of what was changed in it."""
    result = call(op, {})
    assert all(x.isfinite().all() for x in as_tuple(result))


@pytest.mark.parametrize("op", OPS)
def test_what_is_no_tensor(op: str):
    optional = ("bias", "conv_weight", "lltm_weight", "ray_offsets", "jitter", "ray_index", "grad_scale", "found_inf")
    for name in [name for name, x in GOOD[op].items() if isinstance(x, torch.Tensor)]:
        for wrong in (GOOD[op][name].tolist(), GOOD[op][name].numpy(), None):
            if wrong is not None or name not in optional or (op, name) == ("lltm", "ray_offsets"):
                with raises_mentioning(TypeError, op, name, type(wrong).__name__):
                    call(op, {name: wrong})


@pytest.mark.parametrize("error, op, change, named", CALLS)
def test_bad_input(error: type[Exception], op: str, change: dict, named: str):
    with raises_mentioning(error, op, *parts_of(named)):
        call(op, change)
