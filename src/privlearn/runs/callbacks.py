"""What a run says of itself while it trains: public numbers, to objects with `on_step`, `on_epoch`
and `on_end`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

from privlearn._display import Described, Summary
from privlearn.core.accounting.guarantee import Guarantee
from privlearn.core.accounting.ledger import Ledger
from privlearn.errors import BadInput, first_line

if TYPE_CHECKING:
    import torch

    from privlearn.runs.session import TrainingSession

_METHODS = ("on_step", "on_epoch", "on_end")
_Value = TypeVar("_Value")


@final
class TrainingProgress(Described):
    """How far a run is, for its callbacks: numbers that are known beforehand or follow from what
    was released.

    There is no loss, no norm, no share of clipped gradients and no number of examples in a batch:
    they are private.

    Attributes:
        step: steps that were taken, those before an interruption included.
        steps: in the whole run; at most, where the noise follows validations.
        epoch: the epoch of the last step, from 0.
        epochs: in the whole run, or at most.
        noise_multiplier: of the last step; None before the first one.
        learning_rate: of the optimizer's first group at the last step.
        seconds: since the run began here, rounded to whole ones. Running time is no part of the
            guarantee: steps on more examples take longer (docs/gaps.md).
    """

    def __init__(
        self,
        ledger: Ledger,
        delta: float | None,
        numbers: tuple[int, int, int, int],
        noise_multiplier: float | None,
        learning_rate: float,
        seconds: int,
    ) -> None:
        self._ledger, self._delta = ledger, delta
        self.step, self.steps, self.epoch, self.epochs = numbers
        self.noise_multiplier, self.learning_rate, self.seconds = (
            noise_multiplier,
            learning_rate,
            seconds,
        )
        self._stopping = False

    def spent(self, delta: float | None = None) -> Guarantee:
        """What the ledger was charged so far, priced as if the number of steps had been fixed
        beforehand: an estimate.

        It takes milliseconds, up to seconds with many kinds of releases. The guarantee is that of
        the whole plan.

        Raises:
            BadInput: the plan was not calibrated to a delta, and none is given.
        """
        effective_delta = self._delta if delta is None else delta
        if effective_delta is None:
            raise BadInput(
                "the plan was not calibrated to a delta: give one, for example delta=1e-5"
            )
        return self._ledger.spent(effective_delta)

    @property
    def epsilon(self) -> float | None:
        """That of `spent` at the plan's delta, computed when it is asked for; None for a plan
        without one.
        """
        return None if self._delta is None else self.spent().epsilon

    def stop(self) -> None:
        """End training after this step. The run returns its `Result`, which says that it was left
        early.

        What was not charged is given back. Yet the result's certificate claims all that was
        planned, because when to stop may follow from what was seen. Let it follow from public data
        or from the weights, which are released: anything else that looks at private rows is not
        covered.
        """
        self._stopping = True

    def _summary(self) -> Summary:
        noise = "none yet" if self.noise_multiplier is None else f"{self.noise_multiplier:.4g}"
        title = f"TrainingProgress, {self.step} of {self.steps} steps taken"
        return Summary(
            title, [("epoch", f"{self.epoch + 1} of {self.epochs}"), ("noise multiplier", noise)]
        )


class Callback:
    """What is called while a run trains. Any object with some of these methods will do; this class
    has all of them.

    Each is given a `TrainingProgress`, public numbers alone: what a callback shows, or sends
    elsewhere, costs nothing. `progress.stop()` ends training cleanly. Where several processes train
    together, the first one's alone are called.
    """

    _interface = ()  # what stands in for it is looked at by `Callbacks`

    def on_step(self, progress: TrainingProgress) -> None:
        """A step was taken. An error raised here ends the run as any interruption does: its
        checkpoint is kept.
        """

    def on_epoch(self, progress: TrainingProgress) -> None:
        """An epoch's last step was taken."""

    def on_end(self, progress: TrainingProgress) -> None:
        """The run is over. An error raised here becomes a warning, so that the result is not
        lost.
        """


