# SPDX-License-Identifier: Apache-2.0
"""Notes: what a user should know of a scene, a line each, and whether it asks for something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple


class Note(NamedTuple):
    """A line of text."""

    kind: Literal["info", "warning"]
    text: str

    def __str__(self) -> str:
        return f"warning: {self.text}" if self.kind == "warning" else self.text


def notes_of(*lines: str | Note) -> tuple[Note, ...]:
    """Notes of `lines`, of which plain text only informs."""
    return tuple(line if isinstance(line, Note) else Note("info", line) for line in lines)


def as_warnings(lines: Iterable[str]) -> list[Note]:
    return [Note("warning", line) for line in lines]


def texts(notes: Iterable[Note], kind: str) -> list[str]:
    """Texts of the notes of one kind."""
    return [note.text for note in notes if note.kind == kind]
