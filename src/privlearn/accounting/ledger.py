"""The ledger: what was spent, in order, charged before anything is drawn."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, final

from privlearn.accounting import accountant
from privlearn.accounting.accountant import Guarantee
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.book import NOTHING, Book, Entry, Pages
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Composed, Event, Repeated, compose, walk
from privlearn.accounting.unit import Unit
from privlearn.errors import BadInput, BudgetExceeded, PrivlearnError

#: Seconds, about, for which charges are written down ahead of use.
_AHEAD = 2.0


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
    and runs for a person never add up silently. Spending is never forked: copies of a ledger are the ledger itself, and in
    another process it refuses, unless it lives in a file (`Ledger.open`), which serves any number of processes.

    Args:
        budget: the limit on the total; None for a ledger that only records.
        unit: whose data are protected; by default that of the first run that is approved, or one example (of which the
            budget's group size says how many go together) once anything else is charged.

    Raises:
        BadInput: a unit for another group size than the budget's.
    """

    _unit: Unit | None

    def __init__(self, budget: Budget | None = None, unit: Unit | None = None) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise BadInput(f"budget is {budget!r}: expected a Budget, such as plan.budget, or None")
        if unit is not None:
            Pages(budget).require_unit(unit)
        self._begin(budget, None, "")
        self._unit = unit  # after `_begin`, which forgets it

    def _begin(self, budget: Budget | None, file: _File | None, what: str) -> None:
        self.budget = budget
        self._file, self._what = file, what
        self._unit = None
        self._adjacency: Adjacency | None = None
        self._allowed: Composed | None = None  # all that may ever be charged; None: whatever the budget allows
        self._runs: list[tuple[Event, int]] = []
        self._approved: list[tuple[Event, int]] = []  # runs still to come, already known to fit; next one last
        self._process = os.getpid()

    @classmethod
    def allowing(cls, event: Event, adjacency: Adjacency, unit: Unit = Unit()) -> Ledger:  # noqa: B008 - a frozen value
        """A ledger that takes `event`, once and in its order, and nothing else.

        For a part of a run whose whole was charged elsewhere, beforehand: what the part does is then held to what was paid.
        """
        ledger = cls(unit=unit)
        ledger._adjacency, ledger._allowed = adjacency, compose([event])
        return ledger

    @classmethod
    def open(cls, path: str | Path, budget: Budget | None = None, *, what: str = "", create: bool = False) -> Ledger:
        """A ledger that lives in a file: several runs, in several processes, compose on one budget.

        Every charge is on the disk before anything is drawn. `approve` sets all of a run aside there until `settle`, so that
        two runs at once can't be promised the same budget.

        Args:
            path: the file; begun if it isn't there and a budget is given.
            budget: of a new file. If given for an existing file, it must be that file's.
            what: what its charges are for, to be read by people.
            create: begin a file that only records, without a limit, if none is there. Otherwise a name with a slip in it
                would be another ledger, on which nothing is ever refused.

        Raises:
            BadInput: there is no such file, it can't be read or written, or it has another budget.
        """
        book = Book(path)
        if not book.path.exists():
            if budget is None and not create:
                raise BadInput(
                    f"there is no ledger {path}: check the name; or begin one with its budget, Ledger.open(path, "
                    "pv.Budget(epsilon=E, delta=D)), or with create=True, one without a limit that only records"
                )
            book.create(budget)
        found = book.read().budget
        if budget is not None and found != budget:
            raise BadInput(
                f"{path} has {f'a budget of {found}' if found else 'no budget'}, and {budget} was given: a ledger's budget is "
                "fixed. Leave it out, or begin another file"
            )
        ledger = cls.__new__(cls)
        ledger._begin(found, _File(book), what)
        return ledger

    @property
    def path(self) -> Path | None:
        """The file that it lives in, if it lives in one."""
        return self._file.book.path if self._file else None

    @property
    def run(self) -> str | None:
        """What the run that was approved last is called in the file, for `resume`."""
        return self._file.entry.id if self._file and self._file.entry else None

    @property
    def adjacency(self) -> Adjacency | None:
        """The kind of neighbour of everything in the ledger; None while it is empty."""
        return self._pages().adjacency

    @property
    def unit(self) -> Unit:
        """Whose data are protected."""
        return self._pages().protects

    @property
    def event(self) -> Composed:
        """Everything that was charged, in order, as one canonical event; in a file, also what is set aside for open runs."""
        return self._pages().event

    def guarantee(self, delta: float) -> Guarantee:
        """The guarantee of all that was charged so far, at `delta`, for the ledger's unit."""
        pages = self._pages()
        unit = pages.protects
        found = accountant.guarantee(pages.event, pages.adjacency or Adjacency.ADD_REMOVE, delta, unit.group_size)
        return replace(found, rows_per_person=unit.rows_per_person)

    def require_room(self, event: Event, adjacency: Adjacency, unit: Unit = Unit()) -> None:  # noqa: B008 - a frozen value
        """Raise, as `approve` would, unless `event` fits on top of what was spent; nothing is charged or set aside."""
        self._require_own_process()
        self._require_allowed(event, adjacency)
        self._pages().require_room(event, adjacency, unit)

    def approve(self, event: Event, adjacency: Adjacency, unit: Unit = Unit()) -> None:  # noqa: B008 - a frozen value
        """Check once that all of `event` fits on top of what was spent.

        Charges that then follow in the order of `event` need no further arithmetic, because any beginning of a composition
        that fits also fits. In memory nothing is charged yet; a file sets all of `event` aside until `settle`.

        Raises:
            BudgetExceeded, UnsupportedEvent, AdjacencyMismatch: as `charge` would.
            BadInput: the ledger is for another unit of protection.
        """
        self._require_own_process()
        self._require_allowed(event, adjacency)
        if self._file:
            self._file.approve(compose([event]), adjacency, unit, self._what)
        else:
            self._pages().require_room(event, adjacency, unit)
        self._unit = unit
        self._adjacency = adjacency
        self._approved = list(walk(compose([event])))[::-1]

    def resume(self, run: str | None, event: Event, adjacency: Adjacency, unit: Unit = Unit()) -> None:  # noqa: B008
        """Approve a run that was interrupted: charges are made from its beginning again, and none is paid for twice.

        Args:
            run: what `run` said when it was approved; None for a ledger in memory, where it is approved anew.
            event: what was approved.
            adjacency: the kind of neighbour.
            unit: whose data are protected.

        Raises:
            BadInput: the file has no such run, it was closed, or it was approved for something else.
        """
        if not self._file or run is None:
            if self._file or run is not None:
                raise BadInput("the run was charged to another ledger: give the one that it began with (--ledger)")
            self.approve(event, adjacency, unit)
            return
        self._require_own_process()
        self._file.resume(run, compose([event]), adjacency)
        self._adjacency = adjacency
        self._approved = list(walk(compose([event])))[::-1]

    def settle(self) -> None:
        """End the approved run: in a file, what it has not spent is given back."""
        if self._process == os.getpid():
            self._approved = []
            if self._file:
                self._file.settle()

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        """Add `event`, or refuse.

        Raises:
            BudgetExceeded: the total would exceed the budget; nothing is charged.
            UnsupportedEvent: no sound price is known under `adjacency`.
            AdjacencyMismatch: the ledger holds another kind of neighbour.
            BadInput: the ledger's file can't be written; nothing is charged.
        """
        self._require_own_process()
        left = self._after(event, adjacency)
        if left is not None:
            if self._file:
                self._file.pay(sum(times for _, times in walk(event)))
            self._approved = left
        else:
            if self._file:
                self._file.charge(event, adjacency, self._what)
            else:
                self._require_allowed(event, adjacency)
                self._pages().require_room(event, adjacency)
            self._approved = []
        self._unit = self._unit or Unit(self.budget.group_size if self.budget else 1)
        self._adjacency = adjacency
        for leaf, times in walk(event):
            if self._runs and self._runs[-1][0] == leaf:
                self._runs[-1] = (leaf, self._runs[-1][1] + times)
            else:
                self._runs.append((leaf, times))

    def _require_allowed(self, event: Event, adjacency: Adjacency) -> None:
        """Raise unless `event` comes next in what this ledger was made for, if it was made for something."""
        if self._allowed is None:
            return
        after = compose([self.event, event])
        if adjacency is not self._adjacency or _first(self._allowed, sum(n for _, n in walk(after))) != after:
            raise BudgetExceeded(
                "this charge is not what was paid for beforehand: expected exactly the releases of the plan, in their order, "
                "each once. Nothing was charged or drawn. Train by the plan that was given, on the ledger that was given",
                allowed=self._allowed,
                would_be=after,
            )

    def _after(self, event: Event, adjacency: Adjacency) -> list[tuple[Event, int]] | None:
        """What is still approved after `event`; None if that is not what was approved next."""
        if adjacency is not self._adjacency:
            return None
        left = self._approved.copy()
        for leaf, times in walk(event):
            if not left or left[-1][0] != leaf or left[-1][1] < times:
                return None
            _, there = left.pop()
            if there > times:
                left.append((leaf, there - times))
        return left

    def _pages(self) -> Pages:
        if self._file:
            return self._file.book.read()
        spent = compose(Repeated(leaf, times) for leaf, times in self._runs)
        return Pages(self.budget, self._adjacency, self._unit, [Entry("", "", "", "", False, NOTHING, spent)])

    def _require_own_process(self) -> None:
        """A forked copy would spend the same budget again."""
        if self._process == os.getpid():
            return
        if not self._file:
            raise PrivlearnError(
                "this ledger belongs to another process, which would not see the charge. To share a budget between processes, "
                "keep it in a file: Ledger.open(path)"
            )
        self._begin(self.budget, _File(self._file.book), self._what)

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._file:
            raise TypeError(
                "a Ledger cannot be pickled: a copy in another process would spend the same budget again. Keep it in a file: "
                "Ledger.open(path)"
            )
        return _reopened, (str(self._file.book.path.absolute()), self._what)

    def __repr__(self) -> str:
        """What is in it now; for one in a file, what everybody charged there."""
        where = f"{self.path}, " if self.path else ""
        try:
            pages = self._pages()
        except BadInput:  # repr is for looking at things that are broken, too
            return f"Ledger({where}which is gone or damaged)"
        if pages.adjacency is None:
            return f"Ledger({where}budget={self.budget}, no charges yet)"
        events = sum(times for _, times in walk(pages.event))
        held = sum(entry.open for entry in pages.entries)
        runs = f"{len(pages.entries)} runs, {held} of them open, " if self._file else ""
        return f"Ledger({where}budget={self.budget}, {pages.adjacency.value}, {runs}{events} events)"


