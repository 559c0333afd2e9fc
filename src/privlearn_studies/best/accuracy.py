"""Accuracy against epsilon, with the library's defaults, beside the papers and what others have published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from privlearn_studies import plots
from privlearn_studies.best.papers import PAPERS, reached_by_papers
from privlearn_studies.best.published import PUBLISHED, Published, best_known, compared, marks
from privlearn_studies.best.runs import DEFAULTS, DELTA, EXAMPLE, STATISTICS, BestOutcome, BestSetting
from privlearn_studies.findings import Findings, Row
from privlearn_studies.seeds import mean_row
from privlearn_studies.sweep import Sweep
from privlearn_studies.writer import table

_SEEDS, _QUICK_SEEDS = 3, 1
_QUICK_ROWS = 6000
_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
_DATA = ("mnist", "fashion-mnist", "cifar10", "cifar10-features", "usps", "adult")
_EXAMPLE_EPSILONS = (1.0, 3.0, 8.0)
_ABOUT_PAPERS = (
    "The papers' methods on MNIST are runs of their own studies: Yu et al.'s network and learning rate with exponentially "
    "decaying noise, batches by a random partition; DP-MAC with calibrated noise and our settings; PATE with 250 teachers and "
    "1,000 queries (its student is tested on 1,000 images)."
)


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """Every data set at every target, and MNIST by Opacus's example."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    grid = quick_grid() if quick else full_grid()
    known = () if quick else PUBLISHED  # which are of all rows
    runs: dict[BestSetting, list[BestOutcome]] = sweep(grid, numbers)
    rows: list[Row] = []
    for setting in grid:
        label = f"{setting.data}, epsilon {setting.epsilon:g}, {setting.way}"
        best = best_known(setting.data, setting.epsilon) if known and setting.way == DEFAULTS else None
        reached = runs[setting]
        rows += [
            mean_row(label, "test accuracy", [each.accuracy for each in reached], best and best.accuracy),
            mean_row(label, f"epsilon spent, at delta {DELTA:g}", [each.epsilon for each in reached]),
            mean_row(label, "seconds of training, one thread", [each.seconds for each in reached]),
        ]
    papers = {} if quick else reached_by_papers(sweep, numbers)
    for (way, epsilon), accuracies in papers.items():
        rows.append(mean_row(f"mnist, epsilon {epsilon:g}, {way}", "test accuracy", accuracies))
    names = list(dict.fromkeys(setting.data for setting in grid))
    title = "accuracy with default settings" + (f", {_QUICK_ROWS:,} training rows" if quick else "")
    figure, axes = plots.panels(title, 13, 10 if len(names) > 3 else 5, -(-len(names) // 3), 3)
    flat = list(np.asarray(axes).flat)
    for ax, data in zip(flat, names, strict=False):
        _panel(ax, data, {setting: runs[setting] for setting in grid if setting.data == data}, known)
        if data == "mnist":
            _mark_papers(ax, papers)
    for ax in flat[len(names) :]:
        ax.set_visible(False)
    lines = [*_lines(grid, runs), *_paper_lines(grid, papers)]
    notes = [_about(len(numbers), names, quick), table(("data", "way", *_columns(grid)), lines)]
    notes.append("Weights, and seconds of training on one thread, features made before:\n\n" + _seconds(grid, runs))
    if not quick:
        ours = {
            (each.data, each.epsilon): float(np.mean([seed.accuracy for seed in runs[each]]))
            for each in grid
            if each.way == DEFAULTS
        }
        notes += [_ABOUT_PAPERS, *compared(ours)]
    return Findings(tuple(rows), figure, tuple(notes))


def full_grid() -> list[BestSetting]:
    """Six data sets at six targets by descent and by statistics, and the example's settings on MNIST at three."""
    ours = [
        BestSetting(data, epsilon, way) for data in _DATA for way in (DEFAULTS, STATISTICS) for epsilon in _EPSILONS
    ]
    return ours + [BestSetting("mnist", epsilon, EXAMPLE) for epsilon in _EXAMPLE_EPSILONS]


def quick_grid() -> list[BestSetting]:
    """Small data sets, and a tenth of MNIST."""
    return [
        BestSetting(data, epsilon, way, first=_QUICK_ROWS)
        for data in ("mnist", "usps", "adult")
        for way in (DEFAULTS, STATISTICS)
        for epsilon in (1.0, 3.0)
    ]


def _columns(grid: Sequence[BestSetting]) -> list[str]:
    return [f"epsilon {epsilon:g}" for epsilon in sorted({setting.epsilon for setting in grid})]


def _lines(grid: Sequence[BestSetting], runs: dict[BestSetting, list[BestOutcome]]) -> list[tuple[str, ...]]:
    """A line for each data set and way: accuracy with its deviation."""
    lines = []
    epsilons = sorted({setting.epsilon for setting in grid})
    for data, way in dict.fromkeys((setting.data, setting.way) for setting in grid):
        own = {setting.epsilon: runs[setting] for setting in grid if (setting.data, setting.way) == (data, way)}
        cells = [_cell([each.accuracy for each in own[epsilon]]) if epsilon in own else "–" for epsilon in epsilons]
        lines.append((data, way, *cells))
    return lines


def _seconds(grid: Sequence[BestSetting], runs: dict[BestSetting, list[BestOutcome]]) -> str:
    """What the defaults take."""
    lines = []
    epsilons = sorted({setting.epsilon for setting in grid})
    for data in dict.fromkeys(setting.data for setting in grid):
        own = {setting.epsilon: runs[setting] for setting in grid if (setting.data, setting.way) == (data, DEFAULTS)}
        means = [f"{np.mean([each.seconds for each in own[epsilon]]):.0f}" for epsilon in epsilons]
        lines.append((data, f"{own[epsilons[0]][0].weights:,}", *means))
    return table(("data", "weights", *_columns(grid)), lines)


def _paper_lines(grid: Sequence[BestSetting], papers: dict[tuple[str, float], list[float]]) -> list[tuple[str, ...]]:
    epsilons = sorted({setting.epsilon for setting in grid})
    return [
        ("mnist", way, *(_cell(papers[way, epsilon]) if (way, epsilon) in papers else "–" for epsilon in epsilons))
        for way in dict.fromkeys(way for way, _ in papers)
    ]


def _mark_papers(ax: Axes, papers: dict[tuple[str, float], list[float]]) -> None:
    """The papers' methods, as made here: hollow marks."""
    for way, marker in zip(PAPERS, "osD", strict=True):
        own = sorted((epsilon, float(np.mean(values))) for (name, epsilon), values in papers.items() if name == way)
        if own:
            ax.plot(*zip(*own, strict=True), marker, color=plots.GREEN, label=way, markersize=5, fillstyle="none")
    _legend(ax)


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def _about(seeds: int, names: Sequence[str], quick: bool) -> str:
    rows = (
        f" **Quick: the first {_QUICK_ROWS:,} training rows of each data set**, so figures are not to be compared with those "
        "that others published, of all rows."
        if quick
        else ""
    )
    return (
        f"Means of {seeds} seed{'s' if seeds > 1 else ''} at delta {DELTA:g}, Poisson sampling, add/remove neighbours: "
        f"{', '.join(names)}.{rows} *Defaults* is `pv.train`, the same for all data sets: grey images are scattered (J = 2), "
        "those in colour seen by random units on top, rows of 256 non-negative numbers or more normalised one by one after a "
        "root, and then by noisy moments, others taken as they are; a linear model, batches of a fifteenth, 30 epochs (60 "
        "above epsilon 4), clip 0.1, SGD with the learning rate of the rule (docs/defaults.md). It was chosen on "
        "training rows held back: of MNIST and Fashion-MNIST for grey images, of CIFAR-10 for those in colour, of its "
        "features for rows. USPS and Adult chose no default. Test figures were seen between one version of the rules and the "
        "next (docs/defaults.md, What was looked at). *Class statistics* is Fisher's classifier from noisy class statistics "
        "(after Shen et al. 2021), behind the same public features."
    )


def _panel(ax: Axes, data: str, runs: dict[BestSetting, list[BestOutcome]], known: Sequence[Published]) -> None:
    """Accuracy against epsilon: lines are ours, marks what others published."""
    for way, colour in ((DEFAULTS, plots.BLUE), (STATISTICS, plots.SKY), (EXAMPLE, plots.GREY)):
        own = sorted((setting.epsilon, reached) for setting, reached in runs.items() if setting.way == way)
        if own:
            means = [float(np.mean([each.accuracy for each in reached])) for _, reached in own]
            ax.plot([epsilon for epsilon, _ in own], means, "o-", color=colour, label=way, markersize=4)
    for which, (whose, points) in enumerate(marks(data, known).items()):
        ax.plot(
            *zip(*points, strict=True),
            "x^sDvP*"[which % 7],
            color=plots.RED,
            label=f"published: {whose}",
            markersize=6,
            linestyle="none",
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks(_EPSILONS, [f"{epsilon:g}" for epsilon in _EPSILONS])
    _legend(ax)
    plots.name_axes(ax, "epsilon", "test accuracy", data)


def _legend(ax: Axes) -> None:
    """Below the panel, where it covers nothing."""
    ax.legend(
        fontsize=7,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=2,
        frameon=False,
        handlelength=1.2,
        columnspacing=1,
    )
