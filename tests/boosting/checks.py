"""Named checks of boosting: sensitivities, noise, price, and what is seen of a run; mutations must
make them fail.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import privlearn as pv
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.events import tally, walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.clipping.bounded import Bounded
from privlearn.errors import BudgetExceeded
from privlearn.methods.boosting import rounds
from privlearn.methods.boosting.plan import BoostingPlan, Interval, Levels, columns_of
from privlearn.methods.boosting.sums import CURVATURE_WEIGHT, gradient_histogram
from privlearn.methods.boosting.targets import Counts, Labels, Target, Values
from privlearn.publishing import publish
from tests.support.checks import check, must_raise
from tests.support.nets import NoDraws, one_sample
from tests.support.transcripts import require_alike, transcript

ADD, ZERO, REPLACE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
COLUMNS = (Interval(-1.0, 3.0, "dose"), Levels(3, "colour"), Interval(0.0, 10.0, "age"))
TARGETS: tuple[Target, ...] = (
    Labels(2),
    Labels(4),
    Labels(2, (1.0, 40.0)),
    Values(-5.0, 20.0),
    Counts(12.0),
)
#: Rows at the ends and beyond, with categories that there are not, and with what is no number.
STRANGE = (
    [math.nan] * 5,
    [math.inf, 0, 0, 1, -math.inf],
    [1e30, 1, 1, 1, -1e30],
    [math.nan, 0, 0, 0, 5.0],
    [0, 0.5, 0, 0, 3],
    [-1, 0, math.nan, 0, 10],
    [3, 0, 0, 1e9, 0],
)


def settled(target: Target = TARGETS[0], **more: Any) -> BoostingPlan:
    usual = {"bins": 4, "passes": 2, "trees": 2, "depth": 2, "noise_multiplier": 3.0}
    return BoostingPlan(COLUMNS, target, **usual | more)


def some_rows(rows: int = 30, seed: int = 0, target: Target = TARGETS[0]) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(seed)
    x = np.zeros((rows, 5), np.float32)
    x[:, 0], x[:, 4] = draw.uniform(-1.5, 3.5, rows), draw.uniform(-1, 11, rows)
    x[np.arange(rows), 1 + draw.integers(3, size=rows)] = 1
    classes = target.classes if isinstance(target, Labels) else 0
    y = draw.integers(classes, size=rows) if classes else draw.poisson(3.0, rows).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


def strange_rows(target: Target) -> list[tuple[Tensor, Any]]:
    """Rows that may come, go or take another's place, with targets at the ends and beyond."""
    labels = (
        range(target.classes)
        if isinstance(target, Labels)
        else (-1e30, 0.0, 20.0, 1e30, math.nan, math.inf)
    )
    usual = some_rows(4, 9)[0].tolist()
    return [
        (torch.tensor(row, dtype=torch.float32), label)
        for row in (*STRANGE, *usual)
        for label in labels
    ]


def with_last(target: Target, last: tuple[Tensor, Any] | None) -> tuple[Tensor, Tensor]:
    x, y = some_rows(target=target)
    if last is None:
        return x, y
    return torch.cat([x, last[0][None]]), torch.cat([y, torch.tensor([last[1]], dtype=y.dtype)])


def histograms(plan: BoostingPlan, data: tuple[Tensor, Tensor], spread: float) -> list[Tensor]:
    """What is released of each block, as one vector, at public scores that differ from cell to
    cell.
    """
    return [torch.cat(own.values).flatten() for own in bounded(plan, data, spread)]


def sensitivities(plan: BoostingPlan, adjacency: Adjacency) -> list[float]:
    """What is stated for each block."""
    return [
        own.sensitivity
        for own in bounded(
            replace(plan, adjacency=adjacency), some_rows(4, target=plan.target), 0.0
        )
    ]


