"""The plan of PATE: public numbers that fix, before any teacher is asked, what its answers cost.

What an ensemble of teachers is asked for: frozen, public numbers, each with the most that one teacher can move it.

A record is with one teacher, and may change everything about it: what it learned, its random numbers, whether it works at
all. So one record moves the sum over teachers from any answer of one teacher to any other: by the diameter of what answers
are clipped to. That holds for every kind of neighbour (maths: Fay et al. 2020, Props 1 and 2, for answers that are clipped).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final, get_args

from privlearn._checks import between, count, one_of, positive, probability
from privlearn._checks import delta as valid_delta
from privlearn.accounting import accountant, zcdp
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Composed, Event, Repeated, compose
from privlearn.accounting.guarantee import ALL, Adjacency, Guarantee, PrivacyUnit
from privlearn.accounting.mechanisms import Gaussian
from privlearn.accounting.trees import GaussianFilter
from privlearn.errors import BadInput

_MOST = 10**7
_NOISE = (1e-6, 1e12)


@final
@dataclass(frozen=True)
class PatePlan:
    """Questions to an ensemble of teachers (PATE), as public numbers.

    Guarantee: whatever is released is `guarantee(delta)`-DP for `adjacency` and `unit`, if every record (for `persons` all of
    a person's together) is with one teacher, to which it was assigned independently of all other records. The bound does not
    look at the votes, so it is no secret itself.

    Attributes:
        queries: public inputs that the teachers are asked about; each is paid for, whatever becomes of its answer.
        teachers: how many there are (K), each trained on a part of its own of the private records.
        aggregate: what is asked for: `Ball`, `Box`, `Votes` or `ConfidentVotes`.
        noise_multiplier: noise standard deviation over sensitivity; None until `calibrate` sets it.
        adjacency: the kind of neighbour. The price is the same for all.
        group_size: the declared, public number of records that one person has at most: targets and guarantees are then for
            all of them together.
        budget: what the plan was calibrated to; the limit of the ledger.
        persons: whether the guarantee is for a person with all their rows, however many. It costs nothing: whoever comes, goes
            or changes moves one teacher. It needs records with person ids (`pv.Dataset(..., groups=ids)`).

    Raises:
        BadInput: a number out of range.
    """

    queries: int
    teachers: int
    aggregate: Aggregate
    noise_multiplier: float | None = None
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    group_size: int = 1
    budget: Budget | None = None
    persons: bool = False

    def __post_init__(self) -> None:
        count("queries", self.queries, most=_MOST)
        count("teachers", self.teachers, most=_MOST)
        if not isinstance(self.aggregate, get_args(Aggregate)):
            raise BadInput(
                f"aggregate is {self.aggregate!r}: expected pv.teachers.Votes(classes=10), "
                f"pv.teachers.ConfidentVotes(...), or for codes "
                "pv.teachers.Ball(radius=1.0) or pv.teachers.Box(dimensions=...)"
            )
        if isinstance(self.aggregate, ConfidentVotes) and self.aggregate.answers > self.queries:
            raise BadInput(
                f"{self.aggregate.answers} answers are wanted of {self.queries} queries: expected at most as many as are asked"
            )
        if self.noise_multiplier is not None:
            between("noise_multiplier", self.noise_multiplier, *_NOISE)
        object.__setattr__(self, "adjacency", Adjacency.parse(str(self.adjacency)))
        self.unit  # noqa: B018 - raises
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise BadInput(f"budget is {self.budget!r}: expected a Budget, as calibrate(epsilon=, delta=) sets it")

    @property
    def before(self) -> tuple[()]:
        """Releases that come before: none. Reducers are fitted on public data."""
        return ()

    @property
    def neighbours(self) -> Adjacency:
        """The plan's adjacency."""
        return self.adjacency

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data are protected."""
        return PrivacyUnit(self.group_size, ALL if self.persons else None)

    @property
    def noise(self) -> float:
        """The noise multiplier of an answer.

        Raises:
            BadInput: it is not settled.
        """
        if self.noise_multiplier is None:
            raise BadInput("the plan has no noise yet: give noise_multiplier=, or calibrate(epsilon=, delta=)")
        return self.noise_multiplier

    @property
    def test_noise(self) -> float:
        """The noise multiplier of the test whether a query is answered: both take their share of the whole price.

        Raises:
            BadInput: there is no such test, or the noise is not settled.
        """
        if not isinstance(self.aggregate, ConfidentVotes):
            raise BadInput(f"{self.aggregate.kind} has no test: every query is answered")
        share = self.aggregate.share
        return self.noise * math.sqrt(self.queries / self.aggregate.answers * (1 - share) / share)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each number that is released: on the mean of codes, or on counts of votes."""
        over = 1 if isinstance(self.aggregate, Votes | ConfidentVotes) else self.teachers
        return self.noise * self.aggregate.sensitivity / over

    @property
    def _weight(self) -> float:
        """How many answers the whole amounts to: mu^2 of everything together is this over noise_multiplier^2."""
        if isinstance(self.aggregate, ConfidentVotes):
            return self.aggregate.answers / (1 - self.aggregate.share)
        return float(self.queries)

    @property
    def limit(self) -> GaussianFilter | None:
        """Where it depends on noisy tests how much is spent: what is charged and claimed as a whole, beforehand."""
        if not isinstance(self.aggregate, ConfidentVotes):
            return None
        return GaussianFilter(0.5 * self._weight / self.noise**2)

    def event(self) -> Composed:
        """Everything that the run is charged: one Gaussian release for each query, or the limit of them.

        Raises:
            BadInput: the noise is not settled.
        """
        parts: Event = self.limit or Repeated(Gaussian(self.noise), self.queries)
        return compose([parts])

    def guarantee(self, delta: float) -> Guarantee:
        """The tightest sound guarantee of the whole run at `delta`."""
        return self.guarantees(delta)[0]

    def guarantees(self, delta: float) -> tuple[Guarantee, ...]:
        """Every sound guarantee of the whole run at `delta`, the tightest first."""
        found = accountant.guarantees(self.event(), self.adjacency, delta, self.group_size)
        return tuple(replace(each, rows_per_person=self.unit.rows_per_person) for each in found)

    def calibrate(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        formula: str = "exact",
    ) -> PatePlan:
        """Solve for the noise at which all queries together meet a target.

        Args:
            epsilon: the target, at `delta`.
            delta: where epsilon is stated.
            rho: the target in zCDP, in place of epsilon.
            formula: "exact", by which Gaussian releases compose to one; or "paper", that of Fay et al. (2020, eq. 15), which
                adds more noise than the target asks for.

        Raises:
            BadInput: a target out of range, or the paper's formula for what it does not speak of.
        """
        budget = Budget(epsilon, delta, rho, self.group_size)
        if one_of("formula", formula, ["exact", "paper"]) == "paper":
            if budget.epsilon is None or isinstance(self.aggregate, ConfidentVotes):
                raise BadInput(
                    "the paper's formula is for a target epsilon and for queries that are all answered: use formula='exact'"
                )
            assert delta is not None
            noise = self.group_size * paper_noise_multiplier(self.queries, budget.epsilon, delta)
            return replace(self, noise_multiplier=noise, budget=budget)
        if budget.epsilon is not None:
            assert delta is not None
            mu = zcdp.gaussian_mu_for(budget.epsilon, delta)
        else:
            mu = math.sqrt(2 * budget.limit)
        noise, step = self.group_size * math.sqrt(self._weight) / mu, 1e-14
        while budget.spent(replace(self, noise_multiplier=noise).event(), self.adjacency) > budget.limit:
            noise, step = noise * (1 + step), 2 * step  # the last digits, upwards
        return replace(self, noise_multiplier=noise, budget=budget)

    def describe(self) -> dict[str, Any]:
        """Its public numbers, for certificates."""
        return {
            "queries": self.queries,
            "teachers": self.teachers,
            "aggregate": {"kind": self.aggregate.kind, **vars(self.aggregate)},
            "noise_multiplier": self.noise,
            **({"test_noise_multiplier": self.test_noise} if isinstance(self.aggregate, ConfidentVotes) else {}),
        }


def from_description(settings: dict[str, Any]) -> PatePlan:
    """The plan whose `describe` is part of `settings`; what else they hold is passed over.

    Raises:
        BadInput: no plan's numbers.
        KeyError, TypeError, ValueError, AttributeError: fields are missing or of other types.
    """
    numbers = {name: value for name, value in settings["aggregate"].items() if name != "kind"}
    kinds: dict[str, type[Any]] = {kind.kind: kind for kind in (Ball, Box, Votes, ConfidentVotes)}
    kind = kinds[one_of("the kind of aggregate", str(settings["aggregate"]["kind"])[:40], kinds)]
    return PatePlan(settings["queries"], settings["teachers"], kind(**numbers), settings["noise_multiplier"])


def paper_noise_multiplier(queries: int, epsilon: float, delta: float) -> float:
    """Noise over sensitivity by Fay et al. (2020, eq. 15), from the best order of Renyi DP and its oldest conversion.

    It holds, and is more than is needed: 1.195 times the exact figure at (8, 1e-3), 1.314 times at (1, 1e-5).

    >>> round(paper_noise_multiplier(80, 8.0, 1e-3) * 2 / 8, 6)  # of the mean of 8 codes in the unit ball
    1.282564
    """
    log = -math.log(valid_delta(delta))
    epsilon = positive("epsilon", epsilon)
    return math.sqrt(count("queries", queries) / 2) * (math.sqrt(log + epsilon) + math.sqrt(log)) / epsilon


_RADII = (1e-12, 1e12)
_MOST_CLASSES = 10**9


@final
@dataclass(frozen=True)
class Ball:
    """Each teacher's code is clipped to L2 distance `radius` of a public code; what is released is the mean of codes.

    The sum over teachers moves by at most 2 x radius, whatever the dimension (Fay et al. 2020, Prop 2).
    """

    radius: float = 1.0
    kind: ClassVar[str] = "ball"

    def __post_init__(self) -> None:
        between("radius", self.radius, *_RADII)

    @property
    def sensitivity(self) -> float:
        """The most that one teacher moves the sum of codes."""
        return 2 * self.radius


@final
@dataclass(frozen=True)
class Box:
    """Each teacher's target is clipped to [0, 1] in each of `dimensions` numbers, then encoded by a linear map of norm 1.

    The sum over teachers moves by at most sqrt(dimensions) (Fay et al. 2020, Prop 1): far more than a ball's for targets of
    many numbers.
    """

    dimensions: int
    kind: ClassVar[str] = "box"

    def __post_init__(self) -> None:
        count("dimensions", self.dimensions, most=_MOST_CLASSES)

    @property
    def sensitivity(self) -> float:
        """The most that one teacher moves the sum of codes."""
        return math.sqrt(self.dimensions)


@final
@dataclass(frozen=True)
class Votes:
    """Each teacher votes for one of `classes`, or for none; what is released are noisy counts, of which the largest wins.

    One teacher moves its vote: two counts by 1 each, sqrt(2) together (the Gaussian noisy max, Papernot et al. 2018).
    """

    classes: int
    kind: ClassVar[str] = "votes"

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2, most=_MOST_CLASSES)

    @property
    def sensitivity(self) -> float:
        """The most that one teacher moves the counts."""
        return math.sqrt(2)


@final
@dataclass(frozen=True)
class ConfidentVotes:
    """As `Votes`, asked only where the largest count, with noise, reaches `threshold` (Confident-GNMax, Papernot et al. 2018).

    Every query pays for that test, and `answers` of them at most for an answer; then nothing more is asked.

    Attributes:
        classes: how many there are.
        threshold: votes that the noisy largest count must reach.
        answers: queries that are answered at most.
        share: how much of the whole price goes into the tests.
    """

    classes: int
    threshold: float
    answers: int
    share: float = 0.3
    kind: ClassVar[str] = "confident-votes"

    #: The most that one teacher moves the largest count.
    test_sensitivity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2, most=_MOST_CLASSES)
        between("threshold", self.threshold, 0.0, 1e12)
        count("answers", self.answers)
        probability("share", self.share, open_top=True)

    @property
    def sensitivity(self) -> float:
        """The most that one teacher moves the counts."""
        return math.sqrt(2)


#: What a plan can ask for.
Aggregate = Ball | Box | Votes | ConfidentVotes
#: Those whose answers are codes, and those whose answers are classes.
Codes = Ball | Box
Classes = Votes | ConfidentVotes
