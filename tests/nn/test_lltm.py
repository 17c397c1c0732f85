# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from nerfkit import ops
from nerfkit.nn import LLTM, LLTMCell
from tests.naming import raises_naming
from tests.ops.harness import drawn_backends
from tests.ops.test_bad_input import parts_of


def run_cell(module: LLTM, sequence: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Output [L, H] and the last state [H] of one sequence [L, I], step by step."""
    cell = LLTMCell(module.input_size, module.hidden_size, device=sequence.device, dtype=sequence.dtype)
    cell.load_state_dict(module.state_dict())
    state = torch.zeros(2, module.hidden_size, device=sequence.device, dtype=sequence.dtype).unbind()
    outputs = []
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


def test_signature_and_shapes_are_those_of_lstm():
    for shape, state in (((5, 2, 3), (1, 2, 4)), ((5, 3), (1, 4)), ((0, 2, 3), (1, 2, 4))):
        given_state = torch.zeros(state), torch.zeros(state)
        outputs = [LLTM(3, 4)(torch.zeros(shape), hx=given_state)]
        if shape[0]:
            outputs.append(torch.nn.LSTM(3, 4)(torch.zeros(shape), hx=given_state))
        shapes = {(o.shape, h.shape, c.shape) for o, (h, c) in outputs}
        assert shapes == {((*shape[:-1], 4), state, state)}


def test_the_state_is_continued():
    module, x = LLTM(3, 4), torch.randn(5, 3)
    output, state = module(x)
    first, between = module(x[:2])
    second, last = module(x[2:], hx=between)
    torch.testing.assert_close((torch.cat([first, second]), last), (output, state))
    cell = LLTMCell(3, 4)
    torch.testing.assert_close(cell(x, hx=cell(x)), cell(x, cell(x)))


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5), backend=drawn_backends("lltm"))
def test_packed_sequences_keep_the_order_of_the_caller(lengths, backend):
    torch.manual_seed(0)
    name, device = backend
    module = LLTM(3, 4).to(device)
    sequences = [torch.randn(n, 3).to(device) for n in lengths]
    with ops.backend(name):
        packed, (h_n, c_n) = module(pack_sequence(sequences, enforce_sorted=False))
    for b, (got, sequence) in enumerate(zip(unpack_sequence(packed), sequences, strict=True)):
        wanted, (h, c) = run_cell(module, sequence)
        for a, want in ((got, wanted), (h_n[0, b], h), (c_n[0, b], c)):
            torch.testing.assert_close(a, want, rtol=1e-4, atol=1e-5)


def test_along_rays_takes_packed_samples(device: str):
    module = LLTM(2, 3, device=device)
    x, offsets = torch.randn(5, 2, device=device), torch.tensor([0, 2, 2, 5], device=device)
    output, (h_n, _) = module.along_rays(x, offsets)
    torch.testing.assert_close(output[2:], module(x[2:])[0])
    torch.testing.assert_close(h_n[0], output[1])
    assert not h_n[1].any()


@pytest.mark.parametrize("module, shape", [(LLTMCell(3, 4), (2, 3)), (LLTM(3, 4), (5, 2, 3)), (LLTM(3, 4), (5, 3))])
@pytest.mark.slow
def test_they_compile_to_one_graph_without_a_state(module: torch.nn.Module, shape: tuple[int, ...]):
    if "cpp" not in ops.available("lltm"):
        pytest.skip("needs the C++ ops: the definition's loop depends on the data")
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(shape)
    torch.testing.assert_close(compiled(x), module(x))


def test_gradients_reach_all_parameters():
    module = LLTM(3, 4).double()
    x = torch.randn(4, 2, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: module(x)[0], (x, *module.parameters()))


def test_copies_give_the_same():
    module, x = LLTM(3, 4, batch_first=True), torch.randn(5, 2, 3)
    assert torch.equal(copy.deepcopy(module)(x)[0], module(x)[0])
    assert repr(module) == "LLTM(3, 4, batch_first=True)"


PAIR = torch.zeros(1, 4), torch.zeros(1, 5)
BAD = [  # what is called, its error, and what that names
    (lambda: LLTM(3, 4)(torch.zeros(5, 2, 2)), ValueError, "LLTM input 3 [5, 2, 2]"),
    (lambda: LLTM(3, 4)(torch.zeros(3)), ValueError, "LLTM input [3]"),
    (lambda: LLTM(3, 4)(torch.zeros(5, 2, 3), PAIR), ValueError, "LLTM h [1, 2, 4] [1, 4]"),
    (lambda: LLTM(3, 4)(torch.zeros(5, 3), PAIR), ValueError, "LLTM c [1, 4] [1, 5]"),
    (lambda: LLTMCell(3, 4)(torch.zeros(1, 3), PAIR), ValueError, "LLTMCell c [1, 4] [1, 5]"),
    (lambda: LLTMCell(3, 4)(torch.zeros(2, 3), torch.zeros(2, 2, 4)), TypeError, "LLTMCell hx (h, c) Tensor"),
    (lambda: LLTM(3, 4)(torch.zeros(5, 3), PAIR[:1]), TypeError, "LLTM hx (h, c) ['Tensor']"),
    (lambda: LLTM(3, 4, 1), TypeError, "LLTM"),
    (lambda: LLTM(3, 4).along_rays(torch.zeros(5, 3), [0, 5]), TypeError, "LLTM ray_offsets int64 [R+1] list"),
    (lambda: LLTM(3, 4).along_rays(torch.zeros(5, 3), torch.arange(0)), ValueError, "LLTM ray_offsets [R+1] 0 [0]"),
]


@pytest.mark.parametrize("call, error, named", BAD)
def test_bad_input(call, error: type[Exception], named: str):
    with raises_naming(error, *parts_of(named)):
        call()
