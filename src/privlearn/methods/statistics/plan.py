"""The plans of class statistics: public numbers that fix their events beforehand; never torch.

`FisherPlan` and `LeastSquaresPlan` make classifiers, `SelectionPlan` chooses features, `RowsPlan`
releases noisy rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, final

from privlearn._checks import between, count, one_of, probability, with_plain_numbers
from privlearn._public import registered
from privlearn._shapes import Count, Positive
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.budget import Budget, require_budget
from privlearn.core.accounting.calibration import solve_gaussian, solve_noise
from privlearn.core.accounting.events import Composed, Event, compose
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.mechanisms import Gaussian, RandomisedResponse
from privlearn.core.plan import AbstractPlan
from privlearn.core.run_facts import RunFacts
from privlearn.core.transform import PublicTransform, check_choices, other_features, require_chain
from privlearn.errors import BadInput
from privlearn.transforms.select import LEAST_COUNT, PARTS_OF_SPLIT, SIZES, SPLIT, SelectFeatures

if TYPE_CHECKING:
    from privlearn.core.accounting.ledger import Ledger
    from privlearn.core.streams import Streams
    from privlearn.methods.neighbouring_runs import NeighbouringRuns, Rows

#: What follows each row in least squares, as a part of row_norm: accuracy is flat from 0.1 to 0.5.
_CONSTANT = 0.25
#: Numbers in a row of least squares, at most: X'X has their square, and is taken apart into
#: eigenvectors.
_MOST_FEATURES = 10_000
#: Noise in a class mean, in parts of a row's norm, from which noisy rows teach hardly anything.
_DROWNED = 2.0
_FISHER = (
    "A Fisher classifier (features independent within classes), computed from released numbers "
    "alone."
)


class StatisticsFacts(RunFacts, total=False):
    """What releases of statistics state."""

    ridge: Positive


class ReleasedRowsFacts(TypedDict):
    """What the file of released rows holds: names of its numbers and of the label, the declared
    bounds of the numbers (none where none are known), and what the classes are called.
    """

    columns: list[str]
    label: str
    bounds: list[tuple[float, float]]
    classes: list[str]


class RowsFacts(StatisticsFacts, total=False):
    """What releases of rows state; `examples` is how many rows there are."""

    examples: Count
    released_rows: ReleasedRowsFacts


class StatisticsPlan(AbstractPlan):
    """What plans of class statistics have in common.

    One number, `noise_multiplier`, fixes the noise of all parts: together they cost
    rho = 1 / (2 noise_multiplier^2), and each part a stated share of that.
    """

    classes: int
    features: int
    row_norm: float
    adjacency: Adjacency | None
    noise_multiplier: float | None
    group_size: int
    front: tuple[PublicTransform, ...]
    facts_shape: ClassVar[Any] = StatisticsFacts

    def _settle(self, usual: Adjacency = Adjacency.ADD_REMOVE) -> None:
        """Check what all plans have, and settle the kind of neighbour."""
        count("features", self.features, most=10**9)
        require_chain(self.front, PublicTransform)
        if not isinstance(self.row_norm, int | float):
            raise BadInput(
                f"row_norm is {self.row_norm!r}: expected a public bound on the L2 norm of rows, "
                "which may not be read off private data. Longer rows are clipped to it"
            )
        PrivacyUnit(self.group_size)
        require_budget(self.budget)
        if self.noise_multiplier is not None:
            between("noise_multiplier", self.noise_multiplier, 1e-6, 1e12)
        object.__setattr__(
            self,
            "adjacency",
            Adjacency.parse(str(usual if self.adjacency is None else self.adjacency)),
        )

    @property
    def noise(self) -> float:
        """The noise multiplier of the whole.

        Raises:
            BadInput: it was not solved for yet.
        """
        if self.noise_multiplier is None:
            raise BadInput(
                "the plan has no noise yet: settle it with plan.calibrate(epsilon=, delta=), or "
                "noise_multiplier="
            )
        return self.noise_multiplier

    @with_plain_numbers
    def scaled(self, factor: float) -> Self:
        """The plan with `factor` times the noise."""
        return replace(self, noise_multiplier=self.noise * factor)  # type: ignore[type-var]

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], Self], float]:
        return self._at_one().scaled, 3.0

    def _solved(self, budget: Budget, spent: Callable[[float], float], start: float) -> float:
        if budget.epsilon is not None and zcdp.gaussian_mu(self._at_one().event()) is None:
            return solve_noise(spent, budget.limit, start)
        return solve_gaussian(budget, spent)  # all Gaussian, or a target of rho: to the last digits

    def _at_one(self) -> Self:
        return replace(self, noise_multiplier=1.0)  # type: ignore[type-var]

    def neighbouring_runs(self) -> NeighbouringRuns:
        """Its run on made-up rows, for audits: the example is beyond all bounds."""
        from privlearn.methods.statistics.made_up_rows import runs_of

        return runs_of(self)

    @abstractmethod
    def run_on(self, rows: Rows, ledger: Ledger, streams: Streams) -> object:
        """Release what the plan says of rows and their targets, by the function that users
        call.
        """

    @property
    def is_adaptive(self) -> bool:
        """Whether what is released may follow from what was released before."""
        return False

    def _rows(self, released: str, features: str, bounds: str) -> list[tuple[str, str]]:
        noise = ("noise multiplier", f"{self.noise:.4g} for all together")
        return [("released", released), ("features kept", features), ("bounds", bounds), noise]

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """Other public features than the plan's, or that another number of features was chosen."""
        check_choices(facts, [self.keep] if self.selects else [])  # type: ignore[attr-defined]
        return other_features(self.front, facts)

    @property
    def selects(self) -> bool:
        """Whether some features are left out."""
        return count("keep", self.keep) < self.features  # type: ignore[attr-defined]


