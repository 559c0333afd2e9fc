"""What a refusal says of the room that is left in a ledger."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledgers.room import with_noise
from privlearn.core.accounting.mechanisms import Gaussian, PureDP
from privlearn.errors import BudgetExceeded, PrivlearnError

PLAN = pv.Plan(pv.Poisson(0.01), epochs=3, adjacency=Adjacency.ZERO_OUT).calibrate(
    epsilon=2.0, delta=1e-5
)


def refusal(ledger: pv.Ledger, plan: pv.Plan) -> str:
    with pytest.raises(BudgetExceeded) as caught:
        ledger.approve(plan)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sampling", "released", "limit"),
    [
        (pv.Poisson(0.01), False, 2.5),
        (pv.Poisson(0.01), True, 3.0),
        (pv.sampling.Partition(100), False, 2.5),
        (pv.sampling.FixedOrder(10), False, 2.5),
        (pv.sampling.FixedOrder(10), True, 2.5),
    ],
    ids=str,
)
def test_what_still_fits_is_said(sampling: Any, released: bool, limit: float) -> None:
    """With the factor that is said the run fits, at the epsilon that is said; with a little less
    than it not.
    """
    plan = replace(PLAN, sampling=sampling, budget=None).calibrate(epsilon=2.0, delta=1e-5)
    ledger = pv.Ledger(pv.Budget(limit, 1e-5))
    if released:
        ledger.begin(plan.event(), plan.neighbours)
        ledger.charge(plan.event(), plan.neighbours)
    else:
        ledger.approve(plan)
    said = re.search(
        r"With (\d+\.\d\d) times its noise it fits: epsilon ([\d.]+) by itself",
        refusal(ledger, plan),
    )
    assert said is not None
    factor = float(said[1])
    quieter = plan.scaled(factor)
    assert quieter.guarantee(1e-5).epsilon == pytest.approx(float(said[2]), rel=1e-4)
    ledger.require_room(quieter.event(), plan.neighbours)
    with pytest.raises(BudgetExceeded):
        ledger.require_room(plan.scaled(0.98 * factor).event(), plan.neighbours)


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert "times its noise" not in refusal(pv.Ledger(pv.Budget(1.0, 1e-5)), PLAN), (
        "it is the first: the target says it"
    )
    ledger = pv.Ledger(pv.Budget(2.0, 1e-5))
    ledger.approve(PLAN)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.charge(PureDP(1.0), PLAN.neighbours)
    assert "times its noise" not in str(caught.value)
    with pytest.raises(PrivlearnError, match="no noise to raise"):
        with_noise(PureDP(1.0), 2.0)


def test_noise_is_raised_in_each_release() -> None:
    assert with_noise(PLAN.event(), 2.0) == PLAN.scaled(2.0).event()
    assert with_noise(Gaussian(1.5), 2.0) == Gaussian(3.0)


def run_until_refused(ledger: pv.Ledger, plan: pv.Plan) -> int:
    """How many runs of a plan a ledger lets through, one after another."""
    runs = 0
    while ledger.fits(plan):
        ledger.begin(plan.event(), plan.neighbours, plan.unit)
        ledger.charge(plan.event(), plan.neighbours)
        ledger.settle()
        runs += 1
    with pytest.raises(BudgetExceeded):
        ledger.begin(plan.event(), plan.neighbours, plan.unit)
    return runs


@pytest.mark.parametrize("measure", [None, "renyi"])
@pytest.mark.parametrize("budget", [1.5, 2.0, 4.5, 9.0])
def test_as_many_runs_fit_as_are_said_to(budget: float, measure: str | None) -> None:
    ledger = pv.Ledger(pv.Budget(epsilon=budget, delta=1e-5), measure=measure)
    fit = ledger.fits(PLAN)
    assert not ledger.event.events, "nothing is charged"
    assert fit.runs == run_until_refused(ledger, PLAN)
    assert bool(fit) == (budget >= 2.0)
    assert ("Use more noise" in str(fit)) == (budget < 2.0)


def test_what_has_room_after_other_runs() -> None:
    ledger = pv.Ledger(pv.Budget(epsilon=9.0, delta=1e-5))
    other = replace(PLAN, epochs=1, adjacency=Adjacency.ZERO_OUT)
    ledger.begin(other.event(), other.neighbours, other.unit)
    ledger.charge(other.event(), other.neighbours)
    ledger.settle()
    fit = ledger.fits(PLAN)
    assert fit.runs == run_until_refused(ledger, PLAN) > 0


def test_ledgers_that_refuse_nothing_or_what_does_not_suit_them() -> None:
    assert pv.Ledger().fits(PLAN).runs is None
    assert "refuses no run" in str(pv.Ledger().fits(PLAN))
    of_rho = pv.Ledger(pv.Budget(rho=1.0)).fits(PLAN)
    assert of_rho.runs == 0
    assert "no amplified zCDP" in of_rho.reason
    persons = pv.Ledger(unit=PrivacyUnit(group_size=2)).fits(PLAN)
    assert "protect" in persons.reason


def test_budget_says_whether_a_ledger_has_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "study.db")
    words = ["budget", "--examples", "6000", "--epsilon", "2", "--ledger", file]
    assert main(words) == 2
    assert f"privlearn ledger {file} --epsilon E" in capsys.readouterr().err
    assert main(["ledger", file, "--epsilon", "3"]) == 0
    capsys.readouterr()
    before = Path(file).read_bytes()
    for method in ([], ["--method", "boosting", "--numbers", "3"], ["--method", "pate"]):
        assert main([*words, *method, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)["room"]
        assert said["fits"]
        assert said["text"].startswith("the ledger has room for")
    assert main(words) == 0
    assert "The ledger has room for one such run.\n" in capsys.readouterr().out
    assert main([*words, "--sampling", "best"]) == 2
    assert "not with --sampling best" in capsys.readouterr().err
    assert Path(file).read_bytes() == before, "nothing is charged"
