"""A budget says what may be spent: a target epsilon at a delta, or a target rho."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from privlearn._checks import delta as valid_delta
from privlearn._checks import positive
from privlearn._display import shortened
from privlearn._public import registered
from privlearn.core.accounting import accountant, zcdp
from privlearn.core.accounting.events import Event, require_adjacency
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.errors import BadInput


def require_budget(budget: object) -> None:
    """Raise `BadInput` unless `budget` is one that a plan can have."""
    if budget is not None and not isinstance(budget, Budget):
        raise BadInput(
            f"budget is {shortened(repr(budget), 80)}: expected a Budget, as calibrate(epsilon=, "
            "delta=) sets it, or None"
        )


#: Targets below these are lost in the rounding of what is computed for them.
_LEAST_EPSILON, _LEAST_RHO = 1e-6, 1e-12


def _require_target(name: str, value: float, least: float) -> None:
    """Raise `BadInput` unless `value` is a number from `least` on."""
    if positive(name, value) < least:
        raise BadInput(
            (
                f"{name} is {value:g}: expected at least {least:g}, below which figures are lost "
                "in rounding"
            ),
            name=name,
        )


#: Relative slack when spending is compared with a budget: sums of floats must not lose the last
#: epoch.
_SLACK = 1e-12


@final
@registered
@dataclass(frozen=True)
class Budget:
    """A limit on what may be spent: `epsilon` with `delta`, or `rho` (zCDP).

    It limits what up to `group_size` examples of one person lose together; 1 is one example.

    Raises:
        BadInput: neither or both are given, or a number is out of range.
    """

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    group_size: int = 1
    kind: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        PrivacyUnit(self.group_size)
        if (self.epsilon is None) == (self.rho is None):
            raise BadInput(
                "a budget needs either epsilon (with delta) or rho: give exactly one of the two"
            )
        if self.epsilon is not None:
            _require_target("epsilon", self.epsilon, _LEAST_EPSILON)
            if self.delta is None:
                raise BadInput(
                    "a budget of epsilon needs its delta: give delta too, for example 1e-5"
                )
        if self.rho is not None:
            _require_target("rho", self.rho, _LEAST_RHO)
        if self.delta is not None:
            valid_delta(self.delta)

    @property
    def limit(self) -> float:
        """The number that spending is compared with: epsilon or rho."""
        return self.epsilon if self.epsilon is not None else self.rho  # type: ignore[return-value]

    def spent(self, event: Event, adjacency: Adjacency) -> float:
        """What `event` costs a group of this size, in the measure of the budget.

        Raises:
            UnsupportedEvent: no sound price is known, in this measure, under `adjacency`.
        """
        if self.rho is not None:
            require_adjacency(event, adjacency)
            return self.group_size**2 * zcdp.rho(event)
        assert self.delta is not None
        return accountant.epsilon_bound(event, adjacency, self.delta, self.group_size)

    def for_group(self, group_size: int) -> Budget:
        """Itself as a limit for a person with `group_size` examples.

        Raises:
            BadInput: it is one for groups of another size.
        """
        if self.group_size not in (1, group_size):
            raise BadInput(
                (
                    f"the budget is {self}, and the plan's group_size is {group_size}: give both "
                    "the same"
                ),
                budget=self,
            )
        return replace(self, group_size=group_size)

    def covers(self, spent: float) -> bool:
        """Whether `spent`, in the unit of the budget, stays within it."""
        return spent <= self.limit * (1 + _SLACK)

    def figure(self, spent: float) -> str:
        """`spent` with its unit, for messages."""
        return f"{'epsilon' if self.rho is None else 'rho'} {spent:.6g}"

    def __str__(self) -> str:
        limit = (
            f"rho {self.rho:g}"
            if self.rho is not None
            else f"epsilon {self.epsilon:g} at delta {self.delta:g}"
        )
        return limit if self.group_size == 1 else f"{limit} for {PrivacyUnit(self.group_size)}"
