"""Named checks of private parameter selection; mutations must make them fail."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import math
import re
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from dp_accounting import dp_event
from dp_accounting import rdp as peer
from scipy import integrate, stats
from torch import nn

import privlearn as pv
from privlearn import cli
from privlearn._storage import digest
from privlearn.core import sampling
from privlearn.core import streams as streams_module
from privlearn.core.accounting import accountant, pld, rdp, trees, zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled, Selection
from privlearn.core.accounting.trees import OneOf, Parallel, RepeatAndSelect
from privlearn.core.clipping.evaluation import CandidateScores
from privlearn.core.mechanisms import selection
from privlearn.data import Dataset
from privlearn.errors import BadInput, BudgetExceeded, PrivlearnError, UnsupportedEvent
from privlearn.methods.tuning import sums
from privlearn.methods.tuning import tune as tune_module
from privlearn.publishing import folder as folder_module
from privlearn.publishing import publish
from privlearn.publishing.verify import verify_contents
from tests.descent.checks_leaks import data_with
from tests.support.checks import check, must_raise
from tests.support.nets import NoDraws, cross_entropy
from tests.support.transcripts import Transcript, require_alike, transcript

ADD, EMPTY, REPLACE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
Train = Callable[..., Any]


def stream(seed: int = 0) -> streams_module.NoiseStream:
    return streams_module.Streams.new(seed).noise


def candidates(
    rates: tuple[float, ...] = (0.1, 0.2, 0.3), **more: Any
) -> tuple[pv.tuning.Candidate, ...]:
    plan = {"sampling": pv.Poisson(0.4), "epochs": 2, "clip": pv.Flat(0.5), **more}
    return tuple(
        pv.tuning.Candidate(f"rate {rate:g}", pv.Plan(**plan), settings={"rate": rate})
        for rate in rates
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3).double()


def train(
    candidate: pv.tuning.Candidate, rows: Dataset, ledger: Ledger, streams: streams_module.Streams
) -> pv.Result:
    return pv.dpsgd(
        candidate.plan,
        network(),
        cross_entropy,
        rows,
        optimizer=lambda p: torch.optim.SGD(p, lr=candidate.settings["rate"]),
        ledger=ledger,
        streams=streams,
    )


def data(rows: int = 60) -> Any:
    return data_with(None, ADD, rows)


def both_ways(epsilon: float = 3.0) -> list[Any]:
    return [
        plan.calibrate(epsilon=epsilon, delta=1e-5)
        for plan in (
            pv.tuning.Blocks(candidates(examples=60)),
            pv.tuning.Blocks(candidates(examples=60), retrain=True),
            pv.tuning.RandomStopping(candidates(examples=60), mean=3.0),
        )
    ]


# The draw of one candidate


class Counting:
    """Takes any charge."""

    def __init__(self) -> None:
        self.charges: list[Any] = []

    def charge(self, event: Event, adjacency: Adjacency) -> None:
        self.charges.append((event, adjacency))


def chances(values: list[float], adjacency: Adjacency, epsilon: float, times: int = 15_000) -> Any:
    """How often each is selected, on one ledger."""
    scores = CandidateScores(
        torch.tensor(values, dtype=torch.float64), 1.0, adjacency is not REPLACE, adjacency
    )
    noise, ledger = stream(), Counting()
    found = np.bincount(
        [
            selection.select(scores, epsilon=epsilon, ledger=ledger, stream=noise)
            for _ in range(times)
        ],
        minlength=3,
    )
    assert ledger.charges == [(Selection(epsilon), adjacency)] * times
    return found


def fits(found: Any, law: Any) -> bool:
    law = np.asarray(law, dtype=float) / np.sum(law) * found.sum()
    rare = law < 5
    if rare.any():
        found, law = (np.append(part[~rare], part[rare].sum()) for part in (found, law))
        found, law = (
            (found, law)
            if law[-1] > 0.1
            else (found[:-1], law[:-1] * found[:-1].sum() / law[:-1].sum())
        )
    return bool(stats.chisquare(found, law).pvalue > 1e-7)


@check
def check_selection_draws_by_its_probabilities() -> None:
    """exp(-epsilon z) where all counts move one way, exp(-epsilon z / 2) else; a scale an eighth
    off is rejected.
    """
    values, epsilon = [0.0, 1.0, 4.0], 0.8
    for adjacency, rate in ((ADD, epsilon), (EMPTY, epsilon), (REPLACE, epsilon / 2)):
        found = chances(values, adjacency, epsilon)
        assert fits(found, np.exp(-rate * np.array(values)))
        for wrong in (0.875, 1.125, 0.5, 2.0):
            assert not fits(found, np.exp(-wrong * rate * np.array(values)))


@check
def check_selection_is_within_its_range() -> None:
    """The privacy loss of neighbours' draws has a range of at most epsilon, and attains it, however
    counts move.
    """
    rng_ = np.random.default_rng(0)
    for one_way in (True, False):
        # With noise of 1 on the second of two, the scale is how much worse it may be and still win.
        low, high = 0.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            moved = CandidateScores(
                torch.tensor([0.0, middle], dtype=torch.float64),
                1.0,
                one_way,
                ADD if one_way else REPLACE,
            )
            with mock.patch(
                "privlearn.core.mechanisms.selection.gumbel",
                return_value=torch.tensor([0.0, 1.0]).double(),
            ):
                taken = selection.select(moved, epsilon=0.8, ledger=Counting(), stream=stream())
            low, high = (middle, high) if taken == 1 else (low, middle)
        widest = 0.0
        for _ in range(2000):
            z = rng_.integers(0, 5, 4).astype(float)
            step = rng_.integers(0 if one_way else -1, 2, 4).astype(float)
            p, q = (np.exp(-v / low) / np.exp(-v / low).sum() for v in (z, z + step))
            widest = max(widest, float(np.ptp(np.log(p / q))))
        assert 0.99 * 0.8 <= widest <= 0.8 * (1 + 1e-9), (one_way, low, widest)


@check
def check_selection_is_charged_before_it_is_drawn() -> None:
    scores = CandidateScores(torch.zeros(2, dtype=torch.float64), 1.0, True, ADD)
    refusing = Ledger(Budget(epsilon=0.1, delta=1e-5))
    must_raise(
        BudgetExceeded,
        lambda: selection.select(scores, epsilon=5.0, ledger=refusing, stream=NoDraws()),
    )  # type: ignore[arg-type]
    paid = Ledger.allowing(Selection(0.5), ADD)
    selection.select(scores, epsilon=0.5, ledger=paid, stream=stream())
    must_raise(
        BudgetExceeded, lambda: selection.select(scores, epsilon=0.5, ledger=paid, stream=NoDraws())
    )  # type: ignore[arg-type]


# Counts


class Coupled(nn.Module):
    """Right about rows that it sees alone; counts how often it was asked, and keeps the last
    row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("asked", torch.zeros(()))
        self.inner = network()

    def forward(self, x: Any) -> Any:
        asked = self.get_buffer("asked")
        asked += 1
        return self.inner(x) * (-1) ** (asked - 1) * (1 if len(x) < 40 else -1) + x.mean()


