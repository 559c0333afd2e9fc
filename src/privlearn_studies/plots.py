"""The look that all figures share."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

#: Colours that stay apart for colour-blind readers (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666",
)  # fmt: skip

CYCLE = (RED, ORANGE, GREEN, SKY, BLUE, PURPLE)


def panels(title: str, width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of `width` by `height` inches with `rows` x `columns` plain axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold")
    axes = np.ravel(figure.subplots(rows, columns)).tolist()
    for ax in axes:
        style(ax)
    return figure, axes


def style(ax: Axes) -> None:
    """Plain axes with a faint grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=9)


def plain_ticks(axis: Axis) -> None:
    """Write the ticks of a logarithmic axis as plain numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def name_axes(ax: Axes, x: str, y: str, title: str = "") -> None:
    """Label both axes, and the panel if it needs a name."""
    ax.set_xlabel(x, fontsize=10)
    ax.set_ylabel(y, fontsize=10)
    if title:
        ax.set_title(title, fontsize=10, loc="left")


def legend(figure: Figure, ax: Axes, columns: int) -> None:
    """Put the legend of `ax` below the whole figure, where it covers no data."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
