"""The plan of PATE: public numbers that fix, before any teacher is asked, what its answers cost.

What an ensemble of teachers is asked for: frozen, public numbers, each with the most that one
teacher can move it.

A record is with one teacher, and may change everything about it: what it learned, its random
numbers, whether it works at all. So one record moves the sum over teachers from any answer of one
teacher to any other: by the diameter of what answers are clipped to. That holds for every kind of
neighbour (maths: Fay et al. 2020, Props 1 and 2, for answers that are clipped).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, final, get_args

from privlearn._checks import between, count, one_of, positive, probability, with_plain_numbers
from privlearn._checks import delta as valid_delta
from privlearn._public import OMITTED, registered
from privlearn._shapes import Count, Open, Positive
from privlearn.core.accounting import zcdp
from privlearn.core.accounting.budget import Budget, require_budget
from privlearn.core.accounting.calibration import solve_gaussian
from privlearn.core.accounting.events import Composed, Event, Repeated, compose
from privlearn.core.accounting.guarantee import ALL, Adjacency, PrivacyUnit
from privlearn.core.accounting.mechanisms import ZCDP, Gaussian
from privlearn.core.accounting.trees import GaussianFilter
from privlearn.core.plan import AbstractPlan
from privlearn.core.run_facts import RunFacts
from privlearn.errors import BadInput
from privlearn.methods.pate.card_texts import (
    neighbours,
    reducer_rows,
    start_rows,
    teacher_rows,
    trust,
    words,
)
from privlearn.methods.pate.site_noise import NoiseGrid, SiteNoise, solve_shares

if TYPE_CHECKING:
    from privlearn.methods.neighbouring_runs import NeighbouringRuns

_MOST = 10**7
_ASKED = {
    "ball": "the mean of their codes, each clipped to a ball",
    "box": "the mean of their targets, each number clipped to [0, 1]",
    "votes": "their votes",
    "confident-votes": "their votes, where enough of them agree",
}
_NOISE = (1e-6, 1e12)
#: The least probability that some query is answered.
_ONCE = 0.01


class TeacherFacts(TypedDict, total=False):
    """Who the teachers were; recipes say it in words of their own."""

    source: str
    records: str
    assigned_by: str
    recipe: Open
    seen_through: list[str]
    server_saw: str


class PateFacts(RunFacts, total=False):
    """What runs of PATE state; reducers and students describe themselves."""

    noise_std: Positive
    test_noise_multiplier: Positive
    answered: Count
    public_inputs: Count
    teacher: TeacherFacts
    reducer: Open
    student: Open


@final
@registered
@dataclass(frozen=True, repr=False)
class PatePlan(AbstractPlan):
    """Questions to an ensemble of teachers (PATE), as public numbers.

    Guarantee: whatever is released is `guarantee(delta)`-DP for `adjacency` and `unit`, if every
    record (for `persons` all of a person's together) is with one teacher, to which it was assigned
    independently of all other records. The bound does not look at the votes, so it is no secret
    itself.

    Attributes:
        queries: public inputs that the teachers are asked about; each is charged, whatever becomes
            of its answer.
        teachers: how many there are (K), each trained on a part of its own of the private records.
        aggregate: what is asked for: `Ball`, `Box`, `Votes` or `ConfidentVotes`.
        noise_multiplier: noise standard deviation over sensitivity; None until `calibrate` sets it.
        adjacency: the kind of neighbour. The price is the same for all.
        group_size: the declared, public number of records that one person has at most: targets and
            guarantees are then for all of them together.
        budget: what the plan was calibrated to; the limit of the ledger.
        persons: whether the guarantee is for a person with all their rows, however many. A person
            who comes, goes or changes moves one teacher, so it costs nothing. It needs records with
            person ids (`pv.Dataset(..., groups=ids)`).
        site_noise: who adds the noise: None for the one who adds the answers up, or `SiteNoise` for
            the sites, each of which adds a share. The sum then costs as much zCDP as a Gaussian,
            and a little more epsilon.

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
    site_noise: SiteNoise | None = field(default=None, metadata=OMITTED)
    kind: ClassVar[str] = "pate"
    facts_shape: ClassVar[Any] = PateFacts

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
                f"{self.aggregate.answers} answers are wanted of {self.queries} queries: expected "
                "at most as many as are asked"
            )
        if self.noise_multiplier is not None:
            between("noise_multiplier", self.noise_multiplier, *_NOISE)
        object.__setattr__(self, "adjacency", Adjacency.parse(str(self.adjacency)))
        if not isinstance(self.persons, bool):
            raise BadInput(f"persons is {self.persons!r}: expected True or False")
        self.unit  # noqa: B018 - raises
        require_budget(self.budget)
        if self.site_noise is not None:
            require_shareable(self)

    @property
    def before(self) -> tuple[()]:
        """Releases that come before: none. Reducers are fitted on public data."""
        return ()

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
            raise BadInput(
                "the plan has no noise yet: give noise_multiplier=, or calibrate(epsilon=, delta=)"
            )
        return self.noise_multiplier

    @property
    def test_noise(self) -> float:
        """The noise multiplier of the test whether a query is answered: both take their share of
        the whole price.

        Raises:
            BadInput: there is no such test, or the noise is not settled.
        """
        if not isinstance(self.aggregate, ConfidentVotes):
            raise BadInput(f"{self.aggregate.kind} has no test: every query is answered")
        share = self.aggregate.share
        return self.noise * math.sqrt(self.queries / self.aggregate.answers * (1 - share) / share)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each released number: of the mean of codes, or of
        counts of votes.
        """
        over = 1 if isinstance(self.aggregate, Votes | ConfidentVotes) else self.teachers
        return self.noise * self.aggregate.sensitivity / over

    def grid(self, answer_step: float = 1.0) -> NoiseGrid:
        """The grid on which sites add their shares of the noise.

        Args:
            answer_step: what answers are whole multiples of, a power of two; 1 for votes.

        Raises:
            BadInput: sites add none, the noise is not settled, or it is so small that sums would
                not fit into 64 bits.
        """
        if self.site_noise is None:
            raise BadInput(
                "sites add no noise by this plan: expected one with "
                "site_noise=pv.teachers.SiteNoise(absent=0)"
            )
        return NoiseGrid.fit(
            self.noise,
            self.aggregate.sensitivity,
            teachers=self.teachers,
            absent=self.site_noise.absent,
            answer_step=answer_step,
        )

    def noise_figures(self) -> dict[str, float]:
        """Figures of the noise, by name: what the run states of it."""
        tests = (
            {"test_noise_multiplier": self.test_noise}
            if isinstance(self.aggregate, ConfidentVotes)
            else {}
        )
        return {"noise_std": self.noise_std, **tests}

    @property
    def _weight(self) -> float:
        """How many answers the whole amounts to: mu^2 of everything together is this over
        noise_multiplier^2.
        """
        if isinstance(self.aggregate, ConfidentVotes):
            return self.aggregate.answers / (1 - self.aggregate.share)
        return float(self.queries)

    @property
    def limit(self) -> GaussianFilter | None:
        """Where it depends on noisy tests how much is spent: what is charged and claimed as a
        whole, beforehand.
        """
        if not isinstance(self.aggregate, ConfidentVotes):
            return None
        return GaussianFilter(0.5 * self._weight / self.noise**2)

    def neighbouring_runs(self) -> NeighbouringRuns:
        """Its questions to made-up teachers, for audits: the example changes all that one says.

        Raises:
            BadInput: the sites add the noise.
        """
        from privlearn.methods.pate.made_up_teachers import runs_of

        return runs_of(self)

    def event(self) -> Composed:
        """Everything that the run is charged: one Gaussian release for each query, or the limit of
        them. For noise by the sites one release of as much zCDP for each query.

        Raises:
            BadInput: the noise is not settled.
        """
        one = Gaussian(self.noise) if self.site_noise is None else ZCDP(0.5 / self.noise**2)
        parts: Event = self.limit or Repeated(one, self.queries)
        return compose([parts])

    @with_plain_numbers
    def scaled(self, factor: float) -> PatePlan:
        """The plan with `factor` times the noise."""
        return replace(self, noise_multiplier=self.noise * factor)

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
            formula: "exact", by which Gaussian releases compose to one; or "paper", that of Fay et
                al. (2020, eq. 15), which adds more noise than the target asks for.

        Raises:
            BadInput: a target out of range, the paper's formula for what it does not speak of, or a
                threshold that no count of votes reaches.
        """
        if one_of("formula", formula, ["exact", "paper"]) == "exact":
            return super().calibrate(epsilon=epsilon, delta=delta, rho=rho).reachable()
        budget = Budget(epsilon, delta, rho, self.group_size)
        if budget.epsilon is None or isinstance(self.aggregate, ConfidentVotes):
            raise BadInput(
                "the paper's formula is for a target epsilon and for queries that are all "
                "answered: use formula='exact'"
            )
        assert delta is not None
        noise = self.group_size * paper_noise_multiplier(self.queries, budget.epsilon, delta)
        return replace(self, noise_multiplier=noise, budget=budget)

    def reachable(self) -> PatePlan:
        """The plan, if its threshold is within reach of the votes.

        Raises:
            BadInput: even if all teachers agree on every query, one is answered with a probability
                below `_ONCE`.
        """
        asked = self.aggregate
        if not isinstance(asked, ConfidentVotes):
            return self
        noise = self.test_noise * asked.test_sensitivity
        if (
            self.queries * math.erfc((asked.threshold - self.teachers) / noise / math.sqrt(2)) / 2
            < _ONCE
        ):
            raise BadInput(
                f"the threshold of {asked.threshold:g} votes is out of reach of {self.teachers} "
                f"teachers, with noise of {noise:.4g} votes: everything would be spent, and no "
                f"query answered. Expected at most {self.teachers}: lower the threshold, or use "
                "more teachers"
            )
        return self

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], PatePlan], float]:
        return replace(self, noise_multiplier=1.0).scaled, 1.0

    def _solved(self, budget: Budget, spent: Callable[[float], float], start: float) -> float:
        solve = solve_gaussian if self.site_noise is None else solve_shares
        return solve(budget, spent, math.sqrt(self._weight), step=1e-14)

    @property
    def summary(self) -> str:
        """What a card says of how it was trained."""
        return (
            "Teachers were trained on disjoint parts of the private records, and asked about "
            "public inputs. This model learned from their noisy answers and from what is public. "
            "That each record was with one teacher is the publisher's word. Public inputs are not "
            "protected."
        )

    def rows(self) -> list[tuple[str, str]]:
        """What a card says of the questions, the answers and their noise."""
        asked = self.aggregate
        rows = [
            ("teachers", str(self.teachers)),
            ("queries", str(self.queries)),
            ("released", _ASKED[asked.kind]),
            (
                "noise",
                (
                    f"multiplier {self.noise:.4g}, standard deviation {self.noise_std:.4g} on each "
                    "number"
                ),
            ),
        ]
        if self.site_noise is not None:
            rows.append(("noise is added by", describe_site_noise(self.teachers, self.site_noise)))
        if not isinstance(asked, ConfidentVotes):
            return rows
        return [
            *rows,
            (
                "answered where",
                f"the largest count, with noise of {self.test_noise:.4g}, reaches "
                f"{asked.threshold:g} votes; at most {asked.answers} times",
            ),
            (
                "what is charged",
                f"all of that beforehand: {self.queries} tests (sensitivity 1, {asked.share:g} of "
                f"the price) and {asked.answers} answers (sensitivity sqrt 2) are together rho "
                f"{zcdp.rho(self.event()):.6g}",
            ),
        ]

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """What contradicts the plan: other noise, too many answers, or a replaced record that
        changes two teachers.
        """
        problems = []
        for name, true in self.noise_figures().items():
            figure = float(facts[name])
            if not math.isclose(figure, true, rel_tol=1e-6):
                problems.append(f"{name} is said to be {figure:g}, and the plan's is {true:g}")
        most = (
            self.aggregate.answers if isinstance(self.aggregate, ConfidentVotes) else self.queries
        )
        if not 0 <= count("answered", facts["answered"], least=0) <= most:
            problems.append(
                f"{facts['answered']} queries are said to be answered, and the plan answers at "
                f"most {most}"
            )
        teacher = facts["teacher"]
        if teacher.get("source") != "trained" or self.adjacency is not Adjacency.REPLACE_ONE:
            return problems
        if teacher.get("records") == "by site":
            problems.append(
                "a record that is replaced by one of another site changes two teachers, and the "
                "certificate counts one"
            )
        elif not self.persons and teacher.get("assigned_by") != "row":
            problems.append(
                "records were assigned to teachers by person, or it is not said how: a record that "
                "is replaced by one of another person changes two teachers, and the certificate "
                "counts one"
            )
        return problems

    def card_words(self, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """What a card says of teachers, in place of sums over examples and of clipping."""
        kind = self.aggregate.kind
        changed = neighbours(self.group_size, persons=self.persons)
        by_sites = self.site_noise is not None
        trusted = trust(kind, facts.get("teacher") or {}, by_sites=by_sites)
        return {**words(kind, changed, by_sites=by_sites), "Trust model": trusted}

    def fact_rows(self, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Who the teachers were, how many queries they answered, and what the student began as."""
        by_sites = self.site_noise is not None
        rows = teacher_rows(facts.get("teacher") or {}, by_sites=by_sites)
        if facts.get("answered") is not None:
            rows.append(
                ("answered", f"{facts['answered']} (of {facts['public_inputs']} public inputs)")
            )
        rows += [("neighbours differ in", neighbours(self.group_size, persons=self.persons))]
        trusted = trust(self.aggregate.kind, facts.get("teacher") or {}, by_sites=by_sites)
        rows += [("trust model", trusted)]
        return rows + start_rows(facts.get("public_start")) + reducer_rows(facts.get("reducer"))


def require_shareable(plan: PatePlan) -> None:
    """Refuse noise by sites that is none, of no site, or for what needs the counts themselves."""
    shares = plan.site_noise
    if not isinstance(shares, SiteNoise):
        raise BadInput(
            f"site_noise is {repr(shares)[:60]}: expected pv.teachers.SiteNoise(absent=0), or None "
            "for noise by the one who adds up"
        )
    if shares.absent >= plan.teachers:
        raise BadInput(
            f"absent is {shares.absent}, of {plan.teachers} teachers: expected fewer, since the "
            "others have to add the noise"
        )
    if isinstance(plan.aggregate, ConfidentVotes):
        raise BadInput(
            "ConfidentVotes are answered where a test on the counts says so, and with noise by the "
            "sites no one sees the counts: expected pv.teachers.Votes(classes=...), or leave "
            "site_noise out"
        )


def describe_site_noise(teachers: int, shares: SiteNoise) -> str:
    """What a card says of who adds the noise."""
    needed = teachers - shares.absent
    return (
        f"the sites, each a share of the discrete Gaussian; any {needed} of the {teachers} shares "
        "add up to the stated noise"
    )


def paper_noise_multiplier(queries: int, epsilon: float, delta: float) -> float:
    """Noise over sensitivity by Fay et al. (2020, eq. 15), from the best order of Renyi DP and its
    oldest conversion.

    It holds, and is more than is needed: 1.195 times the exact figure at (8, 1e-3), 1.314 times at
    (1, 1e-5).

    >>> # of the mean of 8 codes in the unit ball
    >>> round(paper_noise_multiplier(80, 8.0, 1e-3) * 2 / 8, 6)
    1.282564
    """
    log = -math.log(valid_delta(delta))
    epsilon = positive("epsilon", epsilon)
    return (
        math.sqrt(count("queries", queries) / 2)
        * (math.sqrt(log + epsilon) + math.sqrt(log))
        / epsilon
    )


_RADII = (1e-12, 1e12)
_MOST_CLASSES = 10**9


@final
@registered
@dataclass(frozen=True)
class Ball:
    """Each teacher's code is clipped to L2 distance `radius` of a public code; what is released is
    the mean of codes.

    The sum over teachers moves by at most 2 x radius, whatever the dimension (Fay et al. 2020, Prop
    2).
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
@registered
@dataclass(frozen=True)
class Box:
    """Each teacher's target is clipped to [0, 1] in `dimensions` numbers, then encoded by a linear
    map of norm 1.

    The sum over teachers moves by at most sqrt(dimensions) (Fay et al. 2020, Prop 1): far more than
    a ball's for targets of many numbers.
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
@registered
@dataclass(frozen=True)
class Votes:
    """Each teacher votes for one of `classes`, or for none; noisy counts are released, of which the
    largest wins.

    One teacher moves its vote: two counts by 1 each, sqrt(2) together (the Gaussian noisy max,
    Papernot et al. 2018).
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
@registered
@dataclass(frozen=True)
class ConfidentVotes:
    """As `Votes`, but only where the largest noisy count reaches `threshold` (Confident-GNMax,
    Papernot et al. 2018).

    Every query is charged for that test, and `answers` of them at most for an answer; then nothing
    more is asked.

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
