# SPDX-License-Identifier: Apache-2.0
"""What tests of readers share: folders of empty files, poses at random, refusals, and files damaged at random."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nerfkit.data.cameras.lens_models import MODELS
from nerfkit.data.capture import Capture
from nerfkit.errors import SceneError

VALUES = [None, True, -1, 0, 1e300, 10**400, float("nan"), "", "text", "1.5", [], [[]], {}, "/", "\0", "\ud800"]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def random_poses(count: int, generator: np.random.Generator) -> np.ndarray:
    rotation = np.linalg.qr(generator.normal(size=(count, 3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))[:, None, None]
    return np.concatenate([rotation, generator.normal(size=(count, 3, 1))], axis=2)


def as_binary(folder: Path) -> None:
    """Turn a text model of COLMAP's, as nerfkit writes it, into a binary one."""
    parts = {}
    for name in ("cameras", "images", "points3D"):
        file = folder / f"{name}.txt"
        parts[name] = [line.split() for line in file.read_text().splitlines()[1:]]
        file.unlink()
    cameras = [
        struct.pack("<IiQQ", int(camera_id), MODELS[model].number, int(width), int(height))
        + struct.pack(f"<{len(params)}d", *map(float, params))
        for camera_id, model, width, height, *params in parts["cameras"]
    ]
    images = [
        struct.pack("<I7dI", int(image_id), *map(float, pose), int(camera_id)) + name.encode() + b"\0"
        + struct.pack("<Q", len(seen) // 3)
        + b"".join(struct.pack("<2dq", -1, -1, int(point_id)) for point_id in seen[2::3])
        for (image_id, *pose, camera_id, name), seen in zip(parts["images"][::2], parts["images"][1::2], strict=True)
    ]  # fmt: skip
    points = [
        struct.pack("<Q3d3BdQ", int(point_id), *map(float, x), *map(int, color), float(error), len(track) // 2)
        + struct.pack(f"<{len(track)}I", *map(int, track))
        for point_id, *x, r, g, b, error, track in ([*row[:8], row[8:]] for row in parts["points3D"])
        for color in [(r, g, b)]
    ]
    for name, records in (("cameras", cameras), ("images", images), ("points3D", points)):
        (folder / f"{name}.bin").write_bytes(struct.pack("<Q", len(records)) + b"".join(records))


def assert_short(message: str) -> None:
    assert message.isprintable() and len(message) < 1000, repr(message)


def check_refused(read: Callable[[Path], object], folder: Path, *named: str, error: type = SceneError) -> str:
    """Reading a folder is an error of one line, which is returned, that has all parts `named`."""
    with pytest.raises(error) as caught:
        read(folder)
    message = str(caught.value)
    assert_short(message)
    assert named and all(part in message for part in named), message
    return message


def refusal(read: Callable[[Path], Capture], folder: Path) -> str:
    """Why a capture is not read, in one line, or nothing if it is; no other error may come of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Reading", UserWarning)  # NumPy's, of headers that it mends
        try:
            capture = read(folder)
        except SceneError as error:
            assert_short(str(error))
            return str(error)
    assert all(np.isfinite(image.camera_to_world).all() for image in capture.images)
    assert all(note.text.isprintable() for note in capture.notes)
    if capture.points is not None:
        assert np.isfinite(capture.points.positions).all()
        assert capture.points.track_lengths.sum() == len(capture.points.views)
        assert (capture.points.views < len(capture.images)).all() and (capture.points.views >= 0).all()
    return ""


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """A few bytes changed, cut out or doubled."""
    for _ in range(generator.integers(1, 4)):
        start, length = int(generator.integers(len(content))), int(generator.integers(1, 12))
        part = content[start : start + length]
        flipped = bytes([part[0] ^ 1 << int(generator.integers(8))]) + part[1:]
        part = [flipped, generator.bytes(len(part)), b"", part + part][generator.choice(4, p=[0.7, 0.1, 0.1, 0.1])]
        content = content[:start] + part + content[start + length :] or b"0"
    return content


def with_another_value(content, generator: np.random.Generator) -> None:
    """Put something else in a random place of what was JSON."""
    place = content
    while True:
        key = generator.choice(list(place)) if isinstance(place, dict) else int(generator.integers(len(place)))
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or generator.random() < 0.2:
            place[key] = VALUES[generator.integers(len(VALUES))]
            return
        place = inner
