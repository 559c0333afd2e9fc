"""A ledger on a PostgreSQL server, by psycopg.

The tables are in the schema `privlearn` of a database (`postgresql/schema.sql`). Who may append to
them and who may read them is said by roles (`postgresql/roles.sql`).
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, final
from urllib.parse import quote, urlencode
from weakref import finalize

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.filters import Measure
from privlearn.core.accounting.ledgers.anchors import Anchor
from privlearn.core.accounting.ledgers.ledger_database import (
    DATA,
    PATIENCE,
    Cursor,
    LedgerDatabase,
    Transaction,
    begin_ledger,
)
from privlearn.core.accounting.ledgers.ledger_state import LedgerState
from privlearn.errors import BadInput, PrivlearnError

_VERSION = "ledgers of privlearn, version 2"
#: "priv": the advisory lock that writers hold.
_LOCK = int.from_bytes(b"priv", "big")
_FILES = Path(__file__).with_name("postgresql")
#: Fields of an address that are shown: none of them is a secret.
_VISIBLE = ("service", "sslmode")

_READ = """
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL search_path = privlearn, pg_temp;
"""
# Writers are serialisable because they run one after another: each takes the lock before its first
# statement that reads, and the server releases it after the commit can be seen. READ COMMITTED is
# needed for that: at higher levels the first statement fixes what is seen, before it has waited for
# the lock. A program that takes no lock is held up by triggers, which lock the head's row.
# The server answers a commit when it is on its disk, whatever is usual there.
_WRITE = f"""
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL search_path = privlearn, pg_temp;
SET LOCAL synchronous_commit = on;
SET LOCAL lock_timeout = '{PATIENCE}s';
SELECT pg_advisory_xact_lock({_LOCK});
"""
_EXISTS = "SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'privlearn'"
# What a database has of the schema: its version, whether its tables are plain ones of one owner,
# and the definitions of its functions and of its triggers that are always enabled.
_ABOUT = """
SELECT current_setting('fsync'),
    current_setting('session_replication_role'),
    has_schema_privilege(schema.oid, 'USAGE'),
    obj_description(schema.oid, 'pg_namespace'),
    (SELECT count(*) = 3 AND bool_and(
            relkind = 'r' AND relpersistence = 'p' AND relowner = nspowner AND NOT relrowsecurity
            AND NOT EXISTS (SELECT 1 FROM pg_rewrite WHERE ev_class = pg_class.oid)
            AND NOT EXISTS (SELECT 1 FROM pg_inherits WHERE pg_class.oid IN (inhparent, inhrelid)))
        FROM pg_class
        WHERE relnamespace = schema.oid AND relname IN ('change', 'head', 'data_key')),
    (SELECT array_agg(pg_get_functiondef(oid)) FROM pg_proc
        WHERE pronamespace = schema.oid AND proowner = nspowner),
    (SELECT array_agg(pg_get_triggerdef(pg_trigger.oid))
        FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = schema.oid AND NOT tgisinternal AND tgenabled = 'A')
