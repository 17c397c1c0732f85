# SPDX-License-Identifier: Apache-2.0
"""The LLTM run along every ray."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nerfkit.ops.checks import FLOATS, check_dtype, check_ray_offsets, check_same, check_shape
from nerfkit.ops.dispatch import implementation, implements
from nerfkit.ops.lltm_cell import check_parameters, lltm_update
from nerfkit.ops.packed import ray_indices


def lltm(
    input: Tensor,  # [N, I]
    ray_offsets: Tensor,  # [R+1]
    weight: Tensor,  # [3H, H+I]
    bias: Tensor,  # [3H]
    h0: Tensor,  # [R, H]
    c0: Tensor,  # [R, H]
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Run `lltm_cell` along the samples of every ray, near to far.

    .. math::
        (h_i, c_i) = \mathrm{lltm\_cell}(input_i, h_{i-1}, c_{i-1}, W, b), \qquad h_{-1} = h0_r, \quad c_{-1} = c0_r

    at the first sample of ray r: the recurrence starts afresh at each ray.

    Args:
        input: [N, I] packed samples.
        ray_offsets: [R+1] int64 CSR row pointers of the rays.
        weight: [3H, H+I], rows in the order input gate, output gate, candidate; columns h, then input.
        bias: [3H]; h0, c0: [R, H] state before the first sample.

    Returns:
        h [N, H] after each sample, h_n and c_n [R, H] after the last one. An empty ray returns its h0 and c0.

    dtype: one floating type for all. Differentiable in every input but ray_offsets.
    Raises ValueError for a shape or device, TypeError for a dtype that does not fit.
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
    check_shape("lltm", "input", input, ("N", "I"))
    check_dtype("lltm", "input", input, FLOATS)
    check_ray_offsets("lltm", ray_offsets, input)
    check_shape("lltm", "h0", h0, (ray_offsets.shape[0] - 1, "H"))
    check_shape("lltm", "c0", c0, tuple(h0.shape))
    check_parameters("lltm", weight, bias, h0.shape[1], input.shape[1])
    check_same("lltm", input=input, weight=weight, bias=bias, h0=h0, c0=c0)
    return implementation("lltm", input)(input, ray_offsets, weight, bias, h0, c0)


@implements("lltm", "torch")
def _lltm_torch(input, ray_offsets, weight, bias, h0, c0):
    # The samples are put in the order (step, ray), longest ray first: each step is then one slice of all arrays,
    # and the products with the input are one large matrix product.
    n_samples, n_state = input.shape[0], h0.shape[1]
    lengths = ray_offsets.diff()  # [R]
    longest_first = lengths.argsort(descending=True, stable=True)  # [R]
    rank = torch.empty_like(longest_first)
    rank[longest_first] = torch.arange(len(rank), device=rank.device)
    ray_index = ray_indices(ray_offsets, n_samples)  # [N]
    step = torch.arange(n_samples, device=input.device) - ray_offsets[ray_index]  # [N]
    rays_per_step = torch.bincount(step)  # [steps]
    step_major = (rays_per_step.cumsum(0) - rays_per_step)[step] + rank[ray_index]  # [N] -> place
    sample_at = torch.empty_like(step_major)
    sample_at[step_major] = torch.arange(n_samples, device=input.device)

    gates_input = F.linear(input[sample_at], weight[:, n_state:], bias)  # [N, 3H]
    weight_h = weight[:, :n_state].t()  # [H, 3H]
    h, c = h0[longest_first], c0[longest_first]
    all_h, all_c = [], []
    for gates in gates_input.split(rays_per_step.tolist()):
        n = gates.shape[0]
        h, c = lltm_update(torch.addmm(gates, h[:n], weight_h), c[:n])
        all_h.append(h)
        all_c.append(c)
    if not all_h:
        return input.new_zeros(0, n_state) + h0.sum() * 0, h0.clone(), c0.clone()

    h_steps, c_steps = torch.cat(all_h), torch.cat(all_c)  # [N, H] each
    last = step_major[(ray_offsets[1:] - 1).clamp(min=0)]  # [R] place of the last sample, if there is one
    empty = (lengths == 0)[:, None]  # [R, 1]
    return (
        h_steps[step_major],
        torch.where(empty, h0, h_steps[last]),
        torch.where(empty, c0, c_steps[last]),
    )
