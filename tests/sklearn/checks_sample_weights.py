"""Named checks of weights of rows: bounded, each from its own row, and inside what is clipped."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.sampling import FullBatch
from privlearn.core.streams import Streams
from privlearn.methods.statistics.sums import ridge_sums
from privlearn.training.train import fit, settle_for
from tests.sklearn.checks_fits import DECLARED, X, targets
from tests.support.checks import check

WEIGHTED = ("DPClassifier", "DPLogisticRegression", "DPRegressor", "DPRidge")
HEAVY = (0.0, 0.5, 1.0, 1e9, math.inf, -1e9, math.nan)


@check
def check_a_weighted_row_moves_sums_of_products_by_the_sensitivity_at_most() -> None:
    """Whatever it weighs: for neighbours with a row more, and with another row in its place."""
    base = np.array([[0.2, 0.1], [0.4, -0.3]])

    def sums(row: Any, weight: float, adjacency: Adjacency) -> Any:
        x, y = (
            (base, [0.5, -0.5])
            if row is None
            else (np.vstack([base, row[:2]]), [0.5, -0.5, row[2]])
        )
        (sample,) = FullBatch().draw(len(x))
        weights = np.array([1.0, 0.3, weight][: len(x)])
        return ridge_sums(
            torch.from_numpy(x),
            torch.tensor(y),
            sample,
            adjacency,
            norm=1.0,
            constant=0.25,
            weights=weights,
        )

    rows = ((9.0, 0.0, 1.0), (-9.0, 0.0, 1.0), (0.0, 9.0, -1.0))
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
        each = [sums(row, weight, adjacency) for row in rows for weight in HEAVY]
        others = each if adjacency is Adjacency.REPLACE_ONE else [sums(None, 1.0, adjacency)]
        for part in range(2):
            moved = [
                float((one[part].values[0] - other[part].values[0]).norm())
                for one in each
                for other in others
            ]
            bound = each[0][part].sensitivity
            assert 0.9 * bound <= max(moved) <= bound * (1 + 1e-9), (
                adjacency,
                part,
                max(moved),
                bound,
            )


@check
def check_a_weighted_row_moves_a_step_by_the_clipping_norm_at_most() -> None:
    """One step on all rows, with hardly any noise: a row less changes the weights by its clipped
    share at most.
    """
    data = pv.Dataset(
        X[:20].astype(np.float32), (X[:20, 0] > 0).astype(np.int64), classes=2, low=-1.0, high=1.0
    )
    chosen: dict[str, Any] = {
        "noise_multiplier": 1e-6,
        "sampling": "full",
        "epochs": 1,
        "learning_rate": 1.0,
    }
    settled, data = settle_for(data, clip_norm=0.05, temperature=0.0, features="raw", **chosen)

    def stepped(weight: float) -> torch.Tensor:
        weights = np.array([weight, *np.linspace(0.1, 1, 19)])
        result = fit(settled, (data, weights), Streams.new(0))
        return torch.cat([own.detach().double().flatten() for own in result.model.parameters()])

    without, share = stepped(0.0), 0.05 / 20
    moved = {weight: float((stepped(weight) - without).norm()) for weight in (1.0, 7.0, 1e9, -1e9)}
    assert max(moved.values()) <= share * 1.01, moved
    assert 0.5 * share <= moved[1.0], moved
    assert moved[7.0] == moved[1e9] == moved[1.0], moved
    assert moved[-1e9] == 0, moved


@check
def check_rows_of_weight_zero_change_nothing() -> None:
    """What such rows hold is in no sum: the same noise gives the same model, to the last digit."""
    weights, other = np.ones(len(X)), X.copy()
    weights[::3], other[::3] = 0, -X[::3]
    for name in WEIGHTED:
        made = DECLARED[name](random_state=0)
        y = targets(made)
        one, two = (
            DECLARED[name](random_state=0).fit(rows, y, sample_weight=weights)
            for rows in (X, other)
        )
        assert np.array_equal(one.predict(X), two.predict(X)), name
        unweighted = DECLARED[name](random_state=0).fit(X, y)
        assert not np.array_equal(one._outputs(X), unweighted._outputs(X)), name


@check
def check_a_rows_weight_follows_from_that_row() -> None:
    """However heavy others are, it is what was given, at most 1."""
    for name in WEIGHTED:
        made = DECLARED[name]()
        for others in (0.1, 1.0, 50.0):
            assert made._weights([0.5, 3.0, others], 3).tolist() == [0.5, 1.0, min(others, 1.0)], (
                name
            )
