# SPDX-License-Identifier: Apache-2.0
"""A small network of linear layers with ReLU between them."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import implement_native, like

MAX_INPUTS, MAX_LAYERS = 4, 8  # limits of the kernels, for all backends
SHARED_BYTES = 150_000  # per block, that the GPU's kernel needs beside tensor cores
HIDDEN, INPUT_MULTIPLE, WIDEST_INPUT, WIDEST_OUTPUT = (16, 32, 64), 16, 128, 16  # supported widths


def mlp(parameters: Tensor, widths: Sequence[int], *inputs: Tensor) -> Tensor:
    r"""Linear layers with ReLU between them, of concatenated inputs.

    .. math::
        x_0 = [input_1, input_2, ...], \qquad x_{l+1} = relu(W_l x_l + b_l), \qquad out = W_L x_L + b_L

    Args:
        parameters: [P] for each layer its weight [out, in], row by row, and then its bias [out].
        widths: total of the inputs, of each hidden layer, of the output.
        inputs: [N, I_k] each, 1 to 4 of them.

    Returns:
        [N, widths[-1]].

    dtype: inputs and parameters share one; half types are summed in float32.
    Differentiable in inputs and parameters. Activations are recomputed in the backward pass.
    On a GPU with 150 KB of shared memory per block (compute capability 8.0, 9.0, 10.0), half types, one or two hidden
    layers of one width (16, 32 or 64), inputs of a multiple of 16 (128 at most together) and at most 16 outputs take
    one kernel; `why_no_kernel` says what rules a network out. Any other one runs the definition, matrix products of the
    library, where the backend is "auto".
    Raises ValueError for a shape or device, TypeError for a dtype that does not fit, BackendError where the backend is
    "cuda" and its kernel does not support the network.
    Source: fully fused networks, T. Mueller et al., "Real-time neural radiance caching", 2021 (arXiv:2106.12372).

    >>> x = torch.tensor([[1.0, -1.0]])
    >>> parameters = torch.tensor([1.0, 0, 0, 1,  0, 0,  1, 1,  5])        # relu of both, then their sum, plus 5
    >>> mlp(parameters, (2, 2, 1), x)
    tensor([[6.]])
    """
    parameters, *inputs = cast("mlp", parameters, *inputs)
    if not 1 <= len(inputs) <= MAX_INPUTS or not 2 <= len(widths) <= MAX_LAYERS + 1 or min(widths) < 1:
        raise ValueError(
            f"mlp: needs 1 to {MAX_INPUTS} inputs and 1 to {MAX_LAYERS} layers of at least one unit, "
            f"got {len(inputs)} inputs, widths {list(widths)}"
        )
    named = {f"inputs[{k}]": (x, ("N", f"I_{k}")) for k, x in enumerate(inputs)}
    sizes = check("mlp", FLOATS, **named, parameters=(parameters, (n_parameters(widths),)))
    input_widths = [sizes[letter] for _, (_, letter) in named.values()]
    if sum(input_widths) != widths[0]:
        raise ValueError(f"mlp: the inputs' widths must add up to widths[0] = {widths[0]}, got {sum(input_widths)}")
    unfit = why_no_kernel(parameters.device, parameters.dtype, widths, input_widths)
    return implementation("mlp", parameters, unfit)(parameters, tuple(widths), *inputs)


def why_no_kernel(
    device: torch.device | str, dtype: torch.dtype, widths: Sequence[int], input_widths: Sequence[int]
) -> str | None:
    """Why the fused kernel of `device` does not support a network of `widths` and `dtype`; None if it does.

    `input_widths` are those of each input. The CPU's kernel supports every network.

    >>> why_no_kernel("cpu", torch.float32, (5, 7, 2), (3, 2)) is None
    True
    >>> why_no_kernel("cuda", torch.float32, (32, 64, 3), (32,))
    'its kernel takes float16 and bfloat16, got float32'
    """
    device = torch.device(device) if isinstance(device, str) else device
    if device.type != "cuda":
        return None
    if dtype not in (torch.float16, torch.bfloat16):
        return f"its kernel takes float16 and bfloat16, got {str(dtype).removeprefix('torch.')}"
    hidden = list(widths[1:-1])
    if len(hidden) not in (1, 2) or len(set(hidden)) != 1 or hidden[0] not in HIDDEN:
        return f"its kernel takes 1 or 2 hidden layers of one width, 16, 32 or 64 units, got {len(hidden)}: {hidden}"
    if widths[0] > WIDEST_INPUT or any(width % INPUT_MULTIPLE for width in input_widths):
        wanted = f"inputs of multiples of {INPUT_MULTIPLE} values, at most {WIDEST_INPUT} together"
        return f"its kernel takes {wanted}, got {list(input_widths)}, {widths[0]} together"
    if widths[-1] > WIDEST_OUTPUT:
        return f"its kernel takes at most {WIDEST_OUTPUT} outputs, got {widths[-1]}"
    return why_not_on(device.index)


@native.constant_in_traces
def why_not_on(gpu: int | None) -> str | None:
    """Why the kernel does not run on this GPU: it needs tensor cores, and shared memory for the widest network."""
    properties = torch.cuda.get_device_properties(gpu)
    if properties.major < native.TENSOR_CORES_MAJOR:
        capability = f"{properties.major}.{properties.minor}"
        return f"its kernel needs compute capability {native.TENSOR_CORES_MAJOR}.0 or more, this GPU has {capability}"
    if properties.shared_memory_per_block_optin < SHARED_BYTES:
        found = properties.shared_memory_per_block_optin
        return f"its kernel needs {SHARED_BYTES} bytes of shared memory per block, this GPU has {found}"
    return None


def n_parameters(widths: Sequence[int]) -> int:
    """Length of the parameters of layers of these widths.

    >>> n_parameters((3, 4, 2))
    26
    """
    return sum((n_in + 1) * n_out for n_in, n_out in zip(widths, widths[1:], strict=False))


def layers(parameters: Tensor, widths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Weight [out, in] and bias [out] of each layer, as views of `parameters`."""
    found, start = [], 0
    for n_in, n_out in zip(widths, widths[1:], strict=False):
        middle, end = start + n_in * n_out, start + (n_in + 1) * n_out
        found.append((parameters[start:middle].view(n_out, n_in), parameters[middle:end]))
        start = end
    return found


