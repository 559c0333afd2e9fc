"""Rows of the next batch are fetched into pinned memory while a device computes the present one.

The thread that fetches draws nothing and decides nothing: a batch is drawn by the run, in the order
of its steps. Rows that could not be fetched ahead are fetched when they are asked for, and fail
there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privlearn.core.devices import on_processor, reads_pinned
from privlearn.core.rows import Leaves, Rows, TensorRows, Whole

#: Bytes of an expected batch that are pinned at most: memory that the system can't move.
LARGEST = 1 << 28


def fetch_ahead(
    rows: Rows, batches: Iterable[NDArray[np.int64]], device: torch.device, expected: float
) -> Iterator[Rows]:
    """For each batch of indices its rows; those of the next batch are fetched meanwhile, where they
    can be pinned.

    Args:
        rows: all rows.
        batches: the indices of each batch.
        device: where they are computed.
        expected: how many examples a batch has on average.
    """
    if not isinstance(rows, TensorRows) or not _can_be_pinned(rows, device, expected):
        yield from (rows for _ in batches)
        return
    waiting: deque[PinnedRows] = deque()
    with ThreadPoolExecutor(1) as reader:
        for indices in batches:
            waiting.append(PinnedRows(rows, indices, reader.submit(_fetch, rows, indices)))
            if len(waiting) > 1:
                yield waiting.popleft()
        yield from waiting


def _can_be_pinned(rows: TensorRows, device: torch.device, expected: float) -> bool:
    """Whether `rows` are tensors of the host, `device` reads pinned memory by itself, and an
    expected batch is small enough: public facts alone.
    """
    leaves = [leaf for leaf in rows.leaves if isinstance(leaf, Tensor) and on_processor(leaf)]
    size = sum(leaf[:1].numel() * leaf.element_size() for leaf in leaves)
    return reads_pinned(device) and len(leaves) == len(rows.leaves) and expected * size <= LARGEST


def _fetch(rows: TensorRows, indices: NDArray[np.int64]) -> Leaves:
    with torch.no_grad():
        return tuple(leaf.pin_memory() for leaf in rows.fetch(torch.from_numpy(indices)))


@final
class PinnedRows(Whole):
    """Rows, some of which were fetched into pinned memory, in the order in which a batch has them.

    Args:
        rows: all rows.
        indices: those that were fetched ahead.
        fetched: their tensors, once they are there.
    """

    def __init__(
        self, rows: TensorRows, indices: NDArray[np.int64], fetched: Future[Leaves]
    ) -> None:
        self.structure, self.inputs, self.like = rows.structure, rows.inputs, rows.like
        self._rows, self._indices, self._fetched = rows, indices, fetched
        self._waiting = np.ones(len(indices), bool)  # not handed out yet

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, rows: Tensor) -> Leaves:
        """The tensors of these rows.

        Memory that was fetched ahead is handed out once: a caller may write into it.
        """
        wanted = rows.cpu().numpy()
        (places,) = np.nonzero(self._indices == wanted[0]) if len(wanted) else ((),)
        for begin in places[:1]:
            part = slice(begin, begin + len(wanted))
            same = np.array_equal(self._indices[part], wanted) and self._waiting[part].all()
            if same and not self._fetched.exception():
                self._waiting[part] = False
                return tuple(leaf[part] for leaf in self._fetched.result())
        return self._rows.fetch(rows)

    def identities(self, rows: Tensor) -> NDArray[np.uint64]:
        """Digests of these rows as the caller passed them."""
        return self._rows.identities(rows)
