"""Figures as data: panels of curves, bars, lines across, maps and images; matplotlib is imported to
draw them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import ArrayLike

from privlearn.errors import BadInput

#: Colours that stay apart for colour-blind readers (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#666666",
)
CYCLE = (RED, ORANGE, GREEN, SKY, BLUE, PURPLE)
_DPI = 100
Spread = Literal["range", "deviation", "error", "population", "none"]


@final
@dataclass(frozen=True)
class Curve:
    """Points, joined by a line or not.

    Attributes:
        x: places.
        y: heights; or the values of several seeds at each place, of which the mean is drawn, and
            their `spread`.
        label: in the legend; empty: not there.
        colour: of all of it.
        fmt: as matplotlib's, "o-" say.
        spread: what bars show: the range of seeds, their standard deviation, or the standard error
            of the mean.
        shade: a band in place of bars.
        step: steps in place of straight lines.
        width: of the line.
        size: of the marks.
        hollow: marks are rings.
        alpha: opacity.
    """

    x: ArrayLike
    y: Any
    label: str = ""
    colour: str = BLUE
    fmt: str = "-"
    spread: Spread = "none"
    shade: bool = False
    step: bool = False
    width: float = 1.5
    size: float = 4.0
    hollow: bool = False
    alpha: float = 1.0

    def draw(self, ax: Any) -> None:
        """Draw it."""
        style: dict[str, Any] = {
            "color": self.colour,
            "label": self.label or None,
            "linewidth": self.width,
        }
        style |= {"markersize": self.size, "alpha": self.alpha} | (
            {"fillstyle": "none"} if self.hollow else {}
        )
        if self.step:
            ax.step(self.x, self.y, self.fmt, where="mid", **style)
            return
        values = [np.atleast_1d(each) for each in self.y]
        middle = np.array([np.mean(each) for each in values])
        if self.spread == "none":
            ax.plot(self.x, middle, self.fmt, **style)
            return
        low, high = np.array([_spread(each, self.spread) for each in values]).T
        if self.shade:
            ax.plot(self.x, middle, self.fmt, **style)
            ax.fill_between(
                self.x, middle - low, middle + high, color=self.colour, alpha=0.2, linewidth=0
            )
        else:
            ax.errorbar(self.x, middle, yerr=[low, high], fmt=self.fmt, capsize=3, **style)


def _spread(values: np.ndarray[Any, Any], kind: Spread) -> tuple[float, float]:
    if kind == "range":
        return float(values.mean() - values.min()), float(values.max() - values.mean())
    if len(values) < 2:
        return 0.0, 0.0
    deviation = float(values.std(ddof=0 if kind in ("error", "population") else 1))
    return (deviation / (len(values) - 1) ** 0.5,) * 2 if kind == "error" else (deviation,) * 2


@final
@dataclass(frozen=True)
class Across:
    """A line across the panel at a height, or down it at a place; `to` makes it a band."""

    at: float
    label: str = ""
    colour: str = "black"
    line: str = "-"
    down: bool = False
    to: float | None = None
    width: float = 1.0
    alpha: float = 1.0

    def draw(self, ax: Any) -> None:
        """Draw it."""
        style = {"color": self.colour, "alpha": self.alpha, "label": self.label or None}
        if self.to is not None:
            (ax.axvspan if self.down else ax.axhspan)(
                self.at, self.to, linewidth=0, zorder=0, **style
            )
        else:
            (ax.axvline if self.down else ax.axhline)(
                self.at, linestyle=self.line, linewidth=self.width, **style
            )


@final
@dataclass(frozen=True)
class Band:
    """All between two curves."""

    x: ArrayLike
    low: ArrayLike
    high: ArrayLike
    label: str = ""
    colour: str = SKY

    def draw(self, ax: Any) -> None:
        """Draw it."""
        ax.fill_between(
            self.x,
            self.low,
            self.high,
            color=self.colour,
            alpha=0.25,
            linewidth=0,
            label=self.label or None,
        )


@final
@dataclass(frozen=True)
class Bars:
    """Bars; with the values of several seeds at each place, their mean, and a dot for each."""

    x: ArrayLike
    y: Any
    label: str = ""
    colour: str | Sequence[str] = BLUE
    width: float = 0.8
    alpha: float = 1.0

    def draw(self, ax: Any) -> None:
        """Draw it."""
        values = [np.atleast_1d(each) for each in self.y]
        means = [float(np.mean(each)) for each in values]
        ax.bar(
            self.x, means, self.width, color=self.colour, alpha=self.alpha, label=self.label or None
        )
        for place, several in zip(np.asarray(self.x), values, strict=True):
            if np.ndim(self.y[0]):
                ax.plot([place] * len(several), several, "o", color="black", markersize=3)


@final
@dataclass(frozen=True)
class Heat:
    """A map of numbers over two axes.

    Attributes:
        x: edges or places along the horizontal axis.
        y: likewise.
        values: a row for each y.
        colours: matplotlib's name of a map of colours, or the two ends of one.
        low, middle, high: numbers at the ends and in the middle of the colours; without a middle
            they are evenly spread.
        contour: a height that is drawn as a line.
        bar: what stands beside a bar of the colours; empty: there is none.
        over: whether numbers above `high` are meant to be there.
    """

    x: ArrayLike
    y: ArrayLike
    values: Any
    colours: str | tuple[str, str]
    low: float
    high: float
    middle: float | None = None
    contour: float | None = None
    bar: str = ""
    over: bool = False

    def draw(self, ax: Any) -> None:
        """Draw it."""
        from matplotlib.colors import LinearSegmentedColormap, Normalize, TwoSlopeNorm

        whole = isinstance(self.colours, str)
        colours = (
            self.colours if whole else LinearSegmentedColormap.from_list("ends", list(self.colours))
        )
        if self.middle is None:
            norm: Any = Normalize(self.low, self.high)
        else:
            norm = TwoSlopeNorm(self.middle, self.low, self.high)
        smooth = "gouraud" if np.shape(self.x) == np.shape(self.values)[1:] else "flat"
        mesh = ax.pcolormesh(
            self.x, self.y, self.values, cmap=colours, norm=norm, shading=smooth, rasterized=True
        )
        if self.contour is not None:
            ax.contour(
                self.x, self.y, self.values, levels=[self.contour], colors="black", linewidths=1.5
            )
        if self.bar:
            ax.figure.colorbar(
                mesh, ax=ax, extend="max" if self.over else "neither", label=self.bar
            )


@final
@dataclass(frozen=True)
class Image:
    """Numbers in shades of grey, and classes over them in colours; class 0 is left clear.

    Attributes:
        pixels: of shape (rows, columns).
        limit: black at minus this and white at this; None: from the least to the greatest.
        classes: of each pixel; None: none are drawn.
    """

    pixels: Any
    limit: float | None = None
    classes: Any = None

    def draw(self, ax: Any) -> None:
        """Draw it."""
        ends = {} if self.limit is None else {"vmin": -self.limit, "vmax": self.limit}
        turn: Any = {"origin": "lower"} if self.limit is None else {}
        ax.imshow(self.pixels, cmap="gray", **ends, **turn)
        if self.classes is not None:
            from matplotlib.colors import ListedColormap

            colours = ListedColormap(["#00000000", ORANGE, SKY])
            ax.imshow(
                self.classes,
                cmap=colours,
                vmin=0,
                vmax=2,
                alpha=0.65,
                interpolation="nearest",
                **turn,
            )
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(visible=False)


@final
@dataclass(frozen=True)
class Text:
    """Words beside a point."""

    x: float
    y: float
    words: str
    right: bool = False

    def draw(self, ax: Any) -> None:
        """Draw it."""
        place = (
            {"xytext": (9, 0), "textcoords": "offset points", "va": "center"}
            if self.right
            else {"va": "bottom"}
        )
        ax.annotate(self.words, (self.x, self.y), fontsize=7, **place)


Mark = Curve | Across | Band | Bars | Heat | Image | Text


@final
@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        marks: what is drawn, the last on top.
        x: the name of the horizontal axis.
        y: the name of the vertical axis.
        title: above it.
        log: the axes that are logarithmic, with their bases if these are not 10: "x", "y", "xy",
            "x2".
        xlim: ends of the horizontal axis.
        ylim: ends of the vertical axis; None for either leaves it.
        xticks: places of ticks; or names by place.
        yticks: places.
        legend: where its own is; "": it has none, "below": under the panel.
        columns: of its own legend.
        square: whether both axes have one scale.
        wide: whether it has a row of its own.
    """

    marks: Sequence[Mark]
    x: str = ""
    y: str = ""
    title: str = ""
    log: str = ""
    xlim: tuple[float | None, float | None] | None = None
    ylim: tuple[float | None, float | None] | None = None
    xticks: Sequence[float] | dict[float, str] | None = None
    yticks: Sequence[float] | None = None
    legend: str = ""
    columns: int = 1
    square: bool = False
    wide: bool = False

    def draw(self, ax: Any) -> None:
        """Draw it on plain axes with a faint grid."""
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.tick_params(labelsize=9)
        base = float(self.log[-1]) if self.log[-1:].isdigit() else 10
        for axis, scale in (("x", ax.set_xscale), ("y", ax.set_yscale)):
            if axis in self.log:
                scale("log", base=base)
                _plain_ticks(getattr(ax, f"{axis}axis"))
        for mark in self.marks:
            mark.draw(ax)
        self._scale(ax)
        ax.set_xlabel(self.x, fontsize=10)
        ax.set_ylabel(self.y, fontsize=10)
        if self.title:
            ax.set_title(self.title, fontsize=10, loc="left")
        if self.legend == "below":
            ax.legend(
                fontsize=7,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.13),
                ncols=2,
                frameon=False,
                handlelength=1.2,
                columnspacing=1,
            )
        elif self.legend:
            ax.legend(frameon=False, fontsize=8, loc=self.legend, ncols=self.columns)

    def _scale(self, ax: Any) -> None:
        if isinstance(self.xticks, dict):
            ax.set_xticks(list(self.xticks), list(self.xticks.values()), fontsize=8)
        elif self.xticks is not None:
            ax.set_xticks(list(self.xticks), [f"{tick:g}" for tick in self.xticks])
        if self.yticks is not None:
            ax.set_yticks(list(self.yticks))
        if self.xlim:
            ax.set_xlim(*self.xlim)
        if self.ylim:
            ax.set_ylim(*self.ylim)
        if self.square:
            ax.set_aspect("equal")

    @property
    def labels(self) -> set[str]:
        """What its legend says."""
        return {mark.label for mark in self.marks if getattr(mark, "label", "")}  # type: ignore[union-attr]


