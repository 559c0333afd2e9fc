"""How many threads a run of the command line computes with: one where its steps are small.

Threads wait for each other several times in each layer. On a machine with other work that takes
longer than a small step. The number follows from public figures alone, so that a run which goes on,
or is replayed, has the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from privlearn.data.dataset import Dataset
from privlearn.errors import PrivlearnError
from privlearn.training.rehearsal import count_operations
from privlearn.training.rules import Settled

#: Operations of a step's forward pass for which a thread is worth its while.
_WORTH = 10**8
#: Variables by which users choose themselves.
_CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def limit_threads(runs: Iterable[Settled], data: Dataset) -> Iterator[None]:
    """A block in which torch computes with as many threads as suit the largest of these runs, and
    at most as many as before.

    Args:
        runs: settled runs of DP-SGD.
        data: what they were settled for, of which only shapes and types are read.
    """
    before = torch.get_num_threads()
    if before > 1 and not any(os.environ.get(name) for name in _CHOSEN):
        torch.set_num_threads(min(before, _choose_number(runs, data, before)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _choose_number(runs: Iterable[Settled], data: Dataset, usual: int) -> int:
    try:
        return max(1, int(max(count_operations(run, data) for run in runs) / _WORTH))
    except (PrivlearnError, RuntimeError, ValueError, TypeError, IndexError):
        return usual  # the run itself says what is wrong
