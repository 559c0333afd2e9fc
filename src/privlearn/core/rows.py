"""Rows are fetched by index, batch by batch, from memory or memory-mapped arrays (from data sets:
`data.dataset_rows`).

A batch is any nest of tensors (tuples, lists, dictionaries) with examples along the first axis.
What computes with batches is given their tensors in the order of `torch.utils._pytree`, and the
nest's structure once.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from privlearn._checks import quoted
from privlearn.core.devices import move
from privlearn.core.tensors import as_tensor
from privlearn.errors import BadInput

#: Threads that read memory-mapped rows: disks serve several requests at once.
_READERS = 4
#: The tensors of a batch, in the order of its nest.
Leaves = tuple[Tensor, ...]


class Rows(Protocol):
    """Rows that can be fetched by index.

    Attributes:
        like: no rows: tensors of shape (0, ...) of the shapes and types that `fetch` gives.
        structure: the nest that a batch is.
        inputs: how many tensors belong to the first part of a batch that is a pair; else all.
    """

    like: Leaves
    structure: TreeSpec
    inputs: int

    def __len__(self) -> int: ...

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows, in memory of their own.

        Raises:
            Exception: a row can't be fetched.
        """

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """A digest of each of these rows as they were given, before any transform."""


class Whole:
    """What goes whole into a step: taken apart in the loop, it says who gets the rows."""

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "a batch goes whole into a step, private.step(batch, loss), and is not taken apart "
            "before it. The loss gets the model and the rows: def loss(model, rows): x, y = rows"
        )

    def __getitem__(self, _: Any) -> Any:
        return iter(self)

    def to(self, device: Any = None, **options: Any) -> Self:
        """Itself: the step brings the rows to the model's device, where the loss gets them.

        Raises:
            BadInput: something else than a device is given, such as a type.
        """
        if not isinstance(device, str | int | torch.device) or set(options) - {"non_blocking"}:
            arguments = ", ".join([quoted(device), *(f"{name}=" for name in options)])
            raise BadInput(
                f"to() of a batch was given {arguments}: expected a device alone. The step brings "
                "the rows to the model's device; change their types in the loss, which gets them"
            )
        return self


class AllRows(Whole, ABC):
    """All rows that a run trains on, by index: what `Rows` says, and where they are from.

    Attributes:
        source: the data set that they are rows of; None if there is none, or it is not known.
        workers: threads or processes that fetch rows ahead of their use; 0 where that gains
            nothing.
        fresh: whether rows are made anew for each batch, from its key.
        stated: where rows are padded, the shapes of a row's tensors, with 1 for a length that
            differs.
    """

    like: Leaves
    structure: TreeSpec
    inputs: int
    stated: tuple[tuple[int, ...], ...]
    source: Any = None
    workers: int = 0
    fresh: bool = False

    @property
    def padded(self) -> bool:
        """Whether rows have lengths of their own: then they are computed by `by_shape`."""
        return False

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def fetch(self, rows: Tensor) -> Leaves:
        """As of `Rows`."""

    @abstractmethod
    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """As of `Rows`."""


def nested(leaves: Sequence[Tensor], structure: TreeSpec) -> Any:
    """The batch of this structure."""
    return tree_unflatten(list(leaves), structure)


def digests(*tensors: Tensor) -> NDArray[np.uint64]:
    """A digest of each row of `tensors` taken together, shape (rows,): of the content alone, not of
    the place.
    """
    parts = [
        t.detach().cpu().reshape(len(t), t[:1].numel()).contiguous().view(torch.uint8).numpy()
        for t in tensors
    ]
    joined = bytearray()
    for row in zip(*parts, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for part in row:
            digest.update(part)
        joined += digest.digest()
    return np.frombuffer(joined, np.uint64)


@final
class TensorRows(AllRows):
    """Rows of a nest of tensors, or of memory-mapped arrays, which are read when they are asked
    for.

    Args:
        batch: all rows, as one batch.
        given: the tensors as they were given, if transforms have changed them since: what their
            digests are of.

    Attributes:
        leaves: the tensors or arrays, in the order of the nest.
        source: the data set that they were taken from; None if there was none, or it is not known.
        workers: threads that fetch rows ahead of their use, where arrays are memory-mapped; else 0.
    """

    def __init__(self, batch: Any, raw_rows: Sequence[Tensor] | None = None) -> None:
        leaves, self.structure = tree_flatten(batch)
        self.inputs = inputs_in(batch)
        sizes = [getattr(leaf, "shape", ())[:1] for leaf in leaves]
        if not leaves or not all(sizes) or len(set(map(tuple, sizes))) > 1:
            raise BadInput(
                f"the rows are {described(batch)}: expected arrays or tensors, or tuples or "
                "dictionaries of them, all with one row for each example"
            )
        self.leaves: list[Any] = leaves
        self.like = tuple(_to_tensor(leaf[:0]) for leaf in leaves)
        self.workers = _READERS if any(isinstance(leaf, np.memmap) for leaf in leaves) else 0
        self._raw_rows = raw_rows
        self._digests: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.leaves[0])

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows."""
        devices = {leaf.device for leaf in self.leaves if isinstance(leaf, Tensor)}
        places = {device: move(rows, device) for device in devices}  # the same for all tensors
        return tuple(
            _to_tensor(_at(leaf, places[leaf.device] if isinstance(leaf, Tensor) else rows))
            for leaf in self.leaves
        )

    def ahead(
        self, batches: Iterable[NDArray[np.int64]], key: Callable[[int], bytes] | None = None
    ) -> Iterator[Rows]:
        """For each batch of indices its rows; of memory-mapped arrays those of the next batch are
        read meanwhile.
        """
        if not self.workers:
            yield from (self for _ in batches)
            return
        waiting: deque[FetchedRows] = deque()
        with ThreadPoolExecutor(self.workers) as readers:
            for indices in batches:
                ascending = np.sort(indices)
                parts = [part for part in np.array_split(ascending, self.workers) if len(part)]
                read = [readers.submit(self.fetch, torch.from_numpy(part)) for part in parts]
                waiting.append(FetchedRows(self, ascending, read))
                if len(waiting) > 1:
                    yield waiting.popleft()
            yield from waiting

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows as they were given."""
        if self._raw_rows is None:
            return digests(*self.fetch(rows))
        if self._digests is None:
            self._digests = digests(*self._raw_rows)
        chosen: NDArray[np.uint64] = self._digests[rows.cpu().numpy()]
        return chosen


