"""Named checks of the accounting, beside those of the spine in checks.py; mutations must make them
fail.
"""

from __future__ import annotations

import math

import numpy as np

from privlearn.core import schedules
from privlearn.core.accounting import accountant, comparisons, pld, rdp, searches, zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Repeated, compose, from_json, to_json
from privlearn.core.accounting.filters import PrivacyFilter
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import (
    ZCDP,
    FixedBatches,
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    Selection,
)
from privlearn.core.accounting.trees import Filter, Parallel
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson, Shuffle
from privlearn.core.schedules import Decay
from privlearn.errors import BadInput, BudgetExceeded, UnsupportedEvent
from tests.support.checks import check, must_raise
from tests.support.registries import completed

SAMPLED = Repeated(PoissonSampled(0.01, Gaussian(6.0)), 40_000)


@check
def check_partitions_have_their_golden_prices() -> None:
    for batches, sigma, epochs, remove, add in (
        (100, 1.0, 10, 1.70152, 1.54777),
        (100, 0.6, 5, 5.26771, 2.57785),
        (10, 0.5, 2, 10.87980, 5.55926),
        (234, 1.3, 20, 0.98364, 0.96994),
    ):
        composed = pld.compose_event(
            Repeated(Partitioned(batches, Gaussian(sigma)), epochs), negligible=1e-8
        )
        for found, gold in zip(composed.epsilons(1e-5), (remove, add), strict=True):
            assert gold * (1 - 5e-4) <= found <= gold * 1.004
        assert composed.epsilon(1e-5) >= remove * (1 - 5e-4)


@check
def check_sampling_has_its_golden_prices() -> None:
    """The larger direction, between another accountant's optimistic and pessimistic figures."""
    assert 1.2825 <= pld.epsilon(SAMPLED, 1e-5) <= 1.2845
    assert 1.826 <= pld.epsilon(Repeated(PoissonSampled(0.01, Gaussian(1.0)), 1000), 1e-5) <= 1.831
    mixed = compose([Gaussian(4.0), Repeated(Partitioned(100, Gaussian(4.0)), 60)])
    assert 1.2044 <= pld.epsilon(mixed, 1e-5) <= 1.2104


@check
def check_epsilon_is_never_below_the_exact_gaussian_for_mixtures() -> None:
    """Plain releases, shuffled epochs and one-batch partitions are the same Gaussians, and add
    up.
    """
    event = compose(
        [
            Repeated(Gaussian(5.0), 7),
            Repeated(Partitioned(1, Gaussian(5.0)), 9),
            PoissonSampled(1.0, Gaussian(5.0)),
        ]
    )
    assert pld.epsilon(event, 1e-5) >= zcdp.gaussian_epsilon(math.sqrt(17) / 5, 1e-5)


@check
def check_masses_are_kept() -> None:
    """A pair's Q-mass is 1, and so is its P-mass: nothing is lost on the grid."""
    from privlearn.core.accounting.pld import partition

    pairs = [partition._by_doubling(t, s, 1e-3, 1e-3) for t, s in ((2, 0.5), (10, 0.6), (100, 1.0))]
    pairs += [partition._by_fourier(t, s, 1e-4, 1e-9) for t, s in ((16, 0.8), (100, 2.0))]
    for pair in pairs:
        assert abs(pair.q.sum() + pair.q0 - 1) < 1e-8
        assert abs((pair.q * np.exp(pair.losses)).sum() + pair.p_inf - 1) < 1e-8


@check
def check_renyi_divergences_of_sampling() -> None:
    """q = 0.06, sigma = 1: exact values at whole and fractional orders (quadrature to 30
    digits).
    """
    curve = rdp.curve(PoissonSampled(0.06, Gaussian(1.0)))
    for order, exact in (
        (1.5, 0.004359950),
        (2.0, 0.006166761),
        (3.0, 0.010668604),
        (3.7, 0.015001033),
    ):
        found = curve[list(rdp.ORDERS).index(order)]
        assert math.isclose(found, exact, rel_tol=1e-5), (order, found)


@check
def check_renyi_prices() -> None:
    assert math.isclose(rdp.epsilon(SAMPLED, 1e-5), 1.39985, rel_tol=2e-3)
    assert math.isclose(rdp.epsilon_by_moments(SAMPLED, 1e-5), 1.670472, rel_tol=1e-4)
    assert rdp.epsilon(SAMPLED, 1e-5) >= pld.epsilon(SAMPLED, 1e-5)


