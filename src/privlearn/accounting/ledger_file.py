"""The book: a ledger on disk, which outlives the runs that are charged to it and serves several processes.

It is one JSON file, replaced as a whole under a lock, so that it is never half written. It holds public numbers only.
Every charge is in it before anything is drawn, and an open entry counts with all that its run may still come to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, final

from filelock import FileLock, Timeout

from privlearn._storage import digest, loads, write_durably
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Composed, from_json, to_json
from privlearn.accounting.filters import Measure, require_measure
from privlearn.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.accounting.ledger_state import NOTHING, LedgerState, RunEntry
from privlearn.errors import BadInput

_FORMAT, _VERSION = "privlearn-ledger", 2
_LARGEST = 1 << 26
_PATIENCE = 30.0  # seconds to wait for another process
_LONGEST = 1000  # characters of a text
_TEXTS, _FLAGS, _EVENTS = ("id", "what", "by", "begun"), ("open", "declared", "waiting"), ("approved", "spent")


class LedgerStore(Protocol):
    """Where a ledger's pages are."""

    def read(self) -> LedgerState:
        """What they say now; not to be changed."""
        ...

    def editing(self) -> Any:
        """A `with` block that yields the pages, and keeps what was changed in them unless the block raises."""
        ...


@final
class LedgerMemory:
    """The pages of a ledger that lives in one process."""

    def __init__(self, pages: LedgerState) -> None:
        self._pages = pages

    def read(self) -> LedgerState:
        """What they say now."""
        return self._pages

    @contextmanager
    def editing(self) -> Iterator[LedgerState]:
        """Change them; nothing is changed if the body raises."""
        draft = replace(self._pages, entries=list(self._pages.entries))
        yield draft
        self._pages = draft


@final
class LedgerFile:
    """A ledger file.

    Args:
        path: where it is, or is to be; beside it lies `path` + `.lock`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, budget: Budget | None, measure: Measure = None) -> None:
        """Begin a book.

        Raises:
            BadInput: there is one already, or it can't be written.
        """
        with self._locked():
            if self.path.exists():
                raise BadInput(
                    f"{self.path} exists already: its budget is fixed; choose another file for another ledger"
                )
            self._write(LedgerState(budget, measure))

    def read(self) -> LedgerState:
        """What it says now.

        Raises:
            BadInput: there is none, or it is damaged or edited.
        """
        if not self.path.is_file():
            raise BadInput(
                f"there is no ledger {self.path}: begin one with `privlearn ledger {self.path} --epsilon E --delta D`"
            )
        try:
            if self.path.stat().st_size > _LARGEST:
                raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
            return _pages(loads(self.path.read_bytes()))
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{self.path} is no ledger that can be trusted: {str(error)[:500]}. Bring back the file as privlearn wrote "
                "it; what was spent can't be told without it"
            ) from error

    @contextmanager
    def editing(self) -> Iterator[LedgerState]:
        """Read, change and write as one step that no other process comes between; nothing is written if the body raises."""
        with self._locked():
            pages = self.read()
            before = _plain(pages)
            yield pages
            if _plain(pages) != before:
                self._write(pages)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(f"{self.path}.lock", timeout=_PATIENCE)
        try:
            lock.acquire()
        except Timeout as error:
            raise BadInput(
                f"{self.path} has been locked by another process for {_PATIENCE:g} seconds: try again when that has ended"
            ) from error
        except OSError as error:
            raise BadInput(
                f"{self.path}.lock cannot be written: {error.strerror or error}. A ledger needs a folder that you may write to"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _write(self, pages: LedgerState) -> None:
        body = _plain(pages)
        entries = ",\n  ".join(
            json.dumps(entry) for entry in body["entries"]
        )  # a line each: indenting all takes far longer
        rest = {**body, "entries": [], "digest": digest(body)}
        head = json.dumps({"format": _FORMAT, "version": _VERSION, **rest}, indent=1)
        text = head.replace('"entries": []', f'"entries": [\n  {entries}\n ]').encode() + b"\n"
        if len(text) > _LARGEST:
            raise BadInput(
                f"{self.path} would become larger than {_LARGEST >> 20} MiB, and could not be read any more. Nothing was "
                "charged or drawn, and the file is as it was. Begin another ledger, or use plans with fewer different noise "
                "multipliers"
            )
        write_durably(self.path, text)


def _plain(pages: LedgerState) -> dict[str, Any]:
    return {
        "budget": None if pages.budget is None else asdict(pages.budget),
        "measure": pages.measure,
        "adjacency": None if pages.adjacency is None else pages.adjacency.value,
        "unit": None if pages.unit is None else asdict(pages.unit),
        "entries": [
            {**vars(entry), **{name: to_json(getattr(entry, name)) for name in _EVENTS}} for entry in pages.entries
        ],
    }


def _pages(data: Any) -> LedgerState:
    """The pages that `_write` wrote.

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
