"""Rows from many seeds: means, paired differences, and what can be said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from privlearn_studies.findings import Row

#: What training accuracies are called: exact figures on private rows, outside every guarantee.
UNPROTECTED = "training accuracy (exact, of private rows: not protected)"


def mean_row(label: str, metric: str, values: Sequence[float], paper: float | None = None) -> Row:
    """The mean over seeds, with its standard deviation where there are several."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Row(label, metric, float(np.mean(values)), paper, spread, len(values))


def interval(values: Sequence[float], others: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval for the mean difference of pairs: its middle and its half-width (infinite for one pair)."""
    differences = np.subtract(values, others)
    if len(differences) < 2:
        return float(differences.mean()), math.inf
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    return float(differences.mean()), float(stats.t.ppf(0.5 + level / 2, len(differences) - 1)) * error


def apart(one: Row, other: Row, level: float = 0.95) -> tuple[float, float]:
    """Welch's interval for the difference of two means of independent seeds: middle, half-width (infinite for one seed)."""
    if one.ours_std is None or other.ours_std is None:
        return one.ours - other.ours, math.inf
    parts = [row.ours_std**2 / row.seeds for row in (one, other) if row.ours_std is not None]
    if not any(parts):
        return one.ours - other.ours, 0.0
    freedom = sum(parts) ** 2 / sum(p**2 / (row.seeds - 1) for p, row in zip(parts, (one, other), strict=True))
    return one.ours - other.ours, math.sqrt(sum(parts)) * float(stats.t.ppf(0.5 + level / 2, freedom))


def verdict(middle: float, half_width: float) -> str:
    """In words, what an interval of differences says."""
    if math.isinf(half_width):
        return "one seed says nothing"
    if middle - half_width > 0:
        return "better"
    return "worse" if middle + half_width < 0 else "within noise"


def signed(middle: float, half_width: float) -> str:
    """An interval for reading, in percent: `+0.42 ± 0.13 %`."""
    wide = "?" if math.isinf(half_width) else f"{100 * half_width:.2f}"
    return f"{100 * middle:+.2f} ± {wide} %"


def gap_closed(values: Sequence[float], base: Sequence[float], ceiling: Sequence[float]) -> float:
    """The share of the gap from `base` to `ceiling` that `values` close, in the means; nan unless the gap is beyond noise."""
    gap, half_width = interval(ceiling, base)
    open_ = gap > 0 if math.isinf(half_width) else gap > half_width
    return float(np.mean(values) - np.mean(base)) / gap if open_ else math.nan


def percent(share: float) -> str:
    """A share of a gap for reading; in words where there is no gap."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "no gap"
