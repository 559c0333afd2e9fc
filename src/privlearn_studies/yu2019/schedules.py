"""Yu et al. 2019, Table II and Figures 4, 5, 12 and 13: schedules on MNIST under a budget of rho =
0.78125.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from privlearn.core.accounting.budget import Budget
from privlearn.core.plan import Plan
from privlearn.core.sampling import Partition, Shuffle
from privlearn.core.schedules import parse
from privlearn.transforms.pca import PrivatePCA
from privlearn_studies.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Across,
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
    gap_closed,
    interval,
    mean,
    mean_row,
    page,
    percent,
    signed,
    table,
    verdict,
)
from privlearn_studies.runs import Call, Outcome, Runs
from privlearn_studies.yu2019.training import RHO, Setting, mnist, train, uniform

#: Table II's columns: the schedule, and its epochs, training and test accuracy in the paper, then
#: those of plain training and of uniform noise in as many epochs.
TABLE_2 = {
    "uniform": ("constant:start=8", 100, (0.918, 0.919), (0.978, 0.970), None),
    "time": ("time:k=0.05", 38, (0.934, 0.931), (0.959, 0.957), (0.922, 0.925)),
    "step": ("step:k=0.6,period=10", 31, (0.928, 0.929), (0.955, 0.954), (0.921, 0.925)),
    "exponential": ("exp:k=0.01", 71, (0.934, 0.929), (0.971, 0.965), (0.922, 0.925)),
    "polynomial": ("poly:k=3,end=2,period=100", 44, (0.930, 0.932), (0.963, 0.959), (0.925, 0.929)),
    "validation": (
        "validation:k=0.7,m=5,threshold=0.01,period=10",
        64,
        (0.930, 0.930),
        (0.97, 0.964),
        (0.924, 0.926),
    ),
}
#: What a random partition does with the epsilon of rho = 0.78125 at delta 1e-5, which is 6.78:
#: settings chosen on the 5,000 training images that the validation schedule looks at.
PARTITION = Setting(
    "mnist",
    "constant",
    epochs=60,
    clip="flat",
    clip_norm=0.1,
    epsilon=6.78,
    sampling="partition",
    batch_size=4000,
    scale="whitened",
    learning_rate=260.0,
    learning_rates="poly:k=1,end=0,period=60",
)
_SEEDS, _QUICK_SEEDS = 10, 1
#: The schedule whose accuracy is also measured under a random partition, with the same noise.
_MOVED = "polynomial"
#: The schedules that are also run on features of norm 1, and on how many seeds.
_SHORT, _SHORT_SEEDS = ("uniform", "step", "exponential"), 3
_DELTA = 1e-5
#: Epochs for which the paper's validation schedule held each of its noise scales.
_PAPER_HELD = (29, 20, 10, 5)
_COLOURS = dict(zip(TABLE_2, (GREY, ORANGE, GREEN, BLUE, PURPLE, RED), strict=True))
_Columns = dict[str, list[Outcome]]


def _numbers(quick: bool, seeds: int | None) -> range:
    return range(seeds or (_QUICK_SEEDS if quick else _SEEDS))


def written(quick: bool) -> dict[str, Call]:
    """The runs of Table II's columns, clipping as written."""
    return {name: mnist(column[0], quick) for name, column in TABLE_2.items()}


@final
@dataclass(frozen=True)
class _Table:
    """The runs of Table II, by column; each a list over seeds.

    Attributes:
        written: clipping as written.
        sound: with the noise that per-layer clipping takes.
        same_epochs: uniform noise in as many epochs.
        short: features brought to norm 1, some seeds.
        plain: without privacy.
        partition: a random partition, calibrated to the epsilon of the budget.
        moved: a random partition with the very noise of `_MOVED` as written.
    """

    written: _Columns
    sound: _Columns
    same_epochs: _Columns
    short: _Columns
    plain: list[Outcome]
    partition: list[Outcome]
    moved: list[Outcome]


