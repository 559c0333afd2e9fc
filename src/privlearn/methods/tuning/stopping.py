"""Choosing parameters by random stopping (Liu and Talwar 2019; Papernot and Steinke 2022): the
plan.

Candidates to choose among, each with a plan of its own: what both ways of private parameter
selection have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypedDict, final

from privlearn._checks import as_plain, between, count, positive, with_plain_numbers
from privlearn._display import shortened
from privlearn._public import registered
from privlearn._shapes import Count
from privlearn.core.accounting.budget import Budget, require_budget
from privlearn.core.accounting.calibration import solve_noise
from privlearn.core.accounting.events import Composed, Event, compose
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit, require_same
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.trees import RepeatAndSelect, one_of
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.run_facts import RunFacts
from privlearn.errors import BadInput

#: Runs that may be expected; each is a training.
_MOST_RUNS = 1000
#: Shapes beyond are Poisson's law but for a part in a thousand: say infinity.
_LARGEST_SHAPE = 1000
#: How much of the budget goes into the scores unless their noise is given.
_SHARE = 0.05
#: What candidates can be chosen by: sums over examples, of which each moves them by a bounded
#: amount.
OF_CLASSES, OF_VALUES = ("accuracy", "log_loss"), ("rmse", "mae")
_LOSSES = {
    "accuracy": "errors",
    "log_loss": "clipped log losses",
    "rmse": "clipped squared errors",
    "mae": "clipped errors",
}


class Tuning(TypedDict, total=False):
    """Which candidate was chosen, by its place, and how many examples were divided into blocks."""

    chosen: Count
    examples: Count


class TuningFacts(RunFacts, total=False):
    """What choices among candidates state, beside the facts of the chosen one's run."""

    tuning: Tuning


@final
@registered
@dataclass(frozen=True, repr=False)
class RandomStopping(AbstractPlan):
    """A random number of runs, of which the best is kept. The others are dropped; not even their
    number is recorded.

    Each run draws a candidate uniformly at random, trains it on all the data, and releases a noisy
    count of the examples that it gets right. The whole costs about two to three times one run,
    however many runs are expected.

    Attributes:
        candidates: what to draw from.
        mean: how many runs are expected, at least 1.
        shape: of their number's law, truncated negative binomial: 0 logarithmic, 1 geometric,
            infinity Poisson (under which there may be no run, and then nothing is published).
        score_noise: noise multiplier of the count, one example being the sensitivity; None: solved
            for by `calibrate`, a twentieth of the budget.
        budget: what the plan was calibrated to; the limit of the ledger.
        metric: what the count is of: `accuracy`, right predictions; or one less the loss of each
            example, in [0, 1]: `log_loss` clipped to 4 and divided by that, and of targets with
            bounds `mae` or `rmse`, errors (squared) clipped to a quarter of the bounds' distance.

    Raises:
        BadInput: a number out of range, candidates that can't be compared, or a metric that is no
            sum over examples.
        AdjacencyMismatch: candidates for different kinds of neighbour.
    """

    candidates: tuple[Candidate, ...]
    mean: float
    shape: float = 1.0
    score_noise: float | None = None
    budget: Budget | None = None
    metric: str = "accuracy"
    kind: ClassVar[str] = "random-stopping"
    facts_shape: ClassVar[Any] = TuningFacts

    def __post_init__(self) -> None:
        require_candidates(self.candidates)
        require_metric(self.metric)
        require_budget(self.budget)
        if any(candidate.again is not None for candidate in self.candidates):
            raise BadInput(
                "candidates have a plan to be trained again by: the best run is kept as it is; "
                "leave out again="
            )
        between("mean", self.mean, 1.0, _MOST_RUNS)
        if self.score_noise is not None:
            positive("score_noise", self.score_noise)
        between("shape", self.shape, 0.0, math.inf)
        RepeatAndSelect(Gaussian(1.0), self.mean, self.shape)
        if not math.isinf(self.shape):
            between("shape", self.shape, 0.0, _LARGEST_SHAPE)

    @property
    def trainings(self) -> tuple[AbstractPlan, ...]:
        """The plans by which candidates are trained, and those by which they are trained again."""
        return trainings_of(self.candidates)

    @property
    def neighbours(self) -> Adjacency:
        """The kind of neighbour."""
        first: AbstractPlan = self.candidates[0].plan
        return first.neighbours

    @property
    def unit(self) -> PrivacyUnit:
        """Whose data are protected."""
        first: AbstractPlan = self.candidates[0].plan
        return first.unit

    def repeated(self) -> RepeatAndSelect:
        """What is done, as one mechanism."""
        if self.score_noise is None:
            raise BadInput(
                "nothing says how noisy scores are: give score_noise, or a target with "
                "calibrate(epsilon=, delta=), which solves for it"
            )
        trainings = [candidate.plan.event() for candidate in self.candidates]
        return stopping(trainings, self.score_noise, self.mean, self.shape)

    def event(self) -> Composed:
        """Everything that the run will be charged."""
        return compose([self.repeated()])

    @with_plain_numbers
    def scaled(self, factor: float) -> RandomStopping:
        """All noise `factor` times as high, that of the scores too."""
        return replace(
            self,
            candidates=tuple(
                replace(each, plan=louder(each.plan, factor)) for each in self.candidates
            ),
            score_noise=self.score_noise and self.score_noise * factor,
        )

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], RandomStopping], float]:
        """Each candidate first gets the noise at which it would meet the target if it were the only
        one.
        """

        def repeat(event: Event) -> Event:
            return RepeatAndSelect(event, self.mean, self.shape)

        # What has no price, or none in this measure, is refused by name; so is what nothing can
        # make affordable.
        budget.spent(replace(self, score_noise=self.score_noise or 1.0).event(), self.neighbours)
        if self.score_noise is not None:
            require_room(
                budget,
                repeat(Gaussian(self.score_noise)),
                self.neighbours,
                "the scores",
                "score_noise",
            )

        plans = [alone(candidate.plan, budget, repeat) for candidate in self.candidates]
        score = self.score_noise or solve_noise(
            lambda noise: budget.spent(repeat(Gaussian(noise)), self.neighbours), budget.limit
        )
        training, scoring = (1.0, None) if self.score_noise else (1 - _SHARE, _SHARE)

        def at(factor: float) -> RandomStopping:
            return replace(
                self,
                candidates=tuple(
                    replace(each, plan=louder(plan, factor / math.sqrt(training)))
                    for each, plan in zip(self.candidates, plans, strict=True)
                ),
                score_noise=score if scoring is None else score * factor / math.sqrt(scoring),
            )

        return at, 1.0

    def stated(self) -> RandomStopping:
        """Itself, with plans as they are published."""
        return replace(self, candidates=tuple(each.stated() for each in self.candidates))

    @property
    def summary(self) -> str:
        """What a card says of how the parameters were chosen."""
        return (
            f"A random number of runs ({self.mean:g} expected, shape {self.shape:g}) each trained "
            f"a candidate drawn from {len(self.candidates)} and released a noisy "
            f"{scored_by(self.metric)} (noise multiplier {self.score_noise:.4g}). The best run is "
            "published; how many there were is nowhere recorded."
        )

    def rows(self) -> list[tuple[str, str]]:
        """The candidates, each with its settings."""
        return candidate_rows(self.candidates)

    def trained(self, facts: Mapping[str, Any]) -> AbstractPlan:
        """The plan of the candidate that `facts` say was chosen."""
        plan: AbstractPlan = chosen_candidate(self.candidates, facts).plan
        return plan

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """What contradicts the plan of the candidate that is said to have been chosen."""
        return self.trained(facts).follows(facts)


