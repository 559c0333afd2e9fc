"""The accountant computes the guarantee of an event tree by every sound method that covers it, and
finds the tightest.

Group privacy: what a guarantee for one example is worth for a person with up to k of them.

Mechanisms that scale exactly are priced as what they are for k examples together
(`trees.for_group`): Gaussian releases at k times the sensitivity, Poisson sampling by its mixture
of Gaussians. For the rest, k steps of one example each lead from one data set to its group
neighbour, which turns delta(e) into the curve delta_k(k e) <= delta(e) (1 + g +
... + g^{k-1}) at g = e^e.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from privlearn._checks import delta as valid_delta
from privlearn.core.accounting import pld, rdp, zcdp
from privlearn.core.accounting.events import Event, Mechanism, coarsen, require_adjacency, tally
from privlearn.core.accounting.guarantee import Adjacency, Guarantee, PrivacyUnit
from privlearn.core.accounting.pld.rounding import UNIT
from privlearn.core.accounting.searches import bisect, bracket
from privlearn.core.accounting.trees import for_group, per_block
from privlearn.errors import UnsupportedEvent

#: Different mechanisms that are priced in one computation; each takes some milliseconds.
_MOST_KINDS = 1000


def rho(event: Event) -> float | None:
    """The zCDP parameter of `event`, or None where it has none."""
    try:
        return zcdp.rho(event)
    except UnsupportedEvent:
        return None


def guarantees(
    event: Event, adjacency: Adjacency, delta: float, group_size: int = 1
) -> tuple[Guarantee, ...]:
    """Every sound guarantee of `event` at `delta`, the tightest first.

    Args:
        event: what was done.
        adjacency: the kind of neighbour.
        delta: where epsilon is stated.
        group_size: how many examples one person has at most; the guarantee is then for all of them
            together.

    Raises:
        UnsupportedEvent: no sound accountant covers `event` under `adjacency`.
        BadInput: `delta` is outside (0, 1), or the group size is not a whole number from 1 to
            10,000.
    """
    require_priceable(event, adjacency, delta)
    PrivacyUnit(group_size)
    total = rho(event)
    figures = [
        Guarantee(
            epsilon,
            delta,
            adjacency,
            method,
            "bound",
            None if total is None else total * group_size**2,
            group_size,
        )
        for method, epsilon in _figures(event, delta, group_size)
        if math.isfinite(epsilon)
    ]
    if not figures:
        raise UnsupportedEvent(
            f"no accountant gives a finite epsilon at delta {delta:g}: use a larger delta or more "
            "noise"
        )
    return tuple(sorted(figures, key=lambda guarantee: guarantee.epsilon))


def guarantee(event: Event, adjacency: Adjacency, delta: float, group_size: int = 1) -> Guarantee:
    """The tightest sound guarantee of `event` at `delta`: the first of `guarantees`."""
    return guarantees(event, adjacency, delta, group_size)[0]


def epsilon_bound(event: Event, adjacency: Adjacency, delta: float, group_size: int = 1) -> float:
    """An epsilon that `guarantee` never exceeds and nearly always equals, in one computation: for
    searches.
    """
    require_priceable(event, adjacency, delta)
    least = next(
        (epsilon for _, epsilon in _figures(event, delta, group_size) if math.isfinite(epsilon)),
        math.inf,
    )
    total = rho(event)
    if total is not None and any(leaf.loose_pair for leaf in tally(event)):
        # Privacy loss distributions take a selection for any mechanism of that range, at four times
        # its rho.
        least = min(least, zcdp.epsilon_of_rho(group_size**2 * total, delta))
    return least


def estimates(event: Event, adjacency: Adjacency, delta: float) -> tuple[Guarantee, ...]:
    """Figures that are no guarantees, each labelled so; none where their own conditions fail."""
    from privlearn.core.accounting import comparisons  # no guarantee rests on it

    try:
        return (
            Guarantee(comparisons.epsilon(event, delta), delta, adjacency, "yu-2019", "estimate"),
        )
    except UnsupportedEvent:
        return ()


def _figures(event: Event, delta: float, group_size: int) -> Iterator[tuple[str, float]]:
    """The methods that cover `event` with their epsilon, the usually tightest first, computed as
    they are asked for.
    """
    for method, compute in _methods(event, delta, group_size).items():
        try:
            yield method, compute()
        except (UnsupportedEvent, OverflowError):  # beyond what it covers, or beyond all numbers
            continue


def _methods(event: Event, delta: float, k: int) -> dict[str, Callable[[], float]]:
    mu, total = zcdp.gaussian_mu(event), rho(event)
    methods: dict[str, Callable[[], float]] = {}
    if mu is not None:
        methods["gaussian"] = lambda: zcdp.gaussian_epsilon(k * mu, delta)
    else:
        methods["pld"] = lambda: by_pld(event, delta, k)
        methods["rdp"] = lambda: by_rdp(event, delta, k)
    pure = pure_epsilon(event)
    if pure is not None:
        methods["pure"] = lambda: float_up(k * Fraction(pure))
    if total is not None:
        methods["zcdp"] = lambda: zcdp.epsilon_of_rho(k**2 * total, delta)
        methods["zcdp-2016"] = lambda: zcdp.epsilon_bun_steinke(k**2 * total, delta)
    if k == 1 and any(leaf.poisson for leaf in tally(event)):
        methods["moments-2016"] = lambda: rdp.epsilon_by_moments(event, delta)
    return methods


def pure_epsilon(event: Event) -> float | None:
    """The sum of epsilons at delta 0 where every mechanism has one, rounded up."""
    parts = [leaf.pure(times) for leaf, times in tally(event).items()]
    known = [Fraction(part) for part in parts if part is not None]
    return float_up(sum(known, Fraction(0))) if len(known) == len(parts) else None


def float_up(exact: Fraction) -> float:
    """The least float that is not below `exact`."""
    near = float(exact)
    return near if near >= exact else math.nextafter(near, math.inf)


def require_priceable(event: Event, adjacency: Adjacency, delta: float) -> None:
    """Raise unless `event` may be priced for `adjacency`, at a valid `delta`, and in bounded
    time.
    """
    valid_delta(delta)
    require_adjacency(event, adjacency)
    counts = tally(event)
    for leaf in counts:
        leaf.require_priceable()
    if (kinds := sum(map(_kinds, counts))) > _MOST_KINDS:
        kinds = sum(map(_kinds, coarsen(counts)))
    if kinds > _MOST_KINDS:
        raise UnsupportedEvent(
            f"the events hold {kinds} different mechanisms: at most {_MOST_KINDS} are priced "
            "together (noise levels alone may be many more). Use fewer sampling rates, or "
            "candidates"
        )


def _kinds(leaf: Mechanism) -> int:
    """How many mechanisms are priced for `leaf`."""
    return (
        sum(_kinds(inner) for event in leaf.inside for inner in tally(event)) if leaf.inside else 1
    )


def by_pld(event: Event, delta: float, k: int) -> float:
    """epsilon at `delta` for groups of `k`, from the group's own privacy loss distribution, or else
    in k steps.
    """
    group = for_group(event, k)
    if group is not None:
        try:
            whole = max(pld.epsilon(met, delta) for met in per_block(group))
        except UnsupportedEvent:
            whole = math.inf
        if math.isfinite(whole) or k == 1:
            return whole
    return pld_in_steps(event, delta, k)


def pld_in_steps(event: Event, delta: float, k: int) -> float:
    """epsilon at `delta` for groups of `k` of any mechanism, from the privacy loss distribution of
    one example.
    """
    # Every (e, d) of one example gives (k e, d (e^{k e} - 1) / (e^e - 1)); look for the least e
    # that is good enough.
    composed = pld.compose_event(event, negligible=1e-6 * pld.within_reach(delta))

    def good(one: float) -> bool:
        spent = max(composed.deltas(one))
        return spent <= 0 or _within(math.log(spent), log_growth(one, k), delta, k)

    return k * _least(good) * (1 + 2 * UNIT)


def by_rdp(event: Event, delta: float, k: int) -> float:
    """epsilon at `delta` for groups of `k`: from the group's Renyi curve or in k steps, whichever
    is less.
    """
    group = for_group(event, k)
    whole = math.inf if group is None else rdp.epsilon(group, delta)
    return whole if k == 1 else min(whole, rdp_in_steps(event, delta, k))


def rdp_in_steps(event: Event, delta: float, k: int) -> float:
    """epsilon at `delta` for groups of `k` of any mechanism, from the Renyi curve of one
    example.
    """
    divergences = rdp.curve(event)

    def good(one: float) -> bool:
        # delta(e) from the curve (Canonne et al. 2020, Prop 12), at the best order
        logs = (rdp.ORDERS - 1) * (divergences - one + np.log1p(-1 / rdp.ORDERS)) - np.log(
            rdp.ORDERS
        )
        return _within(float(logs.min()), log_growth(one, k), delta, k)

    return k * _least(good) * (1 + 2 * UNIT)


def _within(log_delta: float, growth: float, delta: float, k: int) -> bool:
    """Whether e^(log_delta + growth) is at most `delta`, whatever the rounding of these logarithms
    (lemma 16).
    """
    slack = 8 * UNIT * (abs(log_delta) + growth + abs(math.log(delta)) + k)
    return log_delta + growth + slack <= math.log(delta)


def log_growth(epsilon: float, k: int) -> float:
    """ln(1 + g + ... + g^{k-1}) at g = e^epsilon."""
    steps = epsilon * np.arange(k)
    return float(steps[-1] + math.log(float(np.exp(steps - steps[-1]).sum())))


def _least(good: Callable[[float], bool]) -> float:
    """The least epsilon >= 0 with good(epsilon), to a relative 1e-6, on the safe side; infinite if
    there is none.
    """
    if good(0.0):
        return 0.0
    _, high = bracket(good, 1e-3, most=1e6)
    return bisect(good, 0.0, high, 1e-6)[1] if math.isfinite(high) else math.inf
