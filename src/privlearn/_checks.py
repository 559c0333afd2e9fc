"""This file checks public numbers and kinds of arguments; its errors quote what was given."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Iterable, Sequence
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from privlearn._annotations import Annotations
from privlearn._figures import PrivateFigure
from privlearn.errors import BadInput

_T = TypeVar("_T")
_LARGEST = sys.float_info.max


def positive(name: str, value: float) -> float:
    """Return `value` as a float if it is finite and above zero, else raise `BadInput`."""
    value = as_plain(value, float)
    require_public(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
        raise BadInput(
            f"{name} is {quoted(value)}: expected a finite number above 0", name=name, value=value
        )
    return float(value)


def between(name: str, value: float, low: float, high: float) -> float:
    """Return `value` as a float if it is a number from `low` to `high`, else raise `BadInput`."""
    value = as_plain(value, float)
    require_public(name, value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not is_number
        or not low <= value <= high
        or (isinstance(value, int) and abs(value) > _LARGEST)
    ):
        raise BadInput(
            f"{name} is {quoted(value)}: expected a number from {low:g} to {high:g}", name=name
        )
    return float(value)


def count(name: str, value: int, *, least: int = 1, most: int = 10**15) -> int:
    """Return `value` if it is a whole number from `least` to `most`, else raise `BadInput`."""
    value = as_plain(value, int)
    require_public(name, value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(
            f"{name} is {quoted(value)}: expected a whole number of at least {least}",
            name=name,
            value=value,
        )
    if value > most:
        top = f"{most:,}" if most < 10**6 else f"{most:.3g}"
        raise BadInput(
            f"{name} is above {top}: expected a whole number from {least} to {top}", name=name
        )
    return value


def probability(name: str, value: float, *, open_top: bool = False) -> float:
    """Return `value` if it lies in (0, 1] (in (0, 1) with `open_top`), else raise `BadInput`."""
    value = as_plain(value, float)
    require_public(name, value)
    inside = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    if not inside or (open_top and value == 1):
        interval = "(0, 1)" if open_top else "(0, 1]"
        interval += ", batch size / examples" if name == "sampling_rate" else ""
        raise BadInput(
            f"{name} is {quoted(value)}: expected a number in {interval}", name=name, value=value
        )
    return float(value)


def delta(value: float) -> float:
    """Return `value` if it can be the delta of an (epsilon, delta) guarantee."""
    return probability("delta", value, open_top=True)


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is among `choices`, else raise `BadInput` with the list of them."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise BadInput(
            f"{name} is {quoted(value)}: expected one of {', '.join(known)}",
            name=name,
            value=value,
            choices=known,
        )
    return value


def quoted(value: object) -> str:
    """What was given, in an error: a plain value as it is, and of anything else what it is, not
    what is in it.
    """
    if isinstance(value, types.ModuleType | type):
        return f"the {'class' if isinstance(value, type) else 'module'} {value.__name__}"
    if isinstance(value, PrivateFigure):
        return "a private figure"
    if value is None or isinstance(value, bool | str | float | complex | bytes):
        return (
            text
            if len(text := repr(value)) < 60
            else f"a long {type(value).__name__}, {text[:40]}..."
        )
    if isinstance(value, int):
        return str(value) if abs(value) < 10**40 else "a whole number beyond 1e+40"
    return f"a {type(value).__name__}"


#: What most arguments are, and what stays as it is.
_AS_THEY_ARE = frozenset({int, float, bool, str, bytes, types.NoneType})
#: The letters by which arrays say that they hold truth values, whole numbers or floats.
OF_NUMBERS = "biuf"


def as_plain(value: Any, kind: Any) -> Any:
    """`value` with plain numbers for those of other libraries: see `_plain_numbers.as_plain`."""
    if not holds_other_number(value):
        return value
    from privlearn import _plain_numbers  # only where there is one

    return _plain_numbers.as_plain(value, kind)


def holds_other_number(value: Any) -> bool:
    """Whether a value is, or holds, what may be a number of another library."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return False
    if kind in (tuple, list, dict):
        return any(map(holds_other_number, value.values() if kind is dict else value))
    return isinstance(value, Real | Decimal) or (hasattr(kind, "ndim") and value.ndim == 0)


def require_fit(name: str, value: object, kind: Any) -> None:
    """Raise `BadInput` unless `value` is of a kind, which is given as an annotation, and no private
    figure.
    """
    require_public(name, value)
    if not fits(value, kind):
        from privlearn._kinds_in_words import find_misfit, in_words  # only for an error

        say = getattr(kind, "_say_instead", None)  # of a class that knows what to do
        where, part, kind = find_misfit(name, value, kind)
        expected = (say and say(name, value)) or in_words(kind)
        raise BadInput(f"{where} is {quoted(part)}: expected {expected}", name=name)


