# SPDX-License-Identifier: Apache-2.0
"""Checks of op inputs: each error states the expected and the actual value."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
POSITION_FLOATS = (torch.float32, torch.float64)  # half types do not resolve neighbouring samples


def check_shape(op: str, name: str, tensor: Tensor, shape: tuple[int | str, ...]) -> None:
    """Require `shape`; an int must match, a letter stands for any size."""
    if not _fits(tensor.shape, shape):
        wanted = ", ".join(str(s) for s in shape)
        raise ValueError(f"{op}: {name} must have shape [{wanted}], got {list(tensor.shape)}")


def _fits(got: torch.Size, shape: tuple[int | str, ...]) -> bool:
    for want, size in zip(shape, got, strict=False):  # not all(): this runs before every op, and a generator takes time
        if not isinstance(want, str) and want != size:
            return False
    return len(got) == len(shape)


def check_dtype(op: str, name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Require one of `dtypes`."""
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise TypeError(f"{op}: {name} must be {wanted}, got {str(tensor.dtype).removeprefix('torch.')}")


def check_same(op: str, **tensors: Tensor | None) -> None:
    """Require one device and one dtype for all `tensors`.

    The first tensor given sets both. None is skipped.
    """
    first = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if first is None:
            first, device, dtype = name, tensor.device, tensor.dtype
        if tensor.device != device:
            raise ValueError(
                f"{op}: all tensors must be on one device; {first} is on {device}, {name} on {tensor.device}"
            )
        if tensor.dtype != dtype:
            raise TypeError(
                f"{op}: {first} and {name} must have one dtype, got "
                f"{str(dtype).removeprefix('torch.')} and {str(tensor.dtype).removeprefix('torch.')}"
            )


def check_ints(op: str, axes: int, **values: int | tuple[int, ...]) -> None:
    """Require an int for all axes or, if there are more than one, an int for each."""
    for name, value in values.items():
        each = value if axes > 1 and isinstance(value, tuple | list) and len(value) == axes else (value,)
        if not all(isinstance(v, int) for v in each):
            wanted = "an int" if axes == 1 else f"an int or {axes} of them"
            raise ValueError(f"{op}: {name} must be {wanted}, got {value!r}")


def check_device(op: str, reference: Tensor, **tensors: Tensor | None) -> None:
    """Require the device of `reference` for all `tensors`; dtypes may differ."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != reference.device:
            raise ValueError(f"{op}: {name} must be on {reference.device}, got {tensor.device}")


def check_ray_offsets(op: str, ray_offsets: Tensor, samples: Tensor, name: str = "ray_offsets") -> None:
    """Require int64 CSR row pointers [R+1] on the device of the packed `samples`.

    Their values rise from 0 to N. On a CPU the kernels check that, and the definitions by `check_rises`; on a GPU,
    where a check would synchronize, it is a precondition.
    """
    if not isinstance(ray_offsets, Tensor):
        raise TypeError(f"{op}: {name} must be an int64 tensor [R+1], got {type(ray_offsets).__name__}")
    check_dtype(op, name, ray_offsets, (torch.int64,))
    check_shape(op, name, ray_offsets, ("R+1",))
    if ray_offsets.shape[0] == 0:
        raise ValueError(f"{op}: {name} must have shape [R+1] with R >= 0, got [0]")
    check_device(op, samples, **{name: ray_offsets})


def check_rises(op: str, ray_offsets: Tensor, n_rows: int, name: str = "ray_offsets", padded: bool = False) -> None:
    """Require row pointers [R+1] that rise from 0 to `n_rows`, or to less if rows are `padded`; else RuntimeError.

    Checked on a CPU alone: on a GPU it would synchronize, and a compiler has no values. There it is a precondition.
    """
    if not can_be_read(ray_offsets):
        return
    wanted = f"{op}: {name} must rise from 0 to {'at most ' if padded else ''}the number of rows, {n_rows}"
    first, last = int(ray_offsets[0]), int(ray_offsets[-1])
    if first != 0:
        raise RuntimeError(f"{wanted}; they start at {first}")
    falls = ray_offsets[1:] < ray_offsets[:-1]  # [R], not of their differences, which could overflow
    if falls.any():
        ray = int(falls.nonzero()[0])
        raise RuntimeError(f"{wanted}; those of ray {ray} fall from {ray_offsets[ray]} to {ray_offsets[ray + 1]}")
    if last > n_rows or (last < n_rows and not padded):
        raise RuntimeError(f"{wanted}; they end at {last}")


def can_be_read(x: Tensor) -> bool:
    """Whether `x` can be read without a synchronization: on a CPU, and not while a compiler traces."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not isinstance(x, FakeTensor)
