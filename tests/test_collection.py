# SPDX-License-Identifier: Apache-2.0
"""Which tests run on a machine without a GPU: those of a GPU are skipped, or fail where one is required."""

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
    """Runs those five tests where torch sees some GPUs; the outcomes."""
    for name in ("REQUIRE_CUDA", "REQUIRE_TWO_GPUS", "TEST_SHARE"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers =\n  cuda\n  two_gpus\n")

    def run(gpus: int = 0, **variables: str) -> dict[str, int]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return pytester.runpytest_inprocess("-p", "tests.conftest", "-p", "no:cacheprovider").parseoutcomes()

    return run


def test_tests_of_a_gpu_are_skipped_without_one_unless_it_is_required(collected):
    assert collected() == {"passed": 3, "skipped": 2}
    assert collected(REQUIRE_CUDA="1") == {"passed": 3, "errors": 1, "skipped": 1}
    assert collected(gpus=1, REQUIRE_TWO_GPUS="1") == {"passed": 3, "failed": 1, "errors": 1}


def test_shares_are_of_all(collected):
    assert [collected(TEST_SHARE=share)["passed"] for share in ("1/2", "2/2")] == [2, 1]
