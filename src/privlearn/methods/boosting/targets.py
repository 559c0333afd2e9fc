"""What is predicted: classes, bounded values or counts, with the derivatives of their losses; never
torch.

Scores are real numbers, one or several for each row. With the loss l of one row, the gradient is
-dl/ds and the curvature d2l/ds2, or a public stand-in for it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import between, count
from privlearn._public import registered
from privlearn.data.target_forms import class_numbers, require_one_each, target_numbers
from privlearn.errors import BadInput

Array = NDArray[np.float64]
_SIZES = (1e-6, 1e9)


class Target(ABC):
    """What is predicted, as a plan holds it: declared, public.

    Attributes:
        clip_norm: what a row's derivatives are clipped to unless the plan says otherwise.
        prior_variance: of the sum of all shapes, before anything was seen.
        row_variance: of one row's gradient over its curvature: what is not known of the data even
            without noise.
        widening: what curvatures are multiplied by after their release, where scores of one row
            share one loss.
    """

    kind: ClassVar[str]
    clip_norm: ClassVar[float]
    prior_variance: ClassVar[float]
    row_variance: ClassVar[float] = 1.0

    @property
    def outputs(self) -> int:
        """Scores of one row."""
        return 1

    @property
    def widening(self) -> float:
        """What released curvatures are multiplied by."""
        return 1.0

    @property
    def start(self) -> float:
        """The score before anything was released."""
        return 0.0

    @property
    @abstractmethod
    def opposites(self) -> tuple[float, float]:
        """Two targets whose gradients are opposite, or nearly: for audits."""

    @abstractmethod
    def checked(self, y: NDArray[Any]) -> Array:
        """Targets as numbers of the loss, shape (rows,); NaN where a row has none.

        Raises:
            BadInput: something else; for the data's curator, before anything is spent.
        """

    @abstractmethod
    def derivatives(self, scores: Array, y: Array) -> tuple[Array, Array]:
        """Gradients and curvatures of each row by itself, each of shape (rows, outputs); NaN where
        `y` is.
        """

    @abstractmethod
    def text(self) -> str:
        """What a card says of it."""


@final
@registered
@dataclass(frozen=True)
class Labels(Target):
    """One of so many classes, numbered from 0; logistic loss, with one score for two classes.

    A row of probabilities p and class y has the gradient e_y - p and the curvatures p (1 - p), each
    times the weight of its class. With weights, probabilities are those of rows that come as often
    as they weigh.

    Attributes:
        classes: how many there are; public.
        weights: of each class, over the largest; public, and not read off the rows. Empty: all
            alike.
    """

    classes: int
    weights: tuple[float, ...] = ()
    kind: ClassVar[str] = "labels"
    prior_variance: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2, most=10**4)
        if not isinstance(self.weights, tuple) or len(self.weights) not in (0, self.classes):
            raise BadInput(
                f"weights is {str(self.weights)[:60]}: expected a tuple with one for each of "
                f"{self.classes} classes"
            )
        for weight in self.weights:
            between("the weight of a class", weight, *_SIZES)

    @property
    def clip_norm(self) -> float:  # type: ignore[override]
        """A little below the longest gradient, 1 for two classes and sqrt(2) for more."""
        return 0.8 if self.classes == 2 else 1.2

    @property
    def outputs(self) -> int:
        """One for two classes, else one for each."""
        return 1 if self.classes == 2 else self.classes

    @property
    def widening(self) -> float:
        """K / (K - 1): each score is moved as if the others stood still."""
        return 1.0 if self.classes == 2 else self.classes / (self.classes - 1)

    @property
    def opposites(self) -> tuple[float, float]:
        """The class with the largest weight, and the next one."""
        first = self.weights.index(max(self.weights)) if self.weights else 0
        return float(first), float((first + 1) % self.classes)

    def checked(self, y: NDArray[Any]) -> Array:
        """The classes' numbers."""
        y = class_numbers(y, "the targets")
        require_one_each(y.shape, "the targets")
        if (
            y.dtype.kind not in "iub"
            or y.ndim != 1
            or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes)
        ):
            raise BadInput(
                f"the targets are {y.dtype} values of shape {y.shape}: expected whole numbers from "
                f"0 to {self.classes - 1}, the {self.classes} declared classes"
            )
        return y.astype(np.float64)

    def derivatives(self, scores: Array, y: Array) -> tuple[Array, Array]:
        """As the class says."""
        if self.classes == 2:
            p = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
            gradients = y[:, None] - p
        else:
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            gradients = (y[:, None] == np.arange(self.classes)) - p
        weight = self._weights(y)
        return weight * gradients, weight * p * (1 - p)

    def _weights(self, y: Array) -> Array:
        """Of each row, at most 1, shape (rows, 1); NaN for a row without a class."""
        weights = np.array(self.weights or [1.0])
        row_weights = weights[np.nan_to_num(y).astype(int) if self.weights else 0] / weights.max()
        return np.asarray(np.where(np.isnan(y), np.nan, row_weights)[:, None])

    def text(self) -> str:
        """What a card says of it."""
        weights = (
            f", weights {', '.join(f'{weight:g}' for weight in self.weights)}"
            if self.weights
            else ""
        )
        return f"{self.classes} classes, logistic loss{weights}"


