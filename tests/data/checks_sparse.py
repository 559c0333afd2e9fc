"""Named checks that a row of a sparse matrix moves no sum but by itself; mutations must make them
fail.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import nn

import privlearn as pv
from privlearn.data.sparse_matrix import SparseMatrix
from privlearn.methods.boosting import rounds
from privlearn.methods.boosting.plan import plan_for
from tests.support.checks import check

RNG = np.random.default_rng(5)
ROWS = np.where(RNG.uniform(size=(24, 8)) < 0.3, RNG.uniform(-1, 1, (24, 8)), 0.0)
LABELS = (ROWS.sum(1) > 0).astype(np.int64)


def changed_in_one_row() -> np.ndarray[Any, Any]:
    rows = ROWS.copy()
    rows[7] = 1.0
    return rows


@check
def check_a_sparse_row_is_fetched_by_itself() -> None:
    """Where one row is another, the others are fetched as before, whatever the batch is."""
    one, other = (SparseMatrix(scipy.sparse.csr_matrix(x)) for x in (ROWS, changed_in_one_row()))
    for batch in (np.arange(24), np.array([3, 7, 11]), np.array([7, 2])):
        rest = batch != 7
        assert np.array_equal(one[batch][rest], other[batch][rest])
        assert np.array_equal(one[batch], ROWS[batch].astype(np.float32))
    assert np.array_equal(np.concatenate([*one.blocks()]), ROWS.astype(np.float32))


@check
def check_a_sparse_row_moves_bins_and_sums_by_itself() -> None:
    """The bins of other rows stay, and a step on sparse rows is that on dense ones."""
    bins = []
    for x in (ROWS, changed_in_one_row()):
        data = pv.Dataset(scipy.sparse.csr_matrix(x), LABELS, classes=2, low=-1.0, high=1.0)
        plan = plan_for(data)
        bins.append(rounds._require_rows(plan, rounds._empty(plan), data)[0])
    rest = torch.arange(24) != 7
    assert torch.equal(bins[0][rest], bins[1][rest])
    plan = pv.Plan(pv.Poisson(0.5), epochs=2, clip=pv.Flat(0.1)).calibrate(epsilon=8.0, delta=1e-3)
    weights = []
    for x in (scipy.sparse.csr_matrix(10 * ROWS), (10 * ROWS).astype(np.float32)):
        model = nn.Linear(8, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        loss = nn.CrossEntropyLoss(reduction="none")
        result = pv.dpsgd(plan, model, loss, (x, LABELS), streams=pv.Streams.new(3))
        weights.append(next(result.model.parameters()).detach())
    assert torch.equal(*weights)
