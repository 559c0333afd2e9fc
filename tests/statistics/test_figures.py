"""Golden figures of feature selection and release; each is from a computation of its own (formulas
in the tests).
"""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

import privlearn as pv
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.accountant import guarantee
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, draw_epsilon, gumbel_scale
from privlearn.transforms.select import SelectFeatures
from tests.support.gaussian import gaussian_delta


def test_the_published_constant_beside_the_exact_one() -> None:
    """sqrt(2 ln(1/delta)) / epsilon is more than zero-out needs at epsilon 1, and half of enough
    for replaced rows.
    """
    published = math.sqrt(2 * math.log(1e5))
    assert published == pytest.approx(4.798526, abs=1e-6)
    assert 1 / zcdp.gaussian_mu_for(1.0, 1e-5) == pytest.approx(3.730632, abs=1e-6)
    assert guarantee(Gaussian(published / 2), Adjacency.REPLACE_ONE, 1e-5).epsilon == pytest.approx(
        1.627559, abs=1e-6
    )
    assert gaussian_delta(2 / published, 1.0) == pytest.approx(1.84e-3, rel=5e-3)


def test_gumbel_noise_of_one_shot_selection() -> None:
    epsilon = draw_epsilon(0.1, 50)
    assert epsilon == pytest.approx(0.1264911, abs=1e-7)
    assert gumbel_scale(1 / 500, epsilon) == pytest.approx(0.0316228, abs=1e-7)
    assert gumbel_scale(1 / 500, epsilon) == pytest.approx(math.sqrt(50 / (2 * 0.1)) / 500)
    select = SelectFeatures(
        50, math.sqrt(0.5 / 0.1), 2, 1.0, 1.0, way="gumbel", split=(1e-6, 0.5, 0.5)
    )
    assert select.draw_epsilon == pytest.approx(epsilon)


@pytest.mark.parametrize(("noise", "error"), [(2.0, 0.239750), (0.0, 0.056923)])
def test_the_closed_form_error_of_the_toy_model(noise: float, error: float) -> None:
    """1 - Phi(Psi) with Psi = 1/2 sqrt(sum alpha^2 / (sigma^2 + s^2)), ten features with alpha 1,
    sigma 1.
    """
    assert ndtr(-0.5 * math.sqrt(10 / (1 + noise**2))) == pytest.approx(error, abs=1e-6)


def test_a_ledger_of_three_statistics() -> None:
    """rho 0.01 + 0.10 + 0.05 at delta 1e-5: by the conversion of 2016, the tight one, and
    exactly.
    """
    event = compose(Gaussian(math.sqrt(0.5 / rho)) for rho in (0.01, 0.10, 0.05))
    assert zcdp.rho(event) == pytest.approx(0.16)
    assert zcdp.epsilon_bun_steinke(0.16, 1e-5) == pytest.approx(2.874456, abs=1e-6)
    assert zcdp.epsilon_of_rho(0.16, 1e-5) == pytest.approx(2.484070, abs=1e-6)
    assert guarantee(event, Adjacency.ADD_REMOVE, 1e-5).epsilon == pytest.approx(2.288387, abs=1e-6)
    plan = pv.statistics.FisherPlan(2, 9, 9, 1.0).calibrate(rho=0.16)
    assert plan.guarantee(1e-5).epsilon == pytest.approx(2.288387, rel=3e-3)
    gumbel = pv.statistics.FisherPlan(2, 9, 3, 1.0, 0.1, way="gumbel").calibrate(rho=0.16)
    assert 2.288387 < gumbel.guarantee(1e-5).epsilon <= 2.484070


@pytest.mark.parametrize(("delta", "crossing"), [(1e-3, 6.97804), (1e-5, 7.96809), (1e-6, 8.33939)])
def test_where_the_published_constant_is_too_small(delta: float, crossing: float) -> None:
    def missing(epsilon: float) -> float:
        return (
            1 / zcdp.gaussian_mu_for(epsilon, delta) - math.sqrt(2 * math.log(1 / delta)) / epsilon
        )

    assert brentq(missing, 6.0, 10.0) == pytest.approx(crossing, abs=1e-5)
