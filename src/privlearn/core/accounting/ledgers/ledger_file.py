"""A ledger in a file, by SQLite.

The database has a rollback journal, not a write-ahead log: whenever no transaction is open, its one
file is whole, so that a copy of it is a copy of the ledger. After a process was killed in a
transaction, a journal lies beside it until the ledger is opened again.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import final

from filelock import FileLock, Timeout

from privlearn._storage import draft_of, write_durably
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.filters import Measure
from privlearn.core.accounting.ledgers.anchors import Anchor
from privlearn.core.accounting.ledgers.former_files import read_file
from privlearn.core.accounting.ledgers.ledger_database import (
    DATA,
    PATIENCE,
    Cursor,
    LedgerDatabase,
    Transaction,
    begin_ledger,
)
from privlearn.core.accounting.ledgers.ledger_rows import START
from privlearn.core.accounting.ledgers.ledger_state import LedgerState
from privlearn.errors import BadInput, PrivlearnError

VERSION = 2
#: "priv": what SQLite calls a file's application.
_APPLICATION = int.from_bytes(b"priv", "big")
_MAGIC = b"SQLite format 3\0"

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE change (
    data TEXT NOT NULL,
    number INTEGER NOT NULL,
    at TEXT NOT NULL,
    whole INTEGER NOT NULL CHECK (whole IN (0, 1)),
    content TEXT NOT NULL,
    previous TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    PRIMARY KEY (data, number)
);
CREATE INDEX wholes ON change (data, number) WHERE whole = 1;
CREATE TABLE head (
    data TEXT NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL,
    digest TEXT NOT NULL
);
CREATE TRIGGER changes_are_kept_as_they_are BEFORE UPDATE ON change BEGIN
    SELECT RAISE(ABORT, 'rows of a ledger are never changed');
END;
CREATE TRIGGER changes_are_never_deleted BEFORE DELETE ON change BEGIN
    SELECT RAISE(ABORT, 'rows of a ledger are never deleted');
END;
CREATE TRIGGER changes_follow_the_last_one BEFORE INSERT ON change
WHEN EXISTS (SELECT 1 FROM change WHERE digest = NEW.digest) OR NOT EXISTS (
    SELECT 1 FROM head
    WHERE data = NEW.data AND number + 1 = NEW.number AND digest = NEW.previous
)
BEGIN
    SELECT RAISE(ABORT, 'a row of a ledger follows the last one');
END;
CREATE TRIGGER the_head_is_the_last_row AFTER INSERT ON change BEGIN
    UPDATE head SET number = NEW.number, digest = NEW.digest WHERE data = NEW.data;
END;
CREATE TRIGGER the_head_goes_on BEFORE UPDATE ON head
WHEN NEW.data IS NOT OLD.data OR NEW.number IS NOT OLD.number + 1 OR NOT EXISTS (
    SELECT 1 FROM change
    WHERE data = NEW.data AND number = NEW.number AND digest = NEW.digest
)
BEGIN
    SELECT RAISE(ABORT, 'the head of a ledger is its last row');
END;
CREATE TRIGGER a_data_set_has_one_head BEFORE INSERT ON head
WHEN NEW.number != 0 OR NEW.digest != '{START}'
    OR EXISTS (SELECT 1 FROM head WHERE data = NEW.data)
BEGIN
    SELECT RAISE(ABORT, 'a data set has one head, and begins without rows');
END;
CREATE TRIGGER the_head_is_never_deleted BEFORE DELETE ON head BEGIN
    SELECT RAISE(ABORT, 'the head of a ledger is never deleted');
END;
"""


