# SPDX-License-Identifier: Apache-2.0
"""The ops as modules: called as torch's own, with their state dicts, and what their errors name."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from nerfkit import ops
from nerfkit.nn import LLTM, DepthwiseConv1d, DepthwiseConv2d, FeatureGrid, LLTMCell
from tests.naming import raises_mentioning
from tests.ops.test_bad_input import parts_of

WINDOWS = [
    {"kernel_size": 3}, {"kernel_size": 4, "stride": 2, "padding": 1}, {"kernel_size": 5, "padding": "same"},
    {"kernel_size": 3, "dilation": 2, "padding": "same", "bias": False}, {"kernel_size": 4, "padding": "valid"},
    {"kernel_size": (1, 4), "stride": (1, 2), "padding": (0, 2)}, {"kernel_size": (3, 2), "padding": "valid"},
]  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_convolutions_are_those_of_torch_with_their_state_dicts(window: dict, device: str):
    axes = [1, 2] if isinstance(window["kernel_size"], int) else [len(window["kernel_size"])]
    for n in axes:
        own, theirs = (DepthwiseConv1d, nn.Conv1d) if n == 1 else (DepthwiseConv2d, nn.Conv2d)
        reference, module = theirs(6, 6, groups=6, **window).to(device), own(6, **window).to(device)
        module.load_state_dict(reference.state_dict())
        x = torch.randn(2, 6, *(9, 12)[-n:], device=device)
        for given in [x] if n == 1 else [x, x.to(memory_format=torch.channels_last)]:
            out = module(given)
            torch.testing.assert_close(out, reference(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(module(given[0]), out[0], rtol=1e-4, atol=1e-5)
        assert n == 1 or out.is_contiguous(memory_format=torch.channels_last)


def test_a_convolution_along_rays_is_of_each_ray_by_itself(device: str):
    module = DepthwiseConv1d(3, 3, padding="same").to(device)
    x, offsets = torch.randn(7, 3, device=device), torch.tensor([0, 2, 2, 7], device=device)
    out = module(x, ray_offsets=offsets)
    for ray in (slice(0, 2), slice(2, 7)):
        torch.testing.assert_close(out[ray], module(x[ray].t()).t(), rtol=1e-4, atol=1e-5)


def test_a_grid_takes_any_number_of_leading_axes(device: str):
    grid = FeatureGrid(levels=3, log2_hashmap_size=10, max_resolution=32, device=device)
    points = torch.rand(4, 5, 3, device=device)
    out = grid(points)
    assert out.shape == (4, 5, 6) and grid(points[:0]).shape == (0, 5, 6)
    torch.testing.assert_close(out[2, 3], grid(points[2, 3]))


def run_cell(module: LLTM, sequence: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Output [L, H] and the last state [H] of one sequence [L, I], step by step."""
    cell = LLTMCell(module.input_size, module.hidden_size, device=sequence.device)
    cell.load_state_dict(module.state_dict())
    state, outputs = None, []
    for step in sequence:
        state = cell(step, state)
        outputs.append(state[0])
    return torch.stack(outputs), state


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_batch_is_its_sequences_step_by_step(batch_first: bool, device: str):
    module = LLTM(3, 4, batch_first=batch_first, device=device)
    x = torch.randn(5, 2, 3, device=device)  # [L, B, I]
    output, (h_n, c_n) = module(x.transpose(0, 1) if batch_first else x)
    output = output.transpose(0, 1) if batch_first else output
    for b in range(2):
        wanted, (h, c) = run_cell(module, x[:, b])
        for got, want in ((output[:, b], wanted), (h_n[0, b], h), (c_n[0, b], c)):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_packed_sequences_keep_the_order_of_the_caller(device: str):
    module = LLTM(3, 4, device=device)
    sequences = [torch.randn(n, 3, device=device) for n in (2, 6, 1, 6)]
    packed, (h_n, c_n) = module(pack_sequence(sequences, enforce_sorted=False))
    for b, (got, sequence) in enumerate(zip(unpack_sequence(packed), sequences, strict=True)):
        wanted, (h, c) = run_cell(module, sequence)
        for a, want in ((got, wanted), (h_n[0, b], h), (c_n[0, b], c)):
            torch.testing.assert_close(a, want, rtol=1e-4, atol=1e-5)


