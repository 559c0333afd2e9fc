"""Rows of a map-style data set, fetched by index through a collate function: each made by itself, at seeds of its own."""

from __future__ import annotations

import copy
import hashlib
import random
from collections import UserDict
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
from privlearn.data.rows import Leaves, Rows, described, digests, inputs_in
from privlearn.errors import BadInput

#: Rows of a data set are made with PyTorch's, numpy's and Python's generators at this seed, so that none depends on another.
_SEED = 0
#: On so many rows a collate function is tried.
_TRIED = 4


@final
class DatasetRows:
    """Rows of a map-style `torch.utils.data.Dataset`, made anew whenever they are asked for, with a collate function.

    A row that can't be made or collated raises when it is fetched: who computes with rows takes it for one that is absent.
    Each row is made with PyTorch's, numpy's and Python's random generators at the same seed, so that it depends on no other
    row: random transforms in the data set are frozen thereby (`pv.clipping.Augmentation` makes changing copies). Rows that are
    `fresh` change from batch to batch: one that draws is made again, from a seed that follows from the batch's key and from
    the row as it is at the usual seed, not from its place.

    Args:
        dataset: with a length.
        collate: makes a batch, a nest of tensors, of a list of rows. It is given one row at a time, so that no row can depend
            on another; a row that is of other shapes or types than the first can't be used.
        workers: processes that make rows ahead of their use; 0: this one, when they are needed.
        fresh: whether rows that draw random numbers are to change from batch to batch.
        begin: called in each worker with its number, as `worker_init_fn` of a `DataLoader`.

    Attributes:
        groups: a person's id for each row, where examples are persons; None: nobody said whose they are.

    Raises:
        BadInput: not one row can be made, or a batch is no nest of tensors with a row for each example.
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
        self._made = _Made(dataset, collate or _collated)
        self.workers, self.fresh, self._begin = count("workers", workers, least=0), fresh, begin
        self._key: bytes | None = None
        self.groups: Any = None
        batch = self._first()
        leaves, self.structure = tree_flatten(batch)
        if not leaves or not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (1,) for leaf in leaves):
            raise BadInput(
                f"a batch of one row of {type(dataset).__name__} is {described(batch)}: expected tensors, or a tuple or "
                "dictionary of tensors, with one row for each example. Give a collate function that makes them"
            )
        self.like, self.inputs = tuple(leaf[:0] for leaf in leaves), inputs_in(batch)
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
        return _joined([self._made.row(number, self._key) for number in rows.tolist()]) if len(rows) else self.like

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows, each made by itself, at the usual seed."""
        each = [digests(*self._made.row(number, None)) for number in rows.tolist()]
        return np.concatenate(each) if each else np.zeros(0, np.uint64)

    def ahead(self, batches: Iterable[NDArray[np.int64]], key: Callable[[int], bytes] | None = None) -> Iterator[Rows]:
        """For each batch of indices its rows, made ahead by the workers; where one fails, when they are asked for."""
        keyed = ((indices, key(place) if key and self.fresh else None) for place, indices in enumerate(batches))
        if not self.workers:
            yield from (self._at(own) for _, own in keyed)
            return
        listed = list(keyed)
        loader = DataLoader(  # with a generator of its own: the caller's is not drawn from
            _Quiet(self._made), batch_sampler=[[(row, own) for row in indices.tolist()] for indices, own in listed],
            num_workers=self.workers, collate_fn=_joined_or_none, generator=torch.Generator(),
            worker_init_fn=self._begin,
        )  # fmt: skip
        for (indices, own), leaves in zip(listed, loader, strict=True):
            yield self._at(own) if leaves is None else _Ahead(self._at(own), indices, leaves)

    def _at(self, key: bytes | None) -> DatasetRows:
        """These rows in a batch with this key."""
        if key is None:
            return self
        rows = copy.copy(self)
        rows._key = key
        return rows

    def require_apart(self) -> None:
        """Refuse a collate function that makes something else of rows together than of each by itself.

        It is tried on a few rows, for whoever holds them: before anything is spent, outside the guarantee. One that changes
        rows at random can't be compared. Whatever it does, rows are collated one by one: this is about what the caller
        expects of it.

        Raises:
            BadInput: it packs or mixes rows, or does not take several.
        """
        numbers = [number for number in _spread(len(self), _TRIED) if self._usable(number)]
        alone = [self._made.row(number, None) for number in numbers]
        changed = [tree_leaves(self._made.batch(number, seed=_SEED, collate_seed=_SEED + 1)) for number in numbers]
        if len(numbers) < 2 or not all(_close(*pair) for pair in zip(changed, alone, strict=True)):
            return
        try:
            together = _close(tree_leaves(self._made.batch(*numbers)), _joined(alone))
        except Exception:
            together = False
        if not together:
            raise BadInput(
                "the collate function makes something else of rows together than of each row by itself: it packs, mixes or "
                "leaves out rows, and one row's values would depend on others. Expected a batch with one entry for each row, "
                "made of that row alone; do the rest in the model or the loss"
            )

    def _usable(self, number: int) -> bool:
        try:
            self._made.row(number, None)
        except Exception:
            return False
        return True


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


