"""This file says where a ledger's state is, and has the run that is charged to it step by step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, final

from privlearn.core.accounting.events import Composed, Event, compose, walk
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledgers.ledger_state import LedgerState, RunEntry, first
from privlearn.errors import BadInput, PrivlearnError

#: Seconds, about, for which charges are written down ahead of use.
_AHEAD = 2.0


class LedgerStore(Protocol):
    """Where a ledger's state is."""

    @property
    def path(self) -> Path | str | None:
        """The file, or the database's address, that it is in; None: it is gone with the process."""
        ...

    def read(self) -> LedgerState:
        """What it is now; not to be changed."""
        ...

    def editing(self) -> Any:
        """A `with` block that yields the state, and keeps what was changed in it unless the block
        raises.
        """
        ...


@final
class LedgerMemory:
    """A ledger that lives in one process."""

    path: Path | str | None = None

    def __init__(self, state: LedgerState) -> None:
        self._state = state

    def read(self) -> LedgerState:
        """What it is now."""
        return self._state

    @contextmanager
    def editing(self) -> Iterator[LedgerState]:
        """Change it; nothing is changed if the body raises."""
        draft = self._state.current()
        yield draft
        self._state = draft


@final
class LedgerRun:
    """What one ledger object does to its state: one run at a time, or charges one by one.

    Charges of an approved run are written down in blocks, ahead of use: there is always at least as
    much in the store as was drawn, and training does not wait for the disk at every step.
    """

    def __init__(self, store: LedgerStore) -> None:
        self.store = store
        self.entry: RunEntry | None = None  # the run under way
        self.adjacency: Adjacency | None = None  # of that run
        self._loose: str | None = None  # the entry of charges that were not approved
        # Charges: made; in the store; that an earlier process may have made.
        self._used = self._written = self._least = 0
        self._block, self._last = 1, -float("inf")

    def begin(self, approved: Composed, adjacency: Adjacency, unit: PrivacyUnit, what: str) -> None:
        """Take up the approval of a run, or approve it."""
        with self.store.editing() as state:
            self._close(state)
            ahead = state.waiting(approved)
            if ahead is not None and state.adjacency is adjacency:
                state.require_unit(unit)
                entry = ahead.taken_up(what)
                state.put(entry)
            else:
                state.require_room(approved, adjacency, unit)
                state.adjacency, state.unit = adjacency, unit
                entry = state.add(RunEntry.new(what, approved=approved))
        self._start(entry, adjacency)

    def resume(self, run: str, approved: Composed, adjacency: Adjacency) -> None:
        """Go on with the run of that id, from its beginning; what it was charged for is not charged
        again.
        """
        state = self.store.read()
        entry = state.entry(run)
        paid = not entry.open and entry.spent == approved  # to its end: only publishing is left
        if (
            not paid and (not entry.open or entry.approved != approved)
        ) or state.adjacency is not adjacency:
            why = (
                "was approved for something else"
                if entry.open
                else "was closed, and what it had not spent given back"
            )
            raise BadInput(f"the run {run} {why}: it can't be continued. Begin a new run")
        self._start(entry, adjacency)

    def _start(self, entry: RunEntry, adjacency: Adjacency) -> None:
        self.entry, self.adjacency, self._used, self._block = entry, adjacency, 0, 1
        self._written = self._least = sum(times for _, times in walk(entry.spent))

    def pay(self, times: int) -> None:
        """Charge the next releases of the run."""
        assert self.entry is not None
        if self._used + times > self._written:
            now = time.monotonic()
            self._block = max(1, self._block * 2 if now - self._last < _AHEAD else self._block // 2)
            self._last = now
            written = self._used + max(times, self._block)
            with self.store.editing() as state:
                entry = state.entry(self.entry.id)
                if not entry.open:
                    raise PrivlearnError(
                        f"the run {entry.id} was closed while it was under way: it may charge "
                        "nothing more"
                    )
                entry = state.pay(entry.id, written)
            self.entry, self._written = entry, sum(n for _, n in walk(entry.spent))
        self._used += times

    def charge(self, event: Event, adjacency: Adjacency, what: str) -> None:
        """Charge what was not approved; a run that was under way has departed from its plan, and
        ends.
        """
        with self.store.editing() as state:
            self._close(state)
            ahead = state.waiting(compose([event]))
            if ahead is not None and state.adjacency is adjacency:
                state.put(replace(ahead, spent=ahead.approved, open=False, waiting=False))
                self.entry = self.adjacency = None
                return
            state.require_room(event, adjacency)
            state.adjacency, state.unit = adjacency, state.protects
            known = [entry for entry in state.entries if entry.id == self._loose]
            entry = known[0] if known else state.add(RunEntry.new(what))
            state.charge(entry, event)
        # The first charge of a ledger fixes its limit, and stays an entry by itself.
        self.entry, self.adjacency, self._loose = None, None, None if entry.declared else entry.id

    def settle(self) -> None:
        """End the run; what it was not charged for is free again."""
        if self.entry is not None:
            with self.store.editing() as state:
                self._close(state)
            self.entry = self.adjacency = None

    def _close(self, state: LedgerState) -> None:
        if self.entry is None:
            return
        known = [entry for entry in state.entries if entry.id == self.entry.id]
        if known and known[0].open:
            entry = known[0]
            spent = first(entry.approved, max(self._used, self._least))
            entry = replace(entry, spent=spent)
            state.put(entry)
            state.close(entry)

    def charged(self) -> list[Composed]:
        """What was charged by each entry, without what was written down ahead of use."""
        current = self.entry
        return [
            first(entry.approved, self._used) if current and entry.id == current.id else entry.spent
            for entry in self.store.read().entries
        ]
