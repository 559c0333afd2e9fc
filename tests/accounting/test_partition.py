"""Balls in bins: golden figures [maths], delta 1e-5 unless said, and a Monte Carlo estimate as
independent oracle.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from privlearn.core import accounting
from privlearn.core.accounting import accountant, comparisons, pld, zcdp
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, Partitioned, PoissonSampled
from privlearn.core.accounting.pld import partition
from privlearn.core.accounting.pld.partition import _by_doubling, _by_fourier
from privlearn.core.plan import Plan
from privlearn.core.sampling import Partition, Poisson
from privlearn.core.schedules import Exponential, Schedule, Step

#: A fifth of these tests run where nothing that prices releases changed.
pytestmark = pytest.mark.one_of(5, accounting)


@pytest.mark.parametrize(
    ("steps", "times", "epsilon", "saved"),
    [(100, 10, 2.0, 0.060), (100, 10, 8.0, 0.071), (1000, 10, 8.0, 0.027)],
)
def test_partitions_need_less_noise_than_poisson_batches(
    steps: int, times: int, epsilon: float, saved: float
) -> None:
    """Each example in exactly `times` of `steps`: one of them in each epoch."""
    partition, poisson = (
        Plan(sampler, epochs=times).calibrate(epsilon=epsilon, delta=1e-5).noise_multipliers()[0]
        for sampler in (Partition(steps // times), Poisson(times / steps))
    )
    assert 1 - partition / poisson == pytest.approx(saved, abs=0.002)


def epochs(batches: int, sigma: float, count: int) -> Repeated:
    return Repeated(Partitioned(batches, Gaussian(sigma)), count)


#: (batches, sigma, epochs, remove, add); a run is accepted in [g (1 - 5e-4), g 1.004].
GOLD = [
    (100, 6.0, 400, 1.28084, 1.28079),
    (100, 1.0, 10, 1.70152, 1.54777),
    (100, 2.0, 60, 1.61100, 1.60660),
    (234, 1.3, 20, 0.98364, 0.96994),
    (100, 0.6, 5, 5.26771, 2.57785),
    (100, 0.6, 1, 3.43169, 0.95689),
    (100, 0.4, 1, 8.60249, 2.05769),
    (1000, 0.5, 1, 3.13453, 0.49762),
    (10, 0.5, 2, 10.87980, 5.55926),
    (2, 1.0, 1, 3.69744, 3.07978),
    (10000, 0.6, 10, 0.60189, 0.39874),
    (1000, 50.0, 400, 0.03535, 0.03535),
    (60, 4.0, 200, 1.83190, 1.83151),
    (16, 1.0, 30, 8.7413, 7.955),
]


@pytest.mark.parametrize(("batches", "sigma", "count", "remove", "add"), GOLD)
def test_golden_epsilons(batches: int, sigma: float, count: int, remove: float, add: float) -> None:
    found = pld.compose_event(epochs(batches, sigma, count), negligible=1e-8).epsilons(1e-5)
    for one, gold in zip(found, (remove, add), strict=True):
        assert gold * (1 - 5e-4) <= one <= gold * 1.004
    assert pld.epsilon(epochs(batches, sigma, count), 1e-5) == max(found)


@pytest.mark.parametrize(
    ("batches", "sigma", "count", "low", "high"),
    [
        (100, 1.0, 10, 1.664, 1.740),
        (100, 2.0, 60, 1.578, 1.647),
        (234, 1.3, 20, 0.964, 1.006),
        (100, 0.6, 5, 5.230, 5.307),
    ],
)
def test_inside_the_intervals_of_the_authors_own_package(
    batches: int, sigma: float, count: int, low: float, high: float
) -> None:
    assert low <= pld.epsilon(epochs(batches, sigma, count), 1e-5) <= high


def test_golden_deltas() -> None:
    found = pld.compose_event(epochs(100, 1.0, 10))
    assert found.deltas(0.5) == pytest.approx((0.029154, 0.026937), rel=1e-2)
    assert found.deltas(1.7) == pytest.approx((1.0131e-5, 1.838e-6), rel=1e-2)
    found = pld.compose_event(epochs(100, 6.0, 1))
    assert found.deltas(0.02) == pytest.approx((9.6748e-4, 9.6686e-4), rel=1e-2)
    assert found.deltas(0.05) == pytest.approx((7.0908e-6, 7.0533e-6), rel=1e-2)


def test_one_batch_is_the_gaussian() -> None:
    for sigma in (0.5, 1.0, 7.0):
        for count in (1, 9):
            exact = zcdp.gaussian_epsilon(math.sqrt(count) / sigma, 1e-5)
            assert exact <= pld.epsilon(epochs(1, sigma, count), 1e-5) <= exact * 1.0005


def test_mixed_with_a_gaussian_release() -> None:
    event = compose([Gaussian(4.0), epochs(100, 4.0, 60)])
    assert pld.epsilon(event, 1e-5) == pytest.approx(1.2074, abs=3e-3)
    assert pld.epsilon(epochs(100, 4.0, 60), 1e-5) == pytest.approx(0.7127, abs=3e-3)


def test_renyi_divergence_read_from_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remove direction's divergences: 2.816321e-4, 1.4081901e-3, 4.2247930e-3 at orders 2, 10,
    30; and t = 2.
    """

    monkeypatch.setattr(partition, "_GAMMA", 0.02)

    def divergence(batches: int, sigma: float, order: int) -> float:
        pair = _by_doubling(batches, sigma, 2.0**-16 if batches > 2 else 2.0**-12, 1e-300)
        return float(np.log(pair.q @ np.exp(order * pair.losses)) / (order - 1))

    for order, gold in ((2, 2.816321e-4), (30, 4.2247930e-3)):
        assert gold * (1 - 1e-6) <= divergence(100, 6.0, order) <= gold * (1 + 5e-4)
    assert divergence(2, 1.3, 2) == pytest.approx(math.log((math.exp(1 / 1.69) + 1) / 2), rel=5e-4)