def table2(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Every row of Table II, the sound reading beside it, and what random partitions cost and
    buy.
    """
    numbers = _numbers(quick, seeds)
    outcomes = _run_columns(quick, numbers, runs)
    rows = [row for column in TABLE_2 for row in _column(column, outcomes)]
    rows += [
        mean_row(
            f"{_MOVED} as written, in a random partition", "test accuracy", ends(outcomes.moved)
        ),
        mean_row(
            "partition, calibrated",
            "test accuracy at the same epsilon",
            ends(outcomes.partition),
            0.932,
        ),
        Row(
            "partition, calibrated",
            "epsilon at delta 1e-5, projection included",
            outcomes.partition[0].epsilon or 0.0,
        ),
        Row("partition, calibrated", "noise multiplier", outcomes.partition[0].noise[0]),
    ]
    rows += [
        mean_row(f"{name}, features of norm 1", "test accuracy", ends(short_runs))
        for name, short_runs in outcomes.short.items()
    ]
    return Findings(tuple(rows), _accuracies(outcomes), _notes(outcomes, len(numbers)))


def _run_columns(quick: bool, numbers: Sequence[int], runs: Runs) -> _Table:
    columns, plain = written(quick), mnist(None, quick, epochs=100)
    groups = {
        "written": columns,
        "same_epochs": {
            name: mnist(uniform(TABLE_2[name][1]), quick) for name in TABLE_2 if name != "uniform"
        },
        "sound": {name: call.but(clip="layer") for name, call in columns.items()},
        "alone": {
            "plain": plain,
            "partition": train.at(PARTITION).but(first=plain.first),
            "moved": columns[_MOVED].but(sampling="partition"),
        },
    }
    outcomes = runs([call for group in groups.values() for call in group.values()], numbers)
    by_group: dict[str, Any] = {
        what: {name: outcomes[call] for name, call in group.items()}
        for what, group in groups.items()
    }
    short = runs.named(
        {name: columns[name].but(scale="unit") for name in _SHORT}, numbers[:_SHORT_SEEDS]
    )
    return _Table(**by_group.pop("alone"), **by_group, short=short)


def _column(name: str, outcomes: _Table) -> list[Row]:
    """The rows of one of the table's columns."""
    spec, epochs, private, plain, same = TABLE_2[name]
    ours, label, plainly = (
        outcomes.written[name],
        f"{name} ({spec})",
        f"{name}: plain training, as many epochs",
    )
    rows = [
        mean_row(label, "epochs", [len(run.test) for run in ours], epochs),
        mean_row(label, UNPROTECTED, each(ours, "train_end"), private[0]),
        mean_row(label, "test accuracy", ends(ours), private[1]),
        mean_row(
            f"{name}, noise for per-layer clipping", "test accuracy", ends(outcomes.sound[name])
        ),
        mean_row(
            plainly, "test accuracy", [run.test[epochs - 1] for run in outcomes.plain], plain[1]
        ),
        mean_row(
            plainly,
            "training accuracy of the first 10,000 rows",
            [run.train[epochs - 1] for run in outcomes.plain],
            plain[0],
        ),
    ]
    if same is None:
        return rows
    others, base = outcomes.same_epochs[name], outcomes.written["uniform"]
    rows += [
        mean_row(f"uniform, {epochs} epochs", UNPROTECTED, each(others, "train_end"), same[0]),
        mean_row(f"uniform, {epochs} epochs", "test accuracy", ends(others), same[1]),
        _paired(
            f"{name} minus uniform, 100 epochs", ours, base, private[1] - TABLE_2["uniform"][2][1]
        ),
        _paired(f"{name} minus uniform, {epochs} epochs", ours, others, private[1] - same[1]),
    ]
    share = gap_closed(ends(ours), ends(base), ends(outcomes.plain))
    if np.isfinite(share):
        rows.append(Row(label, "share of the gap to plain training closed", share, seeds=len(ours)))
    return rows


def _paired(label: str, ours: Sequence[Outcome], others: Sequence[Outcome], paper: float) -> Row:
    differences = np.subtract(ends(ours), ends(others)).tolist()
    return mean_row(label, "paired difference of test accuracies", differences, paper)


def _notes(outcomes: _Table, seeds: int) -> str:
    """What the numbers say."""
    decay = []
    for name, same in outcomes.same_epochs.items():
        against = interval(ends(outcomes.written[name]), ends(same))
        decay.append(f"{name} {verdict(*against)} ({signed(*against)})")
    return page(
        "yu-table2",
        summary=_summary(outcomes),
        seeds=seeds,
        decay="; ".join(decay),
        prices=_prices(),
        moved=_MOVED,
        twice=2 * RHO,
        rho=RHO,
        epsilon=outcomes.written["uniform"][0].epsilon,
        counted=outcomes.sound["uniform"][0].epsilon,
        short=", ".join(
            f"{name} reaches {mean(ends(short_runs)):.4f}"
            for name, short_runs in outcomes.short.items()
        ),
        few=len(outcomes.short["uniform"]),
        partition=mean(ends(outcomes.partition)),
        partly=mean(ends(outcomes.moved)),
        shuffled=mean(ends(outcomes.written[_MOVED])),
        best=max(mean(ends(schedule_runs)) for schedule_runs in outcomes.written.values()),
        apart=signed(*interval(ends(outcomes.moved), ends(outcomes.written[_MOVED]))),
        setting=PARTITION,
    )


def _summary(outcomes: _Table) -> str:
    """The table in the order of the paper's columns."""
    lines, base = [], ends(outcomes.written["uniform"])
    for name, (_, _, private, _, _) in TABLE_2.items():
        ours, against = ends(outcomes.written[name]), ["–"] * 3
        if name in outcomes.same_epochs:
            against = [
                signed(*interval(ours, base)),
                signed(*interval(ours, ends(outcomes.same_epochs[name]))),
                percent(gap_closed(ours, base, ends(outcomes.plain))),
            ]
        epochs = mean(len(run.test) for run in outcomes.written[name])
        lines.append(
            (
                name,
                f"{epochs:.4g}",
                f"{private[1]:.3f}",
                f"{mean(ours):.4f}",
                *against,
                f"{mean(ends(outcomes.sound[name])):.4f}",
            )
        )
    heads = (
        "schedule",
        "epochs",
        "paper",
        "ours",
        "over uniform, 100 epochs",
        "over uniform, as many epochs",
        "gap closed",
        "with noise for per-layer clipping",
    )
    return table(heads, lines)


def _prices() -> str:
    """Epsilon of each fixed schedule, reshuffled and in a random partition, as written and with
    sound noise.
    """
    lines = []
    for name, (schedule, epochs, *_) in TABLE_2.items():
        if name == "validation":
            continue
        cells = [name]
        for share in (math.sqrt(2.0), 1.0):
            for sampling in (Shuffle(600), Partition(100)):
                shape = parse(schedule).scaled(1 / share)
                plan = Plan(
                    sampling,
                    epochs=epochs,
                    schedule=shape,
                    front=(PrivatePCA(60, 16.0),),
                    examples=60_000,
                )
                cells.append(f"{plan.guarantee(_DELTA).epsilon:.3f}")
        lines.append(tuple(cells))
    heads = (
        "schedule",
        "as written, reshuffled",
        "as written, partition",
        "sound, reshuffled",
        "sound, partition",
    )
    return table(heads, lines)


def _accuracies(outcomes: _Table) -> Figure:
    """Each column's accuracies side by side."""
    names = list(TABLE_2)
    theirs = Curve(
        np.arange(6) - 0.24,
        [TABLE_2[n][2][1] for n in names],
        "paper",
        GREY,
        "D",
        size=6,
        hollow=True,
    )
    marks: list[Mark] = [theirs]
    for group, shift, label, colour, marker in (
        (outcomes.written, -0.08, "ours, clipping as written", RED, "o"),
        (outcomes.same_epochs, 0.08, "ours, uniform noise in as many epochs", ORANGE, "s"),
        (outcomes.sound, 0.24, "ours, noise for per-layer clipping", BLUE, "^"),
    ):
        places = [place + shift for place, name in enumerate(names) if name in group]
        marks.append(
            Curve(
                places,
                [ends(group[n]) for n in names if n in group],
                label,
                colour,
                marker,
                "range",
                size=6,
            )
        )
    marks.append(
        Across(mean(ends(outcomes.partition)), "ours, partition at the same epsilon", GREEN, "--")
    )
    ticks = {float(place): f"{n}\n{TABLE_2[n][1]} epochs" for place, n in enumerate(names)}
    panel = Panel(marks, "", "test accuracy", xticks=ticks)
    return Figure(
        "Test accuracy at ρ = 0.78125 as the paper counts it (MNIST)", [panel], 9, 5, legend=3
    )


def fig4(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """The noise of each epoch under each schedule."""
    first = _numbers(quick, seeds)[:1]
    reacting = written(quick)["validation"]
    (watched,) = runs([reacting], first)[reacting]
    rows, marks = [], []
    for name, (schedule, *_) in TABLE_2.items():
        if name == "validation":
            noise = watched.noise
        else:
            noise = (
                Plan(Shuffle(600), schedule=parse(schedule))
                .within(Budget(rho=RHO))
                .noise_multipliers()
            )
        marks.append(Curve(range(1, len(noise) + 1), noise, name, _COLOURS[name], step=True))
        rows.append(Row(name, "epochs", len(noise), TABLE_2[name][1]))
        rows.append(Row(name, "noise scale of the last epoch", noise[-1]))
    held = _held(watched.noise)
    theirs = [
        sigma
        for sigma, epochs in zip((10, 7, 4.9, 3.43), _PAPER_HELD, strict=True)
        for _ in range(epochs)
    ]
    marks.append(
        Curve(
            range(1, len(theirs) + 1),
            theirs,
            "validation, the paper's",
            _COLOURS["validation"],
            ":",
            step=True,
        )
    )
    for (sigma, epochs), paper in zip(held, _PAPER_HELD, strict=False):
        rows.append(
            Row(f"validation, noise scale {sigma:.3g}", "epochs at this noise", epochs, paper)
        )
    figure = Figure(
        "Noise scale over training", [Panel(marks, "epoch", "noise scale σ")], 7.5, 4.5, legend=3
    )
    levels = ", ".join(f"{epochs} epochs at {sigma:.3g}" for sigma, epochs in held)
    return Findings(tuple(rows), figure, page("yu-fig4", rho=RHO, seed=first[0], levels=levels))


def _held(noise: Sequence[float]) -> list[tuple[float, int]]:
    """How many epochs in a row each noise scale was held."""
    levels: list[tuple[float, int]] = []
    for sigma in noise:
        if levels and abs(levels[-1][0] - sigma) < 1e-9:
            levels[-1] = (levels[-1][0], levels[-1][1] + 1)
        else:
            levels.append((sigma, 1))
    return levels


def fig5(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Means with ranges over seeds, training and test."""
    numbers = _numbers(quick, seeds)
    by_schedule = runs.named(written(quick), numbers)
    test = {name: ends(outcomes) for name, outcomes in by_schedule.items()}
    seen = {name: each(outcomes, "train_end") for name, outcomes in by_schedule.items()}
    rows, marks = [], []
    for label, values, shift, colour, which in (
        ("training, not protected", seen, -0.1, BLUE, 0),
        ("test", test, 0.1, RED, 1),
    ):
        marks.append(
            Curve(
                np.arange(len(values)) + shift,
                list(values.values()),
                label,
                colour,
                "o",
                "range",
                size=6,
            )
        )
        for name, v in values.items():
            rows += [
                mean_row(name, f"{label} accuracy", v, TABLE_2[name][2][which]),
                Row(name, f"{label} accuracy, least", min(v), seeds=len(v)),
                Row(name, f"{label} accuracy, greatest", max(v), seeds=len(v)),
            ]
    panel = Panel(
        marks, "", "accuracy", xticks={float(place): name for place, name in enumerate(by_schedule)}
    )
    above = ", ".join(
        name for name in by_schedule if name != "uniform" and min(test[name]) > max(test["uniform"])
    )
    said = (
        f"The worst seed of {above} is better than the best one of uniform noise."
        if above
        else "The ranges of all schedules overlap that of uniform noise."
    )
    figure = Figure(
        f"Accuracy of each schedule, mean and range of {len(numbers)} seeds",
        [panel],
        8,
        4.5,
        legend=2,
    )
    return Findings(tuple(rows), figure, f"Clipping as written, as in Table II. {said}")


def fig12_13(quick: bool, seeds: int | None, runs: Runs) -> Findings:
    """Accuracy, and what was spent, epoch by epoch."""
    numbers = _numbers(quick, seeds)
    names = ("uniform", "step", "exponential", "validation")
    by_schedule = runs.named(
        {n: written(quick)[n] for n in names} | {"plain": mnist(None, quick, epochs=100)}, numbers
    )
    plain = by_schedule.pop("plain")
    rows = []
    left: list[Mark] = []
    right: list[Mark] = []
    for name, outcomes in by_schedule.items():
        shortest = min(len(run.test) for run in outcomes)
        test = np.mean([run.test[:shortest] for run in outcomes], axis=0)
        left.append(Curve(range(1, shortest + 1), test, name, _COLOURS[name]))
        spent = np.cumsum(0.5 / np.square(outcomes[0].noise))
        right.append(Curve(range(1, len(spent) + 1), spent, name, _COLOURS[name]))
        rows.append(
            mean_row(name, "rho spent, as the paper counts it", [counted(run) for run in outcomes])
        )
        rows += [
            mean_row(name, f"test accuracy after {e} epochs", [r.test[e - 1] for r in outcomes])
            for e in (10, 20, 30)
            if e <= shortest
        ]
    test = np.mean(each(plain, "test"), axis=0)
    left.append(Curve(range(1, len(test) + 1), test, "plain training", "black", ":"))
    right.append(Across(RHO, line="--", width=0.8))
    panels = [
        Panel(left, "epoch", "test accuracy", "Figure 12"),
        Panel(right, "epoch", "ρ spent, as the paper counts it", "Figure 13"),
    ]
    gap = float(test[-1]) - mean(ends(by_schedule["uniform"]))
    rows.append(Row("plain training minus uniform, at the end", "test accuracy", gap, 0.05))
    figure = Figure("Accuracy and privacy in training", panels, 11, 4.8, 2, 5)
    return Findings(tuple(rows), figure, page("yu-fig12-13", seeds=len(numbers), gap=gap))


def counted(run: Outcome) -> float:
    """The rho that the paper would say was spent."""
    return float(np.sum(0.5 / np.square(run.noise)))
