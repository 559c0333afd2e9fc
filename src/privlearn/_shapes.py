"""A closed shape declares plain JSON values once, as a `TypedDict`, for those who write them and
those who read them.

A shape has no room for anything else: unknown names, other types, numbers that are none and long
texts are problems.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from privlearn._checks import printable

#: The longest text and the longest list, where a shape does not say otherwise.
LONGEST_TEXT, LONGEST_LIST = 1_000, 10_000
#: Of a value whose names its writer chooses: how many values it holds, and how deep.
_MOST_OPEN, _DEEPEST_OPEN = 200, 4


@dataclass(frozen=True)
class Within:
    """Numbers from `low` to `high`, or lists and texts of such lengths."""

    low: float
    high: float


@dataclass(frozen=True)
class Spelled:
    """Texts that a regular expression describes from beginning to end."""

    pattern: str


class Open:
    """A value whose names its writer chooses, as an optimizer's settings: short and shallow."""


class Epsilon:
    """A number of at least 0, or infinity."""


#: SHA-256 in hexadecimal digits.
Digest: TypeAlias = Annotated[str, Spelled("[0-9a-f]{64}")]
#: A share, a positive number, a number of things.
Share: TypeAlias = Annotated[float, Within(0, 1)]
Positive: TypeAlias = Annotated[float, Within(0, 1e30)]
Count: TypeAlias = Annotated[int, Within(0, 1e15)]


def unfit(value: Any, shape: Any, name: str = "") -> Iterator[str]:
    """What of a plain value does not fit a shape, in a few words each.

    Args:
        value: as JSON gives it.
        shape: an annotation: a `TypedDict`, types of JSON, `Literal`, `list`, `tuple`, `dict`,
            unions, `Open`, and `Annotated` with `Within` or `Spelled`.
        name: where the value stands.
    """
    where = name or "the whole"
    origin, parts = get_origin(shape), get_args(shape)
    if origin is Annotated:
        inner, *limits = parts
        problems = list(unfit(value, inner, name))
        yield from problems or (
            f"{where} is out of range" for limit in limits if not _keeps(value, limit)
        )
    elif is_typeddict(shape):
        yield from _unfit_fields(value, shape, name)
    elif origin in (Union, types.UnionType):
        each = [list(unfit(value, part, name)) for part in parts]
        if all(each):
            within = (reasons[0] for reasons in each if not reasons[0].startswith(f"{where} is "))
            yield next(within, f"{where} is of another kind")
    elif origin is Literal:
        if not any(type(value) is type(part) and value == part for part in parts):
            yield f"{where} is {_quote(value)}, and may be {', '.join(map(repr, parts))}"
    elif origin is list:
        most = value if isinstance(value, list) and len(value) <= LONGEST_LIST else None
        if most is None:
            yield f"{where} is not a list of at most {LONGEST_LIST}"
        else:
            wrong = (
                problem
                for place, part in enumerate(value)
                for problem in unfit(part, parts[0], f"{name}[{place}]")
            )
            yield from _first(wrong)
    elif origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            yield f"{where} is not a list of {len(parts)}"
        else:
            for place, (part, kind) in enumerate(zip(value, parts, strict=True)):
                yield from unfit(part, kind, f"{name}[{place}]")
    elif origin is dict:
        if not isinstance(value, dict) or len(value) > LONGEST_LIST:
            yield f"{where} is not a table"
        else:
            for key, part in value.items():
                yield from unfit(key, parts[0], f"a name in {where}")
                yield from unfit(part, parts[1], f"{name}.{_quote(key)}")
    elif shape is Any:
        return  # its reader looks at it
    elif shape is Epsilon:
        if value != math.inf and not (_is_plain(value, float) and value >= 0):
            yield f"{where} is {_quote(value)}: expected a number of at least 0"
    elif shape is Open:
        yield from [] if is_short(value) else [f"{where} is too long or too deep"]
    elif not _is_plain(value, shape):
        yield f"{where} is {_quote(value)}: expected {getattr(shape, '__name__', shape)}"


@cache
def fields_of(shape: Any) -> Mapping[str, Any]:
    """The fields of a `TypedDict`, with their kinds."""
    return get_type_hints(shape, include_extras=True)


def _unfit_fields(value: Any, shape: Any, name: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name or 'the whole'} is not a table"
        return
    known = fields_of(shape)
    for key in sorted(map(str, set(value) - set(known)))[:5]:
        yield f"{_quote(f'{name}.{key}' if name else key)} is unknown"
    for key in sorted(shape.__required_keys__ - set(value)):
        yield f"{f'{name}.{key}' if name else key} is missing"
    for key, part in value.items():
        if key in known:
            yield from unfit(part, known[key], f"{name}.{key}" if name else key)


def _first(problems: Iterator[str]) -> Iterator[str]:
    """One of a list is enough."""
    problem = next(problems, None)
    if problem is not None:
        yield problem


def _keeps(value: Any, limit: Within | Spelled) -> bool:
    if isinstance(limit, Spelled):
        return re.fullmatch(limit.pattern, value) is not None
    size = len(value) if isinstance(value, str | list | dict) else value
    return value is None or bool(limit.low <= size <= limit.high)


def _is_plain(value: Any, kind: Any) -> bool:
    """Whether a value is of a type of JSON; whole numbers are numbers, and truth values are
    none.
    """
    if kind in (None, types.NoneType):
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind is str:
        return isinstance(value, str) and len(value) <= LONGEST_TEXT
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**20
    if kind is int:
        return whole
    return kind is float and (whole or (isinstance(value, float) and math.isfinite(value)))


def is_short(value: Any, most: int = _MOST_OPEN, deepest: int = _DEEPEST_OPEN) -> bool:
    """Whether a plain value holds at most so many values, texts of the usual lengths among them,
    and is so deep.
    """
    level, seen = [value], 0
    for _ in range(deepest):
        inner: list[Any] = []
        for part in level:
            seen += 1
            if isinstance(part, dict):
                inner += [inner_value for key, inner_value in part.items()]
                if not all(len(str(key)) <= 100 for key in part):
                    return False
            elif isinstance(part, list | tuple):
                inner += list(part)
            elif (
                not any(_is_plain(part, kind) for kind in (None, bool, str, float))
                and part != math.inf
            ):
                return False
        if seen + len(inner) > most:
            return False
        level = inner
    return not level


def _quote(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    return printable(value)[:60]
