"""What is guaranteed to a person whose rows are in several data sets, each with a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privlearn.cli.ledger_view import LedgerView
from privlearn.errors import BadInput


def add_budgets(views: Mapping[str, LedgerView]) -> dict[str, Any]:
    """The guarantee of several ledgers together: the sum of their budgets.

    Basic composition, which also holds where what is run on one data set follows from results on
    another (Vadhan and Zhang 2023). Budgets are added, and not what was spent of them: how much
    that is may depend on results on the other data.

    Args:
        views: at least two, by the name of the data set.

    Raises:
        BadInput: a ledger without a budget or a guarantee, or budgets that do not add up.
    """
    if len(views) < 2:
        raise BadInput(
            "--overlap is for persons who are in several data sets: give the names of two or more, "
            "--overlap A,B, or --overlap all"
        )
    for name, view in views.items():
        if view.state.budget is None:
            raise _refuse(f"{name!r} has no budget: nothing limits what its runs come to")
        if view.state.entries and view.figures["epsilon"] is None:
            raise _refuse(f"{name!r} has no guarantee for its runs together")
    first = next((name for name in views if views[name].state.adjacency), next(iter(views)))
    for name, view in views.items():
        for what, here in _scope(views[first]).items():
            there = _scope(view)[what]
            if here is not None and there is not None and here != there:
                raise _refuse(f"the {what} of {first!r} is {here}, and that of {name!r} {there}")
    budgets = [view.figures["budget"] for view in views.values()]

    def add(name: str) -> float | None:
        parts = [budget[name] for budget in budgets]
        return None if None in parts else sum(parts)

    return {
        "data_sets": list(views),
        "epsilon": add("epsilon"),
        "delta": None if budgets[0]["epsilon"] is None else add("delta"),
        "rho": add("rho"),
        "adjacency": views[first].figures["adjacency"],
        "unit": views[first].figures["unit"],
        "without_runs": [name for name in views if views[name].state.adjacency is None],
    }


def _scope(view: LedgerView) -> dict[str, Any]:
    """What has to be the same; None where the first run decides it."""
    assert view.state.budget is not None
    return {
        "kind of budget": "epsilon" if view.state.budget.rho is None else "rho",
        "group size": view.state.budget.group_size,
        "kind of neighbour": view.figures["adjacency"],
        "unit of protection": view.figures["unit"] if view.state.adjacency else None,
    }


def _refuse(why: str) -> BadInput:
    return BadInput(
        f"these ledgers promise nothing together that could be stated: {why}. Leave it out of "
        "--overlap"
    )


def describe_overlap(overlap: dict[str, Any]) -> str:
    """The guarantee in a sentence."""
    amount = (
        f"rho {overlap['rho']:.6g}"
        if overlap["epsilon"] is None
        else f"epsilon {overlap['epsilon']:.6g} at delta {overlap['delta']:.6g}"
    )
    neighbours = f" ({overlap['adjacency']} neighbours)" if overlap["adjacency"] else ""
    open_yet = (
        f" Nothing was charged yet to {', '.join(overlap['without_runs'])}: this holds if the runs "
        "there have the same neighbours and unit."
        if overlap["without_runs"]
        else ""
    )
    return (
        f"A person in {', '.join(overlap['data_sets'])} is protected by {amount}{neighbours}: the "
        "sum of the budgets, however much of them is spent. What is protected in each: "
        f"{overlap['unit']}.{open_yet}"
    )
