"""Checks of public numbers and short specs, with errors that quote what was given."""

from __future__ import annotations

import math
from collections.abc import Iterable

from privlearn.errors import BadInput


def positive(name: str, value: float) -> float:
    """Return `value` as a float if it is finite and above zero, else raise `BadInput`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise BadInput(f"{name} is {value!r}: expected a finite number above 0", name=name, value=value)
    return float(value)


def between(name: str, value: float, low: float, high: float) -> float:
    """Return `value` as a float if it is a number from `low` to `high`, else raise `BadInput`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        given = f"{value!r}" if len(repr(value)) < 40 else f"a {type(value).__name__} out of range"
        raise BadInput(f"{name} is {given}: expected a number from {low:g} to {high:g}", name=name)
    return float(value)


def count(name: str, value: int, *, least: int = 1, most: int = 10**15) -> int:
    """Return `value` if it is a whole number from `least` to `most`, else raise `BadInput`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name} is {value!r}: expected a whole number of at least {least}", name=name, value=value)
    if value > most:
        raise BadInput(f"{name} is above {most:.3g}: expected a whole number from {least} to {most:.3g}", name=name)
    return value


def probability(name: str, value: float, *, open_top: bool = False) -> float:
    """Return `value` if it lies in (0, 1] (in (0, 1) with `open_top`), else raise `BadInput`."""
    inside = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    if not inside or (open_top and value == 1):
        interval = "(0, 1)" if open_top else "(0, 1]"
        raise BadInput(f"{name} is {value!r}: expected a number in {interval}", name=name, value=value)
    return float(value)


def delta(value: float) -> float:
    """Return `value` if it can be the delta of an (epsilon, delta) guarantee."""
    return probability("delta", value, open_top=True)


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is among `choices`, else raise `BadInput` with the list of them."""
    known = list(choices)
    if value not in known:
        raise BadInput(
            f"{name} is {value!r}: expected one of {', '.join(known)}", name=name, value=value, choices=known
        )
    return value


def parse_spec(what: str, text: str) -> tuple[str, dict[str, float]]:
    """Split `name:key=value,key=value` into the name and its numbers.

    >>> parse_spec("schedule", "step:k=0.6,period=10")
    ('step', {'k': 0.6, 'period': 10.0})
    """
    name, _, rest = text.partition(":")
    numbers: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        try:
            numbers[key.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or key.strip() == "":
            raise BadInput(
                f"{what} {text!r}: {part!r} cannot be read. "
                "Expected NAME:key=number,key=number, for example exp:k=0.01",
                spec=text,
            )
    return name.strip(), numbers


def printable(text: object) -> str:
    """`text` with control characters, line breaks and lone surrogates escaped: what strangers wrote, for a screen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
