"""Where a ledger is kept, in memory or in a file, and the run that is charged to it step by step.

A ledger file outlives the runs that are charged to it and serves several processes.

It is one JSON file, replaced as a whole under a lock, so that it is never half written. It holds public numbers only.
Every charge is in it before anything is drawn, and an open entry counts with all that its run may still come to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, final

from filelock import FileLock, Timeout

from privlearn._storage import digest, loads, write_durably
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Composed, Event, compose, from_json, to_json, walk
from privlearn.accounting.filters import Measure, require_measure
from privlearn.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.accounting.ledger_state import NOTHING, LedgerState, RunEntry, first
from privlearn.errors import BadInput, PrivlearnError

#: Seconds, about, for which charges are written down ahead of use.
_AHEAD = 2.0
_FORMAT, _VERSION = "privlearn-ledger", 2
_LARGEST = 1 << 26
_PATIENCE = 30.0  # seconds to wait for another process
_LONGEST = 1000  # characters of a text
_TEXTS, _FLAGS, _EVENTS = ("id", "what", "by", "begun"), ("open", "declared", "waiting"), ("approved", "spent")


class LedgerStore(Protocol):
    """Where a ledger's state is."""

    def read(self) -> LedgerState:
        """What it is now; not to be changed."""
        ...

    def editing(self) -> Any:
        """A `with` block that yields the state, and keeps what was changed in it unless the block raises."""
        ...


