"""Accuracy with default settings where rows are few and epsilon is small, beside the same model
without privacy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from privlearn._storage import cache
from privlearn.data.dataset import Dataset
from privlearn.runs.front import Front
from privlearn.transforms import feature_cache, read_features, usual
from privlearn_studies import best
from privlearn_studies.best import DEFAULTS, DELTA
from privlearn_studies.charts import BLUE, GREEN, ORANGE, RED, Across, Curve, Figure, Mark, Panel
from privlearn_studies.report import Findings, Row, each, mean, mean_row, page, spread, table
from privlearn_studies.runs import Call, Outcome, Runs, cached

DATA = ("mnist", "fashion-mnist", "adult")
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
#: Training rows: the first in an order of each seed's own; None: all, in the data's.
ROWS = (1000, 5000, 20_000, None)
_QUICK = (("adult",), (0.5, 3.0), (300, 1000))
_SEEDS, _QUICK_SEEDS = 3, 1
#: Inverse penalties of logistic regression without privacy, of which a fifth of its training rows
#: chooses one.
_PENALTIES = (1e-3, 1e-2, 0.1, 1.0)
_ITERATIONS = 50
#: So little above the majority class is nothing, and these parts of the way from there to no
#: privacy are the rest.
_NOTHING, _HALF, _MOST = 0.01, 0.5, 0.9
_COLOURS = (RED, ORANGE, GREEN, BLUE)
_TEST, _SPENT = "test accuracy", f"epsilon spent over its target, at most, at delta {DELTA:g}"
_PLAIN, _MAJORITY = "without privacy", "majority class"
_Floats = NDArray[np.float32]


@final
@dataclass(frozen=True)
class Point:
    """What was reached with so many rows at one epsilon, by seed.

    Attributes:
        data: the data set's name.
        examples: how many training rows.
        epsilon: the target.
        accuracy: of the defaults.
        plain: without privacy, on as many rows.
        majority: of the class that most training rows are of.
    """

    data: str
    examples: int
    epsilon: float
    accuracy: tuple[float, ...]
    plain: tuple[float, ...]
    majority: tuple[float, ...]

    @property
    def signal(self) -> float:
        """Examples times epsilon."""
        return self.examples * self.epsilon

    @property
    def above(self) -> float:
        """How far the defaults are above the majority class."""
        return mean(self.accuracy) - mean(self.majority)

    @property
    def part(self) -> float:
        """Of the way from the majority class to the model without privacy, the part that the
        defaults go.

        Infinite where there is none.
        """
        way = mean(self.plain) - mean(self.majority)
        return self.above / way if way > 0 else math.inf


@cached("small-data, plain")
def plain(seed: int, *, data: str, first: int | None = None) -> dict[str, Any]:
    """Logistic regression without privacy on the rows and public features that the defaults have,
    and the majority.

    Returns:
        accuracy: on the test rows.
        majority: on them, of the class that most training rows are of.
        examples: how many training rows.
    """
    rows = best.rows_of(data, first, seed)
    y, y_test = (np.asarray(part).astype(np.int64) for part in (rows.y, rows.y_test))
    x, x_test = _features(rows)
    order = np.random.default_rng(seed).permutation(len(x))
    fit, held = np.split(order, [len(order) - len(order) // 5])
    reached = [_fitted(penalty, x[fit], y[fit]).score(x[held], y[held]) for penalty in _PENALTIES]
    chosen = _fitted(_PENALTIES[int(np.argmax(reached))], x, y)
    return {
        "accuracy": float(chosen.score(x_test, y_test)),
        "majority": float(np.mean(y_test == np.bincount(y).argmax())),
        "examples": len(x),
    }


def _features(rows: Dataset) -> tuple[_Floats, _Floats]:
    """Training and test rows behind the public features that are usual without noise and flat."""
    chain, rows = read_features(usual(np.shape(rows.x)[1:], rows.low) or "raw", rows)
    with feature_cache(cache() / "features"):
        x, x_test = (
            Front(chain, rows, images).rows.flatten(1).numpy()
            for images in (rows.tensors()[0], rows.test_tensors()[0])
        )
    return x, x_test


def _fitted(penalty: float, x: _Floats, y: NDArray[np.int64]) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # steps are few on purpose
        return LogisticRegression(C=penalty, max_iter=_ITERATIONS, tol=1e-3).fit(x, y)


def grid(quick: bool = False) -> list[Call]:
    """Private runs: every data set with all numbers of rows at all targets."""
    names, epsilons, sizes = _QUICK if quick else (DATA, EPSILONS, ROWS)
    return [
        best.train.at(data=name, epsilon=epsilon, first=first, shuffled=first is not None)
        for name in names
        for first in sizes
        for epsilon in epsilons
    ]


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every data set with all numbers of rows, at every target and without privacy."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    calls = grid(quick)
    private = runs(calls, numbers)
    beside = {(call.data, call.first): plain.at(data=call.data, first=call.first) for call in calls}
    few = {key: call for key, call in beside.items() if key[1] is not None}
    without = runs.named(few, numbers)  # all rows are the same for every seed
    without |= runs.named(
        {key: call for key, call in beside.items() if key not in few}, numbers[:1]
    )
    points = [_point(call, private[call], without[call.data, call.first]) for call in calls]
    spent = max(outcome.epsilon / call.epsilon for call in calls for outcome in private[call])
    panels = [
        _panel(name, [point for point in points if point.data == name]) for name in _names(points)
    ]
    figure = Figure("accuracy against examples times epsilon, defaults", panels, 13, 4.8, 3, 6)
    rows = [*_rows(points), Row("all private runs", _SPENT, spent)]
    return Findings(tuple(rows), figure, notes_of(points, len(numbers), quick))


def _point(call: Call, private: Sequence[Outcome], without: Sequence[Outcome]) -> Point:
    accuracies, beside = (tuple(each(outcomes, "accuracy")) for outcomes in (private, without))
    majority = tuple(each(without, "majority"))
    return Point(call.data, without[0].examples, call.epsilon, accuracies, beside, majority)


def _names(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.data for point in points))


def _sizes(points: Sequence[Point]) -> dict[tuple[str, int], list[Point]]:
    """Points by data set and number of rows, by rising epsilon."""
    sizes: dict[tuple[str, int], list[Point]] = {}
    for point in sorted(points, key=lambda point: point.epsilon):
        sizes.setdefault((point.data, point.examples), []).append(point)
    return {
        key: sizes[key]
        for key in sorted(sizes, key=lambda key: (_names(points).index(key[0]), key[1]))
    }


def _rows(points: Sequence[Point]) -> list[Row]:
    rows = []
    for (data, examples), mine in _sizes(points).items():
        where = f"{data}, {examples:,} rows"
        rows.append(mean_row(f"{where}, {_MAJORITY}", _TEST, mine[0].majority))
        rows.append(mean_row(f"{where}, {_PLAIN}", _TEST, mine[0].plain))
        rows += [
            mean_row(f"{where}, epsilon {p.epsilon:g}, {DEFAULTS}", _TEST, p.accuracy) for p in mine
        ]
    return rows


def notes_of(points: Sequence[Point], seeds: int, quick: bool = False) -> str:
    """The page's text."""
    epsilons = sorted({point.epsilon for point in points})
    heads = ("data", "rows", _MAJORITY, *(f"epsilon {epsilon:g}" for epsilon in epsilons), _PLAIN)
    lines = []
    for (data, examples), mine in _sizes(points).items():
        ends = (f"{mean(mine[0].majority):.3f}", spread(mine[0].plain, 3))
        lines.append(
            (data, f"{examples:,}", ends[0], *(spread(p.accuracy, 3) for p in mine), ends[1])
        )
    limits = [
        (name, *limits_of([point for point in points if point.data == name]))
        for name in _names(points)
    ]
    return page(
        "small-data",
        seeds=f"{seeds} seed{'s' if seeds > 1 else ''}",
        delta=DELTA,
        table=table(heads, lines),
        limits=table(
            ("data", "nothing up to", "a tenth from", "half from", "nine tenths from"), limits
        ),
        nothing=_NOTHING,
        read="" if quick else page("small-data-parts:read"),
    )


