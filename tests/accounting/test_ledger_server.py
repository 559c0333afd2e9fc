"""Ledgers on a server: processes that are killed, several at once, the command line, backups, and
what is said where psycopg or the server is missing.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from privlearn import Budget, Ledger
from privlearn.cli import main
from privlearn.core.accounting import Adjacency
from privlearn.core.accounting.events import compose, tally
from privlearn.core.accounting.ledgers import ledger_server
from privlearn.core.accounting.ledgers.ledger_server import LedgerServer
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput, BudgetExceeded
from tests.accounting.checks_ledger_server import (
    charged,
    connect,
    lost_at_commit,
    with_users,
)
from tests.support import server
from tests.support.server import address_of, new_database

ADD = Adjacency.ADD_REMOVE


def in_children(number: int, body: Callable[[int], None]) -> list[int]:
    """Processes that run `body`, each with its number."""
    children = []
    for place in range(number):
        child = os.fork()
        if child == 0:
            try:
                body(place)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    return children


class Counts:
    """A number for each process, which outlives it."""

    def __init__(self, number: int) -> None:
        self.memory = mmap.mmap(-1, 8 * number)

    def __getitem__(self, place: int) -> int:
        return int.from_bytes(self.memory[8 * place : 8 * place + 8], "little")

    def add(self, place: int) -> None:
        self.memory[8 * place : 8 * place + 8] = (self[place] + 1).to_bytes(8, "little")


def wait_for_the_server(address: str) -> None:
    """Until the server has ended what killed processes left."""
    with connect(address) as connection:
        while (
            connection.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'privlearn'"
            ).fetchone()
            is not None
        ):
            time.sleep(0.005)


@pytest.mark.parametrize("kills", [8, pytest.param(40, marks=pytest.mark.nightly)])
def test_killed_processes_leave_no_charge_behind_on_a_server(kills: int) -> None:
    address, drawn = new_database(), random.Random(3)
    Ledger.open(address, create=True).charge(compose(Gaussian(9.0 + n) for n in range(40)), ADD)
    total = [0, 0]
    for _ in range(kills):
        counts = Counts(2)

        def charge(place: int, counts: Counts = counts) -> None:
            """Charge until killed; note each charge once it is allowed."""
            ledger = Ledger.open(address)
            while True:
                ledger.charge(Gaussian(100.0 + place), ADD)
                counts.add(place)

        children = in_children(2, charge)
        wanted = drawn.randrange(1, 8)
        while counts[0] + counts[1] < wanted:
            assert all(
                os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
                for child in children
            )
            time.sleep(0.001)
        time.sleep(drawn.uniform(0.0, 0.02))  # at any moment of the next charge
        for child in children:
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        wait_for_the_server(address)
        charges = tally(LedgerServer(address).check().event)
        for place in range(2):
            total[place] += counts[place]
            charged = charges.get(Gaussian(100.0 + place), 0)
            # as for files: what was committed for a process that was killed then counts
            assert total[place] <= charged <= total[place] + 1
            total[place] = charged
    assert sum(total) > kills


@pytest.mark.parametrize("charges", [80, pytest.param(800, marks=pytest.mark.nightly)])
def test_eight_processes_at_once_stay_within_one_budget(charges: int) -> None:
    """Together they charge exactly as often as there is room for, and none is lost."""
    address = new_database()
    Ledger.open(address, Budget(rho=0.005 * charges))
    counts = Counts(8)

    def charge(place: int) -> None:
        ledger = Ledger.open(address)
        with suppress(BudgetExceeded):
            while True:
                ledger.charge(Gaussian(10.0), ADD)
                counts.add(place)

    children = in_children(8, charge)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert sum(counts[place] for place in range(8)) == charges
    assert tally(LedgerServer(address).check().event) == {Gaussian(10.0): charges}
    assert sum(counts[place] > 0 for place in range(8)) > 1


def test_several_begin_the_same_ledger_at_once() -> None:
    address = new_database()

    def begin(place: int) -> None:
        Ledger.open(address, Budget(rho=1.0)).charge(Gaussian(50.0 + place), ADD)

    children = in_children(6, begin)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert len(tally(LedgerServer(address).check().event)) == 6


def test_a_lock_that_is_never_released_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_database()
    first, second = charged(address), Ledger.open(address)
    short = ledger_server._WRITE.replace("30s", "100ms")
    monkeypatch.setattr(ledger_server, "_WRITE", short)
    before = second.event
    with first._run.store.editing():
        with pytest.raises(BadInput, match="locked by another process"):
            second.charge(Gaussian(9.0), ADD)
        assert second.event == before
    second.charge(Gaussian(9.0), ADD)


def test_data_sets_have_ledgers_of_their_own() -> None:
    address = new_database()
    one, two = LedgerServer(address, "patients"), LedgerServer(address, "visits")
    one.begin(Budget(rho=1.0))
    two.begin(Budget(rho=2.0))
    two.begin(Budget(rho=3.0))  # stays as it is
    assert one.names() == ["patients", "visits"]
    assert one.read().budget == Budget(rho=1.0)
    assert one.other("visits").read().budget == two.read().budget == Budget(rho=2.0)
    with pytest.raises(BadInput, match="several data sets"):
        LedgerServer(address).read()
    with one.editing() as state:
        state.adjacency = ADD
    assert two.read().adjacency is None
    assert one.check().adjacency is ADD


def test_a_backup_is_the_ledger(tmp_path: Path) -> None:
    """What pg_dump wrote, put into another database, is gone on with."""
    address, other = new_database(), new_database()
    ledger = charged(address)
    with_users(address)
    backup = tmp_path / "ledger.dump"
    subprocess.run(["pg_dump", "--schema", "privlearn", "-Fc", "-f", backup, address], check=True)
    subprocess.run(["pg_restore", "-d", other, backup], check=True)
    assert LedgerServer(other).check() == LedgerServer(address).read()
    analyst = Ledger.open(address_of("ann", other))
    analyst.charge(Gaussian(3.5), ADD)
    assert analyst.event == compose([ledger.event, Gaussian(3.5)])


# The command line


def run(*argv: str) -> int:
    return main([*argv])


def test_commands_take_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = new_database()
    plan = ["budget", "--examples", "1437", "--epsilon", "1", "--ledger", address]
    assert run(*plan) == 2
    assert "there is no ledger" in capsys.readouterr().err
    assert run("ledger", address) == 2
    assert "begin one" in capsys.readouterr().err
    assert run("ledger", address, "--epsilon", "8", "--delta", "1e-5") == 0
    assert "Nothing was charged yet" in capsys.readouterr().out
    analyst, auditor = with_users(address)
    train = ["train", "--data", "digits", "--examples", "1437", "--epsilon", "1", "--epochs", "1"]
    out = str(tmp_path / "model")
    assert run(*train, "--delta", "1e-5", "--ledger", analyst, "--out", out) == 0
    assert run("verify", out) == 0
    capsys.readouterr()
    assert run("ledger", auditor, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [entry["state"] for entry in answer["entries"]] == ["closed"]
    assert 0.9 < answer["entries"][0]["epsilon"] <= 1.0
    assert run(*plan[:-1], auditor, "--json") == 0
    assert json.loads(capsys.readouterr().out)["room"]["fits"]
    assert run(*train, "--ledger", auditor, "--out", out + "-2") == 2
    assert "privlearn_analyst" in capsys.readouterr().err


@pytest.mark.parametrize("committed", [True, False])
def test_a_run_goes_on_after_a_commit_without_an_answer(
    committed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with an error, and with --resume its ledger holds what was planned, and no more."""
    address, out = new_database(), str(tmp_path / "model")
    Ledger.open(address, Budget(epsilon=8.0, delta=1e-5))
    train = ["train", "--data", "digits", "--examples", "1437", "--epsilon", "1", "--epochs", "3"]
    train += ["--ledger", address, "--out", out]
    with lost_at_commit(committed=committed, number=4):
        assert run(*train) == 2
    assert "Perhaps it is in the ledger" in capsys.readouterr().err
    [entry] = LedgerServer(address).check().entries
    assert entry.open
    assert run(*train, "--resume") == 0
    assert run("verify", out) == 0
    [entry] = LedgerServer(address).check().entries
    assert not entry.open
    assert entry.spent == entry.approved


