"""Yu et al. 2019, Figures 14 and 15: uniform, exponential and validation-driven noise on Cancer and on CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from privlearn_studies import plots
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import UNPROTECTED, gap_closed, interval, mean_row, percent, signed, verdict
from privlearn_studies.sweep import Sweep
from privlearn_studies.tasks import TASKS
from privlearn_studies.writer import table
from privlearn_studies.yu.runs import Outcome, Setting
from privlearn_studies.yu.settings import PLAIN, SMALL_TASKS, with_noise

_TASK = {"yu-fig14": "cancer", "yu-fig15": "cifar10"}
_SEEDS = {"cancer": 50, "cifar10": 3}
_QUICK_SEEDS = {"cancer": 10, "cifar10": 1}
#: What the paper says of each schedule: test accuracy over uniform noise, and the share of the gap that it closes.
_PAPER: dict[str, dict[str, tuple[float, float | None]]] = {
    "cancer": {"exponential": (0.03, 0.70), "validation": (0.018, None)},
    "cifar10": {"exponential": (0.02, 0.12), "validation": (0.04, 0.19)},
}
#: A second comparison at this many times the noise, where there is something to gain.
_LOUDER = {"cancer": 3.0}
_ABOUT = {
    "cancer": "683 complete biopsies, split 560 to 123 afresh for every seed, layers 10-20-10, all rows in every batch. The "
    "paper gives neither clip nor learning rate for this task: its clip on MNIST is used (every layer to 4), and a learning "
    "rate of 0.1, at which no seed gets stuck. No schedule is tuned by itself.",
    "cifar10": "40,000 training images as 1,024 public features of a network trained on other images (the paper's were those "
    "of VGG16, and its plain accuracy is lower), a hidden layer of 1000, batches of 200. The paper gives neither "
    "clip nor learning rate for this task: those of its MNIST task are used (every layer to 4, 0.05). No schedule is tuned.",
}


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """The study called `name`."""
    task = _TASK[name]
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS)[task])
    small: dict[str, Any] = {"first": 8000} if quick and task == "cifar10" else {}
    factors = [1.0, *([_LOUDER[task]] if task in _LOUDER else [])]
    settings = {
        (schedule, factor): Setting(task, with_noise(spec, factor), rho=TASKS[task].rho / factor**2, **small)
        for factor in factors
        for schedule, spec in SMALL_TASKS[task].items()
    }
    if quick and task == "cifar10":
        settings = {key: _shorter(setting) for key, setting in settings.items()}
    epochs, plain_paper = PLAIN[task]
    plain = Setting(task, None, epochs=20 if small else epochs, **small)
    found = sweep([*settings.values(), plain], numbers)

    rows: list[Row] = []
    notes = [_ABOUT[task]]
    ceiling = _test(found[plain])
    rows += [
        mean_row("plain training", "training accuracy", [run.train_end for run in found[plain]], plain_paper[0]),
        mean_row("plain training", "test accuracy", ceiling, plain_paper[1]),
    ]
    for factor in factors:
        mine = {schedule: found[settings[schedule, factor]] for schedule in SMALL_TASKS[task]}
        found_rows, lines = _compare(task, mine, ceiling, factor)
        rows += found_rows
        loud = f"**{factor:g} times the noise**, 1/{factor**2:g} of the budget. " if factor > 1 else ""
        notes.append(f"{loud}Means of {len(numbers)} seeds, paired by seed, with Student's 95% intervals.\n\n" + table(
            ("schedule", "noise scale", "rho", "epsilon", "epochs", "training, not protected", "test", "over uniform",
             "which is", "paper", "gap closed", "paper"), lines))  # fmt: skip
    notes.append(
        f"Every schedule has the same budget: rho {TASKS[task].rho:g} at the first noise, as the paper counts it, for "
        "zero-out "
        "neighbours; what it leaves is less than an epoch. Clipping is as written (every layer to norm 4, noise of the "
        f"scale times 4), which is {_layers(task)} times that rho in truth. The tables' epsilon is that truth, at delta 1e-5."
    )
    notes.append(
        "The validation schedule looks at rows that are declared public and held back from training: "
        + ("60 of the 560." if task == "cancer" else "the 10,000 that the paper sets aside as well.")
    )
    return Findings(tuple(rows), _draw(task, settings, found, ceiling), tuple(notes))


def _compare(
    task: str, runs: dict[str, list[Outcome]], ceiling: Sequence[float], factor: float
) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Rows and a table of each schedule against uniform noise."""
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = []
    base = _test(runs["uniform"])
    for schedule, mine in runs.items():
        label = schedule if factor == 1 else f"{schedule}, {factor:g} times the noise"
        rows += [
            mean_row(label, "rho, as the paper counts it", [_counted(run) for run in mine]),
            mean_row(label, "epsilon in truth, at delta 1e-5", [run.epsilon or 0.0 for run in mine]),
            mean_row(label, "epochs", [run.epochs for run in mine]),
            mean_row(label, UNPROTECTED, [run.train_end for run in mine]),
            mean_row(label, "test accuracy", _test(mine)),
        ]
        noise = f"{np.mean([run.noise[0] for run in mine]):.3g} to {np.mean([run.noise[-1] for run in mine]):.3g}"
        figures = (f"{row.ours:.4g}" for row in rows[-5:])
        cells = (schedule, noise, *figures)
        if schedule == "uniform":
            lines.append((*cells, *("–",) * 5))
            continue
        paper = _PAPER[task].get(schedule, (None, None)) if factor == 1 else (None, None)
        apart = interval(_test(mine), base)
        share = gap_closed(_test(mine), base, ceiling)
        differences = np.subtract(_test(mine), base).tolist()
        rows.append(mean_row(f"{label} minus uniform", "paired difference of test accuracies", differences, paper[0]))
        if np.isfinite(share):
            rows.append(Row(label, "share of the gap to plain training closed", share, paper[1], seeds=len(mine)))
        lines.append((
            *cells, signed(*apart), verdict(*apart), _percent(paper[0], "+"),
            percent(share), _percent(paper[1]),
        ))  # fmt: skip
    return rows, lines


