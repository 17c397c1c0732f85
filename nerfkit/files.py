# SPDX-License-Identifier: Apache-2.0
"""Atomic writes of files, only in folders that nerfkit owns."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import tempfile
import warnings
from pathlib import Path

from nerfkit.errors import RunError
from nerfkit.reading import shown

try:
    import fcntl
except ImportError:  # Windows, where two processes in one folder are not noticed
    fcntl = None

MARKER = ".nerfkit"  # in each folder of nerfkit: its kind, then the names of nerfkit's files, one per line
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system that has none
MAX_MARKER = 2**26  # bytes
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")  # names of files that are being written


def atomic_write(path: Path, content: str | bytes, keep: Path | None = None) -> None:
    """Write `content` to a temporary file and rename it to `path`, which is the old or the new file at every moment.

    The old file stays as `keep`, if that is given. Text is UTF-8. No link is followed, no folder created. Raises
    RunError; `path` is then unchanged.
    """
    temporary, kept_temporary = _unique_name(path), _unique_name(keep or path)
    try:
        with open(temporary, "xb") as file:  # x: not through an existing link
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            _link_or_copy(path, kept_temporary)
            os.replace(kept_temporary, keep)
        os.replace(temporary, path)
    except (OSError, UnicodeError) as error:
        raise RunError(f"cannot write {shown(path)}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        _remove_temporary(temporary)
        _remove_temporary(kept_temporary)


def append_line(path: Path, line: str) -> None:
    """Append a line to a UTF-8 text file, also after an incomplete line; follows no link, raises RunError."""
    try:
        with open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_FOLLOW, 0o666), "ab+") as file:
            is_torn = file.tell() > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            file.write(("\n" * is_torn + f"{line}\n").encode())
    except (OSError, UnicodeError) as error:
        raise RunError(f"cannot write {shown(path)}: {getattr(error, 'strerror', None) or error}") from None


class OwnFolder:
    """A folder that nerfkit created, or found empty, and put its marker into.

    A file's name is in the marker before the file exists. Other files in the folder are never changed.
    """

    def __init__(self, path: Path, kind: str):
        self.path, self.kind = path, kind
        self.written: set[str] = set()  # through this object
        self._listed: set[str] = set()  # in the marker
        self._lock: int | None = None

    def check_free(self) -> bool:
        """Whether nerfkit owns the folder already; raises RunError if it holds other files or is not usable."""
        try:
            kind, names = self._read_marker()
        except FileNotFoundError:
            kind, names = "", []
        if kind == self.kind:
            self._listed = set(names)
            return True
        if kind:
            raise RunError(f"{self.path} holds a {kind} of nerfkit's, not a {self.kind}; choose another folder")
        try:
            if any(not path.name.startswith(f".{MARKER}.") for path in self.path.iterdir()):  # left by a killed process
                raise RunError(
                    f"{self.path} holds files that nerfkit did not write and does not change; "
                    "choose another folder, or empty this one"
                )
        except FileNotFoundError:
            return False  # it can be created
        except OSError as error:
            raise RunError(f"cannot use the folder {shown(self.path)}: {error.strerror}; choose another") from None
        return False

    def claim(self) -> None:
        """Create the folder, or use an empty one, and mark it; raises RunError if it holds other files."""
        if self.check_free():
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_made(error) from None
        self.mark()

    def check_writable(self) -> None:
        """Raise RunError if the folder cannot be created or written to; nothing is left behind."""
        place = next(path for path in (self.path, *self.path.absolute().parents) if os.path.exists(path))
        try:
            os.rmdir(tempfile.mkdtemp(prefix=f".{MARKER}.", dir=place))
        except OSError as error:
            raise self._not_made(error) from None

    def _not_made(self, error: OSError) -> RunError:
        return RunError(f"cannot create the folder {shown(self.path)}: {error.strerror}; choose another")

    def mark(self) -> None:
        """Write the marker, whatever else is in the folder."""
        atomic_write(self.path / MARKER, "\n".join([f"nerfkit {self.kind}", *sorted(self._listed)]) + "\n")

    def note(self, name: str) -> None:
        """List `name` as nerfkit's; raises RunError if the folder is gone, or another file has that name."""
        if not (self.path / MARKER).exists() or not self._is_where_it_was():
            raise RunError(
                f"the folder {shown(self.path)} is gone, or its file {MARKER} is: nothing can be saved there"
            )
        if name not in self._listed:
            if not name.endswith("/") and os.path.lexists(self.path / name):
                raise RunError(f"{shown(self.path / name)} exists, and nerfkit did not write it; move it away")
            self.adopt(name)

    def adopt(self, name: str) -> None:
        """List as nerfkit's a file that a library has just made here for it, under a name of the library's choice."""
        if name not in self._listed:
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

    def clear(self, keep: tuple[str, ...] = ()) -> None:
        """Delete nerfkit's files here, except for the marker and the names `keep`."""
        self.remove_leftovers()
        for name in sorted(self._listed - set(keep), reverse=True):
            if name.endswith("/"):
                self._clear_child(name.rstrip("/"))
            elif "/" not in name:  # in this folder, whatever the marker says
                self._delete(name)
        self._listed &= set(keep)
        self.mark()

    def drop(self, names: set[str]) -> None:
        """Delete files of nerfkit's, and forget them."""
        for name in sorted(names & self._listed):
            self._delete(name)
        self._listed -= names
        self.mark()

    def _delete(self, name: str) -> None:
        """Delete a file of nerfkit's; raises RunError if that fails, as it would look like a new one."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise RunError(
                f"cannot delete {shown(self.path / name)}: {error.strerror}; nothing new is written"
            ) from None

    def remove_leftovers(self, but: tuple[str, ...] = ()) -> None:
        """Delete temporary files of killed processes, except for those of the names `but`."""
        for path in self.path.iterdir():
            temporary = TEMPORARY.fullmatch(path.name)
            if temporary and temporary[1] in self._listed and temporary[1] not in but:
                _remove_temporary(path)

    def lock(self) -> None:
        """Lock the folder for this process; raises RunError if another one holds the lock."""
        if fcntl is None or self._lock is not None:
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

    def _is_where_it_was(self) -> bool:
        """Whether the locked folder is still the one at its path: it may have been moved."""
        return self._lock is None or os.path.samestat(os.fstat(self._lock), os.stat(self.path))

    def unlock(self) -> None:
        """Undo `lock`."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        self.unlock()

    def _clear_child(self, name: str) -> None:
        parts = [self.path.joinpath(*Path(name).parts[: n + 1]) for n in range(len(Path(name).parts))]
        if ".." in Path(name).parts or Path(name).is_absolute() or any(p.is_symlink() for p in parts):
            return  # outside of this folder: a marker may come from elsewhere
        folder = OwnFolder(parts[-1], "")
        try:
            folder.kind, names = folder._read_marker()
        except (OSError, RunError):
            return
        if folder.kind == "run":
            return  # another one, put there by a user
        folder._listed = set(names)
        folder.clear()
        folder._delete(MARKER)
        for part in reversed(parts):
            try:
                part.rmdir()  # unless a user's files are in it
            except OSError:
                break

    def _read_marker(self) -> tuple[str, list[str]]:
        """Kind and names; raises FileNotFoundError if there is no marker, RunError if it is not nerfkit's."""
        file = self.path / MARKER
        try:
            if file.is_symlink() or not file.is_file() or file.stat().st_size > MAX_MARKER:
                if not os.path.lexists(file):
                    raise FileNotFoundError
                raise RunError(f"{file} is not the file that nerfkit writes; choose another folder")
            first, *names = file.read_bytes().decode(errors="replace").split("\n")
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            raise RunError(f"cannot use the folder {shown(self.path)}: {getattr(error, 'strerror', error)}") from None
        names = [name for name in names if _is_name(name)]
        word, _, kind = first.partition(" ")
        if word != "nerfkit" or not kind:
            raise RunError(f"{file} is not the file that nerfkit writes; choose another folder")
        return kind, names


def _is_name(name: str) -> bool:
    """Whether a line of a marker can be the name of a file, or of a folder with a slash behind it."""
    parts = name.removesuffix("/").split("/")
    return name.isprintable() and all(part not in ("", ".", "..") for part in parts)


def _unique_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _link_or_copy(path: Path, to: Path) -> None:
    try:
        os.link(path, to)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, to)


def _remove_temporary(path: Path) -> None:
    """Remove a temporary file; one that cannot be is told, for the error that came before it is the one to raise."""
    try:
        if os.path.lexists(path):  # not where the folder is unusable
            path.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"cannot remove the temporary file {shown(path)}: {error.strerror}", stacklevel=2)
