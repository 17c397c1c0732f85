# SPDX-License-Identifier: Apache-2.0
"""Gradients of native ops. Second derivatives: through the PyTorch definition, or an error. Forward mode is an error.

`torch.autograd.function.once_differentiable` raises only where the incoming gradient needs a gradient; where it does
not, a second derivative would be silently zero.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch
from torch import Tensor
from torch.autograd import forward_ad

from nerfkit.ops.dispatch import implements


def implement_native(
    op: str, definition: Callable, forward: Callable | None = None, backward: Callable | None = None
) -> Callable:
    """Register the implementation of `op` on "cpp" and "cuda", and return it.

    Args:
        definition: the op in PyTorch, which second derivatives go through.
        forward: arguments of the definition -> result, and a tuple of tensors that backward will need; None: the native
            op `_<op>` has these arguments.
        backward: gradients of the results, arguments, those tensors, and whether each argument needs a gradient ->
            gradients of the first arguments, None after them; those that are not needed may be anything. None: the
            native op `_<op>_bwd` gives that of the first argument, from gradients and arguments.
    """
    native = torch.ops.nerfkit
    forward = forward or (lambda *arguments: (getattr(native, f"_{op}")(*arguments), ()))
    backward = backward or (lambda grads, arguments, *_: (getattr(native, f"_{op}_bwd")(*grads, *arguments),))

    class Native(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            result, kept = forward(*arguments)
            ctx.save_for_backward(*[x if isinstance(x, Tensor) else None for x in arguments], *kept)
            ctx.others = [None if isinstance(x, Tensor) else x for x in arguments]
            return result

        @staticmethod
        def backward(ctx, *grads):
            n, saved, needs_grad = len(ctx.others), ctx.saved_tensors, ctx.needs_input_grad
            arguments = [other if x is None else x for x, other in zip(saved[:n], ctx.others, strict=True)]
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
                return reference_backward(definition, arguments, needs_grad, grads)
            gradients = backward(grads, arguments, saved[n:], needs_grad)
            return tuple([g if need else None for g, need in zip_longest(gradients, needs_grad)])

    def run(*arguments):
        if wants_gradient(op, *arguments):
            return Native.apply(*arguments)
        return forward(*arguments)[0]

    return implements(op, "cpp", "cuda")(run)


def like(x: Tensor, is_wanted: bool = True) -> Tensor:
    """What a native op returns for a gradient of `x`, in a fake: contiguous, and without elements if not wanted."""
    return x.new_empty(x.shape if is_wanted else 0)


class _NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, gradient, *inputs):
        ctx.op = op
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _):
        raise NotImplementedError(f"{ctx.op} has no second derivative")


def no_second_derivative(
    op: str, gradients: tuple[Tensor | None, ...], inputs: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    if not torch.is_grad_enabled():  # the usual case: create_graph=False
        return gradients
    return tuple([None if x is None else _NoSecondDerivative.apply(op, x, *inputs) for x in gradients])


def reference_backward(
    definition: Callable, arguments: Sequence, needs_grad: Sequence[bool], grad_outputs: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Gradients of those `arguments` that need one, which with create_graph=True can themselves be differentiated.

    A native backward has no derivative. Where one is needed, or there is no native backward, the definition is
    recomputed and autograd differentiates it.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views: an argument that depends on another one outside of the op must not contribute here.
        arguments = [x.view_as(x) if need else x for x, need in zip(arguments, needs_grad, strict=True)]
        outputs = definition(*arguments)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        grads = [grad for x, grad in zip(outputs, grad_outputs, strict=True) if x.requires_grad]
        outputs = [x for x in outputs if x.requires_grad]
        wanted = [x for x, need in zip(arguments, needs_grad, strict=True) if need]
        found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=create_graph, allow_unused=True))
    return tuple(next(found) if need else None for need in needs_grad)


def wants_gradient(op: str, *arguments: object) -> bool:
    """Whether autograd has to record `op` on `arguments`, of which some may be tensors.

    Raises NotImplementedError if one of them is dual (torch.func.jvp): a native op would drop its tangent.
    """
    if forward_ad._current_level >= 0:
        # While compiling, where tangents are not visible, any tensor may have one.
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        if any(torch.compiler.is_compiling() or forward_ad.unpack_dual(x).tangent is not None for x in tensors):
            raise NotImplementedError(f"{op} has no forward-mode derivative; use reverse mode, or ops.backend('torch')")
    if torch.is_grad_enabled():
        for x in arguments:  # not any(): its generator takes longer than the rest
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False