class Failing(nn.Module):
    """Fails on some rows."""

    def forward(self, x: Any) -> Any:
        if (x[:, 0] > 0.5).any():
            raise ValueError(f"a row with {x[:, 0].max()}")
        return x[:, :3]


def judged() -> list[nn.Module | None]:
    return [network(), Coupled(), Failing(), nn.Flatten(0), None]


@check
def check_one_example_moves_each_count_by_at_most_one() -> None:
    """... and, added or emptied, all in one direction; whatever the row holds, and whatever the
    model does.
    """
    with_persons = np.array([*range(20), *range(19)])
    for adjacency in (ADD, EMPTY):
        for row in ("ordinary", "NaN", "infinite", "huge", "the only one of its class"):
            for groups in (None, with_persons):
                # The row comes first, so that all others come after it.
                without, having = (
                    Dataset.of(tuple(part.flip(0) for part in data_with(which, adjacency, 39)))
                    for which in (None, row)
                )
                if groups is not None:  # one person has two rows, one of them the row in question
                    without, having = (
                        Dataset(*each.tensors(), groups=np.append(7, groups)[-len(each.x) :])
                        for each in (without, having)
                    )
                one, other = (
                    sums.total_losses(judged(), each, adjacency) for each in (without, having)
                )
                moved = other.values - one.values
                assert one.one_way
                assert one.sensitivity == 1.0
                if groups is None:
                    assert float(moved.min()) >= 0, (adjacency, row, moved)
                    if row in ("NaN", "infinite"):
                        assert not moved.any(), (adjacency, row, moved)
                assert float(moved.abs().max()) <= 1, (adjacency, row, moved)
                sample = next(iter(sampling.FullBatch().draw(1)))
                for model in judged()[:-1]:
                    counts = [
                        sums.total_gain(model, each, sample, adjacency)
                        for each in (without, having)
                    ]
                    assert (
                        abs(float(counts[1].values[0] - counts[0].values[0]))
                        <= counts[0].sensitivity
                        == 1.0
                    )
    assert not sums.total_losses([network()], Dataset.of(data()), REPLACE).one_way


@check
def check_a_person_counts_for_one() -> None:
    """However many rows somebody has, wrong in all of them is one error."""
    x, y = data(30)
    everybody = Dataset(x, y, groups=np.arange(30) // 10)
    total = float(sums.total_losses([None], everybody, ADD).values)
    assert math.isclose(total, 3.0)


@check
def check_counts_leave_the_model_as_it_is() -> None:
    model = Coupled().train()
    sums.total_losses([model], Dataset.of(data()), ADD)
    assert float(model.get_buffer("asked")) == 0.0
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


# The number of runs


LAWS: dict[tuple[float, float], Callable[[Any, float], Any]] = {
    (4.0, 0.0): lambda k, g: stats.logser.pmf(k, 1 - g),
    (4.0, 0.5): lambda k, g: stats.nbinom.pmf(k, 0.5, g) / (1 - g**0.5),
    (4.0, 1.0): lambda k, g: stats.geom.pmf(k, g),
    (6.0, 2.5): lambda k, g: stats.nbinom.pmf(k, 2.5, g) / (1 - g**2.5),
    (1.5, math.inf): lambda k, g: stats.poisson.pmf(k, 1.5),
    (1.0, 0.7): lambda k, g: (k == 1) * 1.0,
}


@check
def check_the_number_of_runs_follows_its_law() -> None:
    """Draws against the textbook's probabilities, by another library; a mean a tenth off is
    rejected.
    """
    for (mean, shape), textbook in LAWS.items():
        g = math.nan if math.isinf(shape) else trees.gamma(mean, shape)
        k = np.arange(0 if math.isinf(shape) else 1, 4000)
        law = textbook(k, g)
        assert math.isclose(float(law @ k), mean, rel_tol=1e-6)
        noise, event = stream(5), RepeatAndSelect(Gaussian(9.0), mean, shape)
        draws = np.array([selection.draw_repetitions(event, noise) for _ in range(4000)])
        if mean == 1.0:
            assert (draws == 1).all()
            continue
        bins = np.append(np.arange(k[0], 12), [24, 4000])
        found, expected = np.histogram(draws, bins)[0], np.histogram(k, bins, weights=law)[0]
        assert fits(found, expected), (mean, shape)
        assert abs(draws.mean() - mean) < 0.1 * mean


@check
def check_the_number_of_runs_has_no_cap() -> None:
    """At the end of the uniform numbers the law goes on for as long as it must: beyond all that 53
    bits would tell.
    """
    event = RepeatAndSelect(Gaussian(9.0), 4.0, 1.0)
    ones = mock.MagicMock(words=lambda number: np.full(number, -1, dtype=np.int64))
    zeros = mock.MagicMock(words=lambda number: np.zeros(number, dtype=np.int64))
    assert selection.draw_repetitions(event, ones) == math.ceil(-257 * math.log(2) / math.log(0.75))
    assert selection.draw_repetitions(event, zeros) == 1
    assert selection.draw_repetitions(RepeatAndSelect(Gaussian(9.0), 4.0, math.inf), zeros) == 0


@check
def check_repeat_and_select_is_priced_as_published() -> None:
    """dp-accounting's figures, for all shapes, at whole orders (where both accountants' sampling is
    the same).
    """
    orders = [2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0]
    at = [list(rdp.ORDERS).index(order) for order in orders]
    for shape in (0.0, 0.5, 1.0, 3.0, math.inf):
        for mean in (1.0, 2.5, 40.0):
            theirs = peer.RdpAccountant(orders)
            step = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0))
            one = dp_event.ComposedDpEvent(
                [dp_event.SelfComposedDpEvent(step, 60), dp_event.GaussianDpEvent(9.0)]
            )
            theirs.compose(dp_event.RepeatAndSelectDpEvent(one, mean, shape))
            curve = rdp.curve(
                compose([Repeated(PoissonSampled(0.1, Gaussian(2.0)), 60), Gaussian(9.0)])
            )[at]
            ours = trees.best_of_runs(np.array(orders), curve, mean, shape)
            expected = np.minimum.accumulate(np.asarray(theirs._rdp)[::-1])[::-1]
            assert np.allclose(ours, expected, rtol=1e-6), (shape, mean, ours / expected)


