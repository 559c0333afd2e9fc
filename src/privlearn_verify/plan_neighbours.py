"""The kinds of neighbour that a plan is for, by its own rules."""

from __future__ import annotations

import math
from typing import Any

from privlearn_verify.verdicts import Unknown, demand


def check_plan_neighbours(plan: Any, adjacency: str) -> None:
    """Check the kind of neighbour by the plan's own rules."""
    kind = plan["kind"]
    if kind == "gradients":
        cyclic = plan["sampling"]["kind"].startswith("cyclic")
        demand(not cyclic or adjacency == "zero_out", "cyclic samplers are for zero-out")
        declared = adjacency != "add_remove" or plan["examples"] is not None
        demand(declared, "add/remove needs a declared number of examples")
        demand(not plan.get("correlation"), "correlated noise", Unknown)
    demand(kind != "rows" or adjacency != "add_remove", "rows are not for add/remove")
    demand(kind != "blocks" or adjacency != "replace_one", "blocks are not for replace-one")
    for candidate in plan.get("candidates", []):
        for inner in (candidate["plan"], candidate["again"] or candidate["plan"]):
            check_plan_neighbours(inner, adjacency)


def check_candidates(plan: Any) -> None:
    """Check that all candidates are for the same neighbours and persons, and errors are sums."""
    candidates = plan.get("candidates", [])
    names = {candidate["name"] for candidate in candidates}
    demand(len(names) == len(candidates), "two candidates have the same name")
    for name in names:
        printed = 0 < len(name) <= 60 and name.isprintable() and "|" not in name
        demand(printed, "the name of a candidate is not printable")
    plans = [x[name] for x in candidates for name in ("plan", "again") if x[name]]
    for inner in plans:
        demand("candidates" not in inner, "a candidate is a choice itself")
        reacts = inner.get("schedule", {}).get("kind") == "validation"
        demand(not reacts, "a candidate has a validation schedule")
    if plan["kind"] == "random-stopping":
        demand(plan["shape"] <= 1000 or math.isinf(plan["shape"]), "the shape is out of range")
    shared = ["adjacency", "group_size", "rows_per_person", "persons"]
    shared += ["examples"] if plan["kind"] == "blocks" else []
    for name in shared:
        same = len({inner.get(name) for inner in plans}) <= 1
        demand(same, f"candidates have different {name}")
    sums = ("accuracy", "log_loss", "rmse", "mae")
    demand(plan.get("metric", "mae") in sums, "the metric is no sum over examples")
