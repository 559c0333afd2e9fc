"""The ledger: what was spent, in order, charged before anything is drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn, Protocol, final

from privlearn.accounting import accountant
from privlearn.accounting.accountant import Guarantee
from privlearn.accounting.adjacency import Adjacency, require_same
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Composed, Event, Repeated, compose, require_adjacency, walk
from privlearn.accounting.unit import Unit
from privlearn.errors import BadInput, BudgetExceeded


class Account(Protocol):
    """Anything that releases can be charged to: a ledger, or a filter opened on one."""

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Add `event`, or raise and leave everything as it was."""
        ...


@final
class Ledger:
    """An append-only list of charged events, run-length coded, with an optional budget.

    `charge` checks first: a charge that the budget does not allow raises and leaves the ledger as it was. The first
    charge (or approval) fixes the adjacency and the unit of protection; others are refused, so that runs for one example
    and runs for a person never add up silently. Copies of a ledger are the ledger itself, and it can't be pickled: spending
    is never forked.

    Args:
        budget: the limit on the total; None for a ledger that only records.
        unit: whose data are protected; by default that of the first run that is approved, or one example (of which the
            budget's group size says how many go together) once anything else is charged.

    Raises:
        BadInput: a unit for another group size than the budget's.
    """

    def __init__(self, budget: Budget | None = None, unit: Unit | None = None) -> None:
        self.budget = budget
        self._unit: Unit | None = None
        if unit is not None:
            self._fix_unit(unit)
        self._adjacency: Adjacency | None = None
        self._runs: list[tuple[Event, int]] = []
        self._approved: list[tuple[Event, int]] = []  # runs still to come, already known to fit; next one last

    @property
    def adjacency(self) -> Adjacency | None:
        """The kind of neighbour of everything in the ledger; None while it is empty."""
        return self._adjacency

    @property
    def unit(self) -> Unit:
        """Whose data are protected."""
        return self._unit or Unit(self.budget.group_size if self.budget else 1)

    @property
    def event(self) -> Composed:
        """Everything that was charged, in order, as one canonical event."""
        return compose(Repeated(leaf, times) for leaf, times in self._runs)

    def guarantee(self, delta: float) -> Guarantee:
        """The guarantee of all that was charged so far, at `delta`, for the ledger's unit."""
        adjacency = self._adjacency or Adjacency.ADD_REMOVE
        found = accountant.guarantee(self.event, adjacency, delta, self.unit.group_size)
        return replace(found, rows_per_person=self.unit.rows_per_person)

    def approve(self, event: Event, adjacency: Adjacency, unit: Unit = Unit()) -> None:  # noqa: B008 - a frozen value
        """Check once that all of `event` fits on top of what was spent.

        Nothing is charged. Charges that then follow in the order of `event` need no further arithmetic, because any
        beginning of a composition that fits also fits.

        Raises:
            BudgetExceeded, UnsupportedEvent, AdjacencyMismatch: as `charge` would.
            BadInput: the ledger is for another unit of protection.
        """
        self._require_unit(unit)
        self._check(event, adjacency)
        self._fix_unit(unit)
        self._adjacency = adjacency
        self._approved = list(walk(compose([event])))[::-1]

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Add `event`, or refuse.

        Raises:
            BudgetExceeded: the total would exceed the budget; nothing is charged.
            UnsupportedEvent: no sound price is known under `adjacency`.
            AdjacencyMismatch: the ledger holds another kind of neighbour.
        """
        if not self._take_approved(event, adjacency):
            self._check(event, adjacency)
            self._approved = []
        self._fix_unit(self.unit)
        self._adjacency = adjacency
        for leaf, times in walk(event):
            if self._runs and self._runs[-1][0] == leaf:
                self._runs[-1] = (leaf, self._runs[-1][1] + times)
            else:
                self._runs.append((leaf, times))

    def _require_unit(self, unit: Unit) -> None:
        size = unit.group_size if self.budget is None else self.budget.group_size
        if unit.group_size == size and self._unit in (None, unit):
            return
        raise BadInput(
            f"this ledger protects {self.unit}, and it was asked to protect {unit}: one ledger holds one guarantee. Give both "
            "the same group_size and rows_per_person, or a ledger of its own to each",
            expected=self.unit,
            given=unit,
        )

    def _fix_unit(self, unit: Unit) -> None:
        self._require_unit(unit)
        self._unit = unit

    def _check(self, event: Event, adjacency: Adjacency) -> None:
        if self._adjacency is not None:
            require_same(self._adjacency, adjacency, "this ledger")
        require_adjacency(event, adjacency)
        if self.budget is None:
            return
        total = compose([self.event, event])
        spent = self.budget.spent(total, adjacency)
        if not self.budget.covers(spent):
            raise BudgetExceeded(
                f"this charge would take the total to {self.budget.figure(spent)}, past the budget of {self.budget}. "
                "Nothing was charged or drawn. Use more noise, fewer epochs or a larger budget",
                budget=self.budget,
                would_be=spent,
            )

    def _take_approved(self, event: Event, adjacency: Adjacency) -> bool:
        """Whether `event` is the next of what was approved; takes it off if so."""
        if not self._approved or adjacency is not self._adjacency:
            return False
        leaf, left = self._approved[-1]
        if event != leaf:
            return False
        if left == 1:
            self._approved.pop()
        else:
            self._approved[-1] = (leaf, left - 1)
        return True

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Ledger cannot be pickled: a copy in another process would spend the same budget again")

    def __repr__(self) -> str:
        kind = self._adjacency.value if self._adjacency else "no charges yet"
        return f"Ledger(budget={self.budget}, {kind}, {sum(times for _, times in self._runs)} events)"