def bounded(plan: BoostingPlan, data: tuple[Tensor, Tensor], spread: float) -> list[Bounded]:
    """The histogram of each block."""
    network, draw = rounds._empty(plan), np.random.default_rng(4)
    bins, y = rounds._require_rows(plan, network, pv.Dataset(*data))
    parts = []
    for number, block in enumerate(plan.blocks):
        cells = network.cells(bins, number).numpy()
        scores = spread * draw.normal(size=(plan.target.outputs, block.cells)).T[cells]
        derivatives, sample = plan.target.derivatives(scores, y), one_sample(examples=len(bins))
        parts.append(
            gradient_histogram(
                cells, *derivatives, sample, plan.neighbours, size=block.cells, norm=plan.norm
            )
        )
    return parts


@check
def check_one_row_moves_a_histogram_by_at_most_the_sensitivity() -> None:
    """Gradients and curvatures together, for any row, every target and kind of neighbour; and the
    bound is attained.
    """
    empty = (torch.full((5,), math.nan), 0)
    for target in TARGETS:
        rows, reached = strange_rows(target), dict.fromkeys(Adjacency, 0.0)
        for norm, spread in ((None, 0.0), (None, 30.0), (0.3, 1.0)):
            plan = settled(target, clip_norm=norm, trees=1)
            measured = [
                histograms(plan, with_last(target, last), spread) for last in (*rows, empty, None)
            ]
            for adjacency in Adjacency:
                bounds = sensitivities(plan, adjacency)
                others = {ADD: [len(rows) + 1], ZERO: [len(rows)], REPLACE: range(len(rows))}[
                    adjacency
                ]
                for block, bound in zip(zip(*measured, strict=True), bounds, strict=True):
                    vectors = torch.stack(block)
                    for other in others:
                        moved = float((vectors[: len(rows)] - vectors[other]).norm(dim=1).max())
                        assert moved <= bound * (1 + 1e-9), (target, adjacency, norm, moved, other)
                        reached[adjacency] = max(reached[adjacency], moved / bound)
        assert reached[ADD] > 1 - 1e-6, (target, reached)
        assert reached[REPLACE] > 0.7, (target, reached)


@check
def check_histograms_are_the_sums_of_clipped_rows() -> None:
    """Row by row, in each cell; rows without a usable target, or without any number, are left
    out.
    """
    for target in TARGETS:
        plan = settled(target, clip_norm=0.7)
        x, y = some_rows(60, 3, target)
        x[5], x[9, 0] = math.nan, math.nan
        dataset = pv.Dataset(x, y)
        network = rounds._empty(plan)
        bins, targets = rounds._require_rows(plan, network, dataset)
        assert np.isnan(targets[5])
        assert not np.isnan(targets[9])
        scores = np.random.default_rng(2).normal(size=(60, target.outputs))
        gradients, curvatures = target.derivatives(scores, targets)
        for number, block in enumerate(plan.blocks):
            cells = network.cells(bins, number).numpy()
            expected = np.zeros((2 * target.outputs, block.cells))
            for row in range(60):
                if row != 5:
                    vector = (
                        np.concatenate([gradients[row], CURVATURE_WEIGHT * curvatures[row]])
                        / plan.norm
                    )
                    expected[:, cells[row]] += vector / max(1.0, float(np.linalg.norm(vector)))
            found = gradient_histogram(
                cells,
                gradients,
                curvatures,
                one_sample(examples=60),
                ADD,
                size=block.cells,
                norm=plan.norm,
            )
            np.testing.assert_allclose(torch.cat(found.values).numpy(), expected, atol=1e-7)


