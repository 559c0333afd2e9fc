"""Named checks of ledgers in a database: nothing promised is lost, and no edit is unseen."""

from __future__ import annotations

import json
import math
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from unittest import mock

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import (
    Composed,
    Repeated,
    added,
    appended,
    compose,
    tally,
    walk,
)
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.accounting.ledgers import ledger_run, ledger_state
from privlearn.core.accounting.ledgers.addresses import database_at
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.ledgers.ledger_rows import START
from privlearn.core.accounting.ledgers.ledger_state import LedgerState, RunEntry
from privlearn.core.accounting.mechanisms import Gaussian, Laplace, PoissonSampled
from privlearn.errors import BadInput
from tests.support.checks import check, must_raise

ADD = Adjacency.ADD_REMOVE
#: Ledgers as version 0.1 wrote them, with what it claimed.
FORMER = Path(__file__).parent / "former"


@contextmanager
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "ledger.db")


def charged(address: Path | str, charges: int = 4) -> Ledger:
    """A ledger with charges in rows of their own."""
    ledger = Ledger.open(address, create=True)
    ledger.charge(Composed(tuple(Gaussian(90.0 + n) for n in range(30))), ADD)
    for n in range(charges):
        ledger.charge(Gaussian(5.0 + n), ADD)
    return ledger


def read(path: Path) -> LedgerState | None:
    """What a file holds; None if it is refused."""
    try:
        return LedgerFile(path).read()
    except BadInput:
        return None


def edited(path: Path, *statements: str) -> Path:
    """A copy that somebody edited who took the triggers away, and put them back."""
    copy = path.with_name("edited.db")
    shutil.copy(path, copy)
    connection = sqlite3.connect(copy)
    asked = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    triggers = connection.execute(asked).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for _, sql in triggers:
        with suppress(sqlite3.OperationalError):  # a table is gone
            connection.execute(sql)
    connection.commit()
    connection.close()
    return copy


@check
def check_what_is_appended_reads_as_what_was_done() -> None:
    """After each of many random edits of every kind, whoever reads the file anew finds what the
    writer knows.
    """
    with place() as path:
        edit_at_random(path)


def edit_at_random(address: Path | str, edits: int = 150) -> None:
    drawn = random.Random(1)
    with mock.patch.object(ledger_run, "_AHEAD", 0.0):
        Ledger.open(address, Budget(rho=1e6), measure="zcdp")
        ledgers = [Ledger.open(address, what=f"writer {n}") for n in range(3)]
        ledgers[0].approve(*(Releases(Gaussian(20.0 + n), ADD) for n in range(20)))
        for _ in range(edits):
            ledger, event = drawn.choice(ledgers), Repeated(Gaussian(30.0 + drawn.randrange(5)), 3)
            match drawn.randrange(5):
                case 0:
                    ledger.begin(compose([event, Laplace(50.0)]), ADD)
                case 1 if ledger._approved:
                    ledger.charge(ledger._approved[-1][0], ADD)
                case 2:
                    ledger.settle()
                case 3 if drawn.random() < 0.3:
                    ledger.approve(Releases(event, ADD))
                case _:
                    ledger.charge(event.event, ADD)
            known = ledger._run.store.read()
            assert known == database_at(address).read() == ledgers[0]._run.store.read()
        with database_at(address).reading() as execute:
            rows = list(execute("SELECT whole, content FROM change ORDER BY number"))
        assert sum(whole for whole, _ in rows) > 1, "the whole is never written again"
        assert sum(not whole for whole, _ in rows) > 50
        since = 0
        for (_, before), (whole, content) in pairwise(rows):
            since = 0 if whole else since + len(content)
            assert since < 3 * max(len(content) for _, content in rows), before


@check
def check_very_many_entries_of_a_database_are_summed_up() -> None:
    """The whole is written then, and holds what the writer knows."""
    with place() as path:
        add_many_entries(path)


def add_many_entries(address: Path | str) -> None:
    with mock.patch.object(ledger_state, "LISTED", 5):
        Ledger.open(address, create=True).charge(Gaussian(30.0), ADD)
        for n in range(30):
            ledger = Ledger.open(address)
            ledger.charge(Gaussian(40.0 + n % 3), ADD)
            assert ledger._run.store.read() == database_at(address).read()
            assert sum(tally(ledger.event).values()) == n + 2
        assert len(database_at(address).read().entries) < 12


