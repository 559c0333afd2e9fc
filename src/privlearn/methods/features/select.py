"""`select_features`: which features tell classes apart, chosen privately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from privlearn.accounting.ledger import Ledger
from privlearn.mechanisms.features import Statistics, scored
from privlearn.methods.features.opening import LabelledRows, opened
from privlearn.methods.features.plan import FeaturesPlan
from privlearn.models import Keep
from privlearn.rng import Streams


@final
@dataclass(frozen=True, eq=False)
class Selected:
    """Chosen features, and what was released to choose them: free to use.

    Attributes:
        indices: the features' places in a flattened row, the best first, shape (keep,).
        statistics: of all features, where they were chosen by means.
        counts: of each class, as released.
        scores: what each was ranked by, shape (keep,); None for Gumbel noise, which releases the order alone.
        score_noise: the standard deviation of the noise in each score; None without scores.
        names: of the chosen features, where the data name them; else none.
        plan: what was spent.
        ledger: where it was charged.
    """

    indices: Tensor
    statistics: Statistics | None
    counts: Tensor
    plan: FeaturesPlan
    ledger: Ledger
    scores: Tensor | None = None
    score_noise: Tensor | None = None
    names: tuple[str, ...] = ()

    def transform(self) -> Keep:
        """A module that keeps these features of rows as they are given, best first."""
        return Keep(self.indices)


def select_features(
    plan: FeaturesPlan,
    dataset: LabelledRows,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Selected:
    """Choose the plan's number of features.

    Guarantee: what is returned is `plan.guarantee(delta)`-DP for the plan's adjacency and unit, and the ledger is charged
    exactly `plan.event()`. Labels and shapes are looked at once, for whoever holds the data, before anything is spent. From
    then on a row that is not finite counts as none, a row beyond the bounds is clipped, and an empty class has a floor:
    nothing is said about any of them.

    Args:
        plan: for the purpose `selection`.
        dataset: a `Dataset`, a pair (inputs, classes) or a map-style PyTorch data set. Declared bounds scale its rows first.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones, seeded by the operating system.

    Raises:
        BudgetExceeded: the plan does not fit the ledger's budget; before any data is touched.
        BadInput: labels outside the declared classes, or rows of another length than the plan's; before anything is spent.
    """
    with opened(plan, "selection", dataset, ledger, streams) as rows:
        indices, found = plan.selection.chosen(
            rows.x, rows.y, plan.neighbours, rows.ledger, rows.stream, prepare=rows.prepare
        )
    statistics = found if isinstance(found, Statistics) else None
    counts = found.counts if isinstance(found, Statistics) else found
    scores, noise = (None, None) if statistics is None else scored(statistics, plan.criterion, plan.least_count)
    names = tuple(rows.origin.names[index] for index in indices.tolist()) if rows.origin.names else ()
    return Selected(
        indices,
        statistics,
        counts,
        plan,
        rows.ledger,
        None if scores is None else scores[indices],
        None if noise is None else noise[indices],
        names,
    )
