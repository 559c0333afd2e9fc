"""Rows of a sparse matrix stay as they are: a few are made dense at a time, where they are fetched.

What would make all of them dense at once is refused, with the memory that it would take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import BadInput

#: So many numbers are made dense together, where all rows are gone through.
_AT_ONCE = 1 << 23


def is_sparse(values: Any) -> bool:
    """Whether these are a sparse matrix of scipy, or a sparse tensor of PyTorch."""
    return (hasattr(values, "tocsr") and hasattr(values, "nnz")) or _is_sparse_tensor(values)


def describe_dense(shape: tuple[int, ...], itemsize: int = 4) -> str:
    """How many rows and columns there are, and the memory that they would take if they were made
    dense.
    """
    rows, columns = shape
    size, unit = rows * columns * itemsize / 2**20, "MiB"
    if size >= 1024:
        size, unit = size / 1024, "GiB"
    return f"{rows:,} rows x {columns:,} columns would take {size:,.1f} {unit} dense"


def refuse_dense(shape: tuple[int, ...], who: str = "what was asked for") -> NoReturn:
    """Raise `BadInput`: all of these rows would be made dense."""
    raise BadInput(
        f"the rows are a sparse matrix, and {who} computes on all of them at once: "
        f"{describe_dense(shape)}. Train by DP-SGD (pv.train, pv.sklearn.DPLogisticRegression), "
        "which takes them as they are, or make them dense, x.toarray()"
    )


@final
class SparseMatrix:
    """Rows of a sparse matrix, as an array from which rows are taken by slices and indices.

    Rows that are taken are dense, float32, in memory of their own; each depends on that row alone.

    Args:
        matrix: of scipy, in any format, or a sparse tensor; numbers, shape (rows, columns).

    Attributes:
        shape: of the matrix.
        dtype: of the rows that are taken.

    Raises:
        BadInput: no numbers, no rows and columns, or a matrix whose indices are out of order.
    """

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, matrix: Any) -> None:
        if _is_sparse_tensor(matrix):
            matrix = _of_tensor(matrix)
        if len(matrix.shape) != 2 or np.dtype(matrix.dtype).kind not in "fiub":
            raise BadInput(
                f"the sparse matrix holds {matrix.dtype} values, shape {tuple(matrix.shape)}: "
                "expected numbers, a row for each example and a column for each feature"
            )
        rows = matrix.tocsr()
        try:
            rows.check_format(full_check=True)
        except ValueError as error:
            raise BadInput(f"the sparse matrix is damaged: {error}. Make it anew") from error
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        self._rows = rows.astype(np.float32)
        self.shape: tuple[int, int] = (int(rows.shape[0]), int(rows.shape[1]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[np.float32]:
        dense: NDArray[np.float32] = self._rows[rows].toarray()
        return dense

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse_dense(self.shape)

    def __repr__(self) -> str:
        return f"SparseMatrix(shape {self.shape})"

    @property
    def size(self) -> int:
        """How many numbers there are, zeros included."""
        return self.shape[0] * self.shape[1]

    @property
    def stored(self) -> NDArray[np.float32]:
        """The numbers that are stored."""
        values: NDArray[np.float32] = self._rows.data
        return values

    def at(self, rows: NDArray[np.int64]) -> SparseMatrix:
        """Some of the rows, sparse as they are."""
        return SparseMatrix(self._rows[rows])

    def row_of(self, place: int) -> int:
        """The row of a number, by its place among those that are stored."""
        return int(np.searchsorted(self._rows.indptr, place, side="right")) - 1

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """All rows in order, a few at a time."""
        step = max(1, _AT_ONCE // max(1, self.shape[1]))
        for start in range(0, len(self), step):
            yield self[start : start + step]


def _is_sparse_tensor(values: Any) -> bool:
    return str(getattr(values, "layout", "torch.strided")) != "torch.strided"


def _of_tensor(tensor: Any) -> Any:
    from scipy.sparse import coo_array

    places = tensor.detach().cpu().to_sparse_coo().coalesce()
    return coo_array((places.values().numpy(), places.indices().numpy()), shape=tuple(tensor.shape))
