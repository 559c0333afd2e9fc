"""Draws who sends what to whom in a federation: `python bench/parties.py [FOLDER]`.

The folder, by default `docs/figures`, gets `federation.png`. Lines differ in their dashes and not
in colour alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
#: Fill and edge: what holds records, what adds noise, what sees noise alone.
SECRET, TRUSTED, PUBLIC = ("#fde9d9", "#b0430c"), ("#e3ecf9", "#1f4e99"), ("#e6f3e6", "#2b6a2b")


def draw(path: Path) -> None:
    """Draw the picture into a file."""
    figure = Figure(figsize=(10, 4.9), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 10), ylim=(0.3, 4.8))
    axes.axis("off")
    for place, name in enumerate(("Hospital 1", "Hospital 2", "Hospital 3")):
        _box(axes, 0.1, 3.5 - 1.45 * place, 2.2, 1.15, name, "records\nteacher", SECRET)
    _box(
        axes,
        4.35,
        1.25,
        2.0,
        2.2,
        "Server",
        "adds up\ncharges the ledger\nadds noise once",
        TRUSTED,
    )
    _box(axes, 8.0, 3.3, 1.9, 1.15, "Analyst", "public inputs\nplan and epsilon", PUBLIC)
    _box(axes, 8.0, 0.6, 1.9, 1.3, "Reader", "student\ncertificate\nno records", PUBLIC)
    for place in range(3):
        high = 4.08 - 1.45 * place
        _arrow(axes, (4.3, 2.75 - 0.35 * place), (2.35, high + 0.14), "-")
        _arrow(axes, (2.35, high - 0.14), (4.3, 2.5 - 0.35 * place), "--")
    _arrow(axes, (7.95, 3.75), (6.4, 2.9), "-")
    _arrow(axes, (6.4, 1.8), (7.95, 1.3), ":")
    _text(axes, 3.3, 4.35, "public inputs\n(solid)")
    _text(axes, 3.35, 0.62, "answers without\nnoise, in the clear or\nmasked (dashed)")
    _text(axes, 7.0, 3.75, "questions\n(solid)")
    _text(axes, 7.0, 0.95, "noisy: safe\nto publish\n(dotted)")
    figure.savefig(path, dpi=110)


def _box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    name: str,
    text: str,
    colours: tuple[str, str],
) -> None:
    fill, edge = colours
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", fc=fill, ec=edge, lw=1.8
    )
    axes.add_patch(shape)
    middle = x + width / 2
    axes.text(middle, y + height - 0.13, name, ha="center", va="top", weight="bold", fontsize=12)
    axes.text(middle, y + (height - 0.35) / 2, text, ha="center", va="center", fontsize=10.5)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], style: str) -> None:
    arrow = {"arrowstyle": "-|>", "linestyle": style, "linewidth": 1.6, "color": "#333333"}
    arrow |= {"shrinkA": 0, "shrinkB": 0, "mutation_scale": 14}
    axes.annotate("", end, start, arrowprops=arrow)


def _text(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=10.5, color="#222222")


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FIGURES
    draw(folder / "federation.png")
