"""Shen et al. 2021, the toy model and Figure 2: two classes of normal features that differ in a few
of many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from privlearn.core.streams import Streams
from privlearn.methods.statistics.classifiers import fisher_weights
from privlearn.methods.statistics.features import release_features, select_features
from privlearn.methods.statistics.plan import FisherPlan, RowsPlan, SelectionPlan
from privlearn.transforms.select import Statistics
from privlearn_studies.charts import (
    BLUE,
    CYCLE,
    GREY,
    ORANGE,
    RED,
    Bars,
    Curve,
    Figure,
    Mark,
    Panel,
)
from privlearn_studies.report import Findings, Row, mean, mean_row, page, table
from privlearn_studies.runs import Runs

_SEEDS, _QUICK_SEEDS = 50, 4
_KEPT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
#: Standard deviations of noise on every number, rows to be classified included.
_NOISES = (0.0, 1.0, 2.0)
_EPSILON, _DELTA = 10.0, 1e-5
#: Released rows are clipped to this for each root of a feature.
_NORM = 1.5
_ERROR = "error of Fisher's classifier"


@final
@dataclass(frozen=True)
class Sparse:
    """Class 0 has mean `gap` in the first `signals` features and 0 in the others, class 1 mean 0;
    all deviations are 1.

    Attributes:
        features: how many there are.
        rows: of each class.
        signals: features in which the classes differ.
        gap: by how much.
    """

    features: int = 1000
    rows: int = 500
    signals: int = 10
    gap: float = 1.0

    def means(self) -> NDArray[np.float64]:
        """Of class 0."""
        return np.where(np.arange(self.features) < self.signals, self.gap, 0.0)

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Rows, shape (2 rows, features), and their classes."""
        y = np.repeat([0, 1], self.rows)
        x = rng.standard_normal((2 * self.rows, self.features)) + (y == 0)[:, None] * self.means()
        return torch.from_numpy(x), torch.from_numpy(y)

    def bayes(self, number: int, variance: float) -> float:
        """The least error with the first `number` features under noise of `variance`: 1 - Phi(Psi),
        maths by hand.

        Psi = sqrt(sum_j gap_j^2 / (1 + variance)) / 2.
        """
        return float(stats.norm.sf(math.sqrt(self._apart(number, variance)) / 2))

    def learned(self, number: int, variance: float) -> float:
        """The same where means are of n = 2 rows samples: Psi = G / (2 sqrt(G + 4 number / n)),
        with the sum above as G, and n large.

        Fan and Fan 2008, Theorem 1, for classes of one size: what each feature adds to the error of
        the means gathers.
        """
        apart = self._apart(number, variance)
        gathered = 4 * number / (2 * self.rows)
        return float(stats.norm.sf(apart / 2 / math.sqrt(apart + gathered)))

    def error(
        self, weight: Tensor, bias: Tensor, indices: NDArray[np.int64], variance: float
    ) -> float:
        """The exact error, on rows under noise of `variance`, of a linear classifier of the
        features `indices`.
        """
        w = (weight[0] - weight[1]).double().numpy()
        b = float(bias[0] - bias[1])
        spread = math.sqrt(1 + variance) * float(np.linalg.norm(w)) + 1e-300
        first = float(w @ self.means()[indices]) + b
        return float(stats.norm.sf(first / spread) + stats.norm.sf(-b / spread)) / 2

    def _apart(self, number: int, variance: float) -> float:
        return min(number, self.signals) * self.gap**2 / (1 + variance)


