"""The pace of a run says which noise each of its epochs has, known beforehand or following
validations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, final

from privlearn.core.accounting.account import Account
from privlearn.core.plan import Plan
from privlearn.core.streams import NoiseStream
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
    from privlearn.runs.session import TrainingSession
    from privlearn.training.task import Task


class EpochNoise(Protocol):
    """The noise of a run's epochs, one after the other."""

    @property
    def epochs(self) -> int:
        """Epochs in all, or those that were begun where noise reacts."""

    @property
    def stream(self) -> NoiseStream | CorrelatedStream:
        """What the noise of the next step is drawn from."""

    def begin(self, ledger: Account) -> Account:
        """What the epochs' releases are to be charged to."""

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Each epoch with its noise multiplier."""

    def end_epoch(self, x: Tensor, y: Tensor) -> None:
        """An epoch is over."""

    def facts(self, steps: int) -> dict[str, Any]:
        """What only the run itself could tell."""


def epoch_noise(task: Task, session: TrainingSession) -> EpochNoise:
    """The noise of each epoch of a run: known beforehand, or following validations."""
    if not task.plan.reacts:
        return planned_noise(task.plan, session, task.present, task.steps)
    # for schedules that follow accuracies alone
    from privlearn.training.validation import reacting_noise

    return reacting_noise(task, session)


def planned_noise(plan: Plan, session: TrainingSession, examples: int, steps: int) -> PlannedNoise:
    """The noise of a run whose plan knows it beforehand, of `steps` an epoch over `examples`."""
    return PlannedNoise(plan, _steps_stream(plan, session, examples, steps))


def _steps_stream(
    plan: Plan, session: TrainingSession, examples: int, steps_of_epoch: int
) -> Callable[[], NoiseStream | CorrelatedStream]:
    """Gives what the noise of a step is drawn from: the run's stream, or one that correlates it,
    kept in checkpoints.

    Raises:
        BadInput: batches in which an example comes again too soon, several processes, noise on a
            grid or a transcript.
    """
    if plan.correlation is None:
        return lambda: session.noise
    if session.world.size > 1 and plan.correlation.keeps_tensors:
        raise BadInput(
            f"{plan.correlation.kind} noise keeps tensors of earlier steps, which several "
            "processes can't: use bisr, leave out the mechanism, or train without torchrun"
        )
    if session.file is not None and session.file.replayable:
        raise BadInput(
            "the noise of a correlated step can't be replayed by itself: leave out the transcript, "
            "or the mechanism"
        )
    # for noise that steps have in common alone
    from privlearn.core.mechanisms.covariance import require_priced

    plan.correlation.require_suited(plan.sampling, examples)
    steps, separation = plan.epochs * steps_of_epoch, plan.sampling.separation(examples)
    require_priced(plan.correlation, plan.sampling, examples, steps)
    stream = plan.correlation.stream(session.noise, steps, separation)
    stream.expect(plan.correlation.inverse(steps, separation))
    session.parts["correlated noise"] = stream
    return lambda: stream


@final
class PlannedNoise:
    """The noise of a plan that knows that of every epoch. Releases are charged to the ledger."""

    def __init__(self, plan: Plan, stream: Callable[[], NoiseStream | CorrelatedStream]) -> None:
        self._plan, self._stream = plan, stream
        self.epochs = plan.epochs

    @property
    def stream(self) -> NoiseStream | CorrelatedStream:
        """What the noise of the next step is drawn from."""
        return self._stream()

    def begin(self, ledger: Account) -> Account:
        """What the epochs' releases are to be charged to."""
        return ledger

    def __iter__(self) -> Iterator[tuple[int, float]]:
        yield from enumerate(self._plan.noise_multipliers())

    def end_epoch(self, x: Tensor, y: Tensor) -> None:
        """Nothing is looked at."""

    def facts(self, steps: int) -> dict[str, Any]:
        """What only the run itself could tell: nothing."""
        return {}
