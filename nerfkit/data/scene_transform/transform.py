# SPDX-License-Identifier: Apache-2.0
"""SceneTransform: the one similarity between the files' coordinates and the model's, and how far the scene reaches.

    model = scale * rotation @ (input - center)

In the model's frame +z is up, the centre of interest is the origin, and its radius is 1, or the box of an object has a
usual size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from nerfkit.data.capture import Note, notes_of, texts
from nerfkit.errors import RunError, SceneError
from nerfkit.safe_io import printable

Kind = Literal["object", "forward", "inward", "walk-through"]  # see nerfkit.data.scene_transform
SHAPES = {"rotation": (3, 3), "center": (3,), "box": (2, 3), "up": (3,)}


@dataclass(frozen=True, eq=False)
class SceneTransform:
    """A similarity, and the scene in the frame that it leads to (lengths there are called model units)."""

    rotation: np.ndarray  # [3, 3] float64, of determinant 1
    center: np.ndarray  # [3] float64, input frame: the model's origin
    scale: float  # model units of one input unit
    kind: Kind
    near: float  # nothing is nearer to a camera [model units]
    far: float  # nothing that matters is farther from a camera [model units]
    box: np.ndarray  # [2, 3] float64, lowest and highest corner, model frame: where a sampler in a box looks
    up: np.ndarray  # [3] float64, unit, model frame
    notes: tuple[Note, ...] = ()  # what was measured, and what each value follows from

    def to_model(self, what: np.ndarray) -> np.ndarray:
        """Poses [..., 3, 4] or points [..., 3] of the input in the model's frame."""
        what = np.array(what, dtype=np.float64)
        if self.is_identity:  # not even the sign of a zero changes
            return what
        if what.shape[-2:] == (3, 4):
            return np.concatenate([self.rotation @ what[..., :3], self.to_model(what[..., 3])[..., None]], axis=-1)
        return self.scale * (what - self.center) @ self.rotation.T

    def to_input(self, what: np.ndarray) -> np.ndarray:
        """The inverse of `to_model`."""
        what = np.array(what, dtype=np.float64)
        if self.is_identity:
            return what
        if what.shape[-2:] == (3, 4):
            return np.concatenate([self.rotation.T @ what[..., :3], self.to_input(what[..., 3])[..., None]], axis=-1)
        return what @ self.rotation / self.scale + self.center

    def directions_to_input(self, directions: np.ndarray) -> np.ndarray:
        """Directions [..., 3] of the model's frame in the input's, of the same lengths."""
        return directions @ self.rotation

    def distance_to_input(self, distance: Any) -> Any:
        """Lengths of model units in the input's."""
        return distance / self.scale

    def matrix(self) -> np.ndarray:
        """[4, 4] from homogeneous points of the input to those of the model."""
        matrix = np.eye(4)
        matrix[:3, :3] = self.scale * self.rotation
        matrix[:3, 3] = -self.scale * self.rotation @ self.center
        return matrix

    def warnings(self) -> list[str]:
        return texts(self.notes, "warning")

    def to_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self, enc_hook=lambda array: array.tolist())

    @staticmethod
    def from_json(content: Any, where: str = "transform") -> SceneTransform:
        """The inverse of `to_json`; raises RunError that names `where` and the key."""
        to_array = lambda _, value: np.array(value, dtype=np.float64)  # noqa: E731
        try:
            transform = msgspec.convert(content, SceneTransform, dec_hook=to_array)
        except (msgspec.ValidationError, OverflowError) as error:
            raise RunError(f"{where} is no scene transform: {printable(str(error))}") from None
        for name, shape in SHAPES.items():
            values = getattr(transform, name)
            if values.shape != shape or not np.isfinite(values).all():
                wanted = f"{' x '.join(map(str, shape))} finite numbers"
                raise RunError(f"{where}: '{name}' must be {wanted}, got {values.tolist()!r:.80}")
        rotation = transform.rotation
        if np.abs(rotation @ rotation.T - np.eye(3)).max() > 1e-6 or np.linalg.det(rotation) < 0:
            raise RunError(f"{where}: 'rotation' must have orthogonal unit vectors as rows and not mirror")
        if abs(np.linalg.norm(transform.up) - 1) > 1e-6:
            raise RunError(f"{where}: 'up' must have length 1, got {transform.up.tolist()}")
        check_extent(transform.scale, transform.near, transform.far, transform.box, where, RunError)
        return transform

    @property
    def is_identity(self) -> bool:
        """Whether the model's coordinates are the files'."""
        return self.scale == 1 and not self.center.any() and bool((self.rotation == np.eye(3)).all())


def identity_transform(box: np.ndarray, up: tuple[float, float, float] = (0.0, 0.0, 1.0)) -> SceneTransform:
    """The frame of an object whose box [2, 3] is that of its files; raises SceneError for corners out of order."""
    near, far = 0.0, 1e10
    check_extent(1.0, near, far, box, "transform", SceneError)
    notes = notes_of(
        "kind object: the coordinates of the model are those of the files",
        f"box {corner_text(box)}, near {near:g}, far {far:g}",
    )
    return SceneTransform(np.eye(3), np.zeros(3), 1.0, "object", near, far, box, unit(up), notes)


def check_extent(scale: float, near: float, far: float, box: np.ndarray, where: str, error: type[Exception]) -> None:
    if not 0 < scale < math.inf:
        raise error(f"{where}: 'scale' must be a number above 0, got {scale}")
    if not 0 <= near < far < math.inf:
        raise error(f"{where}: 'near' ({near:g}) must be at least 0 and below 'far' ({far:g})")
    if not (np.isfinite(box).all() and (box[0] < box[1]).all()):
        raise error(f"{where}: 'box' must hold the lowest, then the highest corner, got {box.tolist()}")


def unit(vector: Any) -> np.ndarray:
    """A direction [3] as float64 of length 1."""
    vector = np.array(vector, dtype=np.float64)
    return vector / np.linalg.norm(vector)


def vector_text(vector: np.ndarray) -> str:
    """A vector [3] for a line of text; of a place far from the origin, all digits before the point, and some behind."""
    return f"({', '.join(f'{value:.4g}' if abs(value) < 1e4 else f'{value:.10g}' for value in vector)})"


def corner_text(box: np.ndarray) -> str:
    return f"{vector_text(box[0])} to {vector_text(box[1])}"