def test_the_two_ways_of_adding_up_agree() -> None:
    for batches, sigma in ((16, 0.8), (100, 1.0), (100, 3.0), (777, 1.5)):
        pairs = [build(batches, sigma, 1e-4, 1e-9) for build in (_by_doubling, _by_fourier)]
        found = [pld.compose([pair], [20], 1e-9).epsilons(1e-5) for pair in pairs]
        assert found[0] == pytest.approx(found[1], rel=2e-3)


def test_monotone_in_noise_and_batches() -> None:
    for batches, sigma in ((10, 0.5), (100, 1.0), (1000, 0.7)):
        here = pld.epsilon(epochs(batches, sigma, 5), 1e-5)
        assert pld.epsilon(epochs(batches, sigma * 0.99, 5), 1e-5) > here
        assert pld.epsilon(epochs(int(0.96 * batches), sigma, 5), 1e-5) >= here * (1 - 1e-4)


@pytest.mark.parametrize(
    ("batches", "sigma", "count"),
    [(2, 1.0, 1), (3, 0.8, 2), (10, 0.5, 1), (100, 1.0, 2), (16, 2.0, 5)],
)
def test_never_below_monte_carlo(batches: int, sigma: float, count: int) -> None:
    """Both directions by importance sampling; a bound below the estimate by five standard errors
    fails.
    """
    draws, made_up = 40_000, np.random.default_rng(batches)
    composed = pld.compose_event(epochs(batches, sigma, count))

    def losses(present: bool) -> np.ndarray:
        total = np.zeros(draws)
        for _ in range(count):
            z = made_up.standard_normal((draws, batches)) / sigma - 0.5 / sigma**2
            if present:
                z[:, 0] += 1 / sigma**2
            top = z.max(1)
            total += top + np.log(np.exp(z - top[:, None]).mean(1))
        return total

    removed, added = losses(True), -losses(False)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        for bound, loss in zip(composed.deltas(epsilon), (removed, added), strict=True):
            gain = np.maximum(-np.expm1(epsilon - loss), 0.0)
            assert bound >= gain.mean() - 5 * gain.std() / math.sqrt(draws)
            if gain.mean() > 0.01:
                assert bound <= gain.mean() + 5 * gain.std() / math.sqrt(draws) + 2e-3 * bound


