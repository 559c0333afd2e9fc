"""An adversary who chooses each run after seeing the privacy loss of the earlier ones: a dynamic
program over losses.

Composition theorems for fixed mechanisms say nothing about runs that are chosen after earlier
results. What such an adversary can reach is computed here without any accountant: for a history of
runs and a loss so far, the value is the larger of stopping, max(0, 1 - e^(epsilon - loss)), and the
best next run that the account still lets through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from privlearn.core.accounting import pld
from privlearn.core.accounting.events import Event, Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import BadInput, BudgetExceeded, UnsupportedEvent

Array = NDArray[np.float64]
#: The grid of losses: its step, and how far it goes.
STEP, REACH = 2e-3, 24.0
_CELLS = round(REACH / STEP)
LOSSES: Array = STEP * np.arange(-_CELLS, _CELLS + 1)
#: What rounding to the grid may add to the adversary's advantage.
TOLERANCE = 1.02


@dataclass(frozen=True)
class Run:
    """A run that the adversary makes: what it asks for, and the part of it that is drawn before it
    stops.
    """

    event: Event
    drawn: Event | None = None

    @property
    def seen(self) -> Event:
        return self.drawn or self.event


#: Makes a run of a noise scale: the more, the cheaper.
Family = Callable[[float], Run]
#: Makes an account, and a function that plays a run on it, which raises if it is refused.
Account = Callable[[], Any]
Play = Callable[[Any, Run], None]


def as_run(ledger: Any, run: Run) -> None:
    """Begin, charge and settle, as methods do."""
    ledger.begin(run.event, Adjacency.ADD_REMOVE)
    try:
        ledger.charge(run.seen, Adjacency.ADD_REMOVE)
    finally:
        ledger.settle()


def as_charges(account: Any, run: Run) -> None:
    """Charge it at once, as single releases are."""
    account.charge(run.seen, Adjacency.ADD_REMOVE)


@dataclass(frozen=True)
class Game:
    """What the adversary may do.

    Attributes:
        account: makes a fresh account.
        play: plays a run on it.
        first: the runs to begin with.
        families: what may come next, each time with as little noise as the account lets through.
        rounds: runs in all.
    """

    account: Account
    play: Play
    first: Sequence[Run]
    families: Sequence[Family]
    rounds: int = 2

    def delta(self, epsilon: float) -> float:
        """The most that the adversary reaches, over first runs and directions."""
        return max(
            float(self._value((run,), epsilon, way)[_CELLS])
            for run in self.first
            for way in ("remove", "add")
        )

    def _value(self, history: tuple[Run, ...], epsilon: float, way: str) -> Array:
        """For each loss before the last run of `history`, the advantage with best play from there
        on.
        """
        stopping: Array = np.maximum(0.0, -np.expm1(np.minimum(epsilon - LOSSES, 0.0)))
        best = stopping
        if len(history) < self.rounds:
            for run in self.next_runs(history):
                best = np.maximum(best, self._value((*history, run), epsilon, way))
        return after(history[-1].seen, best, way)

    def next_runs(self, history: tuple[Run, ...]) -> list[Run]:
        """Of each family the run with the least noise that is let through after `history`."""
        runs = []
        for family in self.families:
            low, high = 0.05, 400.0
            if not self.accepts(history, family(high)):
                continue
            while high / low > 1 + 2e-3:
                middle = (low * high) ** 0.5
                low, high = (
                    (low, middle) if self.accepts(history, family(middle)) else (middle, high)
                )
            runs.append(family(high))
        return runs

    def accepts(self, history: Sequence[Run], run: Run) -> bool:
        account = self.account()
        for earlier in history:
            self.play(account, earlier)
        try:
            self.play(account, run)
        except (BudgetExceeded, UnsupportedEvent, BadInput):
            return False
        return True


def after(event: Event, value: Array, way: str) -> Array:
    """The mean of `value` at the loss after `event`, for each loss before it; the mass at infinity
    counts 1.
    """
    mass, offset, infinite = _law(event, way)
    width = len(mass)
    # Beyond the grid the value stays as it is at its ends.
    before, behind = max(0, -offset), max(0, offset + width - 1)
    padded = np.concatenate([np.full(before, value[0]), value, np.full(behind, value[-1])])
    means = fftconvolve(padded, mass[::-1], mode="valid")
    start = before + offset
    return np.minimum(1.0, np.maximum(means[start : start + len(value)], 0.0) + infinite)


@lru_cache(maxsize=4096)
def _law(event: Event, way: str) -> tuple[Array, int, float]:
    """The masses of the loss of `event` on the grid, where they begin, and the mass at infinity."""
    found = pld.compose_event(Repeated(event, 1), h=STEP, negligible=1e-11)
    if way == "remove":
        mass, cells, infinite = found.p, np.rint(found.losses / STEP).astype(int), found.p_inf
    else:
        mass, cells, infinite = (
            found.q[::-1],
            np.rint(-found.losses[::-1] / STEP).astype(int),
            found.q_inf,
        )
    return np.asarray(mass, dtype=np.float64), int(cells[0]), float(infinite)