@final
class LedgerFile(LedgerDatabase):
    """A ledger in a file.

    Args:
        path: where it is, or is to be.
        data: the data set's name; None: that of the one data set in there.
        anchor: what keeps the head elsewhere.
    """

    path: Path

    def __init__(
        self, path: str | Path, data: str | None = None, anchor: Anchor | None = None
    ) -> None:
        super().__init__(Path(path), str(Path(path).absolute()), data, anchor)
        self._local = threading.local()

    def exists(self) -> bool:
        """Whether the file is there."""
        return self.path.exists()

    def begin(self, budget: Budget | None, measure: Measure = None, owner: str = "") -> None:
        """Begin the data set's ledger; one that another process began meanwhile stays as it is.

        Raises:
            BadInput: it can't be written; or it is gone, and its key is there.
        """
        if self.exists():
            super().begin(budget, measure, owner)
            return
        if self._key_file.exists():
            raise BadInput(
                f"there is no ledger {self.path}, and its key {self._key_file.name} is there: it "
                "was deleted or moved. Expected the ledger, which counts what was spent on its "
                "rows: bring it back. To begin one for other rows, delete the key"
            )
        with self._alone():
            if self.exists():
                return
            self._begin_file(self.data or DATA, LedgerState(budget, measure, owner=owner))
        self.key(create=True)

    def _begin_file(self, name: str, state: LedgerState) -> None:
        """Write a database beside the path, and move it there: it is whole, or not there."""
        draft = draft_of(self.path)
        try:
            draft.unlink(missing_ok=True)
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.executescript(f"BEGIN; {_SCHEMA}")
                begin_ledger(_statements_of(connection), name, state)
                connection.execute("COMMIT")
            draft.replace(self.path)
        except (OSError, sqlite3.Error) as error:
            raise self._explain_failed_write(error) from error

    def names(self) -> list[str]:
        """The data sets in it."""
        with self.readable():
            if self._is_former():
                return [DATA]
        return super().names()

    def read(self) -> LedgerState:
        """What it holds now.

        Raises:
            BadInput: there is none, or it is damaged or edited.
        """
        return self._read_former() or super().read()

    def check(self) -> LedgerState:
        """What it holds now, after a look at all rows.

        Raises:
            BadInput: as `read`.
        """
        return self._read_former() or super().check()

    def _read_former(self) -> LedgerState | None:
        """What a file of version 0.1 holds; None if it is a database."""
        with self.readable():
            if not self._is_former():
                return None
            if self.data not in (None, DATA):
                raise BadInput(
                    f"{self.path} is of version 0.1 and holds one data set, {DATA!r}: leave out "
                    f"{self.data!r}, or begin that with a budget"
                )
            return read_file(self.path)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A block that sees the database at one moment, whatever others write meanwhile."""
        with self.readable():
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                yield _statements_of(connection)
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A block that is alone with the database."""
        with self.readable():
            if self._is_former():
                self._migrate()
            connection = self._connection()
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield _statements_of(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._explain_failed_write(error) from error
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

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
            timeout=PATIENCE,
            isolation_level=None,
        )
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")  # macOS leaves charges in the drive's cache
        application, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        )
        if application != _APPLICATION:
            raise ValueError("it is another program's database")
        if version != VERSION:
            raise ValueError(f"its version is {version}, and this privlearn reads {VERSION}")
        if _triggers_of(connection) != _usual_triggers():
            raise ValueError("what keeps its rows from being changed was taken away, or changed")
        self._local.connection, self._local.process = connection, os.getpid()
        self._local.file = _file_of(self.path)
        return connection

    def key(self, *, create: bool) -> bytes:
        """The key in `PATH.key`, which those may read who may read the ledger, but never
        everybody.
        """
        file = self._key_file
        with self.readable(), self._alone():
            if not file.exists():
                if not create:
                    raise BadInput(
                        f"{file} is gone, without which rows can't be compared with those of "
                        "earlier runs: bring it back. If they are of the same persons, say so "
                        "with new_rows=True"
                    )
                mode = self.path.stat().st_mode & 0o660
                write_durably(file, secrets.token_hex(32).encode(), mode=mode)
            return file.read_bytes().strip()

    @property
    def _key_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.key")

    def _is_former(self) -> bool:
        """Whether the file is of version 0.1, and no database."""
        if getattr(self._local, "connection", None) is not None:
            return False
        if self.path.is_dir():
            advice = (
                "`privlearn verify` says what the model in it cost"
                if (self.path / "privacy.json").exists()
                else f"give {self.path / 'study.db'}"
            )
            raise BadInput(f"{self.path} is a folder, and a ledger is a file: {advice}")
        if not self.path.is_file():
            raise BadInput(
                f"there is no ledger {self.path}: begin one with Ledger.open(path, "
                "pv.Budget(epsilon=E, delta=D))"
            )
        with self.path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if not start:
            raise ValueError("it is empty, and a ledger never is")
        return start != _MAGIC

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
            self._begin_file(DATA, state)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """A block that reads: what keeps it from being read is told as bad input."""
        try:
            yield
        except PrivlearnError:
            raise
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
            return self.explain_lock()
        return BadInput(
            f"{self.path} cannot be written: {str(error)[:200]}. Nothing was charged or drawn. "
            "Free some space, or choose a folder that you may write to",
            path=str(self.path),
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Alone among the processes that begin or migrate the ledger."""
        lock = FileLock(f"{self.path}.lock", timeout=PATIENCE)
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


def _statements_of(connection: sqlite3.Connection) -> Transaction:
    def execute(statement: str, *values: object) -> Cursor:
        return connection.execute(statement, values)

    return execute
