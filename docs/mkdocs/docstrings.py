# SPDX-License-Identifier: Apache-2.0
"""Docstrings as Markdown: their equations, examples and closing lines have a form that plain Python tools read."""

from __future__ import annotations

import html
import re
import textwrap
from typing import Any

import griffe

MATH = re.compile(r"^\.\. math::\n((?:[ \t]+\S.*\n|\n(?=[ \t]+\S))+)", re.M)
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.M)
ARGUMENTS = re.compile(r"^Args:\n((?:[ \t]+\S.*\n)+)", re.M)
NAMES = r"(?!None\b)\w+(?:, \w+)*: "
CLOSING = re.compile(r"^(dtype|Raises|Source|Call|Differentiable|Deterministic)\b", re.M)


class Docstrings(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """A field is described by the comment behind it."""
        if attr.docstring or not attr.parent or not attr.parent.is_class or attr.name.startswith("_"):
            return
        line, _, comment = attr.source.partition("  # ")
        if attr.annotation is not None and not line.startswith("self."):
            attr.docstring = griffe.Docstring(html.escape(comment.strip(), quote=False) or " ", parent=attr)


def one_a_line(arguments: str) -> str:
    """Arguments that share a line or a text, such as `input: [B, I]; h, c: [B, H]`, as an entry each."""
    lines = []
    for line in re.sub(rf"[;.] (?={NAMES})", "\n    ", arguments).splitlines():
        names = re.match(rf"    ({NAMES})", line)
        text = line[names.end() :] if names else ""
        lines += [f"    {name}: {text}" for name in names[1][:-2].split(", ")] if names else [line]
    return "\n".join(lines) + "\n"


def as_markdown(text: str) -> str:
    text = MATH.sub(lambda found: f"$$\n{textwrap.dedent(found[1]).strip()}\n$$\n", text + "\n")
    text = ARGUMENTS.sub(lambda found: f"Args:\n{one_a_line(found[1])}", text)
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r"``([^`\n]+)``", r"`\1`", text)
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    text = CLOSING.sub(r"\n\1", text)  # a paragraph of its own
    return text.strip()
