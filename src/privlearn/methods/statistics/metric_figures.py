"""Test metrics, and the plan of those that are released with noise: one Gaussian release; never
torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, final

from privlearn._checks import between, checked, count, probability, with_plain_numbers
from privlearn._display import Described, Summary
from privlearn._public import registered
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.budget import Budget, require_budget
from privlearn.core.accounting.calibration import solve_gaussian
from privlearn.core.accounting.events import Composed, compose
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.plan import AbstractPlan
from privlearn.errors import BadInput

#: Classes at most: the confusion matrix has their square.
_MOST_CLASSES = 1000


class NoisyMetrics(AbstractPlan):
    """What plans have in common that release test metrics by one Gaussian release over the test
    rows.
    """

    adjacency: Adjacency | None
    noise_multiplier: float | None
    group_size: int

    def _settle(self) -> None:
        """Check what all have, and settle the kind of neighbour."""
        if self.noise_multiplier is not None:
            between("noise_multiplier", self.noise_multiplier, 1e-6, 1e12)
        PrivacyUnit(self.group_size)
        require_budget(self.budget)
        usual = Adjacency.ZERO_OUT if self.adjacency is None else self.adjacency
        object.__setattr__(self, "adjacency", Adjacency.parse(str(usual)))

    @property
    def noise(self) -> float:
        """The noise multiplier.

        Raises:
            BadInput: it was not solved for yet.
        """
        if self.noise_multiplier is None:
            raise BadInput(
                "the plan of the metrics has no noise yet: plan.calibrate(epsilon=, delta=)"
            )
        return self.noise_multiplier

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a model gives for a row."""

    @abstractmethod
    def require_targets(
        self, shape: tuple[int, ...], *, whole: bool, low: float, high: float
    ) -> None:
        """Raise `BadInput` unless metrics can be computed of targets like these."""

    def event(self) -> Composed:
        """The one release."""
        return compose([Gaussian(self.noise)])

    @with_plain_numbers
    def scaled(self, factor: float) -> Self:
        """The plan with `factor` times the noise."""
        return replace(self, noise_multiplier=self.noise * factor)  # type: ignore[type-var]

    def taking(self, share: float, budget: Budget) -> Self:
        """The plan with the noise at which it takes this share of a target's rho.

        Raises:
            BadInput: a share that is none.
        """
        probability("the share of the test metrics", share, open_top=True)
        rho = (
            budget.limit
            if budget.epsilon is None
            else zcdp.rho_for(budget.epsilon, budget.delta or 0.0)
        )
        return replace(self, noise_multiplier=self.group_size / math.sqrt(2 * share * rho))  # type: ignore[type-var]

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], Self], float]:
        return replace(self, noise_multiplier=1.0).scaled, 1.0  # type: ignore[type-var]

    def _solved(self, budget: Budget, spent: Callable[[float], float], start: float) -> float:
        return solve_gaussian(budget, spent)

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """Nothing: it states no facts."""
        return []


@checked
@final
@registered
@dataclass(frozen=True, repr=False)
class MetricsPlan(NoisyMetrics):
    """Test metrics from one noisy release over the test rows, which are private, too.

    A row adds 1 to one cell of the confusion matrix, 1 to one cell of a histogram of scores, and
    its log loss, clipped and divided by the bound, to a sum. All figures are computed from these
    released numbers.

    Neighbours differ in one test row, as they do in one training row: charge both to one ledger,
    and it protects each row, wherever it is.

    Attributes:
        classes: the declared number of classes.
        adjacency: the kind of neighbour, which has to be the ledger's.
        noise_multiplier: that of the release; None: `calibrate` solves for it.
        bins: of the scores, of equal width.
        most_loss: what the log loss of a row is clipped to; public.
        budget: what the plan was calibrated to.
        group_size: the declared, public number of rows that one person has at most.

    Raises:
        BadInput: a number out of range.

    >>> MetricsPlan(classes=2, noise_multiplier=10.0).guarantee(delta=1e-5).epsilon
    0.34481...
    """

    classes: int
    adjacency: Adjacency | None = None
    noise_multiplier: float | None = None
    bins: int = 10
    most_loss: float = 4.0
    budget: Budget | None = None
    group_size: int = 1
    kind: ClassVar[str] = "metrics"

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2, most=_MOST_CLASSES)
        count("bins", self.bins, least=2, most=1000)
        between("most_loss", self.most_loss, 1e-3, 1e3)
        self._settle()

    @property
    def outputs(self) -> int:
        """A score for each class."""
        return self.classes

    def require_targets(
        self, shape: tuple[int, ...], *, whole: bool, low: float, high: float
    ) -> None:
        """Classes, whole numbers from 0."""
        if len(shape) != 1 or not whole or low < 0 or high >= self.classes:
            raise BadInput(
                f"the targets are {'' if whole else 'no '}whole numbers, of shape {shape}: for "
                f"paid metrics expected classes, whole numbers from 0 to {self.classes - 1}, as "
                "the plan says"
            )

    def rows(self) -> list[tuple[str, str]]:
        """What there is to say of it."""
        what = (
            f"confusion matrix of {self.classes} classes, scores in {self.bins} bins, log loss "
            f"to {self.most_loss:g}"
        )
        return [("released of the test rows", what), ("noise multiplier", f"{self.noise:.4g}")]


