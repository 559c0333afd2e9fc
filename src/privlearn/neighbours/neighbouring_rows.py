"""Neighbouring data sets: the same rows, and one more, which is ordinary or as extreme as can be.

The row that differs is always the last, so that every other row has the same place in both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from privlearn.errors import BadInput

#: What floating-point numbers of the added row are multiplied by.
_LARGE = 1e4
#: The rows that show whether contributions are bounded. A classifier has one of them wrong.
LARGE_ROWS = ("a large row", "a large opposite row")


def count_rows(rows: Any) -> int:
    """How many rows there are.

    Args:
        rows: a tensor, an array, a table of pandas, or a tuple, list or dict of these whose first
            axes are equally long.
    """
    lengths = {len(part) for part in _parts(rows)}
    if len(lengths) != 1:
        raise BadInput(
            f"the rows' parts have lengths {sorted(lengths)}: expected tensors, arrays or tables "
            "that are equally long"
        )
    return lengths.pop()


def make_neighbours(
    rows: Any, adjacency: str, others: Mapping[str, Any], absent: Any
) -> tuple[Any, dict[str, Any]]:
    """A data set, and its neighbours by what their last row is.

    Args:
        rows: the rows; the last is set aside as the ordinary one.
        adjacency: "add_remove": the data set is without the last row. "replace_one": it has the
            ordinary one. "zero_out": it has `absent`.
        others: more rows to try, by name, each of the form of `rows[:1]`; a number in place of a
            row: the last row, filled with it.
        absent: a row that counts as absent, of the form of `rows[:1]`; None: NaN in all
            floating-point numbers.
    """
    if count_rows(rows) < 2:
        raise BadInput("there is one row: expected at least two, of which the last is varied")
    base, ordinary = _map(rows, lambda part: _slice(part, None, -1)), _last(rows)
    repeated = _map(rows, lambda part: _slice(part, 0, 1))
    tried = {
        "an ordinary row": ordinary,
        "a copy of another row": repeated,
        "a row of zeros": _map(ordinary, lambda part: _changed(part, lambda x: 0 * x)),
        "a large row": _map(ordinary, lambda part: _changed(part, lambda x: _LARGE * x)),
        "a large opposite row": _map(ordinary, lambda part: _changed(part, lambda x: -_LARGE * x)),
    }
    for name, row in others.items():
        tried[name] = _filled(ordinary, row) if isinstance(row, int | float) else row
    if adjacency == "replace_one":
        del tried["an ordinary row"]
        first = _join(base, ordinary)
    elif adjacency == "zero_out":
        first = _join(base, _filled(ordinary, float("nan")) if absent is None else absent)
    else:
        first = base
    return first, {name: _join(base, row) for name, row in tried.items()}


def _parts(rows: Any) -> list[Any]:
    if isinstance(rows, Mapping):
        return list(rows.values())
    return list(rows) if isinstance(rows, tuple | list) else [rows]


def _map(rows: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(rows, Mapping):
        return {name: change(part) for name, part in rows.items()}
    if isinstance(rows, tuple | list):
        return type(rows)(change(part) for part in rows)
    return change(rows)


def _slice(part: Any, start: int | None, stop: int | None) -> Any:
    return part.iloc[start:stop] if hasattr(part, "iloc") else part[start:stop]


def _last(rows: Any) -> Any:
    return _map(rows, lambda part: _slice(part, -1, None))


def _filled(row: Any, number: float) -> Any:
    return _map(row, lambda part: _changed(part, lambda x: 0 * x + number))


def _changed(part: Any, change: Callable[[Any], Any]) -> Any:
    """The row with its floating-point numbers changed; whole numbers and texts stay."""
    if isinstance(part, torch.Tensor):
        return change(part) if part.is_floating_point() else part
    if isinstance(part, np.ndarray):
        return change(part).astype(part.dtype) if part.dtype.kind == "f" else part
    if hasattr(part, "columns"):
        part = part.copy()
        for column in part.columns:
            if getattr(part[column].dtype, "kind", "") == "f":
                part[column] = change(part[column])
    return part


def _join(rows: Any, row: Any) -> Any:
    if isinstance(rows, Mapping):
        return {name: _join(part, row[name]) for name, part in rows.items()}
    if isinstance(rows, tuple | list):
        return type(rows)(_join(part, more) for part, more in zip(rows, row, strict=True))
    if isinstance(rows, torch.Tensor):
        return torch.cat([rows, torch.as_tensor(row, dtype=rows.dtype, device=rows.device)])
    if isinstance(rows, np.ndarray):
        return np.concatenate([rows, np.asarray(row, rows.dtype)])
    if hasattr(rows, "iloc"):
        pandas: Any = sys.modules["pandas"]  # a table is here, so pandas is
        return pandas.concat([rows, row], ignore_index=True)
    raise BadInput(
        f"rows are of type {type(rows).__name__}: expected tensors, arrays, tables of pandas, or a "
        "tuple, list or dict of these"
    )