@final
@registered
@dataclass(frozen=True, repr=False)
class LeastSquaresPlan(StatisticsPlan):
    """A classifier by least squares, from one release of the sums of products of rows, of all
    features.

    Attributes:
        classes: the declared number of classes.
        features: the number of numbers in a row.
        row_norm: L2 norm that rows are clipped to. Public: it may not be read off the data.
        adjacency: the kind of neighbour.
        split: rho in proportion for X'Y and X'X.
        noise_multiplier: that of the release; None: `calibrate` solves for it.
        budget: what the plan was calibrated to; the limit of the ledger.
        group_size: the declared, public number of examples that one person has at most.
        front: public transforms of rows; `features` counts what they make.

    Raises:
        BadInput: a number out of range.
    """

    classes: int
    features: int
    row_norm: float
    adjacency: Adjacency | None = None
    split: tuple[float, float] = SPLIT[1:]
    noise_multiplier: float | None = None
    budget: Budget | None = None
    group_size: int = 1
    front: tuple[PublicTransform, ...] = ()
    kind: ClassVar[str] = "least-squares"

    def __post_init__(self) -> None:
        self._settle()
        count("the features of least squares", self.features, most=_MOST_FEATURES)
        count("classes", self.classes, least=2, most=10**6)
        between("row_norm", self.row_norm, *SIZES)
        if not isinstance(self.split, tuple) or len(self.split) != 2:
            raise BadInput(
                f"split is {self.split!r}: expected two numbers, for X'Y and X'X, such as "
                f"{SPLIT[1:]}"
            )
        for part in self.split:
            between("a part of the split", part, *PARTS_OF_SPLIT)

    def run_on(self, rows: Rows, ledger: Ledger, streams: Streams) -> object:
        """The sums of products, without the classifier that is made of them."""
        from privlearn.methods.statistics.classifiers import open_squares

        return open_squares(self, rows, ledger, streams)

    @property
    def keep(self) -> int:
        """All features."""
        return self.features

    @property
    def constant(self) -> float:
        """What follows each row."""
        return _CONSTANT * self.row_norm

    @property
    def noise_of_sums(self) -> float:
        """Standard deviation of the noise in each number of the class sums.

        Raises:
            BadInput: the noise was not solved for yet.
        """
        # A row of the same class in its place has the same constant, which cancels.
        moved = max(
            self.neighbours.sum_sensitivity(self.row_norm), math.hypot(self.row_norm, self.constant)
        )
        sums, moments = self.split
        return self.noise * moved * math.sqrt((sums + moments) / sums)

    def event(self) -> Composed:
        """The one release."""
        return compose([Gaussian(self.noise)])

    @property
    def summary(self) -> str:
        """What a card says of how it was made."""
        kind = "A linear classifier by least squares, with a ridge that follows the noise"
        return f"{kind}, computed from released numbers alone."

    def rows(self) -> list[tuple[str, str]]:
        """What a card says of what was released."""
        released = "sums of products of each row with its class and with itself"
        return self._rows(
            released, f"{self.features} of {self.features}", f"rows to norm {self.row_norm:g}"
        )


