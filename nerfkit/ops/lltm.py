# SPDX-License-Identifier: Apache-2.0
"""The LLTM recurrence along every ray."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops import native
from nerfkit.ops.checks import FLOATS, INT64, cast, check
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.gradients import like, no_second_derivative, wants_gradient
from nerfkit.ops.lltm_cell import check_parameters
from nerfkit.ops.packed import ray_indices

FEW_RAYS, LONG_RAY = 1024, 64  # rays, mean samples: sorting fewer or longer rays costs more than it saves
LARGEST_ON_GPU = 64  # units and inputs that the kernels take, as in cuda/lltm/args.h


def lltm(
    input: Tensor, ray_offsets: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Run `lltm_cell` along the samples of every ray, near to far.

    .. math::
        (h_i, c_i) = \mathrm{lltm\_cell}(input_i, h_{i-1}, c_{i-1}, W, b), \qquad h_{-1} = h0_r, \quad c_{-1} = c0_r

    at the first sample of ray r: the state is reset at every ray.

    Args:
        input: [N, I] packed samples.
        ray_offsets: [R+1] int64 CSR row pointers of the rays.
        weight: [3H, H+I], rows in the order input gate, output gate, candidate; columns h, then input.
        bias: [3H]; h0, c0: [R, H] state before the first sample.

    Returns:
        h [N, H] after each sample, h_n and c_n [R, H] after the last one. An empty ray returns its h0 and c0.

    dtype: one floating type for all. Differentiable once in every input but ray_offsets; a second
    derivative raises NotImplementedError.
    On a GPU the kernels take H and I of up to 64; more of either runs the definition where the backend is "auto".
    Raises ValueError for a shape or device, TypeError for a dtype that does not fit, RuntimeError for row
    pointers that do not rise from 0 to N, BackendError where the backend is "cuda" and H or I is too large.
    Source: as `lltm_cell`.

    >>> weight = torch.tensor([[0.0, 0], [0, 0], [0, 1]])                    # gates half open, candidate = input
    >>> zero = torch.zeros(2, 1)
    >>> h, h_n, c_n = lltm(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 3]), weight, torch.zeros(3),
    ...                    zero, zero)
    >>> c_n.flatten()                                                        # (1 + 2) / 2 and 4 / 2
    tensor([1.5000, 2.0000])
    >>> h.flatten()                                                          # tanh of 0.5, 1.5 and 2, halved
    tensor([0.2311, 0.4526, 0.4820])
    """
    input, weight, bias, h0, c0 = cast("lltm", input, weight, bias, h0, c0)
    sizes = check(
        "lltm", FLOATS, input=(input, ("N", "I")), ray_offsets=(ray_offsets, ("R+1",), INT64), h0=(h0, ("R", "H")),
        c0=(c0, ("R", "H")),
    )  # fmt: skip
    n_state, n_input = sizes["H"], sizes["I"]
    check_parameters("lltm", input, n_state, n_input, weight, bias)
    unfit = why_no_kernel(input.device, n_state, n_input)
    return implementation("lltm", input, unfit)(input, ray_offsets, weight, bias, h0, c0)


def why_no_kernel(device: torch.device | str, n_state: int, n_input: int) -> str | None:
    """Why the kernels of `device` do not support H = `n_state` and I = `n_input`; None if they do, as a CPU's always.

    >>> why_no_kernel("cuda", 128, 32)
    'its kernels take a state and an input of at most 64 values, got 128 and 32'
    """
    device = torch.device(device) if isinstance(device, str) else device
    if device.type != "cuda" or max(n_state, n_input) <= LARGEST_ON_GPU:
        return None
    return f"its kernels take a state and an input of at most {LARGEST_ON_GPU} values, got {n_state} and {n_input}"


