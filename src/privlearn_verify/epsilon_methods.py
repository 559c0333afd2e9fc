"""The epsilon of each method that covers a tree of events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy import optimize, special

from privlearn_verify.dominating_pairs import find_noise_level
from privlearn_verify.event_trees import (
    NORMAL,
    Mechanism,
    Tree,
    check_neighbours,
    count_mechanisms,
    enlarge,
    find_pure,
    find_rho,
    flatten,
    sum_parameters,
)
from privlearn_verify.loss_grid import find_curve_epsilon, find_log_curve_delta, make_curves
from privlearn_verify.renyi_prices import (
    ORDERS,
    find_log_delta,
    find_renyi_epsilon,
    sum_divergences,
)
from privlearn_verify.verdicts import CLOCK, Unknown, demand

STATE_MECHANISMS = 1000  # of all sequences of choices among the events of `parallel`


def find_gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon of Gaussian releases."""

    def find_delta(e: float) -> float:
        a, b = e / mu - mu / 2, e / mu + mu / 2
        if a > -20:  # both terms as a density times Mills' ratios
            ratios = special.erfcx(a / math.sqrt(2)) - special.erfcx(b / math.sqrt(2))
            return math.exp(-a * a / 2) / 2 * ratios
        return special.ndtr(-a) - math.exp(e + special.log_ndtr(-b))

    if mu == 0 or find_delta(0.0) <= delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if find_delta(middle) > delta else (low, middle)
    return high


def find_zcdp_epsilons(rho: float, delta: float) -> tuple[float, float]:
    """Return the epsilons of rho by all real orders, and by the conversion of 2016."""
    old = rho + 2 * math.sqrt(rho * math.log(1 / delta))

    def convert(t: float) -> float:
        a = 1 + math.exp(t)
        extra = t - math.log(a) - (math.log(delta) + math.log(a)) / math.exp(t)
        return rho * a + extra

    grid = np.linspace(-40, 80, 2401)
    best = grid[np.argmin([convert(t) for t in grid])]
    minimum = optimize.minimize_scalar(convert, bounds=(best - 0.1, best + 0.1), method="bounded")
    return max(0.0, min(float(minimum.fun), convert(best), old)), old


def find_steps_epsilon(find_log: Callable[[float], float], delta: float, k: int) -> float:
    """Return the epsilon of k examples by k steps of one, from ln delta at an epsilon of one."""

    def fits(e: float) -> bool:
        return find_log(e) + special.logsumexp(e * np.arange(k)) <= math.log(delta)

    low, high = 0.0, 1e-3
    while not fits(high):
        low, high = high, 2 * high
        if high > 1e7:
            return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return k * high


def has_pair(m: Mechanism) -> bool:
    """Return whether `pld` covers a mechanism."""
    if m.kind == "parallel":
        return all(has_pair(inner) for part in m.parts for inner, _ in part)
    return m.kind not in ("zcdp", "filter", "one_of", "repeat_and_select")


def list_choices(tree: Tree) -> list[Counter[Mechanism]] | None:
    """Return the mechanisms for each sequence of choices among the events of `parallel`.

    None if all states on the way have more than 1,000 mechanisms together.
    """
    states: dict[frozenset[tuple[Mechanism, int]], Counter[Mechanism]] = {}
    queue, size = [count_mechanisms(tree)], 0
    while queue:
        counts = queue.pop()
        key = frozenset(counts.items())
        if key in states:
            continue
        states[key], size = counts, size + len(counts)
        if size > STATE_MECHANISMS:
            return None
        parallel = next((m for m in counts if m.kind == "parallel"), None)
        if parallel is None:
            continue
        parts = {frozenset(count_mechanisms(part).items()): part for part in parallel.parts}
        times = 1 if len(parts) > 1 else counts[parallel]
        for part in parts.values():
            following = Counter(counts)
            following[parallel] -= times
            for mechanism, count in part:
                following[mechanism] += count * times
            queue.append(+following)
    return [x for x in states.values() if all(m.kind != "parallel" for m in x)]


def find_pld_epsilon(tree: Tree, delta: float, k: int) -> float:
    """Return the epsilon of `pld`, for k examples together or else by k steps."""
    together = enlarge(tree, k)
    epsilon = math.inf if together is None else price_choices(together, delta, 1)
    return price_choices(tree, delta, k) if k > 1 and math.isinf(epsilon) else epsilon