@pytest.mark.parametrize(
    "argv",
    [
        ("ledger", "postgresql://ann:hush@db/clinic"),
        ("ledger", "--json", "postgresql://ann@db/clinic?password=hush"),
        ("train", "--ledger=postgresql://ann:hush@db/clinic", "--data", "digits"),
        ("budget", "--examples", "9", "--epsilon", "1", "--ledger", "postgres://:hush@db/c"),
    ],
)
def test_passwords_are_kept_out_of_command_lines(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 2
    message = capsys.readouterr().err
    assert "PGPASSWORD" in message
    assert "hush" not in message


def test_an_analyst_cannot_begin_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    other = new_database()
    LedgerServer(other).begin(None)
    with_users(other)
    assert run("ledger", address_of("ann", new_database()), "--epsilon", "1") == 2
    message = capsys.readouterr().err
    assert "permission denied" in message
    assert "Nothing was charged" in message


# What is missing


def test_without_psycopg_the_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None; import privlearn as pv\n"
        "pv.Ledger.open('postgresql://ann@db/clinic')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "pip install 'privlearn[postgresql]'" in done.stderr


def test_servers_that_cannot_be_reached_are_named() -> None:
    with pytest.raises(BadInput, match=r"postgresql://ann@/c\?host=/nowhere cannot be reached"):
        Ledger.open("postgresql://ann:hush@/c?host=/nowhere", Budget(rho=1.0))


def test_where_there_is_no_server_tests_are_skipped_but_by_night(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_start", lambda: None)
    monkeypatch.delenv(server.REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception):
        new_database()
    monkeypatch.setenv(server.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception):
        new_database()
