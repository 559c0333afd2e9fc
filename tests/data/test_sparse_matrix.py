"""Sparse matrices train linear models and boosting as dense rows do, or are refused by size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.methods.boosting import boost, plan_for
from privlearn.sklearn import (
    DPBoostingClassifier,
    DPLogisticRegression,
    DPRegressor,
    DPRidge,
)
from privlearn.training import rules

RNG = np.random.default_rng(0)
FILLED = np.where(RNG.uniform(size=(80, 30)) < 0.1, RNG.uniform(-1, 1, (80, 30)), 0.0)
SPARSE = scipy.sparse.csr_matrix(FILLED)
DENSE = SPARSE.toarray()
LABELS = (DENSE.sum(1) > 0).astype(np.int64)
ONE_HOT = scipy.sparse.csr_array(np.eye(6)[RNG.integers(0, 6, (80, 2))].reshape(80, 12))
NAMES = [f"{column}={value}" for column in ("city", "colour") for value in range(6)]
FORMS: dict[str, Callable[[], Any]] = {
    "csr": lambda: SPARSE,
    "csc": SPARSE.tocsc,
    "coo array": lambda: scipy.sparse.coo_array(SPARSE),
    "a tensor": lambda: torch.tensor(DENSE).to_sparse(),
}


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def train(x: Any, **choices: Any) -> torch.Tensor:
    data = pv.Dataset(x, LABELS, classes=2, low=-1.0, high=1.0)
    settings = {"epsilon": 4.0, "delta": 1e-3, **choices}
    return weights(pv.train(data, streams=pv.Streams.new(1), **settings).model)


def test_class_statistics_of_sparse_rows_are_those_of_dense_ones() -> None:
    assert torch.equal(train(SPARSE, method="features"), train(DENSE, method="features"))


@pytest.mark.parametrize("form", FORMS)
def test_sparse_rows_give_the_weights_of_dense_ones(form: str) -> None:
    assert torch.equal(train(FORMS[form](), epochs=2), train(DENSE, epochs=2))


def test_sparse_rows_of_persons_give_the_weights_of_dense_ones() -> None:
    def of_persons(x: Any) -> torch.Tensor:
        groups = np.arange(80) // 2
        data = pv.Dataset(x, LABELS, classes=2, low=-1.0, high=1.0, groups=groups)
        settings = {"epsilon": 4.0, "delta": 1e-3, "epochs": 2, "rows_per_person": 2}
        return weights(pv.train(data, streams=pv.Streams.new(1), **settings).model)

    assert torch.equal(of_persons(SPARSE), of_persons(DENSE))


def test_a_pair_with_sparse_rows_gives_the_weights_of_a_dense_one() -> None:
    plan = pv.Plan(pv.Poisson(0.2), epochs=2, clip=pv.Flat(1.0)).calibrate(epsilon=4.0, delta=1e-3)
    loss = nn.CrossEntropyLoss(reduction="none")

    def descend(x: Any) -> torch.Tensor:
        model = nn.Linear(30, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return weights(pv.dpsgd(plan, model, loss, (x, LABELS), streams=pv.Streams.new(1)).model)

    assert torch.equal(descend(SPARSE), descend(DENSE.astype(np.float32)))
    with pytest.raises(BadInput, match="fails on rows"):
        pv.dpsgd(plan, nn.Linear(30, 2), loss, (SPARSE, LABELS + 5))


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "with bounds": lambda: DPLogisticRegression(
        4.0, 1e-3, classes=[0, 1], bounds=(-1, 1), random_state=1
    ),
    "squashed": lambda: DPLogisticRegression(4.0, 1e-3, classes=[0, 1], random_state=1),
    "a regressor": lambda: DPRegressor(
        4.0, 1e-3, target_bounds=(0, 1), bounds=(-1, 1), random_state=1
    ),
    "boosting": lambda: DPBoostingClassifier(
        4.0, 1e-3, classes=[0, 1], bounds=(-1, 1), random_state=1
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_take_sparse_rows_as_dense_ones(name: str) -> None:
    one, other = ESTIMATORS[name]().fit(SPARSE, LABELS), ESTIMATORS[name]().fit(DENSE, LABELS)
    assert np.array_equal(one.predict(SPARSE.tocsc()), other.predict(DENSE))
    for inner, outer in zip(one.module_.buffers(), other.module_.buffers(), strict=True):
        assert torch.equal(inner, outer)
    for inner, outer in zip(one.module_.parameters(), other.module_.parameters(), strict=True):
        assert torch.equal(inner, outer)


def test_categories_of_sparse_rows_are_boosted_as_dense_ones() -> None:
    def learn(x: Any) -> torch.Tensor:
        declared = {"classes": 2, "low": 0.0, "high": 1.0, "feature_names": NAMES}
        data = pv.Dataset(x, LABELS, **declared)
        plan = plan_for(data).calibrate(epsilon=4.0, delta=1e-3)
        scores: torch.Tensor = boost(plan, data, streams=pv.Streams.new(1)).model[0].scores
        return scores

    assert torch.equal(learn(ONE_HOT), learn(ONE_HOT.toarray()))


def wide() -> tuple[Any, Any]:
    rows = np.arange(10_000)
    cells = (np.ones(10_000, np.float32), (rows, rows * 7 % 100_000))
    return scipy.sparse.csr_array(cells, shape=(10_000, 100_000)), rows % 2


def test_what_would_make_rows_dense_is_refused_with_the_size() -> None:
    data = pv.Dataset(*wide(), classes=2, low=0.0, high=1.0)
    with pytest.raises(BadInput, match=r"10,000 rows x 100,000 columns would take 3\.7 GiB") as no:
        pv.train(data, method="dpmac", epsilon=1.0, delta=1e-5)
    assert len(str(no.value)) <= 300


def test_estimators_that_take_no_sparse_rows_say_the_size() -> None:
    with pytest.raises(BadInput, match=r"DPRidge .* would take 3\.7 GiB dense"):
        DPRidge(1.0, 1e-5, target_bounds=(0, 1), bounds=(0, 1)).fit(*wide())


def test_bins_of_many_columns_are_refused_with_the_size() -> None:
    x, y = wide()
    data = pv.Dataset(x[:, :20_000], y, classes=2, low=0.0, high=1.0)
    plan = plan_for(data, passes=1).calibrate(epsilon=1.0, delta=1e-5)
    with pytest.raises(BadInput, match=r"20,000 columns would take 1\.5 GiB dense"):
        boost(plan, data)


def test_sparse_test_rows_that_are_training_rows_are_refused() -> None:
    for copies in (SPARSE, DENSE, DENSE.astype(np.float32)):
        data = pv.Dataset(SPARSE, LABELS, copies, LABELS, classes=2, low=-1.0, high=1.0)
        with pytest.raises(BadInput, match="are the training data"):
            pv.train(data, epsilon=1.0, delta=1e-3)


def test_damaged_and_infinite_sparse_rows_are_refused() -> None:
    damaged = SPARSE.copy()
    damaged.indices[0] = 99
    with pytest.raises(BadInput, match="damaged"):
        pv.Dataset(damaged, LABELS)
    infinite = SPARSE.copy()
    infinite.data[-1] = np.inf
    with pytest.raises(BadInput, match=r"not finite.* in row 79"):
        pv.Dataset(infinite, LABELS, classes=2).checked()
    with pytest.raises(BadInput, match="one target for each row"):
        pv.Dataset(SPARSE, SPARSE, classes=2)


def test_the_usual_plan_of_sparse_rows_computes_on_no_dense_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moments, which are usual for many wide rows, are computed on all rows at once."""
    monkeypatch.setattr(rules, "WORTH_MOMENTS", 1.0)
    wide = scipy.sparse.random(80, 2000, density=0.01, format="csr", random_state=0)
    fronts = []
    for x in (wide, wide.toarray()):
        data = pv.Dataset(x, LABELS, classes=2, low=0.0, high=1.0)
        result = pv.train(data, epsilon=4.0, delta=1e-3, epochs=1)
        fronts.append([type(part).__name__ for part in result.plan.front])
    assert fronts == [["RowNorm"], ["RowNorm", "Moments"]]
