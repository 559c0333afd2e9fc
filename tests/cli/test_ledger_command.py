"""`privlearn ledger` and what other commands say of a ledger, as people meet them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.mechanisms import Gaussian
from tests.cli.checks_ledger_view import fill

A = Adjacency.ADD_REMOVE
PLAN = ["--examples", "6000", "--sampling", "full", "--adjacency", "add_remove"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def shown(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints, on either stream, without its line breaks."""
    capsys.readouterr()
    assert main([*words]) == code
    heard = capsys.readouterr()
    return " ".join(f"{heard.out} {heard.err}".split())


def test_a_database_of_several_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    begin = ("ledger", "study.db", "--epsilon", "2", "--ledger-data")
    said = shown(capsys, *begin, "adult", "--owner", "Dr. Ada")
    assert "began study.db for the data set adult" in said
    assert "The data set adult of Dr. Ada." in said
    assert "began" not in shown(capsys, *begin, "adult", "--owner", "Dr. Ada")
    assert "file" in answer(capsys, "ledger", "study.db")
    assert answer(capsys, "ledger", "study.db")["data"] == "adult"
    shown(capsys, *begin, "wards")
    pv.Ledger.open("study.db", data_set="wards").charge(Gaussian(9.0), A)
    both = answer(capsys, "ledger", "study.db")
    assert [each["data"] for each in both["data_sets"]] == ["adult", "wards"]
    assert set(both) == {"file", "data_sets"}
    one = answer(capsys, "ledger", "study.db", "--ledger-data", "wards")
    assert one == {"file": "study.db", **both["data_sets"][1]}
    assert len(one["entries"]) == len(one["history"]) == 1
    said = shown(capsys, "ledger", "study.db")
    assert "See one: privlearn ledger study.db --ledger-data NAME" in said
    assert "% of the limit" in said
    together = answer(capsys, "ledger", "study.db", "--overlap", "adult,wards")["overlap"]
    assert (together["epsilon"], together["delta"]) == (4.0, 2e-5)
    said = shown(capsys, "ledger", "study.db", "--overlap", "all")
    assert "A person in adult, wards is protected by epsilon 4 at delta 2e-05" in said
    for options, part in {
        ("--ledger-data", "adlt"): "no data set 'adlt': it holds adult, wards",
        ("--html", "a.html"): "--ledger-data NAME",
        ("--close", "0123"): "say which one with --ledger-data NAME",
        ("--overlap", "adult,ward"): "there is no data set 'ward'",
        ("--overlap", "adult"): "two or more",
    }.items():
        said = shown(capsys, "ledger", "study.db", *options, code=2)
        assert part in said, said
        assert "trusted" not in said
    assert main(["ledger", "study.db", "--csv", "runs.csv"]) == 0
    rows = list(csv.DictReader(Path("runs.csv").read_text().splitlines()))
    assert [row["data"] for row in rows] == ["wards"]


def test_what_is_given_of_a_ledger_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "ledger", "study.db", "--epsilon", "2", "--owner", "Ada", "--group-size", "2")
    for options, part in {
        ("--group-size", "3"): "up to 3 examples of one person were given",
        ("--owner", "Bob"): "has the owner 'Ada', and 'Bob' was given",
        ("--measure", "renyi"): "renyi was given",
    }.items():
        said = shown(capsys, "ledger", "study.db", *options, code=2)
        assert part in said
        assert "fixed when a ledger is begun" in said
    shown(capsys, "ledger", "study.db", "--group-size", "2", "--owner", "Ada")
    assert "at most 200" in shown(
        capsys, "ledger", "other.db", "--epsilon", "2", "--owner", "x" * 201, code=2
    )
    assert not Path("other.db").exists()