class _Made:
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

    def batch(self, *numbers: int, seed: int = _SEED, collate_seed: int | None = None) -> Any:
        """A batch of these rows, each made at this seed: of one alone, but to try the collate function."""
        rows = []
        for number in numbers:
            with _seeded(seed, watched=False):
                rows.append(self._dataset[number])
                if len(numbers) == 1 and collate_seed is None:
                    return _as_nest(self._collate(rows))
        with _seeded(seed if collate_seed is None else collate_seed, watched=False):
            return _as_nest(self._collate(rows))

    def row(self, number: int, key: bytes | None) -> Leaves:
        """The tensors of a row, at the usual seed; or, if it draws random numbers and there is a key, at one of its own."""
        with _seeded(_SEED, watched=key is not None) as drew:
            batch = _as_nest(self._collate([self._dataset[number]]))
            again = key is not None and drew()
        leaves = self._like_others(batch)
        if not again or key is None:
            return leaves
        own = hashlib.blake2b(digests(*leaves).tobytes(), key=key, digest_size=8).digest()
        return self._like_others(self.batch(number, seed=int.from_bytes(own, "little") >> 1))

    def _like_others(self, batch: Any) -> Leaves:
        leaves, structure = tree_flatten(batch)
        if ([(leaf.shape, leaf.dtype) for leaf in leaves], structure) != self.expected:
            raise ValueError("the row has other shapes or types than the first")
        return tuple(leaves)


class _Quiet(TorchDataset[Any]):
    """A data set in which a row that can't be made is None."""

    def __init__(self, made: _Made) -> None:
        self._made = made

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, keyed: tuple[int, bytes | None]) -> Leaves | None:
        try:
            return self._made.row(*keyed)
        except Exception:
            return None


@contextmanager
def _seeded(seed: int, *, watched: bool = True) -> Iterator[Callable[[], bool]]:
    """For the block: all random generators of the processor at one seed. All are then what they were.

    Yields whether anything has been drawn since, if it is `watched`, which takes time.
    """
    held, legacy, plain = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 - what others use
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    start = _drawn_from() if watched else ()
    try:
        yield lambda: watched and _drawn_from() != start
    finally:
        torch.set_rng_state(held)
        np.random.set_state(legacy)  # noqa: NPY002
        random.setstate(plain)


def _drawn_from() -> tuple[object, ...]:
    """Where the generators are, to compare."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    words = numpy["state"]["key"].tobytes()
    return torch.get_rng_state().numpy().tobytes(), words, numpy["state"]["pos"], numpy["has_gauss"], random.getstate()


def _as_nest(batch: Any) -> Any:
    """The batch, of whose kind of dictionary PyTorch then knows that it is one (`BatchEncoding` of transformers)."""
    kind = type(batch)
    if isinstance(batch, UserDict) and kind not in _pytree.SUPPORTED_NODES:
        _pytree.register_pytree_node(
            kind,
            lambda own: (list(own.values()), list(own)),
            lambda values, names: kind(dict(zip(names, values, strict=True))),
        )
    return batch


def _spread(rows: int, number: int) -> list[int]:
    """Up to `number` places, evenly spread over `rows`."""
    return sorted(set(np.linspace(0, rows - 1, min(number, rows)).astype(int).tolist()))


def _close(leaves: Sequence[Any], others: Sequence[Tensor]) -> bool:
    """Whether batches are the same, but for rounding."""
    return len(leaves) == len(others) and all(
        isinstance(one, Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)
        and torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-6, equal_nan=True)
        for one, other in zip(leaves, others, strict=True)
    )  # fmt: skip


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
