"""Named checks of ledgers on a PostgreSQL server: what holds of one in a file, and what roles,
locks and lost connections may not break.

They are skipped where no server can be started.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers import ledger_server
from privlearn.core.accounting.ledgers.ledger_database import DATA
from privlearn.core.accounting.ledgers.ledger_rows import START
from privlearn.core.accounting.ledgers.ledger_server import LedgerServer
from privlearn.core.accounting.ledgers.ledger_state import LedgerState
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput
from tests.accounting.checks_ledger_database import (
    add_many_entries,
    charge_in_turn,
    charged,
    edit_at_random,
)
from tests.runs.checks_resuming import promise_two_runs
from tests.support.checks import check, must_raise
from tests.support.server import address_of, new_database

ADD = Adjacency.ADD_REMOVE
ROLES = Path(ledger_server.__file__).with_name("postgresql") / "roles.sql"


def connect(address: str) -> psycopg.Connection[Any]:
    return psycopg.connect(address, autocommit=True)


def roles() -> str:
    return ROLES.read_text("utf-8")


def with_users(address: str) -> tuple[str, str]:
    """The addresses of an analyst and an auditor of a ledger that was begun."""
    with connect(address) as connection:
        connection.execute(roles())
        for user, role in (("ann", "privlearn_analyst"), ("bert", "privlearn_auditor")):
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [user]).rowcount == 0:
                connection.execute(f"CREATE ROLE {user} LOGIN")
            connection.execute(f"GRANT {role} TO {user}")
    return address_of("ann", address), address_of("bert", address)


def read(address: str) -> LedgerState | None:
    """What a ledger holds; None if it is refused."""
    try:
        return LedgerServer(address).read()
    except BadInput:
        return None


@contextmanager
def without_triggers(address: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the owner, for whom triggers are off meanwhile."""
    tables = ("change", "head", "data_key")
    with connect(address) as connection:
        triggers = connection.execute(
            "SELECT tgrelid::regclass, quote_ident(tgname) FROM pg_trigger "
            "WHERE tgrelid = ANY (%s::regclass[]) AND NOT tgisinternal",
            [[f"privlearn.{table}" for table in tables]],
        ).fetchall()
        for table in tables:
            connection.execute(f"ALTER TABLE privlearn.{table} DISABLE TRIGGER USER")
        try:
            yield connection
        finally:
            for table, name in triggers:
                connection.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}")


# What holds of every database


@check
def check_what_is_appended_on_a_server_reads_as_what_was_done() -> None:
    edit_at_random(new_database(), 90)


@check
def check_very_many_entries_on_a_server_are_summed_up() -> None:
    add_many_entries(new_database())


@check
def check_two_runs_on_a_server_are_not_promised_the_same_budget() -> None:
    promise_two_runs(new_database())


@check
def check_what_others_append_on_a_server_is_seen() -> None:
    """By each of several ledgers; rows that are gone are missed by whoever knew them."""
    address = new_database()
    first = charged(address)
    second = Ledger.open(address)
    charge_in_turn(first, second, address)
    with without_triggers(address) as connection:
        connection.execute("DELETE FROM privlearn.change WHERE number > 20")
        connection.execute(
            "UPDATE privlearn.head SET number = 20, digest = "
            "(SELECT digest FROM privlearn.change WHERE number = 20)"
        )
    must_raise(BadInput, lambda: first.event)
    must_raise(BadInput, lambda: second.charge(Gaussian(9.0), ADD))


@check
def check_rows_on_a_server_are_appended_and_never_changed() -> None:
    """The server refuses to change or delete a row, and one that does not follow: from the owner as
    from an analyst.
    """
    address = new_database()
    ledger = charged(address)
    LedgerServer(address).key(create=True)
    before = read(address)
    analyst, _ = with_users(address)
    asked = "SELECT data, number, digest FROM privlearn.change ORDER BY number DESC LIMIT 1"
    with connect(address) as connection:
        name, number, digest = connection.execute(asked).fetchone() or ("", 0, "")
    values, insert = "'2026-01-01', 0, '{}'", "INSERT INTO change VALUES"
    for statement in (
        "UPDATE change SET content = '{}'",
        f"UPDATE change SET number = 99 WHERE number = {number}",
        "DELETE FROM change",
        f"DELETE FROM change WHERE number = {number}",
        "TRUNCATE change",
        "TRUNCATE change, head",
        f"{insert} ('{name}', {number + 2}, {values}, '{digest}', 'a')",
        f"{insert} ('{name}', {number + 1}, {values}, 'b', 'a')",
        f"{insert} ('{name}', {number + 1}, {values}, '{digest}', '{digest}')",
        f"{insert} ('{name}', {number}, {values}, '{digest}', 'a') "
        "ON CONFLICT (data, number) DO UPDATE SET content = '{}'",
        f"{insert} ('other', 1, {values}, '{START}', 'a')",
        "UPDATE head SET number = 1",
        "UPDATE head SET data = 'other'",
        f"UPDATE head SET number = {number + 1}",
        "DELETE FROM head",
        "TRUNCATE head",
        "INSERT INTO head VALUES ('other', 0, '')",
        f"INSERT INTO head VALUES ('other', 1, '{START}')",
        f"INSERT INTO head VALUES ('{name}', 0, '{START}')",
        "UPDATE data_key SET key = 'a'",
        "DELETE FROM data_key",
        "TRUNCATE data_key",
        "INSERT INTO data_key (key) VALUES ('a')",
        "INSERT INTO data_key (one, key) VALUES (false, 'a')",
    ):
        for user in (address, analyst):
            with connect(user) as connection:
                connection.execute("SET search_path = privlearn")
                error = must_raise(psycopg.Error, lambda: connection.execute(statement))  # noqa: B023
                kinds = (psycopg.IntegrityError, psycopg.errors.InsufficientPrivilege)
                assert isinstance(error, kinds), statement
            assert read(address) == before, statement
    assert ledger._run.store.read() == before


