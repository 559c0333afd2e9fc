"""This file makes a digest of what a function does, the same in every process, from its code and
the values that it captured.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.clipping.sharded.models import is_shard
from privlearn.runs.checkpoint import digest_of

_DEEP = 5  # functions in functions, lists in lists
_MANY = 100  # elements of a collection, of which only the number is compared


def code_digest(*values: Any) -> str:
    """A digest of functions, modules and values, and of what they refer to, as far as it can be
    seen.

    Of a function: its name, its code, its defaults, and the numbers, texts, arrays, functions and
    collections of them that it captured or reads from its module. Of a module of PyTorch: its
    layers, its state, and the code of classes that are not PyTorch's. Of other objects: their class
    and their attributes. What lies deeper than a few levels, and code in other languages, is not
    seen.
    """
    seen = set[int]()
    return hashlib.sha256(
        "\n".join(_spell(value, _DEEP, seen) for value in values).encode()
    ).hexdigest()


def common_digest(*functions: Any) -> str:
    """A digest of what functions have in common in processes that train together: names, code, and
    the plain values among their defaults and in what they captured.

    The state of objects and what a module holds are left out: a rank, a device or the first weights
    are each process's own.
    """
    return hashlib.sha256(
        "\n".join(_spell_common(function, _DEEP) for function in functions).encode()
    ).hexdigest()


def _spell_common(value: Any, depth: int) -> str:
    kind = name_of(type(value))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{kind} {value!r}"
    if isinstance(value, Mapping | list | tuple) and len(value) > _MANY:
        return f"{kind} of {len(value)}"
    if depth <= 0:
        return kind
    parts = _common_parts_of(value)
    return f"{kind} {{{', '.join(f'{name}: {_spell_common(x, depth - 1)}' for name, x in parts)}}}"


def _common_parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Of what a value is made of, what is no process's own."""
    if isinstance(value, FunctionType):
        parts = _parts_of_function(value)
        yield from ((name, part) for name, part in parts if not name.startswith("global "))
    elif isinstance(value, MethodType):
        yield "function", value.__func__
    elif isinstance(value, functools.partial | Mapping | list | tuple):
        yield from _parts_of(value)
    elif not isinstance(value, type | ModuleType | Tensor):
        for name, part in sorted(getattr(value, "__dict__", {}).items()):
            option = _is_torchs(type(value)) and not name.startswith("_")  # as `label_smoothing`
            layer = isinstance(part, nn.Module) and _is_torchs(type(part))
            if option or layer or isinstance(part, FunctionType | MethodType | functools.partial):
                yield name, part


def named(function: Callable[..., Any]) -> dict[str, str]:
    """A function by name and code, without what it captured; an object that can be called by its
    class.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return {"name": name_of(type(function))}
    return {"name": name_of(function), "code": hashlib.sha256(_of_code(code)).hexdigest()[:16]}


def name_of(of: Any) -> str:
    """Where a class or a function is from, and what it is called there."""
    return f"{of.__module__}:{of.__qualname__}"


def _of_code(code: CodeType) -> bytes:
    """What a function does, as bytes that are the same in every process."""
    constants = [
        _of_code(each)
        if isinstance(each, CodeType)
        else repr(sorted(map(repr, each))).encode()
        if isinstance(each, frozenset)
        else repr(each).encode()
        for each in code.co_consts
    ]
    return b"\n".join([code.co_code, repr(code.co_names).encode(), *constants])


def _spell(value: Any, depth: int, seen: set[int]) -> str:
    """A value as a text that differs where it does, down to so many levels; in full only where it
    is met first.
    """
    kind = name_of(type(value))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{kind} {value!r}"
    if isinstance(value, Tensor):
        if is_shard(value):  # each process holds another part of it
            return f"{kind} {tuple(value.shape)} {value.dtype}"
        return f"{kind} {digest_of(value)}"
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        return f"{kind} {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    if isinstance(value, type | ModuleType):
        return f"{kind} {getattr(value, '__qualname__', value.__name__)}"
    if depth <= 0 or id(value) in seen:
        return kind
    seen.add(id(value))
    parts = (f"{name}: {_spell(part, depth - 1, seen)}" for name, part in _parts_of(value))
    return f"{kind} {{{', '.join(parts)}}}"


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value is made of, by name."""
    if isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType):
        yield from (("of", value.__self__), ("function", value.__func__))
    elif isinstance(value, functools.partial):
        yield from (
            ("function", value.func),
            ("arguments", value.args),
            ("keywords", value.keywords),
        )
    elif isinstance(value, nn.Module):
        yield "layers", str(value)
        yield from (
            (f"state {name}", tensor)
            for name, tensor in value.state_dict().items()
            if isinstance(tensor, Tensor)
        )
        classes = {name_of(type(module)): type(module) for module in value.modules()}
        for name, kind in sorted(classes.items()):
            if not _is_torchs(kind):
                yield f"forward {name}", kind.forward
    elif isinstance(value, Mapping):
        yield from ((repr(name), element) for name, element in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(number), element) for number, element in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield "members", sorted(map(repr, value))
    else:
        yield from sorted(getattr(value, "__dict__", {}).items())


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    yield "name", name_of(function)
    if _is_torchs(function):
        return
    yield "code", _of_code(function.__code__)
    yield from (("defaults", function.__defaults__), ("keyword defaults", function.__kwdefaults__))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"captured {name}", cell.cell_contents
        except ValueError:  # not filled yet
            yield f"captured {name}", None
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"global {name}", function.__globals__[name]


def _is_torchs(of: Any) -> bool:
    return str(getattr(of, "__module__", "")).partition(".")[0] == torch.__name__