@implements("lltm", "torch")
def _lltm_torch(input, ray_offsets, weight, bias, h0, c0):
    ray_index = ray_indices(ray_offsets, input.shape[0], "lltm")  # [N]
    if input.shape[0] == 0:
        nothing = sum(x[:0].sum() for x in (input, weight, bias, h0, c0))  # keeps all in the graph: zero gradients
        return input.new_zeros(0, h0.shape[1]) + nothing, h0 + nothing, c0 + nothing
    # Samples are sorted by (step, ray), longest ray first: each step is then one contiguous slice of every array.
    lengths = ray_offsets.diff()  # [R]
    longest_first = lengths.argsort(descending=True, stable=True)  # [R]
    rank = _inverse(longest_first)  # [R]
    step = torch.arange(input.shape[0], device=input.device) - ray_offsets[ray_index]  # [N]
    rays_at_step = torch.bincount(step)  # [steps]
    row = (rays_at_step.cumsum(0) - rays_at_step)[step] + rank[ray_index]  # [N] of each sample in that order

    h_steps, c_steps = _StepsOfRays.apply(
        input[_inverse(row)], weight, bias, h0[longest_first], c0[longest_first], rays_at_step.tolist()
    )  # [N, H] each
    last = row[(ray_offsets[1:] - 1).clamp(min=0)]  # [R] row of the last sample, if there is one
    empty = (lengths == 0)[:, None]  # [R, 1]
    return h_steps[row], torch.where(empty, h0, h_steps[last]), torch.where(empty, c0, c_steps[last])


def _inverse(permutation: Tensor) -> Tensor:
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(len(permutation), device=permutation.device)
    return inverse


class _StepsOfRays(torch.autograd.Function):
    """h and c [N, H] after every sample, in the order (step, ray); step t is a block of counts[t] rays.

    Autograd would record a dozen kernels per step. Here only the sequential part is inside the loops, six small
    kernels per step; activations' derivatives and the weights' gradient are computed for all samples at once.
    """

    @staticmethod
    def forward(ctx, input, weight, bias, h0, c0, counts):
        n_state = h0.shape[1]
        gates = F.linear(input, weight[:, n_state:], bias)  # [N, 3H]
        weight_h = weight[:, :n_state].t()  # [H, 3H]
        c_steps, h_steps = (torch.empty_like(gates[:, :n_state]) for _ in range(2))  # [N, H]
        h, c = h0, c0
        for block, h_new, c_new in zip(gates.split(counts), h_steps.split(counts), c_steps.split(counts), strict=True):
            n = block.shape[0]
            block.addmm_(h[:n], weight_h)
            i, o = block[:, : 2 * n_state].sigmoid_().chunk(2, dim=1)  # [n, H] each
            g = F.elu_(block[:, 2 * n_state :])
            torch.addcmul(c[:n], g, i, out=c_new)
            torch.tanh(c_new, out=h_new).mul_(o)
            h, c = h_new, c_new
        ctx.save_for_backward(input, weight, h0, gates, h_steps, c_steps)
        ctx.counts = counts
        return h_steps, c_steps

    @staticmethod
    def backward(ctx, grad_h_steps, grad_c_steps):
        with torch.no_grad():
            gradients = _gradients(*ctx.saved_tensors, ctx.counts, grad_h_steps, grad_c_steps)
        return *no_second_derivative("lltm", gradients, (*ctx.saved_tensors, grad_h_steps, grad_c_steps)), None


