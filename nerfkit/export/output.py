# SPDX-License-Identifier: Apache-2.0
"""Where exports go: never over what is there, unless asked, and with a JSON that says how each was made."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nerfkit.errors import RunError, UserError
from nerfkit.files import OwnFolder, atomic_write
from nerfkit.reading import shown
from nerfkit.training.run.folder import RunFolder

ABOUT = ".export.json"  # ending of the JSON beside an output
FINISHED, UNFINISHED = "export.json", "unfinished.json"  # in a folder of outputs


class Output:
    """The files `<stem>.<format>` of one export and `<stem>.export.json`, in RUN/export or where the user says.

    Args:
        run: the run folder.
        out: of the user: a file whose ending is one of the formats, a name without ending, or nothing.
        name: of the file, if `out` is empty.
        formats: that are written, endings without the dot; `known` are all of them.
    """

    def __init__(self, run: Path, out: str, name: str, formats: tuple[str, ...], known: tuple[str, ...]):
        self.own: OwnFolder | None = None
        path = Path(out).expanduser() if out else None
        if path is not None and path.suffix[1:].lower() in known:
            formats, path = (path.suffix[1:].lower(),), path.with_suffix("")
        elif path is not None and path.suffix[1:].isalpha():
            raise UserError(f"--out {shown(path)}: the format {path.suffix} is not written, only {', '.join(known)}")
        if path is None:
            self.own = RunFolder.existing(run).child("export", "export")
            path = self.own.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"--out: cannot create the folder {shown(path.parent)}: {error.strerror}") from None
        self.stem, self.formats = path, formats

    @property
    def about(self) -> Path:
        """The JSON."""
        return self.stem.with_name(self.stem.name + ABOUT)

    def file(self, format: str) -> Path:
        """The file of one format."""
        return self.stem.with_name(f"{self.stem.name}.{format}")

    def check(self, overwrite: bool) -> None:
        """Raise RunError if a file is there already, before anything is computed."""
        for file in (*map(self.file, self.formats), self.about):
            if os.path.lexists(file) and (not overwrite or file.is_dir()):
                raise RunError(f"{shown(file)} exists; choose another --out, or replace it with --overwrite")

    def write(self, content: dict[str, bytes], about: dict[str, Any]) -> list[Path]:
        """Write the content of each format and what there is to say about it; the files."""
        files = {self.file(format): data for format, data in content.items()}
        text = json.dumps({"files": [file.name for file in files], **about}, indent=1) + "\n"
        for file, data in {**files, self.about: text}.items():
            if self.own is not None:
                self.own.note(file.name)
            atomic_write(file, data)
        return list(files)


class OutputFolder:
    """A folder of an export: new, empty, or of an unfinished one with the same key, which goes on.

    A finished one is replaced if `overwrite` says so. `export.json`, written last, says how it was made.
    """

    def __init__(self, run: Path, out: str, name: str, overwrite: bool, key: dict[str, Any]):
        if out:
            self.folder = OwnFolder(Path(out).expanduser(), "export")
            self.folder.claim()
        else:
            self.folder = RunFolder.existing(run).child("export", "export").child(name, "export")
        self.folder.lock()
        self.folder.remove_leftovers()
        text = json.dumps(key, sort_keys=True)
        file = self.folder.path / UNFINISHED
        goes_on = self.folder.owns(UNFINISHED) and file.read_text(encoding="utf-8", errors="replace") == text
        if self.folder.owns(FINISHED) and not overwrite:
            self.folder.unlock()
            raise RunError(
                f"{shown(self.folder.path)} holds an export already; choose another --out, or replace it with "
                "--overwrite"
            )
        if not goes_on or self.folder.owns(FINISHED):
            self.folder.clear()
            self.folder.write(UNFINISHED, text)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    def finish(self, about: dict[str, Any]) -> None:
        """Say how the export was made: it is complete."""
        self.folder.write(FINISHED, json.dumps(about, indent=1) + "\n")
        (self.folder.path / UNFINISHED).unlink(missing_ok=True)
        self.folder.unlock()


def formats_of(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of formats with commas between."""
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UserError(f"--formats {text!r}: unknown {', '.join(unknown) or 'nothing'}; choose of {','.join(known)}")
    return names