@dataclass(frozen=True, repr=False)
class ChoosingPlan(StatisticsPlan):
    """What plans have in common of which some features may be chosen.

    Attributes:
        classes: the declared number of classes.
        features: the number of numbers in a row.
        keep: how many features are kept; all of them: nothing is selected, or charged for
            selecting.
        row_norm: L2 norm R that rows are clipped to. Public: it may not be read off the data.
        coordinate_bound: bound B on single numbers, which selection by Gumbel noise needs; None:
            none is declared.
        criterion: `distance` (the largest between class means), `t` (that over its standard error,
            with variances pooled over all classes) or `welch` (with those of the two classes).
        way: `means`, `gumbel`, or `auto`: what makes for less noise by public numbers alone (see
            `SelectFeatures`).
        adjacency: the kind of neighbour.
        split: rho in parts for counts, class sums and second moments.
        least_count: the floor under counts.
        noise_multiplier: that of the one Gaussian release that would cost as much; None:
            `calibrate` solves for it.
        budget: what the plan was calibrated to; the limit of the ledger.
        group_size: the declared, public number of examples that one person has at most.
        front: public transforms of rows; `features` counts what they make.

    Raises:
        BadInput: a number out of range, or bounds that are missing.
    """

    classes: int
    features: int
    keep: int
    row_norm: float
    coordinate_bound: float | None = None
    criterion: str = "distance"
    way: str = "auto"
    adjacency: Adjacency | None = None
    split: tuple[float, float, float] = SPLIT
    least_count: float = LEAST_COUNT
    noise_multiplier: float | None = None
    budget: Budget | None = None
    group_size: int = 1
    front: tuple[PublicTransform, ...] = ()

    def __post_init__(self) -> None:
        self._settle()

    def _settle(self, usual: Adjacency = Adjacency.ADD_REMOVE) -> None:
        super()._settle(usual)
        self._select(1.0).output_shape((self.features,))

    @property
    @abstractmethod
    def in_one_release(self) -> bool:
        """Whether the statistics that features are chosen by are all that is released, or none are
        chosen.
        """

    @property
    def is_adaptive(self) -> bool:
        """Whether features are chosen, and something else is released of the chosen ones."""
        return self.selects and (self._select(1.0).by_gumbel or not self.in_one_release)

    @property
    def selection(self) -> SelectFeatures:
        """The release by which features are chosen, its noise settled."""
        return self._select(self.noise)

    def _select(self, noise: float) -> SelectFeatures:
        way = self.way if self.selects else "means"  # all features need no Gumbel noise
        return SelectFeatures(
            self.keep,
            noise,
            self.classes,
            self.row_norm,
            self.coordinate_bound,
            self.criterion,
            way,
            self.split,
            self.least_count,
        )

    @property
    def _features_text(self) -> str:
        if not self.selects:
            return f"{self.keep} of {self.features}"
        way = (
            "Gumbel noise on distances of class means"
            if self.selection.by_gumbel
            else "noisy class means"
        )
        return f"{self.keep} of {self.features}, by {way}, criterion {self.criterion}"

    @property
    def _bounds(self) -> list[str]:
        if self.selects and self.selection.by_gumbel:
            return [f"single numbers to {self.coordinate_bound:g} for choosing"]
        return [f"rows to norm {self.row_norm:g}"] if self.selects or self.in_one_release else []

    def rows(self) -> list[tuple[str, str]]:
        """What a card says of what was released."""
        return self._rows(
            "counts, class sums and second moments", self._features_text, ", ".join(self._bounds)
        )