def require_public(name: str, value: object) -> None:
    """Raise `BadInput` for a private figure: what it would decide would follow from private
    rows.
    """
    if isinstance(value, PrivateFigure):
        raise BadInput(
            f"{name} is a private figure, computed on private rows without noise: what follows "
            "from it has no price. Give a number that was fixed beforehand, or that follows from "
            "public rows",
            name=name,
        )


def checked(target: _T) -> _T:
    """Let a function, or a class as it is made, refuse arguments of other kinds than it is
    annotated with.

    Guarantee: nothing of it has run when it refuses. What is annotated with `Any`, the parts of
    generics but for tuples and lists, and the names in a class's `_parsed`, are left to the code
    that reads them. For a protocol, and for a class with `_interface`, names of methods, whatever
    has these stands in. It runs with plain numbers, as `with_plain_numbers` does.

    Raises:
        BadInput: when called, with the name of the argument, what was given and what was expected.
    """
    return _reading(target, refusing=True)


def with_plain_numbers(target: _T) -> _T:
    """Let a function, or a class as it is made, take other libraries' numbers: see `as_plain`."""
    return _reading(target, refusing=False)


def _reading(target: _T, refusing: bool) -> _T:
    """The function or class, whose arguments are read by their annotations."""
    function: Any = vars(target)["__init__"] if isinstance(target, type) else target
    parameters = inspect.signature(function).parameters
    first = int(isinstance(target, type))  # the instance is not checked
    by_place = [name for name, part in parameters.items() if part.kind < part.KEYWORD_ONLY] or [""]
    annotations = Annotations(target, parameters)

    def read(name: str, value: Any) -> Any:
        if value is None and annotations.takes_none(name):
            return value
        is_checked = refusing and not annotations.is_left(name)
        if is_checked or holds_other_number(value):
            value = as_plain(value, annotations.kind_of(name))
        if is_checked and annotations.kind_of(name) is not Any:
            require_fit(name, value, annotations.kind_of(name))
        return value

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        values = list(args)
        for place, value in enumerate(args[first:], first):
            values[place] = read(by_place[min(place, len(by_place) - 1)], value)
        return function(*values, **{name: read(name, value) for name, value in named.items()})

    if isinstance(target, type):
        target.__init__ = call  # type: ignore[misc]
        return target
    return call  # type: ignore[return-value]


#: Numbers as annotations state them: NumPy's, too.
NUMBERS: dict[Any, Any] = {int: Integral, float: Real, bool: bool}


def fits(value: object, kind: Any) -> bool:
    """Whether `value` is of a kind, as annotations state it."""
    if type(value) is kind:
        return True  # as most are
    if isinstance(value, PrivateFigure):
        return kind in (Any, object)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is None or origin is Literal:
        return value is None if kind is None else isinstance(value, str | int) and value in parts
    if kind in (int, float, bool):
        large = kind is float and isinstance(value, int) and abs(value) > _LARGEST
        return (
            isinstance(value, NUMBERS[kind])
            and getattr(getattr(value, "dtype", None), "kind", "f") in OF_NUMBERS
            and isinstance(value, bool) == (kind is bool)
            and not large
        )
    if parts == (Any, Any) and origin is tuple:
        return True  # data, in whatever form: read elsewhere
    if origin is tuple and isinstance(value, tuple | list):
        kinds = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(kinds) == len(value) and all(map(fits, value, kinds))
    plain_kind = origin or kind
    if plain_kind in (Iterable, Sequence) and isinstance(value, str | bytes):
        return False
    if isinstance(value, list | tuple) and plain_kind in (Iterable, Sequence):
        return all(fits(part, parts[0]) for part in value)
    if plain_kind is Path:
        return isinstance(value, os.PathLike)
    if not isinstance(plain_kind, type) or plain_kind in (Any, object):
        return True
    protocol = getattr(plain_kind, "_is_protocol", False)
    if not protocol and isinstance(value, plain_kind):
        return True
    interface = (
        [name for name in vars(plain_kind) if not name.startswith("_")]
        if protocol
        else vars(plain_kind).get("_interface")
    )
    return interface is not None and all(hasattr(value, name) for name in interface)


def printable(text: object) -> str:
    """`text` with control characters, line breaks and lone surrogates escaped: what strangers
    wrote, for a screen.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
