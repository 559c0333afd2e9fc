"""The state of a ledger holds its entries, and says what may still be added to them and what may be
claimed for all of them.

Two rules of composition are kept apart here. Runs that were all approved before the first release
are fixed beforehand: they are composed by the tightest accountant. A run that is approved later may
have been chosen by looking at earlier results, where that is not valid: it is let through by a
filter whose measure and limit were fixed by the first run (Feldman and Zrnic 2021; Smith and
Thakurta 2022; Whitehouse et al. 2023), and what is claimed then is the limit.
"""

from __future__ import annotations

import getpass
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, final

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import (
    Composed,
    Event,
    Mechanism,
    Repeated,
    added,
    appended,
    compose,
    require_adjacency,
    tally,
    walk,
)
from privlearn.core.accounting.filters import (
    Limit,
    Measure,
    described,
    fits,
    of_ledger,
    share,
    within,
)
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit, require_same
from privlearn.errors import BadInput, BudgetExceeded, UnsupportedEvent

if TYPE_CHECKING:
    from privlearn.core.accounting.ledgers.data_versions import DataVersion

NOTHING = Composed(())
#: What is noted of a change: how many releases of an approved run are charged, or a charge by
#: itself.
Change = int | Event
#: Closed entries that are listed one by one; older ones are summed up.
LISTED = 250
#: Different runs of equal events that an entry lists in order; beyond, equal events are counted.
_RUNS = 1000


@final
@dataclass(frozen=True)
class RunEntry:
    """One run, charges that were made one by one, or older entries summed up.

    Attributes:
        id: tells it from the others.
        what: what it was for.
        by: who made it.
        begun: when, in UTC.
        open: whether it may still be charged for what it was approved for.
        approved: all that it may come to; kept when it is closed. Empty for charges without an
            approval.
        spent: what it was charged for; never less than what was drawn.
        declared: whether it was approved before anything in the ledger was released.
        waiting: whether it was approved ahead and has not begun.
        reserved_for: who alone may take up what waits; empty: everybody.
        expires: when what waits is closed, in UTC; empty: never.
    """

    id: str
    what: str
    by: str
    begun: str
    open: bool
    approved: Composed
    spent: Composed
    declared: bool = False
    waiting: bool = False
    reserved_for: str = ""
    expires: str = ""

    @classmethod
    def new(
        cls,
        what: str,
        *,
        approved: Composed | None = None,
        waiting: bool = False,
        reserved_for: str = "",
        expires: str = "",
    ) -> RunEntry:
        """An entry of this moment and this user; open if something is approved for it."""
        return cls(
            secrets.token_hex(4),
            what,
            _user(),
            read_clock(),
            approved is not None,
            approved or NOTHING,
            NOTHING,
            False,
            waiting,
            reserved_for,
            expires,
        )

    def taken_up(self, what: str) -> RunEntry:
        """What waited, begun by this user."""
        return replace(self, waiting=False, by=_user(), what=what or self.what, expires="")

    @property
    def counts(self) -> Composed:
        """What a filter has to count for it: all that was approved while it is open, then what was
        spent.
        """
        return self.approved if self.open else self.spent

    @property
    def claimed(self) -> Composed:
        """What a claim has to cover if it was declared: all that was approved, also if it stopped
        early.

        When it stopped may follow from what it released, and then less than the whole would be no
        guarantee.
        """
        return self.spent if self.approved == NOTHING else self.approved