def _gradients(input, weight, h0, gates, h_steps, c_steps, counts, grad_h_steps, grad_c_steps):
    """Gradients of input, weight, bias, h0 and c0; `gates` [N, 3H] are after activation."""
    n_state = h0.shape[1]
    weight_h = weight[:, :n_state]  # [3H, H]
    i, o, g = gates.chunk(3, dim=1)  # [N, H] each
    tanh_c = c_steps.tanh()
    c_of_h = o * (1 - tanh_c * tanh_c)  # d h / d c
    i_of_c = g * i * (1 - i)  # d c / d a_i, and so on: a is a gate before activation
    o_of_h = tanh_c * o * (1 - o)
    g_of_c = i * (g + 1).clamp(max=1)
    grad_gates = torch.empty_like(gates)  # [N, 3H]
    grad_h, grad_c = torch.zeros_like(h0), torch.zeros_like(h0)  # [R, H] carried from step to step
    by_step = [x.split(counts) for x in (grad_gates, grad_h_steps, grad_c_steps, c_of_h, i_of_c, o_of_h, g_of_c)]
    for block, from_h, from_c, dc_dh, da_i, da_o, da_g in reversed(list(zip(*by_step, strict=True))):
        n = block.shape[0]
        dh, dc = grad_h[:n].add_(from_h), grad_c[:n].add_(from_c)
        dc.addcmul_(dh, dc_dh)
        torch.cat([dc * da_i, dh * da_o, dc * da_g], dim=1, out=block)
        torch.mm(block, weight_h, out=dh)
    # The state before each sample: h0 at the first step, the previous block at the others.
    h_before = torch.cat([h0[: counts[0]], *(h[:n] for h, n in zip(h_steps.split(counts), counts[1:], strict=False))])
    grad_weight = torch.cat([grad_gates.t() @ h_before, grad_gates.t() @ input], dim=1)  # [3H, H+I]
    return grad_gates @ weight[:, n_state:], grad_weight, grad_gates.sum(0), grad_h, grad_c


@implements("lltm", "cpp", "cuda")
def _lltm_native(input, ray_offsets, weight, bias, h0, c0):
    if wants_gradient("lltm", input, weight, bias, h0, c0):
        return _Lltm.apply(input, ray_offsets, weight, bias, h0, c0)
    order = _longest_first(input, ray_offsets)
    return torch.ops.nerfkit._lltm(input, ray_offsets, weight, bias, h0, c0, order, False)[:3]


def _longest_first(input: Tensor, ray_offsets: Tensor) -> Tensor | None:
    """Rays [R] sorted by length, as a GPU runs a few together until the longest of them ends; None without sorting."""
    n_rays = ray_offsets.shape[0] - 1
    if not input.is_cuda or n_rays < FEW_RAYS or input.shape[0] > LONG_RAY * n_rays:
        return None
    lengths = ray_offsets.diff().clamp(max=255).to(torch.uint8)  # an 8-bit key is sorted faster
    return lengths.sort(stable=True, descending=True).indices


class _Lltm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, ray_offsets, weight, bias, h0, c0):
        order = _longest_first(input, ray_offsets)
        h, h_n, c_n, workspace = torch.ops.nerfkit._lltm(input, ray_offsets, weight, bias, h0, c0, order, True)
        ctx.save_for_backward(input, ray_offsets, weight, workspace, order)
        return h, h_n, c_n

    @staticmethod
    def backward(ctx, *grads):
        saved = ctx.saved_tensors
        to_input, _, to_weight = ctx.needs_input_grad[:3]
        with torch.no_grad():
            gradients = torch.ops.nerfkit._lltm_bwd(*grads, *saved, to_input, to_weight)
        grad_input, grad_weight, *rest = gradients
        gradients = grad_input if to_input else None, grad_weight if to_weight else None, *rest
        input, weight, bias, h0, c0 = no_second_derivative("lltm", gradients, (*saved[:-1], *grads))
        return input, None, weight, bias, h0, c0


SAVED_ON_CPU, SAVED_ON_GPU = 4, 5  # rows of the workspace for each sample, of cuda/lltm/args.h


@native.fake("_lltm")
def _(input, ray_offsets, weight, bias, h0, c0, order, save):
    n, n_state = input.shape[0], h0.shape[1]
    rows = SAVED_ON_CPU * n + h0.shape[0] if input.is_cpu else SAVED_ON_GPU * n
    shapes = (n, n_state), h0.shape, c0.shape, (rows if save else 0, n_state)
    return tuple(input.new_empty(shape) for shape in shapes)


@native.fake("_lltm_bwd")
def _(grad_h, grad_h_n, grad_c_n, input, ray_offsets, weight, workspace, order, to_input, to_weight):
    to_bias = weight.new_empty(weight.shape[0])
    return like(input, to_input), like(weight, to_weight), to_bias, like(grad_h_n), like(grad_c_n)