def test_signature_and_shapes_are_those_of_lstm():
    for shape, state in (((5, 2, 3), (1, 2, 4)), ((5, 3), (1, 4))):
        given_state = torch.zeros(state), torch.zeros(state)
        for module in (LLTM(3, 4), nn.LSTM(3, 4)):
            output, (h, c) = module(torch.zeros(shape), hx=given_state)
            assert (output.shape, h.shape, c.shape) == ((*shape[:-1], 4), state, state)


def test_the_state_is_continued():
    module, x = LLTM(3, 4), torch.randn(5, 3)
    output, state = module(x)
    first, between = module(x[:2])
    second, last = module(x[2:], hx=between)
    torch.testing.assert_close((torch.cat([first, second]), last), (output, state))


def test_along_rays_takes_packed_samples(device: str):
    module = LLTM(2, 3, device=device)
    x, offsets = torch.randn(5, 2, device=device), torch.tensor([0, 2, 2, 5], device=device)
    output, (h_n, _) = module.along_rays(x, offsets)
    torch.testing.assert_close(output[2:], module(x[2:])[0])
    torch.testing.assert_close(h_n[0], output[1])
    assert not h_n[1].any()


@pytest.mark.parametrize("module, shape", [(LLTMCell(3, 4), (2, 3)), (LLTM(3, 4), (5, 2, 3)), (LLTM(3, 4), (5, 3))])
@pytest.mark.slow
def test_they_compile_to_one_graph_without_a_state(module: nn.Module, shape: tuple[int, ...]):
    if "cpp" not in ops.available("lltm"):
        pytest.skip("needs the C++ ops: the definition's loop depends on the data")
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(shape)
    torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("module, shape", [(LLTM(3, 4), (4, 2, 3)), (DepthwiseConv2d(2, 3, padding=1), (1, 2, 4, 5))])
def test_gradients_reach_all_parameters_and_copies_give_the_same(module: nn.Module, shape: tuple[int, ...]):
    module, x = module.double(), torch.randn(shape).double()
    output = lambda module: module(x)[0]  # noqa: E731
    assert torch.equal(output(copy.deepcopy(module)), output(module))
    assert torch.autograd.gradcheck(lambda *_: output(module), tuple(module.parameters()))


PAIR = torch.zeros(1, 4), torch.zeros(1, 5)
RAY = torch.tensor([0, 5])
BAD = [  # what is called, and what the error names
    (lambda: FeatureGrid(2, log2_hashmap_size=8)(torch.rand(5, 2)), ValueError, "points 3 [5, 2]"),
    (lambda: DepthwiseConv2d(3, 4, padding="same"), ValueError, "padding='same' stride 1 kernel (4, 4) (1, 1)"),
    (lambda: DepthwiseConv1d(3, 4, padding="full"), ValueError, "DepthwiseConv1d padding 'same' 'valid' 'full'"),
    (lambda: DepthwiseConv1d(3, (3, 3)), ValueError, "DepthwiseConv1d kernel_size (3, 3)"),
    (lambda: DepthwiseConv2d(3, 3, stride=(1,)), ValueError, "stride 2 (1,)"),
    (lambda: DepthwiseConv2d(3, 3, padding=0.5), ValueError, "padding 2 0.5"),
    (lambda: DepthwiseConv1d(3, 3)(torch.zeros(5, 3), RAY), ValueError, "padding=1 0"),
    (lambda: LLTM(3, 4)(torch.zeros(5, 2, 2)), ValueError, "LLTM input 3 [5, 2, 2]"),
    (lambda: LLTM(3, 4)(torch.zeros(5, 2, 3), PAIR), ValueError, "LLTM h [1, 2, 4] [1, 4]"),
    (lambda: LLTM(3, 4)(torch.zeros(5, 3), PAIR), ValueError, "LLTM c [1, 4] [1, 5]"),
    (lambda: LLTMCell(3, 4)(torch.zeros(2, 3), torch.zeros(2, 2, 4)), TypeError, "LLTMCell hx (h, c) Tensor"),
    (lambda: LLTM(3, 4)(torch.zeros(5, 3), PAIR[:1]), TypeError, "LLTM hx (h, c) ['Tensor']"),
    (lambda: LLTM(3, 4, 1), TypeError, "LLTM"),
    (lambda: LLTM(3, 4).along_rays(torch.zeros(5, 3), [0, 5]), TypeError, "LLTM ray_offsets int64 [R+1] list"),
]


@pytest.mark.parametrize("call, error, named", BAD)
def test_bad_input(call, error: type[Exception], named: str):
    with raises_mentioning(error, *parts_of(named)):
        call()