def _reopened(path: str, what: str) -> Ledger:
    return Ledger.open(path, what=what)


@final
class _File:
    """What one ledger object does to its book.

    Charges that were approved are written down in blocks, ahead of use: there is always at least as much on the disk
    as was drawn, and training does not wait for the disk at every step.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self.entry: Entry | None = None  # the approved run
        self._loose: str | None = None  # the entry of charges that were not approved
        self._used = self._written = self._least = (
            0  # charges: made; on the disk; that an earlier process may have made
        )
        self._block, self._last = 1, -float("inf")

    def approve(self, held: Composed, adjacency: Adjacency, unit: Unit, what: str) -> None:
        self.settle()
        with self.book.editing() as pages:
            pages.require_room(held, adjacency, unit)
            pages.adjacency, pages.unit = adjacency, unit
            entry = Entry.new(what, held=held)
            pages.put(entry)
        self._start(entry)

    def resume(self, run: str, held: Composed, adjacency: Adjacency) -> None:
        pages = self.book.read()
        entry = pages.entry(run)
        paid = not entry.open and entry.spent == held  # to its end: only publishing is left
        if (not paid and (not entry.open or entry.held != held)) or pages.adjacency is not adjacency:
            why = (
                "was approved for something else" if entry.open else "was closed, and what it had not spent given back"
            )
            raise BadInput(f"the run {run} in {self.book.path} {why}: it can't be continued. Begin a new run")
        self._start(entry)

    def _start(self, entry: Entry) -> None:
        self.entry, self._used, self._block = entry, 0, 1
        self._written = self._least = sum(times for _, times in walk(entry.spent))

    def pay(self, times: int) -> None:
        assert self.entry is not None
        if self._used + times > self._written:
            now = time.monotonic()
            self._block = max(1, self._block * 2 if now - self._last < _AHEAD else self._block // 2)
            self._last = now
            written = self._used + max(times, self._block)
            with self.book.editing() as pages:
                entry = pages.entry(self.entry.id)
                if not entry.open:
                    raise PrivlearnError(
                        f"the run {entry.id} was closed in {self.book.path} while it was under way: it may charge nothing more"
                    )
                entry = replace(entry, spent=_first(entry.held, written))
                pages.put(entry)
            self.entry, self._written = entry, sum(n for _, n in walk(entry.spent))
        self._used += times

    def charge(self, event: Event, adjacency: Adjacency, what: str) -> None:
        with self.book.editing() as pages:
            pages.require_room(event, adjacency)
            pages.adjacency, pages.unit = adjacency, pages.protects
            entry = Entry.new(what) if self._loose is None else pages.entry(self._loose)
            pages.put(replace(entry, spent=compose([entry.spent, event])))
        self._loose = entry.id

    def settle(self) -> None:
        if self.entry is None:
            return
        with self.book.editing() as pages:
            entry = pages.entry(self.entry.id)
            if entry.open:
                spent = _first(entry.held, max(self._used, self._least))
                pages.put(replace(entry, spent=spent).closed())
        self.entry = None


def _first(event: Composed, charges: int) -> Composed:
    """The first `charges` of `event`."""
    runs: list[Event] = []
    for leaf, times in walk(event):
        if charges <= 0:
            break
        runs.append(Repeated(leaf, min(times, charges)))
        charges -= times
    return compose(runs)
