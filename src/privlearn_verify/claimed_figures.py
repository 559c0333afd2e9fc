"""Stated figures against computed ones, within the tolerances of the format."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from privlearn_verify.epsilon_methods import price
from privlearn_verify.event_trees import NORMAL, Tree, find_rho, sum_parameters
from privlearn_verify.renyi_prices import ORDERS, sum_divergences
from privlearn_verify.verdicts import Unknown, demand


def is_near(x: float, y: float, tolerance: float) -> bool:
    """Return whether two figures agree."""
    return math.isclose(x, y, rel_tol=tolerance, abs_tol=1e-12)


def has_partition(tree: Tree) -> bool:
    """Return whether there is a partition among the mechanisms, or within them."""
    inner = [part for m, _ in tree for part in m.parts]
    return any(m.kind == "partitioned" for m, _ in tree) or any(map(has_partition, inner))


def check_figures(
    name: str, figures: tuple[float, str, Any], tree: Tree, delta: float, k: int
) -> None:
    """Compare a stated epsilon, method and rho with what the mechanisms cost."""
    epsilon, method, rho = figures
    computed = price(tree, delta, k)
    agree = (rho is None) == (computed.rho is None)
    if computed.rho is not None and rho is not None:
        agree = is_near(rho, computed.rho, 1e-6)
    demand(agree, f"{name}: rho is {computed.rho}")
    least = min(computed.epsilons.values(), default=math.inf)
    demand(epsilon <= least * (1 + find_room(tree, method)) + 1e-12, f"{name}: epsilon is {least}")
    demand(computed.unknown is None, f"{name}: {computed.unknown}", Unknown)
    demand(method in computed.epsilons, f"{name}: {method} gives no epsilon")
    tolerance = 1e-4 if method == "pld" or least == computed.epsilons.get("pld") else 1e-6
    demand(epsilon >= least * (1 - tolerance) - 1e-12, f"{name}: epsilon is {least}")
    room = find_room(tree, method)
    demand(
        is_near(computed.epsilons[method], epsilon, room), f"{name}: the least is by another method"
    )


def find_room(tree: Tree, method: str) -> float:
    """Return how much larger than the least figure a stated one may be."""
    if method != "pld":
        return 1e-6
    return 3e-3 if has_partition(tree) else 1e-4


def check_budget(budget: Any, tree: Tree) -> None:
    """Check that the plan costs no more than its budget."""
    k = budget["group_size"]
    if budget["rho"] is not None:
        rho = sum_parameters(tree, find_rho)
        demand(rho is not None, "a budget of rho, and events without")
        demand(k * k * rho <= budget["rho"] * (1 + 1e-12), "the plan costs more than its budget")
        return
    computed = price(tree, budget["delta"], k)
    limit = budget["epsilon"]
    room = {"pld": 1e-4}
    fits = any(e <= limit * (1 + room.get(name, 1e-6)) for name, e in computed.epsilons.items())
    if not fits:
        demand(computed.unknown is None, f"the budget: {computed.unknown}", Unknown)
    demand(fits, "the plan costs more than its budget")


def check_fit(limit: Any, tree: Tree) -> None:
    """Check that mechanisms fit into a filter."""
    if limit["rho"] is not None:
        rho = sum_parameters(tree, find_rho)
        demand(rho is not None and rho <= limit["rho"] * (1 + 1e-12), "the run exceeds the filter")
        normal = all(m.kind in (*NORMAL, "partitioned") for m, _ in tree)
        demand(limit["kind"] == "filter" or normal, "a filter of Gaussian releases, and others")
        return
    total = sum_divergences(tree)
    for order, bound in zip(limit["orders"], limit["bounds"], strict=False):
        place = np.flatnonzero(order == ORDERS)
        demand(len(place) == 1, f"the filter has the order {order}")
        demand(total[place[0]] <= bound * (1 + 1e-10), "the run exceeds the filter")
