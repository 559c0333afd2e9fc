"""Harder et al. 2019, Algorithm 2: thresholds learned from a private histogram, beside thresholds
that are given.
"""

from __future__ import annotations

from collections.abc import Sequence

from privlearn.core.clipping.derivative_bounds import Histogram
from privlearn_studies.charts import BLUE, RED, Curve, Figure, Mark, Panel
from privlearn_studies.harder2020.mnist import calibrated, held_back, tuned_classifier
from privlearn_studies.report import (
    Findings,
    Row,
    apart,
    each,
    ends,
    mean,
    mean_row,
    page,
    signed,
    spread,
    table,
)
from privlearn_studies.runs import Call, Outcome, Runs

_SEEDS, _QUICK_SEEDS = 3, 1
EPSILONS, _QUICK_EPSILONS = (0.5, 2.0, 8.0), (2.0,)
GIVEN, LEARNED = "thresholds given", "thresholds learned"
#: What is tried of each: a threshold for all layers; the share of examples whose derivatives stay
#: as they are.
THRESHOLDS, QUANTILES = (0.1, 0.3, 1.0), (0.5, 0.75, 0.9)
#: The histogram's noise multiplier, and the threshold until it is released.
NOISE, START = 50.0, 0.3
_TEST, _HELD = "test accuracy", "accuracy on the last 5,000 training images, held back"
_SPENT, _NOISE = (
    "epsilon in truth, at delta 1e-5, projection and histogram included",
    "noise multiplier of training",
)
#: Epsilon, side, and the threshold or quantile.
_Key = tuple[float, str, float]


def tries(epsilon: float, quick: bool = False) -> dict[_Key, Call]:
    """The classifier in our settings for epsilon 0.5, with each threshold and each quantile."""
    tuned = calibrated(tuned_classifier(EPSILONS[0], quick), epsilon)
    fixed = {
        (epsilon, GIVEN, threshold): tuned.but(threshold=threshold) for threshold in THRESHOLDS
    }
    learned = {
        (epsilon, LEARNED, quantile): tuned.but(
            threshold=START, learned=Histogram(NOISE, quantile=quantile)
        )
        for quantile in QUANTILES
    }
    return fixed | learned


def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """The best of the tries of each side, chosen for each epsilon on images held back, one seed."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    epsilons = _QUICK_EPSILONS if quick else EPSILONS
    calls = {key: call for epsilon in epsilons for key, call in tries(epsilon, quick).items()}
    before = runs.named({key: held_back(call) for key, call in calls.items()}, range(1))
    held = {key: ends(outcomes)[0] for key, outcomes in before.items()}
    best = [chosen(held, epsilon, side) for epsilon in epsilons for side in (GIVEN, LEARNED)]
    by_key = runs.named({key: calls[key] for key in best}, numbers)
    rows = [row for key, outcomes in by_key.items() for row in _rows(key, outcomes)]
    rows += [
        Row(f"held back, {_label(key)}, {key[2]:g}", _HELD, value) for key, value in held.items()
    ]
    figure = Figure("DP-MAC on MNIST by given and learned thresholds", [_panel(by_key)], 7, 4.4)
    return Findings(tuple(rows), figure, _notes(by_key, held, len(numbers), quick))


def chosen(held: dict[_Key, float], epsilon: float, side: str) -> _Key:
    """The best try of one side at one epsilon."""
    return max((key for key in held if key[:2] == (epsilon, side)), key=lambda key: held[key])


def _label(key: _Key) -> str:
    return f"epsilon {key[0]:g}, {key[1]}"


def _rows(key: _Key, outcomes: Sequence[Outcome]) -> list[Row]:
    """Of the best of one side at one epsilon."""
    return [
        mean_row(_label(key), _TEST, ends(outcomes)),
        mean_row(_label(key), _SPENT, each(outcomes, "epsilon")),
        Row(_label(key), _NOISE, outcomes[0].noise),
    ]


def _notes(
    by_key: dict[_Key, list[Outcome]], held: dict[_Key, float], seeds: int, quick: bool
) -> str:
    """The page's text."""
    lines, tried = [], []
    for epsilon in dict.fromkeys(key[0] for key in by_key):
        (fixed, fixed_outcomes), (learned, learned_outcomes) = (
            (key, runs) for key, runs in by_key.items() if key[0] == epsilon
        )
        middle, half = apart(_rows(learned, learned_outcomes)[0], _rows(fixed, fixed_outcomes)[0])
        lines.append(
            (
                f"{epsilon:g}",
                f"{fixed[2]:g}",
                f"{fixed_outcomes[0].noise:.4g}",
                spread(ends(fixed_outcomes)),
                f"{learned[2]:g}",
                _layers(learned_outcomes),
                f"{learned_outcomes[0].noise:.4g}",
                spread(ends(learned_outcomes)),
                signed(middle, half),
            )
        )
        for side in (GIVEN, LEARNED):
            tried.append(
                (
                    f"{epsilon:g}",
                    side,
                    *(f"{held[key]:.4f}" for key in held if key[:2] == (epsilon, side)),
                )
            )
    heads = (
        "epsilon",
        "threshold given",
        "its noise multiplier",
        _TEST,
        "quantile",
        "learned, by layer",
        "its noise multiplier",
        _TEST,
        "learned over given",
    )
    both = [
        f"{threshold:g}, or quantile {quantile:g}"
        for threshold, quantile in zip(THRESHOLDS, QUANTILES, strict=True)
    ]
    return page(
        "dpmac-thresholds",
        table=table(heads, lines),
        tries=table(("epsilon", "held back", *both), tried),
        seeds=f"{seeds} seed{'s' if seeds > 1 else ''}",
        noise=NOISE,
        start=START,
        number=len(QUANTILES),
        read="" if quick else page("dpmac-thresholds-parts:read"),
    )


def _layers(outcomes: Sequence[Outcome]) -> str:
    """Learned thresholds, the mean over seeds."""
    return ", ".join(
        f"{mean(layer_thresholds):.2g}"
        for layer_thresholds in zip(*each(outcomes, "thresholds"), strict=True)
    )


def _panel(by_key: dict[_Key, list[Outcome]]) -> Panel:
    marks: list[Mark] = []
    for side, colour in ((GIVEN, BLUE), (LEARNED, RED)):
        accuracies = {key[0]: ends(outcomes) for key, outcomes in by_key.items() if key[1] == side}
        marks.append(
            Curve(list(accuracies), list(accuracies.values()), side, colour, "o-", "range")
        )
    return Panel(marks, "epsilon", _TEST, "", "x2", xticks=EPSILONS, legend="lower right")