@check
def check_rows_of_a_ledger_are_appended_and_never_changed() -> None:
    """The database itself refuses to change or delete a row, and one that does not follow."""
    with place() as path:
        charged(path)
        before = LedgerFile(path).read()
        connection = sqlite3.connect(path, isolation_level=None)
        last = connection.execute("SELECT * FROM change ORDER BY number DESC").fetchone()
        name, number, digest = last[0], last[1], last[-1]
        values, twice = "'2026-01-01', 0, '{}'", f"'{digest}', '{digest}'"
        for statement in (
            "UPDATE change SET content = '{}'",
            f"UPDATE change SET number = 99 WHERE number = {number}",
            "DELETE FROM change",
            f"DELETE FROM change WHERE number = {number}",
            f"INSERT INTO change VALUES ('{name}', {number + 2}, {values}, '{digest}', 'a')",
            f"INSERT INTO change VALUES ('{name}', {number + 1}, {values}, 'b', 'a')",
            f"INSERT OR REPLACE INTO change VALUES ('{name}', {number}, {values}, '{digest}', 'a')",
            f"INSERT OR REPLACE INTO change VALUES ('{name}', {number + 1}, {values}, {twice})",
            f"INSERT INTO change VALUES ('other', 1, {values}, '{START}', 'a')",
            "UPDATE head SET number = 1",
            "UPDATE head SET data = 'other'",
            f"UPDATE head SET number = {number + 1}",
            "DELETE FROM head",
            "INSERT INTO head VALUES ('other', 0, '')",
            f"INSERT INTO head VALUES ('other', 1, '{START}')",
            f"INSERT OR REPLACE INTO head VALUES ('{name}', 0, '{START}')",
        ):
            must_raise(sqlite3.IntegrityError, lambda text=statement: connection.execute(text))
            assert LedgerFile(path).read() == before


@check
def check_databases_that_were_edited_or_cut_are_refused() -> None:
    """No byte can be changed without being noticed: or nothing is missing. Nor can a row be
    changed, left out, moved or doubled.
    """
    with place() as path:
        charged(path)
        whole, after = path.read_bytes(), LedgerFile(path).read()
        other = path.with_name("other.db")
        for at in range(0, len(whole), 41):
            changed = bytearray(whole)
            changed[at] ^= 1 << at % 7
            other.write_bytes(bytes(changed))
            assert read(other) in (None, after), at
        for cut in range(0, len(whole) - 1, 997):
            other.write_bytes(whole[:cut])
            assert read(other) is None, cut
        last = sqlite3.connect(path).execute("SELECT number FROM head").fetchone()[0]
        for statements in (
            [f"DELETE FROM change WHERE number = {last}"],
            [f"DELETE FROM change WHERE number = {last - 1}"],
            ["DELETE FROM change WHERE number < 3"],
            [f"UPDATE change SET content = replace(content, '8.0', '9.0') WHERE number = {last}"],
            [f"UPDATE change SET at = 'yesterday' WHERE number = {last}"],
            [f"UPDATE change SET whole = 1 WHERE number = {last}"],
            [
                "UPDATE change SET number = -1 WHERE number = 3",
                "UPDATE change SET number = 3 WHERE number = 4",
                "UPDATE change SET number = 4 WHERE number = -1",
            ],
            [f"UPDATE head SET number = {last - 1}"],
            ["DELETE FROM head"],
            ["DROP TABLE change"],
            ["PRAGMA application_id = 1"],
            ["PRAGMA user_version = 7"],
        ):
            assert read(edited(path, *statements)) is None, statements
        assert read(edited(path)) == after


