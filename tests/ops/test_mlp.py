# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F

from nerfkit import nn, ops
from nerfkit.ops import mlp
from nerfkit.ops.mlp import n_parameters
from tests.ops.harness import checks_of

TestMlp = checks_of("mlp")


def test_is_what_linear_layers_give():
    net = nn.MLP(5, 8, 2, 3)
    x = torch.randn(7, 5)
    (w0, b0), (w1, b1), (w2, b2) = net.layers()
    wanted = F.linear(F.relu(F.linear(F.relu(F.linear(x, w0, b0)), w1, b1)), w2, b2)
    torch.testing.assert_close(net(x[:, :2], x[:, 2:]), wanted)


def test_layers_are_views():
    net = nn.MLP(2, 3, 1, 1)
    with torch.no_grad():
        for weight, bias in net.layers():
            weight.zero_()
            bias.fill_(2.0)
    assert net(torch.randn(4, 2)).tolist() == [[2.0]] * 4


def test_nan_of_a_row_stays_in_it():
    net = nn.MLP(16, 16, 2, 3)
    x = torch.randn(40, 16)
    x[17, 3] = float("nan")
    assert (~net(x).isfinite()).any(1).nonzero().flatten().tolist() == [17]


@pytest.mark.parametrize("widths", [(1, 1), (3, 3), (2, 1, 4), (4, 9, 2), (7, 5, 8, 17)], ids=str)
@pytest.mark.parametrize("n_rows", [1, 3, 32, 75])
def test_narrow_layers(widths: tuple, n_rows: int):
    """Kernels take some rows and columns at once: what is beyond the last ones counts for nothing."""
    parameters = torch.randn(n_parameters(widths), requires_grad=True)
    x = torch.randn(n_rows, widths[0], requires_grad=True)
    grad = torch.randn(n_rows, widths[-1])

    def results() -> tuple:
        out = mlp(parameters, widths, x)
        return out, *torch.autograd.grad(out, (parameters, x), grad)

    with ops.backend("torch"):
        wanted = results()
    for got, want in zip(results(), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "parameters, widths, inputs, error, message",
    [
        (26, (3, 4, 2), [], ValueError, r"needs 1 to 4 inputs .* got 0 inputs, widths \[3, 4, 2\]"),
        (26, (3,), [(5, 3)], ValueError, r"1 to 8 layers of at least one unit, got 1 inputs, widths \[3\]"),
        (26, (3, 4, 2), [(5, 2)], ValueError, r"the inputs must be widths\[0\] = 3 wide together, got 2"),
        (26, (3, 4, 2), [(5, 2), (4, 1)], ValueError, r"inputs\[1\] must have shape \[5, I_1\], got \[4, 1\]"),
        (25, (3, 4, 2), [(5, 3)], ValueError, r"parameters must have shape \[26\], got \[25\]"),
    ],
)
def test_bad_input(parameters: int, widths: tuple, inputs: list, error, message: str):
    with pytest.raises(error, match=message):
        mlp(torch.rand(parameters), widths, *(torch.rand(size) for size in inputs))


def test_bad_dtypes():
    with pytest.raises(TypeError, match=r"inputs\[0\] and parameters must have one dtype, got float32 and float64"):
        mlp(torch.rand(26).double(), (3, 4, 2), torch.rand(5, 3))
    with pytest.raises(TypeError, match=r"inputs\[0\] must be float32 or .* got int64"):
        mlp(torch.ones(26).long(), (3, 4, 2), torch.ones(5, 3).long())
