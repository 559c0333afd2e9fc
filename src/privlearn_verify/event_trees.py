"""Trees of events: their mechanisms with counts, their ranges, zCDP parameters, and groups."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn_verify.verdicts import Unknown, demand

_ALL = ("add_remove", "zero_out", "replace_one")
_FOR_ALL = "gaussian laplace selection pure_dp zcdp one_of repeat_and_select filter gaussian_filter"
NEIGHBOURS: dict[str, tuple[str, ...]] = dict.fromkeys(_FOR_ALL.split(), _ALL)
NEIGHBOURS |= dict.fromkeys(("poisson_sampled", "partitioned", "parallel"), _ALL[:2])
NEIGHBOURS |= dict.fromkeys(("fixed_batches", "randomised_response"), _ALL[1:])
NEIGHBOURS |= {"truncated_poisson_sampled": ("zero_out",), "non_private": ()}
RANGES = {"noise_multiplier": (1e-6, 1e12), "sampling_rate": (1e-12, 1), "epsilon": (1e-12, 1e6)}
RANGES |= dict.fromkeys(("examples", "maximum", "batches"), (1, 1e15))
RANGES |= {"categories": (2, 1e15), "rho": (1e-24, 1e12), "count": (0, 1e15)}
RANGES |= {"mean": (1, 1e9), "shape": (0, math.inf)}
NORMAL = ("gaussian", "fixed_batches", "gaussian_filter")
Tree = tuple[tuple["Mechanism", int], ...]


@dataclass(frozen=True)
class Mechanism:
    """An event that is no `repeated` or `composed`; `parts` are the flat events within it.

    Numbers are None where the kind has no such field.
    """

    kind: str
    noise_multiplier: Any = None
    sampling_rate: Any = None
    examples: Any = None
    maximum: Any = None
    batches: Any = None
    epsilon: Any = None
    categories: Any = None
    rho: Any = None
    mean: Any = None
    shape: Any = None
    orders: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()
    parts: tuple[Tree, ...] = ()
    group: int = 1  # how many examples of one person a sampled batch may hold


def join(entries: list[tuple[Mechanism, int]]) -> Tree:
    """Put equal neighbours together."""
    joined: list[tuple[Mechanism, int]] = []
    for mechanism, count in entries:
        if joined and joined[-1][0] == mechanism:
            count += joined.pop()[1]
        joined.append((mechanism, count))
    return tuple(joined)


def flatten(event: Any, level: int = 1) -> Tree:
    """Return an event's mechanisms in their order, with their counts; ranges are checked."""
    kind = event["kind"]
    demand(level <= 32, "the tree of events has more than 32 levels")
    demand(kind in NEIGHBOURS or kind in ("repeated", "composed"), f"the event {kind}", Unknown)
    check_event_ranges(event)
    inner = event.get("events", [event["event"]] if "event" in event else [])
    parts = [flatten(part, level + 1) for part in inner]
    if kind == "repeated":
        count = event["count"]
        return tuple((mechanism, n * count) for mechanism, n in parts[0] if count)
    if kind == "composed":
        return join([entry for part in parts for entry in part])
    names = {x.name for x in fields(Mechanism)} - {"orders", "bounds", "parts"}
    values = {name: event[name] for name in names if name in event}
    if kind.endswith("_sampled") or kind in ("partitioned", "fixed_batches"):
        values["noise_multiplier"], parts = parts[0][0][0].noise_multiplier, []
    orders, bounds = tuple(event.get("orders", ())), tuple(event.get("bounds", ()))
    return ((Mechanism(**values, orders=orders, bounds=bounds, parts=tuple(parts)), 1),)


def check_event_ranges(event: Any) -> None:
    """Check the numbers of one event."""
    kind = event["kind"]
    for name, value in event.items():
        low, high = RANGES.get(name, (-math.inf, math.inf))
        if name in RANGES and value is not None:
            high = 5e11 if kind == "gaussian_filter" else high
            demand(low <= value <= high, f"{kind}: {name} is {value}")
    if kind == "truncated_poisson_sampled":
        n, q = event["examples"], event["sampling_rate"]
        demand(event["maximum"] >= min(n, math.floor(q * n) + 2), "the maximum is too small")
    if kind in ("parallel", "one_of"):
        demand(len(event["events"]) > 0, f"{kind} of no events")
    if kind == "filter":
        orders, bounds = event["orders"], event["bounds"]
        demand(len(orders) == len(bounds) <= 10_000, "not as many orders as bounds")
        demand((event["rho"] is None) == bool(orders), "a filter has either rho or orders")
        demand(all(1 < x <= 1e12 for x in orders), "an order of a filter is out of range")
        demand(all(0 < x <= 1e12 for x in bounds), "a bound of a filter is out of range")