def fisher_of(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and biases of Fisher's classifier of rows of two classes, as they are."""
    member = torch.stack([y == 0, y == 1], 1).double()
    statistics = Statistics(
        member.sum(0), member.T @ x.double(), x.double().square().sum(0), 0.0, 0.0
    )
    return fisher_weights(
        statistics,
        FisherPlan(2, x.shape[1], x.shape[1], math.sqrt(x.shape[1]), least_variance=1e-9),
    )


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Errors of Fisher's classifier by dimension and noise, as measured beside the closed form, in
    three settings.
    """
    toy, numbers = Sparse(), range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    every = [_errors(toy, seed) for seed in numbers]
    errors = {name: np.array([one[name] for one in every]) for name in every[0]}  # over seeds
    rows = [
        *(
            Row(
                f"ten features apart by 1, noise {noise:g}",
                f"{_ERROR}: 1 - Phi(Psi)",
                toy.bayes(10, noise**2),
            )
            for noise in _NOISES
        ),
        mean_row(
            f"ten of 1,000 chosen privately, epsilon {_EPSILON:g}",
            "part of the true ten among them",
            errors.pop("right").tolist(),
        ),
    ]
    for at, number in enumerate(_KEPT):
        for which, noise in enumerate(_NOISES):
            label = f"first {number}, noise {noise:g}"
            rows += [
                mean_row(label, _ERROR, errors["ordered"][:, which, at].tolist()),
                Row(label, f"{_ERROR}: 1 - Phi(Psi), means known", toy.bayes(number, noise**2)),
                Row(label, f"{_ERROR}: closed form, means learned", toy.learned(number, noise**2)),
            ]
        for name, label in (
            ("ranked", f"{number} of the largest distance, noise 0"),
            ("noisy", f"{number} of the largest distance, noise 2"),
            ("released", f"{number} chosen privately, rows released"),
            ("given", f"first {number}, rows released"),
        ):
            rows.append(mean_row(label, _ERROR, errors[name][:, at].tolist()))
        rows.append(
            Row(f"first {number}, rows released", "noise on each number", noise_std(number))
        )
    means = {name: values.mean(0) for name, values in errors.items()}
    ordered, released = means["ordered"], means["released"]
    lines = [
        (
            str(number),
            *(f"{ordered[which, at]:.3f}" for which in range(len(_NOISES))),
            f"{noise_std(number):.2f}",
            f"{toy.bayes(number, noise_std(number) ** 2):.3f}",
            f"{released[at]:.3f}",
        )
        for at, number in enumerate(_KEPT)
    ]
    heads = (
        "features",
        *(f"noise {noise:g}" for noise in _NOISES),
        "noise of released rows",
        "1 - Phi(Psi) for it",
        "released and chosen privately",
    )
    notes = page(
        "dfs-toy",
        toy=toy,
        seeds=len(numbers),
        ten=ordered[-1, _KEPT.index(10)],
        whole=ordered[-1, -1],
        epsilon=_EPSILON,
        delta=_DELTA,
        norm=_NORM,
        chance=released[-1],
        table=table(heads, lines),
    )
    figure = Figure(
        "Fisher's classifier in the sparse Gaussian model", _panels(toy, means), 13, 5, 3
    )
    return Findings(tuple(rows), figure, notes)


def plan_of(number: int, features: int, selects: bool = True) -> RowsPlan:
    """Rows of `number` features, chosen privately of `features` at epsilon 10; without selection,
    these features are known beforehand.
    """
    seen = features if selects else number
    plan = RowsPlan(
        2,
        seen,
        number,
        _NORM * math.sqrt(seen),
        4.0,
        kept_norm=_NORM * math.sqrt(number),
        selection_share=0.1,
        way="means",
    )
    return plan.calibrate(epsilon=_EPSILON, delta=_DELTA)


def noise_std(number: int) -> float:
    """The noise on each number of released rows of given features: it grows with the norm of
    rows.
    """
    plan = plan_of(number, number, selects=False)
    return plan.rest_noise * plan.rest_norm


def _errors(toy: Sparse, seed: int) -> dict[str, Any]:
    """The errors of one seed, by the number of features that are kept.

    Returns:
        ordered: the first features in their true order, for each of `_NOISES`.
        ranked: the features of the largest distance, without noise.
        noisy: the same under the largest of `_NOISES`.
        released: features that are chosen privately, of rows that are released privately.
        given: the first features in their true order, of rows that are released privately.
        right: the part of the true features among the ten that are chosen privately.
    """
    rng = np.random.default_rng([seed, toy.features])
    x, y = toy.draw(rng)
    first_features = [(number, np.arange(number)) for number in _KEPT]
    noises = torch.from_numpy(rng.standard_normal(x.shape))
    ordered = [
        [
            toy.error(*fisher_of((x + noise * noises)[:, at], y), at, noise**2)
            for _, at in first_features
        ]
        for noise in _NOISES
    ]
    best = (x[y == 0].mean(0) - x[y == 1].mean(0)).abs().argsort(descending=True).numpy()
    loud = x + _NOISES[-1] * noises
    ranked = [toy.error(*fisher_of(x[:, best[:number]], y), best[:number], 0.0) for number in _KEPT]
    noisy = [
        toy.error(*fisher_of(loud[:, best[:number]], y), best[:number], _NOISES[-1] ** 2)
        for number in _KEPT
    ]
    chosen, in_order, right = [], [], 0.0
    for number, at in first_features:
        out = release_features(plan_of(number, toy.features), (x, y), streams=Streams.new(seed))
        indices = out.indices.numpy()
        # What is classified is a row with noise, as the paper has it.
        chosen.append(toy.error(*fisher_of(out.x, out.y), indices, out.noise_std**2))
        if number == toy.signals:
            right = float((indices < toy.signals).mean())
        out = release_features(
            plan_of(number, number, selects=False), (x[:, at], y), streams=Streams.new(seed)
        )
        in_order.append(toy.error(*fisher_of(out.x, out.y), at, out.noise_std**2))
    return {
        "ordered": ordered,
        "ranked": ranked,
        "noisy": noisy,
        "released": chosen,
        "given": in_order,
        "right": right,
    }


def _panels(toy: Sparse, means: dict[str, NDArray[np.float64]]) -> list[Panel]:
    known = {noise: [toy.bayes(number, noise**2) for number in _KEPT] for noise in _NOISES}
    equal: list[Mark] = []
    for which, (noise, colour) in enumerate(zip(_NOISES, CYCLE, strict=False)):
        equal += [
            Curve(_KEPT, means["ordered"][which], f"measured, noise {noise:g}", colour, "o"),
            Curve(_KEPT, known[noise], "", colour, ":", width=1.2),
            Curve(
                _KEPT, [toy.learned(number, noise**2) for number in _KEPT], "", colour, width=1.2
            ),
        ]
    equal += [
        Curve([], [], "1 − Φ(Ψ), means known", "black", ":"),
        Curve([], [], "closed form, means learned", "black"),
    ]
    ranked: list[Mark] = []
    for name, noise, colour in (("ranked", 0.0, CYCLE[0]), ("noisy", 2.0, CYCLE[2])):
        ranked += [
            Curve(_KEPT, means[name], f"measured, noise {noise:g}", colour, "o-", width=1),
            Curve(_KEPT, known[noise], "", colour, ":", width=1.2),
        ]
    ranked.append(Curve([], [], "1 − Φ(Ψ), true order", "black", ":"))
    private = (
        Curve(_KEPT, means["released"], "chosen privately", BLUE, "o-", width=1),
        Curve(_KEPT, means["given"], "true order", ORANGE, "s"),
        Curve(
            _KEPT,
            [toy.bayes(number, noise_std(number) ** 2) for number in _KEPT],
            "1 − Φ(Ψ), true order",
            "black",
            ":",
        ),
    )
    return [
        Panel(marks, x, "error", title, "x", ylim=(0, 0.52), legend=place)
        for marks, x, title, place in (
            (equal, "features, those with signal first", "equal noise on each", "best"),
            (
                ranked,
                "features, by the largest distance",
                "chosen by distance, without privacy",
                "upper left",
            ),
            (private, "features released", f"rows released at epsilon {_EPSILON:g}", "best"),
        )
    ]


_FEWER = Sparse(features=100, rows=500)


def means(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Figure 2 for one seed, and over seeds how many of the true features are chosen."""
    numbers, toy, drawn_at = range(seeds or (3 if quick else 20)), _FEWER, 1.0
    rows, parts = [], {}
    for epsilon in (0.5, 1.0, 2.0, 5.0):
        chosen = [_chosen(epsilon, seed) for seed in numbers]
        label, right = f"epsilon {epsilon:g}", [part for _, _, part in chosen]
        parts[epsilon] = mean(right)
        rows.append(mean_row(label, "part of the true features among the ten chosen", right))
        rows.append(Row(label, "noise in a class mean", chosen[0][1]))
    x, y = toy.draw(np.random.default_rng([0, toy.features]))
    exact = (x[y == 0].mean(0) - x[y == 1].mean(0)).abs().numpy()
    largest = float(exact[toy.signals :].max())
    rows.append(Row("measured distances", "largest among features that do not differ", largest))
    panels = [
        _heights(toy.means(), "mean of the first class (the other's is 0)", "mean"),
        _heights(exact, "distances of class means, measured", "distance"),
        _heights(
            _chosen(drawn_at, 0)[0],
            f"released at epsilon {drawn_at:g}, the ten chosen in colour",
            "distance",
        ),
    ]
    said = ", ".join(f"{part:.2f} at epsilon {epsilon:g}" for epsilon, part in parts.items())
    figure = Figure("Figure 2: class means of the toy model are sparse", panels, 13, 4.2, 3)
    return Findings(tuple(rows), figure, page("dfs-means", toy=toy, seeds=len(numbers), parts=said))


def selection_of(epsilon: float) -> SelectionPlan:
    """Ten features by their noisy means."""
    norm = 1.2 * math.sqrt(_FEWER.features)
    plan = SelectionPlan(2, _FEWER.features, _FEWER.signals, norm, way="means")
    return replace(plan, split=(0.05, 0.95, 0.3)).calibrate(epsilon=epsilon, delta=_DELTA)


def _chosen(epsilon: float, seed: int) -> tuple[NDArray[np.float64], float, float]:
    """Released distances, the noise in a mean, and the part of the true features among the
    chosen.
    """
    x, y = _FEWER.draw(np.random.default_rng([seed, _FEWER.features]))
    out = select_features(selection_of(epsilon), (x, y), streams=Streams.new(seed))
    assert out.statistics is not None
    released = out.statistics.means(out.plan.least_count)
    part = float((out.indices < _FEWER.signals).double().mean())
    return (released[0] - released[1]).abs().numpy(), out.statistics.sum_std / _FEWER.rows, part


def _heights(heights: NDArray[np.float64], title: str, y: str) -> Panel:
    # Features stand in an order of chance, as the paper's.
    places = torch.randperm(_FEWER.features, generator=torch.Generator().manual_seed(2)).numpy()
    best: Sequence[int] = np.argsort(-heights)[: _FEWER.signals].tolist()
    colours = [RED if feature in best else GREY for feature in range(len(heights))]
    return Panel([Bars(places, heights, colour=colours, width=0.9)], "feature", y, title)
