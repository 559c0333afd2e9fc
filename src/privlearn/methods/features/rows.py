"""`release_features`: noisy rows of few features, with public or randomised labels, for anybody to learn from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from privlearn.accounting.ledger import Ledger
from privlearn.clipping.statistics import bounded_rows, finite_rows
from privlearn.mechanisms.features import Statistics
from privlearn.mechanisms.randomised import randomised, truth
from privlearn.mechanisms.release import release
from privlearn.methods.features.fisher import classifier
from privlearn.methods.features.opening import LabelledRows, Origin, opened
from privlearn.methods.features.plan import FeaturesPlan
from privlearn.methods.result import Result
from privlearn.models import ClipRows, Keep
from privlearn.rng import Streams
from privlearn.sampling import FullBatch


@final
@dataclass(frozen=True, eq=False, repr=False)
class ReleasedRows:
    """Noisy rows and their labels: free to use, if they were released privately (the ledger says whether).

    Attributes:
        x: rows of the kept features, the best first, single precision, shape (rows, keep).
        y: labels, shape (rows,); randomised if the plan says so.
        indices: the kept features' places in a flattened row.
        noise_std: standard deviation of the noise in each number.
        plan: what was spent.
        ledger: where it was charged.
        origin: what is public of the rows that they come from.
    """

    x: Tensor
    y: Tensor
    indices: Tensor
    noise_std: float
    plan: FeaturesPlan
    ledger: Ledger
    origin: Origin

    def classifier(self) -> Result:
        """Fisher's classifier from the noisy rows: post-processing. It is for rows without noise.

        Variances are those of the noisy rows: what tells features apart in them is the signal beside that. Randomised
        labels are undone in expectation.
        """
        front = [Keep(self.indices), ClipRows(torch.tensor(self.plan.rest_norm))]
        return classifier(self.plan, self.origin, front, self.statistics(), self.ledger)

    def statistics(self) -> Statistics:
        """Counts, sums and moments of the noisy rows."""
        member = (self.y[:, None] == torch.arange(self.plan.classes)).to(self.x.dtype)
        counts, sums = member.sum(0).double(), (member.T @ self.x).double()
        if self.plan.label_epsilon is not None:
            counts, sums = (_undone(told, self.plan.label_epsilon) for told in (counts, sums))
        std = self.noise_std * math.sqrt(len(self.x) / self.plan.classes)  # of a sum over a class of usual size
        return Statistics(counts, sums, self.x.double().square().sum(0), std, 0.0)


def _undone(told: Tensor, epsilon: float) -> Tensor:
    """Totals by true class, in expectation, from totals by randomised class, shape (classes, ...)."""
    true = truth(epsilon, len(told))
    other = (1 - true) / (len(told) - 1)
    return (told - other * told.sum(0)) / (true - other)


def release_features(
    plan: FeaturesPlan,
    dataset: LabelledRows,
    *,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> ReleasedRows:
    """Choose features, and release every row of them once, with noise.

    Guarantee: all that is returned is `plan.guarantee(delta)`-DP, for zero-out or replace-one neighbours: the number of
    rows, and their order, are public. The ledger is charged exactly `plan.event()`: the selection, one Gaussian release of
    all rows (each is in it once), and randomised response for the labels unless they are declared public. Choosing features
    by all rows needs somebody who is trusted with them: this is not local privacy.

    Args:
        plan: for the purpose `rows`.
        dataset: as for `select_features`.
        ledger: what to charge; by default a new one with the plan's budget.
        streams: the random streams; by default new ones.

    Raises:
        BudgetExceeded, BadInput: as `select_features`.
    """
    with opened(plan, "rows", dataset, ledger, streams) as rows:
        stream, best = rows.stream, torch.arange(plan.features)
        if plan.selects:
            best, _ = plan.selection.chosen(rows.x, rows.y, plan.neighbours, rows.ledger, stream, prepare=rows.prepare)
        (sample,) = FullBatch().draw(len(rows.x))
        bounded = bounded_rows(rows.x, sample, plan.neighbours, norm=plan.rest_norm, columns=best, prepare=rows.prepare)
        present = finite_rows(rows.x, sample, best, rows.prepare)
        ((noisy,),) = release(bounded, noise_multiplier=plan.rest_noise, ledger=rows.ledger, stream=stream)
        labels = torch.from_numpy(np.asarray(rows.y).astype(np.int64))
        if plan.label_epsilon is not None:
            labels = randomised(
                labels, present, epsilon=plan.label_epsilon, categories=plan.classes, adjacency=plan.neighbours,
                ledger=rows.ledger, stream=stream,
            )  # fmt: skip
    std = plan.rest_noise * bounded.sensitivity
    return ReleasedRows(noisy, labels, best, std, plan, rows.ledger, rows.origin)
