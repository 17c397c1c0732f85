# SPDX-License-Identifier: Apache-2.0
"""Files that matter: whole or not there at all."""

from __future__ import annotations

import os
from pathlib import Path

from nerfkit.errors import RunError


def atomic_write(path: Path, content: str | bytes, keep: Path | None = None) -> None:
    """Write `content` beside `path` and rename it, so that `path` is the old file or the new one, never a part.

    What was at `path` becomes `keep` if one is given. Raises RunError; `path` is then as it was.
    """
    aside = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(aside, path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        _remove(aside)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # its folder is no folder, or cannot be written: nothing was left there
        pass