@check
def check_a_ledger_on_a_server_that_was_edited_is_refused() -> None:
    """Rows that were changed while triggers were off, and a schema that no longer refuses it."""
    address = new_database()
    charged(address)
    with connect(address) as connection:
        (last,) = connection.execute("SELECT number FROM privlearn.head").fetchone() or (0,)
        for table in ("change", "head"):
            connection.execute(f"CREATE TABLE saved_{table} AS TABLE privlearn.{table}")
    for statement in (
        f"DELETE FROM change WHERE number = {last}",
        f"DELETE FROM change WHERE number = {last - 1}",
        "DELETE FROM change WHERE number < 3",
        f"UPDATE change SET content = replace(content, '8.0', '9.0') WHERE number = {last}",
        f"UPDATE change SET at = 'yesterday' WHERE number = {last}",
        f"UPDATE change SET whole = 1 WHERE number = {last}",
        f"UPDATE head SET number = {last - 1}",
        "DELETE FROM head",
    ):
        with without_triggers(address) as connection:
            connection.execute("SET search_path = privlearn")
            connection.execute(statement)
        assert read(address) is None, statement
        with without_triggers(address) as connection:
            for table in ("change", "head"):
                connection.execute(f"DELETE FROM privlearn.{table}")
                connection.execute(f"INSERT INTO privlearn.{table} TABLE saved_{table}")
        assert read(address) is not None
    name = "changes_are_kept"
    enable = f"ALTER TABLE change ENABLE ALWAYS TRIGGER {name}"
    for statement, mended in {
        f"ALTER TABLE change DISABLE TRIGGER {name}": enable,
        f"ALTER TABLE change ENABLE TRIGGER {name}": enable,
        "CREATE RULE none AS ON INSERT TO change DO INSTEAD NOTHING": "DROP RULE none ON change",
        "ALTER TABLE change SET UNLOGGED": "ALTER TABLE change SET LOGGED",
        "ALTER TABLE head ENABLE ROW LEVEL SECURITY": "ALTER TABLE head DISABLE ROW LEVEL SECURITY",
        "COMMENT ON SCHEMA privlearn IS 'version 9'": (
            f"COMMENT ON SCHEMA privlearn IS '{ledger_server._VERSION}'"
        ),
        "ALTER FUNCTION keep_the_head SECURITY INVOKER": (
            "ALTER FUNCTION keep_the_head SECURITY DEFINER"
        ),
        "ALTER DATABASE {} SET session_replication_role = replica": (
            "ALTER DATABASE {} RESET session_replication_role"
        ),
        f"DROP TRIGGER {name} ON change": "",
        "DROP TABLE change": "",
    }.items():
        with connect(address) as connection:
            connection.execute("SET search_path = privlearn")
            database = connection.info.dbname
            connection.execute(statement.format(database))
            assert read(address) is None, statement
            if mended:
                connection.execute(mended.format(database))
                assert read(address) is not None, mended


# Who may do what


