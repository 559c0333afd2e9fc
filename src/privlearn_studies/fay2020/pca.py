"""Fay et al. 2020, eq. 6 and 7: what principal components lose to noise, by the closed form and as
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.methods.pate import PublicPCA
from privlearn.methods.pate.answers import release_answers, sum_answers
from privlearn.methods.pate.plan import Ball, PatePlan
from privlearn_studies.charts import BLUE, GREY, RED, Across, Curve, Figure, Panel
from privlearn_studies.data import images
from privlearn_studies.fay2020.kept import Kept
from privlearn_studies.report import Findings, Row, each, mean, mean_row, page, table
from privlearn_studies.runs import Runs

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
    """Of one seed and epsilon: the noise, the rule's number of components, and losses by number of
    components.
    """

    noise: float
    rule: int
    losses: list[float]
    measured: list[float]


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Both losses by the number of components, under the noise of three epsilons."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    lengths = _LENGTHS[::3] if quick else _LENGTHS
    by_seed = [_seed(lengths, seed, _QUICK_ROUNDS if quick else _ROUNDS) for seed in numbers]
    rows, lines, panels = [*_by_hand(), *_noises()], [], []
    for epsilon, *mine in zip(_EPSILONS, *by_seed, strict=True):
        label, noise, rule = f"epsilon {epsilon:g}", each(mine, "noise"), each(mine, "rule")
        losses, seen = (np.array(each(mine, which)) for which in ("losses", "measured"))
        least = lengths[int(seen.mean(0).argmin())]
        off = float(np.abs(seen.mean(0) / losses.mean(0) - 1).max())
        rows += [
            mean_row(label, "noise on each number of a code", noise),
            mean_row(label, "components by the rule", rule),
            Row(label, "components of the least loss measured, on the grid", least),
            Row(label, "largest difference of measured and closed form, over the closed form", off),
        ]
        for at, length in enumerate(lengths):
            rows.append(
                mean_row(f"{label}, l = {length}", f"{_LOSS}: closed form", losses[:, at].tolist())
            )
            rows.append(
                mean_row(f"{label}, l = {length}", f"{_LOSS}: measured", seen[:, at].tolist())
            )
        lines.append(
            (
                f"{epsilon:g}",
                f"{mean(noise):.3f}",
                f"{mean(rule):g}",
                str(least),
                f"{seen.mean(0).min():.2f}",
                f"{losses[:, -1].mean():.1f}",
                f"{100 * off:.1f} %",
            )
        )
        marks = (
            Curve(lengths, losses.mean(0), "closed form", "black"),
            Curve(lengths, seen.T, "measured", RED, "o", "deviation"),
            Across(max(mean(rule), 1), "l by the rule", BLUE, "--", down=True),
            Across(float(losses[:, -1].mean()), "no reduction", GREY, ":"),
        )
        panels.append(
            Panel(
                marks,
                "components l",
                _LOSS,
                label,
                "xy",
                ylim=(10, 700),
                yticks=(10, 20, 50, 100, 200, 500),
            )
        )
    heads = (
        "epsilon",
        "noise",
        "l by the rule",
        "l of the least loss on the grid",
        "its loss",
        "loss without reduction",
        "measured off by, at most",
    )
    notes = page(
        "pate-pca",
        seeds=len(numbers),
        queries=_QUERIES,
        teachers=_TEACHERS,
        delta=_DELTA,
        table=table(heads, lines),
    )
    return Findings(
        tuple(rows), Figure("What principal components lose to noise", panels, 13, 4.6, 3, 4), notes
    )


def _by_hand() -> list[Row]:
    """Five eigenvalues, for which the loss is quickly added up."""
    pca = PublicPCA((5,), torch.zeros(5), torch.eye(5), torch.tensor(_EXAMPLE, dtype=torch.float64))
    std = _EXAMPLE_NOISE**0.5
    label = (
        f"eigenvalues {', '.join(f'{value:g}' for value in _EXAMPLE)}, noise variance "
        f"{_EXAMPLE_NOISE:g}"
    )
    losses = (9.6, 5.2, 2.8, 2.4, 2.5, 3.0)
    return [
        *(
            Row(f"{label}, l = {length}", "closed form", pca.loss(std, length), paper)
            for length, paper in enumerate(losses)
        ),
        Row(label, "components by the rule", pca.best(std), 3),
    ]


def _noises() -> list[Row]:
    """The paper's formula for the noise beside exact composition, at its own setting."""
    plan = PatePlan(80, 8, Ball(1.0))
    paper = plan.calibrate(epsilon=8.0, delta=1e-3, formula="paper")
    ours = plan.calibrate(epsilon=8.0, delta=1e-3)
    label = "8 teachers, 80 queries, epsilon 8 at delta 1e-3, unit ball"
    return [
        Row(
            label,
            "noise on each number of a code, exact composition",
            ours.noise_std,
            paper.noise_std,
        ),
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
            [
                measured(plans, pca.kept(length), said, 100 * seed + part)
                for part, said in enumerate(unseen)
            ],
            axis=0,
        )
        for length in lengths
    ]
    return [
        _Losses(
            plan.noise_std,
            pca.best(plan.noise_std),
            [pca.loss(plan.noise_std, length) for length in lengths],
            [float(losses[place]) for losses in seen],
        )
        for place, plan in enumerate(plans)
    ]


def measured(plans: Sequence[PatePlan], reducer: PublicPCA, said: Tensor, seed: int) -> list[float]:
    """For each plan the mean squared error of what is recovered of `said`, shape (queries,
    numbers), said by all.

    The plans differ in their noise alone; each is priced and charged by itself.
    """
    sums, _ = sum_answers(
        plans[0], Kept([said] * plans[0].teachers), reducer, said, Streams.new(seed)
    )
    released = [
        release_answers(plan, sums, reducer, Ledger(plan.budget), Streams.new(seed))[0]
        for plan in plans
    ]
    return [float((recovered - said).square().sum(1).mean()) for recovered in released]