@final
@registered
@dataclass(frozen=True, repr=False)
class SelectionPlan(ChoosingPlan):
    """Which features tell classes apart, and the statistics that tell: one release. Fields as of
    `ChoosingPlan`.
    """

    kind: ClassVar[str] = "selection"

    @property
    def in_one_release(self) -> bool:
        """The selection is all that is released."""
        return True

    def run_on(self, rows: Rows, ledger: Ledger, streams: Streams) -> object:
        """`select_features`."""
        from privlearn.methods.statistics.features import select_features

        return select_features(self, rows, ledger=ledger, streams=streams)

    def event(self) -> Composed:
        """The selection."""
        return compose([self.selection.event()])

    @property
    def summary(self) -> str:
        """What a card says of how it was made."""
        return "Features chosen by released statistics of the classes."


@dataclass(frozen=True, repr=False)
class KeptFeaturesPlan(ChoosingPlan):
    """What plans have in common that choose features, and then release something of the kept ones.

    Attributes:
        kept_norm: L2 norm that rows of kept features are clipped to, where these are released by
            themselves; by default R sqrt(keep / features), or B sqrt(keep) if that is less.
        selection_share: the part of rho for selecting, where what comes after does not use the same
            release.
        least_variance: the floor under variances within classes, as a part of row_norm^2 /
            features.
    """

    kept_norm: float | None = None
    selection_share: float = 0.2
    least_variance: float = 1e-3

    def _settle(self, usual: Adjacency = Adjacency.ADD_REMOVE) -> None:
        if self.kept_norm is not None:
            between("kept_norm", self.kept_norm, *SIZES)
        probability("selection_share", self.selection_share, open_top=True)
        between("least_variance", self.least_variance, *SIZES)
        super()._settle(usual)

    @property
    def selection(self) -> SelectFeatures:
        """The release by which features are chosen, its noise settled.

        By means for a classifier it is the one release of all: the same statistics serve both.
        """
        return self._select(
            self.noise / math.sqrt(1.0 if self.in_one_release else self.selection_share)
        )

    @property
    def _rest(self) -> float:
        """The part of rho for what is released of the kept features alone."""
        return 1.0 - self.selection_share if self.selects else 1.0

    @property
    def rest_noise(self) -> float:
        """The noise multiplier of what is released of the kept features alone: statistics or
        rows.
        """
        return self.noise / math.sqrt(self._rest)

    @property
    def rest_norm(self) -> float:
        """What rows of kept features are clipped to."""
        if self.kept_norm is not None:
            return float(self.kept_norm)
        each = self.row_norm / math.sqrt(self.features)
        return math.sqrt(self.keep) * min(
            each, math.inf if self.coordinate_bound is None else self.coordinate_bound
        )

    @property
    def _bounds(self) -> list[str]:
        return super()._bounds + (
            [] if self.in_one_release else [f"kept rows to norm {self.rest_norm:g}"]
        )