@dataclass
class LedgerState:
    """All that a ledger holds.

    Attributes:
        budget: the limit on everything together; None if it only records.
        measure: what later runs are counted by: "gaussian", "zcdp", "renyi" or a Renyi order; None:
            by the first run.
        adjacency: the kind of neighbour of everything in it; None while it is empty.
        unit: whose data everything in it protects; None while it is empty.
        entries: in the order of their beginning.
        owner: whose the data are, to be read by people.
        versions: the rows that runs were on, the latest last.
    """

    budget: Budget | None = None
    measure: Measure = None
    adjacency: Adjacency | None = None
    unit: PrivacyUnit | None = None
    entries: list[RunEntry] = field(default_factory=list)
    owner: str = ""
    versions: tuple[DataVersion, ...] = ()
    #: Where each mechanism stands in what was counted last, so that the next charge need not look
    #: at all of it.
    _places: tuple[Composed, dict[Mechanism, int]] = field(
        default=(NOTHING, {}), repr=False, compare=False
    )
    #: The entries that were changed since `draft`, and how, where that is said in less than the
    #: whole entry.
    changes: dict[str, list[Change] | None] = field(default_factory=dict, repr=False, compare=False)

    def draft(self) -> LedgerState:
        """A state to change, which leaves this one as it is and notes what is changed."""
        return replace(self, entries=list(self.entries), changes={})

    def current(self) -> LedgerState:
        """A draft of this moment: what waited past its time is closed."""
        state, moment = self.draft(), read_clock()
        for entry in self.entries:
            if entry.waiting and entry.expires and entry.expires <= moment:
                state.close(entry)
        return state

    @property
    def event(self) -> Composed:
        """Everything that was spent or is set aside."""
        return compose(entry.counts for entry in self.entries)

    @property
    def released(self) -> bool:
        """Whether anything was released, so that whatever is approved from now on may depend on
        it.
        """
        return any(entry.spent != NOTHING for entry in self.entries)

    @property
    def adaptive(self) -> bool:
        """Whether it holds a run that was approved after an earlier release."""
        return any(not entry.declared for entry in self.entries)

    @property
    def limit(self) -> Limit | None:
        """The filter that runs are counted by once something was released; None without a budget or
        room for it.

        It follows from the budget and the declared runs alone, so it is fixed before the first
        release.
        """
        declared = compose(entry.claimed for entry in self.entries if entry.declared)
        if self.budget is None or self.adjacency is None or declared == NOTHING:
            return None
        return of_ledger(self.budget, declared, self.adjacency, self.measure)

    @property
    def claim(self) -> Composed:
        """The event that a guarantee for everything in the ledger is computed from.

        Raises:
            UnsupportedEvent: it only records, and its runs may have been chosen after earlier
                results; or more was charged than its limit lets through (by an earlier version).
        """
        if not self.adaptive:
            return compose(entry.claimed for entry in self.entries)
        limit = self.limit
        if self.budget is None:
            raise UnsupportedEvent(
                "this ledger has no budget, and holds runs that may have been chosen after earlier "
                "results: there is no guarantee for all of them together. Begin ledgers for "
                "several runs with a budget; what was charged so far, as if it had been fixed "
                "beforehand, is ledger.spent(delta)"
            )
        if limit is None or not fits(limit, self.event):
            raise UnsupportedEvent(
                f"the runs of this ledger come to more than a filter of {self.budget} lets "
                "through, and may have been chosen after earlier results: there is no guarantee "
                "for all of them together. Begin another ledger"
            )
        return compose([limit])

    def entry(self, id: str) -> RunEntry:  # noqa: A002 - that is its name
        """The entry called `id`.

        Raises:
            BadInput: there is none.
        """
        for entry in reversed(self.entries):
            if entry.id == id:
                return entry
        known = ", ".join(entry.id for entry in self.entries[-10:]) or "none"
        raise BadInput(f"the ledger has no entry {id!r}: the latest are {known}")

    def put(self, entry: RunEntry) -> None:
        """Replace the entry of the same id."""
        self.changes[entry.id] = None
        self._replace(entry)

    def restore(self, entry: RunEntry) -> None:
        """Put an entry that was read in its place: that of the same id, or the end."""
        if any(known.id == entry.id for known in self.entries):
            self._replace(entry)
        else:
            self.entries.append(entry)

    def _replace(self, entry: RunEntry) -> None:
        for place in range(len(self.entries) - 1, -1, -1):
            if self.entries[place].id == entry.id:
                self.entries[place] = entry
                return
        raise AssertionError("an entry that was never added")

    def add(self, entry: RunEntry) -> RunEntry:
        """Add a new entry, for which there is room; it is declared if nothing was released yet."""
        entry = replace(entry, declared=not self.released)
        self.changes[entry.id] = None
        self.entries.append(entry)
        self._sum_up()
        return entry

    def close(self, entry: RunEntry) -> None:
        """End `entry`: what it has not spent is free again, for runs that the filter lets
        through.
        """
        # An approval that was taken back before any release never happened.
        approved = entry.approved if self.released else NOTHING
        self.put(replace(entry, open=False, waiting=False, approved=approved))

    def pay(self, id: str, charges: int) -> RunEntry:  # noqa: A002 - that is its name
        """The entry of an approved run, charged for its first releases."""
        entry = self.entry(id)
        entry = replace(entry, spent=first(entry.approved, charges))
        self._note(id, charges)
        self._replace(entry)
        return entry

    def _note(self, id: str, change: Change) -> None:  # noqa: A002
        """Note what was done to an entry, unless the whole of it is noted."""
        noted = self.changes.setdefault(id, [])
        if noted is not None:
            noted.append(change)

    def charge(self, entry: RunEntry, event: Event) -> None:
        """Add `event`, for which there is room, to an entry of charges without an approval."""
        if len(entry.spent.events) <= _RUNS:
            spent = appended(entry.spent, event)
            spent = _count_mechanisms(spent) if len(spent.events) > _RUNS else spent
        else:
            counted, places = self._places
            # or an edit was given up
            if counted is not entry.spent or len(places) != len(counted.events):
                places = {leaf: place for place, (leaf, _) in enumerate(walk(entry.spent))}
            spent = added(entry.spent, places, event)
            self._places = spent, places
        self._note(entry.id, event)
        self._replace(replace(entry, spent=spent))

    def charge_in_turn(self, id: str, events: Sequence[Event]) -> None:  # noqa: A002
        """`charge` the entry with each of `events`, in the time that all of them take together."""
        for place, event in enumerate(events):
            if len(self.entry(id).spent.events) > _RUNS:  # each mechanism is counted from now on
                self.charge(self.entry(id), Composed(tuple(events[place:])))
                return
            self.charge(self.entry(id), event)

    def waiting(self, event: Event) -> RunEntry | None:
        """An entry that was approved ahead for just `event`, for this user or everybody, and has
        not begun.
        """
        ready = (entry for entry in self.entries if entry.waiting and entry.approved == event)
        return next((entry for entry in ready if entry.reserved_for in ("", _user())), None)

    @property
    def protects(self) -> PrivacyUnit:
        """The unit, or what it is once something is charged: one example, or as many as the budget
        says go together.
        """
        return self.unit or PrivacyUnit(self.budget.group_size if self.budget else 1)

    def require_unit(self, unit: PrivacyUnit) -> None:
        """Raise `BadInput` unless what protects `unit` may stand here."""
        size = unit.group_size if self.budget is None else self.budget.group_size
        if unit.group_size == size and self.unit in (None, unit):
            return
        raise BadInput(
            f"this ledger protects {self.protects}, and this run protects {unit}: expected the "
            "same of both. Give both the same group_size and rows_per_person. With a ledger for "
            "each there is no guarantee for the two together",
            expected=self.protects,
            given=unit,
        )

    def require_room(
        self, event: Event, adjacency: Adjacency, unit: PrivacyUnit | None = None
    ) -> None:
        """Raise unless `event` fits on top of all entries, for `unit` if that is given.

        Raises:
            BudgetExceeded, UnsupportedEvent, AdjacencyMismatch: as their names say.
            BadInput: another unit of protection.
        """
        if unit is not None:
            self.require_unit(unit)
        if self.adjacency is not None:
            require_same(self.adjacency, adjacency, "this ledger")
        require_adjacency(event, adjacency)
        if self.budget is None:
            return
        if self.released:
            self._require_let_through(event, self.budget)
            return
        require_covered(self.budget, self.event, event, adjacency)
        if self.measure is not None:
            of_ledger(self.budget, compose([self.event, event]), adjacency, self.measure)

    def _require_let_through(self, event: Event, budget: Budget) -> None:
        """Raise `BudgetExceeded` or `UnsupportedEvent` unless the filter lets `event` through."""
        limit, before = self.limit, self.event
        if limit is not None:
            try:
                after = share(limit, compose([before, event]))
            except UnsupportedEvent as error:
                raise UnsupportedEvent(
                    f"this ledger counts by {described(limit)}, as its first run fixed it, and "
                    "this run has no price in it. Nothing was charged or drawn. Ledgers for runs "
                    "of several kinds are begun with measure='renyi'; what was spent here adds to "
                    "what another one spends",
                    event=event,
                ) from error
            if within(after):
                return
        taken = math.inf if limit is None else share(limit, before)
        if limit is None or taken > 1:
            raise BudgetExceeded(
                f"the runs so far take all of {budget} as a filter counts them. Nothing was "
                "charged or drawn. For more runs begin another ledger, whose guarantee adds to "
                "that of this one, and approve them together before the first: "
                "ledger.approve(plan, other_plan)",
                budget=budget,
            )
        assert self.adjacency is not None
        room = _still_fits(
            lambda candidate: share(limit, compose([before, candidate])),
            1.0,
            event,
            budget,
            self.adjacency,
        )
        raise BudgetExceeded(
            f"this run does not fit on the ledger, which has a budget of {budget}: earlier runs "
            f"take {100 * taken:.4g} % of its room, and with this one, which may have been chosen "
            f"after their results, it would be {100 * after:.4g} %. Nothing was charged or drawn. "
            f"Use more noise, or fewer releases (epochs, queries).{room}",
            budget=budget,
            would_be=after,
        )

    def _sum_up(self) -> None:
        """Put the oldest closed entries together where there are very many; those that fix the
        limit stay.
        """
        if len(self.entries) < 2 * LISTED:
            return
        closed = [entry for entry in self.entries if not entry.open and not entry.declared]
        old = closed[:-LISTED]
        runs = sum(int(entry.what.split()[0]) if entry.id == _SUMMED else 1 for entry in old)
        spent = _count_mechanisms(compose(entry.spent for entry in old))
        gone = {entry.id for entry in old}
        rest = [entry for entry in self.entries if entry.id not in gone]
        place = sum(entry.declared for entry in rest)
        summed = RunEntry(
            _SUMMED, f"{runs} earlier runs", old[-1].by, old[0].begun, False, NOTHING, spent
        )
        self.entries = [*rest[:place], summed, *rest[place:]]


