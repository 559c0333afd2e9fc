"""Short specs: a name and its numbers."""

from __future__ import annotations

from privlearn._checks import require_fit
from privlearn.errors import BadInput


def parse_spec(what: str, text: str) -> tuple[str, dict[str, float]]:
    """Split `name:key=value,key=value` into the name and its numbers.

    >>> parse_spec("schedule", "step:k=0.6,period=10")
    ('step', {'k': 0.6, 'period': 10.0})
    """
    require_fit(what, text, str)
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
                "Expected NAME:key=number,key=number, such as exp:k=0.01 or banded:bands=8",
                spec=text,
            )
    return name.strip(), numbers
