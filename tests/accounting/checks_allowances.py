"""Named checks of what makes the accounting safe: mass at infinity, tails, rounding; mutations must
make them fail.

Most of these terms are far too small to move a figure, so that no golden figure notices when one is
lost. Here each is made large: by compositions written by hand, whose truth is known, and by coarse
tails.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom

from privlearn.core.accounting import accountant, filters, pld, rdp, zcdp
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.mechanisms import (
    Gaussian,
    GroupSampled,
    Laplace,
    Partitioned,
    PoissonSampled,
)
from privlearn.core.accounting.pld import pairs, partition
from privlearn.core.accounting.pld.pairs import Pair, atoms, poisson_pair
from privlearn.errors import BadInput
from privlearn_studies.yu2019.accounting import strong_composition
from tests.support.checks import check, must_raise
from tests.support.gaussian import gaussian_delta


def ratios_by_hand(h: float = 0.1) -> Pair:
    """Ten ratios around 1; both laws have mass where the other has none."""
    losses = h * np.arange(-5, 5)
    q = np.exp(-(losses**2) * 20 - losses / 2)
    q0, p_inf = 4e-6, 7e-6
    q *= (1 - q0) / q.sum()
    p = q * np.exp(losses)
    return Pair(h, -5, q, q0, p_inf + max(0.0, 1 - p_inf - float(p.sum())))


# Reading a composition


@check
def check_mass_at_infinity_is_never_read_as_less() -> None:
    """Just below, at and above delta: epsilon is the least at which delta is met, in each direction
    by itself.
    """
    fine = np.exp(-((0.01 * np.arange(-300, 500) - 0.5) ** 2) / 2) * 0.01 / math.sqrt(2 * math.pi)
    for h, first, p in ((0.4, -2, np.array([0.1, 0.2, 0.3, 0.25, 0.1, 0.05])), (0.01, -300, fine)):
        for infinite, other in (
            (0.0, 0.0),
            (1e-6, 9e-6),
            (9e-6, 0.0),
            (9.999e-6, 9e-6),
            (1e-5, 0.0),
        ):
            found = pld.Composition(h, first, p, p[::-1].copy(), infinite, other)
            for delta in (1e-5, 0.02, 0.1):
                for side, epsilon in enumerate(found.epsilons(delta)):
                    spent = found.deltas(epsilon)[side]
                    assert spent <= delta * (1 + 1e-9), (h, infinite, other, delta, side)
                    if epsilon > 0 and (infinite, other)[side] < 0.99 * delta:
                        assert spent >= delta * (1 - 1e-9), (h, infinite, other, delta, side)
                        assert found.deltas(epsilon - 1e-6)[side] > delta, (
                            h,
                            infinite,
                            other,
                            delta,
                            side,
                        )
    for sides in ((2e-5, 0.0), (0.0, 2e-5)):
        without = pld.Composition(h, first, p, p, 0.0, 0.0).epsilons(1e-5)
        found_epsilons = pld.Composition(h, first, p, p, *sides).epsilons(1e-5)
        assert found_epsilons == tuple(
            math.inf if side else e for side, e in zip(sides, without, strict=True)
        )


@check
def check_mass_at_infinity_adds_up() -> None:
    """n mechanisms that tell everything with probability p do so with 1 - (1 - p)^n together, on
    either side.
    """
    pair = ratios_by_hand()
    for n in (1, 3, 40):
        found = pld.compose([pair], [n], 1e-12)
        for mass, each in ((found.p_inf, pair.p_inf), (found.q_inf, pair.q0)):
            true = -math.expm1(n * math.log1p(-each))
            assert true <= mass <= true * (1 + 1e-6) + 1e-11, (n, mass, true)
    other = Pair(0.1, 0, np.array([1 - 3e-4]), 3e-4, 2e-4)
    found = pld.compose([pair, other], [2, 5], 1e-12)
    assert found.p_inf >= 1 - (1 - pair.p_inf) ** 2 * (1 - 2e-4) ** 5
    assert found.q_inf >= 1 - (1 - pair.q0) ** 2 * (1 - 3e-4) ** 5


@check
def check_what_lies_outside_of_the_window_is_paid_for() -> None:
    """A rare, large loss that the window leaves out counts in full, in the direction in which it
    occurs.
    """
    for loss in (6.0, -6.0):
        # One law has the rare loss with probability 1e-4, all else is alike.
        rare = 1e-4 if loss < 0 else 1e-4 * math.exp(-loss)
        pair = atoms({loss: rare, 0.0: 1 - rare}, 0.5)
        nothing = Pair(0.5, 0, np.ones(1), 0.0, 0.0)  # one mechanism by itself has no window
        wide, narrow = (pld.compose([pair, nothing], [1, 1], tail) for tail in (1e-12, 1e-3))
        assert len(narrow.p) < len(wide.p)
        for epsilon in (0.5, 3.0, 4.5, 5.5):
            for true, found in zip(wide.deltas(epsilon), narrow.deltas(epsilon), strict=True):
                assert found >= true - 1e-11, (loss, epsilon, found, true)


@check
def check_rounding_of_transforms_is_paid_for() -> None:
    """Against binomial laws: no tail of either law is less than its true mass, however little that
    is.
    """
    for h, n in ((0.5, 20), (0.5, 60), (0.01, 500)):
        low = 1 / (1 + math.exp(-h))  # binary randomised response: losses of h and -h only
        found = pld.compose([atoms({-h: low, h: 1 - low}, h)], [n], 1e-300)
        ups = np.arange(n + 1)
        for mass, infinite, chance, side in (
            (found.p, found.p_inf, low, 1),
            (found.q, found.q_inf, 1 - low, -1),
        ):
            steps = side * np.rint(found.losses / h).astype(int)
            above = np.array([mass[steps >= 2 * up - n].sum() for up in ups])
            true = binom.sf(ups - 1, n, chance if side == 1 else 1 - chance)
            assert (above + infinite >= true).all(), (
                h,
                n,
                side,
                float((true - above).max()),
                infinite,
            )


# Pairs


def hockey_sticks(pair: Pair, epsilon: float) -> tuple[float, float]:
    """delta of one pair at `epsilon`: remove, add."""
    losses = pair.losses
    remove = pair.p_inf + float(pair.q @ np.maximum(np.exp(losses) - math.exp(epsilon), 0))
    return remove, pair.q0 + float(pair.q @ np.maximum(1 - math.exp(epsilon) * np.exp(losses), 0))


PAIRS = (
    lambda tail, h: poisson_pair(0.2, 1.5, h, tail),
    lambda tail, h: poisson_pair(1.0, 2.0, h, tail),
    lambda tail, h: pairs.group_pair(0.2, 3.0, 4, h, tail),
    lambda tail, h: partition._by_doubling(5, 0.7, h, tail),
    lambda tail, h: partition._by_doubling(12, 1.2, h, tail),
    lambda tail, h: partition._by_fourier(16, 0.8, h, tail),
    lambda tail, h: partition._by_fourier(40, 1.5, h, tail),
)


@check
def check_coarse_pairs_are_never_below_fine_ones() -> None:
    """What a coarse tail leaves out is moved to 0 and to infinity: delta only grows, everywhere, in
    both directions.
    """
    for place, pair in enumerate(PAIRS):
        fine = pair(1e-13, 2e-3)
        for tail in (1e-5, 1e-2, 0.1):
            coarse = pair(tail, 8e-3)
            for epsilon in (0.0, 0.2, 0.7, 1.5, 3.0, 5.0):
                for found, true in zip(
                    hockey_sticks(coarse, epsilon), hockey_sticks(fine, epsilon), strict=True
                ):
                    assert found >= true * (1 - 1e-6) - 1e-12, (place, tail, epsilon, found, true)
            assert min(coarse.q0, coarse.p_inf) >= 0


@check
def check_a_partitions_allowances_are_there() -> None:
    """What windows of sums leave out is bounded, not computed, so that only its allowance stands
    for it.
    """
    for tail in (1e-6, 1e-2):
        for batches, sigma in ((16, 0.8), (100, 2.0)):
            pair = partition._by_fourier(batches, sigma, 1e-3, tail)
            assert pair.q0 >= tail / 2  # both ends of the window, in either direction
            assert pair.p_inf >= tail / 2
    x, mass, cut = partition._log_normal(1.0, partition._cells(1.0, 0.1, 1e-2, 16, 1e-3), 0.1)
    assert 0 < cut <= 1e-2
    assert math.isclose(float(mass.sum()), 1.0)
    # the mean that lies beyond the last point is kept apart
    assert math.isclose(float(mass @ x) + cut, 1.0)
    pair = partition._by_fourier(16, 1.0, 1e-3, 0.2)
    width = partition._GAMMA * math.sqrt(math.expm1(1.0)) * 0.5
    *_, cut = partition._log_normal(
        1.0, partition._cells(1.0, width, 0.05, 16, partition._SPARSE * 1e-3), width
    )
    assert pair.p_inf >= cut + 0.1 > 0.1


# Solving on the safe side


def draws(count: int) -> list[tuple[float, float]]:
    """Random (epsilon, delta): where a solver ends a rounding error above its target, about half of
    them are wrong.
    """
    made_up = np.random.default_rng(0)
    return [
        (float(e), float(d))
        for e, d in zip(
            10 ** made_up.uniform(-2, 1.3, count),
            10 ** made_up.uniform(-12, -1, count),
            strict=True,
        )
    ]


@check
def check_conversions_end_on_the_safe_side() -> None:
    """Not to a tolerance: what was solved for meets its target as floating point evaluates it."""
    for epsilon, delta in draws(200):
        mu = zcdp.gaussian_mu_for(epsilon, delta)
        assert gaussian_delta(mu, epsilon) <= delta
        assert gaussian_delta(mu * (1 + 1e-9), epsilon) > delta
        found = zcdp.gaussian_epsilon(mu, delta)
        assert gaussian_delta(mu, found) <= delta
        rho = zcdp.rho_for(epsilon, delta)
        assert zcdp.epsilon_of_rho(rho, delta) <= epsilon
        assert zcdp.epsilon_of_rho(rho * (1 + 1e-7), delta) > epsilon


@check
def check_groups_in_steps_end_on_the_safe_side() -> None:
    """What is reported is good, and hardly anything less is."""
    for threshold, _ in draws(100):
        found = accountant._least(lambda epsilon, least=threshold: epsilon >= least)  # type: ignore[misc]
        assert threshold <= found <= threshold * (1 + 2e-6)
    event: Event = compose(
        [Laplace(6.0), Repeated(Gaussian(15.0), 3), PoissonSampled(0.05, Gaussian(1.0))]
    )
    for k in (2, 3):
        for delta in (1e-5, 1e-3):
            one = accountant.pld_in_steps(event, delta, k) / k
            composed = pld.compose_event(event, negligible=1e-6 * delta)
            assert math.log(max(composed.deltas(one))) + accountant.log_growth(one, k) <= math.log(
                delta
            )
            one = accountant.rdp_in_steps(event, delta, k) / k
            logs = (rdp.ORDERS - 1) * (rdp.curve(event) - one + np.log1p(-1 / rdp.ORDERS)) - np.log(
                rdp.ORDERS
            )
            assert float(logs.min()) + accountant.log_growth(one, k) <= math.log(delta)


@check
def check_limits_are_lowered_until_they_fit() -> None:
    """By as little as it takes; where nothing fits, that is said, and not searched for without
    end.
    """
    found = filters._not_above(1.0, lambda value: value * (1 + 3e-15), 1.0)
    assert found * (1 + 3e-15) <= 1.0
    assert found >= 1 - 1e-13
    asked: list[float] = []

    def never(value: float) -> float:
        asked.append(value)
        assert len(asked) < 200
        return 2.0

    must_raise(BadInput, lambda: filters._not_above(1.0, never, 1.0))


@check
def check_strong_composition_is_the_theorems() -> None:
    """The best split of delta, by hand; and sound: above the privacy loss distribution."""
    sigma, rate, steps, delta = 4.0, 0.01, 1000, 1e-5
    found = strong_composition(sigma, rate, steps, delta)
    by_hand = []
    for share in np.linspace(0.01, 0.99, 50):
        each = math.log1p(
            rate * math.expm1(zcdp.gaussian_epsilon(1 / sigma, share * delta / steps / rate))
        )
        by_hand.append(
            each * math.sqrt(2 * steps * math.log(1 / (delta * (1 - share))))
            + steps * each * math.expm1(each)
        )
    assert min(by_hand) * (1 - 1e-2) <= found <= min(by_hand) * (1 + 1e-2)
    assert found > pld.epsilon(Repeated(PoissonSampled(rate, Gaussian(sigma)), steps), delta)


# Directions


def renyi(mechanism: Event, order: float) -> tuple[float, float]:
    """The Renyi divergences of one mechanism from its own grid: remove, add."""
    found = pld.compose_event(mechanism, h=2e-3, negligible=1e-14)
    used = (found.p > 0) & (found.q > 0)
    p, q = np.log(found.p[used]), np.log(found.q[used])
    remove = np.log(np.exp(order * p + (1 - order) * q).sum()) / (order - 1)
    return float(remove), float(np.log(np.exp(order * q + (1 - order) * p).sum()) / (order - 1))


@check
def check_renyi_curves_bound_both_directions() -> None:
    """Beside the divergences of the privacy loss distribution, which is another computation."""
    for mechanism in (
        PoissonSampled(0.1, Gaussian(1.5)),
        PoissonSampled(0.6, Gaussian(3.0)),
        Laplace(1.5),
        GroupSampled(0.3, 3, Gaussian(9.0)),
        GroupSampled(0.9, 2, Gaussian(5.0)),
        Partitioned(8, Gaussian(1.2)),
        Gaussian(2.0),
    ):
        curve = rdp.curve(mechanism)
        for order in (1.1, 2.0, 5.0):
            bound = float(curve[list(rdp.ORDERS).index(order)])
            for found in renyi(mechanism, order):
                assert bound >= found * (1 - 1e-3) - 1e-9, (mechanism, order, bound, found)
    # With so much noise the moments are lost in rounding, and the other direction's closed form
    # stands for both.
    quiet = GroupSampled(1e-3, 100, Gaussian(1e6))
    assert (rdp.curve(quiet) >= (rdp.ORDERS * 0.1**2 + 0.1 * 0.999) / 2e12 * (1 - 1e-12)).all()