@check
def check_analysts_append_and_auditors_read() -> None:
    """No role can change what is there; auditors can't append, and have no key."""
    address = new_database()
    ledger = charged(address)
    analyst, auditor = with_users(address)
    Ledger.open(analyst).charge(Gaussian(7.5), ADD)
    must_raise(BadInput, lambda: Ledger.open(analyst, Budget(rho=1.0), data_set="another"))
    assert LedgerServer(address).names() == [DATA]
    key = LedgerServer(analyst).key(create=False)
    assert LedgerServer(address).key(create=True) == key
    assert read(auditor) == LedgerServer(auditor).check() == read(analyst) == read(address)
    refused = must_raise(BadInput, lambda: Ledger.open(auditor).charge(Gaussian(9.0), ADD))
    assert "privlearn_analyst" in str(refused)
    must_raise(BadInput, lambda: LedgerServer(auditor).key(create=False))
    stranger = address_of("carl", address)
    with connect(address) as connection:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = 'carl'").rowcount == 0:
            connection.execute("CREATE ROLE carl LOGIN")
        for user in ("ann", "bert", "carl"):
            rights = connection.execute(
                "SELECT has_table_privilege(%s, oid, 'UPDATE, DELETE, TRUNCATE, TRIGGER'), "
                "has_any_column_privilege(%s, oid, 'UPDATE') "
                "FROM pg_class WHERE relnamespace = 'privlearn'::regnamespace AND relkind = 'r'",
                [user, user],
            ).fetchall()
            assert rights == [(False, False)] * 3, user
            functions = connection.execute(
                "SELECT bool_or(has_function_privilege(%s, oid, 'EXECUTE')) "
                "FROM pg_proc WHERE pronamespace = 'privlearn'::regnamespace",
                [user],
            )
            assert functions.fetchone() == (False,), user
    assert LedgerServer(stranger).exists()
    assert "may not read" in str(must_raise(BadInput, LedgerServer(stranger).read))
    assert ledger.event == Ledger.open(auditor).event
    # what a user defines doesn't stand in for what functions of the owner call
    with connect(analyst) as connection:
        connection.execute("CREATE TEMP TABLE head (data text, number bigint, digest text)")
        connection.execute("INSERT INTO pg_temp.head VALUES ('data', 41, 'b')")
        values = "('data', 42, '2026-01-01', 0, '{}', 'b', 'a')"
        insert = f"INSERT INTO privlearn.change VALUES {values}"
        must_raise(psycopg.IntegrityError, lambda: connection.execute(insert))


# Charges are on the disk, one after another


@check
def check_a_charge_on_a_server_is_on_the_disk_first() -> None:
    """Commits wait for the disk, also where that is off by default. A server that does not keep
    what it commits is refused.
    """
    address = new_database()
    store = LedgerServer(address)
    store.begin(None)
    with connect(address) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET synchronous_commit = off")
    store = LedgerServer(address)
    with store.writing() as execute:
        assert execute("SHOW synchronous_commit").fetchone() == ("on",)
    with connect(address) as connection:
        try:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
            _wait_for(address, "fsync", "off")
            assert "fsync" in str(must_raise(BadInput, LedgerServer(address).read))
        finally:
            connection.execute("ALTER SYSTEM RESET fsync")
            connection.execute("SELECT pg_reload_conf()")
            _wait_for(address, "fsync", "on")
    assert read(address) is not None


def _wait_for(address: str, setting: str, value: str) -> None:
    while True:
        with connect(address) as connection:
            if connection.execute(f"SHOW {setting}").fetchone() == (value,):
                return


@check
def check_writers_on_a_server_are_alone() -> None:
    """One that comes meanwhile waits, and then sees what the one before it did."""
    address = new_database()
    first, second = charged(address), Ledger.open(address)
    assert first.event == second.event
    order: list[str] = []
    inside = threading.Event()

    def charge() -> None:
        with suppress(BadInput), second._run.store.editing() as state:
            inside.set()
            order.append(f"second, after {state.entries[0].what}")
            state.charge(state.entries[0], Gaussian(8.5))

    with first._run.store.editing() as state:
        writer = threading.Thread(target=charge)
        writer.start()
        assert not inside.wait(0.3), "two writers at once"
        state.put(replace(state.entries[0], what="first"))
        order.append("first")
    writer.join()
    assert order == ["first", "second, after first"], order
    assert first.event == second.event == LedgerServer(address).check().event
    assert Gaussian(8.5) in [*second.event.events]


