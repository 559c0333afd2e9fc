"""What is said where rows or targets of an estimator hold missing or infinite values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse

#: Columns that a message names.
_NAMED = 3


def describe_not_finite(rows: Any) -> str:
    """What is wrong with rows that are not finite, and what to do: for the data's curator.

    It names columns, and says no value and no row.

    Args:
        rows: a data frame, an array or a sparse matrix, as they were given.
    """
    names, at = [str(name) for name in getattr(rows, "columns", ())], _columns_not_finite(rows)
    columns = [repr(names[place]) if names else str(place) for place in at[:_NAMED]]
    more = f" and {len(at) - _NAMED} more" if len(at) > _NAMED else ""
    where = f" in column {', '.join(columns)[:50]}{more}" if columns else ""
    return (
        f"X has missing or infinite values (NaN or inf){where}: expected finite numbers. Fill "
        "them with a constant that you declare, X.fillna(0), not one learned from rows. Or encode "
        "the table by DPTableEncoder, whose schema declares it"
    )


NOT_FINITE_TARGETS = (
    "y has missing or infinite values (NaN or inf): expected a finite target for each row. Leave "
    "out the rows without one, each by itself, before the fit"
)


def _columns_not_finite(rows: Any) -> Sequence[int]:
    if issparse(rows):
        stored = rows.tocoo()
        return [int(at) for at in np.unique(stored.col[~np.isfinite(stored.data)])]
    try:
        finite = np.isfinite(np.asarray(rows, dtype=np.float64))
    except (TypeError, ValueError):
        return []
    return [int(at) for at in np.flatnonzero(~finite.all(axis=0))] if finite.ndim == 2 else []
