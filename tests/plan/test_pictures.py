"""What plans and trade-off curves draw, and what a result says of itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import privlearn as pv
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.mechanisms import Gaussian
from privlearn.accounting.tradeoff import tradeoff
from privlearn.errors import BadInput
from tests.runs.checks_reprs import trained


@pytest.fixture(autouse=True)
def _no_windows() -> None:
    pytest.importorskip("matplotlib").use("Agg")


def test_a_plan_draws_its_noise() -> None:
    plan = pv.Plan(pv.Poisson(0.1), 5, pv.schedules.Exponential(0.1, start=3.0), examples=100)
    axes = plan.plot()
    (stairs,) = axes.patches
    np.testing.assert_allclose(stairs.get_data().values, plan.noise_multipliers())
    np.testing.assert_allclose(stairs.get_data().edges, np.arange(0.5, 6))
    assert plan.plot(axes) is axes
    reacting = pv.Plan(pv.Poisson(0.1), 5, pv.schedules.Validation(0.6, start=7.0), examples=100)
    with pytest.raises(BadInput):
        reacting.plot()


def test_a_trade_off_curve_is_drawn() -> None:
    curve = tradeoff(Gaussian(1.0), Adjacency.ZERO_OUT)
    limit, guessing = curve.plot().lines
    x, y = limit.get_data()
    np.testing.assert_allclose(y, [curve.true_positive_rate(rate) for rate in x])
    assert list(guessing.get_ydata()) == [0, 1]


def test_a_result_says_how_it_was_trained() -> None:
    result = trained()
    text = result.summary()
    for label, value in result.plan.rows():
        assert f"  {label}: {value}" in text
    assert "Result of dpsgd" in text.splitlines()[0]
    for figure in result.private_diagnostics["loss"]:
        assert f"{figure:.4f}" not in text


def test_nothing_is_drawn_before_it_is_asked_for() -> None:
    code = (
        "import sys, privlearn, privlearn.plan, privlearn.accounting.tradeoff; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
