# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: one seed, one thread, devices, and which tests are skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start: many threads on few cores wait for ever

import pytest  # noqa: E402
import torch  # noqa: E402

from nerfkit import ops
from nerfkit.config import Config
from nerfkit.ops import dispatch
from tests.processes import call
from tests.toy_scene import small_options, write_options, write_scene

torch.set_num_threads(1)
pytest.register_assert_rewrite("tests.viewing")  # whose fixtures two files use
torch.backends.cudnn.allow_tf32 = False  # for definitions: 11 bits of float32 are no reference


def pytest_report_header() -> str:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    built = {op: "+".join(ops.available(op)) for op in dispatch.OPS}
    return f"torch {torch.__version__}, GPU: {gpu}, backends: {built}"


def missing_gpu(item: pytest.Item) -> str | None:
    """If the test needs a GPU that is missing, the environment variable that makes that a failure; else None."""
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        return "REQUIRE_CUDA"
    if item.get_closest_marker("two_gpus") and torch.cuda.device_count() < 2:
        return "REQUIRE_TWO_GPUS"
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """TEST_SHARE=k/n leaves the k-th of every n tests that are selected, so that n processes can share them."""
    if share := os.environ.get("TEST_SHARE"):
        k, n = map(int, share.split("/"))
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % n != k - 1])
        items[:] = items[k - 1 :: n]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of a GPU that is not there is skipped, or fails where it is required."""
    if name := missing_gpu(item):
        seen = f"torch sees {torch.cuda.device_count()} GPUs"
        pytest.fail(f"{name}=1, but {seen}") if os.environ.get(name) == "1" else pytest.skip(seen)


@pytest.fixture(autouse=True)
def one_seed():
    torch.manual_seed(0)
    yield
    ops.set_backend("auto")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def toy_scene(tmp_path_factory) -> Path:
    """Folder of a small scene; do not write into it."""
    return write_scene(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def scene_folder(tmp_path) -> Path:
    """The small scene with one camera for all frames, to write into."""
    return write_scene(tmp_path / "scene", one_camera=True)


@pytest.fixture
def small_config(toy_scene) -> Config:
    return small_options(toy_scene)


@pytest.fixture(scope="session")
def options(tmp_path_factory) -> Path:
    """A file of options for a smaller scene, which lies beside it."""
    return write_options(tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="session")
def trained(options) -> Path:
    """The run of those options; do not write into it."""
    call("train", "--config", options, "--out", options.parent / "run")
    return options.parent / "run"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))
