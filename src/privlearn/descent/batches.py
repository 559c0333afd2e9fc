"""The epochs and batches of a run that is driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from privlearn.data.rows import Rows, ahead
from privlearn.errors import BadInput
from privlearn.sampling import Sample

if TYPE_CHECKING:
    from privlearn.descent.task import Task
    from privlearn.runs.session import TrainingSession


@final
@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """One batch that was sampled, good for one step.

    Attributes:
        sample: which examples were drawn, private.
        rows: where they are fetched from.
        epoch: the number of its epoch.
        step: its number in the epoch.
        number: its number in the run.
        noise_multiplier: the noise of its release.
    """

    sample: Sample
    rows: Rows
    epoch: int
    step: int
    number: int
    noise_multiplier: float

    def __repr__(self) -> str:
        return f"Batch(epoch {self.epoch}, step {self.step}, noise multiplier {self.noise_multiplier:.4g})"


@final
class Epoch:
    """One epoch of a run: its batches, each for one step.

    Attributes:
        number: from 0.
        noise_multiplier: the noise of its releases.
        steps: how many batches it has.
        begun: whether batches were asked for.
        done: whether all batches were handed out.
    """

    def __init__(self, session: TrainingSession, task: Task, number: int, noise_multiplier: float) -> None:
        self.number, self.noise_multiplier, self.steps = number, noise_multiplier, task.steps
        self.begun = self.done = False
        self._batches = self._drawn(session, task)

    def __iter__(self) -> Iterator[Batch]:
        self.begun = True
        return self._batches

    def __len__(self) -> int:
        return self.steps

    def require_done(self) -> None:
        """Raise `BadInput` if the next epoch is asked for before all batches of this one were."""
        if not self.done:
            raise BadInput(
                f"epoch {self.number} was left before its last batch: go through all of its batches, or end the run with "
                "run.result()"
            )

    def __repr__(self) -> str:
        return f"Epoch({self.number}: {self.steps} batches, noise multiplier {self.noise_multiplier:.4g})"

    def _drawn(self, session: TrainingSession, task: Task) -> Iterator[Batch]:
        drawn = session.drawn(self.number, self.noise_multiplier, task.present)
        for step, sample, rows in _with_rows(drawn, task):
            session.keep(step)
            batch = Batch(sample, rows, self.number, step, self.number * self.steps + step, self.noise_multiplier)
            yield batch
            if session.taken != batch.number + 1:
                raise BadInput(
                    f"no step was taken on {batch}: call run.step(batch) once, before the next batch is asked for"
                )
        self.done = True


def _with_rows(drawn: Iterator[tuple[int, Sample]], task: Task) -> Iterator[tuple[int, Sample, Rows]]:
    """Each sample with its rows, which workers fetch ahead where the data have workers."""
    if not getattr(task.indexed, "workers", 0) or task.persons is not None:
        for step, sample in drawn:
            yield step, sample, task.rows
        return
    samples = list(drawn)
    fetched = ahead(task.rows, [sample.indices for _, sample in samples])
    for (step, sample), rows in zip(samples, fetched, strict=True):
        yield step, sample, rows
