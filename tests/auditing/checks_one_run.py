"""Named checks of what the canaries of one run prove: bounds that are solved again, simulated, and
beside others'.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import linprog
from scipy.special import ndtr
from scipy.stats import binom

import privlearn as pv
from privlearn.auditing.bounds import Rates, epsilon_of_form, measured
from privlearn.auditing.canaries import fair_coins
from privlearn.auditing.one_run import Guesses, OneRun, one_run_p_value
from privlearn.core.accounting.events import Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.accounting.tradeoff import tradeoff
from tests.support.checks import check


def curve_of(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """Slopes and offsets of the two lines that are the trade-off curve of (epsilon, delta)."""
    return [(math.exp(epsilon), delta), (math.exp(-epsilon), 1 - math.exp(-epsilon) * (1 - delta))]


def likeliest(canaries: int, made: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses under the constraints of the theorem: a
    linear program.
    """
    levels = np.arange(made + 1)
    rows, limits = [], []
    for level in range(1, made + 1):
        above = levels * (levels >= level) / canaries
        wrong = (made - levels) * (levels >= level - 1) / canaries
        for slope, offset in curve_of(epsilon, delta):
            rows.append(above - slope * wrong)
            limits.append(offset)
    found = linprog(
        -1.0 * (levels >= right), A_ub=rows, b_ub=limits, A_eq=np.ones((1, made + 1)), b_eq=[1]
    )
    return float(-found.fun)


