"""Yu et al. 2019, Figures 14 and 15: uniform, exponential and validation-driven noise on Cancer and
on CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from privlearn.core.schedules import parse, spec
from privlearn_studies.charts import BLUE, GREY, RED, Across, Curve, Figure, Mark, Panel
from privlearn_studies.data import TASKS
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
from privlearn_studies.runs import Outcome, Runs
from privlearn_studies.yu2019.schedules import counted
from privlearn_studies.yu2019.training import Setting, train

#: Table V, and plain training's epochs and (training, test) accuracy where the text gives it.
SCHEDULES = {
    "cancer": {
        "uniform": "constant:start=25",
        "exponential": "exp:k=0.001,start=30",
        "validation": "validation:k=0.99,m=1,threshold=0.01,period=50,start=35",
    },
    "cifar10": {
        "uniform": "constant:start=8",
        "exponential": "exp:k=0.001,start=6",
        "validation": "validation:k=0.99,m=5,threshold=0.05,period=10,start=6",
    },
}
SCHEDULES["cifar10-vgg16"] = SCHEDULES["cifar10"]
PLAIN = {
    "cancer": (800, (0.96, 0.96)),
    "cifar10": (200, (0.64, 0.58)),
    "cifar10-vgg16": (200, (0.64, 0.58)),
}
_SEEDS = {"cancer": 50, "cifar10": 3, "cifar10-vgg16": 10}
_QUICK_SEEDS = {"cancer": 10, "cifar10": 1, "cifar10-vgg16": 1}
#: What the paper says of each schedule: test accuracy over uniform noise, and the share of the gap
#: that it closes.
_PAPER: dict[str, dict[str, tuple[float, float | None]]] = {
    "cancer": {"exponential": (0.03, 0.70), "validation": (0.018, None)},
    "cifar10": {"exponential": (0.02, 0.12), "validation": (0.04, 0.19)},
}
_PAPER["cifar10-vgg16"] = _PAPER["cifar10"]
#: A second comparison at this many times the noise, where there is something to gain.
_LOUDER = {"cancer": 3.0}
_TITLES = {
    "cancer": "Cancer (Wisconsin): 10-20-10, full batch",
    "cifar10": "CIFAR-10 by public features",
    "cifar10-vgg16": "CIFAR-10 by features of VGG16",
}
_Outcomes = dict[tuple[str, float], list[Outcome]]


def on_task(task: str) -> Callable[[bool, int | None, Runs], Findings]:
    """The study of one task."""

    def run(quick: bool, seeds: int | None, runs: Runs) -> Findings:
        numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS)[task])
        factors = [1.0, *([_LOUDER[task]] if task in _LOUDER else [])]
        brief = quick and task != "cancer"  # some rows, a tenth of the budget
        first, budget = (8000, TASKS[task].rho / 10) if brief else (None, TASKS[task].rho)
        calls = {
            (schedule, factor): train.at(
                Setting(task, _louder(shape, factor), rho=budget / factor**2, first=first)
            )
            for factor in factors
            for schedule, shape in SCHEDULES[task].items()
        }
        epochs, plain_paper = PLAIN[task]
        plain = train.at(Setting(task, None, epochs=20 if brief else epochs, first=first))
        outcomes = runs([*calls.values(), plain], numbers)
        by_name, plainly = {name: outcomes[call] for name, call in calls.items()}, outcomes[plain]
        rows = [
            mean_row(
                "plain training", "training accuracy", each(plainly, "train_end"), plain_paper[0]
            ),
            mean_row("plain training", "test accuracy", ends(plainly), plain_paper[1]),
        ]
        tables = []
        for factor in factors:
            more, text = _compared(task, by_name, ends(plainly), factor)
            rows += more
            tables.append(text)
        notes = page(
            "yu-tasks",
            about=page(f"yu-tasks-about:{task}"),
            tables="\n\n".join(tables),
            rho=TASKS[task].rho,
            layers=len(TASKS[task].hidden) + 1,
            held=page(f"yu-tasks-about:held-{task.removesuffix('-vgg16')}"),
        )
        return Findings(tuple(rows), _figure(task, by_name, ends(plainly)), notes)

    return run


def _louder(schedule: str, factor: float) -> str:
    """The spec of `schedule` at `factor` times the noise."""
    return schedule if factor == 1 else spec(parse(schedule).scaled(factor))


def _compared(
    task: str, outcomes: _Outcomes, ceiling: Sequence[float], factor: float
) -> tuple[list[Row], str]:
    """Rows and a table of each schedule against uniform noise."""
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    base = ends(outcomes["uniform", factor])
    for schedule in SCHEDULES[task]:
        mine = outcomes[schedule, factor]
        label = schedule if factor == 1 else f"{schedule}, {factor:g} times the noise"
        rows += [
            mean_row(label, "rho, as the paper counts it", [counted(run) for run in mine]),
            mean_row(
                label, "epsilon in truth, at delta 1e-5", [run.epsilon or 0.0 for run in mine]
            ),
            mean_row(label, "epochs", [len(run.test) for run in mine]),
            mean_row(label, UNPROTECTED, each(mine, "train_end")),
            mean_row(label, "test accuracy", ends(mine)),
        ]
        noise = (
            f"{mean(run.noise[0] for run in mine):.3g} to {mean(run.noise[-1] for run in mine):.3g}"
        )
        cells = (schedule, noise, *(f"{row.ours:.4g}" for row in rows[-5:]))
        if schedule == "uniform":
            lines.append((*cells, *("–",) * 5))
            continue
        paper = _PAPER[task].get(schedule, (None, None)) if factor == 1 else (None, None)
        against, share = interval(ends(mine), base), gap_closed(ends(mine), base, ceiling)
        differences = np.subtract(ends(mine), base).tolist()
        rows.append(
            mean_row(
                f"{label} minus uniform",
                "paired difference of test accuracies",
                differences,
                paper[0],
            )
        )
        if np.isfinite(share):
            rows.append(
                Row(
                    label,
                    "share of the gap to plain training closed",
                    share,
                    paper[1],
                    seeds=len(mine),
                )
            )
        lines.append(
            (
                *cells,
                signed(*against),
                verdict(*against),
                _percent(paper[0], "+"),
                percent(share),
                _percent(paper[1]),
            )
        )
    loud = f"**{factor:g} times the noise**, 1/{factor**2:g} of the budget. " if factor > 1 else ""
    heads = (
        "schedule",
        "noise scale",
        "rho",
        "epsilon",
        "epochs",
        "training, not protected",
        "test",
        "over uniform",
        "which is",
        "paper",
        "gap closed",
        "paper",
    )
    said = f"{loud}Means of {len(base)} seeds, paired by seed, with Student's 95% intervals."
    return rows, f"{said}\n\n{table(heads, lines)}"


def _percent(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{100 * value:{sign}.3g} %"


def _figure(task: str, outcomes: _Outcomes, ceiling: Sequence[float]) -> Figure:
    """Each schedule's test accuracies, seed by seed with their mean; and the accuracy over
    training.
    """
    colours = dict(zip(SCHEDULES[task], (GREY, BLUE, RED), strict=True))
    jitter = np.random.default_rng(0)
    left: list[Mark] = []
    right: list[Mark] = []
    for place, ((schedule, factor), cell_outcomes) in enumerate(outcomes.items()):
        tests = ends(cell_outcomes)
        left.append(
            Curve(
                place + jitter.uniform(-0.12, 0.12, len(tests)),
                tests,
                "",
                colours[schedule],
                "o",
                alpha=0.35,
            )
        )
        left.append(
            Curve([place - 0.25, place + 0.25], [mean(tests)] * 2, "", colours[schedule], width=2.5)
        )
        if factor == 1:
            shortest = min(len(run.test) for run in cell_outcomes)
            during = np.mean([run.test[:shortest] for run in cell_outcomes], axis=0)
            right.append(Curve(range(1, shortest + 1), during, schedule, colours[schedule]))
    plain = Across(mean(ceiling), "plain training, at its end", line=":")
    ticks = {
        float(at): s if f == 1 else f"{s}\n{f:g} x noise" for at, (s, f) in enumerate(outcomes)
    }
    panels = [
        Panel(
            [*left, plain],
            "",
            "test accuracy",
            "at the end, each seed and their mean",
            xticks=ticks,
        ),
        Panel([*right, plain], "epoch", "test accuracy, mean of seeds", "during training"),
    ]
    return Figure(_TITLES[task], panels, 11, 4.8, 2, 4)