@checked
@final
@registered
@dataclass(frozen=True, repr=False)
class ValueMetricsPlan(NoisyMetrics):
    """Test metrics of a model of numbers, from one noisy release over the test rows, which are
    private, too.

    Targets have declared bounds, and those beyond count as these. A row adds its error and the
    error's square, the error clipped to `most_error` of the bounds' distance and divided by that,
    and its target and the target's square, scaled to [-1, 1]; for add/remove neighbours also 1 to
    the number of rows. All figures are computed from these released sums.

    Neighbours, and how to charge it: as for `MetricsPlan`.

    Attributes:
        low, high: the declared bounds of targets.
        adjacency: the kind of neighbour, which has to be the ledger's.
        noise_multiplier: that of the release; None: `calibrate` solves for it.
        most_error: what errors are clipped to, as a share of high - low; public. Larger ones count
            as this.
        budget: what the plan was calibrated to.
        group_size: the declared, public number of rows that one person has at most.

    Raises:
        BadInput: a number out of range.

    >>> ValueMetricsPlan(0.0, 100.0, noise_multiplier=10.0).guarantee(delta=1e-5).epsilon
    0.34481...
    """

    low: float
    high: float
    adjacency: Adjacency | None = None
    noise_multiplier: float | None = None
    most_error: float = 0.25
    budget: Budget | None = None
    group_size: int = 1
    kind: ClassVar[str] = "value-metrics"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            between(f"{name} of the targets", getattr(self, name), -1e30, 1e30)
        if not self.low < self.high:
            raise BadInput(
                f"targets lie in [{self.low:g}, {self.high:g}]: expected the smaller bound first"
            )
        between("most_error", self.most_error, 1e-6, 1.0)
        self._settle()

    @property
    def outputs(self) -> int:
        """One number."""
        return 1

    def require_targets(
        self, shape: tuple[int, ...], *, whole: bool, low: float, high: float
    ) -> None:
        """One number for each row."""
        if len(shape) != 1:
            raise BadInput(
                f"the targets have shape {shape}: for paid metrics of numbers expected one for "
                "each row"
            )

    def rows(self) -> list[tuple[str, str]]:
        """What there is to say of it."""
        clipped = (
            f"errors to {self.most_error * (self.high - self.low):g}, targets to "
            f"[{self.low:g}, {self.high:g}]"
        )
        return [
            ("released of the test rows", f"sums of {clipped}"),
            ("noise multiplier", f"{self.noise:.4g}"),
        ]


@final
@dataclass(frozen=True, repr=False)
class Metrics(Described):
    """Figures by name (`metrics["accuracy"]`), of how many rows, and the confusion matrix of a
    classifier.

    Attributes:
        figures: of classes `accuracy`, `balanced_accuracy`, `auc` (the mean over classes, one
            against the rest), `log_loss` and `expected_calibration_error`; of values `rmse`, `mae`
            and `r2`; of maps `dice`; of named tasks others (docs/models.md).
        rows: how many rows they are of.
        confusion_matrix: how many rows of each class (first index) were predicted to be of each
            class.
        plan: what they were released by, with noise; None: they are exact.
        errors: of released ones, the standard deviation that the noise gives each; an estimate.
        seeded: whether anyone may know the seed of that noise.
    """

    figures: Mapping[str, float]
    rows: int
    confusion_matrix: tuple[tuple[int, ...], ...] | None = None
    plan: NoisyMetrics | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    seeded: bool = False

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        matrix = (
            {}
            if self.confusion_matrix is None
            else {"confusion_matrix": [*map(list, self.confusion_matrix)]}
        )
        noise = (
            {}
            if self.plan is None
            else {"errors": dict(self.errors), "noise_multiplier": self.plan.noise}
        )
        return {**self.figures, "rows": self.rows, **matrix, **noise}

    def _summary(self) -> Summary:
        figures = [(name.replace("_", " "), self.text(name)) for name in self.figures]
        how = (
            "exact: no guarantee covers these rows" if self.plan is None else "released with noise"
        )
        return Summary(f"Metrics of {self.rows} rows, {how}", figures)

    def text(self, name: str) -> str:
        """A figure for reading, with what the noise may have moved it by."""
        return f"{self.figures[name]:.4f}" + (
            f" ± {self.errors[name]:.4f}" if name in self.errors else ""
        )
