"""Yu et al. 2019, Figures 6 to 11 and Appendix D: one thing is varied at a time, on MNIST under rho = 0.78125."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.figure import Figure

from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import UNPROTECTED, interval, mean_row, signed, verdict
from privlearn_studies.sweep import Sweep
from privlearn_studies.writer import table
from privlearn_studies.yu import settings
from privlearn_studies.yu.runs import Outcome, Setting

_SEEDS, _QUICK_SEEDS = 3, 1
_COLOURS = (plots.GREY, plots.ORANGE, plots.GREEN, plots.BLUE, plots.PURPLE, plots.RED)


@final
@dataclass(frozen=True)
class _Figure:
    """A sweep: its points, how its axis is called, and what the paper says of it.

    Attributes:
        points: from whether it is quick to the runs.
        title: of the picture.
        axis: what is varied.
        paper: what the paper found, for the reader to compare.
        numbers: the paper's (training, test) accuracies where its text has them, by place.
        panels: the curves that get a panel of their own; None: all in one.
    """

    points: Callable[[bool], list[settings.Point]]
    title: str
    axis: str
    paper: str
    numbers: dict[int, tuple[float, float]] | None = None
    panels: tuple[str, ...] | None = None


_FIGURES = {
    "yu-fig6": _Figure(
        settings.fig6, "Accuracy at fixed training times", "epochs",
        "every decay function is above uniform noise at every training time, none is the clear winner, and accuracy is "
        "highest at 50 or 60 epochs.",
    ),
    "yu-fig7-8": _Figure(
        settings.fig7_8, "Decay rates", "decay rate k",
        "accuracy is best at k = 0.2 for exponential decay and at 0.7 for the validation schedule, and falls off to both "
        "sides; training time falls with k for exponential decay, and rises with k overall for the validation schedule.",
        panels=("exponential", "validation"),
    ),
    "yu-fig9": _Figure(
        settings.fig9, "Learning rate at the end of its decay", "learning rate from epoch 10 on",
        "accuracy falls significantly where the learning rate is too small or too large.",
    ),
    "yu-fig10": _Figure(
        settings.fig10, "Hidden units", "hidden units",
        "more hidden units do not lower the accuracy, though noise grows with them.",
    ),
    "yu-fig11": _Figure(
        settings.fig11, "Initial noise scale", "initial noise scale",
        "a higher initial noise lowers the accuracy, less so where the training time is fixed.",
        panels=("60 epochs", "decay rate 0.015"),
    ),
    "yu-layers": _Figure(
        settings.layers, "Hidden layers of 1000 units", "hidden layers",
        "one hidden layer is best, with test accuracies 0.931, 0.921 and 0.898 for one, two and three.",
        numbers=settings.LAYERS,
    ),
}  # fmt: skip


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """The study called `name`."""
    figure = _FIGURES[name]
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    points = figure.points(quick)
    found = sweep([point.setting for point in points], numbers)
    rows: list[Row] = []
    lines = []
    for point in points:
        runs = found[point.setting]
        label = f"{point.curve}, {figure.axis} {point.at:g}"
        paper = (figure.numbers or {}).get(int(point.at))
        epochs = mean_row(label, "epochs", [run.epochs for run in runs])
        train = mean_row(label, UNPROTECTED, [r.train_end for r in runs], paper[0] if paper else None)
        test = mean_row(label, "test accuracy", [run.test[-1] for run in runs], paper[1] if paper else None)
        rows += [epochs, train, test]
        noise = runs[0].noise
        lines.append((point.curve, f"{point.at:g}", f"{epochs.ours:.4g}", f"{noise[0]:.4g} to {noise[-1]:.4g}",
                      f"{train.ours:.4f}", f"{test.ours:.4f}"))  # fmt: skip
    heads = ("schedule", figure.axis, "epochs", "noise scale", "training, not protected", "test accuracy")
    notes = (
        table(heads, lines),
        f"Means of {len(numbers)} seeds, clipping as written (every layer to 4, noise of the scale times 4). The paper: "
        + figure.paper,
        *(_best(points, found, curve, figure.axis) for curve in _curves(points)),
        *([_against_uniform(points, found)] if "uniform" in _curves(points) else ()),
    )
    return Findings(tuple(rows), _draw(figure, points, found), notes)


def _curves(points: Sequence[settings.Point]) -> list[str]:
    return list(dict.fromkeys(point.curve for point in points))


def _best(points: Sequence[settings.Point], found: dict[Setting, list[Outcome]], curve: str, axis: str) -> str:
    """Where a curve is highest, and whether that is more than chance beside its neighbours."""
    mine = [point for point in points if point.curve == curve]
    tests = {point.at: [run.test[-1] for run in found[point.setting]] for point in mine}
    best = max(tests, key=lambda at: float(np.mean(tests[at])))
    alike = [f"{at:g}" for at in tests if at != best and verdict(*interval(tests[best], tests[at])) == "within noise"]
    rest = f"; within noise of it: {', '.join(alike)}" if alike else ""
    return f"{curve}: highest test accuracy {np.mean(tests[best]):.4f} at {axis} {best:g}{rest}."


def _against_uniform(points: Sequence[settings.Point], found: dict[Setting, list[Outcome]]) -> str:
    """Differences to uniform noise at the same training time."""
    base = {p.at: [run.test[-1] for run in found[p.setting]] for p in points if p.curve == "uniform"}
    lines = []
    for point in points:
        if point.curve != "uniform":
            apart = interval([run.test[-1] for run in found[point.setting]], base[point.at])
            lines.append((point.curve, f"{point.at:g}", signed(*apart), verdict(*apart)))
    return "Paired differences to uniform noise at the same training time, with 95% intervals:\n\n" + table(
        ("schedule", "epochs", "test accuracy", "which is"), lines
    )


def _draw(figure: _Figure, points: Sequence[settings.Point], found: dict[Setting, list[Outcome]]) -> Figure:
    """Test (solid) and training accuracy (dashed), and training time where it varies along a curve."""
    columns = figure.panels or ("",)
    timed = any(len({len(found[p.setting][0].noise) for p in points if p.curve == c}) > 1 for c in _curves(points))
    timed = timed and figure.axis != "epochs"
    canvas, axes = plots.panels(figure.title, 6.5 * len(columns), 7 if timed else 4.5, 2 if timed else 1, len(columns))
    for number, panel in enumerate(columns):
        top = axes[number]
        for colour, curve in zip(
            _COLOURS if figure.panels is None else (plots.BLUE,) * 9, _curves(points), strict=False
        ):
            if panel not in ("", curve):
                continue
            mine = [point for point in points if point.curve == curve]
            at = [point.at for point in mine]
            if figure.panels is None and len(_curves(points)) == 1:
                colour = plots.BLUE
            for values_of, style, what in ((_test, "o-", "test"), (_train, "s--", "training, not protected")):
                values = [values_of(found[point.setting]) for point in mine]
                middles = [float(np.mean(v)) for v in values]
                spread = [[m - min(v) for m, v in zip(middles, values, strict=True)],
                          [max(v) - m for m, v in zip(middles, values, strict=True)]]  # fmt: skip
                alone = figure.panels is not None or len(_curves(points)) == 1
                if not alone and what != "test":
                    continue
                shown = plots.GREY if alone and what != "test" else colour
                top.errorbar(at, middles, yerr=spread, fmt=style, color=shown, capsize=3, markersize=4,
                             label=what if alone else curve)  # fmt: skip
            if figure.numbers:
                top.plot(at, [figure.numbers[int(a)][1] for a in at], "D", color=plots.RED, markerfacecolor="none",
                         label="test, paper")  # fmt: skip
                top.set_xticks(at)
            if timed:
                below = axes[len(columns) + number]
                below.plot(at, [np.mean([run.epochs for run in found[point.setting]]) for point in mine], "o-",
                           color=plots.ORANGE, markersize=4)  # fmt: skip
                plots.name_axes(below, figure.axis, "epochs until the budget ends")
        plots.name_axes(top, "" if timed else figure.axis, "accuracy" if panel else "test accuracy", panel)
    plots.legend(canvas, axes[0], 5)
    return canvas


def _test(runs: Sequence[Outcome]) -> list[float]:
    return [run.test[-1] for run in runs]


def _train(runs: Sequence[Outcome]) -> list[float]:
    return [run.train_end for run in runs]
