# SPDX-License-Identifier: Apache-2.0
"""Depths and normals of views as EXR and NPZ; what is missing."""

import json
import sys

import numpy as np
import pytest

from nerfkit.errors import UserError
from nerfkit.export import images
from tests.balls import CENTER, RADIUS, call, cameras, frame, write_run
from tests.naming import raises_naming


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("export") / "run")


def test_depths_in_the_units_of_the_files(run, tmp_path):
    call(run, "depth", "--out", tmp_path / "d", "--split", "test", "--formats", "npz")
    values = dict(np.load(tmp_path / "d" / "held_out_0.npz"))
    row, column = 20, 21  # the ray to the centre of the ball
    assert values["depth_median_ray"][row, column] == pytest.approx((2.5 - RADIUS) / 0.25, rel=0.01)
    eye = frame().to_input(cameras().positions[0].double().numpy())
    towards = (eye - frame().to_input(CENTER)) / np.linalg.norm(eye - frame().to_input(CENTER))
    assert values["normal"][row, column] @ towards > 0.99 and values["opacity"][0, 0] == 0
    assert json.loads((tmp_path / "d" / "export.json").read_text())["views"] == ["held_out_0", "held_out_1"]


def test_exr_holds_the_same_as_float32(run, tmp_path):
    exr = pytest.importorskip("OpenEXR")
    call(run, "depth", "--out", tmp_path / "d", "--split", "test", "--formats", "npz,exr", "--depth", "median")
    values = dict(np.load(tmp_path / "d" / "held_out_1.npz"))
    with exr.File(str(tmp_path / "d" / "held_out_1.exr"), separate_channels=True) as file:
        channels = {name: channel.pixels for name, channel in file.channels().items()}
    assert set(channels) == {"R", "G", "B", "A", "Z", "N.X", "N.Y", "N.Z"}
    assert all(channel.dtype == np.float32 for channel in channels.values())
    assert (channels["Z"] == values["depth_median_z"]).all() and (channels["A"] == values["opacity"]).all()
    assert (channels["N.Y"] == values["normal"][..., 1]).all()
    assert channels["G"] == pytest.approx(values["rgb"][..., 1] ** 2.2, abs=0.02)


def test_a_killed_export_of_images_goes_on(run, tmp_path, monkeypatch):
    made, whole = [], images.image_bytes

    def until_two(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return whole(*arguments)

    arguments = ("depth", "--out", tmp_path / "d", "--split", "train", "--formats", "npz")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(images, "image_bytes", until_two)
        call(run, *arguments)
    first, last = (tmp_path / "d" / f"photo_{view}.npz" for view in (0, 13))
    began = first.stat().st_mtime_ns
    call(run, *arguments)
    assert first.stat().st_mtime_ns == began and last.exists()
    with raises_naming(UserError, "--overwrite"):
        call(run, *arguments)


def test_what_is_missing_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with raises_naming(UserError, "OpenEXR", 'pip install "nerfkit[export]"'):
        call(run, "depth", "--out", tmp_path / "d", "--split", "test")
