# SPDX-License-Identifier: Apache-2.0
"""The folder `sparse`: models, databases and a record, of which only what nerfkit wrote is ever changed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from nerfkit.data.sfm.plan import ATTEMPTS, Record
from nerfkit.errors import SceneError, UserError
from nerfkit.files import OwnFolder
from nerfkit.reading import read_regular, shown

KIND = "COLMAP model of photographs"
RECORD = "solved.json"
MODEL_FILES = ("cameras.bin", "images.bin", "points3D.bin", "rigs.bin", "frames.bin")
MODEL, PARTIAL, IMAGES = "0", "partial", "work-images"  # a model of enough photographs; one of fewer; readable copies


class ModelFolder(OwnFolder):
    """The folder `sparse`, claimed; raises SceneError if it holds a model that nerfkit did not make."""

    def __init__(self, path: Path):
        super().__init__(path, KIND)
        try:
            self.claim()
        except UserError as error:
            if any((path / MODEL / name).exists() for name in ("cameras.bin", "cameras.txt")):
                raise SceneError(
                    f"{shown(path)} holds a COLMAP model already, which nerfkit did not make: read that, or choose "
                    "another folder for the output"
                ) from None
            raise SceneError(str(error)) from None

    def read_record(self) -> Record | None:
        """What the folder is made of; None if it does not say it."""
        if not self.owns(RECORD):
            return None
        try:
            return msgspec.json.decode(read_regular(self.path / RECORD, 2**28, "record", SceneError), type=Record)
        except (SceneError, msgspec.DecodeError):
            return None

    def write_record(self, record: Record) -> None:
        """Say what the folder is made of."""
        self.write(RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")

    def is_finished(self) -> bool:
        """Whether a model's files are there: a folder gets its name when they are written."""
        return any((self.path / place / MODEL_FILES[0]).is_file() for place in (MODEL, PARTIAL))

    def rows(self, database: str, question: str) -> list[tuple]:
        """Rows of a database that another process may be writing; none if it is not there yet."""
        path = self.path / database
        if not path.exists():
            return []
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
                return connection.execute(question).fetchall()
        except sqlite3.Error:  # its tables are not there yet
            return []

    def count(self, database: str, table: str) -> int:
        """How many rows a table of a database has."""
        return next((number for (number,) in self.rows(database, f"select count(*) from {table}")), 0)

    def cameras(self, database: str) -> dict[str, int]:
        """Cameras by the names of the images whose features are there."""
        return dict(self.rows(database, "select name, camera_id from images join keypoints using (image_id)"))

    def closed(self, database: str) -> Path:
        """A database with all that is written in its one file."""
        path = self.path / database
        try:
            with closing(sqlite3.connect(path, timeout=5)) as connection:
                connection.execute("pragma wal_checkpoint(truncate)")
        except sqlite3.Error as error:
            raise SceneError(f"{shown(path)} cannot be read: {error}; delete it to begin again") from None
        return path

    def place(self, best: Path, name: str) -> None:
        """Move a finished model to its place."""
        self.note(f"{name}/")
        os.rename(best, self.path / name)

    def clear(self, keep: tuple[str, ...] = ()) -> None:
        """Delete what nerfkit made in the folder."""
        self.remove_work()
        self.remove_models()
        super().clear(keep)

    def remove_models(self) -> None:
        """Delete the finished models."""
        for name in (MODEL, PARTIAL):
            self._remove_model(name)

    def remove_work(self) -> None:
        """Delete what only the work needs."""
        for name in ATTEMPTS:
            self._remove_attempt(f"work-{name}")
        mirror = self.path / IMAGES
        if f"{IMAGES}/" in self.names() and mirror.is_dir() and not mirror.is_symlink():
            shutil.rmtree(mirror)  # links and copies
        for name in ("global.db", "affine.db"):
            self.remove_database(name)

    def remove_database(self, name: str) -> None:
        """Delete a database with the files beside it."""
        if name in self.names():
            for suffix in ("", "-wal", "-shm"):
                (self.path / f"{name}{suffix}").unlink(missing_ok=True)

    def fresh(self, name: str) -> Path:
        """An empty folder for an attempt's models."""
        self._remove_attempt(name)
        self.note(f"{name}/")
        (self.path / name).mkdir()
        return self.path / name

    def _remove_attempt(self, name: str) -> None:
        """Delete an attempt's models and their folder."""
        path = self.path / name
        if f"{name}/" in self.names() and path.is_dir() and not path.is_symlink():
            for model in path.iterdir():
                self._remove_model(f"{name}/{model.name}")
            path.rmdir()

    def _remove_model(self, name: str) -> None:
        """Delete the files of a model, and its folder if nothing else is in it; raises SceneError if there is."""
        path = self.path / name
        if not path.is_dir() or path.is_symlink():
            return
        if f"{name.partition('/')[0]}/" not in self.names():
            raise SceneError(f"{shown(path)} is there, and nerfkit did not write it; move it away")
        for file in MODEL_FILES:
            (path / file).unlink(missing_ok=True)
        try:
            path.rmdir()
        except OSError:
            raise SceneError(f"{shown(path)} holds files that nerfkit did not write; move them away") from None
