"""A batch of the run in the hands of a script, which may take it in physical batches, a few rows
at a time.

The script computes its loss of each physical batch, so that no call of the model has more rows. All
of them have one loss, and the step is taken on the whole batch, at the last of them: what is
clipped, charged and noised is what it would be if the batch had been handed out at once.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.training.task import Batch


@final
class LogicalBatch:
    """A batch that was drawn, and which of its rows are still to be handed out.

    Args:
        batch: of the run.
        indices: of the rows that this process computes.

    Attributes:
        begun: whether the script is through with a physical batch of it.
    """

    def __init__(self, batch: Batch, indices: NDArray[np.int64]) -> None:
        self.batch, self.begun = batch, False
        self._left = indices
        self._size = 0  # of the physical batch in the script's hands

    def next_rows(self, most: int | None) -> NDArray[np.int64]:
        """The rows of the next physical batch, at most so many; None: all that are left.

        Those that are left are split evenly, so that no batch of a single row comes last.
        """
        batches = max(1, -(-len(self._left) // (most or max(1, len(self._left)))))
        self._size = -(-len(self._left) // batches)
        return self._left[: self._size]

    def is_last(self) -> bool:
        """Whether the script has all rows that were left."""
        return self._size == len(self._left)

    def pass_rows(self) -> None:
        """The script is through with the physical batch."""
        self._left, self.begun = self._left[self._size :], True