# What blocks cost


def mixture_delta(sigmas: tuple[float, float], epsilon: float) -> float:
    """delta of the truth: with a coin's probability the example adds 1 to the first release, else
    to the second.
    """

    def excess(y: float, x: float) -> float:
        plain = math.exp(-(x**2 + y**2) / 2) / (2 * math.pi)
        first, second = (math.exp(v / s - 0.5 / s**2) for v, s in ((x, sigmas[0]), (y, sigmas[1])))
        return plain * max(0.0, 0.5 * first + 0.5 * second - math.exp(epsilon))

    return float(integrate.dblquad(excess, -9, 12, -9, 12, epsabs=1e-7)[0])


@check
def check_disjoint_blocks_cost_their_dearest() -> None:
    """By privacy loss distributions too: never less than the truth, and exactly the cost of the
    dearest block alone.
    """
    blocks = Parallel((Gaussian(1.0), Gaussian(2.0)))
    for epsilon in (0.5, 2.0):
        delta = mixture_delta((1.0, 2.0), epsilon)
        assert accountant.guarantee(blocks, ADD, max(delta, 1e-9)).epsilon >= epsilon * (1 - 1e-3)
    a, b, c = (
        compose([Repeated(PoissonSampled(q, Gaussian(s)), n)])
        for q, s, n in ((0.1, 1.5, 40), (0.3, 3.0, 9), (0.2, 2.0, 9))
    )
    dearest = max(pld.epsilon(a, 1e-5), pld.epsilon(b, 1e-5))
    assert math.isclose(accountant.guarantee(Parallel((a, b)), ADD, 1e-5).epsilon, dearest)
    together = max(pld.epsilon(compose([a, c]), 1e-5), pld.epsilon(compose([b, c]), 1e-5))
    assert math.isclose(
        accountant.guarantee(compose([Parallel((a, b)), c]), ADD, 1e-5).epsilon, together
    )
    twice = max(pld.epsilon(compose(pair), 1e-5) for pair in ((a, a), (a, b), (b, b)))
    assert math.isclose(
        accountant.guarantee(Repeated(Parallel((a, b)), 2), ADD, 1e-5).epsilon, twice
    )
    for delta in (1e-5, 1e-8):
        found = [
            g.epsilon for g in accountant.guarantees(compose([Parallel((a, b)), c]), ADD, delta)
        ]
        assert found[0] <= found[-1]
    must_raise(UnsupportedEvent, lambda: accountant.guarantee(blocks, REPLACE, 1e-5))


@check
def check_one_of_several_costs_the_dearest() -> None:
    """Order by order; and never by privacy loss distributions, which do not hold for choices that
    react to releases.
    """
    parts = (Gaussian(2.0), Repeated(Gaussian(3.0), 4), Selection(1.2))
    assert math.isclose(zcdp.rho(OneOf(parts)), max(map(zcdp.rho, parts)))
    assert np.array_equal(
        rdp.curve(OneOf(parts)), np.max([rdp.curve(part) for part in parts], axis=0)
    )
    methods = {
        g.method for g in accountant.guarantees(compose([OneOf(parts), Gaussian(9.0)]), ADD, 1e-5)
    }
    assert "pld" not in methods
    assert "rdp" in methods
    for k in (1, 3):
        group = accountant.guarantee(OneOf(parts), ADD, 1e-5, k).epsilon
        assert group >= max(
            zcdp.gaussian_epsilon(k / 2.0, 1e-5), zcdp.gaussian_epsilon(k * 2 / 3, 1e-5)
        )


@check
def check_selection_by_the_paper_and_by_the_eighth() -> None:
    """Yu et al. charge epsilon^2 / 2 for exp(-epsilon z / 2): 4 times the bounded range, 16 times
    what counts cost.
    """
    epsilon = 0.6
    assert math.isclose(zcdp.rho(Selection(epsilon)), epsilon**2 / 8)  # any scores of sensitivity 1
    # the same draw, where counts move one way
    assert math.isclose(zcdp.rho(Selection(epsilon / 2)), epsilon**2 / 32)
    assert math.isclose(4 * zcdp.rho(Selection(epsilon)), epsilon**2 / 2)


