"""A library whose runs can be read, and the registry of these: the files in `readers`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, final

from privlearn._checks import one_of
from privlearn.declared import readers
from privlearn.declared.recorded_run import RecordedRun
from privlearn.errors import BadInput


def _equal_rates(examples: int, batch_size: int) -> tuple[float, ...]:
    return ()


@final
@dataclass(frozen=True)
class PeerLibrary:
    """How runs of a library are read.

    Attributes:
        read: the run in the content of a file; raises `BadInput` if there is none.
        compute_epsilon: the library's own figure at a delta, and what computed it; None where the
            library is not installed, or has no figure.
        other_rates: sampling rates besides batch size over examples at which the library's own
            sampler draws, for a number of examples and a batch size.
        on_trust: what has to be true of the library's runs, besides what has to be of all.
    """

    read: Callable[[bytes], RecordedRun]
    compute_epsilon: Callable[[RecordedRun, float], tuple[float, str] | None]
    other_rates: Callable[[int, int], tuple[float, ...]] = _equal_rates
    on_trust: tuple[str, ...] = ()


def library_names() -> tuple[str, ...]:
    """The libraries whose runs can be read."""
    return tuple(sorted(part.name.replace("_", "-") for part in iter_modules(readers.__path__)))


def find_library(name: str) -> PeerLibrary:
    """The library of this name.

    Raises:
        BadInput: there is none.
    """
    one_of("library", name, library_names())
    library = import_module(f"{readers.__name__}.{name.replace('-', '_')}").LIBRARY
    assert isinstance(library, PeerLibrary), name
    return library


def number_of(value: Any, name: str) -> float:
    """A finite number of a file, as a float.

    Raises:
        BadInput: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{name} in the file is {str(value)[:40]!r}: expected a finite number")
    return float(value)


def whole_number_of(value: Any, name: str) -> int:
    """A whole number of a file.

    Raises:
        BadInput: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} in the file is {str(value)[:40]!r}: expected a whole number")
    return value


def part_of(value: Any, name: str, kind: type[Any], where: str) -> Any:
    """A field of an object in a file, of this type.

    Raises:
        BadInput: it is missing, or something else.
    """
    part = value.get(name) if isinstance(value, dict) else None
    if not isinstance(part, kind):
        raise BadInput(
            f"the file is not one of {where}: expected {name!r} in it, as a {kind.__name__}"
        )
    return part