@final
class FetchedRows(Whole):
    """Some rows that were asked for ahead of their use; others are fetched when they are asked for.

    Args:
        rows: all rows.
        indices: those that were asked for, ascending.
        read: their tensors, in parts, in that order.
    """

    def __init__(
        self, rows: Rows, indices: NDArray[np.int64], read: Sequence[Future[Leaves]]
    ) -> None:
        self._rows, self.structure, self.inputs, self.like = (
            rows,
            rows.structure,
            rows.inputs,
            rows.like,
        )
        self._indices, self._read = indices, read
        self._leaves: Leaves | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows."""
        wanted = rows.cpu().numpy()
        places = np.searchsorted(self._indices, wanted).clip(max=max(len(self._indices) - 1, 0))
        # then each row by itself: none depends on another
        failed = any(part.exception() for part in self._read)
        if failed or not len(self._indices) or (self._indices[places] != wanted).any():
            return self._rows.fetch(rows)
        if self._leaves is None:
            self._leaves = tuple(
                map(torch.cat, zip(*(part.result() for part in self._read), strict=True))
            )
        return tuple(leaf[torch.from_numpy(places)] for leaf in self._leaves)

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows as they were given."""
        return self._rows.identities(rows)


def _at(leaf: Any, rows: Tensor) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf[rows.cpu().numpy()]
    # The same rows, in a quarter of the time for small ones; of other orders of memory it would
    # make a plain one.
    plain = rows.dtype == torch.int64 and rows.dim() == 1 and leaf.is_contiguous()
    return leaf.index_select(0, rows) if plain else leaf[rows]


def _to_tensor(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else as_tensor(np.array(values))


def inputs_in(batch: Any) -> int:
    """How many tensors belong to the inputs."""
    return len(
        tree_leaves(batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch)
    )


@final
class TransformedRows(AllRows):
    """Rows whose first tensor, the inputs, goes through public modules whenever they are fetched.

    Args:
        rows: the rows.
        modules: the modules, each treats every row by itself.

    Attributes:
        rows: the rows as they were given.
    """

    def __init__(self, rows: Rows, modules: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self.rows, self._modules, self.structure, self.inputs = (
            rows,
            modules,
            rows.structure,
            rows.inputs,
        )
        self.workers = getattr(rows, "workers", 0)
        first = self._through(rows.like[0].new_zeros(1, *rows.like[0].shape[1:]))
        self.like = (first[:0], *rows.like[1:])

    def _through(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for module in self._modules:
                x = module(x)
        return x

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows."""
        x, *others = self.rows.fetch(rows)
        return self._through(x), *others

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows as they were given."""
        return self.rows.identities(rows)

    def ahead(
        self, batches: Iterable[NDArray[np.int64]], key: Callable[[int], bytes] | None = None
    ) -> Iterator[Rows]:
        """For each batch of indices its rows, fetched ahead where the rows do that."""
        return (TransformedRows(rows, self._modules) for rows in ahead(self.rows, batches, key))


def ahead(
    rows: Rows, batches: Iterable[NDArray[np.int64]], key: Callable[[int], bytes] | None = None
) -> Iterator[Rows]:
    """For each batch of indices its rows, fetched ahead where the rows do that.

    Args:
        rows: all rows.
        batches: the indices of each batch.
        key: what rows that are `fresh` are made from in a batch of this place among `batches`;
            None: as they always are.
    """
    fetched: Iterator[Rows] = (
        rows.ahead(batches, key) if hasattr(rows, "ahead") else (rows for _ in batches)
    )
    return fetched


def described(batch: Any) -> str:
    """The shapes of a batch, for a message."""
    leaves = tree_leaves(batch)
    shapes = [
        tuple(leaf.shape) if hasattr(leaf, "shape") else type(leaf).__name__ for leaf in leaves
    ]
    return f"a {type(batch).__name__} of {str(shapes)[:80]}"
