"""This file says whether a ledger has room for a plan, and for how many runs of it; and which
budget would have room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, Repeated
from privlearn.core.accounting.filters import fits, of_ledger
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledgers.ledger_state import LedgerState, RunEntry
from privlearn.core.accounting.searches import bisect, bracket, largest
from privlearn.errors import AdjacencyMismatch, BadInput, BudgetExceeded, UnsupportedEvent

#: What a refused run is told, which goes without saying where none was to be.
_UNCHARGED = " Nothing was charged or drawn."
#: Runs that are counted, at most.
_MOST = 1000


@final
@dataclass(frozen=True)
class Fit:
    """What `Ledger.fits` says of a plan; true if a run of it has room.

    Attributes:
        runs: how many runs, one after another, have room, up to 1,000; None on a ledger without a
            budget, which refuses none.
        reason: why none has, and what would have room; empty if one has.
    """

    runs: int | None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.runs != 0

    def __str__(self) -> str:
        if self.runs is None:
            return "the ledger has no budget, and refuses no run"
        if not self.runs:
            return f"the ledger refuses this run: {self.reason}"
        more = " or more" if self.runs == _MOST else ""
        runs = "one such run" if self.runs == 1 else f"{self.runs}{more} such runs"
        return f"the ledger has room for {runs}"


def fit(state: LedgerState, require_room: Callable[..., None], plan: Planned) -> Fit:
    """Whether runs of `plan` have room in a ledger that is in this state; `require_room` is the
    ledger's.
    """
    event, adjacency, unit = plan.event(), plan.neighbours, plan.unit
    try:
        require_room(event, adjacency, unit)
    except (BudgetExceeded, UnsupportedEvent, AdjacencyMismatch, BadInput) as error:
        return Fit(0, str(error).replace(_UNCHARGED, ""))
    if state.budget is None:
        return Fit(None)

    def has_room(runs: int) -> bool:
        """Whether one run has room after all of so many but itself."""
        after = replace(state.draft(), adjacency=adjacency, unit=unit)
        # The first run may decide by what measure the others are counted.
        for times in (min(runs - 1, 1), runs - 2):
            if times > 0:
                after.charge(after.add(RunEntry.new("")), Repeated(event, times))
        try:
            after.require_room(event, adjacency, unit)
        except (BudgetExceeded, UnsupportedEvent):
            return False
        return True

    return Fit(max(1, largest(has_room, _MOST)))


def least_budget(fixed: Budget, first: Event, total: Event, adjacency: Adjacency) -> Budget:
    """The least epsilon at which a ledger whose first run is `first` lets runs through that come to
    `total`.

    Args:
        fixed: the budget that would do if all were fixed beforehand, of epsilon.
        first: what the first run is charged.
        total: what all runs are charged, the first included.
        adjacency: the kind of neighbour.
    """
    assert fixed.epsilon is not None

    def enough(epsilon: float) -> bool:
        limit = of_ledger(replace(fixed, epsilon=epsilon), first, adjacency, None)
        return limit is not None and fits(limit, total)

    low, high = bracket(enough, fixed.epsilon, low=fixed.epsilon)
    return replace(fixed, epsilon=bisect(enough, low, high, 1e-6, geometric=True)[1])
