"""What errors call the kinds of arguments."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

#: What errors call the classes that have a better name than their own, or are made elsewhere.
_WORDS = {
    "Clip": "a clip (pv.Flat(0.5), say)",
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "str": "a text",
    "NoneType": "None",
    "Module": "a torch.nn.Module",
    "Ledger": "a pv.Ledger (pv.Ledger.open('study.db'), say)",
    "Dataset": "a Dataset, such as pv.Dataset(x, y, classes=3)",
    "Result": "what a method such as dpsgd returned",
    "AuditReport": "what pv.audit returned",
}


def in_words(kind: Any) -> str:
    """A kind of argument, as an error says it."""
    if get_origin(kind) in (Union, types.UnionType):
        *first, last = dict.fromkeys(map(in_words, get_args(kind)))
        return f"{', '.join(first)} or {last}" if first else last
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    plain_kind = get_origin(kind) or kind
    if plain_kind is Callable:
        return "a function"
    name = getattr(plain_kind, "__name__", str(plain_kind))
    return _WORDS.get(name, f"{'an' if name[:1] in 'AEIOU' else 'a'} {_public(plain_kind, name)}")


def find_misfit(name: str, value: Any, kind: Any) -> tuple[str, Any, Any]:
    """Which part of a value does not fit, and what it should be: of a sequence its first such part,
    else the value itself.
    """
    from privlearn._checks import fits

    origin, parts = get_origin(kind), get_args(kind)
    of_one_kind = origin in (Iterable, Sequence) or parts[1:] == (...,)
    if isinstance(value, list | tuple) and of_one_kind:
        for place, part in enumerate(value):
            if not fits(part, parts[0]):
                return find_misfit(f"{name}[{place}]", part, parts[0])
    return name, value, kind


def _public(kind: Any, name: str) -> str:
    """The name under which users know a class of privlearn's."""
    from privlearn._lazy import PLACES  # only for an error

    if not getattr(kind, "__module__", "").startswith("privlearn"):
        return name
    if name in sys.modules["privlearn"].__all__:
        return f"pv.{name}"
    for room, place in PLACES["privlearn"].items():
        if name in getattr(sys.modules.get(".".join(filter(None, place))), "__all__", ()):
            return f"pv.{room}.{name}"
    return name
