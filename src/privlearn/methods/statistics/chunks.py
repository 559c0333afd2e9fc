"""Rows that come chunk by chunk, for what adds up over all rows once: statistics, moments,
principal directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import checked, count
from privlearn.errors import BadInput


@checked
@final
class Chunks:
    """Rows in the place of an array of all of them; one chunk is in memory at a time.

    Sums over them are those over the array, bit for bit: the same rows are added in the same order,
    each clipped by itself, and released once. How many rows there are is as private as of an array.

    Args:
        begin: begins anew at the first row, each time that it is called: gives an iterable of
            arrays or tensors, shape (rows of the chunk, ...), all of one type and the same rows
            each time.
        rows: how many there are in all. Where `begin` gives more or fewer, the sums are refused,
            before a charge.

    Raises:
        BadInput: no chunk, or none of numbers.
    """

    def __init__(self, begin: Callable[[], Iterable[Any]], rows: int) -> None:
        self._begin, self._rows = begin, count("rows", rows)
        first = next(iter(begin()), None)
        like = np.asarray(first)
        if first is None or like.dtype.kind not in "fiub" or not like.ndim:
            raise BadInput(
                "begin() gave "
                f"{'no chunk' if first is None else f'{like.dtype} values of shape {like.shape}'}: "
                "expected a function that gives an iterable of arrays of numbers, one row for "
                "each example"
            )
        self._none = like[:0].copy()
        self._left: Iterator[NDArray[Any]] = iter(())
        # rows that were taken out of the iterator, and the first one's number
        self._held, self._at = self._none, rows

    @classmethod
    def labelled(
        cls, begin: Callable[[], Iterable[tuple[Any, Any]]]
    ) -> tuple[Chunks, NDArray[Any]]:
        """The inputs of chunks that are pairs (inputs, targets), and all targets, which are read
        here and kept.
        """
        targets = [np.array(chunk_targets) for _, chunk_targets in begin()]
        if not targets:
            raise BadInput(
                "begin() gave no chunk: expected an iterable of pairs (inputs, targets) of arrays"
            )
        y = np.concatenate(targets)
        return cls(lambda: (inputs for inputs, _ in begin()), len(y)), y

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return (self._rows, *self._none.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of an array."""
        return self._none.dtype

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Rows next to each other, from the first or from where the last were taken.

        Raises:
            BadInput: others; or chunks that are not of the first one's type, or not as many rows as
                were said.
        """
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            self._refuse()
        start, stop, _ = rows.indices(self._rows)
        if stop <= start:
            return self._none
        if start == 0:
            self._left, self._held, self._at = self._chunks(), self._none, 0
        if start != self._at:
            self._refuse()
        parts = [self._held[: stop - start]]
        self._held = self._held[stop - start :]
        missing = stop - start - len(parts[0])
        while missing:
            chunk = next(self._left, None)
            if chunk is None:
                raise BadInput(
                    f"there are fewer rows than the {self._rows} that were said: give their number "
                    "as rows="
                )
            parts.append(chunk[:missing])
            self._held = chunk[missing:]
            missing -= len(parts[-1])
        self._at = stop
        if stop == self._rows and (len(self._held) or any(len(rest) for rest in self._left)):
            raise BadInput(
                f"there are more rows than the {self._rows} that were said: give their number as "
                "rows="
            )
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _chunks(self) -> Iterator[NDArray[Any]]:
        for chunk in map(np.asarray, self._begin()):
            if chunk.shape[1:] != self._none.shape[1:] or chunk.dtype != self._none.dtype:
                raise BadInput(
                    f"a chunk has {chunk.dtype} rows of shape {chunk.shape[1:]}, and the first one "
                    f"{self._none.dtype} rows of shape {self._none.shape[1:]}: expected one type "
                    "and shape"
                )
            yield chunk

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BadInput(
            "rows that come chunk by chunk can only be gone through in their order: what is asked "
            "for takes them otherwise. Pack them (privlearn.data.pack), and give pv.load(folder)"
        )
