"""The pace of a run: which noise each of its epochs has, known beforehand or reacting to validations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from torch import Tensor

from privlearn.accounting.event_json import to_json
from privlearn.accounting.filters import RenyiFilter, ZCDPFilter, opened
from privlearn.accounting.ledger import Account, Ledger
from privlearn.plan import LEAST_NOISE, Plan
from privlearn.schedules import Validation

#: (what the run's releases are charged to, inputs, targets) to the accuracy of the model as it is now.
Validate = Callable[[Account, Tensor, Tensor], float]


@final
class Steady:
    """The noise of a plan that knows that of every epoch. Releases are charged to the ledger."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.epochs = plan.epochs

    def begin(self, ledger: Ledger) -> Account:
        """What the epochs' releases are to be charged to."""
        return ledger

    def __iter__(self) -> Iterator[tuple[int, float]]:
        yield from enumerate(self._plan.noise_multipliers())

    def end_epoch(self, x: Tensor, y: Tensor) -> None:
        """Nothing is looked at."""

    def settings(self, steps: int) -> dict[str, Any]:
        """What only the run itself could tell: nothing."""
        return {}


@final
class Reacting:
    """Noise that follows the accuracies seen so far, under the plan's filter.

    Guarantee: the ledger is charged the filter's limit, as a whole, before the first epoch. Each release is charged to the
    filter; an epoch begins only if all of it, and the validation after it if that is paid for, still fits. So no epoch
    is ever broken off, and how many there are follows from released or public values alone.

    Args:
        plan: with a validation schedule and its filter.
        schedule: the plan's.
        validate: computes, and pays for, an accuracy.
        accuracies: those seen so far, one for each epoch, in a run that is continued; new ones are appended.
        facts: public facts of the validation, for the certificate.
    """

    def __init__(
        self, plan: Plan, schedule: Validation, validate: Validate, accuracies: list[float], facts: dict[str, Any]
    ) -> None:
        self._plan, self._schedule, self._validate = plan, schedule, validate
        self._accuracies, self._facts = accuracies, facts
        self._filter: ZCDPFilter | RenyiFilter | None = None
        self._noise_multipliers: list[float] = []

    @property
    def epochs(self) -> int:
        """Epochs that were begun."""
        return len(self._noise_multipliers)

    def begin(self, ledger: Ledger) -> Account:
        """Charge the limit, and return the filter, which the epochs' releases are to be charged to."""
        assert self._plan.filter is not None
        self._filter = opened(self._plan.filter, ledger, self._plan.neighbours)
        return self._filter

    def __iter__(self) -> Iterator[tuple[int, float]]:
        assert self._filter is not None
        for epoch in range(self._plan.epochs):
            assert len(self._accuracies) >= epoch, "an epoch went by without its validation"
            noise = self._schedule.after(self._accuracies[:epoch])
            if noise < LEAST_NOISE or not self._filter.has_room(self._plan.epoch_event(noise)):
                return
            self._noise_multipliers.append(noise)
            yield epoch, noise

    def end_epoch(self, x: Tensor, y: Tensor) -> None:
        """Validate the model."""
        assert self._filter is not None
        self._accuracies.append(self._validate(self._filter, x, y))

    def settings(self, steps: int) -> dict[str, Any]:
        """What only the run itself could tell: it follows from released and public values."""
        assert self._plan.filter is not None
        return {
            "epochs": self.epochs,
            "steps": self.epochs * steps,
            "noise_multipliers": list(self._noise_multipliers),
            "most_epochs": self._plan.epochs,
            "filter": to_json(self._plan.filter),
            "validation": {**self._facts, "noise": self._schedule.noise, "accuracies": list(self._accuracies)},
        }


Pace = Steady | Reacting
