"""A run's epochs as a loader, for a training loop that takes its batches from one: Trainer's,
Lightning's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from privlearn.errors import BadInput
from privlearn.training.run import Run
from privlearn.training.task import Batch


@final
class DrawnBatch:
    """A batch in the hands of another loop, which can hand it back and nothing more: what it holds
    is private.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __contains__(self, name: object) -> bool:
        return False

    def __repr__(self) -> str:
        return repr(self.batch)


@final
class EpochLoader:
    """The epochs of a run as a loader: each pass over it is the next epoch, or the rest of one that
    was interrupted.

    Such a loop counts its batches, and does not ask for one after the last: the run ends an epoch
    when the next one is asked for.

    Args:
        run: whose steps the loop takes.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def __len__(self) -> int:
        return self._run.steps_per_epoch

    def __iter__(self) -> Iterator[DrawnBatch]:
        for epoch in self._run:
            return map(DrawnBatch, epoch)
        raise BadInput(
            f"the run has {self._run.plan.epochs} epochs, and all of them are over: begin another "
            "run"
        )


def drawn_batch(value: object) -> Batch:
    """The batch that a loop was given by an `EpochLoader`.

    Raises:
        BadInput: it is something else.
    """
    if not isinstance(value, DrawnBatch):
        raise BadInput(
            f"the training loop was given a {type(value).__name__}: expected a batch that the run "
            "drew. Give the data to the trainer, and leave its loop and its loader as they are"
        )
    return value.batch
