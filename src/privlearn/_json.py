"""JSON as it is written for good and read from strangers: no key twice, no NaN, no endless numbers, no depths."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_DEEPEST = 80


def loads(content: bytes) -> Any:
    """The value that `content` spells.

    Raises:
        ValueError: no UTF-8, no JSON, a key that stands there twice, NaN, a whole number of more than 20 digits, or nesting
            of more than 80 levels.
    """
    try:
        data = json.loads(
            content.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_int=_whole, parse_constant=_constant
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _require_shallow(data)
    return data


def canonical(value: Any) -> bytes:
    """The one spelling of a JSON value that is hashed and signed: keys in order, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, whatever its spelling."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _whole(text: str) -> int:
    """Whole numbers as we write them; longer ones would overflow in arithmetic."""
    if len(text) > 20:
        raise ValueError(f"a whole number has {len(text)} digits")
    return int(text)


def _constant(text: str) -> float:
    if text != "Infinity":
        raise ValueError(f"{text} is no number")
    return float(text)  # the shape of a Poisson number of repetitions


def _require_shallow(data: Any) -> None:
    level = [data]
    for _ in range(_DEEPEST):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")
