"""Rows fetched by index, batch by batch: from memory, from memory-mapped arrays, or from a map-style data set.

A batch is any nest of tensors (tuples, lists, dictionaries) with examples along the first axis. What computes with batches
is given their tensors in the order of `torch.utils._pytree`, and the nest's structure once.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as TorchDataset

from privlearn._checks import count
from privlearn.data.dataset import as_tensor
from privlearn.errors import BadInput

#: The tensors of a batch, in the order of its nest.
Leaves = tuple[Tensor, ...]

#: Rows of a data set are made with PyTorch's, numpy's and Python's generators at this seed, so that none depends on another.
_SEED = 0


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


def nested(leaves: Sequence[Tensor], structure: TreeSpec) -> Any:
    """The batch of this structure."""
    return tree_unflatten(list(leaves), structure)


def digests(*tensors: Tensor) -> NDArray[np.uint64]:
    """A digest of each row of `tensors` taken together, shape (rows,): of the content alone, not of the place."""
    parts = [t.detach().cpu().reshape(len(t), t[:1].numel()).contiguous().view(torch.uint8).numpy() for t in tensors]
    joined = bytearray()
    for own in zip(*parts, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for part in own:
            digest.update(part)
        joined += digest.digest()
    return np.frombuffer(joined, np.uint64)


@final
class TensorRows:
    """Rows of a nest of tensors, or of memory-mapped arrays, which are read when they are asked for.

    Args:
        batch: all rows, as one batch.
        given: the tensors as they were given, if transforms have changed them since: what their digests are of.
    """

    def __init__(self, batch: Any, given: Sequence[Tensor] | None = None) -> None:
        leaves, self.structure = tree_flatten(batch)
        sizes = [getattr(leaf, "shape", ())[:1] for leaf in leaves]
        if not leaves or not all(sizes) or len(set(map(tuple, sizes))) > 1:
            raise BadInput(
                f"the rows are {_described(batch)}: expected arrays or tensors, or tuples or dictionaries of them, all with "
                "one row for each example"
            )
        self._leaves: list[Any] = leaves
        self.like = tuple(_typed(leaf[:0]) for leaf in leaves)
        self.inputs = _inputs(batch)
        self._given = given
        self._digests: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self._leaves[0])

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows."""
        return tuple(_typed(_at(leaf, rows)) for leaf in self._leaves)

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows as they were given."""
        if self._given is None:
            return digests(*self.fetch(rows))
        if self._digests is None:
            self._digests = digests(*self._given)
        own: NDArray[np.uint64] = self._digests[rows.cpu().numpy()]
        return own


def _at(leaf: Any, rows: Tensor) -> Any:
    return leaf[rows.to(leaf.device)] if isinstance(leaf, Tensor) else leaf[rows.cpu().numpy()]


def _typed(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else as_tensor(np.array(values))


def _inputs(batch: Any) -> int:
    """How many tensors belong to the inputs."""
    return len(tree_leaves(batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch))


@final
class TransformedRows:
    """Rows whose first tensor, the inputs, goes through public modules whenever they are fetched.

    Args:
        rows: the rows.
        modules: the modules, each treats every row by itself.
    """

    def __init__(self, rows: Rows, modules: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self._rows, self._modules, self.structure, self.inputs = rows, modules, rows.structure, rows.inputs
        first = self._through(rows.like[0].new_zeros(1, *rows.like[0].shape[1:]))
        self.like = (first[:0], *rows.like[1:])

    def _through(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for module in self._modules:
                x = module(x)
        return x

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows."""
        x, *others = self._rows.fetch(rows)
        return self._through(x), *others

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows as they were given."""
        return self._rows.identities(rows)

    def ahead(self, batches: Sequence[NDArray[np.int64]]) -> Iterator[Rows]:
        """For each batch of indices its rows, fetched ahead where the rows do that."""
        return (TransformedRows(rows, self._modules) for rows in ahead(self._rows, batches))


def ahead(rows: Rows, batches: Sequence[NDArray[np.int64]]) -> Iterator[Rows]:
    """For each batch of indices its rows, fetched ahead where the rows do that."""
    if isinstance(rows, DatasetRows | TransformedRows):
        return rows.ahead(batches)
    return (rows for _ in batches)


@final
class DatasetRows:
    """Rows of a map-style `torch.utils.data.Dataset`, made anew whenever they are asked for, with a collate function.

    A row that can't be made or collated raises when it is fetched: who computes with rows takes it for one that is absent.
    Each row is made with PyTorch's, numpy's and Python's random generators at the same seed, so that it depends on no other
    row: random transforms in the data set are frozen thereby (`pv.clipping.Augmentation` makes changing copies).

    Args:
        dataset: with a length.
        collate: makes a batch, a nest of tensors, of a list of rows. It is given one row at a time, so that no row can depend
            on another; a row that is of other shapes or types than the first can't be used.
        workers: processes that make rows ahead of their use; 0: this one, when they are needed.

    Raises:
        BadInput: not one row can be made, or a batch is no nest of tensors with a row for each example.
    """

    def __init__(
        self, dataset: TorchDataset[Any], collate: Callable[[list[Any]], Any] | None = None, workers: int = 0
    ) -> None:
        self._made = _Made(dataset, collate or _collated)
        self.workers = count("workers", workers, least=0)
        batch = self._first()
        leaves, self.structure = tree_flatten(batch)
        if not leaves or not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (1,) for leaf in leaves):
            raise BadInput(
                f"a batch of one row of {type(dataset).__name__} is {_described(batch)}: expected tensors, or a tuple or "
                "dictionary of tensors, with one row for each example. Give a collate function that makes them"
            )
        self.like, self.inputs = tuple(leaf[:0] for leaf in leaves), _inputs(batch)
        self._made.expected = [(leaf.shape, leaf.dtype) for leaf in leaves], self.structure

    def _first(self) -> Any:
        """The batch of the first row that can be made: it tells the shapes, which are public."""
        if not len(self):
            raise BadInput("the data set has no rows: expected at least one")
        error: Exception | None = None
        for number in range(len(self)):
            try:
                return self._made.batch(number)
            except Exception as raised:
                error = error or raised
        raise BadInput(
            f"no row of the data set can be made: {error}. Expected a map-style data set, with rows"
        ) from error

    def __len__(self) -> int:
        return len(self._made)

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows, made one after the other."""
        return _joined([self._made[number] for number in rows.tolist()]) if len(rows) else self.like

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows, each made by itself."""
        return (
            np.concatenate([digests(*self.fetch(row)) for row in rows[:, None]])
            if len(rows)
            else np.zeros(0, np.uint64)
        )

    def ahead(self, batches: Sequence[NDArray[np.int64]]) -> Iterator[Rows]:
        """For each batch of indices its rows, made ahead by the workers; where one fails, when they are asked for."""
        if not self.workers:
            yield from (self for _ in batches)
            return
        loader = DataLoader(  # with a generator of its own: the caller's is not drawn from
            _Quiet(self._made), batch_sampler=[indices.tolist() for indices in batches], num_workers=self.workers,
            collate_fn=_joined_or_none, generator=torch.Generator(),
        )  # fmt: skip
        for indices, leaves in zip(batches, loader, strict=True):
            yield self if leaves is None else _Ahead(self, indices, leaves)


@final
class _Ahead:
    """A batch of rows that are there already."""

    def __init__(self, rows: DatasetRows, indices: NDArray[np.int64], leaves: Leaves) -> None:
        self.like, self.structure, self.inputs, self._rows = rows.like, rows.structure, rows.inputs, rows
        self._place = {index: place for place, index in enumerate(indices.tolist())}
        self._leaves = leaves

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows."""
        places = torch.tensor([self._place[index] for index in rows.tolist()])
        return tuple(leaf[places] for leaf in self._leaves)

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows."""
        return self._rows.identities(rows)


class _Made(TorchDataset[Leaves]):
    """The tensors of each row of a data set, shape (1, ...), made with all generators at the same seed.

    Attributes:
        expected: their shapes and types, and their nest.
    """

    expected: tuple[list[tuple[torch.Size, torch.dtype]], TreeSpec]

    def __init__(self, dataset: TorchDataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        try:
            self._length = len(dataset)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError) as error:
            raise BadInput(
                f"{type(dataset).__name__} has no length: expected a map-style data set, with __len__ and __getitem__"
            ) from error
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return self._length

    def batch(self, number: int) -> Any:
        """A batch of this row alone."""
        with _seeded():
            return self._collate([self._dataset[number]])

    def __getitem__(self, number: int) -> Leaves:
        leaves, structure = tree_flatten(self.batch(number))
        if ([(leaf.shape, leaf.dtype) for leaf in leaves], structure) != self.expected:
            raise ValueError("the row has other shapes or types than the first")
        return tuple(leaves)


class _Quiet(TorchDataset[Any]):
    """A data set in which a row that can't be made is None."""

    def __init__(self, made: _Made) -> None:
        self._made = made

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, number: int) -> Leaves | None:
        try:
            return self._made[number]
        except Exception:
            return None


