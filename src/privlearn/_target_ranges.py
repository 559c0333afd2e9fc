"""Declared bounds of targets that are numbers: one for each row, or several, by their names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import BadInput

#: For each target its name, and the bounds beyond which it counts as these; all public.
Ranges = tuple[tuple[str, float, float], ...]
_MOST = 10_000


def read_ranges(declared: Any) -> Ranges:
    """Names and bounds, from a mapping {name: (low, high)}, or from (name, low, high) of each.

    Raises:
        BadInput: something else, fewer than two, names that come twice, or bounds that are no two
            finite numbers, the smaller first.
    """
    try:
        rows = (
            [(name, *bounds) for name, bounds in declared.items()]
            if isinstance(declared, Mapping)
            else [tuple(part) for part in declared]
        )
        ranges = tuple((name, float(low), float(high)) for name, low, high in rows[: _MOST + 1])
    except (TypeError, ValueError, OverflowError):
        ranges = ()
    names = [name for name, _, _ in ranges]
    plain = all(isinstance(name, str) and name for name in names)
    ordered = all(-1e30 < low < high < 1e30 for _, low, high in ranges)
    if not plain or not ordered or not 2 <= len(ranges) == len(set(names)) <= _MOST:
        raise BadInput(
            f"target_ranges is {str(declared)[:60]}: expected two targets or more, by different "
            "names, each with two public numbers, the smaller first: {'a': (0, 1), 'b': (-5, 5)}. "
            "For one target give target_bounds=(low, high)"
        )
    return ranges


def read_declared(data: Any) -> None:
    """Read the bounds that a data set declares of one number, or of several, in place.

    Raises:
        BadInput: no bounds, or bounds beside another declaration of the targets.
    """
    if not isinstance(data.target_ranges, Mapping | tuple | list) or data.target_ranges:
        object.__setattr__(data, "target_ranges", read_ranges(data.target_ranges))
        if data.classes is not None or data.target_bounds is not None or data.labels:
            raise BadInput(
                "target_ranges declares targets of several numbers, beside classes, target_bounds "
                "or labels: leave these out"
            )
        return
    if data.target_bounds is None:
        return
    try:
        low, high = map(float, data.target_bounds)
    except (TypeError, ValueError, OverflowError):
        low = high = math.nan
    if not -1e30 < low < high < 1e30 or data.classes is not None:
        beside = "" if data.classes is None else f", and classes is {data.classes}"
        raise BadInput(
            f"target_bounds is {str(data.target_bounds)[:60]}{beside}: expected two public "
            "numbers, the smaller first, where targets are numbers, and None where they are "
            "classes"
        )
    object.__setattr__(data, "target_bounds", (low, high))


def with_number_rows(data: Any) -> Any:
    """A data set with targets of several numbers as arrays, shape (rows, targets).

    Raises:
        BadInput: other targets.
    """
    parts = {name: getattr(data, name) for name in ("y", "y_test")}
    plain: dict[str, Any] = {
        name: number_rows(values, data.target_ranges, f"the data in {name} of {data.name}")
        for name, values in parts.items()
        if values is not None
    }
    changed = any(values is not parts[name] for name, values in plain.items())
    return replace(data, **plain) if changed else data


def number_rows(y: Any, ranges: Ranges, what: str) -> NDArray[Any]:
    """Targets as numbers, shape (rows, targets): for the data's curator.

    Raises:
        BadInput: another shape, or texts and other objects.
    """
    values = np.asarray(y)
    if values.ndim != 2 or values.shape[1] != len(ranges) or values.dtype.kind not in "fiub":
        raise BadInput(
            f"{what} have shape {values.shape} and type {values.dtype}: expected a number for each "
            f"row and each of the {len(ranges)} targets that target_ranges declares"
        )
    if not np.isfinite(values).all():
        raise BadInput(
            f"{what} hold numbers that are missing or not finite: fill them in by a public rule, "
            "or leave such rows out"
        )
    return values


def bounds_text(ranges: Ranges) -> str:
    """Names and bounds for a card, the first few of them."""
    first = ", ".join(f"{name} in [{low:g}, {high:g}]" for name, low, high in ranges[:12])
    return first if len(ranges) <= 12 else f"{first}, and {len(ranges) - 12} more"
