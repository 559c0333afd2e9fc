"""What other libraries do to a ledger (clone it, search with it, send it to workers) charges it, or
fails loudly.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import GridSearchCV

from privlearn import Budget, Ledger
from privlearn.cli import main
from privlearn.core.accounting import Adjacency, accountant
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput, BudgetExceeded

ADD_REMOVE = Adjacency.ADD_REMOVE


class NoisyMean(ClassifierMixin, BaseEstimator):
    """Somebody's estimator that charges a ledger whenever it is fitted."""

    def __init__(self, ledger: Ledger, noise: float = 5.0) -> None:
        self.ledger, self.noise = ledger, noise

    def fit(self, x: Any, y: Any) -> NoisyMean:
        self.ledger.charge(Gaussian(self.noise), ADD_REMOVE)
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: Any) -> Any:
        return np.zeros(len(x), dtype=int)


X, Y = np.zeros((30, 2)), np.arange(30) % 2
NOISES = {"noise": [4.0, 5.0, 6.0, 7.0]}


def test_a_cloned_estimator_charges_the_same_ledger() -> None:
    ledger = Ledger()
    clone(NoisyMean(ledger)).fit(X, Y)
    assert ledger.event == compose([Gaussian(5.0)])


def test_a_grid_search_charges_every_fit() -> None:
    ledger = Ledger()
    GridSearchCV(NoisyMean(ledger), NOISES, cv=3).fit(X, Y)
    assert sum(getattr(part, "count", 1) for part in ledger.event.events) == 13
    stingy = Ledger(Budget(rho=0.05))
    with pytest.raises(BudgetExceeded):
        GridSearchCV(NoisyMean(stingy), NOISES, cv=3, error_score="raise").fit(X, Y)


def test_workers_are_refused_a_ledger_in_memory_and_share_a_file(tmp_path: Path) -> None:
    """Processes that are sent a ledger, as searches on several cores do."""
    with pytest.raises(TypeError, match=r"Ledger\.open"):
        multiprocessing.get_context("spawn").Process(
            target=fit, args=(NoisyMean(Ledger()),)
        ).start()
    ledger = Ledger.open(tmp_path / "ledger", create=True)
    workers = [
        multiprocessing.get_context("spawn").Process(target=fit, args=(NoisyMean(ledger),))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert ledger.event == compose([Repeated(Gaussian(5.0), 6)])


def fit(estimator: NoisyMean) -> None:
    for _ in range(3):
        estimator.fit(X, Y)


SPENDER = """
import sys
from privlearn import Ledger
from privlearn.core.accounting import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BudgetExceeded
ledger, charged = Ledger.open(sys.argv[1]), 0
try:
    while True:
        ledger.charge(Gaussian(10.0), Adjacency.ADD_REMOVE)
        charged += 1
except BudgetExceeded:
    print(charged)
"""


def test_processes_at_once_stay_within_one_budget(tmp_path: Path) -> None:
    """Each charges until the budget is spent: together exactly as often as there is room for, and
    not once more.
    """
    path = tmp_path / "ledger"
    Ledger.open(path, Budget(rho=0.2))  # 40 charges of 0.005
    command = [sys.executable, "-c", SPENDER, str(path)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    charged = [int(worker.communicate()[0]) for worker in workers]
    assert sum(charged) == 40
    entries = LedgerFile(path).read().entries
    assert sum(getattr(part, "count", 1) for entry in entries for part in entry.spent.events) == 40


# The command


def run(*argv: str) -> int:
    return main(["ledger", *argv])


def test_the_command_shows_what_was_spent_and_what_remains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "study.json")
    assert run(path, "--epsilon", "3") == 0
    assert "Nothing was charged yet" in capsys.readouterr().out
    first, second = (Ledger.open(path, what=what) for what in ("a selection", "a model"))
    first.charge(Gaussian(4.0), ADD_REMOVE)
    second.begin(Repeated(Gaussian(8.0), 4), ADD_REMOVE)
    second.charge(Gaussian(8.0), ADD_REMOVE)
    assert run(path) == 0
    shown = capsys.readouterr().out
    for part in ("a selection", "a model", "open", "closed", "Together", "is left", "--close"):
        assert part in shown, shown
    assert run(path, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [entry["what"] for entry in answer["entries"]] == ["a selection", "a model"]
    assert answer["epsilon"] == pytest.approx(Ledger.open(path).guarantee(1e-5).epsilon)
    assert answer["spent"] + answer["left"] == pytest.approx(3.0)
    assert run(path, "--close", answer["entries"][1]["id"]) == 0
    assert Ledger.open(path).event == compose([Gaussian(4.0), Gaussian(8.0)])


def test_the_command_speaks_of_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "study.json")
    assert run(path, "--epsilon", "3", "--group-size", "4") == 0
    Ledger.open(path).charge(Gaussian(20.0), ADD_REMOVE)
    capsys.readouterr()
    assert run(path, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["epsilon"] == pytest.approx(
        accountant.guarantee(Gaussian(5.0), ADD_REMOVE, 1e-5).epsilon
    )
    assert answer["spent"] == answer["entries"][0]["epsilon"] == answer["epsilon"]
    assert run(path) == 0
    assert "up to 4 examples of one person" in capsys.readouterr().out
    with pytest.raises(BadInput, match="up to 4 examples"):
        Ledger.open(path).begin(Gaussian(20.0), ADD_REMOVE)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ("there is no ledger", "privlearn ledger", "--epsilon E")),
        (("--epsilon", "3", "--rho", "1"), ("either epsilon", "rho")),
        (("--epsilon", "-3"), ("epsilon is -3", "above 0")),
        (("--epsilon", "3", "--delta", "2"), ("delta is 2",)),
        (("--close", "nothing"), ("there is no ledger",)),
    ],
)
def test_what_the_command_refuses(
    options: tuple[str, ...],
    expected: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(str(tmp_path / "study.json"), *options) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in expected), message
    assert not list(tmp_path.glob("study.json"))


