# SPDX-License-Identifier: Apache-2.0
"""Which implementation of an op runs.

Every op has one contract and up to three implementations, its *backends*: ``torch`` (the definition, runs anywhere),
``cpp`` (CPU tensors) and ``cuda`` (CUDA tensors). A backend chosen by name runs or raises; only ``auto`` falls back.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nerfkit.errors import UserError
from nerfkit.limits import BACKENDS, CHOICES, GPU_ONLY, OPS, of_all_ops
from nerfkit.ops import native

DEVICE_OF = {"cpp": "cpu", "cuda": "cuda"}
UNFIT = "cannot run it"
FUSED_ON = {device: backend for backend, device in DEVICE_OF.items()}

_implementations: dict[tuple[str, str], Callable] = {}
_default: dict[str, str] = dict.fromkeys(OPS, "auto")  # of ops used by themselves: `set_backend`


class _Thread(threading.local):
    """What is chosen inside of the `backend` blocks that this thread is in."""

    def __init__(self):  # in each thread: torch.compile guards an attribute of the instance, not one of the class
        self.choice: dict[str, str] | None = None  # None: in no block


_thread = _Thread()


class BackendError(UserError, RuntimeError):
    """A backend that was chosen by name cannot run."""


class Resolved(NamedTuple):
    """The backend that runs one op, and why."""

    backend: str
    reason: str


def implements(op: str, *backends: str) -> Callable[[Callable], Callable]:
    """Decorator: register a function as the implementation of `op` on `backends`, as far as they are built."""

    def register(function: Callable) -> Callable:
        _implementations.update({(op, name): function for name in backends if name == "torch" or native.loaded(name)})
        return function

    return register


def available(op: str) -> tuple[str, ...]:
    """Backends that have an implementation of `op` in this installation."""
    return tuple(b for b in BACKENDS if (op, b) in _implementations)


def resolve(op: str, device: str, choice: str = "auto", unfit: str | None = None) -> Resolved:
    """Backend that runs `op` on tensors of `device` ("cpu", "cuda", ...) under `choice`.

    `unfit` is why the fused backend's kernel does not support the call, None if it does.
    Raises BackendError if `choice` names a backend that was not built, or cannot run on this device or this call.
    """
    _checked({op: choice})
    if choice == "torch":
        return Resolved("torch", "requested")
    kind, _, index = device.partition(":")
    wanted = FUSED_ON.get(kind) if choice == "auto" else choice
    if wanted is None:
        return Resolved("torch", f"no fused backend for {kind} tensors")
    why_not, advice = None, "use --ops.backend auto"
    if wanted == "cpp" and op in GPU_ONLY:
        why_not = "has no kernel for it: on a CPU a chain of other ops does the same"
        advice = f"leave out --ops.overrides {op} cpp"
    elif (op, wanted) not in _implementations:
        why_not = f"is not built here, only {', '.join(available(op))} ({native.missing_hint(wanted)})"
        advice = f"{advice}. {native.how_to_build(wanted)}"
    elif DEVICE_OF[wanted] != kind:
        why_not, advice = f"needs {DEVICE_OF[wanted]} tensors, got {kind} tensors", f"move the tensors, or {advice}"
    elif wanted == "cuda" and (other_gpu := native.why_not_on(int(index) if index else None)):
        why_not, advice = f"is {other_gpu}", f"use --ops.backend torch. {native.how_to_build('cuda')}"
    elif unfit:
        why_not, advice = f"{UNFIT}: {unfit}", f"{advice}, or --ops.overrides {op} torch"
    if why_not is None:
        return Resolved(wanted, "built" if choice == "auto" else "requested")
    if choice == "auto":
        return Resolved("torch", f"{wanted} {why_not}")
    raise BackendError(f"{op}: backend {choice!r} {why_not}; {advice}")


def implementation(op: str, tensor: Tensor, unfit: str | None = None) -> Callable:
    """The function that runs `op` on `tensor` under the current choice of backend; `unfit` as in `resolve`."""
    device = tensor.device
    choice = (_default if _thread.choice is None else _thread.choice)[op]
    return _implementations[op, _backend_of(op, device.type, device.index, choice, unfit)]


_resolve_once = functools.lru_cache(resolve)


@native.constant_in_traces  # another choice is compiled again
def _backend_of(op: str, kind: str, index: int | None, choice: str, unfit: str | None) -> str:
    return _resolve_once(op, kind if index is None else f"{kind}:{index}", choice, unfit).backend


def set_backend(default: str = "auto", overrides: dict[str, str] | None = None) -> None:
    """Choose the backend of all ops that are used by themselves, and of single ops by `overrides` ({"lltm": "torch"}).

    A model's own choice, `config.ops`, goes before it, as does `backend`.
    """
    _default.update(_checked(of_all_ops(default) | (overrides or {})))


def choices() -> dict[str, str]:
    """The backend that is chosen for each op, as "auto" where none is."""
    return dict(_default if _thread.choice is None else _thread.choice)


class backend:  # noqa: N801
    """Choose the backend inside a ``with`` block: ``with nerfkit.ops.backend("torch"): ...``

    Without `default`, ops that `overrides` does not name keep theirs. The choice is this thread's alone.
    """

    def __init__(self, default: str | None = None, overrides: dict[str, str] | None = None):
        self.chosen = _checked((of_all_ops(default) if default else {}) | (overrides or {}))
        self.before: list[dict[str, str] | None] = []

    def __enter__(self) -> None:
        self.before.append(_thread.choice)
        _thread.choice = (_default if _thread.choice is None else _thread.choice) | self.chosen

    def __exit__(self, *error) -> None:
        _thread.choice = self.before.pop()


def _checked(choice: dict[str, str]) -> dict[str, str]:
    for op, name in choice.items():
        if op not in OPS:
            raise BackendError(f"unknown op {op!r}; the ops are {', '.join(OPS)}")
        if name not in CHOICES:
            raise BackendError(f"unknown backend {name!r} for {op}; choose one of {', '.join(CHOICES)}")
    return choice


def resolved(device: torch.device | str) -> dict[str, Resolved]:
    """The backend of every op on `device` under the current choice; raises if one cannot run.

    Sizes that a kernel does not support (`nerfkit.ops.mlp.why_no_kernel`) are not considered.
    """
    return {op: resolve(op, str(torch.device(device)), choice) for op, choice in choices().items()}