@check
def check_a_connection_is_not_carried_through_a_fork() -> None:
    """A child has one of its own, and its parent's stays as it was."""
    address = new_database()
    ledger = charged(address)
    store = ledger._run.store
    assert isinstance(store, LedgerServer)
    parent = store._connection().info.backend_pid
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            child_pid = store._connection().info.backend_pid
            if child_pid != parent:
                ledger.charge(Gaussian(3.5), ADD)
            os.write(writing, str(child_pid).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        assert int(answer.read() or parent) != parent
    assert store._connection().info.backend_pid == parent
    assert Gaussian(3.5) in [*LedgerServer(address).read().entries[-1].spent.events]
    ledger.charge(Gaussian(4.5), ADD)
    assert ledger.event == LedgerServer(address).check().event


# Lost connections


def end_connections(address: str) -> None:
    """Have the server end all others."""
    with connect(address) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@check
def check_a_lost_connection_loses_no_charge() -> None:
    """One that was lost between two charges is opened anew, and one that is lost within a charge
    charges nothing. If COMMIT gets no answer, the charge is perhaps there: it raises, and what is
    there is seen.
    """
    address = new_database()
    ledger = charged(address)
    before = ledger.event
    end_connections(address)
    ledger.charge(Gaussian(5.5), ADD)
    after = compose([before, Gaussian(5.5)])
    assert ledger.event == LedgerServer(address).read().event == after
    end_connections(address)
    assert ledger.event == after

    def lose_within() -> None:
        with ledger._run.store.editing() as state:
            end_connections(address)
            state.charge(state.entries[0], Gaussian(6.5))

    assert "Nothing was charged" in str(must_raise(BadInput, lose_within))
    assert ledger.event == LedgerServer(address).read().event == after
    for committed in (True, False):
        with lost_at_commit(committed=committed):
            error = must_raise(BadInput, lambda: ledger.charge(Gaussian(7.5), ADD))
        assert "Perhaps it is in the ledger" in str(error)
        after = compose([after, Gaussian(7.5)]) if committed else after
        assert ledger.event == LedgerServer(address).check().event == after
    Ledger.open(address).charge(Gaussian(8.5), ADD)
    ledger.charge(Gaussian(9.5), ADD)
    assert ledger.event == LedgerServer(address).check().event
    assert len(ledger.event.events) == len(after.events) + 2


@contextmanager
def lost_at_commit(*, committed: bool, number: int = 1) -> Iterator[None]:
    """The connection is lost when this COMMIT was sent: after it was done, or before."""
    execute, commits = psycopg.Connection.execute, itertools.count(1)

    def lose(connection: psycopg.Connection[Any], query: Any, *more: Any, **named: Any) -> Any:
        if query != "COMMIT" or next(commits) != number:
            return execute(connection, query, *more, **named)
        if committed:
            execute(connection, query)
        connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with mock.patch.object(psycopg.Connection, "execute", lose):
        yield


@check
def check_a_change_that_was_rolled_back_raises() -> None:
    """COMMIT is answered by ROLLBACK, without an error, if a statement before it failed."""
    address = new_database()
    ledger = charged(address)
    before = ledger.event
    execute = psycopg.Connection.execute

    def fail_first(connection: psycopg.Connection[Any], query: Any, *more: Any) -> Any:
        if query == "COMMIT":
            must_raise(psycopg.Error, lambda: execute(connection, "SELECT 1 / 0"))
        return execute(connection, query, *more)

    with mock.patch.object(psycopg.Connection, "execute", fail_first):
        must_raise(BadInput, lambda: ledger.charge(Gaussian(5.5), ADD))
    assert ledger.event == LedgerServer(address).read().event == before


# Addresses


@check
def check_addresses_of_servers_show_no_secret() -> None:
    """What is shown opens the same database, by a password from elsewhere."""
    for address, shown in {
        "postgresql://ann:pa%40ss@db.example:6432/clinic": "postgresql://ann@db.example:6432/clinic",
        "postgres://ann@db/clinic?password=secret&sslmode=require&sslpassword=s": (
            "postgresql://ann@db/clinic?sslmode=require"
        ),
        "postgresql://a,b/clinic": "postgresql:///clinic?host=a,b",
        "postgresql://[::1]:5/c": "postgresql:///c?host=::1&port=5",
        "postgresql:///?service=ledger": "postgresql:///?service=ledger",
        "postgresql://a%20b@/c?host=/run/pg&options=-cx%3Dsecret": "postgresql://a%20b@/c?host=/run/pg",
    }.items():
        store = LedgerServer(address)
        assert store.path == shown, store.path
        assert store.address == address
        assert LedgerServer(store.path).path == shown
    for address in (
        "postgresql://ann:pa@ss@db/clinic",
        "postgresql://ann:pa/ss@db/clinic",
        "postgresql://ann:pa%zzss@db/clinic",
        "postgresql://ann:secretpass@db/clinic?nothing=x",
    ):
        error = must_raise(BadInput, lambda address=address: LedgerServer(address))
        assert "ss" not in str(error).replace("address", "").replace("expressed", "")
    unreached = "postgresql://ann:secretpass@/c?host=/nowhere/at/all"
    error = must_raise(BadInput, LedgerServer(unreached).exists)
    assert "cannot be reached" in str(error)
    assert "secretpass" not in str(error)
    address = new_database()
    ledger = Ledger.open(address, Budget(rho=1.0))
    assert pickle.loads(pickle.dumps(ledger)).budget == Budget(rho=1.0)
