# SPDX-License-Identifier: Apache-2.0
"""Types of options: numbers with a range, booleans and free tables as the command line takes them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from nerfkit.errors import ConfigError
from nerfkit.safe_io import printable

AUTO = "auto"  # how None is written: scene, device or model decide
LARGEST = 1e300  # of numbers in model.options, which have no range of their own


@dataclass(frozen=True)
class Range:
    """Values of an option, both ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}" if isinstance(self.low, float) else f"{self.low} to {self.high}"

    def check(self, name: str, value: float | tuple[float, ...]) -> None:
        for x in value if isinstance(value, tuple) else (value,):
            if not self.low <= x <= self.high:  # NaN is not either
                raise ConfigError(f"{name} must be from {self}, got {short(x)}")


METERS = Range(1e-9, 1e9)  # that a unit of a scene's files may be long

# An option that is empty or None until it is set shows no default: its help says what holds then.
shown = tyro.conf.arg(help_behavior_hint=lambda default: "" if default in ("", "''") else f"(default: {default})")
Text = Annotated[str, shown]
Texts = Annotated[tuple[str, ...], shown]


def ranged(kind: Any, low: float, high: float) -> Any:
    """The type `kind` with a range, which --help shows with the default."""
    limits = Range(low, high)
    return Annotated[kind, limits, tyro.conf.arg(help_behavior_hint=lambda x: f"(default: {x}; range {limits})")]


def unset(
    kind: Any, metavar: str, default: str, low: float | None = None, high: float | None = None, word: str = ""
) -> Any:
    """The type of an option that is None until it is set, or a `word`; `default` says what None means."""
    limits = () if low is None else (Range(low, high),)
    hint = f"(default: {'; range '.join([default, *map(str, limits)])})"
    n = len(metavar.split())

    def read(words: list[str]) -> Any:
        try:
            return word if words == [word] else msgspec.convert(words if n > 1 else words[0], kind, strict=False)
        except msgspec.ValidationError:
            wanted = f"{word} or {metavar}" if word else metavar
            raise ValueError(f"expected {wanted}, got {printable(' '.join(words))!r}") from None

    nargs = 1 if n == 1 else "*" if word else n
    spec = PrimitiveConstructorSpec(nargs, metavar, read, lambda value: True, lambda value: [str(value)])
    return Annotated[(kind | None, *limits, spec, tyro.conf.arg(help_behavior_hint=hint))]


def integer(low: int, high: int) -> Any:
    return ranged(int, low, high)


def number(low: float, high: float) -> Any:
    return ranged(float, float(low), float(high))


BOOLEANS = {"true": True, "True": True, "false": False, "False": False}


def _to_bool(words: list[str]) -> bool:
    text = " ".join(words) if words else "true"
    if text not in BOOLEANS:
        raise ValueError(f"expected true or false, got {text!r}")
    return BOOLEANS[text]


def _spec(kind: type, nargs: Any, metavar: str, read: Callable, write: Callable) -> PrimitiveConstructorSpec:
    return PrimitiveConstructorSpec(nargs, metavar, read, lambda value: isinstance(value, kind), write)


def _bool(nargs: int | Literal["*"], metavar: str) -> PrimitiveConstructorSpec[bool]:
    return _spec(bool, nargs, metavar, _to_bool, lambda value: [str(value).lower()])


def _to_words(words: list[str]) -> dict[str, str]:
    if len(words) % 2:
        raise ValueError(f"expected a value after each key, got {' '.join(words)}")
    return dict(zip(words[::2], words[1::2], strict=True))


def _to_options(words: list[str]) -> dict[str, Any]:
    return {key: _to_scalar(value) for key, value in _to_words(words).items()}


def _to_scalar(word: str) -> str | int | float | bool:
    """A word of the command line as TOML would have it; what is no boolean or number is text."""
    if word in BOOLEANS:
        return BOOLEANS[word]
    for kind in (int, float):
        try:
            value = kind(word)
        except ValueError:
            continue
        if abs(value) <= LARGEST:
            return value
    return word


def _table(metavar: str, read: Callable[[list[str]], dict[str, Any]]) -> PrimitiveConstructorSpec:
    return _spec(dict, "*", metavar, read, lambda value: [str(word) for pair in value.items() for word in pair])


Flag = Annotated[bool, _bool(1, "{true,false}"), tyro.conf.FlagConversionOff]
Switch = Annotated[bool, _bool("*", "[{true,false}]"), tyro.conf.FlagConversionOff]  # alone it means true
Options = Annotated[dict[str, str | int | float | bool], _table("[KEY VALUE [KEY VALUE ...]]", _to_options), shown]
Words = Annotated[dict[str, str], _table("[OP BACKEND [OP BACKEND ...]]", _to_words), shown]


def short(value: Any) -> str:
    """`value` as part of an error; of a huge integer, which may have no digits, the size alone."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"about {'-' if value < 0 else ''}2^{value.bit_length() - 1}"
    return printable(str(value))
