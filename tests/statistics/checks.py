"""Named checks of the sensitivities, noise and price of feature releases; mutations must make them
fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.events import tally, walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import RandomisedResponse, Selection
from privlearn.core.clipping import row_sums as statistics_module
from privlearn.core.clipping.bounded import kept
from privlearn.core.clipping.row_sums import bounded_rows, box_sums, class_statistics
from privlearn.core.mechanisms import selection as randomised_module
from privlearn.core.mechanisms import selection as selection_module
from privlearn.errors import BudgetExceeded, UnsupportedEvent
from privlearn.methods.statistics import features as rows_module
from privlearn.methods.statistics.plan import (
    FisherPlan,
    LeastSquaresPlan,
    RowsPlan,
    SelectionPlan,
    StatisticsPlan,
)
from privlearn.transforms import select as mechanism
from tests.support.checks import check, must_raise
from tests.support.nets import NoDraws, one_sample

ADD, ZERO, REPLACE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
R, B, K = 2.0, 0.7, 3
#: A row and its class, beside ordinary ones; `None` stands for an empty one.
STRANGE: list[tuple[list[float], int]] = [
    ([math.nan] * 4, 0),
    ([0.1, math.nan, 0.1, 0.1], 1),
    ([math.inf, 0.0, 0.0, 0.0], 2),
    ([1e30, -1e30, 1e30, 0.0], 0),
    ([1e-30, 0.0, 0.0, 0.0], 1),
    ([0.0, 0.0, 0.0, 0.0], 2),
]


def some_rows(rows: int = 40, features: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=generator, dtype=torch.float64)
    return x * 10 ** torch.linspace(-2, 2, rows)[:, None], torch.randint(
        K, (rows,), generator=generator
    )


def worst_rows(norm: float) -> list[tuple[Tensor, int]]:
    """Rows that reach the bounds: along an axis, against it, and beyond the norm; strange ones; for
    every class.
    """
    found = [(torch.tensor(row, dtype=torch.float64), label) for row, label in STRANGE]
    for axis in range(2):
        for size in (norm, -norm, 3 * norm, -3 * norm):
            for label in range(2):
                row = torch.zeros(4, dtype=torch.float64)
                row[axis] = size
                found.append((row, label))
    return found + [(row, int(label)) for row, label in zip(*some_rows(12, seed=5), strict=True)]


def neighbours(adjacency: Adjacency, rows: list[tuple[Tensor, int]]) -> Iterator[tuple[Any, Any]]:
    """Pairs of a last row, or None where there is none, that neighbouring data may differ in."""
    empty = (torch.full((4,), math.nan, dtype=torch.float64), 0)
    for place, one in enumerate(rows):
        if adjacency is REPLACE:
            yield from ((one, other) for other in rows[place + 1 :])
        else:
            yield one, None if adjacency is ADD else empty


def with_last(last: Any) -> tuple[Tensor, Tensor]:
    x, y = some_rows()
    if last is None:
        return x, y
    return torch.cat([x, last[0][None]]), torch.cat([y, torch.tensor([last[1]])])


def require_moves(
    measure: Callable[[Tensor, Tensor], list[tuple[Tensor, float]]], adjacency: Adjacency
) -> list[float]:
    """Between all neighbours each value moves by at most its sensitivity; returns how much of it
    was reached.
    """
    reached: list[float] = []
    for one, other in neighbours(adjacency, worst_rows(R)):
        pairs = zip(measure(*with_last(one)), measure(*with_last(other)), strict=True)
        for number, ((a, sensitivity), (b, same)) in enumerate(pairs):
            moved = float((a.double() - b.double()).norm())
            assert sensitivity == same
            assert moved <= sensitivity * (1 + 1e-9) + 1e-12, (
                adjacency,
                number,
                moved,
                sensitivity,
                one,
                other,
            )
            reached += [0.0] * (number + 1 - len(reached))
            reached[number] = max(reached[number], moved / sensitivity)
    return reached


# Sensitivities


@check
def check_one_row_moves_class_statistics_by_at_most_the_sensitivity() -> None:
    """Whatever it holds, for every kind of neighbour; and each bound is reached."""

    def measure(x: Tensor, y: Tensor) -> list[tuple[Tensor, float]]:
        sample = one_sample(examples=len(x))
        found = [
            *class_statistics(x, y, sample, adjacency, classes=K, norm=R),
            *class_statistics(
                x, y, sample, adjacency, classes=K, norm=R, parts=["moments"], by_class=True
            ),
        ]
        assert found[3].values[0].shape == (K, 4)
        torch.testing.assert_close(found[3].values[0].sum(0), found[2].values[0])
        return [(part.values[0], part.sensitivity) for part in found]

    for adjacency in Adjacency:
        reached = require_moves(measure, adjacency)
        assert len(reached) == 4
        assert min(reached) > 1 - 1e-9, (adjacency, reached)


@check
def check_one_row_moves_distances_by_at_most_the_sensitivity() -> None:
    """Each score by itself, with the released counts as denominators; the bound is reached."""
    counts = torch.tensor([5.0, 3.0, 9.0], dtype=torch.float64)
    for adjacency in Adjacency:

        def measure(
            x: Tensor, y: Tensor, adjacency: Adjacency = adjacency
        ) -> list[tuple[Tensor, float]]:
            boxed = box_sums(x, y, one_sample(examples=len(x)), adjacency, classes=K, bound=B)
            assert torch.equal(
                boxed.counts.values[0],
                class_statistics(
                    x,
                    y,
                    one_sample(examples=len(x)),
                    adjacency,
                    classes=K,
                    norm=R,
                    parts=["counts"],
                )[0].values[0],
            )
            scores = boxed.distances(counts)
            assert not scores.one_way
            return [(value, scores.sensitivity) for value in scores.values] + [
                (boxed.counts.values[0], boxed.counts.sensitivity)
            ]

        reached = require_moves(measure, adjacency)
        assert max(reached[:4]) > (0.5 if adjacency is REPLACE else 0.9), (adjacency, reached)
        assert reached[4] > 1 - 1e-9


@check
def check_one_row_moves_rows_by_at_most_the_sensitivity() -> None:
    """A released row moves by once or twice its norm, in few columns as in all."""
    for adjacency in (ZERO, REPLACE):
        for columns in (torch.arange(4), torch.tensor([2, 0])):

            def measure(
                x: Tensor, y: Tensor, columns: Tensor = columns, adjacency: Adjacency = adjacency
            ) -> list[tuple[Tensor, float]]:
                part = bounded_rows(
                    x, one_sample(examples=len(x)), adjacency, norm=R, columns=columns
                )
                return [(part.values[0], part.sensitivity)]

            assert min(require_moves(measure, adjacency)) > 1 - 1e-5


@check
def check_blocks_make_no_difference() -> None:
    """One row at a time, a few, or all: the same statistics, rows outside the sample left out, data
    untouched.
    """
    x, y = some_rows()
    before = x.clone()
    sample = one_sample(pv.Poisson(0.5), len(x))
    own = torch.from_numpy(sample.indices)
    clip = kept(R, [x.dtype])
    whole = x[own] * (clip / x[own].norm(dim=1, keepdim=True)).clamp(max=1)
    member = (y[own, None] == torch.arange(K)).double()
    expected = [member.sum(0), member.T @ whole, whole.square().sum(0)]
    usual = statistics_module._AT_ONCE
    try:
        for at_once in (1, 12, usual):
            statistics_module._AT_ONCE = at_once  # type: ignore[misc]
            for rows in (x, x.numpy(), x.view(-1, 2, 2)):
                found = class_statistics(rows, y, sample, ADD, classes=K, norm=R)
                for part, truth in zip(found, expected, strict=True):
                    torch.testing.assert_close(part.values[0], truth, rtol=1e-12, atol=1e-12)
            few = class_statistics(
                x, y, sample, ADD, classes=K, norm=R, columns=torch.tensor([3, 1]), parts=["sums"]
            )
            narrow = x[own][:, [3, 1]]
            narrow = narrow * (clip / narrow.norm(dim=1, keepdim=True)).clamp(max=1)
            torch.testing.assert_close(few[0].values[0], member.T @ narrow, rtol=1e-12, atol=1e-12)
    finally:
        statistics_module._AT_ONCE = usual  # type: ignore[misc]
    assert torch.equal(x, before)


# Noise and price


def settled(kind: type[Any] = FisherPlan, **more: Any) -> Any:
    """A plan of that kind, with those of the numbers here that it has."""
    numbers: dict[str, Any] = {
        "classes": K,
        "features": 4,
        "keep": 2,
        "row_norm": R,
        "coordinate_bound": B,
    }
    known = {field.name for field in fields(kind)}
    usual = {
        name: value
        for name, value in (numbers | {"noise_multiplier": 3.0}).items()
        if name in known
    }
    return kind(**usual | more)


EVERY_PLAN = [
    settled(kind, way=way, adjacency=adjacency, keep=keep, criterion=criterion, **labels)
    for kind, labels, adjacencies in (
        (SelectionPlan, {}, (ADD, ZERO, REPLACE)),
        (FisherPlan, {}, (ADD, ZERO, REPLACE)),
        (RowsPlan, {"labels": "public"}, (ZERO, REPLACE)),
        (RowsPlan, {"labels": "randomised"}, (ZERO, REPLACE)),
    )
    for adjacency in adjacencies
    for way, criterion in (
        ("means", "distance"),
        ("means", "t"),
        ("gumbel", "distance"),
        ("means", "welch"),
    )
    for keep in (2, 4)
] + [settled(LeastSquaresPlan, adjacency=adjacency) for adjacency in (ADD, ZERO, REPLACE)]


def carried_out(
    plan: StatisticsPlan, data: Any, ledger: Ledger | None = None, streams: Any = None
) -> Any:
    streams = streams or pv.Streams.new(0)
    run: Any = {
        SelectionPlan: pv.statistics.select_features,
        FisherPlan: pv.statistics.fisher,
        RowsPlan: rows_module.release_features,
        LeastSquaresPlan: pv.statistics.least_squares,
    }
    return run[type(plan)](plan, data, ledger=ledger, streams=streams)


@check
def check_every_plan_costs_what_it_says() -> None:
    """rho is 1 / (2 z^2) for every kind and way; the ledger holds the plan's event afterwards, in
    order.
    """
    for plan in EVERY_PLAN:
        assert math.isclose(zcdp.rho(plan.event()), 0.5 / 9, rel_tol=1e-12), plan
        ledger = Ledger()
        carried_out(plan, some_rows(), ledger)
        assert ledger.event == plan.event(), plan
        assert ledger.adjacency is plan.neighbours


@check
def check_noise_of_statistics_has_the_stated_scale() -> None:
    """Counts, sums and moments on no rows: noise alone, of z sensitivity / share; joint, shares
    that sum to one.
    """
    empty = torch.full((1, 40_000), math.nan), torch.zeros(1, dtype=torch.int64)
    split = (0.2, 0.3, 0.5)
    for adjacency, factor in ((ADD, (1.0, 1.0, 1.0)), (REPLACE, (math.sqrt(2), 2.0, math.sqrt(2)))):
        found = mechanism.release_statistics(
            *empty,
            classes=2,
            norm=R,
            adjacency=adjacency,
            noise_multiplier=3.0,
            ledger=Ledger(),
            stream=pv.Streams.new(1).noise,
            split=split,
        )
        assert found.moments is not None
        for values, stated, norm, own, part in (
            (found.sums, found.sum_std, R, factor[1], 0.3),
            (found.moments, found.moment_std, R**2, factor[2], 0.5),
        ):
            expected = 3.0 * own * norm / math.sqrt(part)
            assert math.isclose(stated, expected)
            assert abs(float(values.std()) / expected - 1) < 0.03
        counts = mechanism.release_statistics(
            *empty,
            classes=40_000,
            norm=R,
            adjacency=adjacency,
            noise_multiplier=3.0,
            ledger=Ledger(),
            stream=pv.Streams.new(2).noise,
            split=split,
            columns=torch.tensor([0]),
        ).counts
        assert abs(float(counts.std()) / (3.0 * factor[0] / math.sqrt(0.2)) - 1) < 0.03


@check
def check_noise_of_rows_has_the_stated_scale() -> None:
    x, y = torch.zeros(4000, 4), torch.zeros(4000, dtype=torch.int64)
    for adjacency, factor in ((ZERO, 1.0), (REPLACE, 2.0)):
        plan = settled(
            RowsPlan, adjacency=adjacency, way="means", selection_share=0.2, kept_norm=1.5
        )
        found = pv.statistics.release_features(plan, (x, y), streams=pv.Streams.new(2))
        expected = factor * 1.5 * 3.0 / math.sqrt(0.8)
        assert math.isclose(found.noise_std, expected)
        assert abs(float(found.x.std()) / expected - 1) < 0.05


@check
def check_one_shot_selection_has_the_stated_law() -> None:
    """Which is drawn first follows exp(-epsilon score / 2 sensitivity), and all draws are
    charged.
    """
    scores = statistics_module.CandidateScores(
        torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), 0.5, False, ADD
    )
    ledger, stream = Ledger(), pv.Streams.new(3).noise
    draws = [
        selection_module.select_top(scores, 2, epsilon=0.8, ledger=ledger, stream=stream).tolist()
        for _ in range(8_000)
    ]
    weight = torch.exp(-0.8 * scores.values / (2 * 0.5))
    law = weight / weight.sum()
    for place in range(3):
        share = sum(draw[0] == place for draw in draws) / len(draws)
        assert abs(share - float(law[place])) < 0.02, (place, share, law)
    second = sum(draw == [0, 1] for draw in draws) / len(draws)
    assert abs(second - float(law[0] * law[1] / (law[1] + law[2]))) < 0.02
    assert all(len(set(draw)) == 2 for draw in draws[:100])
    assert tally(ledger.event) == {Selection(0.8): 16_000}


@check
def check_randomised_response_has_the_stated_law() -> None:
    """A true label e^epsilon times as often as any other; an empty row reports any alike; charged
    before the draw.
    """
    n, epsilon = 60_000, 1.2
    for present in (True, False):
        ledger = Ledger()
        told = randomised_module.randomised(
            torch.full((n,), 2),
            torch.full((n,), present),
            epsilon=epsilon,
            categories=4,
            adjacency=ZERO,
            ledger=ledger,
            stream=pv.Streams.new(4).noise,
        )
        assert list(walk(ledger.event)) == [(RandomisedResponse(epsilon, 4), 1)]
        true = math.exp(epsilon) / (math.exp(epsilon) + 3) if present else 0.25
        shares = torch.bincount(told, minlength=4) / n
        for label in range(4):
            expected = true if label == 2 else (1 - true) / 3
            assert abs(float(shares[label]) - expected) < 0.012, (present, label, shares)
    must_raise(
        UnsupportedEvent,
        lambda: randomised_module.randomised(
            torch.zeros(1),
            torch.ones(1),
            epsilon=1.0,
            categories=2,
            adjacency=ADD,
            ledger=Ledger(),
            stream=NoDraws(),  # type: ignore[arg-type]
        ),
    )


@check
def check_what_does_not_fit_is_refused_before_noise_is_drawn() -> None:
    """A ledger without room refuses every plan; nothing is charged or drawn."""
    one, other, third = (np.random.default_rng(0) for _ in range(3))
    streams = pv.Streams(one, NoDraws(), other, third, seeded=True)  # type: ignore[arg-type]
    for plan in EVERY_PLAN[::5]:
        ledger = Ledger(pv.Budget(rho=0.5 / 9 * 0.99))
        must_raise(
            BudgetExceeded,
            lambda plan=plan, ledger=ledger: carried_out(plan, some_rows(), ledger, streams),
        )  # type: ignore[misc]
        assert not list(walk(ledger.event))
