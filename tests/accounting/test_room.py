"""What a refusal says of the room that is left in a ledger."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
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