@implements("mlp", "torch")
def _mlp_torch(parameters, widths, *inputs):
    x = torch.cat(inputs, dim=1)
    *hidden, last = layers(parameters, widths)
    for weight, bias in hidden:
        x = F.relu(F.linear(x, weight, bias))
    return F.linear(x, *last)


def _mlp_forward(parameters, widths, *inputs):
    return torch.ops.nerfkit._mlp(inputs, parameters, widths), ()


def _mlp_backward(grads, arguments, _, needs_grad):
    (parameters, widths, *inputs), (to_parameters, _, *to_inputs) = arguments, needs_grad
    wanted = [int(to) for to in to_inputs]
    grad_inputs, parts = torch.ops.nerfkit._mlp_bwd(*grads, inputs, parameters, widths, wanted)
    return parts.sum(0).to(parameters.dtype) if to_parameters else None, None, *grad_inputs


implement_native("mlp", _mlp_torch, _mlp_forward, _mlp_backward)

MLP_PARTS, MLP_CPU_PARTS = 256, 32  # of cuda/mlp/args.h
native.fake("_mlp")(lambda inputs, parameters, widths: parameters.new_empty(inputs[0].shape[0], widths[-1]))


@native.fake("_mlp_bwd")
def _(grad_out, inputs, parameters, widths, wanted):
    wide = torch.float64 if parameters.dtype == torch.float64 else torch.float32
    parts = MLP_PARTS if parameters.is_cuda else MLP_CPU_PARTS
    grads = [like(x, need) for x, need in zip(inputs, wanted, strict=True)]
    return grads, parameters.new_empty(parts, parameters.shape[0], dtype=wide)
