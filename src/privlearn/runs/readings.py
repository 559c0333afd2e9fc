"""This file spells what a scheduler reads beside its counts, so that a change is noticed."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from privlearn._figures import in_library

_DEEP = 6  # functions in objects in lists


def readings_of(scheduler: LRScheduler) -> str:
    """What a scheduler reads and does not write itself, as text.

    These are attributes that no method of its class sets but `__init__`, and what the functions in
    it captured and read from their modules. Of an object the attributes are spelled whose names the
    functions use. Parameters of models are not: they are released. What lies deeper than a few
    levels, and what code of libraries reads, is not seen.
    """
    kind: Any = type(scheduler)
    settings = {
        name: value
        for name, value in vars(scheduler).items()
        if name not in {"optimizer", *_set_by_methods(kind)}
    }
    functions = _functions_in(vars(scheduler), _DEEP)
    inner = [other for other in _schedulers_in(vars(scheduler)) if other is not scheduler]
    texts = [
        text for value in (settings, *functions) for text in _spell(value, set(), set(), _DEEP)
    ]
    return "\n".join([*texts, *map(readings_of, inner)])


@functools.cache
def _set_by_methods(kind: Any) -> frozenset[str]:
    """The attributes that methods of a class set, but for `__init__`."""
    return frozenset(
        str(instruction.argval)
        for parent in kind.__mro__
        for name, function in vars(parent).items()
        if isinstance(function, FunctionType) and name != "__init__"
        for instruction in dis.get_instructions(function)
        if instruction.opname == "STORE_ATTR"
    )


def _schedulers_in(attributes: Mapping[str, Any]) -> Iterator[LRScheduler]:
    """The schedulers that a scheduler steps."""
    for value in attributes.values():
        parts = value if isinstance(value, list | tuple) else [value]
        yield from (part for part in parts if isinstance(part, LRScheduler))


def _functions_in(value: Any, depth: int) -> Iterator[Any]:
    """The functions in a scheduler's attributes."""
    if not depth:
        return
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _functions_in(part, depth - 1)
    elif isinstance(value, FunctionType | MethodType | functools.partial):
        yield value
    elif callable(value) and isinstance(vars(type(value)).get("__call__"), FunctionType):
        yield value.__call__


def _spell(value: Any, names: set[str], seen: set[int], depth: int) -> Iterator[str]:
    """A value as texts, each part where it is met first."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value)
        return
    if not depth or id(value) in seen or isinstance(value, type | nn.Parameter | LRScheduler):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield f"tensor {id(value)} {value._version}"
    elif isinstance(value, np.ndarray | np.generic):
        yield repr(value.tobytes())
    elif isinstance(value, FunctionType):
        if not in_library(value.__code__):
            yield from _spell_function(value, seen, depth)
    else:
        for name, part in _parts(value, names):
            yield name
            yield from _spell(part, _names_of(value, names), seen, depth - 1)


def _spell_function(function: FunctionType, seen: set[int], depth: int) -> Iterator[str]:
    names = set(_names_in(function.__code__))
    parts = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:  # not filled yet
            parts.append(None)
    parts += [function.__globals__[name] for name in sorted(names) if name in function.__globals__]
    for part in parts:
        yield from _spell(part, names, seen, depth - 1)


def _parts(value: Any, names: set[str]) -> Iterator[tuple[str, Any]]:
    """What a value is made of; of an object the attributes with these names."""
    if isinstance(value, MethodType):
        yield from (("of", value.__self__), ("method", value.__func__))
    elif isinstance(value, functools.partial):
        yield from (("of", value.func), ("with", value.args), ("and", value.keywords))
    elif isinstance(value, Mapping):
        yield from ((repr(name), part) for name, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", part) for part in value)
    else:
        attributes = getattr(value, "__dict__", {})
        yield from ((name, attributes[name]) for name in sorted(names) if name in attributes)


def _names_of(value: Any, names: set[str]) -> set[str]:
    """The names of attributes that may be read from a value's parts."""
    if isinstance(value, MethodType) and isinstance(value.__func__, FunctionType):
        return set(_names_in(value.__func__.__code__))
    return names


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)
