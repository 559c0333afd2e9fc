"""Named checks of truncated Poisson batches: what is drawn, and that what is cut is paid for."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

import privlearn as pv
from privlearn.core.accounting import accountant, pld, rdp
from privlearn.core.accounting.events import Repeated, compose, from_json, to_json
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.accounting.pld import truncation
from privlearn.core.accounting.pld.truncation import TruncatedPoissonSampled
from privlearn.core.sampling import TruncatedPoisson
from privlearn.errors import BadInput, UnsupportedEvent
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, small_data, small_net

Law = dict[tuple[int, int], float]


def law_of(examples: int, rate: float, maximum: int, group: int = 1) -> Law:
    """P(so many others kept, so many of a group kept), from how many of each are drawn, and every
    cut.
    """
    law: Law = {}
    for own, others in product(range(group + 1), range(examples - group + 1)):
        drawn, chance = (
            own + others,
            binom.pmf(own, group, rate) * binom.pmf(others, examples - group, rate),
        )
        kept = min(drawn, maximum)
        for j in range(own + 1):  # each part of that size is as likely
            if 0 <= kept - j <= others:
                ways = math.comb(own, j) * math.comb(others, kept - j) / math.comb(drawn, kept)
                law[kept - j, j] = law.get((kept - j, j), 0.0) + float(chance) * ways
    return law


def densities(law: Law, sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """With and without the group, of sums of its vector and of the others', at right angles, on a
    grid; cell's area.
    """
    most = max(t for t, _ in law)
    x = np.arange(-7 * sigma, max(j for _, j in law) + 7 * sigma, sigma / 12)
    y = np.arange(-7 * sigma, most + 7 * sigma, sigma / 12)

    def normal(points: Any, mean: float) -> Any:
        return np.exp(-0.5 * ((points - mean) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))

    present = sum(chance * np.outer(normal(y, t), normal(x, j)) for (t, j), chance in law.items())
    absent = sum(chance * np.outer(normal(y, t), normal(x, 0)) for (t, _), chance in law.items())
    return present, absent, (sigma / 12) ** 2


def both_deltas(present: Any, absent: Any, area: float, epsilon: float) -> tuple[float, float]:
    """delta at `epsilon`, remove and add."""
    factor = math.exp(epsilon)
    return (
        float(np.maximum(present - factor * absent, 0).sum() * area),
        float(np.maximum(absent - factor * present, 0).sum() * area),
    )


@check
def check_truncated_batches_have_the_stated_law() -> None:
    """Sizes, each row's frequency, and that of one row when one less than the maximum is kept
    beside it.
    """
    examples, rate, maximum, batches = 12, 0.35, 6, 9000
    sampler, stream = TruncatedPoisson(rate, examples, maximum), pv.Streams.new(11).sampling
    taken = np.zeros((batches, examples))
    drawn: list[Any] = []
    while len(drawn) < batches:
        drawn += list(sampler.draw(examples, stream))
    for row, sample in zip(taken, drawn, strict=False):
        assert len(set(sample.indices.tolist())) == len(sample) <= maximum
        assert sorted(sample.indices.tolist()) == sample.indices.tolist()
        row[sample.indices] = 1
    sizes = np.bincount(taken.sum(1).astype(int), minlength=maximum + 1) / batches
    exact = binom.pmf(np.arange(maximum + 1), examples, rate)
    exact[maximum] += binom.sf(maximum, examples, rate)
    assert (np.abs(sizes - exact) < 5 * np.sqrt(exact / batches)).all()
    law = law_of(examples, rate, maximum)
    kept = sum(chance for (_, j), chance in law.items() if j)
    assert np.abs(taken.mean(0) - kept).max() < 5.5 * math.sqrt(kept * (1 - kept) / batches), (
        "some rows are favoured"
    )
    for row in (0, examples - 1):
        beside = taken.sum(1) - taken[:, row] == maximum - 1
        often = law[maximum - 1, 1] / (law[maximum - 1, 0] + law[maximum - 1, 1])
        assert abs(taken[beside, row].mean() - often) < 5 * math.sqrt(
            often * (1 - often) / beside.sum()
        )


@check
def check_the_law_of_what_is_cut() -> None:
    """The chance of the larger rate, and that rate, against every set: never below, and hardly
    above.
    """
    for examples, rate, maximum in (
        (7, 0.3, 4),
        (7, 0.3, 6),
        (9, 0.1, 2),
        (9, 0.5, 6),
        (10, 0.6, 8),
        (8, 0.2, 3),
    ):
        law = law_of(examples, rate, maximum)
        chance = law[maximum - 1, 0] + law[maximum - 1, 1]
        often = law[maximum - 1, 1] / chance
        ours = truncation.more_often(rate, examples, maximum)
        for found, true, above in zip(ours, (chance, often), (1.2, 1 + 1e-9), strict=True):
            assert true * (1 - 1e-12) <= found <= true * above, (
                examples,
                rate,
                maximum,
                found,
                true,
            )
        below = {
            t: law.get((t, 1), 0) / (law.get((t, 0), 0) + law.get((t, 1), 0))
            for t in range(maximum + 1)
        }
        assert all(abs(below[t] - rate) < 1e-12 for t in range(maximum - 1)), below
        assert below[maximum] == 0
    for examples, rate in ((1000, 0.1), (60_000, 0.01), (10**7, 1e-4), (500, 0.8)):
        deviation = math.sqrt(examples * rate * (1 - rate))
        for size in {
            truncation.least_maximum(rate, examples) + math.ceil(z * deviation)
            for z in (0, 1, 3, 6)
        }:
            if size <= examples:
                true = float(binom.sf(size - 1, examples, rate))
                assert (
                    true * (1 - 1e-9) <= truncation.cut_chance(rate, examples, size) <= true * 1.01
                )


@check
def check_what_is_cut_is_paid_for() -> None:
    """delta and Renyi divergences of one release with the others at right angles: below the price,
    and close to it.
    """
    for examples, rate, maximum, sigma in ((60, 0.1, 8, 0.3), (30, 0.1, 5, 0.3), (8, 0.4, 5, 1.0)):
        event = TruncatedPoissonSampled(rate, examples, maximum, Gaussian(sigma))
        present, absent, area = densities(law_of(examples, rate, maximum), sigma)
        composed = pld.compose_event(event, h=2e-3, negligible=1e-10)
        usual = pld.compose_event(PoissonSampled(rate, Gaussian(sigma)), h=2e-3, negligible=1e-10)
        for epsilon in (0.0, 0.3, 1.0, 2.0):
            for ours, poisson, true in zip(
                composed.deltas(epsilon),
                usual.deltas(epsilon),
                both_deltas(present, absent, area, epsilon),
                strict=True,
            ):
                assert true * (1 - 1e-4) - 1e-9 <= ours, (examples, epsilon, ours, true)
                assert ours <= true * 1.35 + 1e-6 or sigma > 0.5, (examples, epsilon, ours, true)
                assert poisson <= ours * (1 + 1e-9)
        # An absent example is told by less of it than if it could be one of few that are left.
        beyond = -1.2 * math.log1p(-rate)
        if sigma < 0.5:
            assert usual.deltas(beyond)[1] < both_deltas(present, absent, area, beyond)[1], (
                "nothing was cut"
            )
        curve = dict(zip(rdp.ORDERS.tolist(), rdp.curve(event).tolist(), strict=True))
        with np.errstate(divide="ignore"):
            logs = np.log(present), np.log(absent)
        for order in (1.5, 2.0, 4.0):
            for p, q in (logs, logs[::-1]):
                moment = float(
                    np.logaddexp.reduce((order * p + (1 - order) * q).ravel())
                ) + math.log(area)
                assert moment / (order - 1) <= curve[order] * (1 + 1e-4), (examples, order)


@check
def check_groups_of_truncated_batches_are_paid_for() -> None:
    """Two examples of one person, added up: below the price for groups."""
    examples, rate, maximum, sigma = 10, 0.15, 7, 0.8
    event = TruncatedPoissonSampled(rate, examples, maximum, Gaussian(sigma))
    group = event.grouped(2)
    assert isinstance(group, truncation.Mixture)
    beside = sum(
        chance for (t, _), chance in law_of(examples, rate, maximum, 2).items() if t >= maximum - 2
    )
    assert beside <= group.chance <= 4 * beside
    present, absent, area = densities(law_of(examples, rate, maximum, 2), sigma)
    composed = pld.compose_event(group, h=2e-3, negligible=1e-10)
    usual = pld.compose_event(
        PoissonSampled(rate, Gaussian(sigma)).grouped(2), h=2e-3, negligible=1e-10
    )
    for epsilon in (0.0, 0.5, 1.5):
        true = both_deltas(present, absent, area, epsilon)
        for ours, poisson, own in zip(
            composed.deltas(epsilon), usual.deltas(epsilon), true, strict=True
        ):
            assert (
                max(own * (1 - 1e-4), poisson * (1 - group.chance))
                <= ours
                <= poisson + group.chance + 1e-9
            )
    # Where no form for groups is known, and where nothing is ever cut.
    assert TruncatedPoissonSampled(rate, examples, 3, Gaussian(1.0)).grouped(2) is None
    whole = TruncatedPoissonSampled(rate, examples, examples, Gaussian(1.0))
    assert whole.grouped(2) == PoissonSampled(rate, Gaussian(1.0)).grouped(2)
    many = Repeated(TruncatedPoisson.of_size(100, 10_000).event(Gaussian(2.0)), 500)
    for k in (2, 8):
        ours = accountant.guarantee(many, Adjacency.ZERO_OUT, 1e-5, k).epsilon
        exact = accountant.guarantee(
            Repeated(PoissonSampled(0.01, Gaussian(2.0)), 500), Adjacency.ZERO_OUT, 1e-5, k
        )
        assert exact.epsilon <= ours * (1 + 1e-9) <= exact.epsilon * 1.02


@check
def check_no_attack_on_truncated_batches_beats_their_price() -> None:
    """Three steps through the sampler itself, told apart by their exact likelihood ratio; Poisson's
    price is beaten.
    """
    examples, rate, maximum, sigma, steps, runs, epsilon = 60, 0.1, 8, 0.3, 3, 12_000, 0.4
    sampler = TruncatedPoisson(rate, examples, maximum)
    made_up, stream, law = (
        np.random.default_rng(5),
        pv.Streams.new(3).sampling,
        law_of(examples, rate, maximum),
    )
    sizes = np.array(sorted(law))
    weights = np.array([law[t, j] for t, j in sizes.tolist()])

    def drawn() -> Any:
        while True:
            yield from sampler.draw(examples, stream)

    batches, spent = drawn(), []
    for present in (True, False):
        sums = np.zeros((runs, steps, 2))
        for run in sums:
            for step in run:
                rows = next(batches).indices
                step[:] = (rows > 0).sum(), (rows == 0).sum() * present
        sums += sigma * made_up.standard_normal(sums.shape)

        def log_density(kept: float, sums: Any = sums) -> Any:
            means = sizes * np.array([1.0, kept])
            distances = ((sums[:, :, None, :] - means) ** 2).sum(-1)
            return np.log((weights * np.exp(-distances / (2 * sigma**2))).sum(-1)).sum(1)

        losses = (log_density(1.0) - log_density(0.0)) * (1 if present else -1)
        gain = np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0)))
        spent.append((float(gain.mean()), float(gain.std()) / math.sqrt(runs)))
    event = Repeated(sampler.event(Gaussian(sigma)), steps)
    for (reached, error), claimed in zip(
        spent, pld.compose_event(event).deltas(epsilon), strict=True
    ):
        assert reached - 5 * error <= claimed, (reached, claimed)
    reached, error = spent[1]
    poisson = pld.compose_event(Repeated(PoissonSampled(rate, Gaussian(sigma)), steps)).deltas(
        epsilon
    )[1]
    assert reached - 5 * error > poisson, "the attack is too weak to tell anything"


@check
def check_the_usual_maximum_is_public_and_costs_nothing() -> None:
    for size, examples, sigma, steps, delta in (
        (600, 60_000, 1.0, 1000, 1e-5),
        (15, 300, 0.7, 2000, 1e-4),
        (1000, 10**7, 0.5, 100_000, 1e-10),
    ):
        sampler = TruncatedPoisson.of_size(size, examples)
        chances = [
            truncation.cut_chance(sampler.sampling_rate, examples, own)
            for own in (sampler.maximum + 1, sampler.maximum)
        ]
        assert chances[0] <= truncation.RARE < chances[1]
        ours = pld.epsilon(Repeated(sampler.event(Gaussian(sigma)), steps), delta)
        poisson = pld.epsilon(
            Repeated(PoissonSampled(size / examples, Gaussian(sigma)), steps), delta
        )
        assert poisson <= ours <= poisson * (1 + 1e-6)
    # A smaller one costs more, and the plain bound of Chua et al. 2024 more than that.
    prices = [
        pld.epsilon(
            Repeated(TruncatedPoissonSampled(0.01, 60_000, most, Gaussian(1.0)), 1000), 1e-5
        )
        for most in (780, 700, 680, 660, 640)
    ]
    assert prices == sorted(prices)
    assert prices[2] > 1.01 * prices[0]
    poisson_curve = pld.compose_event(Repeated(PoissonSampled(0.01, Gaussian(1.0)), 1000))
    for most in (720, 740, 760):
        ours = pld.compose_event(
            Repeated(TruncatedPoissonSampled(0.01, 60_000, most, Gaussian(1.0)), 1000)
        )
        for epsilon in (0.5, 1.0, 2.0):
            extra = 1000 * (1 + math.exp(epsilon)) * float(binom.sf(most, 60_000, 0.01))
            assert max(ours.deltas(epsilon)) <= max(poisson_curve.deltas(epsilon)) + extra


@check
def check_truncated_batches_are_for_a_public_number_of_rows() -> None:
    """Zero-out neighbours alone; more rows than are priced are refused before anything is spent;
    fewer cost less.
    """
    sampler = TruncatedPoisson(0.3, 12, 8)
    event = sampler.event(Gaussian(1.0))
    assert from_json(to_json(event)) == event
    for other in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
        must_raise(UnsupportedEvent, lambda other=other: accountant.guarantee(event, other, 1e-5))
    must_raise(BadInput, lambda: next(sampler.draw(13, np.random.default_rng(0))))
    must_raise(BadInput, lambda: pv.Plan(sampler, examples=13))
    must_raise(BadInput, lambda: TruncatedPoisson(0.3, 12, 4))
    plan = pv.Plan(sampler, epochs=2, schedule=pv.schedules.Constant(2.0))
    assert plan.neighbours is Adjacency.ZERO_OUT
    x, y = small_data(13)
    ledger = pv.Ledger()
    must_raise(BadInput, lambda: pv.dpsgd(plan, small_net(), cross_entropy, (x, y), ledger=ledger))
    assert ledger.event == compose([])
    steps = 2 * plan.sampling.steps(12)
    facts = {"examples": 12, "steps": steps}
    assert plan.follows(facts) == [] != plan.follows(facts | {"examples": 13})
    result = pv.dpsgd(plan, small_net(), cross_entropy, (x[:11], y[:11]), streams=pv.Streams.new(1))
    assert result.ledger.event == plan.event()
    assert all(torch.isfinite(own).all() for own in result.model.parameters())
    prices = [
        pld.compose_event(TruncatedPoissonSampled(0.2, n, 6, Gaussian(0.5)), h=2e-3).deltas(1.0)[0]
        for n in (7, 10, 14, 19)
    ]
    assert prices == sorted(prices)
