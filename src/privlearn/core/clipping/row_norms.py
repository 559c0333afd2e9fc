"""This file computes L2 norms of rows, in single precision where that loses nothing, which is
decided for many rows at once.

To look means to wait for the numbers: on a GPU until everything before them is computed. There
norms are assumed to be safe, and a device answers later, together with all else that it is asked,
whether they were (`Assumed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import final

import torch
from torch import Tensor

#: Between these, a norm in single precision has lost nothing to underflow or overflow.
SAFE = (1e-12, 1e12)
#: A longer gradient, or factor of one, counts as not finite: weights for it would lose digits to
#: underflow.
_LONGEST = 1e20
#: Squares that are added up one after another in single precision: of many more, the small ones are
#: lost.
_RUN = 1024


@final
class Assumed:
    """What is gone on with before a device has answered whether it holds.

    Attributes:
        answers: whether it does; each one truth value on the device.
    """

    def __init__(self) -> None:
        self.answers: list[Tensor] = []
        self._undo: list[Callable[[], None]] = []

    def note(self, answer: Tensor, undo: Callable[[], None]) -> None:
        """Go on; `undo` is called if some answer is no, and then asks by itself, or will."""
        self.answers.append(answer)
        self._undo.append(undo)

    def withdraw(self) -> None:
        """Undo all that was assumed, in the order in which it was."""
        for undo in self._undo:
            undo()


@final
class RowNorms:
    """The L2 norm of each row, which is looked at, and computed again if it has to be, before it is
    handed out.

    Args:
        rows: shape (rows, ...). They are held until then.
    """

    def __init__(self, rows: Tensor) -> None:
        flat = rows if rows.dim() == 2 else rows.reshape(len(rows), -1)
        norms = _in_runs(flat)
        waits = flat.dtype != torch.float64 and norms.numel() > 0
        self._flat = flat if waits else None
        self._norms = norms if waits else norms.double()

    @property
    def values(self) -> Tensor:
        """As `row_norms`."""
        if self._flat is not None:
            settle([self])
        return self._norms


def settle(norms: Iterable[RowNorms], assumed: Assumed | None = None) -> None:
    """Look at all of `norms` at once, of those that are of as many rows each; their values then
    need no further look.

    Args:
        norms: of any rows.
        assumed: if it is there, nothing is looked at: the norms are assumed to be safe.
    """
    waiting = list(dict.fromkeys(pending for pending in norms if pending._flat is not None))
    by_rows = groupby(sorted(waiting, key=_number_of_rows), key=_number_of_rows)
    for _, group in by_rows:
        if assumed is None:
            _settle(list(group))
        else:
            _assume_safe(list(group), assumed)


def _number_of_rows(pending: RowNorms) -> int:
    return len(pending._norms)


def _settle(waiting: list[RowNorms]) -> None:
    together = torch.stack([pending._norms for pending in waiting])
    safe = _safe(together)
    for pending, values in zip(waiting, together.double().unbind(), strict=True):
        if safe or _safe(pending._norms):
            pending._norms = values
        elif pending._flat is not None:
            pending._norms = torch.linalg.vector_norm(pending._flat, dim=1, dtype=torch.float64)
            pending._norms[pending._norms > _LONGEST] = math.inf
        pending._flat = None


def _assume_safe(waiting: list[RowNorms], assumed: Assumed) -> None:
    """Take norms for safe; rows of zeros alone are, too."""
    together = torch.stack([pending._norms for pending in waiting])
    nothing = torch.stack([are_zero(pending._flat) for pending in waiting])  # type: ignore[arg-type]
    safe = (together > SAFE[0]) & (together < SAFE[1]) | nothing
    held = [(pending, pending._flat, pending._norms) for pending in waiting]

    def undo() -> None:
        for pending, flat, norms in held:
            pending._flat, pending._norms = flat, norms

    assumed.note(safe.all(), undo)
    for pending, values in zip(waiting, together.double().unbind(), strict=True):
        pending._flat, pending._norms = None, values


def are_zero(rows: Tensor) -> Tensor:
    """Whether each row is of zeros alone; shape (rows,). Nothing of the size of `rows` is
    formed.
    """
    flat = rows.reshape(len(rows), -1)
    if not flat.shape[1]:
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    largest: Tensor = torch.linalg.vector_norm(flat, math.inf, dim=1)
    return largest == 0


def row_norms(rows: Tensor) -> Tensor:
    """L2 norm of each example, shape (batch,), in double precision: single precision is used where
    it loses nothing.

    Of rows in single precision that are longer than any whose weighted sum is exact: infinity.
    """
    return RowNorms(rows).values


def norms_of(*parts: Tensor) -> Tensor:
    """`row_norms` of each of several tensors of as many rows, shape (parts, rows), in one look."""
    norms = [RowNorms(rows) for rows in parts]
    settle(norms)
    return torch.stack([part_norms.values for part_norms in norms])


def _in_runs(flat: Tensor) -> Tensor:
    whole = flat.shape[1] - flat.shape[1] % _RUN if flat.shape[1] > _RUN else 0
    norms: Tensor = torch.linalg.vector_norm(flat[:, whole:] if whole else flat, dim=1)
    if whole:
        runs = torch.linalg.vector_norm(
            flat[:, :whole].reshape(len(flat), whole // _RUN, _RUN), dim=2
        )
        norms = torch.hypot(
            norms.double(), torch.linalg.vector_norm(runs, dim=1, dtype=torch.float64)
        )
    return norms


def _safe(norms: Tensor) -> bool:
    """Whether all of these are norms that single precision lost nothing of."""
    low, high = norms.aminmax()
    return float(low) > SAFE[0] and float(high) < SAFE[1]
