"""Single terms of the accountants, against sums and limits computed directly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privlearn.core.accounting import accountant, filters, pld, rdp
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, Laplace, PoissonSampled, Selection
from privlearn.core.accounting.trees import Filter, GaussianFilter


@pytest.mark.parametrize("categories", [2, 3, 4, 10])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
def test_the_renyi_divergence_of_randomised_response(categories: int, epsilon: float) -> None:
    """The sum over all answers, of two inputs' laws."""
    first = np.full(categories, 1.0)
    first[0] = math.exp(epsilon)
    first /= first.sum()
    second = np.roll(first, 1)
    orders = np.array([1.5, 2.0, 7.0, 40.0])
    sums = np.array(
        [math.log((first**order * second ** (1 - order)).sum()) / (order - 1) for order in orders]
    )
    np.testing.assert_allclose(
        rdp.randomised_response(epsilon, categories, orders), sums, rtol=1e-10
    )


@pytest.mark.parametrize(
    "event",
    [
        Repeated(PoissonSampled(0.1, Gaussian(2.0)), 3),
        compose([Laplace(1.0), Gaussian(3.0)]),
        Laplace(0.5),
    ],
)
def test_a_curve_is_what_it_is_at_single_epsilons(event: Event) -> None:
    """Also beyond the grid, where only mass at infinity is left."""
    composed = pld.compose_event(event)
    ends = (float(composed.losses[0]), float(composed.losses[-1]))
    epsilons = np.array([ends[0] - 1, ends[0], 0.0, 0.1, 1.0, ends[1], ends[1] + 1e-9, ends[1] + 2])
    single = [max(composed.deltas(epsilon)) for epsilon in epsilons.tolist()]
    # A curve adds what rounding may do to its running sums, which was not counted when this was
    # 1e-15.
    np.testing.assert_allclose(composed.curve(epsilons), single, rtol=1e-9, atol=1e-13)
    assert composed.curve(epsilons)[-1] <= max(composed.p_inf, composed.q_inf) * (1 + 1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_what_k_steps_multiply_delta_by(k: int) -> None:
    for epsilon in (0.0, 0.3, 2.0):
        total = sum(math.exp(epsilon * step) for step in range(k))
        assert accountant.log_growth(epsilon, k) == pytest.approx(
            math.log(total), rel=1e-12, abs=1e-15
        )


@pytest.mark.parametrize(
    "event",
    [
        compose([Selection(0.3), PoissonSampled(0.01, Gaussian(1.0))]),
        compose([Repeated(Selection(0.05), 400), Gaussian(3.0)]),
        Repeated(PoissonSampled(0.01, Gaussian(1.0)), 50),
    ],
)
def test_the_bound_for_searches_is_the_figure_that_is_stated(event: Event) -> None:
    """Also where a selection is composed with a release that has no zCDP."""
    stated = accountant.guarantee(event, Adjacency.ADD_REMOVE, 1e-6).epsilon
    assert stated <= accountant.epsilon_bound(event, Adjacency.ADD_REMOVE, 1e-6) <= stated * 1.001


def test_limits_are_named_by_their_measure() -> None:
    assert filters.described(Filter(0.5)).startswith("zCDP, at most rho 0.5")
    assert filters.described(GaussianFilter(0.5)).startswith("Gaussian DP, at most mu 1")
    assert filters.described(Filter(None, (8.0,), (0.25,))).startswith(
        "Renyi DP at order 8, at most 0.25"
    )