def check_neighbours(tree: Tree, adjacency: str) -> None:
    """Check that all mechanisms are covered for the kind of neighbour."""
    for mechanism, _ in tree:
        covered = adjacency in NEIGHBOURS[mechanism.kind]
        demand(covered, f"{mechanism.kind} does not cover {adjacency}")
        for part in mechanism.parts:
            check_neighbours(part, adjacency)


def count_mechanisms(tree: Tree) -> Counter[Mechanism]:
    """Return T(x): how often each mechanism occurs."""
    counts: Counter[Mechanism] = Counter()
    for mechanism, count in tree:
        counts[mechanism] += count
    return counts


Array = NDArray[np.float64]


def find_rho(m: Mechanism) -> float | None:
    """Return the zCDP parameter of a mechanism, if it has one."""
    if m.kind in ("gaussian", "fixed_batches", "partitioned", "laplace"):
        return 1 / (2 * m.noise_multiplier**2)
    if m.kind in ("randomised_response", "pure_dp", "selection"):
        return m.epsilon**2 / (8 if m.kind == "selection" else 2)
    if m.kind in ("parallel", "one_of"):
        return find_largest_sum(m.parts, find_rho)
    return m.rho


def find_pure(m: Mechanism) -> float | None:
    """Return the pure epsilon of a mechanism, if it has one."""
    if m.kind in ("parallel", "one_of"):
        return find_largest_sum(m.parts, find_pure)
    return 1 / m.noise_multiplier if m.kind == "laplace" else m.epsilon


def find_largest_sum(
    parts: tuple[Tree, ...], find: Callable[[Mechanism], float | None]
) -> float | None:
    """Return the largest sum of a parameter over some events, if all have it."""
    sums = [sum_parameters(part, find) for part in parts]
    known = [value for value in sums if value is not None]
    return max(known) if len(known) == len(sums) else None


def sum_parameters(tree: Tree, find: Callable[[Mechanism], float | None]) -> float | None:
    """Return the sum of a parameter over mechanisms, if all have it."""
    terms = []
    for mechanism, count in tree:
        value = find(mechanism)
        if value is None:
            return None
        terms.append(value * count)
    return math.fsum(terms)


def enlarge(tree: Tree, k: int) -> Tree | None:
    """Return the mechanisms as they are for k examples together, if all have such a form."""
    larger = []
    for mechanism, count in tree:
        form = enlarge_mechanism(mechanism, k)
        if form is None:
            return None
        larger.append((form[0], form[1] * count))
    return tuple(larger)


def enlarge_mechanism(m: Mechanism, k: int) -> tuple[Mechanism, int] | None:
    """Return what a mechanism is for k examples together, and how many times."""
    if k == 1:
        return m, 1
    if m.kind == "randomised_response":
        return m, k
    if m.kind in ("partitioned", "parallel") or m.orders:
        return None
    if m.kind in ("one_of", "repeat_and_select"):
        parts = [part for part in (enlarge(part, k) for part in m.parts) if part is not None]
        return (replace(m, parts=tuple(parts)), 1) if len(parts) == len(m.parts) else None
    if m.kind == "poisson_sampled" and m.sampling_rate == 1:
        return Mechanism("gaussian", noise_multiplier=m.noise_multiplier / k), 1
    if m.kind.endswith("_sampled"):
        if m.kind == "truncated_poisson_sampled" and m.maximum < m.examples:
            least = min(m.examples, math.floor(m.sampling_rate * m.examples) + 2)
            if m.maximum - k < least:
                return None
        return replace(m, group=k), 1
    noise = None if m.noise_multiplier is None else m.noise_multiplier / k
    epsilon = None if m.epsilon is None else m.epsilon * k
    rho = None if m.rho is None else m.rho * k * k
    return replace(m, noise_multiplier=noise, epsilon=epsilon, rho=rho), 1
