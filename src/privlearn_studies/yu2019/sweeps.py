"""Yu et al. 2019, Figures 6 to 11 and appendix D: one number is varied at a time, on MNIST under
rho = 0.78125.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from privlearn.core.accounting.budget import Budget
from privlearn.core.plan import Plan
from privlearn.core.sampling import Shuffle
from privlearn.core.schedules import Exponential, spec
from privlearn_studies.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Curve,
    Figure,
    Mark,
    Panel,
)
from privlearn_studies.report import (
    UNPROTECTED,
    Findings,
    Row,
    each,
    ends,
    interval,
    mean,
    mean_row,
    page,
    signed,
    table,
    verdict,
)
from privlearn_studies.runs import Call, Outcome, Runs
from privlearn_studies.yu2019.tables import EPOCHS, PAPER
from privlearn_studies.yu2019.training import RHO, mnist, uniform

_SEEDS, _QUICK_SEEDS = 3, 1
_COLOURS = (GREY, ORANGE, GREEN, BLUE, PURPLE, RED)
_SIXTY = "exp:k=0.0138"
#: Appendix D: training and test accuracy by hidden layers.
LAYERS = {1: (0.9315, 0.931), 2: (0.9228, 0.921), 3: (0.902, 0.898)}
#: The runs of a curve, by place; and all curves of a figure by name.
Curves = dict[str, dict[float, Call]]


def _fixed_times(quick: bool) -> Curves:
    """Every decay function at each training time, by Table III's rates, and uniform noise."""
    times = (30, 60, 100) if quick else EPOCHS
    curves = {"uniform": {float(epochs): mnist(uniform(epochs), quick) for epochs in times}}
    for kind, rates in PAPER.items():
        if not quick or kind is Exponential:
            curves[kind.__name__.lower()] = {
                epochs: mnist(spec(kind(k=k)), quick)  # type: ignore[call-arg]
                for epochs, k in zip(EPOCHS, rates, strict=True)
                if epochs in times
            }
    return curves


