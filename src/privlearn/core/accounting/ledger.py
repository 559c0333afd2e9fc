"""The ledger lists what was spent, in order, and is charged before anything is drawn.

Runs that are all approved before the first release are composed as what they are: fixed beforehand.
Runs that come later may have been chosen by looking at earlier results, so a ledger with a budget
is a filter for them (`ledger_state`).
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from privlearn._checks import checked, require_fit, with_plain_numbers
from privlearn._display import Described, Summary
from privlearn.core.accounting import accountant
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, Event, Mechanism, compose, walk
from privlearn.core.accounting.filters import Limit, Measure, require_measure
from privlearn.core.accounting.guarantee import Adjacency, Guarantee, PrivacyUnit
from privlearn.core.accounting.ledgers.ledger_run import LedgerMemory, LedgerRun, LedgerStore
from privlearn.core.accounting.ledgers.ledger_state import LedgerState, RunEntry, first
from privlearn.errors import BadInput, BudgetExceeded, PrivlearnError

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from privlearn.core.accounting.ledgers.anchors import Anchor
    from privlearn.core.accounting.ledgers.fit import Fit

_ONE_EXAMPLE = PrivacyUnit()
_Times = tuple[Mechanism, int]


@final
@dataclass(frozen=True)
class Releases:
    """Releases that are no method's run, as a plan that a ledger can approve ahead.

    Attributes:
        events: what they are charged, at once.
        neighbours: the kind of neighbour.
        unit: whose data are protected.
        budget: the target that their noise was solved for, if there is one.
    """

    events: Event
    neighbours: Adjacency
    unit: PrivacyUnit = _ONE_EXAMPLE
    budget: Budget | None = None

    def event(self) -> Composed:
        """Everything that they will be charged."""
        return compose([self.events])


@final
class Ledger(Described):
    """An append-only list of charged events, run-length coded, with an optional budget.

    Guarantee: `guarantee`, for everything charged to it together. Runs that were all approved
    before the first release are priced by the tightest accountant, at all that was approved. As
    soon as a run is approved after a release, it may have been chosen by looking at that release,
    and the ledger is a filter: its measure and limit follow from the budget and the first run, a
    run is let through if the sum stays within the limit, and the guarantee is the limit, whatever
    is spent of it. Without a budget there is no limit, and then no guarantee for several such runs
    together.

    `charge` checks first: a charge that the budget does not allow raises and leaves the ledger as
    it was. The first charge (or approval) fixes the adjacency and the unit of protection; others
    are refused, so that runs for one example and runs for a person never add up silently. Spending
    is never forked: copies of a ledger are the ledger itself, and in another process it refuses,
    unless it lives in a file (`Ledger.open`), which serves any number of processes. Threads take
    turns: no charge of one gets lost among those of another.

    Args:
        budget: the limit on the total; None for a ledger that only records.
        unit: whose data are protected; by default that of the first run that is approved, or one
            example (of which the budget's group size says how many go together) once anything else
            is charged.
        measure: what later runs are counted by: "gaussian" (Gaussian releases alone; the tightest),
            "renyi" (any run, at the order that suits the first run), a Renyi order, or "zcdp". By
            default "zcdp" for a budget of rho; for one of epsilon "gaussian" if the first run is
            Gaussian, and else "renyi".

    Raises:
        BadInput: a unit for another group size than the budget's, or a measure that does not suit
            the budget.
    """

    _new_rows = False
    _interface = ("require_room", "begin", "charge", "settle")

    @checked
    def __init__(
        self, budget: Budget | None = None, unit: PrivacyUnit | None = None, measure: Measure = None
    ) -> None:
        state = LedgerState(budget, require_measure(measure, budget))
        if unit is not None:
            state.require_unit(unit)
            state.unit = unit
        self._begin(LedgerMemory(state), "")

    def _begin(self, store: LedgerStore, what: str) -> None:
        self._run, self._what = LedgerRun(store), what
        # all that may ever be charged; None: whatever the budget allows
        self._allowed: Composed | None = None
        # charges still to come, already known to fit; next one last
        self._approved: list[_Times] = []
        self._process = os.getpid()
        # looking for room and taking it is one act, whatever other threads do
        self._one_at_a_time = threading.RLock()

    @classmethod
    def allowing(
        cls, event: Event, adjacency: Adjacency, unit: PrivacyUnit = _ONE_EXAMPLE
    ) -> Ledger:
        """A ledger that takes `event`, once and in its order, and nothing else.

        For a part of a run whose whole was charged elsewhere, beforehand: what the part does is
        then held to that.
        """
        ledger = cls(unit=unit)
        with ledger._run.store.editing() as state:
            state.adjacency = adjacency
        ledger._allowed = compose([event])
        return ledger

    @classmethod
    @checked
    def open(
        cls,
        path: str | Path,
        budget: Budget | None = None,
        *,
        what: str = "",
        create: bool = False,
        measure: Measure = None,
        data_set: str | None = None,
        anchor: Anchor | str | Path | None = None,
        new_rows: bool = False,
    ) -> Ledger:
        """A ledger that lives in a file: several runs, in several processes, compose on one budget.

        Every charge is on the disk before anything is drawn. `begin` sets all of a run aside there
        until `settle`, so that two runs at once can't be promised the same budget.

        Args:
            path: the file, or `postgresql://...`; begun if it isn't there and a budget is given.
            budget, measure: of a new file, as for `Ledger`; those of an existing file.
            what: what its charges are for, to be read by people.
            create: begin a ledger that only records, without a limit, if none is there. Otherwise a
                name with a slip in it would be another ledger, on which nothing is ever refused.
            data_set: which of its data sets, begun if a budget is given; None: the only one.
            new_rows: declares that rows are of the data set, though they are others than before.
            anchor: what keeps its head elsewhere (`anchors`), so that older copies are refused.

        Raises:
            BadInput: there is no such file, it can't be read or written, or it has another budget
                or measure.
        """
        from privlearn.core.accounting.ledgers.addresses import open_database  # and databases

        database = open_database(path, budget, measure, data_set, create=create, anchor=anchor)
        ledger = cls.__new__(cls)
        ledger._begin(database, what)
        ledger._new_rows = new_rows
        return ledger

    @property
    def path(self) -> Path | str | None:
        """The file, or the database's address, that it lives in, if it lives in one."""
        return self._run.store.path

    @property
    def head(self) -> str | None:
        """The digest of its last row, if it outlives the process."""
        store: Any = self._run.store
        return store.head()[1] if self.path else None

    @property
    def run(self) -> str | None:
        """What the run that was begun last is called in the file, for `resume`."""
        return self._run.entry.id if self.path and self._run.entry else None

    @property
    def has_ended(self) -> bool:
        """Whether the run that is gone on with has ended in the file: nothing more is charged."""
        return self.run is not None and not self._state().entry(self.run).open

    @property
    def budget(self) -> Budget | None:
        """The limit on the total; None for a ledger that only records."""
        return self._state().budget

    @property
    def adjacency(self) -> Adjacency | None:
        """The kind of neighbour of everything in the ledger; None while it is empty."""
        return self._state().adjacency

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data are protected."""
        return self._state().protects

    @property
    def event(self) -> Composed:
        """Everything that was charged, in order, as one canonical event; in a file, also what is
        set aside.
        """
        return self._state().event if self.path else compose(self._run.charged())

    @property
    def adaptive(self) -> bool:
        """Whether it holds a run that was approved after an earlier release, and so may have been
        chosen by it.
        """
        return self._state().adaptive

    @property
    def limit(self) -> Limit | None:
        """The filter that lets later runs through; None without a budget, before the first run, or
        without room.
        """
        return self._state().limit

    @property
    def claim(self) -> Composed:
        """The event that `guarantee` is computed from: all that was approved beforehand, or else
        the limit.

        Raises:
            UnsupportedEvent: as `guarantee` would.
        """
        return self._state().claim

    def guarantee(self, delta: float) -> Guarantee:
        """The guarantee of everything in the ledger, at `delta`, for the ledger's unit.

        It is for all that was approved, also where a run stopped early: when to stop may have
        followed from what was released. With runs that were approved after an earlier release it is
        the ledger's limit.

        Raises:
            UnsupportedEvent: such runs, and no budget: nothing limited what they could come to.
                Also for an event that has no price.
        """
        state = self._state()
        return self._price(state, state.claim, delta)

    def spent(self, delta: float) -> Guarantee:
        """What was charged so far, priced as if all of it had been fixed beforehand: an estimate,
        no guarantee.

        The guarantee is `guarantee`. It is larger where a run stopped early, and where later runs
        were chosen after earlier results, which this figure knows nothing of.
        """
        return replace(self._price(self._state(), self.event, delta), kind="estimate")

    @with_plain_numbers
    def _price(self, state: LedgerState, event: Event, delta: float) -> Guarantee:
        unit = state.protects
        priced = accountant.guarantee(
            event, state.adjacency or Adjacency.ADD_REMOVE, delta, unit.group_size
        )
        return replace(priced, rows_per_person=unit.rows_per_person)

    @checked
    def require_room(
        self,
        event: Event,
        adjacency: Adjacency,
        unit: PrivacyUnit = _ONE_EXAMPLE,
        then: Event | None = None,
    ) -> None:
        """Raise, as `begin` would, unless `event` fits on top of what was spent, and `then` as a
        run after it.

        Nothing is charged or set aside.
        """
        self._require_own_process()
        self._require_allowed(event, adjacency)
        state = self._state().current()
        if state.waiting(compose([event])) is None or state.adjacency is not adjacency:
            state.require_room(event, adjacency, unit)
        if then is not None:
            after = replace(state.draft(), adjacency=adjacency)
            after.charge(after.add(RunEntry.new("")), event)
            after.require_room(then, adjacency, unit)

    @checked
    def fits(self, plan: Planned) -> Fit:
        """Whether a run of `plan` has room here, and how many such runs have.

        Nothing is charged or set aside: another run may take the room before this one begins.
        """
        from privlearn.core.accounting.ledgers.fit import fit  # no guarantee rests on it

        return fit(self._state().current(), self.require_room, plan)

    def require_data(self, digests: NDArray[np.uint64]) -> None:
        """Note the rows of the next run by a digest of each, or refuse them (`recognition`)."""
        from privlearn.core.accounting.ledgers.recognition import recognise  # as `open`

        store: Any = self._run.store
        recognise(store, digests, new_rows=self._new_rows)

    @checked
    def approve(
        self, *plans: Planned, reserved_for: str = "", expires: datetime | None = None
    ) -> None:
        """Approve plans ahead of their runs; all of them, or none.

        Plans that are approved before the first release are fixed beforehand, so that the guarantee
        for them together is that of the tightest accountant. A run takes up its approval when it
        begins with the same plan, a charge when it is what was approved (`Releases`). What is
        approved stays counted, also if it is never run: whether to run it may have followed from
        earlier results.

        Args:
            reserved_for: the user who alone may run them; empty: everybody.
            expires: when they are closed if they have not begun; None: never.

        Raises:
            BadInput: nothing was given, plans for other units of protection, or a time that is past
                or has no zone.
            BudgetExceeded, UnsupportedEvent, AdjacencyMismatch: as `begin` would.
        """
        if not plans:
            raise BadInput(
                "approve() was given nothing: expected one plan or several, such as approve(plan, "
                "other_plan)"
            )
        self._require_own_process()
        from privlearn.core.accounting.ledgers.reservations import write_expiry

        until = write_expiry(expires)
        with self._one_at_a_time, self._run.store.editing() as state:
            for plan in plans:
                event = compose([plan.event()])
                self._require_allowed(event, plan.neighbours)
                state.require_room(event, plan.neighbours, plan.unit)
                state.adjacency, state.unit = plan.neighbours, plan.unit
                terms = {"reserved_for": reserved_for, "expires": until}
                state.add(RunEntry.new(self._what, approved=event, waiting=True, **terms))

    @checked
    def begin(self, event: Event, adjacency: Adjacency, unit: PrivacyUnit = _ONE_EXAMPLE) -> None:
        """Begin a run: check once that all of `event` fits, or take up its approval.

        Charges that then follow in the order of `event` need no further arithmetic, because any
        beginning of a composition that fits also fits. In memory nothing is charged yet; a file
        sets all of `event` aside until `settle`.

        Raises:
            BudgetExceeded, UnsupportedEvent, AdjacencyMismatch: as `charge` would.
            BadInput: the ledger is for another unit of protection.
        """
        self._require_own_process()
        with self._one_at_a_time:
            self._require_allowed(event, adjacency)
            self._run.begin(compose([event]), adjacency, unit, self._what)
            self._approved = list(walk(compose([event])))[::-1]

    @checked
    def resume(
        self, run: str | None, event: Event, adjacency: Adjacency, unit: PrivacyUnit = _ONE_EXAMPLE
    ) -> None:
        """Go on with a run that was interrupted: charges are made from its beginning again, and
        none is charged twice.

        Args:
            run: what `run` said when it was begun; None for a ledger in memory, where it is begun
                anew.
            event, adjacency, unit: what was approved.

        Raises:
            BadInput: the file has no such run, it was closed, or it was approved for something
                else.
        """
        if not self.path or run is None:
            if self.path or run is not None:
                raise BadInput("the run is on another ledger: expected the one it began with")
            self.begin(event, adjacency, unit)
            return
        self._require_own_process()
        with self._one_at_a_time:
            self._run.resume(run, compose([event]), adjacency)
            self._approved = list(walk(compose([event])))[::-1]

    def settle(self) -> None:
        """End the run: what it has not spent is free again, for runs that the ledger's filter lets
        through.
        """
        if self._process == os.getpid():
            with self._one_at_a_time:
                self._approved = []
                self._run.settle()

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Add `event`, or refuse.

        Raises:
            BudgetExceeded: the total would exceed the budget; nothing is charged.
            UnsupportedEvent: no sound price is known under `adjacency`, or in the ledger's measure.
            AdjacencyMismatch: the ledger holds another kind of neighbour.
            BadInput: no event, or the ledger's file can't be written; nothing is charged.
        """
        # asked at each step
        if not (isinstance(event, Event) and isinstance(adjacency, Adjacency)):
            require_fit("event", event, Event)
            require_fit("adjacency", adjacency, Adjacency)
        self._require_own_process()
        runs = list(walk(event))
        with self._one_at_a_time:
            start = max(0, len(self._approved) - len(runs))
            if (left := self._after(runs, start, adjacency)) is not None:
                self._run.pay(sum(times for _, times in runs))
                self._approved[start:] = left
            else:
                self._require_allowed(event, adjacency)
                self._run.charge(event, adjacency, self._what)
                self._approved = []

    def _require_allowed(self, event: Event, adjacency: Adjacency) -> None:
        """Raise unless `event` comes next in what this ledger was made for, if it was made for
        something.
        """
        if self._allowed is None:
            return
        after = compose([self.event, event])
        if (
            adjacency is not self.adjacency
            or first(self._allowed, sum(n for _, n in walk(after))) != after
        ):
            raise BudgetExceeded(
                "this charge is not what was approved beforehand: expected exactly the releases of "
                "the plan, in their order, each once. Nothing was charged or drawn. Train by the "
                "plan that was given, on the ledger that was given",
                allowed=self._allowed,
                would_be=after,
            )

    def _after(self, runs: list[_Times], start: int, adjacency: Adjacency) -> list[_Times] | None:
        """What `runs` leave of what was approved from `start` on; None if they are not what was
        approved next.
        """
        if adjacency is not self._run.adjacency:
            return None
        left = self._approved[start:]
        for leaf, times in runs:
            if not left or left[-1][0] != leaf or left[-1][1] < times:
                return None
            _, there = left.pop()
            if there > times:
                left.append((leaf, there - times))
        return left

    def _state(self) -> LedgerState:
        return self._run.store.read()

    def _require_own_process(self) -> None:
        """A forked copy would spend the same budget again."""
        if self._process == os.getpid():
            return
        if not self.path:
            raise PrivlearnError(
                "this ledger belongs to another process, which would not see the charge. To share "
                "a budget between processes, keep it in a file: Ledger.open(path)"
            )
        self._begin(self._run.store, self._what)

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.path:
            raise TypeError(
                "a Ledger cannot be pickled: a copy in another process would spend the same budget "
                "again. Keep it in a file: Ledger.open(path)"
            )
        store: Any = self._run.store
        more = {"data_set": store.data, "anchor": store.anchor, "new_rows": self._new_rows}
        opened = partial(Ledger.open, what=self._what, **more)
        return opened, (store.address,)

    def _summary(self) -> Summary:
        """What is in it now; of one in a file, what everybody charged there."""
        where = f" in {self.path}" if self.path else ""
        try:
            state = self._state()
        except BadInput:  # what is broken is looked at, too
            return Summary(f"Ledger{where}, which is gone or damaged", [])
        limit = (
            "none: it only records"
            if state.budget is None
            else f"{state.budget}, for everything together"
        )
        if state.adjacency is None:
            return Summary(f"Ledger{where}: no charges yet", [("budget", limit)])
        events = sum(times for _, times in walk(self.event))
        still = sum(entry.open for entry in state.entries)
        runs = f"{len(state.entries)} runs, {still} of them open, " if self.path else ""
        return Summary(
            f"Ledger{where}: {runs}{events} events",
            [
                ("budget", limit),
                ("protects", f"{state.protects}; {state.adjacency.value} neighbours"),
                ("guarantee", "ledger.guarantee(delta=1e-5) computes it"),
            ],
        )
