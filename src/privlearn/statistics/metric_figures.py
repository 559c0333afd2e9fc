"""Test metrics, and the plan of those that are released with noise: one Gaussian release; never torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, final

from privlearn._checks import between, count
from privlearn._display import Described, Summary
from privlearn._public import registered
from privlearn.accounting.budget import Budget, require_budget, solve_gaussian
from privlearn.accounting.events import Composed, compose
from privlearn.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput
from privlearn.plan import AbstractPlan

#: Classes at most: the confusion matrix has their square.
_MOST_CLASSES = 1000


@final
@registered
@dataclass(frozen=True, repr=False)
class MetricsPlan(AbstractPlan):
    """Test metrics from one noisy release over the test rows, which are private, too.

    A row adds 1 to one cell of the confusion matrix, 1 to one cell of a histogram of scores, and its log loss, clipped
    and divided by the bound, to a sum. All figures are computed from these released numbers.

    Neighbours differ in one test row, as they do in one training row: charge both to one ledger, and it protects each
    row, wherever it is.

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
        if self.noise_multiplier is not None:
            between("noise_multiplier", self.noise_multiplier, 1e-6, 1e12)
        PrivacyUnit(self.group_size)
        require_budget(self.budget)
        object.__setattr__(self, "adjacency", Adjacency.parse(str(self.adjacency or Adjacency.ZERO_OUT)))

    @property
    def noise(self) -> float:
        """The noise multiplier.

        Raises:
            BadInput: it was not solved for yet.
        """
        if self.noise_multiplier is None:
            raise BadInput("the plan of the metrics has no noise yet: plan.calibrate(epsilon=, delta=)")
        return self.noise_multiplier

    def event(self) -> Composed:
        """The one release."""
        return compose([Gaussian(self.noise)])

    def scaled(self, factor: float) -> Self:
        """The plan with `factor` times the noise."""
        return replace(self, noise_multiplier=self.noise * factor)

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], Self], float]:
        return replace(self, noise_multiplier=1.0).scaled, 1.0

    def _solved(self, budget: Budget, spent: Callable[[float], float], start: float) -> float:
        return solve_gaussian(budget, spent)

    def rows(self) -> list[tuple[str, str]]:
        """What there is to say of it."""
        what = f"confusion matrix of {self.classes} classes, scores in {self.bins} bins, log loss to {self.most_loss:g}"
        return [("released of the test rows", what), ("noise multiplier", f"{self.noise:.4g}")]

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """Nothing: it states no facts."""
        return []


@final
@dataclass(frozen=True, repr=False)
class Metrics(Described):
    """Figures by name (`metrics["accuracy"]`), of how many rows, and the confusion matrix of a classifier.

    Attributes:
        figures: of classes `accuracy`, `balanced_accuracy`, `auc` (the mean over classes, one against the rest),
            `log_loss` and `expected_calibration_error`; of values `rmse`, `mae` and `r2`; of maps `dice`.
        rows: how many rows they are of.
        confusion_matrix: how many rows of each class (first index) were predicted to be of each class.
        plan: what they were released by, with noise; None: they are exact.
        errors: of released ones, the standard deviation that the noise gives each; an estimate.
        seeded: whether anyone may know the seed of that noise.
    """

    figures: Mapping[str, float]
    rows: int
    confusion_matrix: tuple[tuple[int, ...], ...] | None = None
    plan: MetricsPlan | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    seeded: bool = False

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        matrix = {} if self.confusion_matrix is None else {"confusion_matrix": [*map(list, self.confusion_matrix)]}
        noise = {} if self.plan is None else {"errors": dict(self.errors), "noise_multiplier": self.plan.noise}
        return {**self.figures, "rows": self.rows, **matrix, **noise}

    def _summary(self) -> Summary:
        figures = [(name.replace("_", " "), self.text(name)) for name in self.figures]
        how = "exact: no guarantee covers these rows" if self.plan is None else "released with noise"
        return Summary(f"Metrics of {self.rows} rows, {how}", figures)

    def text(self, name: str) -> str:
        """A figure for reading, with what the noise may have moved it by."""
        return f"{self.figures[name]:.4f}" + (f" ± {self.errors[name]:.4f}" if name in self.errors else "")
