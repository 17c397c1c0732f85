# SPDX-License-Identifier: Apache-2.0
"""How many threads the commands use: by cores, quota and what the user chose."""

import os

import pytest
import torch

from nerfkit.threads import cores, limit_threads

V1 = "4:memory:/a\n2:cpu,cpuacct:/docker/b\n"


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/\n", {"cpu.max": "350000 100000"}, 4),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/a\n", {"a/cpu.max": "20000 100000"}, 1),
        ("0::/a\n", {"a/cpu.max": "9900000 100000"}, 8),
        ("0::/a\n", {"a/cpu.max": "what is this"}, 8),
        (V1, {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        (V1, {"cpu/docker/b/cpu.cfs_quota_us": "-1", "cpu/docker/b/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_cores_are_those_of_affinity_and_quota(tmp_path, monkeypatch, groups: str, files: dict[str, str], found: int):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": x for name, x in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores(tmp_path) == found
    assert cores(tmp_path / "elsewhere") == 8


@pytest.mark.parametrize(
    ("chosen", "before", "usable", "spare", "after"),
    [("", 4, 2, 0, 2), ("", 4, 2, 1, 1), ("", 1, 8, 0, 1), ("", 3, 1, 1, 1), ("4", 4, 2, 1, 4)],
)
def test_what_the_user_chose_stays(monkeypatch, chosen: str, before: int, usable: int, spare: int, after: int):
    monkeypatch.setattr("nerfkit.threads.cores", lambda: usable)
    monkeypatch.setattr("os.environ", {key: x for key, x in os.environ.items() if key != "OMP_NUM_THREADS"})
    os.environ |= {"OMP_NUM_THREADS": chosen} if chosen else {}
    try:
        torch.set_num_threads(before)
        limit_threads(spare)
        assert torch.get_num_threads() == after
    finally:
        torch.set_num_threads(1)