@final
class LedgerMemory:
    """A ledger that lives in one process."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state

    def read(self) -> LedgerState:
        """What it is now."""
        return self._state

    @contextmanager
    def editing(self) -> Iterator[LedgerState]:
        """Change it; nothing is changed if the body raises."""
        draft = replace(self._state, entries=list(self._state.entries))
        yield draft
        self._state = draft


@final
class LedgerFile:
    """A ledger file.

    Args:
        path: where it is, or is to be; beside it lies `path` + `.lock`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, budget: Budget | None, measure: Measure = None) -> None:
        """Begin a file; one that another process began in the meantime stays as it is.

        Raises:
            BadInput: it can't be written.
        """
        with self._locked():
            if not self.path.exists():
                self._write(LedgerState(budget, measure))

    def read(self) -> LedgerState:
        """What it holds now.

        Raises:
            BadInput: there is none, or it is damaged or edited.
        """
        if not self.path.is_file():
            raise BadInput(
                f"there is no ledger {self.path}: begin one with Ledger.open(path, pv.Budget(epsilon=E, delta=D))"
            )
        try:
            if self.path.stat().st_size > _LARGEST:
                raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
            return _state_of(loads(self.path.read_bytes()))
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{self.path} is no ledger that can be trusted: {str(error)[:500]}. Bring back the file as privlearn "
                "wrote it; what was spent can't be known without it"
            ) from error

    @contextmanager
    def editing(self) -> Iterator[LedgerState]:
        """Read, change and write in one step, alone among all processes; nothing is written if the body raises."""
        with self._locked():
            state = self.read()
            before = _plain(state)
            yield state
            if _plain(state) != before:
                self._write(state)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(f"{self.path}.lock", timeout=_PATIENCE)
        try:
            lock.acquire()
        except Timeout as error:
            raise BadInput(
                f"{self.path} has been locked by another process for {_PATIENCE:g} seconds: try again when that has "
                "ended"
            ) from error
        except OSError as error:
            raise BadInput(
                f"{self.path}.lock cannot be written: {error.strerror or error}. A ledger needs a folder that you may "
                "write to"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _write(self, state: LedgerState) -> None:
        body = _plain(state)
        entries = ",\n  ".join(
            json.dumps(entry) for entry in body["entries"]
        )  # a line each: indenting all takes far longer
        rest = {**body, "entries": [], "digest": digest(body)}
        head = json.dumps({"format": _FORMAT, "version": _VERSION, **rest}, indent=1)
        text = head.replace('"entries": []', f'"entries": [\n  {entries}\n ]').encode() + b"\n"
        if len(text) > _LARGEST:
            raise BadInput(
                f"{self.path} would become larger than {_LARGEST >> 20} MiB, and could not be read any more. Nothing "
                "was charged or drawn, and the file is as it was. Begin another ledger, or use plans with fewer "
                "different noise multipliers"
            )
        write_durably(self.path, text)


def _plain(state: LedgerState) -> dict[str, Any]:
    return {
        "budget": None if state.budget is None else asdict(state.budget),
        "measure": state.measure,
        "adjacency": None if state.adjacency is None else state.adjacency.value,
        "unit": None if state.unit is None else asdict(state.unit),
        "entries": [
            {**vars(entry), **{name: to_json(getattr(entry, name)) for name in _EVENTS}} for entry in state.entries
        ],
    }


def _state_of(data: Any) -> LedgerState:
    """The state that `_write` wrote.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    if data.get("version") not in (1, _VERSION):
        raise ValueError(f"its version is {str(data.get('version'))[:40]}, and this privlearn reads 1 and {_VERSION}")
    body = {key: value for key, value in data.items() if key not in ("format", "version", "digest")}
    if data.get("digest") != digest(body):
        raise ValueError("its digest does not match: it was edited or damaged")
    try:
        if data["version"] == 1:
            body = _of_version_1(body)
        budget = None if body["budget"] is None else Budget(**body["budget"])
        adjacency = None if body["adjacency"] is None else Adjacency.parse(body["adjacency"])
        unit = None if body["unit"] is None else PrivacyUnit(**body["unit"])
        measure = require_measure(body["measure"], budget)
        return LedgerState(budget, measure, adjacency, unit, [_entry(entry) for entry in body["entries"]])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has other fields than a ledger: {str(error)[:200]}") from error


def _of_version_1(body: dict[str, Any]) -> dict[str, Any]:
    """Ledgers that knew no filters: which runs were fixed before the first release is known of the first one alone."""
    entries = [{**entry, "approved": entry["held"], "declared": False, "waiting": False} for entry in body["entries"]]
    for place, entry in enumerate(entries):
        del entry["held"]
        entry["declared"] = place == 0
    return {**body, "measure": None, "entries": entries}


def _entry(data: dict[str, Any]) -> RunEntry:
    approved, spent = from_json(data["approved"]), from_json(data["spent"])
    texts = {name: data[name] for name in _TEXTS}
    flags = {name: data[name] for name in _FLAGS}
    if not all(isinstance(text, str) and len(text) <= _LONGEST for text in texts.values()):
        raise ValueError("an entry has something else than short texts")
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ValueError("an entry has other flags than yes and no")
    if not isinstance(approved, Composed) or not isinstance(spent, Composed):
        raise ValueError("an entry has fields of other types")
    if set(data) != {*texts, *flags, *_EVENTS}:
        raise ValueError("an entry has other fields")
    if flags["waiting"] and (not flags["open"] or spent != NOTHING):
        raise ValueError("an entry that waits was begun or closed")
    return RunEntry(**texts, **flags, approved=approved, spent=spent)


@final
class LedgerRun:
    """What one ledger object does to its state: one run at a time, or charges one by one.

    Charges of an approved run are written down in blocks, ahead of use: there is always at least as much in the store
    as was drawn, and training does not wait for the disk at every step.
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
                entry = replace(ahead, waiting=False, what=what or ahead.what)
                state.put(entry)
            else:
                state.require_room(approved, adjacency, unit)
                state.adjacency, state.unit = adjacency, unit
                entry = state.add(RunEntry.new(what, approved=approved))
        self._start(entry, adjacency)

    def resume(self, run: str, approved: Composed, adjacency: Adjacency) -> None:
        """Go on with the run of that id, from its beginning; what it was charged for is not charged again."""
        state = self.store.read()
        entry = state.entry(run)
        paid = not entry.open and entry.spent == approved  # to its end: only publishing is left
        if (not paid and (not entry.open or entry.approved != approved)) or state.adjacency is not adjacency:
            why = (
                "was approved for something else" if entry.open else "was closed, and what it had not spent given back"
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
                        f"the run {entry.id} was closed while it was under way: it may charge nothing more"
                    )
                entry = replace(entry, spent=first(entry.approved, written))
                state.put(entry)
            self.entry, self._written = entry, sum(n for _, n in walk(entry.spent))
        self._used += times

    def charge(self, event: Event, adjacency: Adjacency, what: str) -> None:
        """Charge what was not approved; a run that was under way has departed from its plan, and ends."""
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
        own = self.entry
        return [
            first(entry.approved, self._used) if own and entry.id == own.id else entry.spent
            for entry in self.store.read().entries
        ]
