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
from collections.abc import Callable, Iterable
from pathlib import Path

from nerfkit.errors import RunError
from nerfkit.safe_io import printable, read_regular

MARKER = ".nerfkit"  # in each folder of nerfkit: its kind, then the names of nerfkit's files, one per line
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system that has none
MAX_MARKER = 2**26  # bytes
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")  # names of files that are being written


def atomic_write(path: Path, content: str | bytes | Callable[[Path], None], keep: Path | None = None) -> None:
    """Write `content` to a temporary file and rename it to `path`, which is the old or the new file at every moment.

    A function writes the temporary file itself. The old file stays as `keep`, if that is given. Text is UTF-8. No link
    is followed (a function has to see to that itself), no folder created. Raises RunError; `path` is then unchanged.
    """
    temporary, kept = _unique_name(path), _unique_name(keep or path)
    try:
        with open(temporary, "xb") as file:  # x: not through an existing link
            if not callable(content):
                file.write(content.encode() if isinstance(content, str) else content)
        if callable(content):
            content(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            try:
                os.link(path, kept)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, kept)
            os.replace(kept, keep)
        os.replace(temporary, path)
    except (OSError, UnicodeError) as error:
        raise failed("write", path, error) from None
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
        raise failed("write", path, error) from None


def failed(act: str, path: Path, error: Exception, then: str = "") -> RunError:
    return RunError(f"cannot {act} {printable(path)}: {getattr(error, 'strerror', None) or error}{then}")


class OwnFolder:
    """A folder that nerfkit created, or found empty, and put its marker into.

    A file's name is in the marker before the file exists. Other files in the folder are never changed.
    """

    _lock: int | None = None  # the folder, opened

    def __init__(self, path: str | Path, kind: str):
        # The system takes new/../old for a folder only once `new` is there: what was judged would be another folder.
        self.path = Path(os.path.realpath(path) if ".." in Path(path).parts else path)
        self.kind = kind
        self.names: set[str] = set()  # in the marker, whether there are such files or not; folders end in a slash
        self.whole: set[str] = set()  # files that this process has written, or read and found whole

    def claim(self, only_check: bool = False) -> bool:
        """Create the folder, or use an empty one, and mark it, or only check that: whether nerfkit owned it already.

        Raises RunError if it holds other files, or is of another kind, or cannot be made or written to. A check leaves
        nothing behind.
        """
        try:
            if not only_check:
                self.path.mkdir(parents=True, exist_ok=True)
            kind, self.names = read_marker(self.path, self.kind)
            place, probes = self.path, f".{MARKER}."
            while not os.path.exists(place):
                place = place.absolute().parent
            if not kind and place == self.path and any(not name.startswith(probes) for name in os.listdir(place)):
                raise RunError(
                    f"{self.path} holds other files or folders, which nerfkit does not change; "
                    "choose another folder, such as a new one in it, or empty this one"
                )
            os.rmdir(tempfile.mkdtemp(prefix=probes, dir=place))
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            raise failed("use the folder", self.path, error, "; choose another") from None
        if not (kind or only_check):
            self.clear(())
        return bool(kind)

    def note(self, name: str, is_there: bool = False) -> None:
        """List `name` as nerfkit's, before it is written, or where it `is_there` because a library has just made it.

        Raises RunError if `name` is none of a file, the folder is gone, or another file has that name.
        """
        if not is_name(name):
            raise RunError(f"{printable(name)!r} cannot be the name of a file or folder in {self.path}; rename it")
        is_there_still = os.path.exists(self.path / MARKER)
        if self._lock is not None and is_there_still:  # it may have been moved, and another be in its place
            is_there_still = os.path.samestat(os.fstat(self._lock), os.stat(self.path))
        if not is_there_still:
            raise RunError(f"{printable(self.path)} or its file {MARKER} is gone: nothing can be saved there")
        if name not in self.names:
            if not (is_there or name.endswith("/")) and os.path.lexists(self.path / name):
                raise RunError(f"{printable(self.path / name)} exists, and nerfkit did not write it; move it away")
            append_line(self.path / MARKER, name)
            self.names.add(name)

    def write(self, name: str, content: str | bytes | Callable[[Path], None], keep: str | None = None) -> None:
        """Write the file `name` as `atomic_write` does; the old one stays as `keep`. Raises RunError."""
        self.note(name)
        if keep is not None:
            self.note(keep)
        atomic_write(self.path / name, content, self.path / keep if keep else None)
        self.whole.add(name)

    def append(self, name: str, line: str) -> None:
        self.note(name)
        append_line(self.path / name, line)

    def child(self, name: str, kind: str) -> OwnFolder:
        """The folder `name` in this one, claimed; raises RunError if it holds what nerfkit did not write."""
        self.note(f"{name}/")
        folder = OwnFolder(self.path / name, kind)
        folder.claim()
        return folder

    def owns(self, name: str) -> bool:
        return name in self.names and (self.path / name).exists()

    def clear(self, names: Iterable[str] | None = None) -> None:
        """Delete nerfkit's files of these names, or all but the marker, and what killed processes left."""
        _, self.names = read_marker(self.path, self.kind)
        _delete_leftovers(self.path, self.names)
        chosen = self.names if names is None else self.names.intersection(names)
        for name in sorted(chosen, reverse=True):
            if name.endswith("/"):
                _clear_child(self.path, name)
            elif "/" not in name:  # in this folder, whatever the marker says
                _delete(self.path / name)
        self.names -= chosen
        atomic_write(self.path / MARKER, "\n".join([f"nerfkit {self.kind}", *sorted(self.names)]) + "\n")

    def lock(self) -> None:
        """Lock the folder for this process, and delete what killed ones left; raises RunError if it is locked."""
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
                raise failed("lock", self.path, error, "; choose another folder") from None
        _delete_leftovers(self.path, self.names)

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    __del__ = unlock


