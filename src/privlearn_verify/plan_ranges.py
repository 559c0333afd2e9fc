"""Ranges of the numbers of a plan, and what has to agree within one of its objects."""

from __future__ import annotations

import math
import sys
from typing import Any

from privlearn_verify.event_trees import flatten
from privlearn_verify.schema_rules import read_schemas
from privlearn_verify.verdicts import demand

COUNTS = "batches batch_size examples maximum cycle queries teachers answers classes dimensions"
COUNTS += " features keep components width bins passes rows_per_person"
NORMS = (
    "row_norm clip_norm kept_norm radius coordinate_bound norm first second z_norm x_norm y_norm"
    " least_count least_variance"
)
OPEN = (math.ulp(0), math.nextafter(1, 0))
PLAN_RANGES: dict[str, tuple[float, float]] = dict.fromkeys(COUNTS.split(), (1, 1e15))
PLAN_RANGES |= dict.fromkeys(NORMS.split(), (1e-12, 1e12))
PLAN_RANGES |= dict.fromkeys(("share", "selection_share", "label_share", "quantile"), OPEN)
PLAN_RANGES |= dict.fromkeys(("noise_multiplier", "score_noise"), (1e-6, 1e12))
PLAN_RANGES |= {"epochs": (1, 1e5), "sampling_rate": (math.ulp(0), 1), "group_size": (1, 1e4)}
PLAN_RANGES |= {"split": (1e-6, 1e6), "mean": (1, 1000), "classes": (2, 1e15), "after": (0, 1e5)}
PLAN_RANGES |= {"queries": (1, 1e7), "teachers": (1, 1e7), "absent": (0, 1e7)}
PLAN_RANGES |= {
    "delta": OPEN,
    "depth": (1, 12),
    "trees": (0, 1e15),
    "shares": (math.ulp(0), sys.float_info.max),
}


def read_plan(value: Any, name: str = "plan") -> Any:
    """Return a plan with plain infinities and filters, after a check of its ranges."""
    if isinstance(value, list):
        return [read_plan(item, name) for item in value]
    if not isinstance(value, dict):
        low, high = PLAN_RANGES.get(name, (-math.inf, math.inf))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        demand(not number or low <= value <= high, f"the plan's {name} is {value}")
        return value
    if value.get("kind") == "table":
        return value
    if value.get("kind") == "infinity":
        demand(name not in PLAN_RANGES, f"the plan's {name} is infinite")
        return math.inf
    if value.get("kind") == "event":
        flatten(value["value"])
        return value["value"]
    plan = {key: read_plan(item, key) for key, item in value.items()}
    check_plan_object(plan)
    return plan


def check_plan_object(plan: Any) -> None:
    """Check what has to agree within one object of a plan."""
    kind = plan["kind"]
    demand(plan.get("noise_multiplier", 1) is not None, f"{kind} has no noise")
    if {"low", "high"} <= set(plan):
        ordered = -1e30 <= plan["low"] < plan["high"] <= 1e30
        demand(ordered, f"the bounds of {kind}")
    demand(plan.get("way", "auto") in ("means", "gumbel", "auto"), f"the way of {kind}")
    allowed = ("distance", "t", "welch")
    demand(plan.get("criterion", "t") in allowed, f"the criterion of {kind}")
    demand(plan.get("keep", 1) <= plan.get("features", math.inf), f"{kind} keeps too much")
    if kind == "budget":
        by_rho = plan["rho"] is not None
        demand((plan["epsilon"] is None) == (plan["delta"] is None) == by_rho, "a budget of both")
        enough = plan["rho"] >= 1e-12 if by_rho else plan["epsilon"] >= 1e-6
        demand(enough and math.isfinite(plan["rho"] or plan["epsilon"]), "a budget out of range")
    if kind == "boosting":
        demand(plan["target"].get("classes", 2) <= 10_000, "a target has too many classes")
        demand(2 <= plan["bins"] <= 1024, "boosting has another number of bins")
        demand(plan["noise_multiplier"] <= 1e9, "boosting has too much noise")
        sizes = [plan.get(name) for name in ("clip_norm", "prior_variance")]
        fit = all(size is None or 1e-6 <= size <= 1e6 for size in sizes)
        demand(fit, "a size of boosting is out of range")
    if kind == "step":
        demand(0 < plan["k"] < 1, "a step schedule's k")
    if kind == "validation":
        demand(0 < plan["k"] < 1 and 1 <= plan["m"] <= plan["period"], "a validation's k or m")
        demand(-1 < plan["threshold"] < 1, "a validation's threshold")
    if kind == "candidate":
        rules = read_schemas()["urn:privlearn:certificate:2"]["allOf"]
        kinds = [x["if"]["properties"]["plan"]["properties"]["kind"]["const"] for x in rules]
        for inner in [plan["plan"], *([] if plan["again"] is None else [plan["again"]])]:
            known = isinstance(inner, dict) and inner.get("kind") in kinds
            demand(known, "a candidate is no plan")
    if kind == "rows":
        demand(plan["labels"] in ("public", "randomised"), "labels of rows")
