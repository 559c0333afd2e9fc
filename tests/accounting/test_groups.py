"""Groups under sampling: the proof's claims by quadrature, another library's figures, laws and
hostile numbers.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from privlearn.core import accounting, schedules
from privlearn.core.accounting import accountant, pld, rdp, zcdp
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import (
    FixedBatches,
    Gaussian,
    GroupSampled,
    Partitioned,
    PoissonSampled,
)
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson
from privlearn.errors import BadInput, UnsupportedEvent
from tests.accounting.checks_groups import mixture_deltas

#: A fifth of these tests run where nothing that prices releases changed.
pytestmark = pytest.mark.one_of(5, accounting)


DELTA = 1e-5


def price(event: Event, k: int, delta: float = DELTA) -> float:
    return accountant.guarantee(event, Adjacency.ADD_REMOVE, delta, k).epsilon


def plane(width: float, reach: float) -> tuple[np.ndarray, np.ndarray, float]:
    """A grid of the plane, its points (n, 2), the standard normal density times the cell's area for
    sigma 1.
    """
    side = np.arange(-reach, reach, width)
    points = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    return points, np.exp(-(points**2).sum(1) / 2) / (2 * math.pi) * width**2, width


def both_deltas(p: np.ndarray, q: np.ndarray, epsilon: float) -> tuple[float, float]:
    g = math.exp(epsilon)
    return float(np.maximum(p - g * q, 0).sum()), float(np.maximum(q - g * p, 0).sum())


@pytest.mark.parametrize("seed", range(12))
def test_vectors_are_dominated_by_numbers(seed: int) -> None:
    """Three independently drawn examples with any clipped gradients in the plane: never worse than
    three equal ones.
    """
    made_up = np.random.default_rng(seed)
    rate, sigma = float(made_up.uniform(0.05, 0.9)), float(made_up.uniform(0.7, 2.5))
    gradients = made_up.normal(size=(3, 2))
    gradients /= (
        np.maximum(1, np.linalg.norm(gradients, axis=1))[:, None]
        if seed % 2
        else np.linalg.norm(gradients, axis=1, keepdims=True)
    )
    points, q, _ = plane(0.08, 12.0)
    p = np.zeros_like(q)
    for drawn in product((0, 1), repeat=3):
        shift = np.array(drawn) @ gradients / sigma
        weight = rate ** sum(drawn) * (1 - rate) ** (3 - sum(drawn))
        p += weight * q * np.exp(points @ shift - shift @ shift / 2)
    for epsilon in (0.0, 0.2, 0.7, 1.5):
        for found, bound in zip(
            both_deltas(p, q, epsilon), mixture_deltas(rate, sigma, 3, epsilon), strict=True
        ):
            assert found <= bound + 1e-6, (rate, sigma, gradients.tolist(), epsilon)


@pytest.mark.parametrize("sigma", [0.8, 1.5, 4.0])
def test_partitions_in_steps_are_never_below_the_pair_that_is_known(sigma: float) -> None:
    """Two examples over two batches of one epoch: multinomial counts, in the plane."""
    points, q, _ = plane(0.06, 12.0)
    p = np.zeros_like(q)
    for bins in product((0, 1), repeat=2):
        shift = np.bincount(bins, minlength=2) / sigma
        p += 0.25 * q * np.exp(points @ shift - shift @ shift / 2)
    event = Partitioned(2, Gaussian(sigma))
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        true = max(both_deltas(p, q, epsilon))
        if true > 1e-6:
            for figure in (accountant.by_pld, accountant.by_rdp):
                assert figure(event, true, 2) >= epsilon - 1e-4, (sigma, epsilon, figure)


def test_fixed_batches_wherever_the_examples_fall() -> None:
    """Three examples of one person over the batches of an epoch: n_b in batch b is a Gaussian of
    sqrt(sum n_b^2).
    """
    claimed = accountant.guarantee(
        FixedBatches(Gaussian(5.0)), Adjacency.ZERO_OUT, DELTA, 3
    ).epsilon
    assert claimed == pytest.approx(zcdp.gaussian_epsilon(3 / 5, DELTA))
    for counts in ((3,), (2, 1), (1, 1, 1)):
        mu = math.sqrt(sum(n**2 for n in counts)) / 5
        assert zcdp.gaussian_epsilon(mu, DELTA) <= claimed * (1 + 1e-12)


@pytest.mark.parametrize(
    ("rate", "sigma", "k", "steps"), [(0.05, 2.0, 4, 20), (0.3, 8.0, 20, 10), (0.7, 3.0, 2, 5)]
)
def test_dp_accounting(rate: float, sigma: float, k: int, steps: int) -> None:
    from dp_accounting.pld import privacy_loss_distribution as peer
    from scipy.stats import binom

    counts = np.arange(k + 1)
    one = peer.from_mixture_gaussian_mechanism(
        sigma,
        counts.astype(float).tolist(),
        binom.pmf(counts, k, rate).tolist(),
        value_discretization_interval=2e-3,
    )
    composed = one.self_compose(steps)
    theirs = (composed._pmf_remove, composed._pmf_add)
    ours = pld.compose_event(
        Repeated(GroupSampled(rate, k, Gaussian(sigma)), steps), negligible=1e-9
    ).epsilons(DELTA)
    for found, pmf in zip(ours, theirs, strict=True):
        assert found == pytest.approx(pmf.get_epsilon_for_delta(DELTA), rel=2e-3)


@pytest.mark.parametrize("k", [2, 8])
def test_example_level_sampling_beside_dp_accounting(k: int) -> None:
    """The same event as its mixture of Gaussians: never below its optimistic figure, and within 1 %
    of the other.
    """
    from dp_accounting.pld import privacy_loss_distribution as peer
    from scipy.stats import binom

    counts = np.arange(k + 1)
    low, high = (
        peer.from_mixture_gaussian_mechanism(
            2.0,
            counts.astype(float).tolist(),
            binom.pmf(counts, k, 0.01).tolist(),
            value_discretization_interval=1e-3,
            pessimistic_estimate=pessimistic,
        )
        .self_compose(100)
        .get_epsilon_for_delta(DELTA)
        for pessimistic in (False, True)
    )
    ours = price(Repeated(PoissonSampled(0.01, Gaussian(2.0)), 100), k)
    assert low <= ours <= 1.01 * high


def test_never_below_monte_carlo() -> None:
    """Ten steps for six examples: delta at several epsilons, from a hundred thousand runs, at five
    standard errors.
    """
    rate, sigma, k, steps, runs = 0.1, 2.0, 6, 10, 100_000
    made_up = np.random.default_rng(0)
    composed = pld.compose_event(
        Repeated(GroupSampled(rate, k, Gaussian(sigma)), steps), negligible=1e-9
    )
    j = np.arange(k + 1)
    weights = np.array([math.comb(k, int(n)) * rate**n * (1 - rate) ** (k - n) for n in j])
    losses = []
    for present in (True, False):
        x = sigma * made_up.standard_normal((runs, steps)) + present * made_up.binomial(
            k, rate, (runs, steps)
        )
        ratio = (weights * np.exp((x[..., None] * j - j**2 / 2) / sigma**2)).sum(-1)
        losses.append(np.log(ratio).sum(1) * (1 if present else -1))
    for epsilon in (0.5, 1.5, 3.0):
        for ours, loss in zip(composed.deltas(epsilon), losses, strict=True):
            gain = np.maximum(0.0, -np.expm1(np.minimum(epsilon - loss, 0.0)))
            error = 5 * gain.std() / math.sqrt(runs)
            assert gain.mean() - error <= ours <= gain.mean() + error + 1e-4


@pytest.mark.parametrize(
    ("rate", "sigma", "steps"), [(0.01, 1.0, 100), (0.2, 5.0, 40), (1e-4, 0.5, 1000)]
)
def test_laws_of_groups(rate: float, sigma: float, steps: int) -> None:
    event = Repeated(PoissonSampled(rate, Gaussian(sigma)), steps)
    assert price(event, 1) == accountant.guarantee(event, Adjacency.ADD_REMOVE, DELTA).epsilon
    assert pld.epsilon(
        Repeated(GroupSampled(rate, 1, Gaussian(sigma)), steps), DELTA
    ) == pytest.approx(price(event, 1), rel=1e-3)
    sizes = (1, 2, 3, 4, 7, 12)
    prices = [price(event, k) for k in sizes]
    assert prices == sorted(prices)
    for k, found in zip(sizes, prices, strict=True):
        for in_steps in (accountant.pld_in_steps, accountant.rdp_in_steps):
            assert found <= in_steps(event, DELTA, k) * (1 + 1e-3)
        # Less is given away by one release of at least one example, and more without sampling.
        once = Repeated(PoissonSampled(-math.expm1(k * math.log1p(-rate)), Gaussian(sigma)), steps)
        assert pld.epsilon(once, DELTA) <= found * (1 + 1e-3)
        assert found <= zcdp.gaussian_epsilon(k * math.sqrt(steps) / sigma, DELTA) * (1 + 1e-3)
        # At least what all of them give away when all are drawn: true with probability rate^k in
        # each step.
        if rate**k > 1e-12 and sigma / k > 0.05:
            together = Repeated(PoissonSampled(rate**k, Gaussian(sigma / k)), steps)
            assert pld.epsilon(together, DELTA) <= found * (1 + 1e-3)
        # The Renyi bound is coarser, and never below.
        assert accountant.by_rdp(event, DELTA, k) >= found * (1 - 1e-3)


def test_renyi_bound_is_above_the_divergence() -> None:
    """Against quadrature of both directions' divergences."""
    for rate, sigma, k in ((0.2, 3.0, 4), (0.7, 2.0, 2), (0.05, 1.0, 6)):
        x = np.linspace(-30 * sigma, 12 * k + 30 * sigma, 200_001)
        j = np.arange(k + 1)
        weights = np.array([math.comb(k, int(n)) * rate**n * (1 - rate) ** (k - n) for n in j])
        log_q = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
        log_r = np.logaddexp.reduce(
            np.log(weights)[:, None] + (np.outer(j, x) - j[:, None] ** 2 / 2) / sigma**2
        )
        bound = rdp.curve(GroupSampled(rate, k, Gaussian(sigma)))
        for order in (1.5, 2.0, 4.0, 8.0):
            at = bound[list(rdp.ORDERS).index(order)]
            for power in (order, 1 - order):
                moment = np.logaddexp.reduce(log_q + power * log_r) + math.log(x[1] - x[0])
                assert moment / (order - 1) <= at * (1 + 1e-9), (rate, sigma, k, order, power)


