"""Whether rows that are not protected are training rows: what is said of them would be said of private rows, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 1024  # rows


def overlap(rows: Any, training: Any) -> tuple[float, float]:
    """The share of `rows` whose numbers are those of some training row, and the share of training rows that have a twin.

    Where `rows` are fresh, the two are about the same: a fresh row is as likely to be like a training row as another training
    row is. Rows of another shape, or of what are no numbers, have nothing in common.

    Args:
        rows: an array or a tensor of shape (rows, ...).
        training: the training rows, likewise.
    """
    first, second = _array(rows), _array(training)
    if first.shape[1:] != second.shape[1:] or not first.size or not second.size:
        return 0.0, 0.0
    if first.dtype.kind not in "fiub" or second.dtype.kind not in "fiub":
        return 0.0, 0.0
    kind = first.dtype if first.dtype == second.dtype else np.dtype(np.float64)
    seen = Counter(_hashes(second, kind))
    copies = sum(value in seen for value in _hashes(first, kind))
    return copies / len(first), sum(times for times in seen.values() if times > 1) / len(second)


def are_training_rows(rows: Any, training: Any) -> bool:
    """Whether `rows` are the training rows, or more than half of them are copies of some, beyond what twins explain."""
    copies, twins = overlap(rows, training)
    return copies - twins > 0.5 or (copies == 1 and np.array_equal(_array(rows), _array(training)))


def _array(values: Any) -> NDArray[Any]:
    if not hasattr(values, "detach"):
        return np.asarray(values)
    values = values.detach().cpu()  # a tensor; bfloat16 is nothing that numpy has
    return np.asarray((values.float() if values.dtype.itemsize == 2 else values).numpy())


def _hashes(values: NDArray[Any], kind: np.dtype[Any]) -> Iterator[int]:
    """64 bits for each row."""
    for start in range(0, len(values), _AT_ONCE):
        for row in np.ascontiguousarray(values[start : start + _AT_ONCE], dtype=kind):
            yield hash(row.tobytes())
