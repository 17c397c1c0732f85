# SPDX-License-Identifier: Apache-2.0
"""The LLTM as modules with the call signatures of `nn.LSTMCell` and `nn.LSTM`."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from nerfkit import ops
from nerfkit.ops.checks import FLOATS, INT64, check
from nerfkit.ops.packed import dense_offsets, offsets_from_counts

State = tuple[Tensor, Tensor]


class _LLTMParameters(nn.Module):
    """weight [3H, H+I], rows input gate, output gate, candidate, columns h, then input; bias [3H]."""

    def __init__(self, input_size: int, hidden_size: int, device=None, dtype: torch.dtype | None = None):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        shape = 3 * hidden_size, hidden_size + input_size
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(shape[0], device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(hidden_size), as nn.LSTM."""
        bound = self.hidden_size**-0.5 if self.hidden_size else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    def _check_input(self, input: Tensor, dims: tuple[int, ...]) -> None:
        if input.dim() not in dims or input.shape[-1] != self.input_size:
            wanted = f"{' or '.join(f'{n}-d' for n in dims)} with {self.input_size} features last"
            raise ValueError(f"{type(self).__name__}: input must be {wanted}, got {list(input.shape)}")

    def _state(self, hx: State | None, like: Tensor, shape: tuple[int, ...]) -> State:
        """h and c of `shape`; zero where no state is given."""
        if hx is None:
            return like.new_zeros(shape), like.new_zeros(shape)  # torch.compile rejects one tensor for both
        if not isinstance(hx, tuple | list) or len(hx) != 2:
            got = [type(x).__name__ for x in hx] if isinstance(hx, tuple | list) else type(hx).__name__
            raise TypeError(f"{type(self).__name__}: hx must be a pair (h, c) of tensors, got {got}")
        check(type(self).__name__, FLOATS, h=(hx[0], shape), c=(hx[1], shape, FLOATS))
        return hx


class LLTMCell(_LLTMParameters):
    """One step of the LLTM: `h, c = cell(input, (h, c))`; equation and source at `nerfkit.ops.lltm_cell`.

    Args:
        input_size: I; hidden_size: H.

    Call: input [B, I] or [I]; state h, c of [B, H] or [H], zero if left out. Returns h and c of that shape, in the
    dtype of the parameters. Raises ValueError for a shape that does not fit, TypeError for a state that is no pair.

    >>> h, c = LLTMCell(3, 4)(torch.zeros(2, 3))
    >>> h.shape, c.shape
    (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    ops = ("lltm_cell",)

    def forward(self, input: Tensor, hx: State | None = None) -> State:
        self._check_input(input, (1, 2))
        h, c = self._state(hx, input, (*input.shape[:-1], self.hidden_size))
        if input.dim() == 2:
            return ops.lltm_cell(input, h, c, self.weight, self.bias)
        h, c = ops.lltm_cell(input[None], h[None], c[None], self.weight, self.bias)
        return h[0], c[0]


class LLTM(_LLTMParameters):
    """The LLTM along sequences, called as a one-layer `nn.LSTM`: `output, (h_n, c_n) = module(input, (h_0, c_0))`.

    Args:
        input_size: I; hidden_size: H.
        batch_first: sequences are [B, L, I] instead of [L, B, I].

    Call: input [L, B, I], [B, L, I] with batch_first, [L, I], or a PackedSequence; h_0 and c_0 [1, B, H] ([1, H]
    for [L, I]), zero if left out. Returns output shaped as the input with H features, and h_n, c_n [1, B, H] ([1, H]).
    For packed rays see `along_rays`. Equation and source at `nerfkit.ops.lltm`; differentiable once. Raises ValueError
    for a shape that does not fit, TypeError for a state that is no pair.

    >>> output, (h_n, c_n) = LLTM(3, 4, batch_first=True)(torch.zeros(2, 5, 3))
    >>> output.shape, h_n.shape
    (torch.Size([2, 5, 4]), torch.Size([1, 2, 4]))
    """

    ops = ("lltm",)

    def __init__(  # the third argument of nn.LSTM is num_layers
        self, input_size: int, hidden_size: int, *, batch_first: bool = False, device=None,
        dtype: torch.dtype | None = None,
    ):  # fmt: skip
        super().__init__(input_size, hidden_size, device, dtype)
        self.batch_first = batch_first

    def extra_repr(self) -> str:
        return super().extra_repr() + (", batch_first=True" if self.batch_first else "")

    def forward(self, input: Tensor | PackedSequence, hx: State | None = None):
        if isinstance(input, PackedSequence):
            return self._packed_sequence(input, hx)
        self._check_input(input, (2, 3))
        if input.dim() == 2:
            hx = self._state(hx, input, (1, self.hidden_size))
            return self.along_rays(input, dense_offsets(1, input.shape[0], input.device), hx)
        sequences = input if self.batch_first else input.transpose(0, 1)  # [B, L, I]
        batch, length, _ = sequences.shape
        h, c = self._state(hx, sequences, (1, batch, self.hidden_size))
        offsets = dense_offsets(batch, length, input.device)
        output, (h_n, c_n) = self.along_rays(sequences.flatten(0, 1), offsets, (h[0], c[0]))
        output = output.view(batch, length, self.hidden_size)
        return output if self.batch_first else output.transpose(0, 1), (h_n[None], c_n[None])

    def along_rays(self, input: Tensor, ray_offsets: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """output [N, H] and h_n, c_n [R, H] for packed samples `input` [N, I] of the rays in `ray_offsets` [R+1]."""
        self._check_input(input, (2,))
        sizes = check(
            type(self).__name__, FLOATS, input=(input, ("N", "I")), ray_offsets=(ray_offsets, ("R+1",), INT64)
        )
        h, c = self._state(hx, input, (sizes["R"], self.hidden_size))
        output, h_n, c_n = ops.lltm(input, ray_offsets, self.weight, self.bias, h, c)
        return output, (h_n, c_n)

    def _packed_sequence(self, input: PackedSequence, hx: State | None) -> tuple[PackedSequence, State]:
        sequences = unpack_sequence(input)  # in the caller's order
        samples, lengths = torch.cat(sequences), [len(sequence) for sequence in sequences]
        h, c = self._state(hx, samples, (1, len(lengths), self.hidden_size))
        offsets = offsets_from_counts(torch.tensor(lengths)).to(samples.device)
        output, (h_n, c_n) = self.along_rays(samples, offsets, (h[0], c[0]))
        packed = pack_sequence(output.split(lengths), enforce_sorted=input.sorted_indices is None)
        return packed, (h_n[None], c_n[None])
