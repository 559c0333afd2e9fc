"""Harder et al. 2019, Table 1 (a), with features as the released code has them: pixels are centred
and scaled before the private projection, and nothing is done behind it.
"""

from __future__ import annotations

import numpy as np

from privlearn_studies.charts import BLUE, GREY, Figure
from privlearn_studies.harder2020.mnist import PAPER, calibrated, classifier, draw_accuracies
from privlearn_studies.report import Findings, Row, ends, mean_row, page, spread, table
from privlearn_studies.runs import Call, Runs

_SEEDS, _QUICK_SEEDS = 10, 1
_PAPERS, _SAME = "the paper's noise", "noise calibrated"
_COLOURS = {_PAPERS: GREY, _SAME: BLUE}
_TEST, _NOISE = "test accuracy", "noise multiplier"
_SPENT = "epsilon in truth, at delta 1e-5, projection included"


def build_released(epsilon: float, quick: bool = False) -> Call:
    """The paper's classifier, its features as the released code has them."""
    return classifier(epsilon, quick).but(features="released")


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every epsilon, at the paper's noise and at that which the epsilon allows."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    calls = {}
    for epsilon in PAPER:
        call = build_released(epsilon, quick)
        calls[epsilon, _PAPERS] = call
        calls[epsilon, _SAME] = calibrated(call, epsilon)
    outcomes = runs.named(calls, numbers)
    rows, lines = [], []
    for (epsilon, column), mine in outcomes.items():
        label, (quoted, _) = f"epsilon {epsilon:g}, {column}", PAPER[epsilon]["DP-MAC"]
        spent, noise = [run.epsilon or 0.0 for run in mine], mine[0].noise or 0.0
        rows += [
            mean_row(label, _SPENT, spent),
            mean_row(label, _TEST, ends(mine), quoted),
            Row(label, _NOISE, noise),
        ]
        numbers_of_row = (
            f"{noise:.3g}",
            f"{np.mean(spent):.3g}",
            str(calls[epsilon, column].epochs),
        )
        lines.append(
            (f"{epsilon:g}", column, *numbers_of_row, f"{quoted:.2f}", spread(ends(mine), 4))
        )
    heads = ("claimed epsilon", "what", _NOISE, "epsilon in truth", "epochs", "paper", _TEST)
    panels = [
        draw_accuracies(
            epsilon,
            {column: outcomes[epsilon, column] for column in _COLOURS},
            _COLOURS,
            ("DP-MAC",),
        )
        for epsilon in PAPER
    ]
    notes = page("dpmac-mnist-raw", seeds=len(numbers), table=table(heads, lines))
    figure = Figure("DP-MAC on MNIST, features as released", panels, 13, 4.6, 3, 6)
    return Findings(tuple(rows), figure, notes)
