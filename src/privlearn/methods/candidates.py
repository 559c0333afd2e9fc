"""Candidates to choose among, each with a plan of its own: what both ways of private parameter selection have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from privlearn.accounting.adjacency import Adjacency, require_same
from privlearn.accounting.budget import Budget
from privlearn.accounting.calibrate import solve_noise
from privlearn.accounting.events import Event
from privlearn.errors import BadInput
from privlearn.plan import Plan
from privlearn.schedules import Validation

#: Candidates to choose among at most.
MOST = 1000
_LONGEST = 60  # characters of a name


@final
@dataclass(frozen=True)
class Candidate:
    """One of the settings to choose among. Everything about it is public.

    Attributes:
        name: tells it from the others; for the card.
        plan: how it is trained to be judged. Its noise is a shape until the whole is calibrated.
        again: how it is trained on all the data if it is chosen and trained again; None: by `plan`, with noise of its own.
        settings: what else the training callable sets for it (a learning rate, say), by name: numbers and texts, for the card.

    Raises:
        BadInput: a name that can't be printed, a schedule that reacts, or settings that are no plain values.
    """

    name: str
    plan: Plan
    again: Plan | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST or not name.isprintable() or "|" in name:
            raise BadInput(
                f"a candidate's name is {str(name)[:80]!r}: expected 1 to {_LONGEST} printable characters, no |"
            )
        for plan in (self.plan, *([self.again] if self.again is not None else [])):
            if not isinstance(plan, Plan):
                raise BadInput(f"the plan of candidate {name!r} is {plan!r}: expected a privlearn Plan")
            if isinstance(plan.schedule, Validation):
                raise BadInput(
                    f"candidate {name!r} has a validation schedule, whose noise is not known beforehand: candidates need "
                    "schedules that are, such as exp:k=0.01"
                )
        for key, value in self.settings.items():
            if not isinstance(key, str) or not isinstance(value, str | int | float | bool):
                raise BadInput(
                    f"settings of candidate {name!r} hold {key!r}: {value!r}; expected numbers and texts by name"
                )

    def describe(self) -> dict[str, Any]:
        """Its public numbers, for certificates."""
        plans = {"plan": self.plan} | ({} if self.again is None else {"again": self.again})
        return {"name": self.name, "settings": dict(self.settings)} | {
            key: _numbers(plan) for key, plan in plans.items()
        }


def _numbers(plan: Plan) -> dict[str, Any]:
    return {
        "sampling": plan.sampling.describe(),
        "noise_multipliers": list(plan.noise_multipliers()),
        "before": plan.other_releases(),
    }


def require_candidates(candidates: Sequence[Candidate]) -> None:
    """Refuse candidates that can't be compared under one guarantee.

    Raises:
        BadInput: fewer than two, two of one name, or different units of protection.
        AdjacencyMismatch: different kinds of neighbour.
    """
    if not isinstance(candidates, tuple) or not all(isinstance(candidate, Candidate) for candidate in candidates):
        raise BadInput("candidates is no tuple of candidates: expected (pv.Candidate(name, plan), ...)")
    if not 2 <= len(candidates) <= MOST:
        raise BadInput(f"there are {len(candidates)} candidates: expected from 2 to {MOST} to choose among")
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
                    f"candidate {candidate.name!r} protects {plan.unit}, and {candidates[0].name!r} {first.unit}: give all "
                    "candidates one group_size and one rows_per_person"
                )


def require_room(budget: Budget, fixed: Event, adjacency: Adjacency, what: str, name: str) -> None:
    """Raise `BadInput` if `fixed`, which is not scaled, exceeds `budget` by itself."""
    spent = budget.spent(fixed, adjacency)
    if not budget.covers(spent):
        raise BadInput(
            f"{what} alone cost {budget.figure(spent)}, and the budget is {budget}: leave out {name}, so that it is solved "
            "for, or raise the budget"
        )


def quieter(plan: Plan, factor: float) -> Plan:
    """`plan` with `factor` times the noise."""
    return replace(plan, schedule=plan.schedule.scaled(factor))


def alone(plan: Plan, budget: Budget, within: Callable[[Event], Event]) -> Plan:
    """`plan` with the noise at which `within` of it would meet `budget`, were it all that is done."""
    start = 1.0 / min(plan.noise_multipliers())
    factor = solve_noise(
        lambda factor: budget.spent(within(quieter(plan, factor).event()), plan.neighbours), budget.limit, start
    )
    return quieter(plan, factor)