def test_what_is_no_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "ledger", "study.db", "--epsilon", "2")
    Path("empty.db").touch()
    Path("folder").mkdir()
    budget = ["budget", *PLAN, "--epsilon", "1", "--ledger"]
    for words in (["ledger", "studdy.db"], [*budget, "studdy.db"]):
        said = shown(capsys, *words, code=2)
        assert "there is no ledger studdy.db, and there is study.db: check the name" in said
    with pytest.raises(pv.errors.BadInput, match=r"studdy\.db, and there is study\.db: check"):
        pv.Ledger.open("studdy.db")
    assert "folder is a folder, and a ledger is a file" in shown(capsys, "ledger", "folder", code=2)
    Path("folder", "privacy.json").touch()
    assert "`privlearn verify` says what" in shown(capsys, "ledger", "folder", code=2)
    assert "it is empty" in shown(capsys, "ledger", "empty.db", code=2)


def test_the_first_run_names_the_limit_of_its_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "ledger", "study.db", "--epsilon", "4")
    train = ["train", "--data", "breast-cancer", "--method", "features", "--epsilon", "1"]
    said = shown(capsys, *train, "--ledger", "study.db", "--out", "first")
    limit = "for this run alone, the only one on its ledger so far, which limits all runs together"
    assert f"{limit} to epsilon 4 at delta 1e-05" in said
    assert "no limit" not in said
    said = shown(capsys, "verify", "first", "--ledger", "studdy.db", code=2)
    assert "there is no ledger studdy.db, and there is study.db: expected the one" in said
    assert "no limit" in shown(capsys, *train, "--ledger", "third.db", "--out", "third")


