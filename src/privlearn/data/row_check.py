"""A look at all rows once, for whoever holds them: outside any guarantee, and before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch.utils.data import Dataset as TorchDataset

from privlearn.data.dataset import Dataset
from privlearn.data.dataset_rows import DatasetRows
from privlearn.data.rows import Rows
from privlearn.errors import first_line


@final
@dataclass(frozen=True)
class Checked:
    """What a look at all rows has shown. It tells of private rows: keep it to yourself.

    Attributes:
        rows: how many there are.
        unusable: for each row that training would count as absent, its number and why.
    """

    rows: int
    unusable: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        if not self.unusable:
            return f"{self.rows} rows, all can be used"
        first = "; ".join(f"row {number}: {why}" for number, why in self.unusable[:5])
        return f"{len(self.unusable)} of {self.rows} rows can't be used and would count as absent: {first}"


def check_rows(data: Dataset | Rows | TorchDataset[Any]) -> Checked:
    """Fetch every row once.

    Rows of a `Dataset` are checked as a whole, as they are before training. Of rows that are fetched by index, each that can't
    be made, or holds numbers that are not finite, is named: in training it would silently count as absent.

    Raises:
        BadInput: a `Dataset` that can't be trained on, with the first row in which that shows.
    """
    if isinstance(data, Dataset):
        return Checked(len(data.checked().x))
    rows: Rows = DatasetRows(data) if isinstance(data, TorchDataset) else data
    numbered = ((number, _trouble(rows, number)) for number in range(len(rows)))
    return Checked(len(rows), tuple((number, why) for number, why in numbered if why))


def _trouble(rows: Rows, number: int) -> str:
    """Why a row can't be used; empty if it can."""
    try:
        leaves = rows.fetch(torch.tensor([number]))
    except Exception as error:
        return f"{type(error).__name__}: {first_line(error)}"
    differs = [leaf for leaf, like in zip(leaves, rows.like, strict=True) if leaf.dtype != like.dtype]
    if differs:
        return f"{differs[0].dtype} values, where other rows have another type"
    return "" if all(bool(leaf.isfinite().all()) for leaf in leaves) else "a value that is not finite"