def read_marker(folder: Path, wanted: str = "") -> tuple[str, set[str]]:
    """Kind and names, "" and none without a marker; raises RunError for another file, or not of the kind `wanted`."""
    file = folder / MARKER
    if not os.path.lexists(file):
        return "", set()
    content = b"" if file.is_symlink() else read_regular(file, MAX_MARKER, "the marker", RunError)
    first, *names = content.decode(errors="replace").split("\n")
    word, _, kind = first.partition(" ")
    if word != "nerfkit" or not kind:
        raise RunError(f"{file} is not the file that nerfkit writes; choose another folder")
    if wanted not in ("", kind):
        raise RunError(f"{folder} holds a {kind}, and no {wanted}; choose another folder")
    return kind, set(filter(is_name, names))


def is_name(name: str) -> bool:
    """Whether a text can be the name of a file within a folder, or of a folder with a slash behind it."""
    parts = name.removesuffix("/").split("/")
    return name.isprintable() and all(part not in ("", ".", "..") for part in parts)


def _delete(file: Path) -> None:
    """Delete a file of nerfkit's; raises RunError if that fails, as it would look like a new one."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise failed("delete", file, error, "; nothing new is written") from None


def _delete_leftovers(folder: Path, names: set[str]) -> None:
    """Delete temporary files that killed processes left of those names."""
    for path in folder.iterdir():
        temporary = TEMPORARY.fullmatch(path.name)
        if temporary and temporary[1] in names:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _clear_child(parent: Path, name: str) -> None:
    """Clear a folder within another, and delete it unless a user's files are in it."""
    path = parent / name
    if path.resolve() != parent.resolve() / name:
        return  # through a link, to somewhere else: a marker may come from anywhere
    try:
        kind, _ = read_marker(path)
    except RunError:
        return
    if kind in ("", "run"):
        return  # of a user, who may have put another run there
    OwnFolder(path, kind).clear()
    _delete(path / MARKER)
    with contextlib.suppress(OSError):  # a folder that is not empty
        while path != parent:
            path.rmdir()
            path = path.parent


def _unique_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