def require_metric(metric: str) -> None:
    """Raise `BadInput` unless it is a sum over examples, to which each adds a bounded amount by
    itself.
    """
    if not isinstance(metric, str) or metric not in _LOSSES:
        raise BadInput(
            f"candidates are to be chosen by {str(metric)[:40]}, which is not a sum over examples, "
            "so that one could move it by more than its own share: choose by "
            f"{', '.join(OF_CLASSES)}, or for numbers {', '.join(OF_VALUES)}"
        )


def losses_of(metric: str) -> str:
    """What is added up of each candidate, for a card."""
    return _LOSSES[metric]


def scored_by(metric: str) -> str:
    """What is released of each run, for a card."""
    return (
        "count of its right predictions"
        if metric == "accuracy"
        else f"sum of its {losses_of(metric)}"
    )


def stopping(
    trainings: Sequence[Event], score_noise: float, mean: float, shape: float
) -> RepeatAndSelect:
    """One of `trainings` drawn at random, and a noisy count, a random number of times."""
    return RepeatAndSelect(compose([one_of(trainings), Gaussian(score_noise)]), mean, shape)


#: Candidates to choose among at most.
MOST = 1000
_LONGEST = 60  # characters of a name


@final
@registered
@dataclass(frozen=True)
class Candidate:
    """One of the settings to choose among. Everything about it is public.

    Attributes:
        name: tells it from the others; for the card.
        plan: how it is trained to be judged: a `Plan`, or that of another run, with some noise. Its
            noise is a shape until the whole is calibrated.
        again: how it is trained on all the data if it is chosen and trained again; None: by `plan`,
            with noise of its own.
        settings: what else the training callable sets for it (a learning rate, say), by name:
            numbers and texts, for the card.

    Raises:
        BadInput: a name that can't be printed, a schedule that reacts, or settings that are no
            plain values.
    """

    name: str
    plan: Any
    again: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "candidate"

    def __post_init__(self) -> None:
        name = self.name
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= _LONGEST
            or not name.isprintable()
            or "|" in name
        ):
            raise BadInput(
                f"a candidate's name is {str(name)[:80]!r}: expected 1 to {_LONGEST} printable "
                "characters, no |"
            )
        for plan in (self.plan, *([self.again] if self.again is not None else [])):
            if not isinstance(plan, AbstractPlan) or hasattr(plan, "candidates"):
                raise BadInput(
                    f"the plan of candidate {name!r} is {shortened(repr(plan), 60)}: expected that "
                    "of one run, such as a privlearn Plan"
                )
            if getattr(plan, "reacts", False):
                raise BadInput(
                    f"candidate {name!r} has a validation schedule, whose noise is not known "
                    "beforehand: candidates need schedules that are, such as exp:k=0.01"
                )
        if not isinstance(self.settings, Mapping):
            raise BadInput(
                f"settings of candidate {name!r} are a {type(self.settings).__name__}: expected a "
                "mapping"
            )
        settings = {key: as_plain(value, int | float) for key, value in self.settings.items()}
        object.__setattr__(self, "settings", settings)
        for key, value in settings.items():
            if not isinstance(key, str) or not isinstance(value, str | int | float | bool):
                raise BadInput(
                    f"settings of candidate {name!r} hold {key!r}: {value!r}; expected numbers and "
                    "texts by name"
                )

    def stated(self) -> Candidate:
        """Itself, with plans as they are published."""
        return replace(self, plan=self.plan.stated(), again=self.again and self.again.stated())


