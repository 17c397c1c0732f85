# SPDX-License-Identifier: Apache-2.0
"""Atomic writes of files, only in folders that nerfkit owns."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from nerfkit.errors import RunError
from nerfkit.reading import read_regular, shown

MARKER = ".nerfkit"  # in each folder of nerfkit: its kind, then the names of nerfkit's files, one per line
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system that has none
MAX_MARKER = 2**26  # bytes
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")  # names of files that are being written


def atomic_write(path: Path, content: str | bytes, keep: Path | None = None) -> None:
    """Write `content` to a temporary file and rename it to `path`, which is the old or the new file at every moment.

    The old file stays as `keep`, if that is given. Text is UTF-8. No link is followed, no folder created. Raises
    RunError; `path` is then unchanged.
    """
    temporary, kept = _unique_name(path), _unique_name(keep or path)
    try:
        with open(temporary, "xb") as file:  # x: not through an existing link
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            try:
                os.link(path, kept)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, kept)
            os.replace(kept, keep)
        os.replace(temporary, path)
    except (OSError, UnicodeError) as error:
        raise _not_written(path, error) from None
    finally:
        for left in (temporary, kept):
            with contextlib.suppress(OSError):  # the error that came before is the one to raise
                left.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Append a line to a UTF-8 text file, also after an incomplete line; follows no link, raises RunError."""
    try:
        with open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "ab+") as file:
            is_torn = file.tell() > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            file.write(("\n" * is_torn + f"{line}\n").encode())
    except (OSError, UnicodeError) as error:
        raise _not_written(path, error) from None


