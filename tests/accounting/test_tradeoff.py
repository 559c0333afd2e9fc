"""What a membership attack can achieve at most: against closed forms, and against attacks that are
really made.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from privlearn.core.accounting import accountant
from privlearn.core.accounting import tradeoff as module
from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import (
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
)
from privlearn.core.accounting.tradeoff import TradeOff, tradeoff
from privlearn.errors import BadInput, UnsupportedEvent

RATES = (0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0)
ADD_REMOVE = Adjacency.ADD_REMOVE


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_the_grid_agrees_with_the_gaussian_curve_and_is_never_below_it(sigma: float) -> None:
    event = Gaussian(sigma)
    exact = tradeoff(event, ADD_REMOVE)
    grid = TradeOff(None, tuple(module._deltas(event, 1).tolist()))
    for rate in RATES:
        truth = float(norm.cdf(norm.ppf(rate) + 1 / sigma)) if 0 < rate < 1 else rate
        assert exact.true_positive_rate(rate) == pytest.approx(truth, abs=1e-12)
        assert truth <= grid.true_positive_rate(rate) <= truth * 1.005 + 2e-9
    assert exact.success == pytest.approx(norm.cdf(0.5 / sigma))  # the best test cuts halfway
    assert exact.success <= grid.success <= exact.success * 1.0001


def test_a_curve_is_shown_in_a_few_figures() -> None:
    """Not by the numbers of its grid; rounded up, since they are upper bounds."""
    for event in (Repeated(PoissonSampled(0.01, Gaussian(1.0)), 100), Gaussian(2.0)):
        curve = tradeoff(event, ADD_REMOVE)
        assert len(repr(curve)) < 120
        shown = float(repr(curve).partition("at most ")[2].partition(" %")[0])
        assert curve.success * 100 <= shown <= curve.success * 100 + 0.1


def test_a_pure_guarantee_gives_randomised_responses_curve() -> None:
    curve = tradeoff(PureDP(1.0), ADD_REMOVE)
    assert curve.success == pytest.approx(math.e / (1 + math.e), rel=1e-4)
    assert curve.true_positive_rate(0.01) == pytest.approx(0.01 * math.e, rel=2e-2)
    assert tradeoff(Laplace(1.0), ADD_REMOVE).success <= curve.success


def test_an_optimal_attack_on_sampled_releases_stays_below_and_comes_near() -> None:
    rate, sigma, steps, trials = 0.1, 1.0, 20, 40_000
    curve = tradeoff(Repeated(PoissonSampled(rate, Gaussian(sigma)), steps), ADD_REMOVE)
    random = np.random.default_rng(7)

    def losses(member: bool) -> np.ndarray:
        drawn = random.normal(0, sigma, (trials, steps))
        if member:
            drawn += random.random((trials, steps)) < rate
        return np.log1p(rate * np.expm1((drawn - 0.5) / sigma**2)).sum(axis=1)

    without, within = losses(False), losses(True)
    success = max(
        float((within > cut).mean() + (without <= cut).mean()) / 2
        for cut in np.quantile(without, np.linspace(0.05, 0.95, 91))
    )
    error = 3 / math.sqrt(trials)
    assert curve.success - 0.01 - error <= success <= curve.success + error
    for share in (0.01, 0.1):
        found = float((within > np.quantile(without, 1 - share)).mean())
        assert (
            0.85 * curve.true_positive_rate(share) - error
            <= found
            <= curve.true_positive_rate(share) + error
        )


def test_groups_are_easier_to_find_than_one_example() -> None:
    event = Repeated(PoissonSampled(0.01, Gaussian(1.0)), 100)
    one, three = tradeoff(event, ADD_REMOVE), tradeoff(event, ADD_REMOVE, 3)
    assert one.success < three.success < 1
    assert (
        tradeoff(Gaussian(3.0), ADD_REMOVE, 3).success
        == tradeoff(Gaussian(1.0), ADD_REMOVE).success
    )


def test_groups_without_an_event_of_their_own_are_bounded_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--sampling partition --group-size 5`: a bound, consistent with the guarantee, and never
    below the exact one.
    """
    event = Repeated(Partitioned(20, Gaussian(8.0)), 20)
    one = tradeoff(event, ADD_REMOVE)
    for k in (2, 5):
        bound, claim = (
            tradeoff(event, ADD_REMOVE, k),
            accountant.guarantee(event, ADD_REMOVE, 1e-5, k),
        )
        assert one.advantage < bound.advantage <= k * one.advantage
        for rate in (0.001, 0.01, 0.1):
            assert bound.true_positive_rate(rate) <= (1e-5 + math.exp(claim.epsilon) * rate) * 1.05
    sampled = Repeated(PoissonSampled(0.01, Gaussian(1.0)), 100)
    exact = tradeoff(sampled, ADD_REMOVE, 3)
    monkeypatch.setattr(module, "for_group", lambda event, k: None)
    in_steps = tradeoff(sampled, ADD_REMOVE, 3)
    assert all(
        exact.true_positive_rate(rate) <= in_steps.true_positive_rate(rate) for rate in RATES
    )


def test_what_is_said_is_rounded_up_and_names_all_three_figures() -> None:
    text = str(tradeoff(Gaussian(1.0), ADD_REMOVE))
    assert "at most 69.2 % of the time" in text
    assert "9.24 %" in text
    assert "(1.83 %)" in text


def test_what_has_no_guarantee_has_no_curve() -> None:
    with pytest.raises(UnsupportedEvent):
        tradeoff(PoissonSampled(0.1, Gaussian(1.0)), Adjacency.REPLACE_ONE)
    with pytest.raises(BadInput, match="false_positive_rate"):
        tradeoff(Gaussian(1.0), ADD_REMOVE).true_positive_rate(1.5)