#: What older entries together are called.
_SUMMED = "earlier"


def require_covered(budget: Budget, before: Event, event: Event, adjacency: Adjacency) -> None:
    """Raise `BudgetExceeded` unless `budget` covers `event` on top of what was set aside
    `before`.
    """
    spent = budget.spent(compose([before, event]), adjacency)
    if not budget.covers(spent):
        first = before == NOTHING
        already = (
            ""
            if first
            else (
                f", of which {budget.figure(budget.spent(before, adjacency))} was spent or set "
                "aside before"
            )
        )
        remedy = "a ledger with a larger budget" if first else "a smaller target"

        def together(candidate: Event) -> float:
            return budget.spent(compose([before, candidate]), adjacency)

        room = "" if first else _still_fits(together, budget.limit, event, budget, adjacency)
        raise BudgetExceeded(
            f"this charge would take the total to {budget.figure(spent)}, past the budget of "
            f"{budget}{already}. Nothing was charged or drawn. Use more noise, fewer releases "
            f"(epochs, queries) or {remedy}.{room}",
            budget=budget,
            would_be=spent,
        )


def _still_fits(
    share: Callable[[Event], float],
    limit: float,
    event: Event,
    budget: Budget,
    adjacency: Adjacency,
) -> str:
    from privlearn.core.accounting.ledgers.room import still_fits  # for the words of a refusal

    return still_fits(share, limit, event, budget, adjacency)


def first(event: Composed, charges: int) -> Composed:
    """The first `charges` of `event`."""
    runs: list[Event] = []
    for leaf, times in walk(event):
        if charges <= 0:
            break
        runs.append(Repeated(leaf, min(times, charges)))
        charges -= times
    return compose(runs)


def _count_mechanisms(event: Composed) -> Composed:
    """`event` without its order: every mechanism once, with its number."""
    return compose(Repeated(leaf, times) for leaf, times in tally(event).items())


def read_clock() -> str:
    """This moment in UTC, as entries hold it: later ones are later in the alphabet."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"
