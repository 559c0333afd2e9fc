"""The Renyi divergence of a Poisson-sampled Gaussian, against the binomial sum in 40 digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from privlearn.core.accounting import rdp
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.errors import BadInput


def exact(rate: float, sigma: float, order: int) -> float:
    with mpmath.workdps(40):
        q, s = mpmath.mpf(rate), mpmath.mpf(sigma)
        terms = (
            mpmath.binomial(order, k)
            * (1 - q) ** (order - k)
            * q**k
            * mpmath.exp(k * (k - 1) / (2 * s**2))
            for k in range(order + 1)
        )
        return float(mpmath.log(mpmath.fsum(terms)) / (order - 1))


@pytest.mark.parametrize(
    ("rate", "sigma", "order"),
    [
        (0.06, 1.0, 2),
        (0.01, 4.0, 100),
        (0.01, 4.0, 147),
        (0.01, 4.0, 300),
        (1e-3, 30.0, 3000),
        (1e-4, 30.0, 50),
        (0.01, 0.3, 11),
        (0.01, 0.2, 10),
        (0.01, 0.05, 9),
        (0.5, 0.1, 30),
    ],
)
def test_divergence(rate: float, sigma: float, order: int) -> None:
    assert float(rdp.divergence(rate, sigma, order)) == pytest.approx(
        exact(rate, sigma, order), rel=1e-11
    )


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1, 0.15, 0.2, 0.28, 0.5, 2.0])
def test_the_curve_rises_with_the_order_at_any_noise(sigma: float) -> None:
    """Fractional and whole orders are computed apart: a hole in either is a guarantee that does not
    hold.
    """
    assert np.all(np.diff(rdp.curve(PoissonSampled(0.01, Gaussian(sigma)))) > 0)


def test_little_noise_costs_much() -> None:
    """One release out of 100 at sigma 0.1 has delta(60) = 6e-4, so no epsilon up to 60 holds at
    1e-5.
    """
    assert rdp.epsilon(PoissonSampled(0.01, Gaussian(0.1)), 1e-5) > 60


def test_an_unknown_divergence_is_no_guarantee() -> None:
    assert rdp.epsilon_of_curve(np.full_like(rdp.ORDERS, np.nan), 1e-5) == np.inf


def test_refusals() -> None:
    for rate, sigma, order in ((0.0, 1.0, 2.0), (0.1, 0.0, 2.0), (0.1, 1.0, 1.0)):
        with pytest.raises(BadInput):
            rdp.divergence(rate, sigma, order)
    assert rdp.divergence(1.0, 2.0, [2.0, 3.0]).tolist() == [0.25, 0.375]


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_group_that_is_sampled_costs_no_more_than_one_that_is_always_there(
    rate: float, k: int
) -> None:
    always = rdp.ORDERS * k**2 / (2 * 1.5**2)
    assert (rdp.sampled_group(rate, k, 1.5, rdp.ORDERS) <= always * (1 + 1e-9)).all()
