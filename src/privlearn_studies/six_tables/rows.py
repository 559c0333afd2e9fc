"""The six tables: three that are named data sets, and three that are made up, with a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import one_of
from privlearn.data.dataset import Dataset
from privlearn.data.named import load

Floats = NDArray[np.float64]
NAMED, MADE = ("adult", "breast-cancer", "wisconsin"), ("imbalanced", "categories", "values")
TABLES = (*NAMED, *MADE)
#: Rows of a made-up table, the latter half to test on.
_ROWS = 20_000


@final
@dataclass(frozen=True, repr=False)
class Split:
    """Rows to train and to test on.

    Attributes:
        data: both, with declared bounds.
        target: the declared bounds of values to be predicted; None: there are two classes.
    """

    data: Dataset
    target: tuple[float, float] | None = None


@lru_cache(maxsize=1)
def table(name: str, first: int | None = None) -> Split:
    """The table of that name, of its training rows the first so many; None: all."""
    one_of("the table", name, TABLES)
    split = (
        {"imbalanced": imbalanced, "categories": categories, "values": values}[name]()
        if name in MADE
        else None
    )
    split = split or Split(load(name))
    return replace(split, data=replace(split.data, x=split.data.x[:first], y=split.data.y[:first]))


def imbalanced() -> Split:
    """Twelve numbers; 5 % of the rows are positive."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(_ROWS, 12))
    score = 1.3 * x[:, :5] @ [1, 0.8, 0.6, 0.4, 0.2] + 0.8 * np.abs(x[:, 5]) - 5.1
    return Split(_halves(x, _drawn(draw, score), -3.0, 3.0))


def categories() -> Split:
    """Six columns with 60 categories each."""
    draw, parts, score = np.random.default_rng(2), [], np.full(_ROWS, -0.8)
    for _ in range(6):
        levels = draw.choice(60, _ROWS, p=draw.dirichlet(np.full(60, 0.5)))
        score += 0.7 * draw.normal(size=60)[levels]
        parts.append(np.eye(60)[levels])
    names = tuple(f"column{at}={level}" for at in range(6) for level in range(60))
    return Split(_halves(np.concatenate(parts, 1), _drawn(draw, score), 0.0, 1.0, names))


def values() -> Split:
    """Friedman's first function of 10 numbers (Friedman 1991), with noise; values in [0, 30]."""
    draw = np.random.default_rng(3)
    x = draw.random((_ROWS, 10))
    y = (
        10 * np.sin(np.pi * x[:, 0] * x[:, 1])
        + 20 * (x[:, 2] - 0.5) ** 2
        + 10 * x[:, 3]
        + 5 * x[:, 4]
    )
    return Split(_halves(x, y + draw.normal(size=_ROWS), 0.0, 1.0), (0.0, 30.0))


def _drawn(draw: np.random.Generator, score: Floats) -> NDArray[np.bool_]:
    """Classes of a logistic model."""
    return np.asarray(draw.random(_ROWS) < 1 / (1 + np.exp(-score)))


def _halves(
    x: Floats, y: Floats | NDArray[np.bool_], low: float, high: float, names: tuple[str, ...] = ()
) -> Dataset:
    half, classes = _ROWS // 2, 2 if y.dtype == bool else None
    inputs, targets = x.astype(np.float32), y.astype(np.int64 if classes else np.float32)
    parts = inputs[:half], targets[:half], inputs[half:], targets[half:]
    return Dataset(*parts, classes=classes, low=low, high=high, feature_names=names)
