"""What ledgers, filters, budgets and events refuse: files with wrong entries, copies, other
processes, no events.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privlearn import Budget, Ledger
from privlearn.core.accounting import comparisons, rdp, zcdp
from privlearn.core.accounting.calibration import solve_noise
from privlearn.core.accounting.events import Repeated, compose, from_json, tally
from privlearn.core.accounting.filters import PrivacyFilter, of_ledger
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.ledgers.ledger_json import plain_state
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, Laplace, PoissonSampled
from privlearn.core.accounting.trees import Filter, GaussianFilter, OneOf, one_of
from privlearn.errors import BadInput, PrivlearnError, UnsupportedEvent

ADD_REMOVE = Adjacency.ADD_REMOVE
BUDGET = Budget(2.0, 1e-5)


def _append(path: Path, value: Any, *, whole: bool) -> None:
    """Append a row whose digest is right."""
    connection = sqlite3.connect(path)
    head = connection.execute("SELECT data, number, digest FROM head").fetchone()
    row = [
        head[0],
        head[1] + 1,
        "2026-01-01T00:00:00+00:00",
        int(whole),
        json.dumps(value),
        head[2],
    ]
    connection.execute(
        "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*row, hashlib.sha256(json.dumps(row).encode()).hexdigest()),
    )
    connection.commit()
    connection.close()


def _state(path: Path) -> dict[str, Any]:
    return plain_state(LedgerFile(path).read())


WRONG_ENTRIES: dict[str, Any] = {
    "something else than short texts": {"what": 3},
    "something else than short texts, a long one": {"what": "x" * 1001},
    "other flags": {"open": 1},
    "other fields": {"more": ""},
    "fields of other types": {"approved": {"kind": "gaussian", "noise_multiplier": 1.0}},
    "fields of other types, the spent": {"spent": {"kind": "gaussian", "noise_multiplier": 1.0}},
    "waits was begun": {"waiting": True},
    "reason is a int": {"spent": {"kind": "unsupported", "reason": 3}},
}


@pytest.mark.parametrize("what", WRONG_ENTRIES)
def test_a_ledger_file_with_a_wrong_entry_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "ledger"
    Ledger.open(path, BUDGET).charge(Gaussian(8.0), ADD_REMOVE)
    state = _state(path)
    state["entries"][0].update(WRONG_ENTRIES[what])
    _append(path, state, whole=True)
    with pytest.raises(BadInput, match="not a ledger that can be trusted"):
        Ledger.open(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("unit"),
        lambda state: state["budget"].update(epsilon="2"),
        lambda state: state["entries"][0].pop("id"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = tmp_path / "ledger"
    Ledger.open(path, BUDGET).charge(Gaussian(8.0), ADD_REMOVE)
    state = _state(path)
    change(state)
    _append(path, state, whole=True)
    with pytest.raises(BadInput):
        Ledger.open(path)


@pytest.mark.parametrize(
    "change",
    [
        3,
        {},
        {"entries": 3},
        {"entries": [3]},
        {"entries": [{"id": "none", "done": [1]}]},
        {"entries": [{"id": "none"}]},
        {"adjacency": "all", "unit": None, "entries": []},
    ],
)
def test_a_row_of_something_else_is_refused(tmp_path: Path, change: Any) -> None:
    """Also one whose digest is right."""
    path = tmp_path / "ledger"
    Ledger.open(path, create=True).charge(Gaussian(9.0), ADD_REMOVE)
    _append(path, change, whole=False)
    with pytest.raises(BadInput):
        Ledger.open(path)


def test_a_ledger_file_is_begun_once_and_keeps_its_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with pytest.raises(BadInput, match="there is no ledger"):
        Ledger.open(path)
    Ledger.open(path, BUDGET)
    # as by another process that began at the same time
    LedgerFile(path).begin(Budget(8.0, 1e-5), None)
    with pytest.raises(BadInput, match="budget is fixed"):
        Ledger.open(path, Budget(8.0, 1e-5))
    with pytest.raises(BadInput, match="has the measure"):
        Ledger.open(path, measure="renyi")
    assert Ledger.open(path).budget == BUDGET
    with pytest.raises(BadInput, match=r"expected a pv\.Budget"):
        Ledger(2.0)  # type: ignore[arg-type]


def test_a_filter_has_no_copies() -> None:
    """Or its limit could be spent once in each."""
    ledger = Ledger()
    own = PrivacyFilter(ledger, Filter(0.1), ADD_REMOVE)
    assert copy.copy(own) is own
    assert copy.deepcopy([own])[0] is own
    for kept in (own, ledger):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(kept)
    with pytest.raises(BadInput, match="expected Filter"):
        PrivacyFilter(ledger, Gaussian(3.0), ADD_REMOVE)  # type: ignore[arg-type]


def test_a_forked_process_may_not_spend_a_filter_or_a_ledger_in_memory() -> None:
    ledger = Ledger()
    own = PrivacyFilter(ledger, Filter(0.1), ADD_REMOVE)
    pid = os.fork()
    if not pid:
        refused = 0
        for spend in (own.charge, ledger.charge):
            try:
                spend(Gaussian(8.0), ADD_REMOVE)
            except PrivlearnError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2


def test_budgets_and_measures_that_mean_nothing_are_refused() -> None:
    with pytest.raises(BadInput, match="needs its delta"):
        Budget(epsilon=1.0)
    for measure, budget in ((8, None), (8, Budget(rho=0.1)), ("gaussian", None)):
        with pytest.raises(BadInput, match="a measure needs a budget"):
            Ledger(budget, measure=measure)
    with pytest.raises(BadInput, match="expected"):
        Ledger(BUDGET, measure="pld")  # type: ignore[arg-type]


def test_no_noise_meets_a_target_that_is_spent_already() -> None:
    with pytest.raises(BadInput, match="fixes the cost"):
        solve_noise(lambda scale: 2.0 + 1 / scale, 1.0)
    with pytest.raises(BadInput, match="fixes the cost"):
        solve_noise(lambda scale: min(0.5, 1 / scale), 1.0)

    def priced(scale: float) -> float:
        if scale < 1:
            raise UnsupportedEvent("no accountant reaches so little noise")
        return 1 / scale

    assert 0.25 * (1 - 1e-3) < priced(solve_noise(priced, 0.25, start=0.5)) <= 0.25


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(AssertionError, match="not a mechanism"):
        tally("gaussian")  # type: ignore[arg-type]
    for no_event in (
        lambda: Repeated("gaussian", 2),
        lambda: OneOf([Gaussian(1.0)]),
        lambda: OneOf(()),
    ):  # type: ignore[arg-type, list-item]
        with pytest.raises(BadInput, match="event"):
            no_event()
    with pytest.raises(BadInput):
        from_json({"kind": "gaussian", "noise_multiplier": 1.0, "more": 2})


def test_a_sequence_of_unlike_releases_is_repeated_in_order() -> None:
    from privlearn.core.accounting.events import walk

    pair = compose([Gaussian(1.0), Laplace(2.0)])
    assert list(walk(Repeated(pair, 3))) == [(Gaussian(1.0), 1), (Laplace(2.0), 1)] * 3


def test_the_dearest_of_several_is_paid() -> None:
    """One of several events costs the most of them in each measure, and one that is the same
    however chosen, itself.
    """
    either = one_of([Gaussian(2.0), Repeated(Gaussian(2.0), 3)])
    assert zcdp.rho(either) == zcdp.rho(Repeated(Gaussian(2.0), 3))
    assert (rdp.curve(either) == rdp.curve(Repeated(Gaussian(2.0), 3))).all()
    crossing = one_of([Laplace(3.0), Gaussian(2.5)])
    curves = [rdp.curve(event) for event in (Laplace(3.0), Gaussian(2.5))]
    assert (rdp.curve(crossing) >= curves[0]).all()
    assert (rdp.curve(crossing) >= curves[1]).all()
    assert one_of([Gaussian(2.0), Gaussian(2.0)]) == compose([Gaussian(2.0)])


def test_filters_by_budget_spend_no_more_than_it() -> None:
    for budget, first, kind in (
        (Budget(rho=0.1), Gaussian(8.0), Filter),
        (BUDGET, Gaussian(8.0), GaussianFilter),
        (BUDGET, Laplace(8.0), Filter),
    ):
        limit = of_ledger(budget, first, ADD_REMOVE, None)
        assert isinstance(limit, kind)
        assert budget.spent(limit, ADD_REMOVE) <= budget.limit * (1 + 1e-12)
        assert budget.spent(limit, ADD_REMOVE) > 0.99 * budget.limit


def test_the_estimate_of_yu_et_al_is_for_what_it_was_tried_on() -> None:
    """Their Theorem 3: the optimal order where it may be used, and the highest allowed one else;
    the two meet.
    """
    step = PoissonSampled(0.01, Gaussian(2.0))
    assert 0 < comparisons.epsilon(Repeated(step, 1000), 1e-5) < 5
    refused = (
        Gaussian(2.0),
        PoissonSampled(0.01, Gaussian(1.1)),
        PoissonSampled(0.04, Gaussian(2.0)),
    )
    for event in refused:
        with pytest.raises(UnsupportedEvent, match="estimate of Yu"):
            comparisons.epsilon(event, 1e-5)
    need = -math.log(1e-5)
    for rho in (0.01, 1.0):
        meeting = 1 + math.sqrt(need / rho)
        free = comparisons.theorem_three(rho, math.inf, 1e-5)
        assert free == pytest.approx(rho + 2 * math.sqrt(rho * need), rel=1e-12)
        assert comparisons.theorem_three(rho, meeting * (1 - 1e-9), 1e-5) == pytest.approx(
            free, rel=1e-6
        )
        lower = 1 + (meeting - 1) / 2
        assert comparisons.theorem_three(rho, lower, 1e-5) == pytest.approx(
            rho * lower + need / (lower - 1), rel=1e-12
        )
        assert comparisons.theorem_three(rho, lower, 1e-5) > free


def test_a_lower_bound_for_shuffling_needs_a_shuffled_epoch_of_so_many_rows() -> None:
    with pytest.raises(UnsupportedEvent, match="same size"):
        comparisons.lower_bound(FixedBatches(Gaussian(2.0)), 10, ADD_REMOVE, 1e-5)
    with pytest.raises(UnsupportedEvent, match="no shuffled epoch"):
        comparisons.lower_bound(Gaussian(2.0), 10, Adjacency.ZERO_OUT, 1e-5)
    with pytest.raises(BadInput):
        comparisons.lower_bound(FixedBatches(Gaussian(2.0)), 0, Adjacency.ZERO_OUT, 1e-5)
