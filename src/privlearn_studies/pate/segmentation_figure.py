"""The figure of `pate-segmentation`: students by what was spent and asked, and slices of one volume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure, SubFigure

from privlearn_studies import plots
from privlearn_studies.pate.segmentation_baselines import GradientOutcome
from privlearn_studies.pate.segmentation_runs import WAYS, SegmentationOutcome

_Runs = dict[int, list[SegmentationOutcome]]
_SIZE = (28, 20)
_TITLES = (
    "scan", "truth", "public U-Net", "teachers' mean", *(f"noisy answer:\n{way}" for way in WAYS), "student of\ncorrections",
)  # fmt: skip
_COLOURS = (plots.GREY, plots.ORANGE, plots.RED, plots.BLUE)


def drawn(runs: _Runs, descents: dict[str, list[GradientOutcome]]) -> Figure:
    """Three panels of students, one of answers, and a row of slices."""
    figure = Figure(figsize=(14, 7), layout="constrained")
    figure.suptitle("Private segmentation of the hippocampus, delta 0.001", fontsize=12, fontweight="bold")
    halves: Any = figure.subfigures(2, 1, height_ratios=(2.4, 1))
    top, bottom = halves
    axes = np.ravel(top.subplots(1, 4)).tolist()
    axes[2].sharey(axes[1])
    for ax in axes:
        plots.style(ax)
    _by_teachers(axes[0], runs, descents)
    _over(axes[1], runs, "epsilon, N = 10", [(epsilon, (epsilon, 10)) for epsilon in (1.0, 2.0, 4.0, 8.0)])
    _over(axes[2], runs, "N, epsilon = 8", [(queries, (8.0, queries)) for queries in (10, 20, 40, 80)])
    _answers(axes[3], runs)
    largest = max(runs)
    _slices(bottom, runs[largest][0], largest)
    return figure


def _student(mine: Sequence[SegmentationOutcome], way: str, cell: tuple[float, int]) -> list[float]:
    found = [each for one in mine for each in one.cells if (each.way, each.epsilon, each.queries) == (way, *cell)]
    return [float(np.mean(each.student)) for each in found if each.student is not None]


def _lines(ax: Axes, mine: Sequence[SegmentationOutcome]) -> None:
    """What is public, as lines across."""
    for values, style, label in (
        ([one.public for one in mine], "--", "public U-Net"),
        ([one.itself for one in mine], ":", "public U-Net, taught by itself"),
    ):
        ax.axhline(float(np.mean(values)), color="black", linestyle=style, linewidth=1, label=label)


def _by_teachers(ax: Axes, runs: _Runs, descents: dict[str, list[GradientOutcome]]) -> None:
    """Each way's students over the number of teachers, beside descent."""
    counts = sorted(runs)
    for way, colour in zip(WAYS, _COLOURS, strict=True):
        found = [(count, values) for count in counts if (values := _student(runs[count], way, (8.0, 10)))]
        if found:
            ax.plot(
                *zip(*((c, np.mean(v)) for c, v in found), strict=True), "o-", markersize=4, color=colour, label=way
            )
    for label, outcomes in descents.items():
        if "epsilon 8" in label or label == "no privacy":
            ax.axhline(float(np.mean([one.test for one in outcomes])), color=plots.SKY, linewidth=1)
            ax.annotate(label, (counts[0], float(np.mean([one.test for one in outcomes]))), fontsize=7, va="bottom")
    _lines(ax, runs[counts[0]])
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts)
    plots.plain_ticks(ax.xaxis)
    ax.set_ylim(bottom=0.6)
    ax.legend(frameon=False, fontsize=7, loc="lower right")
    plots.name_axes(ax, "teachers K", "Dice of the student on test volumes", "epsilon 8, 10 volumes asked about")


def _over(ax: Axes, runs: _Runs, name: str, cells: Sequence[tuple[float, tuple[float, int]]]) -> None:
    """Students of corrections over epsilon or over the number of queries, one line for each number of teachers."""
    for count, colour in zip(sorted(runs), plots.CYCLE, strict=False):
        found = [(place, values) for place, cell in cells if (values := _student(runs[count], WAYS[-1], cell))]
        if found:
            spread = np.array([np.std(v, ddof=1) if len(v) > 1 else 0.0 for _, v in found])
            ax.errorbar([p for p, _ in found], [np.mean(v) for _, v in found], spread, fmt="o-", markersize=4, color=colour,
                        label=f"K = {count}")  # fmt: skip
    _lines(ax, runs[min(runs)])
    ax.set_xscale("log", base=2)
    ax.set_xticks([place for place, _ in cells])
    plots.plain_ticks(ax.xaxis)
    ax.legend(frameon=False, fontsize=7)
    plots.name_axes(ax, name.split(",")[0], "Dice of the student of corrections", f"over {name}")


def _answers(ax: Axes, runs: _Runs) -> None:
    """Answers' Dice over the noise, all cells, each way."""
    for way, colour in zip(WAYS, _COLOURS, strict=True):
        cells = [cell for mine in runs.values() for one in mine for cell in one.cells if cell.way == way]
        ax.plot(
            [c.noise for c in cells],
            [float(np.mean(c.answers)) for c in cells],
            "o",
            markersize=2.5,
            color=colour,
            label=way,
        )
    first = next(iter(runs.values()))
    ax.axhline(float(np.mean([one.public_pool for one in first])), color="black", linestyle="--", linewidth=1)
    ax.set_xscale("log")
    plots.plain_ticks(ax.xaxis)
    ax.legend(frameon=False, fontsize=7, loc="lower left")
    plots.name_axes(
        ax, "noise on each number, over the radius", "Dice of the noisy answers", "answers, before any student"
    )


def _slices(figure: SubFigure, one: SegmentationOutcome, teachers: int) -> None:
    """The middle slice of the first volume that was asked about."""
    figure.suptitle(f"The first volume asked about, middle slice: K = {teachers}, epsilon 8, 10 volumes", fontsize=10)
    classes = ListedColormap(["#00000000", plots.ORANGE, plots.SKY])
    scan = np.reshape(one.slices[0], _SIZE)
    for ax, values, title in zip(np.ravel(figure.subplots(1, len(one.slices))), one.slices, _TITLES, strict=False):
        ax.imshow(scan.T, cmap="gray", origin="lower")
        if title != "scan":
            ax.imshow(
                np.reshape(values, _SIZE).T,
                cmap=classes,
                vmin=0,
                vmax=2,
                alpha=0.65,
                origin="lower",
                interpolation="nearest",
            )
        ax.set_title(title, fontsize=8)
        ax.set_axis_off()