FROM pg_namespace AS schema WHERE nspname = 'privlearn'
"""
_KEY = "SELECT key FROM data_key"
_NEW_KEY = "INSERT INTO data_key (key) VALUES (?)"

_Connection = psycopg.Connection[tuple[Any, ...]]


@final
class LedgerServer(LedgerDatabase):
    """A ledger on a server.

    Args:
        address: where it is, or is to be: `postgresql://user@host/database`.
        data: the data set's name; None: that of the one data set in there.
        anchor: what keeps the head elsewhere.

    Raises:
        BadInput: the address can't be read.
    """

    path: str

    def __init__(self, address: str, data: str | None = None, anchor: Anchor | None = None) -> None:
        self._fields = _read_address(address)
        super().__init__(_write_visible(self._fields), address, data, anchor)
        self._local = threading.local()

    def exists(self) -> bool:
        """Whether the database has the tables."""
        with self.readable():
            connection = self._begin(_READ, check=False)
            try:
                return connection.execute(_EXISTS).fetchone() is not None
            finally:
                _leave(connection)

    def begin(self, budget: Budget | None, measure: Measure = None, owner: str = "") -> None:
        """Begin the data set's ledger, with the tables if there are none; one that another process
        began meanwhile stays as it is.

        Raises:
            BadInput: it can't be written.
        """
        if not self.exists():
            with self._writing(check=False) as execute:
                if execute(_EXISTS).fetchone() is None:
                    for statement in _statements_of_schema():
                        execute(statement)
                    state = LedgerState(budget, measure, owner=owner)
                    begin_ledger(execute, self.data or DATA, state)
                    execute(_NEW_KEY, secrets.token_hex(32))
                    return
        super().begin(budget, measure, owner)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A block that sees the database at one moment, whatever others write meanwhile."""
        with self.readable():
            connection = self._begin(_READ)
            try:
                yield _transaction_of(connection)
            finally:
                _leave(connection)

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A block that is alone with the database."""
        with self._writing() as execute:
            yield execute

    @contextmanager
    def _writing(self, *, check: bool = True) -> Iterator[Transaction]:
        """As `writing`; `check`: whether the tables have to be there, as they usually are."""
        with self.readable():
            connection = self._begin(_WRITE, check=check)
        try:
            yield _transaction_of(connection)
            self._commit(connection)
        except psycopg.Error as error:
            raise self._explain_failed_write(error) from error
        finally:
            _leave(connection)

    def _commit(self, connection: _Connection) -> None:
        """Commit, and wait until that is on the server's disk."""
        try:
            done = connection.execute("COMMIT")
        except psycopg.Error as error:
            raise BadInput(
                f"no answer whether a change of {self.path} was committed: "
                f"{self._text_of(error)}. Perhaps it is in the ledger; nothing was drawn for it. "
                "Try again, or continue the run; one that never began can be closed"
            ) from error
        if done.statusmessage != "COMMIT":  # after an error COMMIT is answered by "ROLLBACK"
            raise psycopg.DatabaseError("the server rolled the change back")

    def key(self, *, create: bool) -> bytes:
        """The key in the table `data_key`, which analysts may read, and auditors may not."""
        with self.reading() as execute:
            row = execute(_KEY).fetchone()
        if row is None and not create:
            raise BadInput(
                f"{self.path} has no key, without which rows can't be compared with those of "
                "earlier runs. If they are of the same persons, say so with new_rows=True"
            )
        if row is None:
            with self.writing() as execute:
                row = execute(_KEY).fetchone()
                if row is None:  # or another process made it
                    row = (secrets.token_hex(32),)
                    execute(_NEW_KEY, *row)
        return str(row[0]).encode()

    @contextmanager
    def readable(self) -> Iterator[None]:
        """A block that reads: what keeps it from being read is raised as bad input."""
        try:
            yield
        except PrivlearnError:
            raise
        except psycopg.errors.LockNotAvailable as error:
            raise self._explain_failed_write(error) from error
        except psycopg.OperationalError as error:
            raise BadInput(
                f"{self.path} cannot be reached: {self._text_of(error)}. Check the address and the "
                "server; passwords are read from PGPASSWORD, ~/.pgpass or a service file"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise BadInput(
                f"you may not read {self.path}: {self._text_of(error)}. Ask its owner for the role "
                "privlearn_analyst, or privlearn_auditor to look at it"
            ) from error
        except (ValueError, psycopg.Error) as error:
            raise BadInput(
                f"{self.path} is not a ledger that can be trusted: {self._text_of(error)}. Bring "
                "back the tables as privlearn wrote them; what was spent can't be known without "
                "them"
            ) from error

    def _explain_failed_write(self, error: psycopg.Error) -> BadInput:
        """What keeps it from being written, as bad input."""
        if isinstance(error, psycopg.errors.LockNotAvailable):
            return self.explain_lock()
        return BadInput(
            f"{self.path} cannot be written: {self._text_of(error)}. Nothing was charged or "
            "drawn. Try again when the server can be reached, or ask the ledger's owner for the "
            "role privlearn_analyst",
            path=self.path,
        )

    def _text_of(self, error: Exception) -> str:
        """What an error says; its kind alone if it quotes the password."""
        said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        text = " ".join((said or str(error)).split())[:150]
        password = self._fields.get("password")
        return type(error).__name__ if password and password in text else text

    def _begin(self, statements: str, *, check: bool = True) -> _Connection:
        """This thread's connection, in a transaction that these statements have begun. Nothing was
        done before them, so that they are sent again where the connection was lost meanwhile.
        """
        connection = self._connection()
        try:
            self._send_first(connection, statements, check)
        except psycopg.OperationalError:
            if not connection.closed:
                raise
            connection = self._connection()
            self._send_first(connection, statements, check)
        return connection

    def _send_first(self, connection: _Connection, statements: str, check: bool) -> None:
        try:
            if check and not self._local.checked:
                _require_usual(connection)
                self._local.checked = True
            connection.execute(statements)
        except BaseException:
            _leave(connection)
            raise

    def _connection(self) -> _Connection:
        """This thread's connection in this process: two processes on one connection would read each
        other's answers.
        """
        held: _HeldConnection | None = getattr(self._local, "held", None)
        if held is not None and held.process == os.getpid() and not held.connection.closed:
            if held.connection.info.transaction_status is not TransactionStatus.IDLE:
                raise PrivlearnError("a transaction of this ledger is open in this thread")
            return held.connection
        usual: dict[str, Any] = {"connect_timeout": PATIENCE, "application_name": "privlearn"}
        connection = psycopg.connect(
            self.address,
            autocommit=True,
            prepare_threshold=None,  # poolers give each transaction another session
            client_encoding="UTF8",
            **{name: value for name, value in usual.items() if name not in self._fields},
        )
        self._local.held, self._local.checked = _HeldConnection(connection), False
        return connection


class _HeldConnection:
    """A connection that is closed when its ledger, or its thread, is gone.

    Not in a forked process: that would end the connection of the first one.
    """

    def __init__(self, connection: _Connection) -> None:
        self.connection, self.process = connection, os.getpid()
        finalize(self, _close, connection, self.process)


def _close(connection: _Connection, process: int) -> None:
    if process == os.getpid():
        with suppress(psycopg.Error):
            connection.close()


def _require_usual(connection: _Connection) -> None:
    """Raise `ValueError` unless the tables are there as `schema.sql` makes them, on a server that
    keeps what it commits.
    """
    with connection.transaction():
        # names are printed with their schema
        connection.execute("SET LOCAL search_path = ''")
        about = connection.execute(_ABOUT).fetchone()
    if about is None:
        raise BadInput(
            "there is no ledger in this database: begin one with Ledger.open(address, "
            "pv.Budget(epsilon=E, delta=D))"
        )
    fsync, role, usable, version, plain, functions, triggers = about
    if not usable:
        raise psycopg.errors.InsufficientPrivilege("no right to use the schema privlearn")
    if fsync != "on":
        raise ValueError("the server has fsync off: it may lose charges that it has answered")
    if role != "origin":
        raise ValueError(f"session_replication_role is {role}, and origin is expected")
    if version != _VERSION:
        raise ValueError(f"it has {str(version)[:60]!r}, and this privlearn reads {_VERSION!r}")
    definitions = {text.strip() for text in (*(functions or ()), *(triggers or ()))}
    if not plain or definitions != _usual_definitions():
        raise ValueError("what keeps its rows from being changed was taken away, or changed")


def _statements_of_schema() -> list[str]:
    """The statements of `schema.sql`, without comments and final semicolons."""
    text = (_FILES / "schema.sql").read_text("utf-8")
    text = re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)
    return [part.strip().removesuffix(";").strip() for part in text.split("\n\n") if part.strip()]


