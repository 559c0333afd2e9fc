"""This file finds which original row each row of a data set is, by structure and memory, never by
what rows hold.

A row that comes several times counts several times, in every sum and in every draw, and its person
is protected as much less. Indices, parts, joined data sets and tensors in shared memory say where
rows come from; of copies that were made elsewhere nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from privlearn.core.accounting.guarantee import MOST_IN_A_GROUP, PrivacyUnit
from privlearn.core.rows import AllRows, TensorRows, TransformedRows
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput

#: A number for the original row of each row: consecutive ones where nothing is left out, so that
#: they take no memory.
Column = range | NDArray[np.int64]

#: Stands where a row comes from no original row of this kind.
_NONE = np.iinfo(np.int64).min
#: Numbers that each source has for its rows, from a first one on that is below all addresses in
#: memory.
_APART, _FIRST = 1 << 40, -(1 << 62)
#: Up to so many times as many numbers as there are rows are counted in place, above that in order.
_DENSE = 8
#: What is another object in each row of a list, unless it is the same row.
_OBJECTS = (dict, list, Tensor, np.ndarray)


def require_once(source: Any, unit: PrivacyUnit, groups: Any = None) -> None:
    """Refuse rows that come more often than the unit of protection says: a look at the data for
    their curator.

    Nothing but indices and places in memory is looked at.

    Args:
        source: rows, a data set or a loader.
        unit: the unit of the plan.
        groups: a person's id for each row, where examples are persons.

    Raises:
        BadInput: one original row stands among them more often than `unit.group_size`, or under
            several persons.
    """
    origins = Origins(source)
    if unit.rows_per_person is not None:
        if groups is not None and origins.are_split(groups):
            raise BadInput(
                "one row is there several times (by repeated indices, or one data set joined to "
                "itself), under the ids of different persons, of whom each would count alone. Give "
                "all copies of a row one id"
            )
        return
    most = origins.most
    if most <= unit.group_size:
        return
    declared = (
        "" if most > MOST_IN_A_GROUP else f", or declare them: group_size={most}, with more noise"
    )
    raise BadInput(
        f"one row stands {most} times in the data (repeated indices, one data set joined to "
        f"itself, shared memory), and the plan protects {unit.group_size} together. Leave the "
        f"copies out and weigh rows in the loss{declared}",
        repeats=most,
    )


@final
class Origins:
    """Where the rows of a data set come from.

    Known are `Subset`, `ConcatDataset` and `StackDataset` of PyTorch, however nested, and what has
    their attributes; tensors and arrays, whose rows are their places in memory; data sets of
    Hugging Face, whose rows are places in memory behind indices; lists of rows, which are objects;
    and data sets that hold one of these of their own length, row for row. Of any other data set
    each row is one of its own.

    Args:
        given: rows, a data set or a loader.
    """

    def __init__(self, source: Any) -> None:
        self._firsts: dict[object, int] = {}
        self._under_way: list[int] = []
        self._columns = self._of(source)

    @property
    def most(self) -> int:
        """How often one original row is there, at most: 1 where none comes twice."""
        columns = self._columns if self._are_apart() else [self._pairs()[1]]
        return max(map(_most, columns), default=1)

    def are_split(self, groups: Any) -> bool:
        """Whether copies of one original row have different ids in `groups`, one for each row."""
        if self.most == 1:
            return False
        rows, origins = self._pairs()
        _, ids = np.unique(np.asarray(groups), return_inverse=True)
        order = np.lexsort((ids.reshape(-1)[rows], origins))
        origins, owners = origins[order], ids.reshape(-1)[rows][order]
        return bool(((origins[1:] == origins[:-1]) & (owners[1:] != owners[:-1])).any())

    def _are_apart(self) -> bool:
        """Whether no two columns have numbers in common: then each can be counted by itself."""
        ends = sorted(end for column in self._columns if (end := _ends(column)) is not None)
        return all(one[1] < other[0] for one, other in pairwise(ends))

    def _pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each row with each of its original rows, once."""
        columns = [_whole(column) for column in self._columns]
        if len(columns) == 1:
            rows = np.flatnonzero(columns[0] != _NONE)
            return rows, columns[0][rows]
        table = np.stack(columns, 1)
        table.sort(1)
        table[:, 1:][table[:, 1:] == table[:, :-1]] = _NONE
        rows, places = np.nonzero(table != _NONE)
        return rows, table[rows, places]

    def _first(self, source: object) -> int:
        """The number of a source's first row."""
        return self._firsts.setdefault(source, _FIRST + _APART * len(self._firsts))

    def _of(self, data: Any) -> list[Column]:
        """The columns of a data set, each as long as it is."""
        if isinstance(data, DataLoader):
            return self._of(data.dataset)
        if isinstance(data, TransformedRows):
            return self._of(data.rows)
        if isinstance(data, AllRows) and data.source is not None:
            return self._of(data.source)
        if isinstance(data, TensorRows):
            return self._in_memory(data.leaves)
        if isinstance(data, Dataset):
            return self._in_memory((data.x, data.y))
        length = _length(data)
        if length is None or id(data) in self._under_way:
            return []
        self._under_way.append(id(data))
        try:
            return self._of_structure(data, length)
        finally:
            self._under_way.pop()

    def _of_structure(self, data: Any, length: int) -> list[Column]:
        kind = type(data)
        if isinstance(data, ConcatDataset):
            return self._join([(self._of(part), len(part)) for part in data.datasets])  # type: ignore[arg-type]
        if isinstance(data, StackDataset):
            parts = data.datasets.values() if isinstance(data.datasets, dict) else data.datasets
            return [column for part in parts for column in self._of(part)]
        if isinstance(data, TensorDataset) and kind.__getitem__ is TensorDataset.__getitem__:
            return self._in_memory(data.tensors)
        held = vars(data) if hasattr(data, "__dict__") else {}
        chosen = "indices" in held and "dataset" in held and _length(held["indices"]) == length
        if chosen and (places := _places(held["indices"], _length(held["dataset"]))) is not None:
            return [_take(column, places) for column in self._of(held["dataset"])]
        if "_data" in held and "_indices" in held and (column := self._in_arrow(data)) is not None:
            return [column]
        values = [data] if isinstance(data, list | tuple) else held.values()
        return [
            range(first := self._first(id(data)), first + length),
            *self._search(values, length),
        ]

    def _search(self, values: Iterable[Any], length: int) -> list[Column]:
        """What a data set of which nothing is known holds of its own length: data sets, lists, the
        widest of arrays.
        """
        columns, arrays = list[Column](), list[Any]()
        for value in values:
            if isinstance(value, list | tuple) and len(value) == length:
                objects = np.fromiter(map(_object, value), np.int64, length)
                columns += [objects] if (objects != _NONE).any() else []
            elif isinstance(value, Tensor | np.ndarray):
                arrays += [value] if value.ndim > 1 and len(value) == length else []
            elif isinstance(value, TorchDataset) or hasattr(value, "with_format"):
                columns += self._of(value) if _length(value) == length else []
        return columns + self._in_memory(arrays)

    @staticmethod
    def _join(parts: Sequence[tuple[list[Column], int]]) -> list[Column]:
        if len(parts) == 1:
            return parts[0][0]
        empty = [np.full(length, _NONE, np.int64) for _, length in parts]
        return [
            np.concatenate(
                [
                    _whole(columns[place]) if place < len(columns) else none
                    for (columns, _), none in zip(parts, empty, strict=True)
                ]
            )
            for place in range(max((len(columns) for columns, _ in parts), default=0))
        ]

    @staticmethod
    def _in_memory(leaves: Iterable[Any]) -> list[Column]:
        """The addresses of the rows of that array with the most numbers in a row; the first one of
        several.

        One whose rows are all the same memory, such as an expanded target, says nothing where there
        are others.
        """
        arrays = [
            (sizes[0], sizes[1], *place)
            for leaf in leaves
            if (place := _address(leaf)) is not None
            for sizes in [(len(leaf), int(np.prod(leaf.shape[1:])))]
            if sizes[1]
        ]
        moving = [array for array in arrays if array[3] or array[0] < 2] or arrays
        if not moving:
            return []
        rows, _, address, stride = max(moving, key=lambda array: array[1])
        if not stride:
            return [np.full(rows, address, np.int64)]
        return [range(address, address + rows * stride, stride)]

    def _in_arrow(self, data: Any) -> Column | None:
        """The places of a Hugging Face data set's rows in Arrow's buffers, behind its indices; None
        if unknown.
        """
        try:
            table = getattr(data._data, "table", data._data)
            for column in table.columns:
                places = [
                    (chunk, next((b for b in chunk.buffers()[1:] if b is not None), None))
                    for chunk in column.chunks
                ]
                if all(buffer is not None for _, buffer in places):
                    break
            else:
                return None
            firsts = [
                self._first(("arrow", cast(Any, buffer).address)) + chunk.offset
                for chunk, buffer in places
            ]
            rows = [
                np.arange(first, first + len(chunk))
                for first, (chunk, _) in zip(firsts, places, strict=True)
            ]
            numbers = np.concatenate([*rows, np.zeros(0, np.int64)])
            if data._indices is None:
                return numbers
            chosen = [
                chunk.to_numpy(zero_copy_only=False) for chunk in data._indices.column(0).chunks
            ]
            return numbers[np.concatenate([*chosen, np.zeros(0, np.int64)]).astype(np.int64)]
        # another version keeps them in another way
        except (AttributeError, TypeError, ValueError, IndexError):
            return None