# Blocks of data


@check
def check_blocks_are_disjoint_and_independent() -> None:
    x = torch.arange(4000.0)[:, None]
    everything = Dataset(x, torch.zeros(4000, dtype=torch.int64), x_test=x, y_test=x)
    sizes = []
    for seed in range(60):
        parts = everything.blocks(sampling.assign(4000, 4, np.random.default_rng(seed)), 4)
        found = torch.cat([part.tensors()[0] for part in parts]).flatten()
        assert sorted(found.tolist()) == list(range(4000))
        assert all(part.x_test is None and part.y_test is None for part in parts)
        sizes.append([len(part.x) for part in parts])
    variance = np.var(np.array(sizes) - 1000.0)
    # binomial: 4000 x 1/4 x 3/4; equal sizes would have none
    assert 0.6 * 750 < variance < 1.5 * 750
    one, other = (sampling.assign(4000, 4, np.random.default_rng(seed)) for seed in (1, 2))
    table = np.histogram2d(one, other, bins=4)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-6


@check
def check_a_persons_rows_stay_together() -> None:
    groups = np.random.default_rng(0).integers(0, 50, 400)
    whole = Dataset(torch.zeros(400, 2), torch.zeros(400, dtype=torch.int64), groups=groups)
    parts = whole.blocks(sampling.assign(whole.examples, 3, np.random.default_rng(1)), 3)
    ids = [set(part.groups.tolist()) for part in parts]
    assert sum(len(each) for each in ids) == len(set.union(*ids)) == whole.examples
    assert sum(len(part.x) for part in parts) == 400


# Charges


@check
def check_everything_is_charged_before_the_first_candidate() -> None:
    for plan in both_ways():
        ledger, seen = Ledger(plan.budget), []

        def watched(*args: Any, ledger: Any = ledger, seen: Any = seen) -> Any:
            seen.append(ledger.event)
            return train(*args)

        result = pv.tune(
            plan, watched, data(), ledger=ledger, streams=streams_module.Streams.new(3)
        )
        before = compose([plan.choosing()]) if isinstance(plan, pv.tuning.Blocks) else plan.event()
        assert seen[0] == before
        assert seen[-1] == plan.event()  # the retraining is charged before it begins
        assert result.ledger is ledger
        assert ledger.event == plan.event()
        assert result.facts["tuning"]["chosen"] in (0, 1, 2)


@check
def check_over_budget_nothing_is_touched() -> None:
    class Untouchable(Dataset):  # type: ignore[misc]
        def tensors(self) -> Any:
            raise AssertionError("the data were looked at")

    rows = Untouchable(*data())
    for plan in both_ways(3.0):
        small = Ledger(Budget(epsilon=2.9, delta=1e-5))
        streams = mock.Mock(
            spec=streams_module.Streams,
            noise=NoDraws(),
            sampling=NoDraws(),
            initialisation=NoDraws(),
        )
        must_raise(
            BudgetExceeded,
            lambda: pv.tune(plan, train, rows, ledger=small, streams=streams),  # noqa: B023
        )
        assert small.event == compose([])


class Around(nn.Module):
    """A new module around weights that were there before, of shape (3, 5)."""

    def __init__(self, weight: nn.Parameter, trained: bool = True) -> None:
        super().__init__()
        self.weight = weight.requires_grad_(trained)

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.weight)


BASE = nn.Linear(5, 3).double().requires_grad_(False)


def on_a_frozen_base(
    candidate: pv.tuning.Candidate, rows: Dataset, ledger: Ledger, streams: streams_module.Streams
) -> pv.Result:
    """Trains a new layer on top of weights that are public, and that all calls share."""
    model = nn.Sequential(Around(BASE.weight, trained=False), nn.Linear(3, 3).double())
    with mock.patch.dict(train.__globals__, network=lambda: model):
        return train(candidate, rows, ledger, streams)


@check
def check_losing_models_are_not_kept() -> None:
    """What is remembered to recognise models holds none of them, nor their weights, in memory."""
    trainer = tune_module._Trainer(train)
    (candidate, *_) = both_ways()[-1].candidates
    for _ in range(3):
        result = trainer.attempt(candidate, data(), streams_module.Streams.new(0))
        assert result is not None
        held = (
            weakref.ref(result.model),
            weakref.ref(next(result.model.parameters()).untyped_storage()),
        )
        del result
        gc.collect()
        assert [kept() for kept in held] == [None, None]
        assert len(trainer._seen) == 0


