"""Shen et al. 2021, Theorem 8: with more rows, private selection chooses exactly the features that
have signal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr

from privlearn.core.streams import Streams
from privlearn.methods.statistics.features import select_features
from privlearn.methods.statistics.plan import SelectionPlan
from privlearn_studies.charts import BLUE, GREY, RED, Band, Curve, Figure, Mark, Panel
from privlearn_studies.report import Findings, Row, mean, mean_row, page, spread, table
from privlearn_studies.runs import Runs
from privlearn_studies.shen2021.toy import Sparse

_FEATURES, _SIGNALS = 500, 10
_ROWS = (250, 350, 500, 600, 700, 850, 1000, 1200, 1400, 2000, 2800, 4000)
_TICKS = (250, 500, 1000, 2000, 4000)
_SEEDS, _QUICK_SEEDS = 100, 3
_EPSILON, _DELTA = 2.0, 1e-5
#: Rows are clipped to this for each root of a feature; hardly any row of 500 features is longer.
_NORM = 1.2
#: The criteria in words, with their colours; None: distances of means without noise.
_CRITERIA = {
    "distance": ("by distance", RED),
    "t": ("by pooled t", BLUE),
    None: ("by distance, without noise", GREY),
}
_EXACT = "part of seeds in which exactly the true features are chosen"
_SHARE = "part of the true features among those chosen"
_CLOSED, _BOUND = f"{_EXACT}: closed form", f"{_EXACT}: the proof's bound, at least"


@final
@dataclass(frozen=True)
class Scores:
    """The law of the scores that features are ranked by, where each is independent of the others.

    A score is |D| / S. D is normal with mean `gap` for features with signal and 0 for others. S^2
    is 1 for distances. For t it is normal with mean 1, and at least `floor`.

    Attributes:
        gap: between the class means of a feature with signal.
        deviation: of D: that of sampling and that of the noise together.
        spread: the standard deviation of S^2; 0: S is 1.
        floor: the least S^2.
    """

    gap: float
    deviation: float
    spread: float = 0.0
    floor: float = 0.0

    def recovery(self, features: int, signals: int) -> float:
        """The probability that all features with signal have larger scores than all others.

        The integral of P(score with signal > x)^s over the law of the largest of p - s others.
        """
        x = self._places(features)
        largest = self.below(x, signal=False) ** (features - signals)
        above = (1 - self.below(x, signal=True)) ** signals
        middle = (above[1:] + above[:-1]) / 2
        return float(largest[0] * above[0] + (middle * np.diff(largest)).sum())

    def bound(self, features: int, signals: int) -> float:
        """What the proof of Theorem 8 shows: 1 less the sum of the probabilities that one score is
        on the wrong side of x, at the best x; at least 0.
        """
        x = self._places(features)
        wrong = (features - signals) * (1 - self.below(x, signal=False))
        wrong = wrong + signals * self.below(x, signal=True)
        return max(0.0, 1.0 - float(wrong.min()))

    def below(self, x: NDArray[np.float64], *, signal: bool) -> NDArray[np.float64]:
        """P(score <= x)."""
        gap = self.gap if signal else 0.0
        variances, weights = self._variances()
        limits = x[:, None] * np.sqrt(variances)
        inside = ndtr((limits - gap) / self.deviation) - ndtr((-limits - gap) / self.deviation)
        share: NDArray[np.float64] = np.clip(inside @ weights, 0.0, 1.0)
        return share

    def _variances(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Values of S^2 and their probabilities, which add up to 1."""
        if not self.spread:
            return np.ones(1), np.ones(1)
        share = (np.arange(400) + 0.5) / 400
        values = np.maximum(1 + self.spread * stats.norm.ppf(share), self.floor)
        return values, np.full(400, 1 / 400)

    def _places(self, features: int) -> NDArray[np.float64]:
        """Places of scores, up to where hardly any lies beyond."""
        far = self.gap + self.deviation * float(stats.norm.isf(1e-9 / features))
        return np.linspace(0.0, far / math.sqrt(float(self._variances()[0].min())), 2000)


@cache
def plan_of(criterion: str) -> SelectionPlan:
    """Ten features by noisy class means, at epsilon 2."""
    plan = SelectionPlan(
        2,
        _FEATURES,
        _SIGNALS,
        _NORM * math.sqrt(_FEATURES),
        criterion=criterion,
        way="means",
    )
    return plan.calibrate(epsilon=_EPSILON, delta=_DELTA)


def scores_of(criterion: str | None, rows: int) -> Scores:
    """The law of scores of the toy model with so many rows, half of them of each class.

    Counts of classes are taken as they are, and means as independent of variances.
    """
    sampling = 4 / rows
    if criterion is None:
        return Scores(1.0, math.sqrt(sampling))
    plan = plan_of(criterion)
    norm, (counts, sums, moments) = plan.row_norm, plan.split
    whole = counts + sums + (moments if criterion == "t" else 0.0)
    noise = plan.noise * norm * math.sqrt(whole / sums)  # of a class sum
    deviation = math.sqrt(sampling + 8 * (noise / rows) ** 2)
    if criterion == "distance":
        return Scores(1.0, deviation)
    floor = plan.noise * norm**2 * math.sqrt(whole / moments) / rows
    return Scores(1.0, deviation, math.hypot(floor, math.sqrt(2 / rows)), floor)