@final
@registered
@dataclass(frozen=True)
class Values(Target):
    """A number between declared bounds; squared loss. Values beyond the bounds count as these.

    Scores are in units in which the bounds are -1 and 1. The curvature is 1.

    Attributes:
        low: the declared lower bound; public.
        high: the declared upper bound; public.
    """

    low: float
    high: float
    kind: ClassVar[str] = "values"
    clip_norm: ClassVar[float] = 0.5
    prior_variance: ClassVar[float] = 0.1
    row_variance: ClassVar[float] = 0.05

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            between(f"{name} of the target", getattr(self, name), -1e30, 1e30)
        if not self.low < self.high:
            raise BadInput(
                f"the target lies in [{self.low:g}, {self.high:g}]: expected the smaller bound "
                "first"
            )

    @property
    def opposites(self) -> tuple[float, float]:
        """The bounds."""
        return self.high, self.low

    def checked(self, y: NDArray[Any]) -> Array:
        """The values, in units of the bounds."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return (_numbers(y).clip(self.low, self.high) - middle) / half

    def derivatives(self, scores: Array, y: Array) -> tuple[Array, Array]:
        """As the class says."""
        left = y[:, None] - np.clip(scores, -1, 1)
        return left, np.ones_like(scores) + 0 * left

    def text(self) -> str:
        """What a card says of it."""
        return f"values declared to lie in [{self.low:g}, {self.high:g}], squared loss"


@final
@registered
@dataclass(frozen=True)
class Counts(Target):
    """A whole number from 0 to a declared bound; Poisson loss. A score is the logarithm of the
    expected count.

    Attributes:
        high: the declared upper bound, which larger counts count as; public.
    """

    high: float
    kind: ClassVar[str] = "counts"
    clip_norm: ClassVar[float] = 1.0
    prior_variance: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        between("high of the counts", self.high, 1.0, 1e9)

    @property
    def start(self) -> float:
        """In the middle of the scores of 1 and of `high`."""
        return math.log(self.high) / 2

    @property
    def top(self) -> float:
        """The largest score."""
        return math.log(self.high)

    @property
    def opposites(self) -> tuple[float, float]:
        """The bound, and none."""
        return self.high, 0.0

    def checked(self, y: NDArray[Any]) -> Array:
        """The counts, bounded."""
        return _numbers(y).clip(0.0, self.high)

    def derivatives(self, scores: Array, y: Array) -> tuple[Array, Array]:
        """Gradient y - m and curvature m, at the expected count m."""
        expected = np.exp(np.clip(scores, -self.top - 10, self.top))
        return y[:, None] - expected, expected + 0 * y[:, None]

    def text(self) -> str:
        """What a card says of it."""
        return f"counts up to {self.high:g}, Poisson loss"


def _numbers(y: NDArray[Any]) -> Array:
    y = target_numbers(y, "the targets")
    if y.dtype.kind not in "fiub" or y.ndim != 1:
        raise BadInput(
            f"the targets are {y.dtype} values of shape {y.shape}: expected one number for each row"
        )
    values = y.astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan)