def test_what_is_refused_of_a_ledger_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.json"
    Ledger.open(path, Budget(epsilon=3.0, delta=1e-5)).charge(Gaussian(9.0), ADD_REMOVE)
    [entry] = LedgerFile(path).read().entries
    for options, expected in {
        ("--epsilon", "4"): "a ledger's budget is fixed",
        ("--rho", "1"): "a ledger's budget is fixed",
        ("--close", "12345678"): "has no entry '12345678'",
        ("--close", entry.id): "is closed already",
    }.items():
        assert run(str(path), *options) == 2
        assert expected in capsys.readouterr().err
    for use in (
        lambda: Ledger.open(path, Budget(rho=1.0)),
        lambda: Ledger.open(tmp_path),
    ):
        with pytest.raises(BadInput):
            use()


def test_a_folder_that_can_only_be_read(tmp_path: Path) -> None:
    """Nothing is charged that can't be written down. (Permissions don't bind root, so the refusal
    is made up.)
    """
    path = tmp_path / "study.json"
    ledger = Ledger.open(path, create=True)
    ledger.charge(Gaussian(9.0), ADD_REMOVE)
    before = path.read_bytes()

    store = ledger._run.store
    assert isinstance(store, LedgerFile)
    store._connection().execute("PRAGMA query_only = 1")
    with pytest.raises(BadInput, match="cannot be written: attempt to write a readonly database"):
        ledger.charge(Gaussian(9.0), ADD_REMOVE)
    store._connection().execute("PRAGMA query_only = 0")
    assert path.read_bytes() == before
    assert ledger.event == compose([Gaussian(9.0)])


def test_a_ledger_whose_key_is_left_is_not_begun_anew(tmp_path: Path) -> None:
    """It was deleted or moved, and a new one would not count what was spent."""
    path = tmp_path / "study.db"
    Ledger.open(path, Budget(epsilon=3.0, delta=1e-5))
    path.unlink()
    for begin in (
        lambda: Ledger.open(path, Budget(epsilon=3.0, delta=1e-5)),
        lambda: Ledger.open(path, create=True),
    ):
        with pytest.raises(BadInput, match="bring it back"):
            begin()
        assert not path.exists()
    path.with_name("study.db.key").unlink()
    Ledger.open(path, create=True)
    with pytest.raises(BadInput, match="only records"):
        Ledger.open(path, Budget(epsilon=3.0, delta=1e-5))