def chosen(criterion: str | None, rows: int, seed: int) -> float:
    """The part of the true features among the ten that are chosen, by `select_features`."""
    toy = Sparse(_FEATURES, rows // 2, _SIGNALS)
    x, y = toy.draw(np.random.default_rng([seed, rows]))
    if criterion is None:
        distances = (x[y == 0].mean(0) - x[y == 1].mean(0)).abs()
        best = distances.topk(_SIGNALS).indices
    else:
        best = select_features(plan_of(criterion), (x, y), streams=Streams.new(seed)).indices
    return float((best < _SIGNALS).double().mean())


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """How often exactly the true features are chosen, over the number of rows, beside theory."""
    number = seeds or (_QUICK_SEEDS if quick else _SEEDS)
    places = _ROWS[::4] if quick else _ROWS
    shares = {
        (criterion, rows): [chosen(criterion, rows, seed) for seed in range(number)]
        for criterion in _CRITERIA
        for rows in places
    }
    rows_ = []
    for (criterion, rows), values in shares.items():
        label = f"{_CRITERIA[criterion][0]}, {rows:,} rows"
        law = scores_of(criterion, rows)
        rows_ += [
            Row(label, _EXACT, _exact(values), seeds=number),
            Row(label, _CLOSED, law.recovery(_FEATURES, _SIGNALS)),
            Row(label, _BOUND, law.bound(_FEATURES, _SIGNALS)),
            mean_row(label, _SHARE, values),
        ]
    notes = page(
        "dfs-recovery",
        features=_FEATURES,
        signals=_SIGNALS,
        epsilon=_EPSILON,
        delta=_DELTA,
        norm=_NORM,
        seeds=number,
        table=table(*_cells(shares, places)),
    )
    title = f"Exactly the true {_SIGNALS} of {_FEATURES} features, at epsilon {_EPSILON:g}"
    return Findings(tuple(rows_), Figure(title, _panels(shares, places), 11, 4.6, 2), notes)


def _exact(shares: Sequence[float]) -> float:
    """The part of seeds in which all that were chosen are true."""
    return mean(share == 1.0 for share in shares)


def _interval(shares: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of that part, by Clopper and Pearson."""
    hits = sum(share == 1.0 for share in shares)
    ends = stats.binomtest(hits, len(shares)).proportion_ci()
    return float(ends.low), float(ends.high)


def _cells(
    shares: dict[tuple[str | None, int], list[float]], places: Sequence[int]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and lines of the table: parts of seeds with their intervals, theory, and shares."""
    lines = []
    for rows in places:
        cells = [f"{rows:,}"]
        for criterion in ("distance", "t"):
            values = shares[criterion, rows]
            low, high = _interval(values)
            law = scores_of(criterion, rows)
            cells += [
                f"{_exact(values):.2f} ({low:.2f} to {high:.2f})",
                f"{law.recovery(_FEATURES, _SIGNALS):.2f}",
                f"{law.bound(_FEATURES, _SIGNALS):.2f}",
                spread(values, 2),
            ]
        lines.append(tuple(cells))
    heads = ["rows"]
    for name in ("distance", "t"):
        heads += [f"{name}, exactly", f"{name}, closed form", f"{name}, bound", f"{name}, part"]
    return tuple(heads), lines


def _panels(
    shares: dict[tuple[str | None, int], list[float]], places: Sequence[int]
) -> list[Panel]:
    between = np.geomspace(places[0], places[-1], 40)
    exact: list[Mark] = []
    part: list[Mark] = []
    for criterion, (name, colour) in _CRITERIA.items():
        values = [shares[criterion, rows] for rows in places]
        low, high = zip(*map(_interval, values), strict=True)
        laws = [scores_of(criterion, round(rows)) for rows in between]
        recovery = [law.recovery(_FEATURES, _SIGNALS) for law in laws]
        bound = [law.bound(_FEATURES, _SIGNALS) for law in laws]
        exact += [
            Curve(places, [_exact(each) for each in values], name, colour, "o"),
            Band(places, low, high, "", colour),
            Curve(between, recovery, "", colour, width=1.2),
            Curve(between, bound, "", colour, ":", width=1.2),
        ]
        part.append(Curve(places, values, name, colour, "o-", "deviation", width=1))
    exact += [
        Curve([], [], "closed form", "black"),
        Curve([], [], "the proof's bound", "black", ":"),
    ]
    return [
        Panel(marks, "rows", y, title, "x", ylim=(-0.03, 1.03), xticks=_TICKS, legend="lower right")
        for marks, y, title in (
            (exact, "part of seeds", f"exactly the true {_SIGNALS} are chosen"),
            (part, "part of the true features", "true features among those chosen"),
        )
    ]
