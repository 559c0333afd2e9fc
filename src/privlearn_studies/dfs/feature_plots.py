"""The panels of `dfs-cifar10` and `dfs-mnist`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from privlearn_studies import plots
from privlearn_studies.dfs.grids import Found
from privlearn_studies.dfs.release_runs import CHOSEN, ReleaseSetting

_MARKERS = "osv^D"


def draw(axes: Sequence[Axes], found: Found) -> None:
    """All six."""
    _rows(axes[0], found)
    _criteria(axes[1], found)
    _ways(axes[2], found)
    sizes = found.grid.sizes
    for ax, size in ((axes[3], sizes[-1]), (axes[4], sizes[-2] if len(sizes) < 4 else sizes[2])):
        _statistics(ax, found, size)
    _gains(axes[5], found)


def _rows(ax: Axes, found: Found) -> None:
    grid = found.grid
    for epsilon, colour in zip(grid.epsilons, plots.CYCLE, strict=False):
        _curve(ax, found, grid.row(epsilon), colour, f"epsilon {epsilon:g}", "o-")
        _curve(ax, found, grid.row(epsilon, chosen=CHOSEN[1]), colour, None, "--")
    ax.plot([], [], "--", color="black", label="chosen without privacy")
    _finish(ax, "noisy rows, by distance")


def _criteria(ax: Axes, found: Found) -> None:
    grid = found.grid
    shown = [epsilon for epsilon in grid.epsilons if epsilon in (2.0, 10.0)]
    for epsilon, colours in zip(shown, ((plots.RED, plots.ORANGE), (plots.BLUE, plots.SKY)), strict=False):
        for criterion, colour in zip(("distance", "t"), colours, strict=True):
            _curve(ax, found, grid.row(epsilon, criterion), colour, f"{criterion}, epsilon {epsilon:g}", "o-")
            _curve(ax, found, grid.published(epsilon, criterion), colour, None, ":")
    ax.plot([], [], ":", color="black", label="as published (not private)")
    _finish(ax, "noisy rows, by criterion")


def _ways(ax: Axes, found: Found) -> None:
    """Each way to a classifier at its best, over epsilon."""
    grid = found.grid
    lines: dict[str, tuple[list[float], str]] = {
        "statistics, all features": ([float(np.mean(found.everything(e, None))) for e in grid.epsilons], plots.GREEN),
        "statistics, selected": ([found.selected(e, None).mean for e in grid.epsilons], plots.SKY),
        "rows, by distance": ([found.best([grid.row(e), grid.means(e)]).mean for e in grid.epsilons], plots.RED),
        "rows, by t": ([found.best([grid.row(e, "t")]).mean for e in grid.epsilons], plots.ORANGE),
        "as published (not private)": (
            [found.best([grid.published(e, "distance")]).mean for e in grid.epsilons],
            plots.GREY,
        ),
    }
    if None in grid.heads:
        heads = [float(np.mean(found.head(e, None))) for e in grid.epsilons]
        lines["DP-SGD, linear"] = (heads, plots.BLUE)
    for (name, (values, colour)), marker in zip(lines.items(), _MARKERS + "x", strict=False):
        ax.plot(grid.epsilons, values, marker + "-", color=colour, markersize=4, label=name)
    ax.set_xscale("log")
    ax.set_xticks(list(grid.epsilons))
    plots.plain_ticks(ax.xaxis)
    ax.legend(frameon=False, fontsize=8)
    plots.name_axes(ax, "epsilon", "test accuracy", "each at its best, all rows")


def _statistics(ax: Axes, found: Found, size: int | None) -> None:
    """By means as lines, by Gumbel noise with more for the counts as broken ones."""
    grid = found.grid
    for epsilon, colour in zip(grid.epsilons, plots.CYCLE, strict=False):
        means, _, even = grid.statistics(epsilon, size)
        _curve(ax, found, means, colour, f"epsilon {epsilon:g}", "o-")
        _curve(ax, found, even, colour, None, "--")
    ax.plot([], [], "--", color="black", label="by Gumbel noise, more for counts")
    _finish(ax, f"statistics, {grid.rows // grid.classes if size is None else size:,} rows a class")


def _gains(ax: Axes, found: Found) -> None:
    """What the best selection adds to all features, over the noise."""
    grid = found.grid
    for size, colour, marker in zip(grid.sizes, plots.CYCLE, _MARKERS, strict=False):
        places = [grid.loudness(epsilon, size) for epsilon in grid.epsilons]
        gains = [found.selected(e, size).mean - np.mean(found.everything(e, size)) for e in grid.epsilons]
        ruled = [found.ruled(e, size).mean - float(np.mean(found.everything(e, size))) for e in grid.epsilons]
        ax.plot(places, ruled, marker, fillstyle="none", color="black", markersize=7)
        rows = grid.rows // grid.classes if size is None else size
        ax.plot(places, gains, marker + "-", color=colour, markersize=4, label=f"{rows:,} rows a class")
    ax.axhline(0, color="black", linewidth=0.8)
    ax.plot([], [], "o", fillstyle="none", color="black", markersize=7, label="by the rule")
    ax.set_xscale("log")
    plots.plain_ticks(ax.xaxis)
    ax.legend(frameon=False, fontsize=8)
    plots.name_axes(ax, "z k √p / n: noise in a class mean", "accuracy, selected less all", "what selection adds")


def _curve(ax: Axes, found: Found, setting: ReleaseSetting, colour: str, label: str | None, line: str) -> None:
    values = np.array([found.test(setting, keep) for keep in setting.keeps])
    if "o" in line:
        errors = values.std(1) / max(1, values.shape[1] - 1) ** 0.5
        ax.errorbar(
            setting.keeps, values.mean(1), errors, fmt=line, color=colour, markersize=4, linewidth=1.2, label=label
        )
    else:
        ax.plot(setting.keeps, values.mean(1), line, color=colour, linewidth=1, label=label)


def _finish(ax: Axes, title: str) -> None:
    ax.set_xscale("log")
    plots.plain_ticks(ax.xaxis)
    ax.set_ylim(0, 0.95)
    ax.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    plots.name_axes(ax, "features kept", "test accuracy", title)
