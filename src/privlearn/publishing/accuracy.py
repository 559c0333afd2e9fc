"""How sure a test accuracy is, and what a model would reach that always gave one answer."""

from __future__ import annotations

import math

from privlearn._scipy import betaincinv, ndtri
from privlearn.methods.statistics.metric_figures import Metrics

_CONFIDENCE = 0.95


def interval(metrics: Metrics) -> tuple[float, float] | None:
    """The 95 % confidence interval of `accuracy`, if the rows are a random sample and independent
    of each other.

    Of exact figures by Clopper and Pearson (1934), from the number of right answers. Of those
    released with noise an estimate, by the normal law, with the variance of the noise added. None
    where there is no accuracy, or not of a known number of rows.
    """
    accuracy, rows = metrics.figures.get("accuracy"), metrics.rows
    if accuracy is None or not 0 <= accuracy <= 1 or rows < 1:
        return None
    tail = (1 - _CONFIDENCE) / 2
    if metrics.plan is not None:
        variance = accuracy * (1 - accuracy) / rows + metrics.errors.get("accuracy", 0.0) ** 2
        width = -float(ndtri(tail)) * math.sqrt(variance)
        return max(0.0, accuracy - width), min(1.0, accuracy + width)
    right = accuracy * rows
    if abs(right - round(right)) > 1e-4 * max(1.0, math.sqrt(rows)):
        return None  # no share of these rows
    right = round(right)
    low = float(betaincinv(right, rows - right + 1, tail)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, rows - right, 1 - tail)) if right < rows else 1.0
    return low, high


def of_one_answer(metrics: Metrics) -> float | None:
    """The accuracy, on the same rows, of a model that always gives the most frequent class; None if
    it is not known.

    From the confusion matrix, as it was published or released: nothing else is looked at.
    """
    if metrics.confusion_matrix is None:
        return None
    classes = [max(0, sum(row)) for row in metrics.confusion_matrix]
    return max(classes) / sum(classes) if sum(classes) else None