def _length(collection: Any) -> int | None:
    try:
        return len(collection)
    except (TypeError, NotImplementedError):
        return None


def _address(leaf: Any) -> tuple[int, int] | None:
    """Where an array's first row is, and how far from it the next."""
    try:
        if isinstance(leaf, Tensor):
            return (
                (leaf.data_ptr(), leaf.stride(0) * leaf.element_size())
                if leaf.dim() and leaf.data_ptr()
                else None
            )
        if isinstance(leaf, np.ndarray) and leaf.ndim:
            return leaf.__array_interface__["data"][0], leaf.strides[0]
    except RuntimeError:  # sparse, say: it has no rows in memory
        pass
    return None


def _object(row: Any) -> int:
    """Which object a row of a list is, or the first one in it. Numbers and texts are none: equal
    ones may be one.
    """
    if isinstance(row, tuple):
        row = next((part for part in row if isinstance(part, _OBJECTS)), None)
    return id(row) if isinstance(row, _OBJECTS) else _NONE


def _places(indices: Any, length: int | None) -> Column | None:
    """Indices as numbers from 0; None if they are none."""
    if length is None:
        return None
    if isinstance(indices, range) and len(indices) and min(indices) >= 0:
        return indices
    try:
        places = (
            np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices)
            .reshape(-1)
            .astype(np.int64)
        )
    except (TypeError, ValueError):
        return None
    return np.where(places < 0, places + length, places)


