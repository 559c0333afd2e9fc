"""A ledger in an SQLite database: rows are appended, never changed, and each holds the digest of
the one before.

Every change is committed, and on the disk, before anything is drawn. A change is read, judged and
written in one transaction, alone among all processes.

The database has a rollback journal, not a write-ahead log: whenever no transaction is open, its one
file is whole, so that a copy of it is a copy of the ledger. After a process was killed in a
transaction, a journal lies beside it until the ledger is opened again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, final

from filelock import FileLock, Timeout

from privlearn._storage import draft_of, loads
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.filters import Measure
from privlearn.core.accounting.ledgers.former_files import read_file
from privlearn.core.accounting.ledgers.ledger_json import (
    apply_changes,
    change_between,
    plain_state,
    read_state,
)
from privlearn.core.accounting.ledgers.ledger_state import LedgerState
from privlearn.errors import BadInput

_PATIENCE = 30.0  # seconds to wait for another process
_VERSION = 1
#: "priv": what SQLite calls a file's application.
_APPLICATION = int.from_bytes(b"priv", "big")
_MAGIC = b"SQLite format 3\0"
#: The digest before the first row.
_START = "0" * 64

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
CREATE TABLE change (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    whole INTEGER NOT NULL CHECK (whole IN (0, 1)),
    content TEXT NOT NULL,
    previous TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE
);
CREATE INDEX wholes ON change (number) WHERE whole;
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL,
    digest TEXT NOT NULL
);
INSERT INTO head VALUES (1, 0, '{_START}');
CREATE TRIGGER changes_are_kept_as_they_are BEFORE UPDATE ON change BEGIN
    SELECT RAISE(ABORT, 'rows of a ledger are never changed');
END;
CREATE TRIGGER changes_are_never_deleted BEFORE DELETE ON change BEGIN
    SELECT RAISE(ABORT, 'rows of a ledger are never deleted');
END;
CREATE TRIGGER changes_follow_the_last_one BEFORE INSERT ON change
WHEN EXISTS (SELECT 1 FROM change WHERE digest = NEW.digest) OR NOT EXISTS (
    SELECT 1 FROM head WHERE number + 1 = NEW.number AND digest = NEW.previous
)
BEGIN
    SELECT RAISE(ABORT, 'a row of a ledger follows the last one');
END;
CREATE TRIGGER the_head_is_the_last_row AFTER INSERT ON change BEGIN
    UPDATE head SET number = NEW.number, digest = NEW.digest;
END;
CREATE TRIGGER the_head_goes_on BEFORE UPDATE ON head
WHEN NEW.number IS NOT OLD.number + 1 OR NOT EXISTS (
    SELECT 1 FROM change WHERE number = NEW.number AND digest = NEW.digest
)
BEGIN
    SELECT RAISE(ABORT, 'the head of a ledger is its last row');
END;
CREATE TRIGGER there_is_one_head BEFORE INSERT ON head BEGIN
    SELECT RAISE(ABORT, 'a ledger has one head');
END;
CREATE TRIGGER the_head_is_never_deleted BEFORE DELETE ON head BEGIN
    SELECT RAISE(ABORT, 'the head of a ledger is never deleted');
END;
"""
_HEAD = "SELECT number, digest FROM head"
_LAST_WHOLE = "SELECT number, previous FROM change WHERE whole ORDER BY number DESC LIMIT 1"
_ROWS = (
    "SELECT number, at, whole, content, previous, digest FROM change WHERE number > ? "
    "ORDER BY number"
)
_INSERT = (
    "INSERT INTO change (number, at, whole, content, previous, digest) VALUES (?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class _Place:
    """How far a ledger was read.

    Attributes:
        number: the last row.
        digest: its digest.
        whole, since: characters of the last whole state, and of all changes since then.
    """

    number: int
    digest: str
    whole: int
    since: int


@final
class LedgerDatabase:
    """A ledger in a file.

    Args:
        path: where it is, or is to be.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._local = threading.local()
        self._known: tuple[LedgerState, _Place] | None = None

    def create(self, budget: Budget | None, measure: Measure = None) -> None:
        """Begin a ledger; one that another process began in the meantime stays as it is.

        Raises:
            BadInput: it can't be written.
        """
        with self._alone():
            if not self.path.exists():
                self._begin(LedgerState(budget, measure))

    def _begin(self, state: LedgerState) -> None:
        """Write a database beside the path, and move it there: it is whole, or not there."""
        draft = draft_of(self.path)
        try:
            draft.unlink(missing_ok=True)
            connection = sqlite3.connect(draft, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                _insert(connection, None, state, None)
            finally:
                connection.close()
            draft.replace(self.path)
        except (OSError, sqlite3.Error) as error:
            raise self._explain_failed_write(error) from error

    def read(self) -> LedgerState:
        """What it holds now.

        Raises:
            BadInput: there is none, or it is damaged or edited.
        """
        with self._readable():
            if self._is_former():
                return read_file(self.path)
            return self._snapshot(self._connection())

    def check(self) -> LedgerState:
        """What it holds now, after a look at all rows: also at those before the last whole state,
        on which nothing rests any more.

        Raises:
            BadInput: as `read`.
        """
        with self._readable():
            if not self._is_former():
                place = _Place(0, _START, 0, 0)
                for row in self._connection().execute(_ROWS, (0,)):
                    _, place = _follow(place, row)
        return self.read()

    @contextmanager
    def editing(self) -> Iterator[LedgerState]:
        """Read, change and write in one transaction; nothing is written if the body raises."""
        with self._readable():
            if self._is_former():
                self._migrate()
            connection = self._connection()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._explain_failed_write(error) from error
        try:
            with self._readable():
                before, place = self._read(connection)
            state = before.draft()
            yield state
            change = change_between(before, state)
            try:
                if change is None or change:
                    place = _insert(connection, place, state, change)
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._explain_failed_write(error) from error
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._known = state, place

    def _snapshot(self, connection: sqlite3.Connection) -> LedgerState:
        """The state at one moment, whatever others write meanwhile."""
        connection.execute("BEGIN")
        try:
            return self._read(connection)[0]
        finally:
            connection.execute("ROLLBACK")

    def _read(self, connection: sqlite3.Connection) -> tuple[LedgerState, _Place]:
        """The state, and how far it was read; rows that were read before are not read again."""
        known = self._known
        head = connection.execute(_HEAD).fetchone()
        if known is not None:
            state, place = known
            if head == (place.number, place.digest):
                return known
        else:
            start = connection.execute(_LAST_WHOLE).fetchone()
            if start is None:
                raise ValueError("it has no rows")
            state, place = LedgerState(), _Place(start[0] - 1, start[1], 0, 0)
        changes: list[Any] = []
        for row in connection.execute(_ROWS, (place.number,)):
            value, place = _follow(place, row)
            if row[2]:  # the whole state
                state, changes = read_state(value), []
            else:
                changes.append(value)
        state = apply_changes(state, changes)
        if head != (place.number, place.digest):
            raise ValueError("its last rows are gone, or others: perhaps a copy was put back")
        self._known = state, place
        return state, place

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection in this process: SQLite's are not to be carried through a
        fork.
        """
        stored = getattr(self._local, "connection", None)
        if stored is not None and self._local.process == os.getpid():
            if self._local.file != _file_of(
                self.path
            ):  # charges would go into a file that nothing reads
                raise ValueError("the file was moved or replaced since it was opened")
            return stored  # type: ignore[no-any-return]
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=_PATIENCE,
            isolation_level=None,
        )
        connection.execute("PRAGMA synchronous = EXTRA")
        application, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        if application != _APPLICATION:
            raise ValueError("it is another program's database")
        if version != _VERSION:
            raise ValueError(f"its version is {version}, and this privlearn reads {_VERSION}")
        if _triggers_of(connection) != _usual_triggers():
            raise ValueError("what keeps its rows from being changed was taken away, or changed")
        self._local.connection, self._local.process = connection, os.getpid()
        self._local.file = _file_of(self.path)
        return connection

    def _is_former(self) -> bool:
        """Whether the file is of version 0.1, and no database."""
        if getattr(self._local, "connection", None) is not None:
            return False
        if not self.path.is_file():
            raise BadInput(
                f"there is no ledger {self.path}: begin one with Ledger.open(path, "
                "pv.Budget(epsilon=E, delta=D))"
            )
        with self.path.open("rb") as file:
            return file.read(len(_MAGIC)) != _MAGIC

    def _migrate(self) -> None:
        """Put a ledger of version 0.1 into a database; its file stays beside it, as `PATH.0.1`."""
        with self._alone():
            if not self._is_former():
                return  # another process did
            state = read_file(self.path)
            former = self.path.with_name(f"{self.path.name}.0.1")
            if former.exists():
                raise ValueError(f"it is of version 0.1, and {former} is there already")
            os.link(self.path, former)
            self._begin(state)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """A block that reads: what keeps it from being read is told as bad input."""
        try:
            yield
        except (OSError, ValueError, sqlite3.Error) as error:
            if "locked" in str(error):
                raise self._explain_failed_write(error) from error
            raise BadInput(
                f"{self.path} is not a ledger that can be trusted: {str(error)[:500]}. Bring back "
                "the file as privlearn wrote it; what was spent can't be known without it"
            ) from error

    def _explain_failed_write(self, error: Exception) -> BadInput:
        """What keeps it from being written, as bad input."""
        if "locked" in str(error):
            return BadInput(
                f"{self.path} has been locked by another process for {_PATIENCE:g} seconds: try "
                "again when that has ended"
            )
        return BadInput(
            f"{self.path} cannot be written: {str(error)[:200]}. Nothing was charged or drawn. "
            "Free some space, or choose a folder that you may write to",
            path=str(self.path),
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Alone among the processes that begin or migrate the ledger."""
        lock = FileLock(f"{self.path}.lock", timeout=_PATIENCE)
        try:
            lock.acquire()
        except (Timeout, OSError) as error:
            raise BadInput(
                f"{self.path}.lock cannot be had: {error}. A ledger needs a folder that you may "
                "write to"
            ) from error
        try:
            yield
        finally:
            lock.release()


def _triggers_of(connection: sqlite3.Connection) -> set[str]:
    statements = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")
    return {sql for (sql,) in statements}


@cache
def _usual_triggers() -> set[str]:
    """The triggers of a new ledger."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _triggers_of(connection)


def _file_of(path: Path) -> tuple[int, int]:
    """What tells a file from others, whatever it is called."""
    about = path.stat()
    return about.st_dev, about.st_ino


def _follow(place: _Place, row: tuple[int, str, int, str, str, str]) -> tuple[Any, _Place]:
    """What the next row holds, and its place.

    Raises:
        ValueError: it does not follow, or is not as it was written.
    """
    number, at, whole, content, previous, digest = row
    if (number, previous) != (place.number + 1, place.digest):
        raise ValueError(f"row {number} does not follow the one before: rows are gone, or others")
    if digest != _digest(number, at, whole, content, previous):
        raise ValueError(f"the digest of row {number} does not match: it was edited or damaged")
    length = len(content)
    sizes = (length, 0) if whole else (place.whole, place.since + length)
    return loads(content.encode()), _Place(number, digest, *sizes)


def _insert(
    connection: sqlite3.Connection, place: _Place | None, state: LedgerState, change: Any | None
) -> _Place:
    """Append a change, or the whole state: where only that says it, or the changes have become as
    long as it.
    """
    number = 1 if place is None else place.number + 1
    previous = _START if place is None else place.digest
    content = "" if change is None else json.dumps(change)
    whole = place is None or change is None or place.since + len(content) > 2 * place.whole
    if whole:
        content = json.dumps(plain_state(state))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    digest = _digest(number, at, int(whole), content, previous)
    connection.execute(_INSERT, (number, at, int(whole), content, previous, digest))
    if whole or place is None:
        return _Place(number, digest, len(content), 0)
    return _Place(number, digest, place.whole, place.since + len(content))


def _digest(number: int, at: str, whole: int, content: str, previous: str) -> str:
    fields = json.dumps([number, at, whole, content, previous])
    return hashlib.sha256(fields.encode()).hexdigest()
