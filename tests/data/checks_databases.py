"""Named checks of databases as sources of rows: what is sent to them, and where passwords are."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import privlearn as pv
from privlearn.cli import main
from privlearn.data import databases, pack
from privlearn.data.databases import Address, read_address
from privlearn.data.named import load_features
from privlearn.data.schema import Category, Number, Schema
from privlearn.data.tables import column_names, read_chunks
from privlearn.errors import BadInput, PrivlearnError
from tests.support.checks import check, must_raise

SCHEMA = Schema(
    "ill", ("no", "yes"), (Number("age", 0, 110, missing=50), Category("sex", ("f", "m")))
)
TOML = """target = "ill"
[columns]
age = { kind = "number", low = 0, high = 110, missing = 50 }
sex = { kind = "category", categories = ["f", "m"] }
ill = { kind = "target", classes = ["no", "yes"] }
"""
SECRET, SETTING = "p%40ss-w0rd", "t0ken-of-a-server"
FORMS = (SECRET, "p@ss-w0rd", SETTING)
SERVER = f"postgresql://ann:{SECRET}@db.example:5432/clinic?token={SETTING}&table=patients"
#: Queries that are no single SELECT.
NO_SELECT = (
    "DELETE FROM patients",
    "PRAGMA user_version",
    "SELECT age FROM patients; DROP TABLE patients",
    "SELECT 1) q; DROP TABLE patients; --",
    "SELECT ';', age FROM patients",
    "selection",
    "",
)


def write(path: Path, rows: int = 200, order: Sequence[int] | None = None) -> str:
    """Made-up patients; the address of their table."""
    made_up = np.random.default_rng(0)
    cells = [
        (
            number,
            None if number % 9 == 0 else int(age),
            "fm"[number % 2],
            ("no", "yes")[int(age > 60)],
        )
        for number, age in enumerate(made_up.integers(0, 100, rows))
    ]
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS patients")
        connection.execute("CREATE TABLE patients (number, age, sex, ill)")
        ordered = [cells[at] for at in (range(rows) if order is None else order)]
        connection.executemany("INSERT INTO patients VALUES (?, ?, ?, ?)", ordered)
    return f"sqlite:///{path}?table=patients"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextlib.contextmanager
def sent() -> Iterator[list[str]]:
    """Every statement that SQLite is sent, and when a database is opened."""
    statements: list[str] = []
    usual = sqlite3.connect

    def connect(*arguments: Any, **more: Any) -> sqlite3.Connection:
        statements.append("open")
        connection = usual(*arguments, **more)
        connection.set_trace_callback(statements.append)
        return connection

    with mock.patch.object(sqlite3, "connect", connect):
        yield statements


@contextlib.contextmanager
def server(path: Path) -> Iterator[None]:
    """A server that has the tables of a file of SQLite."""

    @contextlib.contextmanager
    def connect(address: Address) -> Iterator[Any]:
        assert SECRET in address._connect
        assert SETTING in address._connect
        with databases._sqlite(Address(f"sqlite:///{path}?table=patients")) as connection:
            yield connection

    with mock.patch.object(databases, "_alchemy", connect):
        yield


@contextlib.contextmanager
def broken_server() -> Iterator[None]:
    """A server whose driver quotes what it was given."""

    @contextlib.contextmanager
    def connect(address: Address) -> Iterator[Any]:
        raise RuntimeError(f"no connection to {address._connect} for {FORMS[1]}")
        yield

    with mock.patch.object(databases, "_alchemy", connect):
        yield


def require_no_secret(text: str, place: object) -> None:
    assert not [form for form in FORMS if form in text], f"a secret is in {place}"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def doors(address: str, out: Path) -> dict[str, Callable[[], Any]]:
    budget = pv.Budget(epsilon=1, delta=1e-5)
    return {
        "load": lambda: pv.load(address, schema=SCHEMA),
        "load, without a schema": lambda: pv.load(address),
        "load, too much declared": lambda: pv.load(address, schema=SCHEMA, classes=2),
        "load, of a path": lambda: pv.load(Path(address), schema=SCHEMA),
        "test rows": lambda: pv.load({"age": []}, schema=SCHEMA, test=address),
        "pack": lambda: pack(address, out, schema=SCHEMA),
        "features": lambda: load_features(address, SCHEMA),
        "columns": lambda: column_names(address),
        "draft": lambda: pv.statistics.draft_schema(
            address, target="sex", categories=("sex",), budget=budget
        ),
    }


@check
def check_a_password_is_in_no_error() -> None:
    malformed = [
        SERVER.replace(SECRET, "p@ss-w0rd"),
        SERVER.replace(SECRET, f"{SECRET}/{SECRET}"),
        SERVER.replace(SECRET, f"{SECRET}?{SECRET}"),
        SERVER.replace("table=patients", ""),
        SERVER.replace("table=patients", "query=DELETE"),
    ]
    with folder() as here, broken_server():
        for address in (SERVER, *malformed):
            for name, door in doors(address, here / "packed").items():
                try:
                    door()
                except PrivlearnError as error:
                    for each in chain(error):
                        require_no_secret(f"{each} {each!r} {vars(each)}", (name, str(each)[:9]))
                else:
                    raise AssertionError(f"{name} took a database that can't be read")


@check
def check_the_text_of_an_address_has_no_password() -> None:
    address = read_address(SERVER)
    assert address == "postgresql://ann@db.example:5432/clinic?table=patients"
    assert address.short == "patients of clinic"
    copies = (pickle.loads(pickle.dumps(address)), copy.deepcopy(address), copy.copy(address))
    for each in (address, repr(address), f"{address}", json.dumps(address), *copies):
        require_no_secret(str(each), "a text")
        require_no_secret(
            repr(vars(each)) if each is not address and vars_of(each) else "", "a copy"
        )


def vars_of(given: Any) -> dict[str, Any]:
    return getattr(given, "__dict__", {})


@check
def check_a_password_is_in_nothing_that_a_command_leaves() -> None:
    """Neither printed, nor in any file: of runs that are recorded, charged, published, and
    refused.
    """
    before = Path.cwd()
    with folder() as here, server(here / "clinic.db"):
        write(here / "clinic.db")
        try:
            os.chdir(here)
            Path("s.toml").write_text(TOML)
            data = f"--data {SERVER} --schema s.toml"
            Path("run.toml").write_text("epsilon = 2\n")
            run = f"{data} --examples 200 --epsilon 4 --epochs 1"
            commands = {
                f"commit {run} --out transcript": 0,
                f"train {run} --transcript transcript --challenge 5f --out model": 0,
                f"train {run} --ledger l.json --out charged --json": 0,
                f"predict model --data {SERVER} --id number": 0,
                f"data check {SERVER} --schema s.toml": 0,
                f"data schema {SERVER}": 0,
                f"data pack {SERVER} --schema s.toml --out packed": 0,
                f"train --data={SERVER} --epsilon 4 --out bare": 2,
                f"train --dato={SERVER} --epsilon 4": 2,
                f"train --data={SERVER.replace('clinic', '@')} --schema s.toml": 2,
                f"train {SERVER}": 2,
                f"{SERVER}": 2,
                f"predict {SERVER} --data x.npz": 2,
                f"predict model --data {SERVER} --grid 1x1x1": 2,
                f"predict model --data {SERVER} --id nowhere": 2,
                f"train --epsilon {SERVER}": 2,
            }
            for command, code in commands.items():
                out, err = io.StringIO(), io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    found = main(command.split(" "))
                assert found == code, err.getvalue()
                require_no_secret(out.getvalue() + err.getvalue(), command[:20])
            Path("run.toml").write_text(
                f"data = {json.dumps(SERVER)}\nschema = 's.toml'\nepsilon = 4"
            )
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                assert main(["train", "--config", "run.toml", "--out", "configured"]) == 0
            Path("run.toml").unlink()
            require_no_secret(out.getvalue() + err.getvalue(), "a run by a configuration")
            files = [path for path in here.rglob("*") if path.is_file()]
            assert len(files) > 20
            for path in files:
                require_no_secret(path.read_bytes().decode("latin-1"), path.name)
        finally:
            os.chdir(before)


@check
def check_only_selects_of_wanted_columns_are_sent() -> None:
    with folder() as here:
        table = write(here / "clinic.db")
        content = (here / "clinic.db").read_bytes()
        query = table.replace("table=patients", "query=SELECT * FROM patients -- all")
        for address in (table, query):
            with sent() as statements:
                pv.load(address, schema=SCHEMA)
            opened, names, again, rows = statements
            assert opened == again == "open"
            assert names.startswith("SELECT *")
            assert names.endswith("WHERE 1 = 0")
            assert rows.startswith('SELECT "age", "sex", "ill" FROM')
            assert "number" not in rows
        for text in NO_SELECT:
            with sent() as statements:
                must_raise(
                    BadInput,
                    lambda text=text: pv.load(  # type: ignore[misc]
                        table.replace("table=patients", f"query={text}"), schema=SCHEMA
                    ),
                )
            assert statements == [], text
        assert (here / "clinic.db").read_bytes() == content


@check
def check_a_connection_can_only_read() -> None:
    with folder() as here:
        address = Address(write(here / "clinic.db"))
        with databases._sqlite(address) as (send, _):
            assert send("SELECT count(*) FROM patients")[0] == ["count(*)"]
            for statement in ("PRAGMA user_version", "ATTACH 'other.db' AS other"):
                must_raise(sqlite3.DatabaseError, lambda s=statement: send(s))  # type: ignore[misc]
        allowed = mock.patch.object(databases, "_reads_only", return_value=sqlite3.SQLITE_OK)
        with allowed, databases._sqlite(address) as (send, _):
            must_raise(sqlite3.OperationalError, lambda: send("DELETE FROM patients RETURNING age"))


@check
def check_rows_of_a_database_are_not_sorted() -> None:
    """A row that changes moves no other, since some samplers take rows by their place; parts of
    several types are joined.
    """
    with folder() as here, mock.patch.object(databases, "_CHUNK", 16):
        first = pv.load(write(here / "clinic.db"), schema=SCHEMA)
        assert len(first.x) == 200
        with contextlib.closing(sqlite3.connect(here / "clinic.db")) as connection, connection:
            connection.execute("UPDATE patients SET age = 109 WHERE number = 3")
        second = pv.load(f"sqlite:///{here / 'clinic.db'}?table=patients", schema=SCHEMA)
        changed = (np.asarray(first.x) != np.asarray(second.x)).any(1)
        assert np.flatnonzero(changed).tolist() == [3]


@check
def check_some_rows_of_a_database_are_in_memory_at_once() -> None:
    with folder() as here, mock.patch.object(databases, "_CHUNK", 16):
        parts = [*map(len, read_chunks(write(here / "clinic.db"), SCHEMA.columns))]
        assert max(parts) == 16
        assert sum(parts) == 200
