"""`sampling="best"`: the sampler and the mechanism that leave the least noise in the weights, by the plan alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from privlearn import solving
from privlearn._public import kinds
from privlearn.descent.choices import TrainRequest
from privlearn.errors import BadInput, PrivlearnError
from privlearn.mechanisms.correlated import Correlation
from privlearn.sampling import FullBatch, Sampler

if TYPE_CHECKING:
    from privlearn.descent.rules import Settled

BEST, INDEPENDENT = "best", "independent"
WHY = "of those that were tried, it leaves the least noise in the weights"


def choices(mechanism: str, *, correlated: bool) -> list[tuple[str, str]]:
    """Names of samplers with the mechanisms to try: the one given; or independent noise, and all that goes with each.

    Args:
        mechanism: the one given, or `independent` where it was left open.
        correlated: whether noise that is correlated over steps is tried where it was left open.
    """
    samplers = {name: kind for name, kind in kinds(Sampler).items() if kind is not FullBatch}  # it has no batch size
    if mechanism != INDEPENDENT:
        return [(name, mechanism) for name in samplers]
    cyclic = [name for name, kind in samplers.items() if kind.in_cycles is not Sampler.in_cycles]
    more = [
        (name, own)
        for own, made in kinds(Correlation).items()
        for name in ((*cyclic, "fixed") if made.disjoint else ("fixed",))
    ]
    return [(name, INDEPENDENT) for name in samplers] + (more if correlated else [])


def settled(request: TrainRequest, settle: Callable[[TrainRequest], Settled]) -> Settled:
    """The request with the best sampler and mechanism of those that are priced for the same neighbours.

    Neighbours are those that Poisson sampling would have: the guarantee is of the same kind, whichever is best. Noise
    is compared as the weights of SGD hold it; with another optimizer, and on a grid, it stays independent.

    Args:
        request: with `sampling="best"`.
        settle: settles a request that names its sampler.

    Raises:
        BadInput: no target that is met by the noise, or no sampler that goes with the request.
    """
    if request.target is None or request.solve not in (None, "noise") or request.noise_multiplier is not None:
        raise BadInput(
            "sampling='best' takes what leaves the least noise at a target: give epsilon= or rho=, and leave out "
            "noise_multiplier= and solve="
        )
    first = settle(replace(request, sampling="poisson", mechanism=INDEPENDENT))
    fixed = replace(request, adjacency=first.plan.neighbours.value)
    made: list[Settled] = []
    refusals: list[PrivlearnError] = []
    suits = request.optimizer in (None, "SGD") and not request.discrete
    for name, mechanism in choices(request.mechanism, correlated=suits):
        try:
            made.append(settle(replace(fixed, sampling=name, mechanism=mechanism)))
        except PrivlearnError as error:
            refusals.append(error)
    if not made:
        raise refusals[0]
    best = min(made, key=lambda own: solving.noise_in_weights(own.plan, own.facts.examples))
    return replace(best, request=replace(best.request, sampling=BEST, mechanism=request.mechanism))