@final
class Callbacks:
    """The callbacks of one run, called at its steps.

    Args:
        given: a callback or several.

    Raises:
        BadInput: an object has none of the three methods.
    """

    def __init__(self, callbacks: Callback | Sequence[Callback]) -> None:
        several = isinstance(callbacks, list | tuple)
        self._all: tuple[Any, ...] = tuple(callbacks) if several else (callbacks,)  # type: ignore[arg-type]
        for callback in self._all:
            if isinstance(callback, type) or not any(
                callable(getattr(callback, name, None)) for name in _METHODS
            ):
                raise BadInput(
                    f"callbacks has {repr(callback)[:60]}: expected objects with on_step, on_epoch "
                    "or on_end, each a method of a pv.runs.TrainingProgress. Derive a class from "
                    "pv.runs.Callback, and give an object of it"
                )
        self._last: TrainingProgress | None = None

    def begin(self, session: TrainingSession, steps: int, optimizer: torch.optim.Optimizer) -> None:
        """A run of `session` begins, with so many steps an epoch: before its first step."""
        self._session, self._steps, self._optimizer = session, steps, optimizer
        self._began = time.monotonic()
        self._active = session.world.once(lambda: bool(self._all), "callbacks")

    def around(
        self,
        epochs: Iterable[Any],
        session: TrainingSession,
        steps: int,
        optimizer: torch.optim.Optimizer,
    ) -> Iterator[Any]:
        """The batches of a run's epochs, each to be stepped on before the next; they end where a
        callback stops it.
        """
        self.begin(session, steps, optimizer)
        for epoch in epochs:
            for batch in epoch:
                yield batch
                if self.stepped(batch.epoch, batch.step, batch.noise_multiplier):
                    return

    def stepped(self, epoch: int, step: int, noise_multiplier: float) -> bool:
        """A step was taken: call `on_step`, and after an epoch's last one `on_epoch`. Returns
        whether to stop now.

        Raises:
            Whatever a callback raises, in all processes.
        """
        if not self._active:
            return False
        session, number = self._session, epoch * self._steps + step + 1
        last = step + 1 == self._steps
        stop = session.world.once(
            lambda: self._call(epoch, number, noise_multiplier, last=last), "callbacks"
        )
        return stop and number < session.plan.epochs * self._steps

    def _call(self, epoch: int, number: int, noise_multiplier: float, *, last: bool) -> bool:
        """Call each callback; returns whether one of them asked to stop."""
        self._last = progress = self._progress(epoch, number, noise_multiplier)
        for name in _METHODS[: 1 + last]:
            for callback in self._all:
                getattr(callback, name, _do_nothing)(progress)
        return progress._stopping

    def _progress(
        self, epoch: int, number: int, noise_multiplier: float | None
    ) -> TrainingProgress:
        plan = self._session.plan
        return TrainingProgress(
            self._session.ledger,
            plan.budget.delta if plan.budget else None,
            (number, plan.epochs * self._steps, epoch, plan.epochs),
            noise_multiplier,
            float(self._optimizer.param_groups[0]["lr"]),
            round(time.monotonic() - self._began),
        )

    def ended(self, result: _Value) -> _Value:
        """Call `on_end`, and return `result`. What a callback raises becomes a warning."""
        if not self._active or not self._session.keeps:
            return result
        plan, steps_done = self._session.plan, self._session.steps_done
        progress = self._last or self._progress(plan.epochs - 1, steps_done, None)
        for callback in self._all:
            try:
                getattr(callback, "on_end", _do_nothing)(progress)
            except Exception as error:
                warnings.warn(
                    f"on_end of a {type(callback).__name__} failed: {type(error).__name__}: "
                    f"{first_line(error)}. The run is over, and its result is returned all the "
                    "same",
                    stacklevel=3,
                )
        return result


def _do_nothing(progress: TrainingProgress) -> None:
    """What a callback without a method does."""