@check
def check_derivatives_are_those_of_the_losses() -> None:
    """Against differences of the losses written out; and curvatures with their weight are as short
    as is claimed.
    """
    losses = {
        Labels(2): lambda s, y: np.log1p(np.exp(s[0])) - y * s[0],
        Labels(2, (0.5, 2.0)): lambda s, y: (
            (0.25, 1.0)[int(y)] * (np.log1p(np.exp(s[0])) - y * s[0])
        ),
        Labels(4): lambda s, y: np.log(np.exp(s).sum()) - s[int(y)],
        Values(-5.0, 20.0): lambda s, y: (y - s[0]) ** 2 / 2,
        Counts(12.0): lambda s, y: np.exp(s[0]) - y * s[0],
    }
    draw = np.random.default_rng(0)
    for target, loss in losses.items():
        for y in (0.0, 1.0):
            s = draw.uniform(-0.9, 0.9, target.outputs)
            gradient, curvature = target.derivatives(s[None], np.array([y]))
            for k in range(target.outputs):
                step = 1e-4 * np.eye(target.outputs)[k]
                up, here, down = loss(s + step, y), loss(s, y), loss(s - step, y)
                assert abs(gradient[0, k] + (up - down) / 2e-4) < 1e-6
                assert abs(curvature[0, k] - (up - 2 * here + down) / 1e-8) < 1e-5
        if isinstance(target, Labels):
            scores = draw.normal(size=(4000, target.outputs)) * draw.uniform(0, 12, (4000, 1))
            g, h = target.derivatives(
                scores, draw.integers(target.classes, size=4000).astype(float)
            )
            longest = 1.0 if target.classes == 2 else math.sqrt(2)
            lengths = np.hypot(
                np.linalg.norm(g, axis=1), CURVATURE_WEIGHT * np.linalg.norm(h, axis=1)
            )
            assert lengths.max() <= longest * (1 + 1e-12)


@check
def check_boosting_costs_what_its_plan_says() -> None:
    """One Gaussian of noise multiplier z: epsilon by the closed form; the ledger holds each of the
    plan's releases.
    """
    for target in TARGETS:
        for adjacency in Adjacency:
            plan = settled(target, adjacency=adjacency)
            assert math.isclose(
                plan.guarantee(1e-6).epsilon, zcdp.gaussian_epsilon(1 / 3, 1e-6), rel_tol=1e-12
            )
            assert math.isclose(zcdp.rho(plan.event()), 0.5 / 9, rel_tol=1e-12)
            ledger = Ledger()
            pv.boosting.boost(
                plan, some_rows(target=target), ledger=ledger, streams=pv.Streams.new(0)
            )
            assert tally(ledger.event) == tally(plan.event()) == {Gaussian(3.0 * math.sqrt(10)): 10}
            assert ledger.adjacency is adjacency
    for epsilon, delta in ((0.07, 1e-5), (3.0, 1e-6)):
        whole = settled(passes=4, noise_multiplier=None).calibrate(epsilon=epsilon, delta=delta)
        assert math.isclose(1 / whole.noise, zcdp.gaussian_mu_for(epsilon, delta), rel_tol=1e-12)
        assert epsilon * (1 - 1e-9) <= whole.guarantee(delta).epsilon <= epsilon


@check
def check_noise_of_histograms_has_the_stated_scale() -> None:
    """On no rows: noise alone, of z sqrt(releases) times the sensitivity, in units of the norm, in
    both sums.
    """
    for adjacency, factor in ((ADD, 1.0), (REPLACE, 2.0)):
        plan = BoostingPlan(
            (Levels(30_000),), Labels(2), passes=2, adjacency=adjacency, noise_multiplier=5.0
        )
        empty = torch.full((1, 30_000), math.nan), torch.zeros(1, dtype=torch.int64)
        seen = transcript(lambda streams, _: pv.boosting.boost(plan, empty, streams=streams))  # noqa: B023
        assert len(seen.released) == 2
        for value in (value for one in seen.released for value in one):
            assert value.shape == (1, 30_001)
            assert abs(float(value.std()) / (5.0 * math.sqrt(2) * factor) - 1) < 0.02


@check
def check_boosting_is_refused_before_noise_is_drawn() -> None:
    """A ledger without room, and one that has been charged for it: nothing is drawn."""
    one, other, third = (np.random.default_rng(0) for _ in range(3))
    streams = pv.Streams(one, NoDraws(), other, third, seeded=True)  # type: ignore[arg-type]
    ledger = Ledger(pv.Budget(rho=0.5 / 9 * 0.99))
    must_raise(
        BudgetExceeded,
        lambda: pv.boosting.boost(settled(), some_rows(), ledger=ledger, streams=streams),
    )
    assert not list(walk(ledger.event))