@check
def check_the_one_run_bound_is_what_a_linear_program_finds() -> None:
    """To 0.1 %: neither above what the theorem's constraints allow, nor below."""
    for canaries, made in ((7, 7), (12, 8)):
        for epsilon, delta in ((0.0, 0.01), (1.0, 0.0), (1.0, 0.05)):
            for right in (made // 2, made - 2, made):
                lines = curve_of(epsilon, delta)
                own, most = (
                    Guesses(canaries, made, right),
                    likeliest(canaries, made, right, epsilon, delta),
                )

                def inverse(rate: float, lines: list[tuple[float, float]] = lines) -> float:
                    return max(0.0, *((rate - offset) / slope for slope, offset in lines))

                assert not own.too_many(inverse, most * 0.999), (
                    canaries,
                    made,
                    right,
                    epsilon,
                    delta,
                )
                assert most > 0.999 or own.too_many(inverse, most * 1.001), (
                    canaries,
                    made,
                    right,
                    epsilon,
                    delta,
                )


@check
def check_one_run_bounds_hold_for_exact_distributions() -> None:
    """Runs whose right guesses have a known distribution are refuted at no error below the true
    probability.
    """
    for right in (60, 70, 80, 100):
        own = Guesses(100, 100, right)
        for mu in (0.3, 1.0, 2.0):  # each canary has Gaussian noise of its own
            curve = tradeoff(Gaussian(1 / mu), Adjacency.ADD_REMOVE)
            truth = float(binom.sf(right - 1, 100, ndtr(mu / 2)))
            assert not own.too_many(curve.false_positive_rate, 0.999 * truth), (right, mu)
        for epsilon in (0.5, 2.0):  # randomised response
            share = 1 / (1 + math.exp(-epsilon))
            assert not own.contradict(epsilon, 0.0, 0.999 * float(binom.sf(right - 1, 100, share)))
    for delta in (0.01, 0.3):  # all is told at once, with probability delta
        assert not Guesses(100, 100, 100).contradict(0.0, delta, 0.999 * delta)
        assert Guesses(100, 100, 100).contradict(0.0, delta, 1.01 * min(1.0, delta) + 1e-6)


@check
def check_a_curves_rates_are_inverses() -> None:
    """Of a Gaussian release and of sampled ones: the least false positives at which the true
    positives are allowed.
    """
    sampled = Repeated(PoissonSampled(0.2, Gaussian(1.0)), 5)
    for curve in (
        tradeoff(Gaussian(1.0), Adjacency.ADD_REMOVE),
        tradeoff(sampled, Adjacency.ADD_REMOVE),
    ):
        for rate in (1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999):
            least = curve.false_positive_rate(rate)
            assert curve.true_positive_rate(least) >= rate * (1 - 1e-6)
            assert curve.true_positive_rate(0.99 * least) < rate
        assert curve.false_positive_rate(0.0) == 0.0


def simulated(mu: float, canaries: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a Gaussian release, and coins."""
    coins = rng.integers(2, size=canaries).astype(bool)
    return rng.normal(mu * coins), coins


@check
def check_one_run_bounds_err_as_seldom_as_they_say() -> None:
    """Randomised response, for which they are tight: of 400 runs at confidence .9, at most 40 are
    refuted.
    """
    rng, epsilon, canaries = np.random.default_rng(1), 1.0, 400
    share, wrong = 1 / (1 + math.exp(-epsilon)), 0
    for _ in range(400):
        coins = rng.integers(2, size=canaries).astype(bool)
        said = np.where(rng.random(canaries) < share, coins, ~coins)
        run = OneRun.of(said * 2 - 1 + 0.1 * rng.random(canaries), coins, 0.9)
        wrong += any(own.contradict(epsilon, 0.0, run.error) for own in run.guesses)
    assert 4 <= wrong <= 40, wrong


@check
def check_one_run_bounds_of_a_curve_err_as_seldom_as_they_say() -> None:
    """Gaussian releases of known mu: of 300 at confidence .95 at most 15 are refuted; with a third
    of it most.
    """
    rng = np.random.default_rng(2)
    for mu in (0.3, 1.0, 2.0):
        curve = tradeoff(Gaussian(1 / mu), Adjacency.ADD_REMOVE)
        refuted = [
            OneRun.of(*simulated(own, 500, rng), 0.95).refute(curve)
            for own in [mu] * 100 + [3 * mu] * 10
        ]
        assert sum(refuted[:100]) <= 5, (mu, refuted)
        assert mu != 1 or sum(refuted[100:]) >= 8, (mu, refuted)


@check
def check_a_curve_tells_more_than_epsilon_and_delta() -> None:
    """On the same guesses, at the same confidence: a quarter more at least, and never above the
    truth.
    """
    rng = np.random.default_rng(3)
    for mu in (0.5, 1.0, 2.0):
        run = OneRun.of(*simulated(mu, 2000, rng), 0.99)
        truth = (
            pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(1 / mu), examples=9)
            .guarantee(1e-5)
            .epsilon
        )
        found = epsilon_of_form(run.refute, Gaussian, Adjacency.ADD_REMOVE, 1 / mu, 1e-5)
        steinke = [
            max(
                e
                for e in np.linspace(0, 6, 121)
                if one_run_p_value(g.canaries, g.made, g.right, e, 1e-5) <= run.error
            )
            for g in run.guesses
        ]
        assert 1.25 * max(steinke) < found < truth, (mu, steinke, found, truth)
        assert max(steinke) <= run.epsilon(1e-5) + 0.05 < found


@check
def check_canaries_take_part_by_fair_coins() -> None:
    """Half of them, whichever their place, and each for itself."""
    tosses = np.array([fair_coins(500, pv.Streams.new(seed)) for seed in range(40)], float)
    assert abs(tosses.mean() - 0.5) < 4 * 0.5 / math.sqrt(tosses.size)
    assert abs(tosses.mean(0) - 0.5).max() < 0.42
    assert abs((tosses[:, 1:] == tosses[:, :-1]).mean() - 0.5) < 0.02
    assert abs((tosses[1:] == tosses[:-1]).mean() - 0.5) < 0.02


@check
def check_a_test_is_chosen_and_counted_on_different_trials() -> None:
    """Of two kinds of score one tells who took part in the first fifth of the trials alone, one in
    the others alone.
    """
    first = np.arange(100) < 20
    absent, present = np.zeros((100, 2)), np.column_stack([first, ~first]).astype(float)
    curve = tradeoff(Gaussian(100.0), Adjacency.ADD_REMOVE)
    assert measured(absent, present, curve, 0.95) == Rates.of(0, 80, 0, 80, 0.95)
