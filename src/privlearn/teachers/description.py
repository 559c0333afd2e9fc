"""How teachers are made, in public words: what is compared before a run is gone on with, and what a certificate says of them.

Only the recipe is described, which is the caller's code and its parameters; nothing here meets a record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import Any

from privlearn.teachers.recipes import Estimator, Network, Recipe, isolated
from privlearn.teachers.spreading import Spreading

_LONGEST = 300  # characters of a text


def described(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain values: its kind, and what tells it from others of that kind.

    Two functions are told apart by their names and their code, not by values that they captured.
    """
    with isolated(0), suppress(Exception):  # one that can't be made is refused where teachers are trained
        match recipe:
            case Estimator():
                made = recipe.make()
                found = {"class": _name(type(made)), "parameters": _short(repr(made)), "classes": recipe.classes}
                return {"kind": "estimator", **found}
            case Network():
                module = recipe.make()
                size = sum(each.numel() for each in module.parameters())
                layers = {"class": _name(type(module)), "layers": _short(str(module)), "parameters": size}
                return {"kind": "network", **layers, "fit": _named(recipe.fit)}
            case Spreading():
                names = ("classes", "alpha", "components", "neighbours")
                return {"kind": "spreading", **{name: getattr(recipe, name) for name in names}}
    return {"kind": "function", **_named(recipe)}


def _named(function: Callable[..., Any]) -> dict[str, str]:
    """A function by name and code; an object that can be called by its class."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return {"name": _name(type(function))}
    return {"name": _name(function), "code": hashlib.sha256(_spelled(code)).hexdigest()[:16]}


def _spelled(code: CodeType) -> bytes:
    """What a function does, as bytes that are the same in every process."""
    constants = [
        _spelled(each) if isinstance(each, CodeType) else repr(sorted(map(repr, each))).encode()
        if isinstance(each, frozenset) else repr(each).encode() for each in code.co_consts
    ]  # fmt: skip
    return b"\n".join([code.co_code, repr(code.co_names).encode(), *constants])


def _name(of: Any) -> str:
    return f"{of.__module__}:{of.__qualname__}"


def _short(text: str) -> str:
    """A text in one line, without addresses of objects; a long one is cut, and its end told by a digest."""
    line = re.sub(r" at 0x[0-9A-Fa-f]+", "", " ".join(text.split()))
    if len(line) <= _LONGEST:
        return line
    return f"{line[:_LONGEST]}... (SHA-256 {hashlib.sha256(line.encode()).hexdigest()[:16]})"
