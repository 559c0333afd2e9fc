"""Choosing parameters on disjoint blocks of the data (Gupta et al. 2010; Yu et al. 2019, sec.
IV-A.3): the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from privlearn._checks import count, positive, probability, with_plain_numbers
from privlearn._public import registered
from privlearn.core.accounting.budget import Budget, require_budget
from privlearn.core.accounting.calibration import solve_noise
from privlearn.core.accounting.events import Composed, Event, compose, require_adjacency
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.mechanisms import Selection
from privlearn.core.accounting.trees import Parallel, one_of
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.errors import BadInput
from privlearn.methods.tuning.stopping import (
    Candidate,
    TuningFacts,
    alone,
    candidate_rows,
    chosen_candidate,
    losses_of,
    louder,
    require_candidates,
    require_metric,
    require_room,
    trainings_of,
)


@final
@registered
@dataclass(frozen=True, repr=False)
class Blocks(AbstractPlan):
    """k candidates on k + 1 blocks: each is trained on its own block, and judged on the last one.

    Examples fall into blocks independently and uniformly, so one example meets one block: the whole
    costs the maximum over the trainings and the selection. The candidate is drawn by the
    exponential mechanism on error counts. With `retrain` the chosen one is then trained on all the
    data, which costs on top.

    Attributes:
        candidates: what to choose among. Rates and batches of their plans are relative to a block;
            the number of examples that they declare is that of all, of which each block gets its
            share.
        selection_epsilon: the range of the exponential mechanism's privacy loss; None: solved for
            by `calibrate`, so that the selection costs what the trainings cost.
        retrain: whether the chosen candidate is trained again, on all the data.
        share: with `retrain`, how much of the budget goes into choosing.
        budget: what the plan was calibrated to; the limit of the ledger.
        metric: what errors are counted by, as for `RandomStopping`.

    Raises:
        UnsupportedEvent: replace-one neighbours: one example would then be in two blocks.
        BadInput: a number out of range, or candidates that can't be compared.
        AdjacencyMismatch: candidates for different kinds of neighbour.
    """

    candidates: tuple[Candidate, ...]
    selection_epsilon: float | None = None
    retrain: bool = False
    share: float = 0.5
    budget: Budget | None = None
    metric: str = "accuracy"
    kind: ClassVar[str] = "blocks"
    facts_shape: ClassVar[Any] = TuningFacts

    def __post_init__(self) -> None:
        require_candidates(self.candidates)
        require_metric(self.metric)
        require_budget(self.budget)
        if self.selection_epsilon is not None:
            positive("selection_epsilon", self.selection_epsilon)
        if not isinstance(self.retrain, bool):
            raise BadInput(f"retrain is {self.retrain!r}: expected True or False")
        probability("share", self.share, open_top=True)
        for candidate in self.candidates:
            for plan in (candidate.plan, candidate.again or candidate.plan):
                if declared_by(plan) != self.examples:
                    raise BadInput(
                        f"candidate {candidate.name!r} declares {declared_by(plan)} examples, and "
                        f"{self.candidates[0].name!r} {self.examples}: all learn from blocks of "
                        "the same data. Give all plans examples=N, the number of all examples, or "
                        "none"
                    )
        require_adjacency(Parallel((Selection(1.0),)), self.neighbours)

    @property
    def examples(self) -> int | None:
        """The declared, public number of all examples; None: the data's length."""
        return declared_by(self.candidates[0].plan)

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

    def choosing(self) -> Event:
        """What choosing costs: all trainings on blocks, and the selection."""
        return choosing([candidate.plan.event() for candidate in self.candidates], self.selection())

    def selection(self) -> Selection:
        """The draw of one candidate.

        Raises:
            BadInput: nothing says how exact it is.
        """
        if self.selection_epsilon is None:
            raise BadInput(
                "nothing says how exactly a candidate is selected: give selection_epsilon, or a "
                "target with calibrate(epsilon=, delta=), which solves for it"
            )
        return Selection(self.selection_epsilon)

    def again(self) -> Event:
        """What training the chosen candidate again costs, whichever it is."""
        plans = [candidate.again or candidate.plan for candidate in self.candidates]
        return compose([one_of(plan.event() for plan in plans)] if self.retrain else [])

    def event(self) -> Composed:
        """Everything that the run will be charged, in order."""
        return compose([self.choosing(), self.again()])

    @with_plain_numbers
    def scaled(self, factor: float) -> Blocks:
        """All noise `factor` times as high, that of the selection too."""
        return replace(
            self,
            candidates=tuple(
                replace(
                    each,
                    plan=louder(each.plan, factor),
                    again=each.again and louder(each.again, factor),
                )
                for each in self.candidates
            ),
            selection_epsilon=self.selection_epsilon and self.selection_epsilon / factor,
        )

    def _by_factor(self, budget: Budget) -> tuple[Callable[[float], Blocks], float]:
        """Each part first gets the noise at which it alone would meet the target: no block costs
        more than another.
        """
        # What has no price, or none in this measure, is refused by name; so is what nothing can
        # make affordable.
        budget.spent(
            replace(self, selection_epsilon=self.selection_epsilon or 1.0).event(), self.neighbours
        )
        if self.selection_epsilon is not None:
            require_room(
                budget,
                Parallel((self.selection(),)),
                self.neighbours,
                "the selection",
                "selection_epsilon",
            )
        candidates = [
            replace(
                candidate,
                plan=alone(candidate.plan, budget, lambda event: Parallel((event,))),
                again=alone(candidate.again or candidate.plan, budget, lambda event: event)
                if self.retrain
                else None,
            )
            for candidate in self.candidates
        ]
        selection = self.selection_epsilon or _selection_alone(budget, self.neighbours)
        choosing, again = (self.share, 1 - self.share) if self.retrain else (1.0, 1.0)

        def at(factor: float) -> Blocks:
            first, second = factor / math.sqrt(choosing), factor / math.sqrt(again)
            return replace(
                self,
                candidates=tuple(
                    replace(
                        each,
                        plan=louder(each.plan, first),
                        again=each.again and louder(each.again, second),
                    )
                    for each in candidates
                ),
                selection_epsilon=self.selection_epsilon or selection / first,
            )

        return at, 1.0

    def for_block(self, candidate: Candidate, present: int) -> Candidate:
        """`candidate` as it is trained on its block: sums are divided by a block's share of the
        examples.
        """
        share = max(1, round((self.examples or present) / (len(self.candidates) + 1)))
        return replace(candidate, plan=_set_divisor(candidate.plan, share))

    def for_all(self, candidate: Candidate, present: int) -> Candidate:
        """`candidate` as it is trained on all the data."""
        return replace(
            candidate,
            plan=_set_divisor(candidate.again or candidate.plan, self.examples or present),
        )

    def stated(self) -> Blocks:
        """Itself, with plans as they are published."""
        return replace(self, candidates=tuple(each.stated() for each in self.candidates))

    @property
    def summary(self) -> str:
        """What a card says of how the parameters were chosen."""
        again = (
            "It was then trained again on all the data."
            if self.retrain
            else "It is published as it is."
        )
        return (
            f"Each of {len(self.candidates)} candidates was trained on a random block of the data "
            "of its own, and one was drawn by the exponential mechanism on their "
            f"{losses_of(self.metric)} on a further block (privacy loss of range "
            f"{self.selection_epsilon:.4g}). {again}"
        )

    def rows(self) -> list[tuple[str, str]]:
        """The candidates, each with its settings."""
        return candidate_rows(self.candidates)

    def trained(self, facts: Mapping[str, Any]) -> AbstractPlan:
        """The plan of the candidate that `facts` say was chosen, on its block or on all the
        data.
        """
        candidate = chosen_candidate(self.candidates, facts)
        if self.examples is not None:
            return self._plan_of(candidate, self.examples)
        plan: AbstractPlan = (candidate.again if self.retrain else None) or candidate.plan
        return plan

    def _plan_of(self, candidate: Candidate, present: int) -> AbstractPlan:
        """The plan that the chosen candidate was trained by, with its divisor."""
        plan: AbstractPlan = (self.for_all if self.retrain else self.for_block)(
            candidate, present
        ).plan
        return plan

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        """What contradicts the plan of the candidate said to be chosen, or the declared number of
        examples.
        """
        examples = count("examples", facts["tuning"]["examples"])
        problems = self._plan_of(chosen_candidate(self.candidates, facts), examples).follows(facts)
        if examples == (self.examples or examples):
            return problems
        return [
            f"{examples} examples were divided into blocks, and the plan declares {self.examples}",
            *problems,
        ]


def declared_by(plan: AbstractPlan) -> int | None:
    """The number of examples that a plan declares; None also where it divides no sums by it."""
    return getattr(plan, "examples", None)


def _set_divisor(plan: AbstractPlan, examples: int) -> AbstractPlan:
    """`plan` with sums divided by that many examples, where it divides them."""
    return replace(plan, examples=examples) if isinstance(plan, Plan) else plan


def choosing(trainings: Sequence[Event], selection: Selection) -> Event:
    """Trainings on disjoint blocks, and a selection on one more."""
    return Parallel((*trainings, selection))


def _selection_alone(budget: Budget, adjacency: Adjacency) -> float:
    """The range of a selection that would meet `budget` by itself."""
    return 1 / solve_noise(
        lambda noise: budget.spent(Parallel((Selection(1 / noise),)), adjacency), budget.limit
    )