@final
@dataclass(frozen=True)
class Figure:
    """A title and panels.

    Attributes:
        title: above all.
        panels: row by row.
        width: in inches.
        height: likewise.
        columns: panels in a row.
        legend: columns of the one legend below all panels, of those without their own; 0: there is
            none.
        heights: of the rows, as shares; empty: even.
    """

    title: str
    panels: Sequence[Panel]
    width: float
    height: float
    columns: int = 1
    legend: int = 0
    heights: Sequence[float] = ()


def require_matplotlib() -> None:
    """Refuse to begin what could not be drawn in the end.

    Raises:
        BadInput: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise BadInput('figures are drawn by matplotlib: pip install "privlearn[studies]"')


def draw(figure: Figure) -> Any:
    """The figure by matplotlib."""
    require_matplotlib()
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(figure.width, figure.height), layout="constrained")
    canvas.suptitle(figure.title, fontsize=12, fontweight="bold")
    narrow = sum(not panel.wide for panel in figure.panels)
    rows = -(-narrow // figure.columns) + len(figure.panels) - narrow
    grid = canvas.add_gridspec(rows, figure.columns, height_ratios=list(figure.heights) or None)
    for place, panel in enumerate(figure.panels):
        row, column = divmod(place, figure.columns)
        panel.draw(canvas.add_subplot(grid[row, :] if panel.wide else grid[row, column]))
    if figure.legend:
        several = [ax.get_legend_handles_labels() for ax in canvas.axes if ax.get_legend() is None]
        every = {
            label: handle
            for handles, labels in several
            for handle, label in zip(handles, labels, strict=True)
        }
        canvas.legend(
            list(every.values()),
            list(every),
            loc="outside lower center",
            ncols=figure.legend,
            frameon=False,
            fontsize=9,
        )
    return canvas


def save(figure: Figure, path: Path) -> None:
    """Write the picture."""
    draw(figure).savefig(path, dpi=_DPI)


def _plain_ticks(axis: Any) -> None:
    """Write the ticks of a logarithmic axis as plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
