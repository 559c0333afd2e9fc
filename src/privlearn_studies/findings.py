"""What a study found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from matplotlib.figure import Figure


@final
@dataclass(frozen=True)
class Row:
    """One number of a paper beside ours.

    Attributes:
        label: which line, point or entry of the table or figure.
        metric: what is measured, with its unit.
        ours: our number, or the mean over seeds.
        paper: the paper's number; None where it gives none.
        ours_std: the standard deviation over seeds; None where chance plays no part.
        seeds: how many seeds.
    """

    label: str
    metric: str
    ours: float
    paper: float | None = None
    ours_std: float | None = None
    seeds: int = 1


@final
@dataclass(frozen=True)
class Findings:
    """All that a study found: rows, a figure, and paragraphs or tables in Markdown that explain them."""

    rows: tuple[Row, ...]
    figure: Figure
    notes: tuple[str, ...]
