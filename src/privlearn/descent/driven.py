"""A run that another training loop drives: Trainer's, Lightning's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from privlearn.descent.dpsgd import Run
from privlearn.descent.task import Batch, Epoch
from privlearn.errors import BadInput
from privlearn.runs.result import PrivateDiagnostics, Result
from privlearn.runs.session import Part


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
class Driven:
    """The epochs of a run as an iterable with a length, from which a foreign loop takes a batch for
    each step.

    A foreign loop stops asking when it has counted its batches, and never hears that an epoch is
    over: an epoch ends here when the next one is asked for, and the run when `finish` is called.

    Args:
        run: not yet begun.
        parts: what else a checkpoint is to hold.

    Attributes:
        steps: batches in an epoch.
        epochs: how many the plan has.
        done: epochs and steps that a checkpoint held, once `begin` was called.
    """

    def __init__(self, run: Run, parts: Mapping[str, Part] | None = None) -> None:
        self.run, self._session = run, run.session
        self._session.parts |= dict(parts or {})
        self.steps, self.epochs = run.task.steps, self._session.plan.epochs
        self._epoch: Epoch | None = None
        self.done, self._begun = 0, False

    def __len__(self) -> int:
        return self.steps

    @property
    def taken(self) -> int:
        """Steps that were released, those before an interruption included."""
        return max(self.done, self._session.taken)

    def begin(self) -> None:
        """Begin the run, or go on with the one in its checkpoint: weights and optimizer are then
        what they were.
        """
        self._epoch = next(iter(self.run), None)
        if self._session.saved:
            epoch, step = self._session.first
            self.done = epoch * self.steps + step
            if step == self.steps:
                self._next()

    def __iter__(self) -> Iterator[DrawnBatch]:
        """The batches of the next epoch that are still to be released."""
        if self._epoch is not None and self._begun:
            self._next()
        if self._epoch is None:
            raise BadInput(
                f"the run has {self.epochs} epochs, and all of them are over: begin another run"
            )
        self._begun = True
        return map(DrawnBatch, self._epoch)

    def _next(self) -> None:
        """End an epoch all of whose batches were taken, and go on to the next.

        Raises:
            BadInput: there are more.
        """
        assert self._epoch is not None
        next(iter(self._epoch), None)
        self._epoch, self._begun = next(iter(self.run), None), False

    def step(self, drawn: object) -> PrivateDiagnostics:
        """Clip, charge, release, and the optimizer's step. What is returned is for the curator's
        eyes.

        Raises:
            BadInput: this is no batch of the run.
        """
        if not isinstance(drawn, DrawnBatch):
            raise BadInput(
                f"the training loop was given a {type(drawn).__name__}: expected a batch that the "
                "run drew. Give the data to the trainer, and leave its loop and its loader as "
                "they are"
            )
        return self.run.step(drawn.batch)

    def keep(self) -> None:
        """Write the checkpoint, if there is one, between two steps."""
        if self._epoch is not None:
            self._session.keep(self.taken - self._epoch.number * self.steps, now=True)

    def spent(self, delta: float) -> float:
        """The epsilon of what was charged so far: the guarantee only where steps end when they were
        planned to.
        """
        return self._session.ledger.spent(delta).epsilon

    def finish(self) -> Result:
        """End the run: what was not charged is given back, and the result says how many steps were
        taken.
        """
        if self._epoch is not None and self.taken == self.epochs * self.steps:
            self._next()
        return self.run.result()

    def close(self, error: BaseException | None = None) -> None:
        """Stop, as an interruption does: what a checkpoint holds can be continued.

        After an `error` of this process the others are told that it does not come back.
        """
        self.run.__exit__(type(error), error)
