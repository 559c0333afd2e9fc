"""The plan of class sums, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from privlearn.core import plan
from privlearn.core.accounting import events
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.run_facts import RunFacts


class ClassSumsFacts(RunFacts, total=False):
    """What a run states."""

    bound: float


@final
@plan.registered
@dataclass(frozen=True)
class ClassSums(plan.AbstractPlan):
    """One release of a sum for each class."""

    numbers: int
    classes: int
    radius: float
    noise_multiplier: float = 1.0
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    group_size: int = 1
    budget: Budget | None = None
    kind: ClassVar[str] = "class-sums"
    facts_shape: ClassVar[Any] = ClassSumsFacts

    def event(self) -> events.Composed:
        return events.compose([Gaussian(self.noise_multiplier)])

    def scaled(self, factor: float) -> ClassSums:
        return replace(self, noise_multiplier=factor * self.noise_multiplier)

    def rows(self) -> list[tuple[str, str]]:
        return [("sums", f"{self.classes} of {self.numbers} numbers")]

    def follows(self, facts: Mapping[str, Any]) -> list[str]:
        return [] if facts["bound"] == self.radius else ["rows were clipped to another norm"]
