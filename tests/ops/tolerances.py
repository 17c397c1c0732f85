# SPDX-License-Identifier: Apache-2.0
"""How far a result may be from the naive one in float64: (rtol, atol) by dtype."""

import torch

TOLERANCE = {
    torch.float64: (1e-9, 1e-10),  # sums in another order
    torch.float32: (2e-4, 2e-5),  # 24-bit mantissa, a few hundred terms
    torch.float16: (1e-2, 1e-2),  # inputs and outputs rounded to 11 bits, sums in float32
    torch.bfloat16: (5e-2, 5e-2),  # inputs and outputs rounded to 8 bits, sums in float32
}


def assert_close(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """Require `got` to match `wanted` (float64) within the tolerance of its dtype."""
    rtol, atol = TOLERANCE[got.dtype]
    torch.testing.assert_close(
        got.double().cpu(), wanted.double().cpu(), rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}"
    )
