"""This file says whether a ledger has room for a plan, and for how many runs of it; and which
budget would have room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, Event, Repeated, compose
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
        approval: whether the next run takes up an approval, and for whom others wait, in words;
            empty if none waits.
    """

    runs: int | None
    reason: str = ""
    approval: str = ""

    def __bool__(self) -> bool:
        return self.runs != 0

    def __str__(self) -> str:
        approval = f"; {self.approval}" if self.approval else ""
        if self.runs is None:
            return f"the ledger has no budget, and refuses no run{approval}"
        if not self.runs:
            return f"the ledger refuses this run: {self.reason}"
        more = " or more" if self.runs == _MOST else ""
        runs = "one such run" if self.runs == 1 else f"{self.runs}{more} such runs"
        return f"the ledger has room for {runs}{approval}"


def fit(state: LedgerState, require_room: Callable[..., None], plan: Planned) -> Fit:
    """Whether runs of `plan` have room in a ledger that is in this state; `require_room` is the
    ledger's.
    """
    event, adjacency, unit = plan.event(), plan.neighbours, plan.unit
    try:
        require_room(event, adjacency, unit)
    except (BudgetExceeded, UnsupportedEvent, AdjacencyMismatch, BadInput) as error:
        return Fit(0, str(error).replace(_UNCHARGED, ""))
    approval = _describe_approval(state, compose([event]))
    if state.budget is None:
        return Fit(None, approval=approval)

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

    return Fit(max(1, largest(has_room, _MOST)), approval=approval)


def _describe_approval(state: LedgerState, event: Composed) -> str:
    """Which approvals of this run wait, in words."""
    if state.waiting(event) is not None:
        return "the next run takes up an approval that waits for it"
    alike = [entry for entry in state.entries if entry.waiting and entry.approved == event]
    users = ", ".join(sorted({entry.reserved_for for entry in alike}))[:100]
    return f"one is reserved for {users}, and a run of yours is another one" if users else ""


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
