"""The digests of rows by which a ledger recognises them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.rows import AllRows, digests
from privlearn.data.dataset import Dataset

#: Rows that are looked at where each has to be fetched.
_SAMPLED = 512


def require_rows(ledger: Ledger, rows: AllRows | Dataset | Sequence[Any] | None) -> None:
    """Raise `BadInput` where a ledger is for other rows: see `Ledger.require_data`."""
    if isinstance(rows, Dataset):
        # no method but training by index takes a sparse matrix as it is
        rows = None if rows.is_sparse else rows.tensors()
    if ledger.path and rows is not None:
        ledger.require_data(digests_of(rows))


def digests_of(rows: AllRows | Sequence[Any]) -> NDArray[np.uint64]:
    """A digest of each row, shape (rows,); of a sample of rows that are fetched by index.

    The sample's places are nearly the same where the number of rows is. A row that can't be fetched
    is left out.
    """
    if not isinstance(rows, AllRows):
        return digests(*(torch.as_tensor(part, device="cpu") for part in rows))
    order = np.argsort(np.random.default_rng(0).random(len(rows)), kind="stable")
    looked_at = []
    for place in np.sort(order[:_SAMPLED]):
        try:
            looked_at.append(rows.identities(torch.tensor([place], device="cpu")))
        except Exception:
            continue
    return np.concatenate(looked_at) if looked_at else np.zeros(0, np.uint64)
