"""What plans and trade-off curves draw, and what a result says of itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import privlearn as pv
from privlearn.core.accounting.accountant import guarantee
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.tradeoff import tradeoff
from privlearn.errors import BadInput
from tests.runs.checks_callbacks import At
from tests.runs.checks_callbacks import plan as plan_with_callbacks
from tests.runs.checks_callbacks import trained as trained_with
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


def test_a_plan_draws_what_it_spends() -> None:
    """At each corner of the line the price of so many steps; at the end all of it, earlier releases
    included.
    """
    before = pv.transforms.PrivatePCA(2, 20.0)
    poisson = pv.Plan(
        pv.Poisson(0.1), 3, pv.schedules.Exponential(0.2, start=3.0), examples=100, front=(before,)
    )
    axes = poisson.plot(of="epsilon", delta=1e-5)
    x, y = (np.asarray(part) for part in axes.lines[0].get_data())
    assert axes.get_xlabel() == "step"
    assert (x[0], x[-1]) == (0, 30)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= 0).all()
    assert y[-1] == poisson.guarantee(1e-5).epsilon
    sigmas = poisson.noise_multipliers()
    for steps, epsilon in zip(x, y, strict=True):
        charged = [
            poisson.sampling.event(Gaussian(sigmas[int(number // 10)]))
            for number in range(round(steps))
        ]
        expected = guarantee(compose([before.event(), *charged]), poisson.neighbours, 1e-5).epsilon
        assert epsilon == pytest.approx(expected, rel=1e-9)
    with pytest.raises(BadInput, match="delta=1e-5"):
        poisson.plot(of="epsilon")
    with pytest.raises(BadInput, match="noise, epsilon"):
        poisson.plot(of="loss")


def test_what_is_priced_by_the_epoch_is_drawn_with_its_first_step() -> None:
    for epochs in (2, 60):
        plan = pv.Plan(pv.Partition(5), epochs, examples=100).calibrate(epsilon=3.0, delta=1e-5)
        spent, target = plan.plot(of="epsilon").lines
        x, y = spent.get_data()
        assert list(target.get_ydata()) == [3.0, 3.0]
        for step in range(1, 5 * epochs):
            at = max(y[place] for place in range(len(x)) if x[place] <= step)
            assert (
                at
                >= replace(plan, epochs=(step - 1) // 5 + 1, budget=None).guarantee(1e-5).epsilon
                - 1e-9
            )
    by_epoch = pv.Plan(pv.Shuffle(10), 3).calibrate(epsilon=3.0, delta=1e-5).plot(of="epsilon")
    assert by_epoch.get_xlabel() == "epoch"
    reacting = pv.Plan(
        pv.Partition(5), 4, pv.schedules.Validation(0.6, start=7.0, noise=9.0), examples=99
    )
    reacting = reacting.calibrate(epsilon=3.0, delta=1e-5)
    assert set(reacting.plot(of="epsilon").lines[0].get_ydata()) == {
        reacting.guarantee(1e-5).epsilon
    }


def test_a_result_draws_its_plan() -> None:
    """All of it is claimed, also of a run that was left early."""
    for result in (trained_to(At(3)), trained_to(())):
        spent, _ = result.plot().lines
        assert (spent.get_xdata()[-1], spent.get_ydata()[-1]) == (
            8,
            result.plan.guarantee(1e-5).epsilon,
        )
    assert result.plot(of="noise").get_ylabel() == "noise multiplier"
    with pytest.raises(BadInput, match="no steps"):
        replace(result, plan=pv.teachers.PatePlan(30, 4, pv.teachers.Ball(1.0))).plot()


def trained_to(callbacks: Any) -> pv.Result:
    return trained_with(plan_with_callbacks(), callbacks)


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
        "import sys, privlearn, privlearn.core.plan, privlearn.core.accounting.tradeoff; assert "
        "'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
