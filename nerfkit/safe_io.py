# SPDX-License-Identifier: Apache-2.0
"""Reading untrusted files: regular files of bounded size, UTF-8 in every locale, JSON.

Every failure is a one-line error of the class that the caller gives.
"""

import difflib
import json
import os
import re
import shlex
import stat
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from nerfkit.errors import UserError

TEXT_LIMIT = 2**28  # bytes
ALIKE = 0.75  # of difflib's ratio, from where two names may be one misspelt: as mesh and mehs
DIGITS = 300  # of an integer: more do not fit into a float
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def open_regular(path: Path, limit_bytes: int, what: str, error: type[UserError]) -> BinaryIO:
    """The open file `path`, called `what` in messages; never waits for a pipe or a device."""
    try:
        status = os.stat(path)  # before opening, which has side effects on a device
    except (OSError, ValueError) as problem:  # ValueError: NUL, or a name that cannot be encoded
        raise _unreadable(path, what, error, problem) from None
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise error(f"{what} {printable(path)} is {kind}, not a regular file")
    if status.st_size > limit_bytes:
        raise error(f"{what} {printable(path)} has {status.st_size} bytes, more than the limit of {limit_bytes}")
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as problem:
        raise _unreadable(path, what, error, problem) from None


def read_regular(path: Path, limit_bytes: int, what: str, error: type[UserError] = UserError) -> bytes:
    """All bytes of the regular file `path`, at most `limit_bytes`."""
    with open_regular(path, limit_bytes, what, error) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            content = file.read(size + 1)
        except OSError as problem:
            raise _unreadable(path, what, error, problem) from None
    if len(content) != size:  # also files of /proc, whose size is reported as 0
        raise error(f"{what} {printable(path)} changed while it was read")
    return content


def read_text_utf8(path: Path, error: type[UserError], what: str = "file", limit_bytes: int = TEXT_LIMIT) -> str:
    """The text of `path`, with or without a byte order mark."""
    try:
        return read_regular(path, limit_bytes, what, error).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        place = f"byte 0x{problem.object[problem.start]:02x} at position {problem.start}"
        raise error(f"{what} {printable(path)} is not UTF-8 text ({place}); save it as UTF-8") from None


def read_json(path: Path, error: type[UserError], what: str = "file", limit_bytes: int = TEXT_LIMIT) -> Any:
    """What the JSON file `path` holds; its NaN and Infinity are numbers."""
    text = read_text_utf8(path, error, what, limit_bytes)
    try:
        return json.loads(text, parse_int=_integer)
    except ValueError as problem:
        raise error(f"{what} {printable(path)} is not valid JSON: {problem}") from None
    except RecursionError:
        raise error(f"{what} {printable(path)} is not valid JSON: it is nested too deeply") from None


def native_name(name: str) -> str:
    """A file's name from a UTF-8 text as the system's calls take it in any locale; ValueError if it cannot be one."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a message on an unknown `name`: the one of the `known` names that is spelt alike; or nothing."""
    near = difflib.get_close_matches(name[:100], known, n=1, cutoff=ALIKE)
    return f"; did you mean {printable(f'{prefix}{near[0]}')}?" if near else ""


def chosen(option: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Which of the `known` names an option's text has, with commas between."""
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"{', '.join(map(repr, unknown))} is unknown" if unknown else "nothing is named"
        raise UserError(f"{option}: {what}; use some of {','.join(known)}")
    return names


def missing_hint(path: Path) -> str:
    """That a path does not exist, and which name beside it might be meant, or else that it is to be checked."""
    try:
        meant = did_you_mean(path.name, os.listdir(path.parent), f"{path.parent}{os.sep}")
    except OSError:
        meant = ""
    return f"does not exist{meant or '; check the path'}"


def shell_join(*words: object) -> str:
    return " ".join(shlex.quote(str(word)) for word in words)


def nearest(file: Path, folders: Iterable[Path] = (), names: Iterable[str] = ()) -> Path | None:
    """`file`, or the one that it means: beside it, or the longest end of its path that is in one of the `folders`.

    Names may differ in case and Unicode form; none is taken where several do. Paths of Windows are paths. The last part
    may be any of `names`, if there are some.
    """
    if os.path.exists(file):  # which raises nothing, however long the name
        return file
    *_, end = re.split(r"(?:^|.*[\\/])\.\.[\\/]", str(file))  # what is after the last ..
    *parts, last = re.split(r"[\\/]+", end)
    ends = (parts[start:] for start in range(len(parts) + 1))
    places = (place for end in ends for folder in folders if (place := _alike(folder, end)) is not None)
    found = (alike(place, name) for place in chain([file.parent], places) for name in names or [last])
    return next(filter(None, found), None)


def alike(folder: Path, name: str) -> Path | None:
    """The file `name` below a folder, or the one there of that name in another case or Unicode form."""
    file = _alike(folder, name.split("/"))
    return file if file is not None and os.path.isfile(file) else None


def _alike(place: Path, parts: list[str]) -> Path | None:
    for part in filter(None, parts):
        if not os.path.exists(place / part):
            try:
                names = _names_by_form(place, os.stat(place).st_mtime_ns).get(_form(part), [])
            except (OSError, ValueError):
                return None
            if len(names) != 1:
                return None
            part = names[0]
        place /= part
    return place


def _form(name: str) -> str:
    """What names have in common that differ in case and Unicode form alone."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


@lru_cache(maxsize=64)
def _names_by_form(folder: Path, changed: int) -> dict[str, list[str]]:
    """Names in a folder that was `changed` then, by their common form."""
    names: dict[str, list[str]] = {}
    for name in os.listdir(folder):
        names.setdefault(_form(name), []).append(name)
    return names


def printable(text: str | os.PathLike, limit: int = 200) -> str:
    """A path or a text for a message: one line of printable characters, its middle left out if it is long."""
    text = str(text)
    if len(text) > limit:
        text = f"{text[: limit // 2]}...{text[-limit // 2 :]} ({len(text)} characters)"
    return text if text.isprintable() else ascii(text)[1:-1]


def first_of(names: Iterable[str], count: int = 3) -> str:
    """The first names in order, for a note."""
    ordered = sorted(names)
    return ", ".join(printable(name, 60) for name in ordered[:count]) + ", ..." * (len(ordered) > count)


def harmless(message: str) -> str:
    """A message without what a terminal would obey; ends of lines stay, and bytes of names that are in no encoding."""
    if message.isprintable():
        return message
    kept = (c if c.isprintable() or c == "\n" or "\udc80" <= c <= "\udcff" else ascii(c)[1:-1] for c in message)
    return "".join(kept)


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits is too large")
    return int(digits)


def _unreadable(path: Path, what: str, error: type[UserError], problem: Exception) -> UserError:
    if isinstance(problem, FileNotFoundError):
        return error(f"{what} '{printable(path)}' {missing_hint(path)}")
    return error(f"cannot read {what} '{printable(path)}': {getattr(problem, 'strerror', None) or problem}")