@check
def check_what_was_not_committed_is_undone() -> None:
    """A copy of the files in the middle of a change, as a power cut would leave them, holds what
    was there before, and goes on.
    """
    with place() as path:
        ledger = charged(path)
        before = ledger._run.store.read()
        cut = path.with_name("cut.db")
        store = LedgerFile(path)
        connection = store._connection()
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("PRAGMA cache_spill = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE filler (text)")
        connection.execute("INSERT INTO filler VALUES (zeroblob(500000))")
        for name in ("", "-journal"):
            source = path.with_name(f"{path.name}{name}")
            assert source.exists()
            shutil.copy(source, cut.with_name(f"{cut.name}{name}"))
        connection.execute("ROLLBACK")
        assert LedgerFile(cut).read() == before
        Ledger.open(cut).charge(Gaussian(66.0), ADD)
        assert LedgerFile(cut).read().event == compose([before.event, Gaussian(66.0)])
        assert LedgerFile(path).read() == before


@check
def check_what_others_append_is_seen() -> None:
    """By each of several ledgers of one file. A copy that is put back, or another file in its
    place, is refused by whoever knew more.
    """
    with place() as path:
        first = charged(path)
        copied = path.read_bytes()
        second = Ledger.open(path)
        charge_in_turn(first, second, path)
        path.write_bytes(copied)
        must_raise(BadInput, lambda: first.event)
        must_raise(BadInput, lambda: second.charge(Gaussian(9.0), ADD))
        third = Ledger.open(path)
        third.charge(Gaussian(9.0), ADD)
        path.rename(path.with_name("moved.db"))
        path.with_name(f"{path.name}.key").unlink()
        must_raise(BadInput, lambda: third.charge(Gaussian(9.0), ADD))
        must_raise(BadInput, lambda: third.event)
        Ledger.open(path, create=True)
        must_raise(BadInput, lambda: third.charge(Gaussian(9.0), ADD))
        assert Ledger.open(path).event == compose([])


def charge_in_turn(first: Ledger, second: Ledger, address: Path | str) -> None:
    """Charge two ledgers of one place, which `charged` began."""
    for n in range(60):
        (first, second)[n % 2].charge(PoissonSampled(0.1, Gaussian(3.0 + n)), ADD)
        assert first.event == second.event == database_at(address).read().event
    assert len(tally(first.event)) == 94


@check
def check_a_full_disk_charges_nothing() -> None:
    """The charge is refused, the file is as it was, and the ledger goes on when there is room."""
    with place() as path:
        ledger = charged(path)
        before = ledger.event
        store = ledger._run.store
        assert isinstance(store, LedgerFile)
        connection = store._connection()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        many = compose(Gaussian(5.0 + n / 1000) for n in range(900))
        error = must_raise(BadInput, lambda: ledger.charge(many, ADD))
        assert "Nothing was charged or drawn" in str(error)
        assert ledger.event == LedgerFile(path).read().event == before
        connection.execute("PRAGMA max_page_count = 1000000")
        ledger.charge(many, ADD)
        assert ledger.event == compose([before, many])


@check
def check_a_charge_is_on_the_disk_first() -> None:
    """Commits wait for the disk, the folder included, and no log beside the file holds them."""
    with place() as path:
        store = charged(path)._run.store
        assert isinstance(store, LedgerFile)
        connection = store._connection()
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert sorted(each.name for each in path.parent.iterdir()) == [
            "ledger.db",
            "ledger.db.key",
            "ledger.db.lock",
        ]
        assert LedgerFile(shutil.copy(path, path.with_name("copy.db"))).read() == store.read()


@check
def check_ledgers_of_version_0_1_are_gone_on_with() -> None:
    """They have the same claims: as they were written but for rounding, and after the move to the
    last digit. Reading changes nothing; the first edit puts them into a database, and leaves the
    former file beside it.
    """
    claims = json.loads((FORMER / "claims.json").read_text())
    for name, expected in claims.items():
        with place() as path:
            shutil.copy(FORMER / f"{name}.json", path)
            content = path.read_bytes()
            ledger = Ledger.open(path)
            figures = []
            for migrated in (False, True):
                assert (path.read_bytes() != content) is migrated
                guarantee, state = ledger.guarantee(1e-5), ledger._run.store.read()
                figures.append((guarantee.epsilon, ledger.spent(1e-5).epsilon))
                assert math.isclose(figures[-1][0], expected["epsilon"], rel_tol=1e-12)
                assert math.isclose(figures[-1][1], expected["spent"], rel_tol=1e-12)
                assert guarantee.method == expected["method"]
                assert ledger.adaptive == expected["adaptive"]
                flags = [[e.id, e.open, e.waiting, e.declared] for e in state.entries]
                assert flags == expected["entries"]
                with ledger._run.store.editing():
                    pass
            assert figures[0] == figures[1]
            former = path.with_name(f"{path.name}.0.1")
            assert former.exists()
            assert former.read_bytes() == content
            assert path.read_bytes().startswith(b"SQLite")
            before = ledger.event
            ledger.charge(Gaussian(500.0), ADD)
            assert LedgerFile(path).read().event == compose([before, Gaussian(500.0)])


