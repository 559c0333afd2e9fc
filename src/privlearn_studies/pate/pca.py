"""Fay et al. 2020, eq. 6 and 7: what principal components lose to noise, by the closed form and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from privlearn.accounting.ledger import Ledger
from privlearn.data.dataset import Dataset
from privlearn.streams import Streams
from privlearn.teachers import PublicPCA
from privlearn.teachers.collection import ask, collect
from privlearn.teachers.plan import Ball, PatePlan
from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.pate.images import images
from privlearn_studies.pate.kept import Kept
from privlearn_studies.seeds import mean_row
from privlearn_studies.writer import table

_TEACHERS, _QUERIES, _DELTA = 250, 100, 1e-5
_EPSILONS = (2.0, 4.0, 8.0)
_SEEDS, _QUICK_SEEDS = 5, 1
#: Releases of a hundred unseen images each that a measurement is the mean of.
_ROUNDS, _QUICK_ROUNDS = 10, 3
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256)
#: Maths by hand: five eigenvalues under a noise variance of 0.6.
_EXAMPLE, _EXAMPLE_NOISE = (5.0, 3.0, 1.0, 0.5, 0.1), 0.6
_LOSS = "squared error of an image, summed over pixels"


@final
@dataclass(frozen=True)
class _Losses:
    """Of one seed and epsilon: the noise, the rule's number of components, and losses by number of components."""

    noise: float
    rule: int
    losses: list[float]
    measured: list[float]


def run(quick: bool, seeds: int | None) -> Findings:
    """Both losses by the number of components, under the noise of three epsilons."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    lengths = _LENGTHS[::3] if quick else _LENGTHS
    found = [_seed(lengths, seed, _QUICK_ROUNDS if quick else _ROUNDS) for seed in numbers]
    rows = [*_by_hand(), *_noises()]
    lines = []
    figure, axes = plots.panels("What principal components lose to noise", 13, 4.6, 1, len(_EPSILONS))
    for place, (ax, epsilon) in enumerate(zip(axes, _EPSILONS, strict=True)):
        mine = [each[place] for each in found]
        label, rule = f"epsilon {epsilon:g}", [one.rule for one in mine]
        losses, seen = (np.array([getattr(one, which) for one in mine]) for which in ("losses", "measured"))
        least = lengths[int(seen.mean(0).argmin())]
        apart = float(np.abs(seen.mean(0) / losses.mean(0) - 1).max())
        rows += [
            mean_row(label, "noise on each number of a code", [one.noise for one in mine]),
            mean_row(label, "components by the rule", rule),
            Row(label, "components of the least loss measured, on the grid", least),
            Row(label, "largest difference of measured and closed form, over the closed form", apart),
        ]
        for at, length in enumerate(lengths):
            rows.append(mean_row(f"{label}, l = {length}", f"{_LOSS}: closed form", losses[:, at].tolist()))
            rows.append(mean_row(f"{label}, l = {length}", f"{_LOSS}: measured", seen[:, at].tolist()))
        lines.append((f"{epsilon:g}", f"{np.mean([one.noise for one in mine]):.3f}", f"{np.mean(rule):g}", str(least),
                      f"{seen.mean(0).min():.2f}", f"{losses[:, -1].mean():.1f}", f"{100 * apart:.1f} %"))  # fmt: skip
        _panel(ax, lengths, losses, seen, float(np.mean(rule)), label)
    plots.legend(figure, axes[0], 4)
    notes = (
        _about(len(numbers)),
        table(("epsilon", "noise", "l by the rule", "l of the least loss on the grid", "its loss", "loss without reduction",
               "measured off by, at most"), lines),
        "The closed form leaves two things aside: clipping, and that eigenvalues of finitely many public images are too large "
        "in the first directions and too small in the last. Eq. 7 of the paper takes the least eigenvalue above the noise's "
        "variance for a number of components; read as their count it minimises the loss.",
    )  # fmt: skip
    return Findings(tuple(rows), figure, notes)


def _about(seeds: int) -> str:
    return (
        f"USPS images as targets of 256 numbers, drawn afresh for each seed ({seeds}): components are found on 1,000 public "
        f"ones, and others, {_QUERIES} to a release, are what all {_TEACHERS} teachers answer. So their mean "
        "has the distribution of the public targets, as the paper supposes. Answers go through the aggregator: codes clipped "
        f"to the radius of the public ones, {_QUERIES} releases at delta {_DELTA:g}, exact composition. The paper gives the "
        "formula and no figures; in the column *paper* there is the noise by its eq. 15, and eq. 6 worked out by hand."
    )


def _by_hand() -> list[Row]:
    """Five eigenvalues, for which the loss is quickly added up."""
    pca = PublicPCA((5,), torch.zeros(5), torch.eye(5), torch.tensor(_EXAMPLE, dtype=torch.float64))
    std = _EXAMPLE_NOISE**0.5
    label = f"eigenvalues {', '.join(f'{value:g}' for value in _EXAMPLE)}, noise variance {_EXAMPLE_NOISE:g}"
    losses = (9.6, 5.2, 2.8, 2.4, 2.5, 3.0)
    return [
        *(Row(f"{label}, l = {length}", "closed form", pca.loss(std, length), paper)
          for length, paper in enumerate(losses)),
        Row(label, "components by the rule", pca.best(std), 3),
    ]  # fmt: skip


def _noises() -> list[Row]:
    """The paper's formula for the noise beside exact composition, at its own setting."""
    plan = PatePlan(80, 8, Ball(1.0))
    paper = plan.calibrate(epsilon=8.0, delta=1e-3, formula="paper")
    ours = plan.calibrate(epsilon=8.0, delta=1e-3)
    label = "8 teachers, 80 queries, epsilon 8 at delta 1e-3, unit ball"
    return [
        Row(label, "noise on each number of a code, exact composition", ours.noise_std, paper.noise_std),
        Row(label, "epsilon in truth of the paper's noise", paper.guarantee(1e-3).epsilon, 8.0),
    ]


