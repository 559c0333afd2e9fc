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


def compute_error_of_mean(metrics: Metrics) -> float | None:
    """The RMSE, on the same rows, of a model that always gives the mean of their targets; None if
    it is not known, or there are several targets.

    From RMSE and R2, as they were published or released: nothing else is looked at.
    """
    rmse, r2 = metrics.figures.get("rmse"), metrics.figures.get("r2")
    if rmse is None or r2 is None or r2 >= 1 or rmse < 0 or "r2_1" in metrics.figures:
        return None
    return rmse / math.sqrt(1 - r2)


def compare_with_one_answer(metrics: Metrics) -> str | None:
    """A warning where one answer for all rows does as well; None where the model is better, or that
    is not known.
    """
    accuracy, r2 = metrics.figures.get("accuracy"), metrics.figures.get("r2")
    constant = of_one_answer(metrics)
    if accuracy is not None and constant is not None and accuracy <= constant:
        return (
            f"the test accuracy of {accuracy:.4f} is not above the {constant:.4f} of a model that "
            "always answers with the most frequent class"
        )
    if r2 is not None and r2 <= 0:
        return (
            f"the test R2 of {r2:.4f} is not above 0: a model that always answers with the mean "
            "has an error that is no larger"
        )
    return None
