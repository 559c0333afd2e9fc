"""Named checks of persons in estimators: `fit(X, y, groups=ids)`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import privlearn as pv
from privlearn import sklearn as estimators
from privlearn.errors import BadInput
from tests.support.checks import check, must_raise

X = np.random.default_rng(0).random((120, 4))
Y, VALUES = (X[:, 0] > 0.5).astype(int), X[:, 1]
IDS = np.random.default_rng(1).integers(0, 40, 120)
DECLARED: dict[str, dict[str, Any]] = {
    "DPClassifier": {"classes": [0, 1]},
    "DPLogisticRegression": {"classes": [0, 1]},
    "DPRegressor": {"target_bounds": (0, 1)},
}
KEPT = {"rows_per_person": 2, "examples": 40}


def made(name: str, **options: Any) -> Any:
    return getattr(estimators, name)(
        epsilon=5.0, delta=1e-3, bounds=(0, 1), **DECLARED[name], **options
    )


def targets(name: str) -> Any:
    return VALUES if name == "DPRegressor" else Y


def weights(result: pv.Result) -> torch.Tensor:
    return torch.cat([own.detach().flatten() for own in result.model.parameters()])


@check
def check_a_fit_with_groups_is_a_run_of_persons() -> None:
    """The same weights as of `train` on rows with these ids; its guarantee is for a person, by
    itself and in all.
    """
    for name in DECLARED:
        fitted = made(name, options=KEPT).fit(X, targets(name), groups=IDS)
        for said in (fitted.privacy_.fit, fitted.privacy_.total):
            assert said.rows_per_person == 2
            assert 4.0 < said.epsilon <= 5.0
    declared: dict[str, Any] = {"low": 0.0, "high": 1.0, "groups": IDS}
    chosen: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-3, **KEPT}
    for texts in (IDS, IDS.astype(str), IDS.astype(str).astype(object)):
        own = made("DPClassifier", options=KEPT, random_state=pv.Streams.new(0))
        ours = weights(own.fit(X, Y, groups=texts).result_)
        data = pv.Dataset(
            X, Y, classes=2, **declared | {"groups": texts.astype(str) if texts is not IDS else IDS}
        )
        assert torch.equal(ours, weights(pv.train(data, streams=pv.Streams.new(0), **chosen)))
    last = make_pipeline(FunctionTransformer(), made("DPClassifier", options=KEPT))
    assert last.fit(X, Y, dpclassifier__groups=IDS)[-1].privacy_.fit.rows_per_person == 2


@check
def check_groups_and_rows_of_a_person_belong_together() -> None:
    """One without the other is refused, before anything is spent, and so are ids that are none."""
    ledger = pv.Ledger(pv.Budget(9.0, 1e-3))
    for name in DECLARED:
        alone, several = made(name, ledger=ledger), made(name, options=KEPT, ledger=ledger)
        assert "groups= says whose row" in str(
            must_raise(BadInput, lambda own=alone: _fit(own, IDS))
        )
        assert "fit(X, y, groups=ids)" in str(
            must_raise(BadInput, lambda own=several: _fit(own, None))
        )
        for ids in (IDS[:5], IDS.astype(float), np.array([None] * 120), IDS[:, None]):
            must_raise(BadInput, lambda own=several, ids=ids: _fit(own, ids))
        searched = estimators.DPSearchCV(several, epsilon=5.0, delta=1e-3)
        said = str(must_raise(BadInput, partial(searched.fit, X, targets(name))))
        assert "a search takes no groups" in said
    assert not ledger.event.events
    grouped = made("DPClassifier", options={"group_size": 3})
    search = estimators.DPSearchCV(grouped, epsilon=5.0, delta=1e-3).fit(X, Y)
    assert search.privacy_.total.group_size == search.result_.plan.unit.group_size == 3


def _fit(estimator: Any, ids: Any) -> None:
    estimator.fit(X, targets(type(estimator).__name__), groups=ids)