@cache
def _usual_definitions() -> set[str]:
    """Those of the functions and triggers of a new ledger."""
    kinds = ("CREATE OR REPLACE FUNCTION", "CREATE TRIGGER")
    return {text for text in _statements_of_schema() if text.startswith(kinds)}


def _leave(connection: _Connection) -> None:
    """End what is still open of a transaction: undo it, or close the connection."""
    with suppress(psycopg.Error):
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            connection.execute("ROLLBACK")
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        connection.close()


def _transaction_of(connection: _Connection) -> Transaction:
    def execute(statement: str, *values: object) -> Cursor:
        return connection.execute(statement.replace("?", "%s"), values or None)

    return execute


def _read_address(address: str) -> dict[str, Any]:
    """The fields of an address.

    Raises:
        BadInput: it can't be read. Nothing of it is quoted.
    """
    _, _, rest = address.partition("://")
    server, _, others = rest.partition("/")
    try:
        if "@" in others or server.count("@") > 1:  # perhaps of a password
            raise ValueError
        return conninfo_to_dict(address)
    except (ValueError, psycopg.Error):
        raise BadInput(
            "the address of the ledger's server cannot be read: expected postgresql://user@host/"
            "database. In names write @ / : ? as %40 %2F %3A %3F"
        ) from None


def _write_visible(fields: dict[str, Any]) -> str:
    """An address without secrets that opens the same."""
    visible = {name: fields[name] for name in _VISIBLE if name in fields}
    user = f"{quote(fields['user'], safe='')}@" if fields.get("user") else ""
    host, port = fields.get("host", ""), fields.get("port", "").strip(",")
    server = f"{user}{host}{f':{port}' if port else ''}"
    if not re.fullmatch(r"[\w.-]*", host):  # a folder of sockets, several hosts, IPv6
        server = user
        visible = {"host": host, **({"port": port} if port else {}), **visible}
    query = f"?{urlencode(visible, safe='/:,')}" if visible else ""
    return f"postgresql://{server}/{quote(fields.get('dbname', ''), safe='')}{query}"