@final
@registered
@dataclass(frozen=True, repr=False)
class FisherPlan(KeptFeaturesPlan):
    """A Fisher classifier from released class statistics. Fields as of `ChoosingPlan` and
    `KeptFeaturesPlan`.
    """

    kind: ClassVar[str] = "fisher"

    @property
    def in_one_release(self) -> bool:
        """Whether the statistics that features are chosen by are all that is released, or none are
        chosen.
        """
        return not self._select(1.0).by_gumbel

    @property
    def noise_of_sums(self) -> float:
        """Standard deviation of the noise in each number of the class sums that the classifier is
        made from.

        Raises:
            BadInput: the noise was not solved for yet.
        """
        _, sums, moments = self.split
        if self.in_one_release:
            return (
                self.noise
                * self.neighbours.sum_sensitivity(self.row_norm)
                * math.sqrt(math.fsum(self.split) / sums)
            )
        return (
            self.rest_noise
            * self.neighbours.sum_sensitivity(self.rest_norm)
            * math.sqrt((sums + moments) / sums)
        )

    def run_on(self, rows: Rows, ledger: Ledger, streams: Streams) -> object:
        """`fisher`."""
        from privlearn.methods.statistics.classifiers import fisher

        return fisher(self, rows, ledger=ledger, streams=streams)

    def event(self) -> Composed:
        """The statistics; by Gumbel noise the selection, and then the statistics of the kept
        features.
        """
        if self.in_one_release:
            return compose([self.selection.event()])
        return compose([self.selection.event(), Gaussian(self.rest_noise)])

    @property
    def summary(self) -> str:
        """What a card says of how it was made."""
        return _FISHER