def candidate_rows(candidates: Sequence[Candidate]) -> list[tuple[str, str]]:
    """A card's rows: each candidate's name and settings."""
    return [
        (
            each.name,
            ", ".join(f"{name} {value}" for name, value in each.settings.items())
            or "as of the whole run",
        )
        for each in candidates
    ]


def chosen_candidate(candidates: Sequence[Candidate], facts: Mapping[str, Any]) -> Candidate:
    """The candidate that `facts` say was chosen.

    Raises:
        BadInput, KeyError, TypeError: there is none.
    """
    return candidates[count("chosen", facts["tuning"]["chosen"], least=0, most=len(candidates) - 1)]


def trainings_of(candidates: Sequence[Candidate]) -> tuple[AbstractPlan, ...]:
    """The plans by which candidates are trained, and those by which they are trained again."""
    return tuple(
        plan for each in candidates for plan in (each.plan, each.again) if plan is not None
    )


def require_candidates(candidates: Sequence[Candidate]) -> None:
    """Refuse candidates that can't be compared under one guarantee.

    Raises:
        BadInput: fewer than two, two of one name, or different units of protection.
        AdjacencyMismatch: different kinds of neighbour.
    """
    if not isinstance(candidates, tuple) or not all(
        isinstance(candidate, Candidate) for candidate in candidates
    ):
        raise BadInput(
            "candidates is not a tuple of candidates: expected (pv.tuning.Candidate(name, plan), "
            "...)"
        )
    if not 2 <= len(candidates) <= MOST:
        raise BadInput(
            f"there are {len(candidates)} candidates: expected from 2 to {MOST} to choose among"
        )
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"two candidates are called {twice!r}: give each a name of its own")
    first = candidates[0].plan
    for candidate in candidates:
        for plan in (candidate.plan, candidate.again or candidate.plan):
            require_same(first.neighbours, plan.neighbours, f"candidate {candidate.name!r}")
            if plan.unit != first.unit:
                raise BadInput(
                    f"candidate {candidate.name!r} protects {plan.unit}, and "
                    f"{candidates[0].name!r} {first.unit}: give all candidates one group_size and "
                    "one rows_per_person"
                )


def require_room(budget: Budget, fixed: Event, adjacency: Adjacency, what: str, name: str) -> None:
    """Raise `BadInput` if `fixed`, which is not scaled, exceeds `budget` by itself."""
    spent = budget.spent(fixed, adjacency)
    if not budget.covers(spent):
        raise BadInput(
            f"{what} alone cost {budget.figure(spent)}, and the budget is {budget}: leave out "
            f"{name}, so that it is solved for, or raise the budget"
        )


def alone(plan: AbstractPlan, budget: Budget, within: Callable[[Event], Event]) -> AbstractPlan:
    """`plan` with the noise at which `within` of it would meet `budget`, were it all that is
    done.
    """
    start = 1.0 / min(plan.noise_multipliers()) if isinstance(plan, Plan) else 1.0
    factor = solve_noise(
        lambda factor: budget.spent(within(louder(plan, factor).event()), plan.neighbours),
        budget.limit,
        start,
    )
    return louder(plan, factor)


def louder(plan: AbstractPlan, factor: float) -> AbstractPlan:
    """`plan` with `factor` times the noise, that of a temperature's release too, which so keeps its
    share.
    """
    after = plan.temperature if isinstance(plan, Plan) else None
    if not isinstance(plan, Plan) or after is None:
        return plan.scaled(factor)
    after = replace(after, noise_multiplier=after.noise_multiplier * factor)
    return replace(plan.scaled(factor), temperature=after)