@check
def check_former_files_that_were_edited_or_cut_are_refused() -> None:
    """No byte can be changed, and no line lost, without being noticed: or nothing is missing."""
    for name in ("version-2", "version-3"):
        with place() as path:
            whole = (FORMER / f"{name}.json").read_bytes()
            path.write_bytes(whole)
            after = LedgerFile(path).read()
            for at in range(0, len(whole), 13):
                changed = bytearray(whole)
                changed[at] ^= 1 << at % 7
                path.write_bytes(bytes(changed))
                assert read(path) in (None, after), at
            for cut in range(0, len(whole) - 1, 101):
                path.write_bytes(whole[:cut])
                assert read(path) is None, cut


@check
def check_charges_one_by_one_add_up_to_all_of_them() -> None:
    """Composing and counting event by event gives what composing and counting all of them gives."""
    drawn = random.Random(2)
    kinds = [Gaussian(2.0 + n) for n in range(12)]
    events = [
        Composed(
            tuple(
                Repeated(drawn.choice(kinds), drawn.randrange(3)) for _ in range(drawn.randrange(4))
            )
        )
        for _ in range(300)
    ]
    one_by_one, counted, places = compose([]), compose([]), {}
    for n, event in enumerate(events, 1):
        one_by_one, counted = appended(one_by_one, event), added(counted, places, event)
        assert one_by_one == compose(events[:n])
        assert list(walk(counted)) == list(tally(Composed(tuple(events[:n]))).items())
    state = LedgerState()
    entries = [state.add(RunEntry.new("one of two")).id for _ in range(2)]
    for n in range(2400):
        own, new = entries[n // 100 % 2], Gaussian(20.0 + n // 200 * 100 + n % 100)
        given_up = state.draft()
        given_up.charge(given_up.entry(own), Gaussian(new.noise_multiplier + 1))
        state = state.draft()
        state.charge(state.entry(own), new)
    assert all(
        list(walk(entry.spent)) == [(Gaussian(20.0 + n), 1) for n in range(1200)]
        for entry in state.entries
    )
    ledger = Ledger()
    ledger.charge(Gaussian(9000.0), ADD)
    for n in range(1300):
        ledger.charge(Gaussian(20.0 + (n * 7) % 1150), ADD)
    counts = tally(ledger.event)
    assert counts == {
        Gaussian(9000.0): 1,
        **{Gaussian(20.0 + (n * 7) % 1150): 1 + (n < 150) for n in range(1150)},
    }


@check
def check_edits_of_rows_that_nothing_rests_on_are_noticed() -> None:
    """`check` looks at all rows, `read` at those since the last whole state; neither reads a ledger
    whose triggers are gone.
    """
    with place() as path:
        ledger = charged(path, 60)
        connection = sqlite3.connect(path)
        wholes = "SELECT max(number) FROM change WHERE whole"
        (last,) = connection.execute(wholes).fetchone()
        connection.close()
        assert last > 3, "there are rows before the last whole state"
        assert LedgerFile(path).check() == LedgerFile(path).read() == ledger._run.store.read()
        for statement in (
            "UPDATE change SET at = '2020-01-01' WHERE number = 2",
            "UPDATE change SET content = content || ' ' WHERE number = 1",
            "DELETE FROM change WHERE number = 2",
            "DELETE FROM change WHERE number < 3",
        ):
            copy = edited(path, statement)
            assert LedgerFile(copy).read() == ledger._run.store.read()
            must_raise(BadInput, LedgerFile(copy).check)
        copy = edited(path)
        connection = sqlite3.connect(copy)
        connection.execute("DROP TRIGGER changes_are_never_deleted")
        connection.close()
        assert "taken away" in str(must_raise(BadInput, LedgerFile(copy).read))
