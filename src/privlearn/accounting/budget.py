"""How much privacy may be spent: a target epsilon at a delta, or a target rho."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from privlearn._validate import delta as valid_delta
from privlearn._validate import positive
from privlearn.accounting import accountant, zcdp
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import Event, require_adjacency
from privlearn.accounting.unit import Unit
from privlearn.errors import BadInput

#: Relative slack when spending is compared with a budget: sums of floats must not lose the last epoch.
_SLACK = 1e-12


@final
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

    def __post_init__(self) -> None:
        Unit(self.group_size)
        if (self.epsilon is None) == (self.rho is None):
            raise BadInput("a budget needs either epsilon (with delta) or rho: give exactly one of the two")
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
            if self.delta is None:
                raise BadInput("a budget of epsilon needs its delta: give delta too, for example 1e-5")
        if self.rho is not None:
            positive("rho", self.rho)
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

    def covers(self, spent: float) -> bool:
        """Whether `spent`, in the unit of the budget, stays within it."""
        return spent <= self.limit * (1 + _SLACK)

    def figure(self, spent: float) -> str:
        """`spent` with its unit, for messages."""
        return f"{'epsilon' if self.rho is None else 'rho'} {spent:.6g}"

    def __str__(self) -> str:
        limit = f"rho {self.rho:g}" if self.rho is not None else f"epsilon {self.epsilon:g} at delta {self.delta:g}"
        return limit if self.group_size == 1 else f"{limit} for {Unit(self.group_size)}"
