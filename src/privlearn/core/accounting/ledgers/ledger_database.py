"""A ledger in a database: rows are appended, never changed, and each holds the digest of the one
before.

Every change is committed, and on the disk, before anything is drawn. A change is read, judged and
written in one transaction, alone among all processes. A database holds one ledger for each data
set, with a budget and a chain of digests of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Protocol, Self

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.filters import Measure
from privlearn.core.accounting.ledgers.anchors import Anchor
from privlearn.core.accounting.ledgers.ledger_json import change_between
from privlearn.core.accounting.ledgers.ledger_rows import (
    START,
    Place,
    Row,
    follow,
    next_row,
    read_rows,
)
from privlearn.core.accounting.ledgers.ledger_state import LedgerState
from privlearn.errors import BadInput

#: What the data set of a ledger is called that holds one.
DATA = "data"
PATIENCE = 30  # seconds to wait for another process
_LONGEST_NAME = 100

_NAMES = "SELECT data FROM head ORDER BY data"
_HEAD = "SELECT number, digest FROM head WHERE data = ?"
_LAST_WHOLE = (
    "SELECT number, previous FROM change WHERE data = ? AND whole = 1 ORDER BY number DESC LIMIT 1"
)
_ROWS = (
    "SELECT data, number, at, whole, content, previous, digest FROM change "
    "WHERE data = ? AND number > ? ORDER BY number"
)
_NUMBER = "SELECT number FROM change WHERE data = ? AND digest = ?"
_DIGEST = "SELECT digest FROM change WHERE data = ? AND number = ?"
_BEGIN = "INSERT INTO head VALUES (?, 0, ?)"
_INSERT = "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?, ?)"


class Cursor(Protocol):
    """What a statement answers."""

    def fetchone(self) -> Any:
        """The next row, or None."""

    def __iter__(self) -> Iterator[Any]:
        """All rows."""


class Transaction(Protocol):
    """What an open transaction takes."""

    def __call__(self, statement: str, *values: Any) -> Cursor:
        """Execute one statement, with `?` for each of the values."""


class LedgerDatabase(ABC):
    """The ledger of one data set in a database.

    Args:
        path: the database's file or address, without secrets.
        address: what opens it.
        data: the data set's name; None: that of the one data set in there.
        anchor: what keeps the head elsewhere.
    """

    def __init__(
        self, path: Path | str, address: str, data: str | None = None, anchor: Anchor | None = None
    ) -> None:
        if data is not None:
            require_name(data)
        self.path, self.address, self.data, self.anchor = path, address, data, anchor
        self._known: tuple[LedgerState, Place] | None = None

    @abstractmethod
    def exists(self) -> bool:
        """Whether the database is there."""

    def explain_lock(self) -> BadInput:
        """That another process has held it for too long."""
        return BadInput(
            f"{self.path} has been locked by another process for {PATIENCE} seconds: try again "
            "when that has ended"
        )

    @abstractmethod
    def readable(self) -> AbstractContextManager[None]:
        """A block that reads: what keeps it from being read, also a `ValueError`, is raised as
        `BadInput`.
        """

    @abstractmethod
    def reading(self) -> AbstractContextManager[Transaction]:
        """A `readable` block that sees the database at one moment, whatever others write
        meanwhile.
        """

    @abstractmethod
    def writing(self) -> AbstractContextManager[Transaction]:
        """A block that is alone with the database. What it did is on the disk after its end; it did
        nothing if it raises.

        Raises:
            BadInput: it can't be written.
        """

    @property
    def last_read(self) -> Place | None:
        """How far it was read last; None before, or of a file of version 0.1."""
        return None if self._known is None else self._known[1]

    def names(self) -> list[str]:
        """The data sets in it."""
        with self.reading() as execute:
            return _names(execute)

    def begin(self, budget: Budget | None, measure: Measure = None, owner: str = "") -> None:
        """Begin the data set's ledger; one that another process began meanwhile stays as it is.

        Raises:
            BadInput: it can't be written.
        """
        with self.writing() as execute:
            if execute(_HEAD, self.data or DATA).fetchone() is None:
                with self.readable():
                    self._compare_with_anchor(execute)
                begin_ledger(execute, self.data or DATA, LedgerState(budget, measure, owner=owner))

    def read(self) -> LedgerState:
        """What it holds now.

        Raises:
            BadInput: there is none, or it is damaged or edited.
        """
        with self.reading() as execute:
            return self._read(execute)[0]

    def check(self) -> LedgerState:
        """What it holds now, after a look at all rows: also at those before the last whole state,
        on which nothing rests any more.

        Raises:
            BadInput: as `read`.
        """
        with self.reading() as execute:
            place = Place()
            for row in _rows(execute, self._name(execute), place):
                _, place = follow(place, row)
            return self._read(execute)[0]

    def head(self) -> tuple[int, str]:
        """The number and the digest of the last row."""
        with self.reading() as execute:
            place = self._read(execute)[1]
        return place.number, place.digest

    def number_of(self, digest: str) -> int | None:
        """The number of the row with this digest; None if there is none."""
        with self.reading() as execute:
            row = execute(_NUMBER, self._name(execute), digest).fetchone()
        return None if row is None else int(row[0])

    @contextmanager
    def editing(self) -> Iterator[LedgerState]:
        """Read, change and write in one transaction; nothing is written if the body raises."""
        with self.writing() as execute:
            with self.readable():
                before, start = self._read(execute)
            state, place = before.current(), start
            yield state
            name, change = self._name(execute), change_between(before, state)
            if change is None or change:
                row = next_row(name, start, state, change)
                execute(_INSERT, *row)
                _, place = follow(start, row)
        self._known = state, place
        if self.anchor is not None and place != start:
            self.anchor.keep(name, place.number, place.digest)

    def other(self, name: str) -> Self:
        """The ledger of another data set in the same database."""
        database = copy(self)
        database.data, database._known = name, None
        return database

    @abstractmethod
    def key(self, *, create: bool) -> bytes:
        """The secret that the digests of rows are keyed with; made if it isn't there and may be.

        Raises:
            BadInput: it isn't there.
        """

    def _name(self, execute: Transaction) -> str:
        """The data set's name."""
        if self.data is None:
            names = _names(execute)
            if len(names) > 1:
                raise BadInput(
                    f"{self.path} holds ledgers of several data sets, {', '.join(names)[:150]}: "
                    "say which one with data_set=NAME"
                )
            (self.data,) = names
        return self.data

    def _read(self, execute: Transaction) -> tuple[LedgerState, Place]:
        """The state, and how far it was read; rows that were read before are not read again."""
        name, known = self._name(execute), self._known
        head = execute(_HEAD, name).fetchone()
        if head is None:
            names = ", ".join(_names(execute))[:150]
            raise BadInput(
                f"{self.path} has no data set {name!r}: it holds {names}. Check the name, "
                "or begin it with a budget"
            )
        if known is not None:
            state, place = known
            if tuple(head) == (place.number, place.digest):
                return known
        else:
            start = execute(_LAST_WHOLE, name).fetchone()
            if start is None:
                raise ValueError("it has no rows")
            state, place = LedgerState(), Place(start[0] - 1, start[1])
            self._compare_with_anchor(execute)
        state, place = read_rows(_rows(execute, name, place), state, place)
        if tuple(head) != (place.number, place.digest):
            raise ValueError("its last rows are gone, or others: perhaps a copy was put back")
        self._known = state, place
        return state, place

    def _compare_with_anchor(self, execute: Transaction) -> None:
        """Raise `ValueError` unless the database holds the rows that its anchor keeps, of all data
        sets.
        """
        heads = {} if self.anchor is None else self.anchor.heads()
        for name, (number, digest) in heads.items():
            if execute(_DIGEST, name, number).fetchone() != (digest,):
                raise ValueError(
                    f"its anchor keeps another row {number} of {name!r}, or a later one than it "
                    "has: an older copy was put back, or it is another ledger"
                )


def _names(execute: Transaction) -> list[str]:
    names = [name for (name,) in execute(_NAMES)]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("it has no data set, or one without a name")
    return names


def _rows(execute: Transaction, name: str, place: Place) -> Iterable[Row]:
    return map(Row._make, execute(_ROWS, name, place.number))


def begin_ledger(execute: Transaction, name: str, state: LedgerState) -> None:
    """Begin the ledger of a data set with its first row."""
    execute(_BEGIN, name, START)
    execute(_INSERT, *next_row(name, Place(), state, None))


def require_name(data: str) -> None:
    """Raise `BadInput` unless a data set may be called so."""
    if not 0 < len(data) <= _LONGEST_NAME or not data.isprintable() or data != data.strip():
        raise BadInput(
            f"the data set's name is {data[:60]!r}: expected 1 to {_LONGEST_NAME} printable "
            "characters, without spaces at the ends",
            data=data[:200],
        )
