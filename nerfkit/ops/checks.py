# SPDX-License-Identifier: Apache-2.0
"""What every op does first: inputs are cast as under autocast, then checked, once a call.

What `torch.autocast` does; without it, mixed dtypes are an error, and float64 is never cast:

| ops | under autocast |
|---|---|
| depthwise_conv1d, depthwise_conv2d, lltm_cell, lltm, mlp | all floating inputs in the autocast dtype, as F.conv2d |
| march, count_visible, compact_samples, composite, distortion | all floating inputs in float32: distances, long sums |
| spherical_harmonics | half directions in float32; the result in the requested dtype |
| grid_encode | table in the autocast dtype, its gradient in the table's own; half points in float32 |
| trilinear | features unchanged; half points in float32 |
| lazy_adam, render_rays | all unchanged |
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
POSITION_FLOATS = (torch.float32, torch.float64)  # half types do not resolve neighbouring samples
INT64 = (torch.int64,)
IN_AUTOCAST_DTYPE = ("depthwise_conv1d", "depthwise_conv2d", "lltm_cell", "lltm", "mlp")

Shape = tuple[int | str, ...]


def cast(op: str, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """`tensors` cast for `op` by the table above; unchanged where autocast is off, and what is none, for `check`."""
    device = tensors[0].device.type if isinstance(tensors[0], Tensor) else None
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device) if op in IN_AUTOCAST_DTYPE else torch.float32
    return tuple(x.to(dtype) if isinstance(x, Tensor) and _casts(x) else x for x in tensors)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype that autocast casts `x` to; its own where autocast is off."""
    kind = x.device.type
    is_on = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_on and _casts(x) else x.dtype


def _casts(x: Tensor) -> bool:
    return x.is_floating_point() and x.dtype != torch.float64


def check(op: str, dtypes: tuple[torch.dtype, ...], **tensors: tuple | bool) -> dict[str, int]:
    """Require shapes, dtypes and one device of `tensors`: name=(tensor, shape) or name=(tensor, shape, its dtypes).

    In a shape a number must match, and a letter stands for the same size in all of them; "R+1" is one more than "R".
    The first tensor has one of `dtypes`, and so have, in the same dtype, all without dtypes of their own. An argument
    that is left out is False instead of a tuple. Returns the size of each letter. Errors state the expected and the
    actual value.
    """
    if torch.compiler.is_compiling():
        return _check(op, dtypes, tensors)
    call = [op]
    for x, *wanted in filter(None, tensors.values()):
        call += (x.shape, x.dtype, x.device, *wanted) if isinstance(x, Tensor) else (type(x), *wanted)
    call = tuple(call)
    try:
        sizes = _checked.get(call)
    except TypeError:  # sizes that are symbols, while something is traced, have no hash
        return _check(op, dtypes, tensors)
    if sizes is None:
        if len(_checked) >= MOST_KEPT:
            _checked.clear()
        sizes = _checked[call] = _check(op, dtypes, tensors)
    return sizes


MOST_KEPT = 256
_checked: dict[tuple, dict[str, int]] = {}  # a call like an earlier one is not checked again


def _check(op: str, dtypes: tuple[torch.dtype, ...], tensors: dict[str, tuple]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    first = None
    for name, (tensor, shape, *own) in ((name, wanted) for name, wanted in tensors.items() if wanted):
        own = own if first else (dtypes,)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{op}: {name} must be a tensor {_wanted(shape, sizes, own)}, got {type(tensor).__name__}")
        if first is None:
            first, device, dtype = name, tensor.device, tensor.dtype
        known, got = len(sizes), tensor.shape
        fits = len(got) == len(shape)
        for want, size in zip(shape, got, strict=False):
            if want == "R+1":
                fits = fits and size - 1 == sizes.setdefault("R", max(size - 1, 0))
            elif size != (sizes.setdefault(want, size) if isinstance(want, str) else want):
                fits = False
        if not fits:
            before = dict(list(sizes.items())[:known])
            raise ValueError(f"{op}: {name} must have shape {_wanted(shape, before)}, got {list(got)}")
        if tensor.device != device:
            raise ValueError(f"{op}: {name} must be on {device}, as {first} is, got {tensor.device}")
        if own and tensor.dtype not in own[0]:
            raise TypeError(f"{op}: {name} must be {_names(own[0])}, got {_names([tensor.dtype])}")
        if not own and tensor.dtype != dtype:
            raise TypeError(f"{op}: {name} must be {_names([dtype])}, as {first} is, got {_names([tensor.dtype])}")
    return sizes


def _wanted(shape: Shape, sizes: dict[str, int], dtypes: Sequence[tuple[torch.dtype, ...]] = ()) -> str:
    """`shape` with the sizes that are known, and the dtypes; "R+1" has at least the first row pointer."""
    known = {**sizes, "R+1": sizes["R"] + 1} if "R" in sizes else sizes
    text = f"[{', '.join(str(known.get(size, size)) for size in shape)}]"
    text += " with R >= 0" if "R+1" in shape and "R" not in sizes else ""
    return text + "".join(f" of {_names(choice)}" for choice in dtypes)


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def per_axis(op: str, axes: int, **values: int | tuple[int, ...]) -> list[tuple[int, ...]]:
    """Each of `values` as a tuple: it is an int for all axes or, if there are more than one, an int for each."""
    found = []
    for name, value in values.items():
        each = tuple(value) if axes > 1 and isinstance(value, tuple | list) else (value,) * axes
        if len(each) != axes or not all(isinstance(v, int) for v in each):
            wanted = "an int" if axes == 1 else f"an int or {axes} of them"
            raise ValueError(f"{op}: {name} must be {wanted}, got {value!r}")
        found.append(each)
    return found


def can_be_read(x: Tensor) -> bool:
    """Whether `x` can be read without a synchronization: on a CPU, and not while a compiler traces."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not isinstance(x, FakeTensor)