def price_choices(tree: Tree, delta: float, k: int) -> float:
    """Return the largest epsilon of the choices of `parallel`, by k steps of one example."""
    epsilons: list[float] = []
    choices = list_choices(tree)
    if choices is None:
        return math.inf
    for counts in choices:
        if not counts:
            epsilons.append(0.0)
        elif delta < 1e-18 or min(map(find_noise_level, counts)) < 0.05:
            return math.inf
        elif k > 1:
            curves = make_curves(counts, delta, 5e-7)
            find_log = partial(find_log_curve_delta, curves)
            epsilons.append(find_steps_epsilon(find_log, delta, k))
        else:
            epsilons.append(find_curve_epsilon(make_curves(counts, delta, 5e-4), delta))
    return max(epsilons)


def find_rdp_epsilon(tree: Tree, delta: float, k: int) -> float:
    """Return the epsilon of `rdp`, for k examples together or by k steps."""
    together, epsilons = enlarge(tree, k), [math.inf]
    if together is not None:
        epsilons.append(find_renyi_epsilon(sum_divergences(together), delta))
    if k > 1:
        one = sum_divergences(tree)
        epsilons.append(find_steps_epsilon(lambda e: find_log_delta(one, e), delta, k))
    return min(epsilons)


def round_noise(counts: Counter[Mechanism]) -> Counter[Mechanism]:
    """Round noise levels down to 201 values if there are more than 400 mechanisms."""
    levels = {m: find_noise_level(m) for m in counts if m.noise_multiplier or m.epsilon}
    if len(counts) <= 400 or not levels:
        return counts
    least, most = min(levels.values()), max(levels.values())
    width = math.log(most / least) / 200 or 1.0
    rounded: Counter[Mechanism] = Counter()
    for m, count in counts.items():
        if m.noise_multiplier and m.kind != "laplace":
            steps = math.floor(math.log(levels[m] / least) / width + 1e-9)
            m = replace(m, noise_multiplier=min(levels[m], least * math.exp(width * steps)))
        rounded[m] += count
    return rounded


@dataclass(frozen=True)
class Price:
    """The epsilons of all methods that cover some events, and rho; why some are unknown."""

    epsilons: dict[str, float]
    rho: float | None
    unknown: str | None = None


@lru_cache(64)
def price(tree: Tree, delta: float, k: int) -> Price:
    """Return what mechanisms cost by all methods."""
    counts = count_mechanisms(tree)
    demand(len(counts) <= 1000, "more than 1,000 different mechanisms are not priced")
    tree, rounded = tuple(counts.items()), tuple(round_noise(counts).items())
    rho, pure = sum_parameters(tree, find_rho), sum_parameters(tree, find_pure)
    epsilons, unknown = {}, None
    if rho is not None and all(m.kind in NORMAL for m in counts):
        epsilons["gaussian"] = find_gaussian_epsilon(k * math.sqrt(2 * rho), delta)
    else:
        methods = {"rdp": find_rdp_epsilon}
        if all(map(has_pair, counts)):
            methods["pld"] = find_pld_epsilon
        for name, method in methods.items():
            try:
                epsilons[name] = method(rounded, delta, k)
            except Unknown as error:
                unknown = f"{name}: {error}"
    if pure is not None and tree:
        epsilons["pure"] = k * pure
    if rho is not None:
        rho *= k * k
        both = find_zcdp_epsilons(rho, delta) if rho else (0.0, 0.0)
        epsilons["zcdp"], epsilons["zcdp-2016"] = both
    if k == 1 and any(m.kind == "poisson_sampled" for m in counts):
        whole = (np.floor(ORDERS) == ORDERS) & (ORDERS <= 33)
        costs = sum_divergences(rounded)[whole] - math.log(delta) / (ORDERS[whole] - 1)
        epsilons["moments-2016"] = float(np.min(costs))
    epsilons = {name: float(e) for name, e in epsilons.items() if math.isfinite(e)}
    return Price(epsilons, rho, unknown)


def compute_epsilons(
    events: Any, adjacency: str, delta: float, group_size: int
) -> dict[str, float]:
    """Return the epsilon of each method that covers the events."""
    CLOCK.start(math.inf)
    tree = flatten(events)
    check_neighbours(tree, adjacency)
    with np.errstate(all="ignore"):
        return price(tree, delta, group_size).epsilons
