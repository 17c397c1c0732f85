# SPDX-License-Identifier: Apache-2.0
"""Messages are tested for what they name (file, option, value, shape, what to type), not for how they are worded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def not_named(text: str, *parts: object) -> list[str]:
    """Those of `parts` that `text` lacks; "4" is not named by 48, 0.4 or x4, and `step` not by `steps`."""
    assert parts, "a test has to say what is named"

    def is_named(part: str) -> bool:
        before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", part) else ""
        after = r"(?!\w|\.\d)" if re.search(r"\w$", part) else ""
        return re.search(before + re.escape(part) + after, text) is not None

    return [str(part) for part in parts if not is_named(str(part))]


def assert_names(text: str, *parts: object) -> None:
    missing = not_named(text, *parts)
    assert not missing, f"{missing} not named in: {text}"


@contextmanager
def raises_mentioning(
    error: type[BaseException] | tuple[type[BaseException], ...], *parts: object
) -> Iterator[pytest.ExceptionInfo]:
    """Require an error of that type whose message names all `parts`."""
    with pytest.raises(error) as caught:
        yield caught
    assert_names(str(caught.value), *parts)


@contextmanager
def warns_naming(category: type[Warning], *parts: object) -> Iterator[pytest.WarningsRecorder]:
    """Require a warning of that type whose message names all `parts`."""
    with pytest.warns(category) as seen:
        yield seen
    texts = [str(w.message) for w in seen if issubclass(w.category, category)]
    assert any(not not_named(text, *parts) for text in texts), f"{parts} not named in: {texts}"