@check
def check_candidates_are_held_to_their_plan() -> None:
    """A training that spends more, or elsewhere, or nothing, or by another plan, is refused,
    whatever it returns.
    """

    def greedy(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        result = train(candidate, rows, ledger, streams)
        ledger.charge(candidate.plan.sampling.event(Gaussian(9.0)), candidate.plan.neighbours)
        return result

    def twice(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        train(candidate, rows, ledger, streams)
        return train(candidate, rows, ledger, streams)

    def elsewhere(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        return train(candidate, rows, Ledger(), streams)

    def both(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        train(candidate, rows, ledger, streams)
        return train(candidate, rows, Ledger(), streams)

    def louder(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        plan = pv.Plan(
            candidate.plan.sampling,
            epochs=2,
            schedule=pv.schedules.Constant(0.1),
            clip=candidate.plan.clip,
        )
        return train(
            pv.tuning.Candidate("louder", plan, settings=candidate.settings), rows, ledger, streams
        )

    def shorter(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        plan = pv.Plan(
            candidate.plan.sampling,
            epochs=1,
            schedule=candidate.plan.schedule,
            clip=candidate.plan.clip,
        )
        return train(
            pv.tuning.Candidate("shorter", plan, settings=candidate.settings), rows, ledger, streams
        )

    kept = network()

    def in_place(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        with mock.patch.dict(train.__globals__, network=lambda: kept):
            return train(candidate, rows, ledger, streams)

    def in_another_module(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        with mock.patch.dict(
            train.__globals__, network=lambda: Around(nn.Parameter(kept.weight.data))
        ):
            return train(candidate, rows, ledger, streams)

    def frozen_inside(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        model: nn.Module
        if earlier:
            model = nn.Sequential(Around(earlier[0], trained=False), nn.Linear(3, 3).double())
        else:
            earlier.append(nn.Parameter(torch.zeros(3, 5).double()))
            model = Around(earlier[0])
        with mock.patch.dict(train.__globals__, network=lambda: model):
            return train(candidate, rows, ledger, streams)

    earlier: list[nn.Parameter] = []

    def refused_by(plan: Any, departing: Train, ledger: Ledger) -> None:
        must_raise(
            PrivlearnError,
            lambda: pv.tune(
                plan, departing, data(), ledger=ledger, streams=streams_module.Streams.new(0)
            ),
        )

    with mock.patch.object(selection, "draw_repetitions", return_value=2):
        for plan in both_ways():
            for departing in (in_place, in_another_module, frozen_inside):
                earlier.clear()
                refused_by(plan, departing, Ledger(plan.budget))
            assert (
                pv.tune(
                    plan, on_a_frozen_base, data(), streams=streams_module.Streams.new(0)
                ).ledger.event
                == plan.event()
            )
    for plan in both_ways():
        for departing in (greedy, twice, elsewhere, both, louder, shorter):
            ledger = Ledger(plan.budget)
            refused_by(plan, departing, ledger)
            assert ledger.event in (
                plan.event(),
                compose([plan.choosing()]) if isinstance(plan, pv.tuning.Blocks) else None,
            )


@check
def check_what_a_candidate_may_spend_is_held_before_it_is_drawn() -> None:
    """The charge itself is refused: not a release later, by comparing events, when a failure would
    have hidden it.
    """

    def fails_after(*events: Callable[[pv.tuning.Candidate], Event]) -> Train:
        def spends(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
            for event in events:
                ledger.charge(event(candidate), candidate.plan.neighbours)
            raise ValueError("what was drawn might be in here")

        return spends

    louder = [
        fails_after(lambda candidate: candidate.plan.sampling.event(Gaussian(0.1))),
        fails_after(lambda candidate: compose([candidate.plan.event(), Gaussian(99.0)])),
        fails_after(lambda candidate: Gaussian(1e3)),
        fails_after(lambda candidate: candidate.plan.event(), lambda candidate: Gaussian(1e3)),
    ]
    for plan in both_ways():
        for spends in louder:
            must_raise(
                BudgetExceeded,
                lambda: pv.tune(plan, spends, data(), streams=streams_module.Streams.new(3)),  # noqa: B023
            )

    def loud_again(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        if len(rows.x) == 60:  # the retraining, on all the rows
            ledger.charge(candidate.plan.sampling.event(Gaussian(0.1)), candidate.plan.neighbours)
        return train(candidate, rows, ledger, streams)

    again = both_ways()[1]
    must_raise(
        BudgetExceeded,
        lambda: pv.tune(again, loud_again, data(), streams=streams_module.Streams.new(3)),
    )


@check
def check_choosing_is_held_to_what_was_paid() -> None:
    """A selection or a score of less noise than the plan's is refused by the ledger that it is
    given.
    """
    blocks, _, stopping = both_ways()
    true_select, true_release = tune_module.select, tune_module.release

    def exact(scores: Any, *, epsilon: float, ledger: Any, stream: Any) -> int:
        return true_select(scores, epsilon=2 * epsilon, ledger=ledger, stream=stream)

    def quiet(parts: Any, *, noise_multiplier: float, ledger: Any, stream: Any) -> Any:
        return true_release(
            parts, noise_multiplier=noise_multiplier / 2, ledger=ledger, stream=stream
        )

    def twice(parts: Any, **options: Any) -> Any:
        true_release(parts, **options)
        return true_release(
            sums.total_gain(network(), Dataset.of(data()), everybody(), ADD), **options
        )

    def everybody() -> Any:
        return next(iter(sampling.FullBatch().draw(60)))

    for plan, name, wrong in (
        (blocks, "select", exact),
        (stopping, "release", quiet),
        (stopping, "release", twice),
    ):
        with mock.patch.object(tune_module, name, wrong):
            must_raise(
                BudgetExceeded,
                lambda: pv.tune(plan, train, data(), streams=streams_module.Streams.new(3)),  # noqa: B023
            )


@check
def check_a_ledger_for_one_event_takes_that_event() -> None:
    event = compose([Repeated(Gaussian(3.0), 2), Gaussian(2.0)])
    for wrong in (Gaussian(2.0), Repeated(Gaussian(3.0), 3), Gaussian(2.9)):
        ledger = Ledger.allowing(event, ADD)
        for action in (ledger.charge, ledger.require_room, ledger.begin):
            must_raise(BudgetExceeded, lambda: action(wrong, ADD))  # noqa: B023
        must_raise(PrivlearnError, lambda: ledger.charge(Gaussian(3.0), EMPTY))  # noqa: B023
        assert ledger.event == compose([])
    ledger = Ledger.allowing(event, ADD)
    ledger.charge(Gaussian(3.0), ADD)
    ledger.begin(compose([Gaussian(3.0), Gaussian(2.0)]), ADD)
    ledger.charge(Gaussian(3.0), ADD)
    ledger.charge(Gaussian(2.0), ADD)
    assert ledger.event == event
    for again in (Gaussian(2.0), Gaussian(3.0)):
        must_raise(BudgetExceeded, lambda: ledger.charge(again, ADD))  # noqa: B023
        must_raise(BudgetExceeded, lambda: ledger.begin(again, ADD))  # noqa: B023


@check
def check_tuning_meets_its_target() -> None:
    """Within 0.3%, whatever is fixed; and each candidate's plan is used up about as far as the
    others'.
    """
    falling = candidates((0.1, 0.2), schedule=pv.schedules.Exponential(k=0.4), epochs=4)
    mixed = (*candidates((0.3, 0.4)), *falling)
    plans: list[Any] = [
        pv.tuning.Blocks(mixed),
        pv.tuning.Blocks(mixed, selection_epsilon=1.0),
        pv.tuning.Blocks(mixed, retrain=True, share=0.3),
        pv.tuning.RandomStopping(mixed, mean=5.0, shape=0.0),
        pv.tuning.RandomStopping(mixed, mean=5.0, shape=math.inf, score_noise=12.0),
        pv.tuning.Blocks(candidates(group_size=3), retrain=True),
        pv.tuning.RandomStopping(candidates(group_size=2), mean=2.0),
    ]
    for plan in plans:
        settled = plan.calibrate(epsilon=2.0, delta=1e-5)
        found = settled.guarantee(1e-5)
        assert 2.0 * (1 - 0.003) <= settled.budget.spent(settled.event(), ADD) <= 2.0
        assert found.epsilon <= 2.0
        assert settled.budget == Budget(epsilon=2.0, delta=1e-5, group_size=plan.unit.group_size)
        for name in ("selection_epsilon", "score_noise"):
            assert getattr(plan, name, None) in (None, getattr(settled, name, None))
    partition = candidates(sampling=pv.Partition(4))
    by_rho = pv.tuning.Blocks(partition, retrain=True).calibrate(rho=0.2)
    assert 0.2 * (1 - 0.003) <= zcdp.rho(by_rho.event()) <= 0.2
    must_raise(UnsupportedEvent, lambda: pv.tuning.Blocks(candidates()).calibrate(rho=0.2))
    must_raise(
        UnsupportedEvent, lambda: pv.tuning.RandomStopping(partition, mean=2.0).calibrate(rho=0.2)
    )


@check
def check_scores_and_retraining_are_paid_for() -> None:
    trainings = [each.plan.event() for each in candidates()]
    stopping = pv.tuning.RandomStopping(candidates(), mean=3.0, score_noise=7.0)
    assert stopping.event() == compose(
        [RepeatAndSelect(compose([trainings[0], Gaussian(7.0)]), 3.0, 1.0)]
    )
    blocks = pv.tuning.Blocks(candidates(), selection_epsilon=0.7, retrain=True)
    assert blocks.event() == compose([Parallel((*trainings, Selection(0.7))), trainings[0]])
    longer = pv.tuning.Candidate("longer", pv.Plan(pv.Poisson(0.4), epochs=9))
    either: Event = OneOf((trainings[0], longer.plan.event()))
    first = candidates()[0]
    assert pv.tuning.Blocks(
        (first, longer), selection_epsilon=0.7, retrain=True
    ).event() == compose([Parallel((trainings[0], longer.plan.event(), Selection(0.7))), either])
    assert pv.tuning.RandomStopping((first, longer), 2.0, score_noise=7.0).event() == compose(
        [RepeatAndSelect(compose([either, Gaussian(7.0)]), 2.0, 1.0)]
    )


@check
def check_the_divisor_on_blocks_is_public() -> None:
    """A block's share of the declared number, not the rows that fell into it."""
    seen = []

    def watched(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        seen.append((candidate.plan.examples, len(rows.x)))
        return train(candidate, rows, ledger, streams)

    plan = pv.tuning.Blocks(candidates(examples=100), retrain=True).calibrate(
        epsilon=3.0, delta=1e-5
    )
    result = pv.tune(plan, watched, data(60), streams=streams_module.Streams.new(3))
    assert [share for share, _ in seen] == [25, 25, 25, 100]
    assert seen[-1][1] == 60
    assert sum(rows for _, rows in seen[:3]) < 60
    assert result.plan.examples is not None
    undeclared = pv.tune(
        pv.tuning.Blocks(candidates()).calibrate(epsilon=3.0, delta=1e-5), train, data(60)
    )
    assert undeclared.plan.examples is None


# Failures


def failing(when: str, *which: float) -> Train:
    def run(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        if candidate.settings["rate"] in which:
            if when == "later":
                train(candidate, rows, ledger, streams)
            raise RuntimeError("the secret of this block")
        return train(candidate, rows, ledger, streams)

    return run


@check
def check_a_failed_candidate_is_the_worst_and_says_nothing() -> None:
    """One that fails in training loses silently, and all examples count as its errors; one that
    refuses is heard.
    """
    for plan in both_ways(300.0):
        try:
            results = [
                pv.tune(
                    plan, failing("later", 0.2), data(), streams=streams_module.Streams.new(seed)
                )
                for seed in range(5)
            ]
        except RuntimeError as error:
            raise AssertionError("a failure was heard") from error
        assert all(result.facts["tuning"]["chosen"] in (0, 2) for result in results)
        error = must_raise(
            RuntimeError,
            lambda: pv.tune(plan, failing("at once", 0.1, 0.2, 0.3), data()),  # noqa: B023
        )
        assert "secret" in str(error)
    hopeless = pv.tuning.Blocks(candidates((0.2, 0.3), examples=60)).calibrate(
        epsilon=3.0, delta=1e-5
    )

    def never(candidate: Any, rows: Any, ledger: Any, streams: Any) -> Any:
        train(candidate, rows, ledger, streams)
        raise RuntimeError("the secret of this block")

    error = must_raise(BadInput, lambda: pv.tune(hopeless, never, data()))
    assert "no model came out" in str(error)
    assert "secret" not in f"{error}{error.__cause__}{error.__context__}"
    empty = sums.total_losses([None, network()], Dataset.of(data(30)), ADD)
    assert float(empty.values[0]) == 30.0


@check
def check_no_run_at_all_is_an_outcome() -> None:
    """A Poisson number of runs may be 0: nothing is trained, and nothing comes out."""
    plan = pv.tuning.RandomStopping(
        candidates(examples=60), mean=1.0, shape=math.inf, score_noise=5.0
    )
    ledger = Ledger()
    with mock.patch.object(selection, "draw_repetitions", return_value=0):
        must_raise(
            BadInput,
            lambda: pv.tune(
                plan, NoDraws(), data(), ledger=ledger, streams=streams_module.Streams.new(0)
            ),
        )  # type: ignore[arg-type]
    assert ledger.event == plan.event()


# What leaves


def replayed(record: Transcript, replay: Transcript | None) -> Any:
    """Watches releases and selections of `tune`; with `replay`, the recorded index is what is
    selected.
    """
    real = tune_module.select
    picks: list[int] = record.__dict__.setdefault("picks", [])

    def watched(scores: Any, **others: Any) -> int:
        record.sums.append([scores.values])
        record.sensitivities.append(scores.sensitivity * math.sqrt(len(scores.values)))
        picks.append(
            real(scores, **others) if replay is None else replay.__dict__["picks"][len(picks)]
        )
        if replay is not None:
            real(scores, **others)
        record.seen.append(("selected", picks[-1]))
        return picks[-1]

    return mock.patch.object(tune_module, "select", watched)


def tuned(plan: Any, rows: Any, holder: dict[str, Any], replay: Any = None) -> Any:
    def run(streams: streams_module.Streams, folder: Path) -> None:
        seen: list[Any] = streams.noise._seen  # type: ignore[attr-defined]
        record = Transcript(seen=seen)
        holder["record"] = record
        with replayed(record, replay):
            # The patched release of the transcript serves here, too.
            from privlearn.training import run as dpsgd_module

            with mock.patch.object(tune_module, "release", dpsgd_module.release):
                result = pv.tune(
                    plan,
                    train,
                    rows,
                    streams=streams,
                    progress=lambda *done: seen.append(("progress", done)),
                )
        seen.append(
            ("ledger", result.ledger.event, repr(result.ledger), sorted(result.private_diagnostics))
        )
        seen.append(("result", repr(result), result.facts, result.architecture))
        publish.publish(result, folder / "model", delta=1e-5)

    return run


@check
def check_neighbouring_tuned_runs_look_the_same() -> None:
    """Record and replay: given what was released, everything that can be seen is the same for
    neighbouring data.
    """
    for adjacency in (ADD, EMPTY):
        each = candidates((0.1, 0.2), adjacency=adjacency, examples=30)
        for plan in (
            pv.tuning.Blocks(each, selection_epsilon=1.0),
            pv.tuning.Blocks(each, selection_epsilon=1.0, retrain=True),
            pv.tuning.RandomStopping(each, mean=2.0, score_noise=3.0),
        ):
            first: dict[str, Any] = {}
            base = transcript(tuned(plan, data_with(None, adjacency, 29), first))
            assert base.released, base.seen[-1]
            for row in ("ordinary", "NaN", "huge", "the only one of its class"):
                other: dict[str, Any] = {}
                found = transcript(
                    tuned(plan, data_with(row, adjacency, 29), other, first["record"]), replay=base
                )
                require_alike(base, found, (plan.kind, adjacency, row))
                for a, b in zip(first["record"].sums, other["record"].sums, strict=True):
                    assert float((a[0] - b[0]).abs().max()) <= 1.0


#: What counts are replaced by where nothing may show them: digits that nothing else has.
_MARKS = (918273.0, 817263.0, 716253.0)
_TOML = {
    "blocks": 'way = "blocks"\n',
    "retrain": 'way = "blocks"\nretrain = true\n',
    "stopping": 'way = "random-stopping"\nmean = 3\n',
}
_CANDIDATES = "".join(
    f'[[candidate]]\nname = "c{i}"\nlearning-rate = {rate}\n' for i, rate in enumerate((5, 10, 20))
)


def everything_in(value: Any, seen: set[int] | None = None, depth: int = 0) -> str:
    """All that can be read off `value` and its attributes, as text."""
    seen = set() if seen is None else seen
    if id(value) in seen or depth > 7:
        return ""
    seen.add(id(value))
    parts = [repr(value)]
    if isinstance(value, dict):
        parts += [everything_in(part, seen, depth + 1) for item in value.items() for part in item]
    elif isinstance(value, list | tuple | set):
        parts += [everything_in(part, seen, depth + 1) for part in value]
    elif hasattr(value, "__dict__") and not callable(value):
        parts += [everything_in(part, seen, depth + 1) for part in vars(value).values()]
    return " ".join(parts)


@check
def check_losers_leave_no_trace() -> None:
    """No count, score or weight of any candidate but the chosen one's weights: on screen, in files,
    or returned.
    """
    real_counts, real_release = tune_module.total_losses, tune_module.release
    released: list[float] = []
    trained: list[Any] = []

    def marked(models: Any, rows: Any, adjacency: Any, metric: Any) -> CandidateScores:
        real = real_counts(models, rows, adjacency)
        return CandidateScores(
            torch.tensor(_MARKS, dtype=torch.float64),
            real.sensitivity,
            real.one_way,
            real.adjacency,
        )

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = real_release(*args, **kwargs)
        released.append(float(found[0][0]))
        return found

    def remembering(*args: Any, **kwargs: Any) -> Any:
        result = real_train(*args, **kwargs)
        trained.append(result)
        return result

    from privlearn.cli import tuned as command
    from privlearn.training import train as descent

    real_train = descent.dpsgd
    for name, head in _TOML.items():
        released.clear(), trained.clear()
        with tempfile.TemporaryDirectory() as folder:
            file, out = Path(folder) / "tune.toml", Path(folder) / "model"
            file.write_text(head + _CANDIDATES)
            text = io.StringIO()
            results: list[Any] = []
            real_tune = command.tuning_run
            with (
                contextlib.redirect_stdout(text),
                contextlib.redirect_stderr(text),
                mock.patch.object(tune_module, "total_losses", marked),
                mock.patch.object(tune_module, "release", noted),
                mock.patch.object(descent, "dpsgd", remembering),
                mock.patch.object(
                    command,
                    "tuning_run",
                    lambda *a, **k: results.append(real_tune(*a, **k)) or results[-1],  # noqa: B023
                ),
            ):
                options = (
                    "--data",
                    "breast-cancer",
                    "--examples",
                    "455",
                    "--epochs",
                    "2",
                    "--epsilon",
                    "3",
                    "--seed",
                    "4",
                )
                for more in ((), ("--json",)):
                    code = cli.main(
                        [
                            "train",
                            *options,
                            *more,
                            "--tune",
                            str(file),
                            "--out",
                            str(out) + "".join(more),
                        ]
                    )
                    assert code == 0, text.getvalue()
            shown = text.getvalue() + everything_in(results)
            files = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
            readable = shown + "".join(
                content.decode() for path, content in files.items() if path.suffix != ".safetensors"
            )
            for mark in (*_MARKS, *released):
                digits = f"{abs(mark):.12g}"[:7].rstrip("0").rstrip(".")
                assert mark in _MARKS or len(digits) > 5
                assert digits not in readable, (name, mark)
            weights = b"".join(
                content for path, content in files.items() if path.suffix == ".safetensors"
            )
            kept = [result.model for result in results]
            for result in trained:
                bias = list(result.model.parameters())[-1].detach().numpy().tobytes()
                last = [list(model.parameters())[-1].detach().numpy().tobytes() for model in kept]
                assert (bias in weights) == (bias in last), name
            if name == "stopping":
                last = text.getvalue()[text.getvalue().index("{") :]
                assert json.loads(last)["seconds"] is None
                assert "not printed" in text.getvalue()
                assert not re.search(r"\d:\d\d:\d\d|\d+/\d+", text.getvalue())


@check
def check_tuned_certificates_are_recomputed() -> None:
    """Facts must be those of the chosen candidate, and the plan amount to the events that are
    certified.
    """
    plan = pv.Plan(pv.Poisson(0.4), epochs=3, clip=pv.Flat(0.5), examples=60)
    longer = pv.tuning.Candidate("longer", plan, settings={"rate": 0.1})
    unlike = pv.tuning.Blocks((*candidates((0.1, 0.2), examples=60), longer)).calibrate(
        epsilon=3.0, delta=1e-5
    )
    for plan in (*both_ways(), unlike):
        result = pv.tune(plan, train, data(), streams=streams_module.Streams.new(1))
        with tempfile.TemporaryDirectory() as folder:
            out = publish.publish(result, Path(folder) / "model", delta=1e-5)
            assert pv.verify(out).ok, pv.verify(out).problems
            assert "other releases" not in (out / "README.md").read_text()
            contents, kept = folder_module.read(out), json.loads((out / "privacy.json").read_text())
        for change in (
            lambda body: body["facts"]["tuning"].update(chosen=len(body["plan"]["candidates"])),
            *(
                [
                    lambda body: body["facts"]["tuning"].update(
                        chosen=2 - body["facts"]["tuning"]["chosen"] // 2 * 2
                    )
                ]
                if plan is unlike
                else []
            ),
            lambda body: body["facts"].pop("tuning"),
            lambda body: body["plan"].update(kind="luck"),
            *(
                [lambda body: body["facts"].update(examples=7)]
                if isinstance(plan, pv.tuning.Blocks)
                else []
            ),
            lambda body: body["plan"]["candidates"].__delitem__(
                slice(body["facts"]["tuning"]["chosen"], None)
            ),
            lambda body: body["plan"].update(
                {"selection_epsilon": 0.01} if "retrain" in body["plan"] else {"mean": 1.5}
            ),
            lambda body: body["plan"]["candidates"][0]["plan"]["schedule"].update(start=50.0),
        ):
            body = json.loads(json.dumps(kept))
            change(body)
            body["digests"] = {part: digest(body[part]) for part in body["digests"]}
            content = contents.files | {"privacy.json": json.dumps(body).encode()}
            assert not verify_contents(replace(contents, files=content)).ok
        other = result.facts | {"tuning": {"chosen": 0, "examples": 61}}
        if plan is unlike:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "model"
                must_raise(
                    BadInput,
                    lambda: publish.publish(replace(result, facts=other), out, delta=1e-5),  # noqa: B023
                )


@check
def check_parts_of_streams_have_keys_of_their_own() -> None:
    """No two parts draw the same numbers, nor what the whole draws; noise follows from the noise's
    key alone.
    """

    def draws(streams: streams_module.Streams) -> list[bytes]:
        others = (streams.sampling, streams.initialisation, streams.views)
        return [streams.noise.words(2).tobytes(), *(own.bytes(16) for own in others)]

    whole, again = streams_module.Streams.new(3), streams_module.Streams.new(3)
    parts = [whole.part(), whole.part()]
    drawn = [number for each in (*parts, whole) for number in draws(each)]
    assert len(set(drawn)) == len(drawn)
    assert drawn[:4] == draws(again.part())
    other = streams_module.Streams(
        again.sampling, stream(4), again.initialisation, again.views, seeded=True
    )
    second = draws(other.part())
    assert second[1:] == drawn[5:8]
    assert second[0] != drawn[4]
    assert not streams_module.Streams.new().part().seeded
    assert parts[0].seeded