@contextmanager
def _seeded() -> Iterator[None]:
    """For the block: all random generators of the processor at one seed. All are then what they were."""
    held, legacy, plain = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 - what others use
    torch.default_generator.manual_seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002
    random.seed(_SEED)
    try:
        yield
    finally:
        torch.set_rng_state(held)
        np.random.set_state(legacy)  # noqa: NPY002
        random.setstate(plain)


def _collated(rows: list[Any]) -> Any:
    """PyTorch's way to make a batch, but for plain numbers with a point: they are float32, as in memory."""
    return default_collate(
        [tree_map(lambda value: np.float32(value) if isinstance(value, float) else value, row) for row in rows]
    )


def _joined(rows: Sequence[Leaves]) -> Leaves:
    """Batches of one row each as one."""
    return tuple(map(torch.cat, zip(*rows, strict=True)))


def _joined_or_none(rows: Sequence[Leaves | None]) -> Leaves | None:
    """The same; None if there are no rows, or one could not be made."""
    return _joined([row for row in rows if row is not None]) if rows and all(row is not None for row in rows) else None


def _described(batch: Any) -> str:
    leaves = tree_leaves(batch)
    shapes = [tuple(leaf.shape) if hasattr(leaf, "shape") else type(leaf).__name__ for leaf in leaves]
    return f"a {type(batch).__name__} of {str(shapes)[:80]}"