@check
def check_renyi_is_never_below_the_truth() -> None:
    for leaf in (
        Gaussian(2.0),
        Gaussian(0.2),
        PoissonSampled(0.3, Gaussian(0.15)),
        PoissonSampled(0.01, Gaussian(0.1)),
    ):
        for times in (1, 20):
            event = Repeated(leaf, times)
            assert rdp.epsilon(event, 1e-5) >= pld.epsilon(event, 1e-5) * (1 - 1e-2)


@check
def check_conversions_of_rho() -> None:
    assert math.isclose(zcdp.epsilon_bun_steinke(0.16, 1e-5), 2.874456, abs_tol=1e-5)
    assert math.isclose(zcdp.epsilon_of_rho(0.16, 1e-5), 2.484070, abs_tol=1e-5)
    assert math.isclose(zcdp.gaussian_epsilon(math.sqrt(0.32), 1e-5), 2.288387, abs_tol=1e-5)


@check
def check_estimates_are_never_claimed() -> None:
    found = accountant.estimates(SAMPLED, Adjacency.ADD_REMOVE, 1e-5)
    assert [row.kind for row in found] == ["estimate"]
    assert math.isclose(found[0].epsilon, 2.373158, abs_tol=1e-5)
    assert all(
        row.kind == "bound" for row in accountant.guarantees(SAMPLED, Adjacency.ADD_REMOVE, 1e-5)
    )
    must_raise(
        UnsupportedEvent, lambda: comparisons.epsilon(PoissonSampled(0.01, Gaussian(1.1)), 1e-5)
    )
    must_raise(
        UnsupportedEvent, lambda: comparisons.epsilon(PoissonSampled(0.05, Gaussian(2.0)), 1e-5)
    )


@check
def check_disjoint_blocks_cost_their_maximum() -> None:
    blocks = Parallel((Gaussian(2.0), Repeated(Gaussian(3.0), 4), Gaussian(8.0)))
    assert math.isclose(zcdp.rho(blocks), 4 / 18)
    assert math.isclose(rdp.epsilon(blocks, 1e-5), rdp.epsilon(Repeated(Gaussian(3.0), 4), 1e-5))
    must_raise(UnsupportedEvent, lambda: accountant.guarantee(blocks, Adjacency.REPLACE_ONE, 1e-5))


@check
def check_selection_costs_an_eighth() -> None:
    """The exact Renyi divergence of a two-score exponential mechanism stays below the price, and
    nearly attains it.
    """
    epsilon = 0.5
    for order in (1.5, 2.0, 10.0):
        worst = 0.0
        for shift in np.linspace(0, 1, 41):
            logits = np.array([[0.0, 0.0], [shift * epsilon, (shift - 1) * epsilon]])
            for tilt in np.linspace(-3, 3, 61):
                p, q = (np.exp(row) / np.exp(row).sum() for row in logits + np.array([tilt, 0.0]))
                worst = max(worst, float(np.log((p**order * q ** (1 - order)).sum()) / (order - 1)))
        price = rdp.curve(Selection(epsilon))[list(rdp.ORDERS).index(order)]
        assert 0.75 * price <= worst <= price * (1 + 1e-9)
    assert math.isclose(zcdp.rho(Selection(epsilon)), epsilon**2 / 8)
    assert math.isclose(zcdp.rho(PureDP(epsilon)), epsilon**2 / 2)


@check
def check_laplace_is_priced_exactly() -> None:
    """delta(e) of one Laplace release is 1 - e^{(e - 1/b)/2}."""
    for b in (0.5, 2.0, 10.0):
        for epsilon in (0.0, 0.3 / b, 0.9 / b):
            for found in pld.compose_event(Laplace(b)).deltas(epsilon):
                assert math.isclose(
                    found, 1 - math.exp((epsilon - 1 / b) / 2), rel_tol=2e-2, abs_tol=1e-8
                )
                assert found >= 1 - math.exp((epsilon - 1 / b) / 2) - 1e-12