def _decay_rates(quick: bool) -> Curves:
    """Decay rates of the exponential and of the validation schedule."""
    rates = (0.01, 0.2, 0.5) if quick else (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
    factors = (0.5, 0.9) if quick else (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    rule = "validation:k={:g},m=5,threshold=0.01,period=10"
    return {
        "exponential": {k: mnist(f"exp:k={k:g}", quick) for k in rates},
        "validation": {k: mnist(rule.format(k), quick) for k in factors},
    }


def _learning_rates(quick: bool) -> Curves:
    """Learning rates that fall from 0.1 to an end within ten epochs."""
    last = (0.01, 0.05) if quick else (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07)
    fall = "poly:k=1,end={:g},period=10,start=0.1"
    return {
        "exponential": {
            end: mnist(_SIXTY, quick, learning_rate=0.1, learning_rates=fall.format(end))
            for end in last
        }
    }


def _widths(quick: bool) -> Curves:
    """Hidden units."""
    widths = (200, 1000) if quick else (200, 400, 600, 800, 1000, 1200, 1400, 1600)
    return {"exponential": {width: mnist(_SIXTY, quick, hidden=(width,)) for width in widths}}


def _starts(quick: bool) -> Curves:
    """Initial noise, at a fixed training time of 60 epochs and at a fixed decay rate."""
    starts = (7.0, 20.0) if quick else (7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0)
    return {
        "60 epochs": {start: mnist(_in_sixty(start), quick) for start in starts},
        "decay rate 0.015": {
            start: mnist(f"exp:k=0.015,start={start:g}", quick) for start in starts
        },
    }


def _in_sixty(start: float) -> str:
    """The exponential schedule from `start` that spends the budget in 60 epochs."""
    plan = Plan(Shuffle(600), epochs=60, schedule=Exponential(k=0.01, start=start))
    return spec(plan.with_rate(Budget(rho=RHO)).schedule)


def _depths(quick: bool) -> Curves:
    """Hidden layers of 1000 units."""
    deep = (1, 2) if quick else tuple(LAYERS)
    return {
        "exponential": {number: mnist(_SIXTY, quick, hidden=(1000,) * number) for number in deep}
    }


@final
@dataclass(frozen=True)
class _Sweep:
    """What one figure varies.

    Attributes:
        curves: from whether it is quick to the runs.
        title: of the picture.
        axis: what is varied.
        paper: what the paper says of it, for the reader to compare.
        numbers: the paper's (training, test) accuracies where its text has them, by place.
        apart: whether each curve has a panel of its own.
    """

    curves: Callable[[bool], Curves]
    title: str
    axis: str
    paper: str
    numbers: dict[int, tuple[float, float]] | None = None
    apart: bool = False


_FIGURES = {
    "yu-fig6": _Sweep(
        _fixed_times,
        "Accuracy at fixed training times",
        "epochs",
        "every decay function is above uniform noise at every training time, none is the clear "
        "winner, and accuracy is highest at 50 or 60 epochs.",
    ),
    "yu-fig7-8": _Sweep(
        _decay_rates,
        "Decay rates",
        "decay rate k",
        "accuracy is best at k = 0.2 for exponential decay and at 0.7 for the validation schedule, "
        "and falls off to both sides; training time falls with k for exponential decay, and rises "
        "with k overall for the validation schedule.",
        apart=True,
    ),
    "yu-fig9": _Sweep(
        _learning_rates,
        "Learning rate at the end of its decay",
        "learning rate from epoch 10 on",
        "accuracy falls significantly where the learning rate is too small or too large.",
    ),
    "yu-fig10": _Sweep(
        _widths,
        "Hidden units",
        "hidden units",
        "more hidden units do not lower the accuracy, though noise grows with them.",
    ),
    "yu-fig11": _Sweep(
        _starts,
        "Initial noise scale",
        "initial noise scale",
        "a higher initial noise lowers the accuracy, less so where the training time is fixed.",
        apart=True,
    ),
    "yu-layers": _Sweep(
        _depths,
        "Hidden layers of 1000 units",
        "hidden layers",
        (
            "one hidden layer is best, with test accuracies 0.931, 0.921 and 0.898 for one, two "
            "and three."
        ),
        LAYERS,
    ),
}


def sweep(name: str) -> Callable[[bool, int | None, Runs], Findings]:
    """The study called `name`."""

    def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
        figure, numbers = _FIGURES[name], range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
        curves = figure.curves(quick)
        outcomes = runs([call for curve in curves.values() for call in curve.values()], numbers)
        reached = {
            name: {at: outcomes[call] for at, call in curve.items()}
            for name, curve in curves.items()
        }
        rows, lines = _rows(figure, reached)
        heads = (
            "schedule",
            figure.axis,
            "epochs",
            "noise scale",
            "training, not protected",
            "test accuracy",
        )
        best = "\n\n".join(
            _best(curve, by_place, figure.axis) for curve, by_place in reached.items()
        )
        against = _against_uniform(reached) if "uniform" in reached else ""
        notes = page(
            "yu-sweeps",
            table=table(heads, lines),
            seeds=len(numbers),
            paper=figure.paper,
            best=best,
            against=against,
        )
        return Findings(tuple(rows), _figure(figure, reached), notes)

    return run


Reached = dict[str, dict[float, list[Outcome]]]


def _rows(figure: _Sweep, reached: Reached) -> tuple[list[Row], list[tuple[str, ...]]]:
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    for curve, by_place in reached.items():
        for at, runs in by_place.items():
            label = f"{curve}, {figure.axis} {at:g}"
            seen, paper = (figure.numbers or {}).get(int(at), (None, None))
            epochs = mean_row(label, "epochs", [len(run.test) for run in runs])
            train = mean_row(label, UNPROTECTED, each(runs, "train_end"), seen)
            test = mean_row(label, "test accuracy", ends(runs), paper)
            rows += [epochs, train, test]
            noise = runs[0].noise
            lines.append(
                (
                    curve,
                    f"{at:g}",
                    f"{epochs.ours:.4g}",
                    f"{noise[0]:.4g} to {noise[-1]:.4g}",
                    f"{train.ours:.4f}",
                    f"{test.ours:.4f}",
                )
            )
    return rows, lines


def _best(curve: str, by_place: dict[float, list[Outcome]], axis: str) -> str:
    """Where a curve is highest, and whether that is more than chance beside its neighbours."""
    tests = {at: ends(runs) for at, runs in by_place.items()}
    best = max(tests, key=lambda at: mean(tests[at]))
    alike = [
        f"{at:g}"
        for at in tests
        if at != best and verdict(*interval(tests[best], tests[at])) == "within noise"
    ]
    rest = f"; within noise of it: {', '.join(alike)}" if alike else ""
    return f"{curve}: highest test accuracy {mean(tests[best]):.4f} at {axis} {best:g}{rest}."


def _against_uniform(reached: Reached) -> str:
    """Differences to uniform noise at the same training time."""
    lines = []
    for curve, by_place in reached.items():
        for at, runs in by_place.items() if curve != "uniform" else ():
            difference = interval(ends(runs), ends(reached["uniform"][at]))
            lines.append((curve, f"{at:g}", signed(*difference), verdict(*difference)))
    return (
        "Paired differences to uniform noise at the same training time, with 95% intervals:\n\n"
        + table(("schedule", "epochs", "test accuracy", "which is"), lines)
    )


def _figure(figure: _Sweep, reached: Reached) -> Figure:
    """Test (solid) and training accuracy (dashed), and training time where it varies along a
    curve.
    """
    timed = figure.axis != "epochs" and any(
        len({len(runs[0].noise) for runs in by_place.values()}) > 1 for by_place in reached.values()
    )
    alone = figure.apart or len(reached) == 1
    groups: Sequence[Any] = (
        [{name: by_place} for name, by_place in reached.items()] if figure.apart else [reached]
    )
    top, below = [], []
    for group in groups:
        marks: list[Mark] = []
        for (curve, by_place), colour in zip(
            group.items(), (BLUE,) if alone else _COLOURS, strict=False
        ):
            at, runs = list(by_place), list(by_place.values())
            marks.append(
                Curve(
                    at,
                    [ends(each) for each in runs],
                    "test" if alone else curve,
                    colour,
                    "o-",
                    "range",
                )
            )
            if alone:
                seen = [each(several, "train_end") for several in runs]
                marks.append(Curve(at, seen, "training, not protected", GREY, "s--", "range"))
            if figure.numbers:
                marks.append(
                    Curve(
                        at,
                        [figure.numbers[int(a)][1] for a in at],
                        "test, paper",
                        RED,
                        "D",
                        hollow=True,
                    )
                )
        name, ticks = "" if not figure.apart else curve, at if figure.numbers else None
        top.append(
            Panel(
                marks,
                "" if timed else figure.axis,
                "accuracy" if name else "test accuracy",
                name,
                xticks=ticks,
            )
        )
        if timed:
            epochs = Curve(
                at,
                [mean(len(run.test) for run in several) for several in runs],
                colour=ORANGE,
                fmt="o-",
            )
            below.append(Panel([epochs], figure.axis, "epochs until the budget ends"))
    return Figure(
        figure.title, [*top, *below], 6.5 * len(groups), 7 if timed else 4.5, len(groups), 5
    )