def _seed(lengths: Sequence[int], seed: int, rounds: int) -> list[_Losses]:
    """Closed form and measurement for each epsilon, by numbers of components."""
    parts = images(seed)
    public = Dataset(parts.public, parts.public, public=True)
    pca = PublicPCA.fit(public)
    shape = PatePlan(_QUERIES, _TEACHERS, Ball(pca.radius(public)))
    plans = [shape.calibrate(epsilon=epsilon, delta=_DELTA) for epsilon in _EPSILONS]
    unseen = parts.pool.split(_QUERIES)[:rounds]  # type: ignore[no-untyped-call]
    seen = [
        np.mean(
            [measured(plans, pca.kept(length), said, 100 * seed + part) for part, said in enumerate(unseen)], axis=0
        )
        for length in lengths
    ]
    return [
        _Losses(plan.noise_std, pca.best(plan.noise_std), [pca.loss(plan.noise_std, length) for length in lengths],
                [float(each[place]) for each in seen])
        for place, plan in enumerate(plans)
    ]  # fmt: skip


def measured(plans: Sequence[PatePlan], reducer: PublicPCA, said: Tensor, seed: int) -> list[float]:
    """For each plan the mean squared error of what is recovered of `said`, shape (queries, numbers), if all teachers say it.

    The plans differ in their noise alone; each is priced and charged by itself.
    """
    sums, _ = collect(plans[0], Kept([said] * plans[0].teachers), reducer, said, Streams.new(seed))
    found = [ask(plan, sums, reducer, Ledger(plan.budget), Streams.new(seed))[0] for plan in plans]
    return [float((each - said).square().sum(1).mean()) for each in found]


def _panel(
    ax: Axes,
    lengths: Sequence[int],
    losses: NDArray[np.float64],
    found: NDArray[np.float64],
    rule: float,
    title: str,
) -> None:
    """Both losses over the number of components, on logarithmic axes."""
    ax.plot(lengths, losses.mean(0), color="black", label="closed form")
    spread = found.std(0, ddof=1) if len(found) > 1 else np.zeros(len(lengths))
    ax.errorbar(lengths, found.mean(0), spread, fmt="o", markersize=4, color=plots.RED, label="measured")
    ax.axvline(max(rule, 1), color=plots.BLUE, linestyle="--", linewidth=1, label="l by the rule")
    ax.axhline(float(losses[:, -1].mean()), color=plots.GREY, linestyle=":", linewidth=1, label="no reduction")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(10, 700)
    ax.set_yticks([10, 20, 50, 100, 200, 500])
    plots.plain_ticks(ax.xaxis)
    plots.plain_ticks(ax.yaxis)
    plots.name_axes(ax, "components l", _LOSS, title)