@check
def check_bins_and_splits_follow_from_the_plan() -> None:
    """Whatever the rows hold: the model's tables but for its scores, its base and its limits are
    the plan's.
    """
    assert [tuple(map(float, own.edges(4))) for own in COLUMNS if isinstance(own, Interval)] == [
        (0.0, 1.0, 2.0),
        (2.5, 5.0, 7.5),
    ]
    for target in TARGETS:
        plan = settled(target)
        (first,), (second,) = (
            pv.boosting.boost(plan, data, streams=pv.Streams.new(0)).model.children()
            for data in (
                some_rows(target=target),
                tuple(part[:7] for part in some_rows(40, 8, target)),
            )
        )
        empty = rounds._empty(plan)
        for name, value in empty.state_dict().items():
            if name != "scores":
                assert torch.equal(first.get_buffer(name), second.get_buffer(name)), name
            if name not in ("scores", "base", "limits"):
                assert torch.equal(first.get_buffer(name), value), name
    low, high, draw = np.zeros(3), np.array([1.0, 1.0, 50.0]), np.random.default_rng(0)
    for seen in (draw.uniform(0, 1, (9, 3)), draw.uniform(0, 50, (4, 3))):
        data = pv.Dataset(
            seen, np.zeros(len(seen), int), low=low, high=high, feature_names=("a=x", "a=y", "age")
        )
        assert columns_of(data) == (Levels(2, "a"), Interval(0.0, 50.0, "age"))


@check
def check_neighbouring_boosting_runs_look_the_same() -> None:
    """With the same releases, all that can be seen or published is the same: nothing of a row, and
    no base rate.
    """
    for target in TARGETS:
        rows = strange_rows(target)
        for adjacency in Adjacency:
            plan = settled(target, adjacency=adjacency, passes=1)

            def run(
                last: Any, plan: BoostingPlan = plan, target: Target = target, **replay: Any
            ) -> Any:
                def act(streams: Any, folder: Path) -> None:
                    result = pv.boosting.boost(plan, with_last(target, last), streams=streams)
                    print(result)
                    publish.publish(result, folder / "model", delta=1e-5)

                return transcript(act, **replay)

            empty = (torch.full((5,), math.nan), 0)
            other = {ADD: None, ZERO: empty, REPLACE: rows[0]}[adjacency]
            base = run(other)
            for row in rows[1::9]:
                require_alike(base, run(row, replay=base), (target, adjacency, row))


@check
def check_weights_lie_inside_the_clip() -> None:
    """A row of weight 0 counts as none, one beyond 1 as one of 1, and no weights as ones: to the
    last bit.
    """
    for target in (TARGETS[0], TARGETS[3]):
        x, y = some_rows(target=target)
        plan = settled(target)

        def scores(rows: Tensor, weights: Any, plan: BoostingPlan = plan, y: Tensor = y) -> Tensor:
            made = pv.boosting.boost(plan, (rows, y), weights=weights, streams=pv.Streams.new(0))
            return made.model[0].get_buffer("scores")

        usual = scores(x, None)
        assert torch.equal(scores(x, np.ones(30)), usual)
        most, none, half = np.ones(30), np.ones(30), np.ones(30)
        most[3], none[3], half[3] = 1e9, 0.0, 0.5
        assert torch.equal(scores(x, most), usual)
        gone = x.clone()
        gone[3] = math.nan
        assert torch.equal(scores(x, none), scores(gone, None))
        assert not torch.equal(scores(x, half), usual)
    ledger = Ledger()
    for bad in (np.ones(29), np.ones((30, 1)), ["a"] * 30, np.full(30, math.nan)):
        must_raise(
            pv.errors.BadInput,
            lambda bad=bad: pv.boosting.boost(plan, (x, y), weights=bad, ledger=ledger),  # type: ignore[misc]
        )
    assert not list(walk(ledger.event))