def test_each_run_is_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    fill(Path("study.db"), pv.Budget(6.0, 1e-5))
    database = LedgerFile("study.db")
    pv.Ledger.open("study.db", what="a long purpose " * 20).charge(Gaussian(40.0), A)
    assert main(["ledger", "study.db"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for entry in database.read().entries:
        [line] = [line for line in lines if entry.id in line]
        assert entry.by in line
    assert "a long purpose " * 19 in " ".join(lines)


def test_what_is_said_of_a_run_that_was_closed(capsys: pytest.CaptureFixture[str]) -> None:
    """The guarantee still covers what was approved, and what is left says what is free again."""
    path = Path("study.db")
    ledger = pv.Ledger.open(path, pv.Budget(6.0, 1e-5))
    ledger.begin(Repeated(Gaussian(8.0), 4), A)
    ledger.charge(Gaussian(8.0), A)
    before = answer(capsys, "ledger", "study.db")
    said = shown(capsys, "ledger", "study.db", "--close", before["entries"][0]["id"])
    assert "also for what closed runs did not spend" in said
    after = answer(capsys, "ledger", "study.db")
    assert after["left"] > before["left"]
    assert after["spent"] == before["spent"]
    assert f"{100 * after['left'] / 6:.1f} % is left" in said


def test_files_of_a_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    fill(Path("study.db"), pv.Budget(6.0, 1e-5))
    files = {"--html": "page.html", "--csv": "runs.csv", "--plot": "course.png"}
    words = [word for pair in files.items() for word in pair]
    for _ in range(2):  # written anew
        said = shown(capsys, "ledger", "study.db", *words)
        assert all(f"wrote {name}" in said for name in files.values())
    assert Path("page.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert Path("course.png").read_bytes().startswith(b"\x89PNG")
    assert len(Path("runs.csv").read_text("utf-8").splitlines()) == 6
    for option, name in files.items():
        assert "expected a file that ends in" in shown(
            capsys, "ledger", "study.db", option, "study.db", code=2
        )
        assert "there is no folder" in shown(
            capsys, "ledger", "study.db", option, f"nowhere/{name}", code=2
        )


def test_budget_says_no_where_a_ledger_has_no_room(capsys: pytest.CaptureFixture[str]) -> None:
    """By its exit code, by how large a run has room, and without a word of a charge."""
    shown(capsys, "ledger", "study.db", "--epsilon", "2")
    large = ["budget", *PLAN, "--epsilon", "3", "--ledger", "study.db"]
    room = answer(capsys, *large, code=1)["room"]
    assert (room["fits"], room["runs"]) == (False, 0)
    assert 1.98 < room["largest_epsilon"] <= 2.0
    said = shown(capsys, *large, code=1)
    assert "The ledger refuses this run" in said
    assert "charged or drawn" not in said
    assert f"costs epsilon {room['largest_epsilon']:.4f} by itself" in said
    epsilon = str(room["largest_epsilon"])
    fitting = ["budget", *PLAN, "--epsilon", epsilon, "--ledger", "study.db"]
    assert answer(capsys, *fitting)["room"]["runs"] == 1
    assert "and this run states its guarantee at delta 1e-06" in shown(
        capsys, *fitting, "--delta", "1e-6", "--epsilon", "0.5"
    )
    pv.Ledger.open("study.db").charge(Gaussian(4.0), A)
    after = answer(capsys, *fitting, code=1)["room"]
    assert 1.0 < after["largest_epsilon"] < 2.0
    refusal = after["text"]
    for advice in ("larger budget", "before the first release"):
        assert advice not in refusal, "nothing of that can be done any more"
    assert "Use more noise" in refusal


def test_a_full_ledger_advises_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the declared runs take all that a filter has."""
    shown(capsys, "ledger", "study.db", "--epsilon", "1", "--measure", "renyi")
    first = ["--sampling", "partition", "--batch-size", "100", "--adjacency", "add_remove"]
    words = ["budget", "--examples", "6000", *first, "--epsilon", "1"]
    plan = pv.Plan(pv.Partition(batches=60), 5, adjacency=A, examples=6000)
    plan = plan.calibrate(epsilon=1.0, delta=1e-5)
    ledger = pv.Ledger.open("study.db")
    ledger.begin(plan.event(), plan.neighbours, plan.unit)
    ledger.charge(plan.event(), plan.neighbours)
    ledger.settle()
    text = answer(capsys, *words, "--ledger", "study.db", code=1)["room"]["text"]
    assert "For more runs begin another ledger" in text
    assert "larger budget" not in text


def test_a_dry_run_says_whether_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    """Of all that it would charge, released test metrics included; no ledger is begun."""
    shown(capsys, "ledger", "study.db", "--epsilon", "2")
    run = ["train", "--data", "breast-cancer", "--epochs", "1", "--dry-run", "--epsilon"]
    assert "has room for one such run" in shown(capsys, *run, "1.5", "--ledger", "study.db")
    room = answer(capsys, *run, "1.5", "--ledger", "study.db")["room"]
    assert room["fits"]
    assert answer(capsys, *run, "3", "--ledger", "study.db", code=1)["room"]["runs"] == 0
    paid = [*run, "1.9", "--ledger", "study.db"]
    assert answer(capsys, *paid)["room"]["fits"]
    more = answer(capsys, *paid, "--paid-metrics", "1", code=1)
    assert not more["room"]["fits"]
    said = shown(capsys, *run, "1.5", "--ledger", "studdy.db", code=2)
    assert "there is no ledger studdy.db, and there is study.db" in said
    said = shown(capsys, *run, "1.5", "--ledger", "new.db")
    assert "the run would begin one that only records" in said
    assert not Path("studdy.db").exists()
    assert not Path("new.db").exists()


def test_a_text_that_no_ledger_could_be_read_with_is_not_written() -> None:
    """It would be refused from then on: nothing is charged with it."""
    long, budget = "x" * 1001, pv.Budget(3.0, 1e-5)
    with pytest.raises(pv.errors.BadInput, match="1,001 characters"):
        LedgerFile("study.db").begin(budget, owner=long)
    with pytest.raises(pv.errors.BadInput, match="1,001 characters"):
        pv.Ledger.open("study.db", budget, what=long).charge(Gaussian(9.0), A)
    assert not pv.Ledger.open("study.db").event.events
