# SPDX-License-Identifier: Apache-2.0
"""Completion of commands, options and their choices: a script for bash, or for zsh, that starts no Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tyro

from nerfkit.commands.options import KINDS, OPTIONS

# The first pattern that fits what stands before a word says what it can be; files and folders where none does.
SCRIPT = """\
_nerfkit() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  case " ${{COMP_WORDS[*]:1:$((COMP_CWORD - 1))}} " in
{cases}
  esac
  if [[ "$words" == --* && "$current" != -* ]]; then words=""; fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _nerfkit nerfkit
"""
START = {"bash": "", "zsh": "autoload -Uz bashcompinit && bashcompinit\n"}
FIRST = (*OPTIONS, "export", "--help", "--version", "--completion")


def script(shell: str) -> str:
    """What `eval "$(nerfkit --completion bash)"` runs."""
    lines = ['"  ")' + _words(FIRST), '" --completion ")' + _words(START), '" export ")' + _words(())]
    for kind, options in KINDS.items():
        lines += _cases([f'" export {kind} "', f'" export "*" {kind} "'], options)
    lines.append('" export "*)' + _words(KINDS))
    for command, options in OPTIONS.items():
        lines += _cases([f'" {command} "'], options)
    return START[shell] + SCRIPT.format(cases="\n".join(f"    {line} ;;" for line in lines))


def _cases(starts: list[str], kind: type) -> Iterator[str]:
    """Of the options of a command: what each may be that has choices, then their names."""
    options = dict(options_of(kind))
    for name, choices in options.items():
        if choices:
            yield "|".join(f'{start}*"{name} "' for start in starts) + ")" + _words(choices)
    yield "|".join(f"{start}*" for start in starts) + ")" + _words((*options, "--help"))


def _words(words: Iterable[str]) -> str:
    return f' words="{" ".join(words)}"'


def options_of(kind: type, prefix: str = "--") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name and choices of each option of a dataclass; without choices it takes anything."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        about = getattr(hint, "__metadata__", ())
        if is_dataclass(hint):
            yield from options_of(hint, f"{prefix}{name}.")
        elif tyro.conf.Positional not in about:
            renamed = next((note.name for note in about if getattr(note, "name", None)), None)
            yield f"--{renamed}" if renamed else f"{prefix}{name}", choices_of(hint)


def choices_of(hint: Any) -> tuple[str, ...]:
    """What an option of this type can be, if that is a choice of words."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if any("true" in str(getattr(note, "metavar", "")) for note in getattr(hint, "__metadata__", ())):
        return "true", "false"
    return next(filter(None, map(choices_of, get_args(hint))), ())