class OwnFolder:
    """A folder that nerfkit created, or found empty, and put its marker into.

    A file's name is in the marker before the file exists. Other files in the folder are never changed.
    """

    def __init__(self, path: Path, kind: str):
        self.path, self.kind = path, kind
        self._listed: set[str] = set()  # in the marker
        self.written: set[str] = set()  # by this process
        self._lock: int | None = None

    def check_free(self) -> bool:
        """Whether nerfkit owns the folder already; raises RunError if it holds other files or is not usable."""
        kind, names = self._read_marker()
        if kind == self.kind:
            self._listed = names
            return True
        if kind:
            raise RunError(f"{self.path} is a folder of another kind, {kind}, not {self.kind}; choose another")
        try:
            if any(not path.name.startswith(f".{MARKER}.") for path in self.path.iterdir()):  # left by a killed process
                raise RunError(
                    f"{self.path} holds files that nerfkit did not write and does not change; "
                    "choose another folder, or empty this one"
                )
        except FileNotFoundError:
            pass  # it can be created
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            raise RunError(f"cannot use the folder {shown(self.path)}: {_reason(error)}; choose another") from None
        return False

    def claim(self) -> None:
        """Create the folder, or use an empty one, and mark it; raises RunError if it holds other files."""
        if self.check_free():
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_made(error) from None
        self._mark()

    def check_writable(self) -> None:
        """Raise RunError if the folder cannot be created or written to; nothing is left behind."""
        place = next(path for path in (self.path, *self.path.absolute().parents) if os.path.exists(path))
        try:
            os.rmdir(tempfile.mkdtemp(prefix=f".{MARKER}.", dir=place))
        except OSError as error:
            raise self._not_made(error) from None

    def _not_made(self, error: OSError) -> RunError:
        return RunError(f"cannot create the folder {shown(self.path)}: {error.strerror}; choose another")

    def note(self, name: str, is_there: bool = False) -> None:
        """List `name` as nerfkit's, before it is written, or where it `is_there` because a library has just made it.

        Raises RunError if the folder is gone, or another file has that name.
        """
        moved = self._lock is not None and not _is_same(self._lock, self.path)
        if moved or not (self.path / MARKER).exists():
            raise RunError(f"{shown(self.path)} or its file {MARKER} is gone: nothing can be saved there")
        if name not in self._listed:
            if not (is_there or name.endswith("/")) and os.path.lexists(self.path / name):
                raise RunError(f"{shown(self.path / name)} exists, and nerfkit did not write it; move it away")
            append_line(self.path / MARKER, name)
            self._listed.add(name)

    def write(self, name: str, content: str | bytes, keep: str | None = None) -> None:
        """Write the file `name` atomically; the old one stays as `keep`. Raises RunError."""
        self.note(name)
        if keep is not None:
            self.note(keep)
        atomic_write(self.path / name, content, self.path / keep if keep else None)
        self.written.add(name)

    def append(self, name: str, line: str) -> None:
        """Append a line to the file `name`; raises RunError."""
        self.note(name)
        append_line(self.path / name, line)

    def child(self, name: str, kind: str) -> OwnFolder:
        """The folder `name` in this one, claimed; raises RunError if it holds what nerfkit did not write."""
        folder = OwnFolder(self.path / name, kind)
        folder.claim()
        self.note(f"{name}/")
        return folder

    def names(self) -> set[str]:
        """Names listed as nerfkit's, existing or not; folders end in a slash."""
        return set(self._listed)

    def owns(self, name: str) -> bool:
        """Whether the file `name` exists and is nerfkit's."""
        return name in self._listed and (self.path / name).exists()

    def clear(self, keep: Iterable[str] = ()) -> None:
        """Delete nerfkit's files here, except for the marker and the names `keep`."""
        self.remove_leftovers()
        for name in sorted(self._listed - set(keep), reverse=True):
            if name.endswith("/"):
                self._clear_child(name)
            elif "/" not in name:  # in this folder, whatever the marker says
                self._delete(name)
        self._listed &= set(keep)
        self._mark()

    def remove_leftovers(self, but: tuple[str, ...] = ()) -> None:
        """Delete temporary files of killed processes, except for those of the names `but`."""
        for path in self.path.iterdir():
            temporary = TEMPORARY.fullmatch(path.name)
            if temporary and temporary[1] in self._listed and temporary[1] not in but:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def lock(self) -> None:
        """Lock the folder for this process; raises RunError if another one holds the lock."""
        if self._lock is not None:
            return
        try:
            self._lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            message = f"another process is writing to {self.path}; wait for it, or choose another folder"
            raise RunError(message) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                self.unlock()
                raise RunError(f"cannot lock {shown(self.path)}: {error.strerror}; choose another folder") from None

    def unlock(self) -> None:
        """Undo `lock`."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        self.unlock()

    def _mark(self) -> None:
        atomic_write(self.path / MARKER, "\n".join([f"nerfkit {self.kind}", *sorted(self._listed)]) + "\n")

    def _delete(self, name: str) -> None:
        """Delete a file of nerfkit's; raises RunError if that fails, as it would look like a new one."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise RunError(
                f"cannot delete {shown(self.path / name)}: {error.strerror}; nothing new is written"
            ) from None

    def _clear_child(self, name: str) -> None:
        """Clear a folder in this one, and delete it unless a user's files are in it."""
        path = self.path / name
        if path.resolve() != self.path.resolve() / name:
            return  # through a link, to somewhere else: a marker may come from anywhere
        folder = OwnFolder(path, "")
        try:
            folder.kind, folder._listed = folder._read_marker()
        except RunError:
            return
        if folder.kind in ("", "run"):
            return  # of a user, who may have put another run there
        folder.clear()
        folder._delete(MARKER)
        with contextlib.suppress(OSError):  # a folder that is not empty
            while path != self.path:
                path.rmdir()
                path = path.parent

    def _read_marker(self) -> tuple[str, set[str]]:
        """Kind and names, "" and none without a marker; raises RunError for a file that is none."""
        file = self.path / MARKER
        if not os.path.lexists(file):
            return "", set()
        content = b"" if file.is_symlink() else read_regular(file, MAX_MARKER, "the marker", RunError)
        first, *names = content.decode(errors="replace").split("\n")
        word, _, kind = first.partition(" ")
        if word != "nerfkit" or not kind:
            raise RunError(f"{file} is not the file that nerfkit writes; choose another folder")
        return kind, set(filter(_is_name, names))


def _is_same(opened: int, path: Path) -> bool:
    """Whether the folder that is open is the one at `path` still: it may have been moved, and another be there."""
    return os.path.exists(path) and os.path.samestat(os.fstat(opened), os.stat(path))


def _is_name(name: str) -> bool:
    """Whether a line of a marker can be the name of a file, or of a folder with a slash behind it."""
    parts = name.removesuffix("/").split("/")
    return name.isprintable() and all(part not in ("", ".", "..") for part in parts)


def _unique_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def _not_written(path: Path, error: Exception) -> RunError:
    return RunError(f"cannot write {shown(path)}: {_reason(error)}")
