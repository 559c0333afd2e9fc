"""`sampling="best"`: the sampler and the mechanism that leave the least noise in the weights, by
the plan alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from privlearn._public import kinds
from privlearn.core import solving
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.plan import Plan
from privlearn.core.sampling import FullBatch, Sampler
from privlearn.errors import PrivlearnError

BEST, INDEPENDENT = "best", "independent"
WHY = "of those that were tried, it leaves the least noise in the weights"
USUAL = "drawn at random, so that sampling amplifies privacy"
NO_TARGET = (
    "sampling='best' takes what leaves the least noise at a target: give epsilon= or rho=, and "
    "leave out noise_multiplier= and solve="
)

T = TypeVar("T")
#: A sampler's name, a mechanism and the neighbours, None for the sampler's own, to what is planned
#: with them.
Make = Callable[[str, Correlation | str, Adjacency | None], T]


def choices(
    mechanism: Correlation | str | None, *, correlated: bool
) -> list[tuple[str, Correlation | str]]:
    """Names of samplers with the mechanisms to try: the one given; or independent noise, and all
    that goes with each.

    Args:
        mechanism: the one given; None: it is left open.
        correlated: whether noise that is correlated over steps is tried where it was left open.
    """
    # it has no batch size
    samplers = {name: kind for name, kind in kinds(Sampler).items() if kind is not FullBatch}
    if mechanism is not None:
        return [(name, mechanism) for name in samplers]
    cyclic = [name for name, kind in samplers.items() if kind.in_cycles is not Sampler.in_cycles]
    more: list[tuple[str, Correlation | str]] = [
        (name, spec)
        for spec, kind in kinds(Correlation).items()
        for name in ((*cyclic, "fixed") if kind.disjoint else ("fixed",))
    ]
    return [*((name, INDEPENDENT) for name in samplers), *(more if correlated else [])]


def least(
    make_plan: Make[T],
    planned: Callable[[T], Plan],
    examples: int,
    mechanism: Correlation | str | None,
    adjacency: Adjacency | None,
    *,
    correlated: bool,
) -> T:
    """What has the least noise in its weights, of those with samplers that are priced for the same
    neighbours.

    Neighbours that are not given are those that Poisson sampling would have: the guarantee is of
    the same kind, whichever is best.

    Args:
        make_plan: plans with one sampler, its noise solved for.
        planned: the plan of what that made.
        examples: how many there are.
        mechanism: the one given; None: any.
        adjacency: the neighbours that were asked for.
        correlated: whether noise that is correlated over steps is tried where the mechanism was
            left open.

    Raises:
        BadInput: no sampler goes with the rest.
    """
    neighbours = adjacency or planned(make_plan("poisson", INDEPENDENT, None)).neighbours
    tried: list[T] = []
    refusals: list[PrivlearnError] = []
    for name, noise in choices(mechanism, correlated=correlated):
        try:
            tried.append(make_plan(name, noise, neighbours))
        except PrivlearnError as error:
            refusals.append(error)
    if not tried:
        raise refusals[0]
    return min(tried, key=lambda candidate: solving.noise_in_weights(planned(candidate), examples))
