"""A ledger that a team shares, through the command line: data sets, approvals, anchors, heads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.errors import DataWarning

RUN = "train --data digits --method features --epsilon 0.5 --examples 1437 --ledger office.db"
BUDGET = pv.Budget(4.0, 1e-5)


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, answer and notes of a command."""
    try:
        status = main(line.split())
    except SystemExit as end:
        status = int(end.code or 0)
    answered = capsys.readouterr()
    return status, answered.out, " ".join(answered.err.split())


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_runs_name_the_data_set_of_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("digits", "census"):
        pv.Ledger.open("office.db", BUDGET, data_set=name)
    status, _, notes = run(f"{RUN} --out first", capsys)
    assert status == 2
    assert "--ledger-data NAME" in notes
    status, _, notes = run(f"{RUN} --ledger-data digit --out first", capsys)
    assert (status, "it holds census, digits. Check the name" in notes) == (2, True)
    assert LedgerFile("office.db").names() == ["census", "digits"]
    assert run(f"{RUN} --ledger-data digits --out first", capsys)[0] == 0
    assert len(LedgerFile("office.db", "digits").read().entries) == 1
    status, _, notes = run(f"{RUN} --ledger-data census --out second", capsys)
    assert (status, "these rows are those of the data set 'digits'" in notes) == (2, True)
    assert "--new-rows" in notes
    assert not LedgerFile("office.db", "census").read().entries
    with pytest.warns(DataWarning, match="are also in the data set 'digits'"):
        assert run(f"{RUN} --ledger-data census --new-rows --out second", capsys)[0] == 0


def test_a_folder_is_located_in_its_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    pv.Ledger.open("office.db", BUDGET)
    pv.Ledger.open("other.db", BUDGET)
    assert run(f"{RUN} --out first", capsys)[0] == 0
    (number, _), verify = LedgerFile("office.db").head(), "verify first --ledger"
    assert run(f"{RUN} --out second", capsys)[0] == 0
    status, answer, _ = run(f"{verify} office.db --json", capsys)
    located = json.loads(answer)["ledger"]
    assert (status, located["row"], located["rows"]) == (0, number, number + 3)
    assert (
        f"after row {number} of the ledger of 'data' in office.db"
        in run(f"{verify} office.db", capsys)[1]
    )
    status, answer, _ = run(f"{verify} other.db --json", capsys)
    assert (status, json.loads(answer)["ok"]) == (1, False)


def test_an_approved_run_is_taken_up(capsys: pytest.CaptureFixture[str]) -> None:
    pv.Ledger.open("office.db", BUDGET)
    plan = "budget --examples 1437 --epsilon 0.5 --method features --classes 10 --numbers 64"
    status, _, notes = run(f"{plan} --approve", capsys)
    assert (status, "--ledger" in notes) == (2, True)
    ahead = f"{plan} --ledger office.db --approve"
    assert run(f"{ahead} --expires 2020-01-01", capsys)[0] == 2
    assert run(f"{ahead} --expires soon", capsys)[0] == 2
    assert not LedgerFile("office.db").read().entries
    status, answer, _ = run(
        f"{ahead} --expires 2999-01-31 --reserved-for nobody-here --json", capsys
    )
    room: dict[str, Any] = json.loads(answer)["room"]
    assert (status, room["approved"]) == (0, True)
    assert "waits for nobody-here to run it until 2999-02-01 00:00 UTC" in room["text"]
    asked = f"{plan} --ledger office.db --json"
    room = json.loads(run(asked, capsys)[1])["room"]
    assert "one is reserved for nobody-here, and a run of yours is another one" in room["text"]
    assert run(ahead, capsys)[0] == 0
    room = json.loads(run(asked, capsys)[1])["room"]
    assert "the next run takes up an approval that waits for it" in room["text"]
    assert run(f"{RUN} --out first", capsys)[0] == 0
    entries = LedgerFile("office.db").read().entries
    assert [entry.waiting for entry in entries] == [True, False]
    assert [entry.reserved_for for entry in entries] == ["nobody-here", ""]


def test_an_older_copy_is_refused_where_heads_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    pv.Ledger.open("office.db", BUDGET)
    shutil.copy("office.db", "older.db")
    assert run(f"{RUN} --anchor heads --out first", capsys)[0] == 0
    shutil.copy("older.db", "office.db")
    status, _, notes = run(f"{RUN} --anchor heads --out second", capsys)
    assert (status, "an older copy was put back" in notes) == (2, True)
    Path("office.db").unlink()
    status, _, notes = run("ledger office.db --epsilon 4 --anchor heads", capsys)
    assert (status, "its anchor keeps rows of one" in notes) == (2, True)
    assert not Path("office.db").exists()
