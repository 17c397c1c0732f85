# SPDX-License-Identifier: Apache-2.0
"""Which tests run on a machine without a GPU: those of a GPU are left out, or fail where one is required."""

import pytest
import torch

pytest_plugins = "pytester"
pytestmark = pytest.mark.slow

TESTS = """
import pytest

def test_cpu(): pass

@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_either(device): assert device == "cpu"

@pytest.mark.two_gpus
def test_two(): assert False

def test_last(): pass
"""


@pytest.fixture
def collected(pytester, monkeypatch):
    """Runs those five tests where torch sees some GPUs; the outcomes, and what was printed."""
    for name in ("REQUIRE_CUDA", "REQUIRE_TWO_GPUS", "TEST_SHARE"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers =\n  cuda\n  two_gpus\n")

    def run(gpus: int = 0, **variables: str) -> tuple[dict[str, int], str]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        result = pytester.runpytest_inprocess("-p", "tests.conftest", "-p", "no:cacheprovider")
        return result.parseoutcomes(), result.stdout.str()

    return run


@pytest.mark.parametrize(
    "gpus, variables, outcomes, said",
    [
        (0, {}, {"passed": 3, "deselected": 2}, "2 tests left out"),
        (0, {"REQUIRE_CUDA": "1"}, {"passed": 3, "errors": 1, "deselected": 1}, "REQUIRE_CUDA=1"),
        (1, {"REQUIRE_TWO_GPUS": "1"}, {"passed": 3, "failed": 1, "errors": 1}, "REQUIRE_TWO_GPUS=1"),
    ],
    ids=["left out", "one is required", "two are required"],
)
def test_tests_of_a_gpu_are_left_out_without_one(collected, gpus: int, variables: dict, outcomes: dict, said: str):
    found, output = collected(gpus, **variables)
    assert found == outcomes and said in output
    assert ("tests left out" in output) == ("deselected" in outcomes)


def test_shares_are_of_what_is_left(collected):
    assert [collected(TEST_SHARE=share)[0]["passed"] for share in ("1/2", "2/2")] == [2, 1]