@check
def check_filters_hold_their_limit() -> None:
    ledger = Ledger()
    limit = PrivacyFilter(ledger, Filter(0.5), Adjacency.ADD_REMOVE)
    assert zcdp.rho(ledger.event) == 0.5
    for _ in range(9):
        limit.charge(Gaussian(3.0), Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: limit.charge(Gaussian(3.0), Adjacency.ADD_REMOVE))
    ledger, step = Ledger(), PoissonSampled(0.02, Gaussian(1.0))
    at = rdp.curve(step)[list(rdp.ORDERS).index(8.0)]
    renyi = PrivacyFilter(ledger, Filter(None, (8.0,), (5.5 * at,)), Adjacency.ADD_REMOVE)
    assert accountant.guarantee(ledger.event, Adjacency.ADD_REMOVE, 1e-5).epsilon > 0
    both = PrivacyFilter(Ledger(), Filter(None, (4.0, 8.0), (99.0, 2.5 * at)), Adjacency.ADD_REMOVE)
    both.charge(Repeated(step, 2), Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: both.charge(step, Adjacency.ADD_REMOVE))
    for _ in range(5):
        renyi.charge(step, Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: renyi.charge(step, Adjacency.ADD_REMOVE))
    curve = rdp.curve(ledger.event)
    assert np.isinf(curve[rdp.ORDERS > 8.0]).all()


@check
def check_groups_pay_for_their_size() -> None:
    for k in (2, 5):
        gaussian = accountant.guarantee(Gaussian(4.0), Adjacency.ADD_REMOVE, 1e-5, k).epsilon
        assert math.isclose(gaussian, zcdp.gaussian_epsilon(k / 4, 1e-5))
        event = ZCDP(0.01)
        assert math.isclose(
            accountant.guarantee(event, Adjacency.ADD_REMOVE, 1e-5, k).epsilon,
            zcdp.epsilon_of_rho(0.01 * k**2, 1e-5),
        )
        # k examples are at least one Gaussian of k times the sensitivity at the same rate, all or
        # none of them drawn.
        sampled = Repeated(PoissonSampled(0.5, Gaussian(20.0)), 10)
        together = Repeated(PoissonSampled(0.5**k, Gaussian(20.0 / k)), 10)
        assert accountant.by_pld(sampled, 1e-5, k) >= pld.epsilon(together, 1e-5)
        assert accountant.by_rdp(sampled, 1e-5, k) >= pld.epsilon(together, 1e-5)
        assert accountant.by_pld(Repeated(Gaussian(20.0), 10), 1e-5, k) >= zcdp.gaussian_epsilon(
            k * math.sqrt(10) / 20, 1e-5
        )


@check
def check_shufflings_interval_is_honest() -> None:
    event = Repeated(FixedBatches(Gaussian(1.0)), 10)
    least = comparisons.lower_bound(event, 100, Adjacency.ZERO_OUT, 1e-5)
    sound = accountant.guarantee(event, Adjacency.ZERO_OUT, 1e-5).epsilon
    assert 9.35 <= least <= 9.37
    assert 17.85 <= sound <= 17.87
    must_raise(
        UnsupportedEvent, lambda: comparisons.lower_bound(event, 100, Adjacency.ADD_REMOVE, 1e-5)
    )


@check
def check_what_is_solved_for_never_overshoots() -> None:
    budget = Budget(rho=0.78125)
    for spec in completed(
        "schedules", ("time", "exp", "step:period=10", "poly:end=2,period=100"), Decay
    ):
        shape = schedules.parse(spec, free_rate=True)
        plan = Plan(Shuffle(600), epochs=60, schedule=shape).with_rate(budget)
        assert 0.78125 * (1 - 0.003) <= zcdp.rho(plan.event()) <= 0.78125
    assert [
        searches.largest(lambda n, top=top: n <= top, 1000) for top in (0, 1, 2, 7, 8, 1000)
    ] == [
        0,
        1,
        2,
        7,
        8,
        1000,
    ]
    target = Budget(epsilon=1.5, delta=1e-5)
    plan = Plan(Poisson(0.01), epochs=10, schedule=schedules.Constant(1.2)).with_batch_size(
        target, 5000
    )
    assert plan.guarantee(1e-5).epsilon <= 1.5


@check
def check_filters_are_of_one_kind() -> None:
    """Either rho, or as many bounds as orders: anything else is refused where it is made, and where
    it is read.
    """
    for rho, orders, bounds in (
        (None, (), ()),
        (0.1, (2.0,), (0.1,)),
        (None, (2.0, 3.0), (0.1,)),
        (None, (2.0,), ()),
        (0.1, (), (0.1,)),
        (None, (1.0,), (0.1,)),
        (0.0, (), ()),
    ):
        must_raise(BadInput, lambda made=(rho, orders, bounds): Filter(*made))  # type: ignore[misc]
        written = {"kind": "filter", "rho": rho, "orders": list(orders), "bounds": list(bounds)}
        must_raise(BadInput, lambda written=written: from_json(written))  # type: ignore[misc]
    for made in (Filter(0.1), Filter(None, (2.0,), (0.1,))):
        assert from_json(to_json(made)) == made
