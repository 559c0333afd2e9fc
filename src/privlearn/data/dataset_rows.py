"""Rows of a map-style data set, fetched by index through a collate function: each made by itself,
at its own seeds.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as TorchDataset

from privlearn._checks import count
from privlearn.core.rows import AllRows, Leaves, Rows, Whole, described, digests, inputs_in
from privlearn.data.padding import Padding, Shapes, shapes_of
from privlearn.errors import BadInput

#: Rows of a data set are made with PyTorch's, numpy's and Python's generators at this seed, so that
#: none depends on another.
_SEED = 0
#: So many rows are looked at for their lengths, and on so many a collate function is tried.
_LOOKED_AT, _TRIED = 32, 6


@final
class DatasetRows(AllRows):
    """Rows of a map-style `torch.utils.data.Dataset`, made anew whenever they are asked for, with a
    collate function.

    A row that can't be made or collated raises when it is fetched: who computes with rows takes it
    for one that is absent. Each row is made with PyTorch's, numpy's and Python's random generators
    at the same seed, so that it depends on no other row: random transforms in the data set are
    frozen thereby (`pv.clipping.Augmentation` makes changing copies). Rows
        that are
    `fresh` change from batch to batch: one that draws is made again, from a seed that follows from
    the batch's key and from the row as it is at the usual seed, not from its place.

    Args:
        dataset: with a length.
        collate: makes a batch, a nest of tensors, of a list of rows. It is given one row at a time,
            so that no row can depend on another; a row that is of other shapes or types than the
            first can't be used, but for lengths that the function pads, once `try_collate` has
            learned how.
        workers: processes that make rows ahead of their use; 0: this one, when they are needed.
        fresh: whether rows that draw random numbers are to change from batch to batch.
        begin: called in each worker with its number, as `worker_init_fn` of a `DataLoader`.

    Attributes:
        dataset: the data set.
        groups: a person's id for each row, where examples are persons; None: it is not known whose
            they are.
        stated: the shapes of a row's tensors, with 1 for a length that differs from row to row.

    Raises:
        BadInput: not one row can be made, or a batch is no nest of tensors with a row for each
            example.
    """

    def __init__(
        self,
        dataset: TorchDataset[Any],
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
        *,
        fresh: bool = False,
        begin: Callable[[int], None] | None = None,
    ) -> None:
        self._maker, self.dataset, self.source = (
            _RowMaker(dataset, collate or _collate_default),
            dataset,
            dataset,
        )
        self.workers, self.fresh, self._begin = count("workers", workers, least=0), fresh, begin
        self._key: bytes | None = None
        self.groups: Any = None
        batch = self._first()
        leaves, self.structure = tree_flatten(batch)
        if not leaves or not all(
            isinstance(leaf, Tensor) and leaf.shape[:1] == (1,) for leaf in leaves
        ):
            raise BadInput(
                f"a batch of one row of {type(dataset).__name__} is {described(batch)}: expected "
                "tensors, or a tuple or dictionary of tensors, with one row for each example. Give "
                "a collate function that makes them, and pads boxes, say, to a public number"
            )
        self.like, self.inputs = tuple(leaf[:0] for leaf in leaves), inputs_in(batch)
        self._maker.expected = shapes_of(leaves), [leaf.dtype for leaf in leaves], self.structure
        self.stated = shapes_of(leaves)

    def _first(self) -> Any:
        """The batch of the first row that can be made: it tells the shapes, which are public."""
        if not len(self):
            raise BadInput("the data set has no rows: expected at least one")
        error: Exception | None = None
        for number in range(len(self)):
            try:
                return self._maker.batch(number)
            except Exception as raised:
                error = error or raised
        raise BadInput(
            f"no row of the data set can be made: {error}. Expected a map-style data set, and a "
            "collate function that takes one row at a time: mixup and CutMix can't be private"
        ) from error

    def __len__(self) -> int:
        return len(self._maker)

    @property
    def padding(self) -> Padding | None:
        """How rows of other lengths are padded; None if all have one."""
        return self._maker.padding

    @property
    def padded(self) -> bool:
        """Whether rows have lengths of their own: then they are computed by `by_shape`."""
        return self.padding is not None

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows, made one after the other."""
        return (
            _join([self._maker.row(number, self._key) for number in rows.tolist()])
            if len(rows)
            else self.like
        )

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows, each made by itself, at the usual seed."""
        each = [digests(*self._maker.row(number, None)) for number in rows.tolist()]
        return np.concatenate(each) if each else np.zeros(0, np.uint64)

    def ahead(
        self, batches: Iterable[NDArray[np.int64]], key: Callable[[int], bytes] | None = None
    ) -> Iterator[Rows]:
        """For each batch of indices its rows, made ahead by the workers; where one fails, when they
        are asked for.
        """
        keyed = (
            (indices, key(place) if key and self.fresh else None)
            for place, indices in enumerate(batches)
        )
        if not self.workers:
            yield from (self._at(batch_key) for _, batch_key in keyed)
            return
        # of batches that workers are at: they are asked for as few as are needed
        keys: deque[bytes | None] = deque()

        def ask() -> Iterator[list[tuple[int, bytes | None]]]:
            for indices, batch_key in keyed:
                keys.append(batch_key)
                yield [(row, batch_key) for row in indices.tolist()]

        loader = DataLoader(  # with a generator of its own: the caller's is not drawn from
            _Quiet(self._maker),
            batch_sampler=ask(),
            num_workers=self.workers,
            collate_fn=_pack_numbered,
            generator=torch.Generator(),
            worker_init_fn=self._begin,
        )
        for collated in loader:
            yield _Batch(self._at(keys.popleft()), collated)

    def by_shape(
        self, examples: NDArray[np.int64], suits: Callable[[Rows], bool]
    ) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        """The examples by the shape of their rows, each padded to a length that follows from its
        own.

        Args:
            examples: the indices.
            suits: whether rows of the shapes of these can be computed; asked last of those that are
                yielded next.
        """
        yield from _Batch(self, {}).by_shape(examples, suits)

    def _at(self, key: bytes | None) -> DatasetRows:
        """These rows in a batch with this key."""
        if key is None:
            return self
        rows = copy.copy(self)
        rows._key = key
        return rows

    def try_collate(self) -> None:
        """Learn how the collate function pads, and refuse one that makes rows together different
        from each alone.

        It is tried on a few rows, for the data's curator: before anything is spent, outside the
        guarantee. Of one that changes rows at random, only what it pads with is compared. Whatever
        it does, rows are collated one by one: this is about what the caller expects of it.

        Raises:
            BadInput: it packs or mixes rows, or does not take several.
        """
        # let all lengths pass
        self._maker.padding = Padding(tuple(() for _ in self.like), tuple(0 for _ in self.like))
        self._maker.free = True
        numbers = [
            number for number in _spread(len(self), _LOOKED_AT) if self._maker.quietly(number, None)
        ]
        rows = [self._maker.row(number, None) for number in numbers]
        order = sorted(range(len(rows)), key=lambda place: shapes_of(rows[place]))
        few = sorted({order[place] for place in _spread(len(order), _TRIED)})
        alone, numbers = [rows[place] for place in few], [numbers[place] for place in few]
        changed = [
            tree_leaves(self._maker.batch(number, seed=_SEED, collate_seed=_SEED + 1))
            for number in numbers
        ]
        drawn = not all(_close(*pair) for pair in zip(changed, alone, strict=True))
        try:
            padding = Padding.learned(alone, tree_leaves(self._maker.batch(*numbers)), drawn=drawn)
        except Exception:
            padding = None
        if padding is None and len(numbers) > 1:
            raise BadInput(
                "the collate function makes something else of rows together than of each row by "
                "itself: it packs, mixes (mixup, CutMix) or leaves out rows. Expected an entry for "
                "each row, of that row alone, and padded: change rows in the data set, one by one"
            )
        self._maker.free = False
        self._maker.padding = padding if padding and padding.varies else None
        if self._maker.padding:
            self.stated = self._maker.padding.lengths_aside(self.stated)


@final
class _Batch(Whole):
    """Some rows that are there already.

    Args:
        rows: all rows, in this batch.
        made: of each row its number, its shapes (None if it can't be made), and the values of all.
        shapes: what they are padded to, if they are.
    """

    def __init__(
        self, rows: DatasetRows, leaves: _Packed | dict[int, Leaves], shapes: Shapes | None = None
    ) -> None:
        self.structure, self.inputs, self._rows, self._shapes = (
            rows.structure,
            rows.inputs,
            rows,
            shapes,
        )
        self.like = tuple(
            leaf.new_zeros(0, *shape)
            for leaf, shape in zip(rows.like, shapes or shapes_of(rows.like), strict=True)
        )
        self._leaves = leaves if isinstance(leaves, dict) else _unpack(leaves)
        self.padding, self.padded = rows.padding, rows.padded and shapes is None

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows."""
        if not len(rows):
            return self.like
        padding, shapes = self._rows._maker.padding, self._shapes
        fetched = [self._row(number) for number in rows.tolist()]
        return _join(
            [padding.padded(row, shapes) for row in fetched] if padding and shapes else fetched
        )

    def _row(self, number: int) -> Leaves:
        """A row; one that a worker could not make is tried here."""
        if number not in self._leaves:
            self._leaves[number] = self._rows._maker.row(number, self._rows._key)
        return self._leaves[number]

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows."""
        return self._rows.identities(rows)

    def by_shape(
        self, examples: NDArray[np.int64], suits: Callable[[Rows], bool]
    ) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        """As of `DatasetRows`."""
        padding = self._rows._maker.padding
        assert padding is not None
        wanted: dict[Shapes, Shapes] = {}
        groups: dict[Shapes, list[int]] = {}
        for number in examples.tolist():
            try:
                row_shapes = shapes_of(self._row(number))
            except Exception:  # it counts as absent
                continue
            if row_shapes not in wanted:
                longer = padding.rounded_up(row_shapes)
                wanted[row_shapes] = longer if suits(_Batch(self._rows, {}, longer)) else row_shapes
            groups.setdefault(wanted[row_shapes], []).append(number)
        for shapes, numbers in sorted(groups.items()):
            rows = _Batch(self._rows, self._leaves, shapes)
            if suits(rows):
                yield rows, np.array(numbers, np.int64)


class _RowMaker:
    """The tensors of each row of a data set, shape (1, ...), made with all generators at the same
    seed.

    Attributes:
        expected: their shapes and types, and their nest.
        padding: how rows of other lengths are padded; None if all have one.
        free: whether shapes are of no matter yet.
    """

    expected: tuple[Shapes, list[torch.dtype], TreeSpec]
    padding: Padding | None = None
    free = False

    def __init__(self, dataset: TorchDataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        try:
            self._length = len(dataset)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError) as error:
            raise BadInput(
                f"{type(dataset).__name__} has no length: expected a map-style data set, with "
                "__len__ and __getitem__"
            ) from error
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return self._length

    def batch(self, *numbers: int, seed: int = _SEED, collate_seed: int | None = None) -> Any:
        """A batch of these rows, each made at this seed: of one alone, but to try the collate
        function.
        """
        rows = []
        for number in numbers:
            with _fix_seeds(seed, watched=False):
                rows.append(self._dataset[number])
                if len(numbers) == 1 and collate_seed is None:
                    return _as_nest(self._collate(rows))
        with _fix_seeds(seed if collate_seed is None else collate_seed, watched=False):
            return _as_nest(self._collate(rows))

    def row(self, number: int, key: bytes | None) -> Leaves:
        """The tensors of a row at the usual seed, or at its own seed if it draws random numbers and
        there is a key.
        """
        with _fix_seeds(_SEED, watched=key is not None) as drew:
            batch = _as_nest(self._collate([self._dataset[number]]))
            again = key is not None and drew()
        leaves = self._like_others(batch)
        if not again or key is None:
            return leaves
        digest = hashlib.blake2b(digests(*leaves).tobytes(), key=key, digest_size=8).digest()
        return self._like_others(self.batch(number, seed=int.from_bytes(digest, "little") >> 1))

    def quietly(self, number: int, key: bytes | None) -> Leaves | None:
        """The same, or None if it can't be made."""
        try:
            return self.row(number, key)
        except Exception:
            return None

    def _like_others(self, batch: Any) -> Leaves:
        leaves, structure = tree_flatten(batch)
        shapes, dtypes, expected = self.expected
        alike = [leaf.dtype for leaf in leaves] == dtypes and structure == expected
        if (
            not alike
            or not self._fit(shapes_of(leaves), shapes)
            or any(len(leaf) != 1 for leaf in leaves)
        ):
            raise ValueError("the row has other shapes or types than the first")
        return tuple(leaves)

    def _fit(self, actual: Shapes, shapes: Shapes) -> bool:
        if self.free or self.padding is None:
            return self.free or actual == shapes
        ranks = [len(shape) for shape in actual] == [len(shape) for shape in shapes]
        return ranks and self.padding.lengths_aside(actual) == self.padding.lengths_aside(shapes)


@final
class NumberedRows(TorchDataset[Any]):
    """Rows of what has them by number, such as Hugging Face's data sets, which are none of
    PyTorch's.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Any:
        return self._rows[number]


class _Quiet(TorchDataset[Any]):
    """A data set in which a row that can't be made is None."""

    def __init__(self, rows: _RowMaker) -> None:
        self._maker = rows

    def __len__(self) -> int:
        return len(self._maker)

    def __getitem__(self, keyed: tuple[int, bytes | None]) -> tuple[int, Leaves | None]:
        return keyed[0], self._maker.quietly(*keyed)


@contextmanager
def _fix_seeds(seed: int, *, watched: bool = True) -> Iterator[Callable[[], bool]]:
    """For the block: all random generators of the processor at one seed. All are then what they
    were.

    Yields whether anything has been drawn since, if it is `watched`, which takes time.
    """
    held, legacy, plain = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 - global state
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    start = _read_generators() if watched else ()
    try:
        yield lambda: watched and _read_generators() != start
    finally:
        torch.set_rng_state(held)
        np.random.set_state(legacy)  # noqa: NPY002
        random.setstate(plain)


def _read_generators() -> tuple[object, ...]:
    """Where the generators are, to compare."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    words = numpy["state"]["key"].tobytes()
    return (
        torch.get_rng_state().numpy().tobytes(),
        words,
        numpy["state"]["pos"],
        numpy["has_gauss"],
        random.getstate(),
    )


def _as_nest(batch: Any) -> Any:
    """The batch, of whose kind of dictionary PyTorch then knows that it is one (`BatchEncoding` of
    transformers).
    """
    kind = type(batch)
    if isinstance(batch, UserDict) and kind not in _pytree.SUPPORTED_NODES:
        _pytree.register_pytree_node(
            kind,
            lambda mapping: (list(mapping.values()), list(mapping)),
            lambda values, names: kind(dict(zip(names, values, strict=True))),
        )
    return batch


def _spread(rows: int, number: int) -> list[int]:
    """Up to `number` places, evenly spread over `rows`."""
    return sorted(set(np.linspace(0, rows - 1, min(number, rows)).astype(int).tolist()))


def _close(leaves: Sequence[Any], others: Sequence[Tensor]) -> bool:
    """Whether batches are the same, but for rounding."""
    return len(leaves) == len(others) and all(
        isinstance(one, Tensor)
        and (one.shape, one.dtype) == (other.shape, other.dtype)
        and torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-6, equal_nan=True)
        for one, other in zip(leaves, others, strict=True)
    )


def _collate_default(rows: list[Any]) -> Any:
    """PyTorch's way to make a batch, but for plain numbers with a point: they are float32, as in
    memory.
    """
    return default_collate(
        [
            tree_map(lambda value: np.float32(value) if isinstance(value, float) else value, row)
            for row in rows
        ]
    )


def _join(rows: Sequence[Leaves]) -> Leaves:
    """Batches of one row each as one."""
    return tuple(map(torch.cat, zip(*rows, strict=True)))


#: Rows on their way from a worker: of each its number and its shapes, and of each tensor the values
#: of all.
_Packed = tuple[list[int], list[Shapes | None], tuple[Tensor, ...]]


def _pack_numbered(rows: Sequence[tuple[int, Leaves | None]]) -> _Packed:
    return ([number for number, _ in rows], *_pack([row for _, row in rows]))


def _pack(rows: Sequence[Leaves | None]) -> tuple[list[Shapes | None], tuple[Tensor, ...]]:
    present = [row for row in rows if row is not None]
    values = tuple(
        torch.cat([leaf.flatten() for leaf in leaves]) for leaves in zip(*present, strict=True)
    )
    return [None if row is None else shapes_of(row) for row in rows], values


def _unpack(packed: _Packed) -> dict[int, Leaves]:
    """The rows that could be made."""
    numbers, shapes, values = packed
    there = [
        (number, row_shapes)
        for number, row_shapes in zip(numbers, shapes, strict=True)
        if row_shapes is not None
    ]
    pieces = [
        torch.split(value, [math.prod(row_shapes[place]) for _, row_shapes in there])
        for place, value in enumerate(values)
    ]
    return {
        number: tuple(pieces[place][row].view(1, *shape) for place, shape in enumerate(row_shapes))
        for row, (number, row_shapes) in enumerate(there)
    }
