"""The guarantee of an event tree: every sound method that covers it, and the tightest of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

from privlearn._validate import delta as valid_delta
from privlearn.accounting import pld, rdp, zcdp
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import Event, NonPrivate, PoissonSampled, require_adjacency, tally
from privlearn.errors import UnsupportedEvent

#: What a figure is: only a `bound` may be claimed.
Kind = Literal["bound", "lower_bound", "estimate"]

#: Share of delta above which the numerical allowances of a PLD may cost more than the slack of Renyi DP.
_NOTICEABLE = 0.01


@final
@dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta) statement, for one kind of neighbour, by one method.

    The unit of protection is one example (one row of the training data).
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    method: str
    kind: Kind = "bound"
    rho: float | None = None

    def __str__(self) -> str:
        sign = {"bound": "", "lower_bound": "at least ", "estimate": "about "}[self.kind]
        return f"({sign}{self.epsilon:.4g}, {self.delta:g})-DP for {self.adjacency.value} neighbours, by {self.method}"


def rho(event: Event) -> float | None:
    """The zCDP parameter of `event`, or None where sampling leaves it without one."""
    if any(isinstance(leaf, PoissonSampled) for leaf in tally(event)):
        return None
    return zcdp.rho(event)


def guarantees(event: Event, adjacency: Adjacency, delta: float) -> tuple[Guarantee, ...]:
    """Every sound guarantee of `event` at `delta`, the tightest first.

    Raises:
        UnsupportedEvent: no sound accountant covers `event` under `adjacency`.
        BadInput: `delta` is outside (0, 1).
    """
    total = _checked(event, adjacency, delta)
    if total is None:
        figures = {"pld": pld.epsilon(event, delta), "rdp": rdp.epsilon(event, delta)}
    else:
        figures = {
            "gaussian": zcdp.gaussian_epsilon(math.sqrt(2 * total), delta),
            "zcdp": zcdp.epsilon_of_rho(total, delta),
            "zcdp-2016": zcdp.epsilon_bun_steinke(total, delta),
        }
    found = [
        Guarantee(epsilon, delta, adjacency, method, rho=total)
        for method, epsilon in figures.items()
        if math.isfinite(epsilon)
    ]
    return tuple(sorted(found, key=lambda guarantee: guarantee.epsilon))


def guarantee(event: Event, adjacency: Adjacency, delta: float) -> Guarantee:
    """The tightest sound guarantee of `event` at `delta`; the same figure as the first of `guarantees`.

    Exact for Gaussian releases and epochs over disjoint batches; by privacy loss distributions where there is
    Poisson sampling.

    Raises:
        UnsupportedEvent: no sound accountant covers `event` under `adjacency`.
        BadInput: `delta` is outside (0, 1).
    """
    total = _checked(event, adjacency, delta)
    if total is None:
        composed = pld.compose_event(event, negligible=1e-3 * delta)
        epsilon = composed.epsilon(delta)
        if max(composed.p_inf, composed.q_inf) > _NOTICEABLE * delta:
            by_rdp = rdp.epsilon(event, delta)
            if by_rdp < epsilon:
                return Guarantee(by_rdp, delta, adjacency, "rdp")
        return Guarantee(epsilon, delta, adjacency, "pld")
    epsilon = zcdp.gaussian_epsilon(math.sqrt(2 * total), delta)
    return Guarantee(epsilon, delta, adjacency, "gaussian", rho=total)


def _checked(event: Event, adjacency: Adjacency, delta: float) -> float | None:
    """Check that `event` can be priced; return its rho if it has one."""
    valid_delta(delta)
    require_adjacency(event, adjacency)
    for leaf in tally(event):
        if isinstance(leaf, NonPrivate):
            raise UnsupportedEvent(f"there is no guarantee to give: {leaf.reason}", event=leaf)
    return rho(event)
