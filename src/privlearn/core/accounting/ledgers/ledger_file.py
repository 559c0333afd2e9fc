"""This module reads and writes ledgers that are kept in a file.

A ledger file outlives the runs that are charged to it and serves several processes.

It is one JSON document, replaced as a whole under a lock, so that it is never half written. One
that has become large is appended to, in a form that tells lost and edited lines (`ledger_log`), and
written as a whole at intervals. It holds public numbers only. Every charge is in it before anything
is drawn, and an open entry counts with all that its run may still come to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, final

from filelock import FileLock, Timeout

from privlearn._storage import digest, loads, write_durably
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, from_json, to_json
from privlearn.core.accounting.filters import Measure, require_measure
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledgers import ledger_log
from privlearn.core.accounting.ledgers.ledger_log import Place
from privlearn.core.accounting.ledgers.ledger_state import NOTHING, LedgerState, RunEntry
from privlearn.errors import BadInput

_FORMAT, _VERSION = ledger_log.FORMAT, 2
_LARGEST = 1 << 26
#: Bytes from which a file is appended to: smaller ones are replaced in less time than a disk takes
#: to write.
_LARGE = 1 << 14
_PATIENCE = 30.0  # seconds to wait for another process
_LONGEST = 1000  # characters of a text
_TEXTS, _FLAGS, _EVENTS = (
    ("id", "what", "by", "begun"),
    ("open", "declared", "waiting"),
    ("approved", "spent"),
)


@final
class LedgerFile:
    """A ledger file.

    Args:
        path: where it is, or is to be; beside it lies `path` + `.lock`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: tuple[LedgerState, Place, int] | None = (
            None  # of a large file: what was read, how far; its document
        )

    def create(self, budget: Budget | None, measure: Measure = None) -> None:
        """Begin a file; one that another process began in the meantime stays as it is.

        Raises:
            BadInput: it can't be written.
        """
        with self._lock():
            if not self.path.exists():
                self._write(LedgerState(budget, measure))

    def read(self) -> LedgerState:
        """What it holds now.

        Raises:
            BadInput: there is none, or it is damaged or edited.
        """
        if not self.path.is_file():
            raise BadInput(
                f"there is no ledger {self.path}: begin one with Ledger.open(path, "
                "pv.Budget(epsilon=E, delta=D))"
            )
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size > _LARGEST:
                    raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
                return self._read(file)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{self.path} is not a ledger that can be trusted: {str(error)[:500]}. Bring back "
                "the file as privlearn wrote it; what was spent can't be known without it"
            ) from error

    def _read(self, file: BinaryIO) -> LedgerState:
        head = file.read(ledger_log.HEAD)
        if not ledger_log.is_begun(head):
            self._known = None
            return _state_of(loads(head + file.read()))
        if self._known is not None:
            state, place, document = self._known
            with suppress(ValueError):  # or it was replaced since
                file.seek(place.length)
                changes, place = ledger_log.read_on(head, file.read(), place)
                return self._keep(_apply(state, changes), place, document)
        file.seek(len(head))
        text, changes, place = ledger_log.read(head + file.read())
        return self._keep(_apply(_state_of(loads(text)), changes), place, len(text))

    def _keep(self, state: LedgerState, place: Place, document: int) -> LedgerState:
        self._known = state, place, document
        return state

    @contextmanager
    def editing(self) -> Iterator[LedgerState]:
        """Read, change and write in one step, alone among all processes; nothing is written if the
        body raises.
        """
        with self._lock():
            before = self.read()
            state = before.draft()
            yield state
            change = _change(before, state)
            if change is None or (change and not self._append(state, change)):
                self._write(state)

    def _append(self, state: LedgerState, change: dict[str, Any]) -> bool:
        """Append a change, where that is worth it: to a large file whose lines are not longer than
        its document yet.
        """
        if self._known is None:
            return False
        _, place, document = self._known
        line, end = ledger_log.line(place, change)
        if end.length > min(2 * document, _LARGEST):
            return False
        ledger_log.append(self.path, line, end)
        self._keep(state, end, document)
        return True

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = FileLock(f"{self.path}.lock", timeout=_PATIENCE)
        try:
            lock.acquire()
        except Timeout as error:
            raise BadInput(
                f"{self.path} has been locked by another process for {_PATIENCE:g} seconds: try "
                "again when that has ended"
            ) from error
        except OSError as error:
            raise BadInput(
                f"{self.path}.lock cannot be written: {error.strerror or error}. A ledger needs a "
                "folder that you may write to"
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
        text = text if len(text) < _LARGE else ledger_log.begun(text)
        if len(text) > _LARGEST:
            raise BadInput(
                f"{self.path} would become larger than {_LARGEST >> 20} MiB, and could not be read "
                "any more. Nothing was charged or drawn, and the file is as it was. Begin another "
                "ledger, or use plans with fewer different noise multipliers"
            )
        self._known = None
        write_durably(self.path, text)


def _plain(state: LedgerState) -> dict[str, Any]:
    return {
        "budget": None if state.budget is None else asdict(state.budget),
        "measure": state.measure,
        **_scope(state),
        "entries": [_plain_entry(entry) for entry in state.entries],
    }


def _scope(state: LedgerState) -> dict[str, Any]:
    """What the first charge fixes."""
    return {
        "adjacency": None if state.adjacency is None else state.adjacency.value,
        "unit": None if state.unit is None else asdict(state.unit),
    }


def _plain_entry(entry: RunEntry) -> dict[str, Any]:
    return {**vars(entry), **{name: to_json(getattr(entry, name)) for name in _EVENTS}}


def _change(before: LedgerState, after: LedgerState) -> dict[str, Any] | None:
    """What an edit changed, as plain values; None where only the whole says it; empty if it changed
    nothing.
    """
    ids = [entry.id for entry in after.entries]
    if ids[: len(before.entries)] != [entry.id for entry in before.entries] or len({*ids}) < len(
        ids
    ):
        return None  # older entries were summed up
    if not after.changes.keys() <= {*ids}:
        return None  # so were new ones
    if (before.budget, before.measure) != (after.budget, after.measure):
        return None
    entries = [
        _plain_entry(after.entry(name))
        if noted is None
        else {"id": name, "done": [one if isinstance(one, int) else to_json(one) for one in noted]}
        for name, noted in after.changes.items()
    ]
    scope = {} if _scope(before) == _scope(after) else _scope(after)
    return {**scope, "entries": entries} if entries or scope else {}


def _apply(state: LedgerState, changes: list[Any]) -> LedgerState:
    """The state after the `_change` of some edits.

    Raises:
        ValueError: they are none.
    """
    state = state.draft() if changes else state
    try:
        for change in changes:
            if "adjacency" in change:
                state.adjacency, state.unit = _read_scope(change)
            for data in change["entries"]:
                if "done" not in data:
                    state.restore(_entry(data))
                    continue
                for one in data["done"]:
                    if isinstance(one, int):
                        state.pay(data["id"], one)
                    else:
                        state.charge(state.entry(data["id"]), from_json(one))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a line has other fields than a change: {str(error)[:200]}") from error
    return state


def _state_of(data: Any) -> LedgerState:
    """The state that `_write` wrote.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    if data.get("version") not in (1, _VERSION):
        raise ValueError(
            f"its version is {str(data.get('version'))[:40]}, and this privlearn reads 1 to 3"
        )
    body = {key: value for key, value in data.items() if key not in ("format", "version", "digest")}
    if data.get("digest") != digest(body):
        raise ValueError("its digest does not match: it was edited or damaged")
    try:
        if data["version"] == 1:
            body = _of_version_1(body)
        budget = None if body["budget"] is None else Budget(**body["budget"])
        adjacency, unit = _read_scope(body)
        measure = require_measure(body["measure"], budget)
        return LedgerState(
            budget, measure, adjacency, unit, [_entry(entry) for entry in body["entries"]]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has other fields than a ledger: {str(error)[:200]}") from error


def _read_scope(data: dict[str, Any]) -> tuple[Adjacency | None, PrivacyUnit | None]:
    return (
        None if data["adjacency"] is None else Adjacency.parse(data["adjacency"]),
        None if data["unit"] is None else PrivacyUnit(**data["unit"]),
    )


def _of_version_1(body: dict[str, Any]) -> dict[str, Any]:
    """Ledgers that knew no filters: which runs were fixed before the first release is known of the
    first one alone.
    """
    entries = [
        {**entry, "approved": entry["held"], "declared": False, "waiting": False}
        for entry in body["entries"]
    ]
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
