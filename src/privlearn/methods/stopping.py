"""Choosing parameters by random stopping (Liu and Talwar 2019; Papernot and Steinke 2022): the plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from privlearn._validate import between, positive
from privlearn.accounting import accountant
from privlearn.accounting.accountant import Guarantee
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.budget import Budget
from privlearn.accounting.calibrate import solve_noise
from privlearn.accounting.events import (
    Composed,
    Event,
    Gaussian,
    RepeatAndSelect,
    compose,
    one_of,
)
from privlearn.accounting.unit import Unit
from privlearn.errors import BadInput
from privlearn.methods.candidates import Candidate, alone, quieter, require_candidates, require_room

#: Runs that may be expected; each is a training.
_MOST_RUNS = 1000
#: Shapes beyond are Poisson's law but for a part in a thousand: say infinity.
_LARGEST_SHAPE = 1000
#: How much of the budget goes into the scores unless their noise is given.
_SHARE = 0.05


@final
@dataclass(frozen=True)
class RandomStopping:
    """A random number of runs, of which the best is kept. Nothing is shown of the others, not even how many they were.

    Each run draws a candidate uniformly at random, trains it on all the data, and releases a noisy count of the examples that
    it gets right. The whole costs about two to three times one run, however many runs are expected.

    Attributes:
        candidates: what to draw from.
        mean: how many runs are expected, at least 1.
        shape: of their number's law, truncated negative binomial: 0 logarithmic, 1 geometric, infinity Poisson (under which
            there may be no run, and then nothing is published).
        score_noise: noise multiplier of the count, one example being the sensitivity; None: solved for by `calibrate`, a
            twentieth of the budget.
        budget: what the plan was calibrated to; the limit of the ledger.

    Raises:
        BadInput: a number out of range, or candidates that can't be compared.
        AdjacencyMismatch: candidates for different kinds of neighbour.
    """

    candidates: tuple[Candidate, ...]
    mean: float
    shape: float = 1.0
    score_noise: float | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        require_candidates(self.candidates)
        if any(candidate.again is not None for candidate in self.candidates):
            raise BadInput(
                "candidates have a plan to be trained again by: the best run is kept as it is; leave out again="
            )
        between("mean", self.mean, 1.0, _MOST_RUNS)
        if self.score_noise is not None:
            positive("score_noise", self.score_noise)
        RepeatAndSelect(Gaussian(1.0), self.mean, self.shape)
        if not math.isinf(self.shape):
            between("shape", self.shape, 0.0, _LARGEST_SHAPE)

    @property
    def neighbours(self) -> Adjacency:
        """The kind of neighbour."""
        return self.candidates[0].plan.neighbours

    @property
    def unit(self) -> Unit:
        """Whose data are protected."""
        return self.candidates[0].plan.unit

    def repeated(self) -> RepeatAndSelect:
        """What is done, as one mechanism."""
        if self.score_noise is None:
            raise BadInput(
                "nothing says how noisy scores are: give score_noise, or a target with calibrate(epsilon=, delta=), which "
                "solves for it"
            )
        trainings = [candidate.plan.event() for candidate in self.candidates]
        return stopping(trainings, self.score_noise, self.mean, self.shape)

    def event(self) -> Composed:
        """Everything that the run will be charged."""
        return compose([self.repeated()])

    def guarantee(self, delta: float) -> Guarantee:
        """The tightest sound guarantee of the whole at `delta`."""
        return self.guarantees(delta)[0]

    def guarantees(self, delta: float) -> tuple[Guarantee, ...]:
        """Every sound guarantee of the whole at `delta`, the tightest first."""
        found = accountant.guarantees(self.event(), self.neighbours, delta, self.unit.group_size)
        return tuple(replace(each, rows_per_person=self.unit.rows_per_person) for each in found)

    def calibrate(
        self, *, epsilon: float | None = None, delta: float | None = None, rho: float | None = None
    ) -> RandomStopping:
        """Scale all noise so that everything together meets a target.

        Each candidate first gets the noise at which it would meet the target if it were the only one; then all noise is scaled
        at once. What is spent ends at most at the target, and within 0.3% of it.

        Raises:
            BadInput: a target out of range, or one that what is fixed (a PCA, `score_noise`) exceeds.
            UnsupportedEvent: a target rho: random stopping has a price in Renyi DP only.
        """
        budget = Budget(epsilon, delta, rho, self.unit.group_size)

        def repeated(event: Event) -> Event:
            return RepeatAndSelect(event, self.mean, self.shape)

        # What has no price, or none in this measure, is refused by name; so is what nothing can make affordable.
        budget.spent(replace(self, score_noise=self.score_noise or 1.0).event(), self.neighbours)
        if self.score_noise is not None:
            require_room(budget, repeated(Gaussian(self.score_noise)), self.neighbours, "the scores", "score_noise")

        plans = [alone(candidate.plan, budget, repeated) for candidate in self.candidates]
        score = self.score_noise or solve_noise(
            lambda noise: budget.spent(repeated(Gaussian(noise)), self.neighbours), budget.limit
        )
        training, scoring = (1.0, None) if self.score_noise else (1 - _SHARE, _SHARE)

        def at(factor: float) -> RandomStopping:
            return replace(
                self,
                candidates=tuple(
                    replace(each, plan=quieter(plan, factor / math.sqrt(training)))
                    for each, plan in zip(self.candidates, plans, strict=True)
                ),
                score_noise=score if scoring is None else score * factor / math.sqrt(scoring),
            )

        factor = solve_noise(lambda factor: budget.spent(at(factor).event(), self.neighbours), budget.limit)
        return replace(at(factor), budget=budget)

    def describe(self) -> dict[str, Any]:
        """Its public numbers, for certificates."""
        return {
            "way": "random-stopping",
            "mean": self.mean,
            "shape": self.shape,
            "score_noise": self.score_noise,
            "candidates": [candidate.describe() for candidate in self.candidates],
        }


def stopping(trainings: Sequence[Event], score_noise: float, mean: float, shape: float) -> RepeatAndSelect:
    """One of `trainings` drawn at random, and a noisy count, a random number of times."""
    return RepeatAndSelect(compose([one_of(trainings), Gaussian(score_noise)]), mean, shape)