@final
@registered
@dataclass(frozen=True, repr=False)
class RowsPlan(KeptFeaturesPlan):
    """Noisy rows of the kept features, each once, with labels. Fields as of `ChoosingPlan` and
    `KeptFeaturesPlan`, and:

    Rows are released one by one, so their number is public: neighbours are zero-out or replace-one.

    Attributes:
        labels: `public` (they are declared not to be private: the guarantee is for the features,
            and neighbours have the same labels), or `randomised` (each is true with a stated
            probability).
        label_share: the part of what is not for selecting that goes into randomised labels.

    Raises:
        BadInput: a number out of range, bounds that are missing, or add/remove neighbours.
    """

    labels: str = "public"
    label_share: float = 0.3
    kind: ClassVar[str] = "rows"
    facts_shape: ClassVar[Any] = RowsFacts

    def __post_init__(self) -> None:
        one_of("labels", self.labels, ("public", "randomised"))
        probability("label_share", self.label_share, open_top=True)
        self._settle(Adjacency.ZERO_OUT)
        if self.neighbours is Adjacency.ADD_REMOVE:
            raise BadInput(
                "rows are released one by one, so that their number is known: nothing holds for "
                "add_remove neighbours. Expected adjacency zero_out or replace_one"
            )

    @property
    def in_one_release(self) -> bool:
        """Rows are released by themselves."""
        return False

    @property
    def rest_noise(self) -> float:
        """The noise multiplier of the rows."""
        return self.noise / math.sqrt(self._rest * (1.0 - self._label_part))

    @property
    def label_epsilon(self) -> float | None:
        """The epsilon of randomised response; None where labels are not randomised."""
        # rho: epsilon^2 / 2
        return math.sqrt(self._rest * self._label_part) / self.noise if self._label_part else None

    @property
    def _label_part(self) -> float:
        return self.label_share if self.labels == "randomised" else 0.0

    def run_on(self, rows: Rows, ledger: Ledger, streams: Streams) -> object:
        """`release_features`."""
        from privlearn.methods.statistics.features import release_features

        return release_features(self, rows, ledger=ledger, streams=streams)

    def event(self) -> Composed:
        """The selection, the rows, and randomised labels."""
        parts: list[Event] = [self.selection.event()] if self.selects else []
        parts.append(Gaussian(self.rest_noise))
        if self.label_epsilon is not None:
            parts.append(RandomisedResponse(self.label_epsilon, self.classes))
        return compose(parts)

    @property
    def summary(self) -> str:
        """What a card says of how a classifier of the rows was made."""
        return _FISHER + (
            " Labels are declared public: neighbours have the same."
            if self.labels == "public"
            else ""
        )

    @property
    def noise_of_rows(self) -> float:
        """Standard deviation of the noise in each number of a row.

        Raises:
            BadInput: the noise was not solved for yet.
        """
        return self.rest_noise * self.neighbours.sum_sensitivity(self.rest_norm)

    @property
    def label_truth(self) -> float:
        """The probability that a label is the true one; the others have the rest in equal parts."""
        if self.label_epsilon is None:
            return 1.0
        return 1 / (1 + (self.classes - 1) * math.exp(-self.label_epsilon))

    def noise_of_means(self, rows: int) -> float:
        """The noise in the mean of a class over so many noisy rows, all numbers together, in parts
        of the norm that rows are clipped to; from public numbers alone.

        z s sqrt(k m / n) / a for k classes of one size, m features and n rows. z is the noise
        multiplier of the rows, and s their sensitivity over their norm. Randomised labels shrink
        what tells classes apart by a, the probability of the true label less that of another.
        """
        count("rows", rows)
        shrunk = (self.classes * self.label_truth - 1) / (self.classes - 1)
        noise = self.noise_of_rows / self.rest_norm
        return noise * math.sqrt(self.classes * self.keep / rows) / max(shrunk, 1e-12)

    def noise_warnings(self, rows: int) -> Iterator[str]:
        """A warning where a classifier of so many noisy rows will hardly be better than one that
        knows the most frequent class. No row is looked at.

        It rests on logistic regressions of noisy rows. Over Gaussian classes whose means lie 0.2 to
        0.6 of the norm apart from their middle (5 to 100 features, 2 to 10 classes, 200 to 3,000
        rows) they closed 0.35 of the gap from that base rate to no errors, in the mean, at a noise
        of 0.5, 0.14 at 1, 0.06 at 2 and none at 4 (`tests/statistics/checks_released.py` repeats a
        part). On four tables of scikit-learn, digits, iris, wine and breast cancer, they closed at
        most 0.09 at 2.
        """
        noise = self.noise_of_means(rows)
        if noise < _DROWNED:
            return
        yield (
            f"a classifier of these {rows:,} noisy rows will hardly be better than always the most "
            f"frequent class: the noise in a class mean is {noise:.2g} times the norm of a row, "
            f"and has to be below {_DROWNED:g}, better 1. Keep fewer features, spend more, or "
            "release statistics (mode='statistics')"
        )

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """As of other plans; or that another number of features or classes was released."""
        problems = super().follows(facts)
        if "released_rows" in facts:
            released = facts["released_rows"]
            if len(released["columns"]) != self.keep or len(released["classes"]) != self.classes:
                problems.append("the released rows have other features or classes than the plan's")
            if len(released["bounds"]) not in (0, self.keep):
                problems.append("bounds are stated of some of the released features only")
        return problems

    def card_words(self, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """What was released, and which part of it is not protected."""
        if "released_rows" not in facts:
            return {}
        scaled = (
            " A number was scaled by its declared bounds first: to [0, 1], or, where they reach "
            "below 0, divided by the larger of the two."
            if facts["released_rows"]["bounds"]
            else ""
        )
        words = {
            "Released rows": f"rows.csv holds each of the {facts['examples']:,} rows once, in "
            f"their order, with {self.keep:,} of {self.features:,} features.{scaled} "
            f"{self._noise_text}"
        }
        if self.labels == "public":
            words["Not protected"] = (
                "The labels: they are declared public, and stand beside the rows as they are."
            )
        return words

    @property
    def _noise_text(self) -> str:
        labels = (
            "The label is the true one: labels are declared public, and are not protected."
            if self.label_epsilon is None
            else f"The label is the true one with probability {self.label_truth:.4g}, and each "
            f"other class with the same part of the rest (randomised response, epsilon "
            f"{self.label_epsilon:.4g})."
        )
        return (
            f"Rows were clipped to norm {self.rest_norm:.4g}, and Gaussian noise of standard "
            f"deviation {self.noise_of_rows:.4g} was added to each number. {labels} What is made "
            "of these rows tells no more of the true ones than they do."
        )

    def rows(self) -> list[tuple[str, str]]:
        """What a card says of what was released."""
        released = f"every row of the kept features, once, with noise; labels {self.labels}"
        return self._rows(released, self._features_text, ", ".join(self._bounds))


ClassifierPlan = FisherPlan | LeastSquaresPlan | RowsPlan
