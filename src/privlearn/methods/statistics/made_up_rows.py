"""Neighbouring made-up rows for audits of releases of statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.methods.neighbouring_runs import NeighbouringRuns, neighbouring_rows
from privlearn.methods.statistics.plan import ChoosingPlan, RowsPlan, StatisticsPlan
from privlearn.methods.statistics.regression import RidgePlan

#: How far beyond its bounds the example is.
_BEYOND = 16.0
#: Rows of another class, where distances between classes count: more than the usual floor of 10.
_OTHERS = 20


def runs_of(plan: StatisticsPlan) -> NeighbouringRuns:
    """A plan's run with and without an example that is far beyond all bounds, beside one row of 0.

    The example lies along the first feature. Where features are drawn by noise, or rows are
    released, it is as long in all of them; and other rows make half of the distances between
    classes rise by it, and half of them fall. The row in its place is the opposite one, or has the
    opposite target.

    Args:
        plan: with its noise.
    """
    bare: Any = replace(plan, front=(), budget=None)  # type: ignore[type-var]
    names = ("row_norm", "kept_norm", "coordinate_bound")
    length = _BEYOND * max(getattr(plan, name, None) or 0.0 for name in names)
    drawn = isinstance(plan, ChoosingPlan) and plan.selects and plan.selection.by_gumbel
    x, other = np.zeros((2, 1, plan.features))
    x[:, : plan.features if drawn or isinstance(plan, RowsPlan) else 1] = length
    if drawn:
        other = np.where(np.arange(plan.features) % 2, length, -length)[None]
    example, opposite = (x, np.array([0])), (-x, np.array([0]))
    others = other.repeat(_OTHERS if drawn else 1, 0), np.ones(_OTHERS if drawn else 1, np.int64)
    if isinstance(plan, RidgePlan):
        example, opposite = (x, np.array([plan.high])), (x, np.array([plan.low]))
        others = np.zeros_like(x), np.array([(plan.low + plan.high) / 2])
    rows = neighbouring_rows(plan.neighbours, others, example, opposite)

    def run(took_part: bool, ledger: Ledger, streams: Streams) -> object:
        return bare.run_on(rows[took_part], ledger, streams)

    text = f"{plan.kind} statistics, noise multiplier {plan.noise:.4g}, whole run, white box"
    return NeighbouringRuns(run, text, bare.is_adaptive)
