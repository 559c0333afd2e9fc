"""Single figures with a source [maths], to their tolerance."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq

from privlearn.core.accounting import accountant, comparisons, events, pld, rdp, zcdp
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import (
    FixedBatches,
    Gaussian,
    PoissonSampled,
    Selection,
    draw_epsilon,
    gumbel_scale,
)
from privlearn.core.plan import Plan
from privlearn.core.sampling import Shuffle
from privlearn.core.schedules import Constant


def test_renyi_divergence_of_a_hundred_sampled_steps() -> None:
    """q = 0.01, sigma = 6, order 10: 1.4115369e-3."""
    curve = rdp.curve(Repeated(PoissonSampled(0.01, Gaussian(6.0)), 100))
    assert curve[list(rdp.ORDERS).index(10.0)] == pytest.approx(1.4115369e-3, rel=1e-6)


def test_uniform_noise_for_38_epochs() -> None:
    """sqrt(T / (2 rho)) = 4.93153 spends rho 0.78125 in 38 epochs (Yu et al. 2019, Table II, last
    row).
    """
    plan = Plan(Shuffle(600), epochs=38, schedule=Constant()).calibrate(rho=0.78125)
    assert plan.schedule.start == pytest.approx(4.931531, rel=2e-3)
    assert plan.schedule.start >= 4.931531 * (1 - 1e-6)


def test_the_classical_noise_is_too_small_beyond_a_crossing() -> None:
    """sigma = sqrt(2 ln(1/delta)) / epsilon falls below the exact noise at 6.97804, 7.96809 and
    8.33939.
    """
    for delta, crossing in ((1e-3, 6.97804), (1e-5, 7.96809), (1e-6, 8.33939)):
        gap = lambda eps, d=delta: (  # noqa: E731
            math.sqrt(2 * math.log(1 / d)) / eps - 1 / zcdp.gaussian_mu_for(eps, d)
        )
        assert brentq(gap, 5.0, 12.0) == pytest.approx(crossing, abs=1e-4)


def test_noise_for_half_the_sensitivity_gives_more_away() -> None:
    """The classical noise for (1, 1e-5) with half the sensitivity that replace-one needs: epsilon
    1.627559.
    """
    sigma = math.sqrt(2 * math.log(1e5))
    assert sigma == pytest.approx(4.798526, abs=1e-6)
    assert Adjacency.REPLACE_ONE.sum_sensitivity(1.0) == 2.0
    assert zcdp.gaussian_epsilon(2 / sigma, 1e-5) == pytest.approx(1.627559, abs=1e-5)


def test_one_shot_gumbel() -> None:
    """Sensitivity 1/500, m = 50, rho = 0.1: epsilon 0.1264911 a draw, scale 0.0316228."""
    epsilon = draw_epsilon(0.1, 50)
    assert epsilon == pytest.approx(0.1264911, abs=1e-7)
    assert gumbel_scale(1 / 500, epsilon) == pytest.approx(0.0316228, abs=1e-7)
    assert zcdp.rho(Repeated(Selection(epsilon), 50)) == pytest.approx(0.1)


def test_a_realised_divisor_would_give_away_its_scale() -> None:
    """The noise scale alone tells 600 from 601 rows by 0.277624 nats a step at 1e5 parameters:
    divisors are public.
    """
    ratio = 601 / 600
    assert 1e5 / 2 * (ratio**2 - 1 - 2 * math.log(ratio)) == pytest.approx(0.277624, abs=1e-6)
    for examples in (599, 600, 601):
        assert (
            Shuffle(600).expected_batch_size(10**6)
            == 600
            == Shuffle(600).expected_batch_size(examples + 1000)
        )


@pytest.mark.parametrize(
    ("sigma", "batches", "count"), [(0.3, 100, 3), (0.2, 10_000, 3), (0.3, 2, 30), (0.5, 100, 20)]
)
def test_a_lower_bound_stays_below_the_upper_one(sigma: float, batches: int, count: int) -> None:
    event = Repeated(FixedBatches(Gaussian(sigma)), count)
    least = comparisons.lower_bound(event, batches, Adjacency.ZERO_OUT, 1e-5)
    assert 0 < least < zcdp.gaussian_epsilon(math.sqrt(count) / sigma, 1e-5)


def test_hardly_any_noise_has_a_finite_price() -> None:
    for sigma in (1e-6, 1e-4, 0.01, 0.03):
        found = accountant.guarantee(
            PoissonSampled(0.01, Gaussian(sigma)), Adjacency.ADD_REMOVE, 1e-5
        ).epsilon
        assert 0.5 / sigma**2 * 0.9 < found < math.inf


def test_many_noise_levels_are_priced_from_above(monkeypatch: pytest.MonkeyPatch) -> None:
    event = compose(PoissonSampled(0.01, Gaussian(5 * math.exp(-0.002 * i))) for i in range(500))
    few = pld.epsilon(event, 1e-5), rdp.epsilon(event, 1e-5)
    monkeypatch.setattr(events, "_MOST", 1000)
    for coarse, fine in zip(few, (pld.epsilon(event, 1e-5), rdp.epsilon(event, 1e-5)), strict=True):
        assert fine <= coarse <= fine * 1.01
