"""The book: a ledger on disk, which outlives the runs that are charged to it and serves several processes.

It is one JSON file, replaced as a whole under a lock, so that it is never half written. It holds public numbers only.
Every charge is in it before anything is drawn, and an open entry counts with all that its run may still come to.
"""

from __future__ import annotations

import getpass
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from filelock import FileLock, Timeout

from privlearn._files import write_durably
from privlearn._json import digest, loads
from privlearn.accounting.adjacency import Adjacency, require_same
from privlearn.accounting.budget import Budget
from privlearn.accounting.event_json import from_json, to_json
from privlearn.accounting.events import Composed, Event, compose, require_adjacency
from privlearn.accounting.unit import Unit
from privlearn.errors import BadInput, BudgetExceeded

_FORMAT, _VERSION = "privlearn-ledger", 1
_LARGEST = 1 << 26
_PATIENCE = 30.0  # seconds to wait for another process
_LONGEST = 1000  # characters of a text
_TEXTS = ("id", "what", "by", "begun")
NOTHING = Composed(())


@final
@dataclass(frozen=True)
class Entry:
    """One run, or charges that were made one by one.

    Attributes:
        id: tells it from the others.
        what: what it was for.
        by: who made it.
        begun: when, in UTC.
        open: whether it may still be charged for what it holds.
        held: what is set aside for it while it is open, all that it has spent included.
        spent: what it was charged for; never less than what was drawn.
    """

    id: str
    what: str
    by: str
    begun: str
    open: bool
    held: Composed
    spent: Composed

    @classmethod
    def new(cls, what: str, *, held: Composed | None = None, spent: Composed = NOTHING) -> Entry:
        """An entry of this moment and this user; open if something is held for it."""
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(secrets.token_hex(4), what, _user(), begun, held is not None, held or NOTHING, spent)

    @property
    def counts(self) -> Composed:
        """What the budget has to cover for it."""
        return self.held if self.open else self.spent

    def closed(self) -> Entry:
        """Itself, with nothing set aside any more."""
        return replace(self, open=False, held=NOTHING)


@dataclass
class Pages:
    """What a book says; `Book.editing` writes changes back.

    Attributes:
        budget: the limit on everything together; None if it only records.
        adjacency: the kind of neighbour of everything in it; None while it is empty.
        unit: whose data everything in it protects; None while it is empty.
        entries: in the order of their beginning.
    """

    budget: Budget | None = None
    adjacency: Adjacency | None = None
    unit: Unit | None = None
    entries: list[Entry] = field(default_factory=list)

    @property
    def event(self) -> Composed:
        """Everything that was spent or is set aside."""
        return compose(entry.counts for entry in self.entries)

    def entry(self, id: str) -> Entry:  # noqa: A002 - that is its name
        """The entry called `id`.

        Raises:
            BadInput: there is none.
        """
        for entry in self.entries:
            if entry.id == id:
                return entry
        raise BadInput(f"the ledger has no entry {id!r}: it has {', '.join(e.id for e in self.entries) or 'none'}")

    def put(self, entry: Entry) -> None:
        """Add `entry`, or replace the one of the same id."""
        ids = [known.id for known in self.entries]
        if entry.id in ids:
            self.entries[ids.index(entry.id)] = entry
        else:
            self.entries.append(entry)

    @property
    def protects(self) -> Unit:
        """The unit, or what it is once something is charged: one example, or as many as the budget says go together."""
        return self.unit or Unit(self.budget.group_size if self.budget else 1)

    def require_unit(self, unit: Unit) -> None:
        """Raise `BadInput` unless what protects `unit` may stand here."""
        size = unit.group_size if self.budget is None else self.budget.group_size
        if unit.group_size == size and self.unit in (None, unit):
            return
        raise BadInput(
            f"this ledger protects {self.protects}, and it was asked to protect {unit}: one ledger holds one guarantee. Give "
            "both the same group_size and rows_per_person, or a ledger of its own to each",
            expected=self.protects,
            given=unit,
        )

    def require_room(self, event: Event, adjacency: Adjacency, unit: Unit | None = None) -> None:
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
        if self.budget is not None:
            require_covered(self.budget, self.event, event, adjacency)


def require_covered(budget: Budget, before: Event, event: Event, adjacency: Adjacency) -> None:
    """Raise `BudgetExceeded` unless `budget` covers `event` on top of what was spent `before`."""
    spent = budget.spent(compose([before, event]), adjacency)
    if not budget.covers(spent):
        first = before == NOTHING
        already = (
            ""
            if first
            else f", of which {budget.figure(budget.spent(before, adjacency))} was spent or set aside before"
        )
        remedy = "a larger budget" if first else "a smaller target"
        raise BudgetExceeded(
            f"this charge would take the total to {budget.figure(spent)}, past the budget of {budget}{already}. Nothing was "
            f"charged or drawn. Use more noise, fewer releases (epochs, queries) or {remedy}",
            budget=budget,
            would_be=spent,
        )


@final
class Book:
    """A ledger file.

    Args:
        path: where it is, or is to be; beside it lies `path` + `.lock`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, budget: Budget | None) -> None:
        """Begin a book.

        Raises:
            BadInput: there is one already, or it can't be written.
        """
        with self._locked():
            if self.path.exists():
                raise BadInput(
                    f"{self.path} exists already: its budget is fixed; choose another file for another ledger"
                )
            self._write(Pages(budget))

    def read(self) -> Pages:
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
    def editing(self) -> Iterator[Pages]:
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

    def _write(self, pages: Pages) -> None:
        body = _plain(pages)
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **body, "digest": digest(body)}, indent=1)
        write_durably(self.path, text.encode() + b"\n")


def _plain(pages: Pages) -> dict[str, Any]:
    return {
        "budget": None if pages.budget is None else asdict(pages.budget),
        "adjacency": None if pages.adjacency is None else pages.adjacency.value,
        "unit": None if pages.unit is None else asdict(pages.unit),
        "entries": [
            {**vars(entry), "held": to_json(entry.held), "spent": to_json(entry.spent)} for entry in pages.entries
        ],
    }


def _pages(data: Any) -> Pages:
    """The pages that `_write` wrote.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    if data.get("version") != _VERSION:
        raise ValueError(f"its version is {str(data.get('version'))[:40]}, and this privlearn reads {_VERSION}")
    body = {key: value for key, value in data.items() if key not in ("format", "version", "digest")}
    if data.get("digest") != digest(body):
        raise ValueError("its digest does not match: it was edited or damaged")
    try:
        budget = None if body["budget"] is None else Budget(**body["budget"])
        adjacency = None if body["adjacency"] is None else Adjacency.parse(body["adjacency"])
        unit = None if body["unit"] is None else Unit(**body["unit"])
        return Pages(budget, adjacency, unit, [_entry(entry) for entry in body["entries"]])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has other fields than a ledger: {str(error)[:200]}") from error


def _entry(data: dict[str, Any]) -> Entry:
    held, spent = from_json(data["held"]), from_json(data["spent"])
    texts = {name: data[name] for name in _TEXTS}
    if not all(isinstance(text, str) and len(text) <= _LONGEST for text in texts.values()):
        raise ValueError("an entry has something else than short texts")
    if not isinstance(data["open"], bool) or not isinstance(held, Composed) or not isinstance(spent, Composed):
        raise ValueError("an entry has fields of other types")
    if set(data) != {*texts, "open", "held", "spent"}:
        raise ValueError("an entry has other fields")
    return Entry(**texts, open=data["open"], held=held, spent=spent)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"
