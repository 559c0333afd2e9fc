"""Accuracy against epsilon, with the library's defaults, beside the papers and what others have published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from privlearn.reproduce import plots
from privlearn.reproduce.best.runs import DEFAULTS, DELTA, EXAMPLE, BestOutcome, BestSetting
from privlearn.reproduce.findings import Findings, Row
from privlearn.reproduce.seeds import mean_row
from privlearn.reproduce.sweep import Sweep
from privlearn.reproduce.writer import table

_SEEDS, _QUICK_SEEDS = 3, 1
_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
_DATA = ("mnist", "fashion-mnist", "cifar10", "cifar10-features", "usps", "adult")
_EXAMPLE_EPSILONS = (1.0, 3.0, 8.0)
#: (data set, epsilon, accuracy, whose, with public data beside).
PUBLISHED = (
    ("mnist", 0.5, 0.90, "DP-MAC", False),
    ("mnist", 2.0, 0.95, "DP-MAC", False),
    ("mnist", 8.0, 0.97, "DP-MAC", False),
    ("mnist", 6.78, 0.932, "Yu et al.", False),
    ("mnist", 3.0, 0.987, "Tramèr and Boneh", False),
    ("mnist", 2.93, 0.981, "Papernot et al. 2021", False),
    ("fashion-mnist", 3.0, 0.897, "Tramèr and Boneh", False),
    ("cifar10", 3.0, 0.693, "Tramèr and Boneh", False),
    ("cifar10-features", 2.0, 0.927, "Tramèr and Boneh (other features)", True),
)
_SOURCES = (
    "Published: Harder et al. 2018 (DP-MAC) Table 1; Yu et al. 2019 Table II; Tramèr and Boneh 2021 (scattering, the best of "
    "their linear models and CNNs; for CIFAR-10 features those of SimCLR on unlabelled ImageNet, better than the ones here); "
    "Papernot et al. 2021 (tempered sigmoids)."
)


def run(name: str, quick: bool, seeds: int | None, sweep: Sweep) -> Findings:
    """Every data set at every target, and MNIST by Opacus's example."""
    numbers = range(seeds or (_QUICK_SEEDS if quick else _SEEDS))
    grid = quick_grid() if quick else full_grid()
    runs: dict[BestSetting, list[BestOutcome]] = sweep(grid, numbers)
    rows: list[Row] = []
    for setting in grid:
        label = f"{setting.data}, epsilon {setting.epsilon:g}, {setting.way}"
        best = [
            shown[2] for shown in PUBLISHED if shown[:2] == (setting.data, setting.epsilon) and setting.way == DEFAULTS
        ]
        reached = runs[setting]
        rows += [
            mean_row(label, "test accuracy", [each.accuracy for each in reached], max(best, default=None)),
            mean_row(label, f"epsilon spent, at delta {DELTA:g}", [each.epsilon for each in reached]),
            mean_row(label, "seconds of training, one thread", [each.seconds for each in reached]),
        ]
    names = list(dict.fromkeys(setting.data for setting in grid))
    figure, axes = plots.panels(
        "accuracy with default settings", 12, 7.2 if len(names) > 3 else 4, -(-len(names) // 3), 3
    )
    flat = list(np.asarray(axes).flat)
    for ax, data in zip(flat, names, strict=False):
        _panel(ax, data, {setting: runs[setting] for setting in grid if setting.data == data})
    for ax in flat[len(names) :]:
        ax.set_visible(False)
    notes = (_about(len(numbers)), table(("data", "way", *_columns(grid)), list(_lines(grid, runs))), _SOURCES)
    return Findings(tuple(rows), figure, notes)


def full_grid() -> list[BestSetting]:
    """Six data sets at six targets, and the example's settings on MNIST at three."""
    defaults = [BestSetting(data, epsilon) for data in _DATA for epsilon in _EPSILONS]
    return defaults + [BestSetting("mnist", epsilon, EXAMPLE) for epsilon in _EXAMPLE_EPSILONS]


def quick_grid() -> list[BestSetting]:
    """Small data sets, and a tenth of MNIST."""
    return [BestSetting(data, epsilon, first=6000) for data in ("mnist", "usps", "adult") for epsilon in (1.0, 3.0)]


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


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def _about(seeds: int) -> str:
    return (
        f"Means of {seeds} seeds at delta {DELTA:g}, Poisson sampling, add/remove neighbours. *Defaults* is `pv.train`, the "
        "same for all data sets: images are scattered (J = 2), rows of 256 non-negative numbers or more are normalised one by "
        "one after a root, others taken as they are; a linear model, batches of a fifteenth, 30 epochs (60 above epsilon 4), "
        "clip 0.1, SGD with the learning rate of the rule. The rule was chosen on the last 5,000 training images of MNIST, "
        "the root on 5,000 training rows of the CIFAR-10 features; nothing was chosen on the others, nor on any test row."
    )


def _panel(ax: Axes, data: str, runs: dict[BestSetting, list[BestOutcome]]) -> None:
    """Accuracy against epsilon: lines are ours, marks what others published."""
    for way, colour in ((DEFAULTS, plots.BLUE), (EXAMPLE, plots.GREY)):
        own = sorted((setting.epsilon, reached) for setting, reached in runs.items() if setting.way == way)
        if own:
            means = [float(np.mean([each.accuracy for each in reached])) for _, reached in own]
            ax.plot([epsilon for epsilon, _ in own], means, "o-", color=colour, label=way, markersize=4)
    for which, (whose, marks) in enumerate(_marks(data).items()):
        ax.plot(
            *zip(*marks, strict=True), "x^sD"[which % 4], color=plots.RED, label=whose, markersize=6, linestyle="none"
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks(_EPSILONS, [f"{epsilon:g}" for epsilon in _EPSILONS])
    ax.legend(fontsize=8, loc="lower right")
    plots.name_axes(ax, "epsilon", "test accuracy", data)


def _marks(data: str) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for name, epsilon, accuracy, whose, _ in PUBLISHED:
        if name == data:
            found.setdefault(whose, []).append((epsilon, accuracy))
    return found