def _take(column: Column, places: Column) -> Column:
    """The numbers at these places; one that is not there has none."""
    if isinstance(column, range) and isinstance(places, range) and max(places) < len(column):
        return range(
            column[places[0]],
            column[places[0]] + len(places) * (step := column.step * places.step),
            step,
        )
    chosen = _whole(places)
    there = (chosen >= 0) & (chosen < len(column))
    safe = np.where(there, chosen, 0)
    if not len(column):
        return np.full(len(chosen), _NONE, np.int64)
    numbers = column.start + safe * column.step if isinstance(column, range) else column[safe]
    return numbers if there.all() else np.where(there, numbers, _NONE)


def _whole(column: Column) -> NDArray[np.int64]:
    return (
        np.arange(column.start, column.stop, column.step) if isinstance(column, range) else column
    )


def _ends(column: Column) -> tuple[int, int] | None:
    """The smallest and the largest number; None if there is none."""
    if isinstance(column, range):
        return (min(column[0], column[-1]), max(column[0], column[-1])) if len(column) else None
    there = column[column != _NONE] if _NONE in column else column
    return (int(there.min()), int(there.max())) if len(there) else None


def _most(column: Column) -> int:
    """How often the most frequent number is there."""
    if isinstance(column, range) or (ends := _ends(column)) is None:
        return 1
    numbers = column[column != _NONE] - ends[0]
    numbers //= max(1, int(np.gcd.reduce(numbers)))
    if numbers.max() < _DENSE * len(numbers):
        return int(np.bincount(numbers).max())
    numbers.sort()
    changes = np.flatnonzero(numbers[1:] != numbers[:-1])
    return int(np.diff(changes, prepend=-1, append=len(numbers) - 1).max())
