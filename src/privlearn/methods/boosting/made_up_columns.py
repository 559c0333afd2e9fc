"""Neighbouring made-up rows for audits of boosting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.methods.boosting.plan import BoostingPlan, Interval
from privlearn.methods.boosting.rounds import boost
from privlearn.methods.boosting.targets import Labels
from privlearn.methods.neighbouring_runs import NeighbouringRuns, neighbouring_rows

#: Rows beside the example, which all have the opposite target.
_OTHERS = 20


def runs_of(plan: BoostingPlan) -> NeighbouringRuns:
    """A plan's run on equal rows, and on an example that is equal to them, too.

    The others have the opposite target: what the model learns of them is as wrong for the example
    as can be. Where another example takes its place, half of them have.

    Args:
        plan: with its noise.
    """
    bare = replace(plan, budget=None)
    row: list[float] = []
    for column in plan.columns:
        if isinstance(column, Interval):
            row.append(column.low)
        else:
            row += [1.0, *[0.0] * (column.width - 1)]
    x = np.array([row], np.float32)
    kind = np.int64 if isinstance(plan.target, Labels) else np.float64
    one, other = (np.array([target], kind) for target in plan.target.opposites)
    among = np.concatenate([one, other]) if plan.neighbours is Adjacency.REPLACE_ONE else other
    others = x.repeat(_OTHERS, 0), np.resize(among, _OTHERS)
    rows = neighbouring_rows(plan.neighbours, others, (x, one), (x, other))

    def run(took_part: bool, ledger: Ledger, streams: Streams) -> object:
        return boost(bare, rows[took_part], ledger=ledger, streams=streams)

    text = (
        f"boosting, {plan.releases} histograms, noise multiplier {plan.noise:.4g}, whole run, "
        "white box"
    )
    return NeighbouringRuns(run, text)