def test_schedules_and_mixtures_with_other_releases() -> None:
    plan = Plan(Poisson(0.05), epochs=12, schedule=schedules.Exponential(k=0.05), group_size=6)
    plan = plan.calibrate(epsilon=3.0, delta=1e-6)
    assert 3.0 * (1 - 0.003) <= plan.guarantee(1e-6).epsilon <= 3.0
    steps = Repeated(PoissonSampled(0.05, Gaussian(8.0)), 60)
    both = compose([Gaussian(40.0), steps])
    assert (
        max(price(steps, 6), price(Gaussian(40.0), 6))
        < price(both, 6)
        < price(steps, 6) + price(Gaussian(40.0), 6)
    )
    # Neighbouring levels of very many are put together, on the safe side.
    many = compose(PoissonSampled(0.05, Gaussian(8.0 + i / 1000)) for i in range(500))
    few = [Repeated(PoissonSampled(0.05, Gaussian(sigma)), 500) for sigma in (8.5, 8.0)]
    assert price(few[0], 6) <= price(many, 6) <= price(few[1], 6)


@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.5, 0.999999])
@pytest.mark.parametrize("sigma", [0.06, 1.0, 1e3])
@pytest.mark.parametrize("k", [2, 37, 1000])
def test_hostile_groups_get_a_sound_answer(rate: float, sigma: float, k: int) -> None:
    for steps in (1, 10_000):
        event = Repeated(PoissonSampled(rate, Gaussian(sigma)), steps)
        epsilon = price(event, k)
        assert 0 <= epsilon < math.inf
        unsampled = Repeated(Gaussian(sigma), steps)
        # By Renyi DP where there is no distribution: at its least order, 1.1, it is a tenth above
        # the exact curve.
        assert epsilon <= 1.12 * price(unsampled, k) + 1e-9
        assert epsilon >= price(event, 1) * (1 - 1e-3)


def test_what_no_group_can_have() -> None:
    with pytest.raises(BadInput, match="group_size"):
        price(Gaussian(1.0), 0)
    with pytest.raises(BadInput, match="from 1 to"):
        price(Gaussian(1.0), 10_001)
    with pytest.raises(UnsupportedEvent):
        accountant.guarantee(PoissonSampled(0.1, Gaussian(1.0)), Adjacency.REPLACE_ONE, DELTA, 3)