CALIBRATED: list[tuple[Schedule, float]] = [
    (Exponential(k=0.01), 3.8234),
    (Exponential(k=0.02), 8.1176),
    (Step(k=0.8, period=10), 8.8172),
]


@pytest.mark.parametrize(("schedule", "start"), CALIBRATED)
def test_schedules_calibrated_under_partition(schedule: Schedule, start: float) -> None:
    plan = Plan(Partition(100), epochs=100, schedule=schedule).calibrate(epsilon=2.0, delta=1e-5)
    assert plan.schedule.start == pytest.approx(start, rel=3e-3)
    assert 1.994 <= plan.guarantee(1e-5).epsilon <= 2.0


def test_poisson_is_no_bound_for_partitions() -> None:
    """At t = 100, sigma = 0.6, one epoch: Poisson sampling with q = 1/t has a smaller delta(0.07)
    than a partition.
    """
    sampled = pld.compose_event(Repeated(PoissonSampled(0.01, Gaussian(0.6)), 100))
    divided = pld.compose_event(epochs(100, 0.6, 1))
    assert max(sampled.deltas(0.07)) == pytest.approx(0.09672, rel=2e-3)
    assert max(divided.deltas(0.07)) == pytest.approx(0.10171, abs=6e-4)


@pytest.mark.parametrize(
    ("sigma", "batches", "count", "least", "exact", "by_zcdp"),
    [
        (1.0, 100, 10, 9.36, 17.857, 20.174),
        (2.0, 100, 60, 2.07, 23.346, 26.085),
        (1.3, 234, 20, 3.57, 19.941, 22.425),
        (0.6, 100, 5, 21.58, 22.175, 24.828),
    ],
)
def test_the_interval_for_shuffling(
    sigma: float, batches: int, count: int, least: float, exact: float, by_zcdp: float
) -> None:
    event = Repeated(FixedBatches(Gaussian(sigma)), count)
    assert comparisons.lower_bound(event, batches, Adjacency.ZERO_OUT, 1e-5) == pytest.approx(
        least, abs=6e-3
    )
    mu = zcdp.gaussian_mu(event)
    assert mu is not None
    assert zcdp.gaussian_epsilon(mu, 1e-5) == pytest.approx(exact, abs=1e-3)
    assert zcdp.epsilon_bun_steinke(zcdp.rho(event), 1e-5) == pytest.approx(by_zcdp, abs=1e-3)


@pytest.mark.parametrize(
    ("sigma", "batches", "least"), [(0.6, 100, 8.002), (0.4, 100, 13.207), (0.5, 1000, 9.997)]
)
def test_shufflings_lower_bound_over_one_epoch(sigma: float, batches: int, least: float) -> None:
    """Chua et al. 2024, in closed form."""
    event = FixedBatches(Gaussian(sigma))
    assert comparisons.lower_bound(event, batches, Adjacency.ZERO_OUT, 1e-5) == pytest.approx(
        least, abs=3e-3
    )


def test_hostile_partitions() -> None:
    for batches in (1, 2, 10_000):
        for sigma in (0.3, 0.4, 1e4):
            for delta in (1e-5, 1e-15):
                found = accountant.guarantee(
                    epochs(batches, sigma, 3), Adjacency.ADD_REMOVE, delta
                ).epsilon
                assert 0 <= found <= zcdp.epsilon_of_rho(1.5 / sigma**2, delta) * (1 + 1e-9)