def _counted(run: Outcome) -> float:
    """What the paper would say was spent."""
    return float(np.sum(0.5 / np.square(run.noise)))


def _percent(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{100 * value:{sign}.3g} %"


def _layers(task: str) -> int:
    return len(TASKS[task].hidden) + 1


def _shorter(setting: Setting) -> Setting:
    """The same schedule under a tenth of the budget."""
    from dataclasses import replace

    assert setting.rho is not None
    return replace(setting, rho=setting.rho / 10)


def _test(runs: Sequence[Outcome]) -> list[float]:
    return [run.test[-1] for run in runs]


def _draw(
    task: str,
    settings: dict[tuple[str, float], Setting],
    found: dict[Setting, list[Outcome]],
    ceiling: Sequence[float],
) -> Figure:
    """Each schedule's test accuracies, seed by seed with their mean; and the accuracy over training."""
    title = {"cancer": "Cancer (Wisconsin): 10-20-10, full batch", "cifar10": "CIFAR-10 by public features"}[task]
    figure, (left, right) = plots.panels(title, 11, 4.8, 1, 2)
    colours = dict(zip(SMALL_TASKS[task], (plots.GREY, plots.BLUE, plots.RED), strict=True))
    jitter = np.random.default_rng(0)
    for place, ((schedule, factor), setting) in enumerate(settings.items()):
        tests = _test(found[setting])
        left.plot(place + jitter.uniform(-0.12, 0.12, len(tests)), tests, "o", color=colours[schedule], alpha=0.35,
                  markersize=4)  # fmt: skip
        left.plot([place - 0.25, place + 0.25], [np.mean(tests)] * 2, color=colours[schedule], linewidth=2.5)
        if factor == 1:
            shortest = min(run.epochs for run in found[setting])
            mean = np.mean([run.test[:shortest] for run in found[setting]], axis=0)
            right.plot(range(1, shortest + 1), mean, color=colours[schedule], label=schedule)
    left.axhline(float(np.mean(ceiling)), color="black", linestyle=":", label="plain training")
    right.axhline(float(np.mean(ceiling)), color="black", linestyle=":", label="plain training, at its end")
    left.set_xticks(range(len(settings)), [s if f == 1 else f"{s}\n{f:g} x noise" for s, f in settings], fontsize=8)
    plots.name_axes(left, "", "test accuracy", "at the end, each seed and their mean")
    plots.name_axes(right, "epoch", "test accuracy, mean of seeds", "during training")
    plots.legend(figure, right, 4)
    return figure
