"""The plan of a feature selection or release: public numbers that fix its events before any data is touched; never torch.

Which way to a classifier: statistics or noisy rows, all features or few; by public numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from privlearn._checks import between, count, one_of, probability
from privlearn._public import registered
from privlearn.accounting import zcdp
from privlearn.accounting.budget import Budget, require_budget, solve_gaussian, solve_noise
from privlearn.accounting.events import Composed, Event, compose
from privlearn.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.accounting.mechanisms import Gaussian, RandomisedResponse
from privlearn.errors import BadInput
from privlearn.mechanisms.squares import MOST_FEATURES
from privlearn.plan import AbstractPlan
from privlearn.transforms.select import LEAST_COUNT, SIZES, SPLIT, SelectFeatures, check_choices

_PURPOSES = ("classifier", "selection", "rows", "least-squares")
#: What follows each row in least squares, as a part of row_norm: accuracy is flat from 0.1 to 0.5.
_CONSTANT = 0.25
_LABELS = ("public", "randomised")


@final
@registered
@dataclass(frozen=True)
class FeaturesPlan(AbstractPlan):
    """What is to be released of some features, and how privately, as public numbers; its event tree is known beforehand.

    One number, `noise_multiplier`, fixes the noise of all parts: together they cost rho = 1 / (2 noise_multiplier^2), and each
    part a stated share of that.

    Attributes:
        classes: the declared number of classes.
        features: the number of numbers in a row.
        keep: how many features are kept; all of them: nothing is selected, or paid for selecting.
        row_norm: L2 norm R that rows are clipped to. Public: it may not be read off the data.
        coordinate_bound: bound B on single numbers, which selection by Gumbel noise needs; None: none is declared.
        kept_norm: L2 norm that rows of kept features are clipped to, where these are released by themselves; by default
            R sqrt(keep / features), or B sqrt(keep) if that is less.
        purpose: `classifier` (a Fisher classifier from released statistics), `selection` (which features, and the
            statistics that tell), `rows` (noisy rows of the kept features, with labels), or `least-squares` (a classifier by
            least squares, of all features).
        criterion: `distance` (the largest between class means), `t` (that over its standard error, with
            variances pooled over all classes) or `welch` (with those of the two classes).
        way: `means`, `gumbel`, or `auto`: what makes for less noise by public numbers alone (see `Select`).
        labels: of released rows: `public` (they are declared not to be private: the guarantee is for the features, and
            neighbours have the same labels), or `randomised` (each is true with a stated probability).
        adjacency: the kind of neighbour. Rows are released one by one, so their number is public: zero-out or replace-one.
        split: rho in parts for counts, class sums and second moments (for least squares X'X; there counts have no part).
        selection_share: the part of rho for selecting, where what comes after does not use the same release.
        label_share: the part of the rest for randomised labels.
        least_count: the floor under counts.
        least_variance: the floor under variances within classes, as a part of row_norm^2 / features.
        noise_multiplier: that of the one Gaussian release that would cost as much; None: `calibrate` solves for it.
        budget: what the plan was calibrated to; the limit of the ledger.
        group_size: the declared, public number of examples that one person has at most.

    Raises:
        BadInput: a number out of range, bounds that are missing, or add/remove neighbours for released rows.
    """

    classes: int
    features: int
    keep: int
    row_norm: float = None  # type: ignore[assignment]  # refused below, with the reason why nothing stands in for it
    coordinate_bound: float | None = None
    kept_norm: float | None = None
    purpose: str = "classifier"
    criterion: str = "distance"
    way: str = "auto"
    labels: str = "public"
    adjacency: Adjacency | None = None
    split: tuple[float, float, float] = SPLIT
    selection_share: float = 0.2
    label_share: float = 0.3
    least_count: float = LEAST_COUNT
    least_variance: float = 1e-3
    noise_multiplier: float | None = None
    budget: Budget | None = None
    group_size: int = 1
    kind: ClassVar[str] = "features"

    def __post_init__(self) -> None:
        one_of("purpose", self.purpose, _PURPOSES)
        one_of("labels", self.labels, _LABELS)
        count("features", self.features, most=10**9)
        if not isinstance(self.row_norm, int | float):
            raise BadInput(
                f"row_norm is {self.row_norm!r}: expected a public bound on the L2 norm of rows, which may not be read off "
                "private data. Longer rows are clipped to it"
            )
        if self.kept_norm is not None:
            between("kept_norm", self.kept_norm, *SIZES)
        for name in ("selection_share", "label_share"):
            probability(name, getattr(self, name), open_top=True)
        between("least_variance", self.least_variance, *SIZES)
        PrivacyUnit(self.group_size)
        require_budget(self.budget)
        if self.purpose == "least-squares":
            count("the features of least squares", self.features, most=MOST_FEATURES)
            if self.keep != self.features:
                raise BadInput(
                    f"{self.keep} of {self.features} features are to be kept: least squares takes all of them. Keep as "
                    "many, or give rows of fewer, such as scatter:J=2,kept=300"
                )
        self._select(1.0).output_shape((self.features,))
        if self.noise_multiplier is not None:
            between("noise_multiplier", self.noise_multiplier, 1e-6, 1e12)
        usual = Adjacency.ZERO_OUT if self.purpose == "rows" else Adjacency.ADD_REMOVE
        object.__setattr__(self, "adjacency", Adjacency.parse(str(self.adjacency or usual)))
        if self.purpose == "rows" and self.neighbours is Adjacency.ADD_REMOVE:
            raise BadInput(
                "rows are released one by one, so that their number is known: nothing holds for add_remove neighbours. "
                "Expected adjacency zero_out or replace_one"
            )

    @property
    def noise(self) -> float:
        """The noise multiplier of the whole.

        Raises:
            BadInput: it was not solved for yet.
        """
        if self.noise_multiplier is None:
            raise BadInput(
                "the plan has no noise yet: settle it with plan.calibrate(epsilon=, delta=), or noise_multiplier="
            )
        return self.noise_multiplier

    @property
    def selects(self) -> bool:
        """Whether some features are left out."""
        return self.keep < self.features

    @property
    def selection(self) -> SelectFeatures:
        """The release by which features are chosen, its noise settled.

        By means for a classifier it is the one release of all: the same statistics serve both.
        """
        return self._select(self._noise_of(self._selection_part))

    @property
    def rest_noise(self) -> float:
        """The noise multiplier of what is released of the kept features alone: statistics or rows."""
        rest = 1.0 - self._selection_part if self.selects else 1.0
        return self._noise_of(rest * (1.0 - self._label_part))

    @property
    def label_epsilon(self) -> float | None:
        """The epsilon of randomised response; None where labels are not randomised."""
        if not self._label_part:
            return None
        rest = 1.0 - self._selection_part if self.selects else 1.0
        return math.sqrt(rest * self._label_part) / self.noise  # rho = epsilon^2 / 2

    @property
    def rest_norm(self) -> float:
        """What rows of kept features are clipped to."""
        if self.kept_norm is not None:
            return float(self.kept_norm)
        each = self.row_norm / math.sqrt(self.features)
        return math.sqrt(self.keep) * min(each, math.inf if self.coordinate_bound is None else self.coordinate_bound)

    @property
    def constant(self) -> float:
        """What follows each row in least squares."""
        return _CONSTANT * self.row_norm

    @property
    def in_one_release(self) -> bool:
        """Whether the statistics that features are chosen by are all that is released, or none are chosen."""
        if self.purpose == "classifier":
            return not self.selection.by_gumbel
        return self.purpose in ("selection", "least-squares")

    @property
    def noise_of_sums(self) -> float:
        """Standard deviation of the noise in each number of the class sums that a classifier is made from.

        Raises:
            BadInput: the plan is for something else than a classifier, or its noise was not solved for yet.
        """
        _, sums, moments = self.split
        if self.purpose == "least-squares":
            # A row of the same class in its place has the same constant, which cancels.
            moved = max(self.neighbours.sum_sensitivity(self.row_norm), math.hypot(self.row_norm, self.constant))
            return self.noise * moved * math.sqrt((sums + moments) / sums)
        if self.purpose != "classifier":
            raise BadInput(
                f"the plan is for {self.purpose!r}: expected one for 'classifier', which is made from class sums"
            )
        if self.in_one_release:
            return self.noise * self.neighbours.sum_sensitivity(self.row_norm) * math.sqrt(math.fsum(self.split) / sums)
        return self.rest_noise * self.neighbours.sum_sensitivity(self.rest_norm) * math.sqrt((sums + moments) / sums)

    def event(self) -> Composed:
        """Everything that will be charged, in order.

        Raises:
            BadInput: the noise was not solved for yet.
        """
        if self.purpose == "least-squares":
            return compose([Gaussian(self.noise)])
        if self.in_one_release:
            return compose([self.selection.event()])
        parts: list[Event] = [self.selection.event()] if self.selects else []
        parts.append(Gaussian(self.rest_noise))
        if self.label_epsilon is not None:
            parts.append(RandomisedResponse(self.label_epsilon, self.classes))
        return compose(parts)

    def scaled(self, factor: float) -> FeaturesPlan:
        """The plan with `factor` times the noise."""
        return replace(self, noise_multiplier=self.noise * factor)

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], FeaturesPlan], float]:
        return replace(self, noise_multiplier=1.0).scaled, 3.0

    def _solved(self, budget: Budget, spent: Callable[[float], float], start: float) -> float:
        if budget.epsilon is not None and zcdp.gaussian_mu(replace(self, noise_multiplier=1.0).event()) is None:
            return solve_noise(spent, budget.limit, start)
        return solve_gaussian(budget, spent)  # all Gaussian, or a target of rho: to the last digits

    @property
    def summary(self) -> str:
        """What a card says of how it was made."""
        made = "A Fisher classifier (features independent within classes)"
        if self.purpose == "least-squares":
            made = "A linear classifier by least squares, with a ridge that follows the noise"
        public = self.purpose == "rows" and self.labels == "public"
        labels = " Labels are declared public: neighbours have the same." if public else ""
        return f"{made}, computed from released numbers alone.{labels}"

    def rows(self) -> list[tuple[str, str]]:
        """What a card says of what was released."""
        kept = f"{self.keep} of {self.features}"
        if self.selects:
            way = "Gumbel noise on distances of class means" if self.selection.by_gumbel else "noisy class means"
            kept += f", by {way}, criterion {self.criterion}"
        released = "counts, class sums and second moments"
        if self.purpose == "least-squares":
            released = "sums of products of each row with its class and with itself"
        if self.purpose == "rows":
            released = f"every row of the kept features, once, with noise; labels {self.labels}"
        bounds = []
        if self.in_one_release or (self.selects and not self.selection.by_gumbel):
            bounds.append(f"rows to norm {self.row_norm:g}")
        if self.selects and self.selection.by_gumbel:
            bounds.append(f"single numbers to {self.coordinate_bound:g} for choosing")
        if not self.in_one_release:
            bounds.append(f"kept rows to norm {self.rest_norm:g}")
        return [
            ("released", released),
            ("features kept", kept),
            ("bounds", ", ".join(bounds)),
            ("noise multiplier", f"{self.noise:.4g} for all together"),
        ]

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """Nothing, if as many features were chosen as are kept."""
        check_choices(facts, [self.keep] if self.selects else [])
        return []

    @property
    def _selection_part(self) -> float:
        """The part of rho for selecting."""
        only = self.purpose == "selection" or (self.purpose == "classifier" and not self._select(1.0).by_gumbel)
        return 1.0 if only else self.selection_share

    @property
    def _label_part(self) -> float:
        """The part of the rest for labels."""
        return self.label_share if self.purpose == "rows" and self.labels == "randomised" else 0.0

    def _noise_of(self, part: float) -> float:
        return self.noise / math.sqrt(part)

    def _select(self, noise: float) -> SelectFeatures:
        way = self.way if self.selects else "means"  # all features need no Gumbel noise
        return SelectFeatures(
            self.keep, noise, self.classes, self.row_norm, self.coordinate_bound, self.criterion, way, self.split,
            self.least_count,
        )  # fmt: skip


#: Noise in a class mean, over the size of a row's numbers, from which fewer features were better than all, and the part of
#: them that did well beyond it: on four data sets, within what separates them (docs/results/dfs-cifar10.md, dfs-mnist.md).
_LOUD, _PART = 0.4, 0.25
#: rho for counts, class sums and squares of few features: a noisy count moves the whole mean of its class.
_SPLIT = (0.5, 0.35, 0.15)
_LEAST = 5


@final
@dataclass(frozen=True)
class Advice:
    """A plan, and why this one.

    Attributes:
        plan: settled as the one that it was made from.
        why: in words.
    """

    plan: FeaturesPlan
    why: str


def advised(plan: FeaturesPlan, examples: int) -> Advice:
    """Choose what is released for a classifier, and how many features are kept; everything else stays as in `plan`.

    With the noise multiplier z of one Gaussian release, k classes, p features and n rows, the noise in a class mean is
    t = z k sqrt(p) / n of the size of a row's numbers where statistics are released, and sqrt(n / k) times that in noisy rows,
    which can be the better way only with fewer rows than classes. Up to t = 0.4 all features are kept, and a quarter of them
    beyond. No data are looked at, and nothing is spent. It is a rule of thumb: fewer pay from t = 0.2 on where classes
    are hard to tell apart (CIFAR-10's features), and hardly before 1 where they are easy (MNIST), which no public number says.
    It takes `row_norm` for the size of rows.

    Args:
        plan: with a target or a noise multiplier; `keep`, `way`, `split`, `purpose` and `labels` are chosen anew.
        examples: the declared number of rows; public.

    Raises:
        BadInput: no number of rows, or a plan that was not settled.
    """
    count("examples", examples)
    whole = _settled(plan, keep=plan.features, purpose="classifier", way="auto", labels="public")
    z, k, p = whole.noise, whole.classes, whole.features
    by_statistics, by_rows = z * k * math.sqrt(p) / examples, z * math.sqrt(k * p / examples)
    keep = p if by_statistics <= _LOUD else min(p, max(_LEAST, round(_PART * p)))
    if by_rows < by_statistics:
        given = None if plan.adjacency is Adjacency.ADD_REMOVE else plan.adjacency
        rows = _settled(plan, keep=keep, purpose="rows", labels="randomised", way="auto", adjacency=given)
        return Advice(rows, f"noisy rows of {rows.keep:,} of {p:,} features: there are fewer rows than classes")
    noise = (
        f"the noise in a class mean is {by_statistics:.2g} of the size of a row's numbers (z k √p / n; in noisy rows it would "
        f"be {by_rows:.2g})"
    )
    if keep >= p:
        return Advice(whole, f"statistics of all {p:,} features: {noise}, and fewer pay from {_LOUD:g} on")
    if plan.coordinate_bound is None or plan.criterion != "distance":
        why = f"{noise}, but fewer pay only by distance, and with a declared bound on single numbers"
        return Advice(whole, f"statistics of all {p:,} features: {why}")
    few = _settled(plan, keep=keep, purpose="classifier", way="gumbel", split=_SPLIT, labels="public")
    return Advice(few, f"statistics of {keep:,} of {p:,} features: {noise}, and fewer pay from {_LOUD:g} on")


def _settled(plan: FeaturesPlan, **changes: object) -> FeaturesPlan:
    """The plan with changes, for the same target or at the same noise multiplier."""
    changed = replace(plan, **changes)  # type: ignore[arg-type]
    if plan.budget is None:
        if plan.noise_multiplier is None:
            raise BadInput(
                "the plan has no noise yet: settle it with plan.calibrate(epsilon=, delta=), or noise_multiplier="
            )
        return changed
    budget = plan.budget
    return changed.calibrate(epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho)
