"""This file writes public values as JSON and reads them back, by a closed table that every class
enters itself into: plans are kept so.

A file never chooses what runs here. Only kinds that were entered, or that a module is expected to
enter, are read back, with exactly their fields, and every value goes through the checks of its
class.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar

from privlearn._checks import printable, with_plain_numbers
from privlearn.errors import BadInput, PrivlearnError


class Public(Protocol):
    """What can be entered: a class whose values are public, with the name that it is written
    under.
    """

    kind: str


_Class = TypeVar("_Class", bound=type)
_KINDS: dict[str, type] = {}
#: The modules that enter a kind once they are imported: when a file names the kind, and not before.
_HOMES: dict[str, str] = {}
#: Kinds with a JSON form of their own: (class, write, read).
_FORMS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {}
_INFINITY, _TABLE = "infinity", "table"
#: Metadata of a field that is written only where it differs from its default: files of earlier
#: versions lack it.
OMITTED = {"omitted": True}
#: A plan with candidates, their plans and those plans' parts is five deep.
_DEEPEST = 12


def registered(cls: _Class) -> _Class:
    """Enter a frozen dataclass under its `kind`, so that plans that hold one can be written and
    read back. It takes numbers of other libraries, and holds plain ones.

    Raises:
        BadInput: it is no dataclass, has no kind, or another class has the same.
    """
    if not isinstance(getattr(cls, "kind", None), str) or not is_dataclass(cls):
        raise BadInput(
            f"{cls.__name__} cannot be registered: expected a frozen dataclass with kind: "
            "ClassVar[str] = ..."
        )
    enter(cls)
    return with_plain_numbers(cls)


def enter(cls: type[Any]) -> None:
    """As `registered`, for an interface that enters its subclasses itself, before they are
    dataclasses.

    Raises:
        BadInput: another class has the same kind.
    """
    kind: str = cls.kind
    taken = _FORMS[kind][0] if kind in _FORMS else _KINDS.get(kind)
    same = taken is not None and (taken.__module__, taken.__qualname__) == (
        cls.__module__,
        cls.__qualname__,
    )
    if kind in (_INFINITY, _TABLE) or (taken is not None and not same):
        raise BadInput(f"the kind {kind!r} of {cls.__name__} is taken: choose another name")
    _KINDS[kind] = cls


def expect(kind: str, module: str) -> None:
    """Say which module enters a kind: it is imported when a file names the kind.

    Raises:
        BadInput: another module is expected to.
    """
    if _HOMES.setdefault(kind, module) != module:
        raise BadInput(
            f"the kind {kind!r} of {module} is that of {_HOMES[kind]}: choose another name"
        )


def enter_expected() -> None:
    """Have all kinds entered that are expected: for those who list them all."""
    for module in dict.fromkeys(_HOMES.values()):
        import_module(module)


def with_own_form(
    kind: str, cls: type, write: Callable[[Any], Any], read: Callable[[Any], Any]
) -> None:
    """Enter `cls` and its subclasses under `kind`, with a JSON form of their own."""
    _FORMS[kind] = (cls, write, read)


def is_registered(value: object) -> bool:
    """Whether a value's class was entered."""
    return _KINDS.get(getattr(value, "kind", "")) is type(value)


def is_own(cls: type) -> bool:
    """Whether a class is part of this package: what others wrote is checked where it would take
    time, too.
    """
    module = sys.modules.get(cls.__module__)
    inside = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    return inside and getattr(module, cls.__name__, None) is cls


def kinds(of: Any) -> dict[str, type[Any]]:
    """The registered subclasses of a class, or of a union of them, by kind, in the order in which
    they were defined.
    """
    return {kind: cls for kind, cls in _KINDS.items() if issubclass(cls, of)}


def to_json(value: Any) -> Any:
    """`value` as plain JSON values, which `from_json` reads back as an equal value.

    Raises:
        BadInput: it holds something that was not registered.
    """
    if isinstance(value, float) and not math.isfinite(value):
        if value == math.inf:
            return {"kind": _INFINITY}
    elif value is None or isinstance(value, bool):
        return value
    elif isinstance(value, int | float | str):
        return (
            int(value)
            if isinstance(value, int)
            else float(value)
            if isinstance(value, float)
            else str(value)
        )
    elif isinstance(value, tuple):
        return [to_json(part) for part in value]
    elif isinstance(value, Mapping):
        return {
            "kind": _TABLE,
            "values": {str(name): to_json(part) for name, part in value.items()},
        }
    elif is_registered(value):
        written = [
            part.name for part in fields(value) if not _is_omitted(part, getattr(value, part.name))
        ]
        return {"kind": value.kind} | {name: to_json(getattr(value, name)) for name in written}
    for kind, (cls, write, _) in _FORMS.items():
        if isinstance(value, cls):
            return {"kind": kind, "value": write(value)}
    raise BadInput(
        f"{type(value).__name__} has no public form: {repr(value)[:80]}. A class of your own gets "
        "one with a kind and @privlearn.core.plan.registered"
    )


def _is_omitted(part: Field[Any], value: object) -> bool:
    """Whether a field is left out of what is written, because it has its default."""
    return "omitted" in part.metadata and value == part.default


def from_json(data: Any, *, _depth: int = 0) -> Any:
    """The value that `to_json` wrote as `data`: what strangers wrote.

    Raises:
        BadInput: an unknown kind, missing or unknown fields, values that the class refuses, or
            nested too deeply.
    """
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if _depth > _DEEPEST or not isinstance(data, dict | list):
        raise BadInput(
            f"a plan holds a {type(data).__name__} at depth {_depth}: expected at most {_DEEPEST}"
        )
    if isinstance(data, list):
        return tuple(from_json(part, _depth=_depth + 1) for part in data)
    kind = data.get("kind")
    values = {name: value for name, value in data.items() if name != "kind"}
    if kind == _INFINITY and not values:
        return math.inf
    if kind == _TABLE and set(values) == {"values"} and isinstance(values["values"], dict):
        return {
            name: from_json(value, _depth=_depth + 1) for name, value in values["values"].items()
        }
    if isinstance(kind, str) and kind in _FORMS and set(values) == {"value"}:
        return _FORMS[kind][2](values["value"])
    if isinstance(kind, str) and kind in _HOMES:
        import_module(_HOMES[kind])
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadInput(
            f"a plan holds a {printable(kind)[:40]!r}, which this version of privlearn does not "
            "have: install the version, or the package, that wrote it"
        )
    cls = _KINDS[kind]
    expected = {part.name for part in fields(cls)}
    optional = {part.name for part in fields(cls) if "omitted" in part.metadata}
    if not expected - optional <= set(values) <= expected:
        odd = sorted((set(values) ^ expected) - (optional - set(values)))
        raise BadInput(
            f"{kind} in a plan lacks or adds {printable(odd)[:120]}: expected "
            f"{', '.join(sorted(expected))}"
        )
    read = {name: from_json(value, _depth=_depth + 1) for name, value in values.items()}
    try:
        return cls(**read)
    except PrivlearnError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise BadInput(
            f"{kind} in a plan cannot be read: {printable(error)[:120]}. Get an unchanged copy"
        ) from error