def limits_of(points: Sequence[Point]) -> tuple[str, ...]:
    """Examples times epsilon up to which nothing was learned, and from which on parts of what is
    lost were not lost.
    """
    nothing = max((point.signal for point in points if point.above < _NOTHING), default=None)
    limits = [nothing, *(least_for(points, part) for part in (0.1, _HALF, _MOST))]
    return tuple("–" if limit is None or math.isinf(limit) else f"{limit:,.0f}" for limit in limits)


def least_for(points: Sequence[Point], part: float) -> float:
    """The least examples times epsilon from which on every point goes that part of the way;
    infinite if none does.
    """
    short = max((point.signal for point in points if point.part < part), default=-math.inf)
    return min((point.signal for point in points if point.signal > short), default=math.inf)


def _panel(data: str, points: Sequence[Point]) -> Panel:
    """Accuracy against examples times epsilon, a line for each number of rows; dashed: without
    privacy.
    """
    marks: list[Mark] = [Across(mean(points[-1].majority), _MAJORITY, line=":", width=1.5)]
    for colour, mine in zip(_COLOURS, _sizes(points).values(), strict=False):
        label = f"{mine[0].examples:,} rows" if mine[0].examples in ROWS else "all rows"
        marks.append(
            Curve(
                [p.signal for p in mine], [p.accuracy for p in mine], label, colour, "o-", "range"
            )
        )
        marks.append(Across(mean(mine[0].plain), "", colour, "--", alpha=0.7))
    marks.append(Curve([], [], f"{_PLAIN}, on as many rows", "#666666", "--"))
    return Panel(marks, "examples x epsilon", _TEST, data, "x")
