"""Targets in the forms that people have them in are taken, or refused by their own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.methods.boosting import boost, plan_for
from privlearn.sklearn import DPLogisticRegression, DPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (60, 3)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int64)
Targets = Any
LOSS = nn.CrossEntropyLoss(reduction="none")
PLAN = pv.Plan(pv.Poisson(0.2), epochs=1, clip=pv.Flat(1.0)).calibrate(epsilon=4.0, delta=1e-3)

#: What means the same as the labels, where classes are declared.
ALIKE: dict[str, Targets] = {
    "a list": LABELS.tolist(),
    "a column": LABELS[:, None],
    "a list of lists": [[int(label)] for label in LABELS],
    "with a point": LABELS.astype(np.float64),
    "a column with a point": torch.tensor(LABELS).float()[:, None],
    "booleans": LABELS.astype(bool),
    "objects": LABELS.astype(object),
    "small tensors": torch.tensor(LABELS).to(torch.int8),
}

#: What is refused by every door that learns classes, and a word of the refusal.
REFUSED: dict[str, tuple[Targets, str]] = {
    "one-hot": (np.eye(2, dtype=np.float32)[LABELS], "argmax"),
    "ragged": ([[0]] * 59 + [[0, 1]], "different lengths"),
    "one value": (np.int64(1), "single value"),
}
#: What those refuse that take whole numbers alone.
NO_NUMBERS: dict[str, tuple[Targets, str]] = {
    "halves": (LABELS + 0.5, "not whole"),
    "a gap": (np.where(np.arange(60) == 3, np.nan, LABELS), "missing or not whole"),
    "texts": (np.where(LABELS, "yes", "no"), "texts"),
    "None": ([None, *LABELS[1:].tolist()], "None"),
    "too few": (LABELS[:-1], "59"),
    "none": (None, "missing"),
}


def train(y: Targets) -> list[np.ndarray[Any, Any]]:
    data = pv.Dataset(X, y, classes=2, low=-1.0, high=1.0)
    streams = pv.Streams.new(1)
    result = pv.train(data, epsilon=4.0, delta=1e-3, epochs=1, streams=streams)
    return [parameter.detach().numpy() for parameter in result.model.parameters()]


def boost_rows(y: Targets) -> list[np.ndarray[Any, Any]]:
    data = pv.Dataset(X, y, classes=2, low=-1.0, high=1.0)
    plan = plan_for(data, passes=1).calibrate(epsilon=4.0, delta=1e-3)
    return [boost(plan, data, streams=pv.Streams.new(1)).model[0].scores.numpy()]


def estimate(y: Targets) -> list[np.ndarray[Any, Any]]:
    model = DPLogisticRegression(4.0, 1e-3, classes=[0, 1], bounds=(-1, 1), random_state=1)
    return [model.fit(X, y).coef_]


@pytest.mark.parametrize("door", [train, boost_rows, estimate])
def test_labels_in_other_forms_give_the_same_model(door: Callable[[Targets], list[Any]]) -> None:
    expected = door(LABELS)
    for name, targets in ALIKE.items():
        for one, other in zip(door(targets), expected, strict=True):
            assert np.array_equal(one, other), name


@pytest.mark.parametrize("door", [train, boost_rows, estimate])
@pytest.mark.parametrize("name", REFUSED)
def test_other_targets_are_refused_by_name(door: Callable[[Targets], Any], name: str) -> None:
    targets, words = REFUSED[name]
    with pytest.raises(BadInput, match=words) as refusal:
        door(targets)
    assert len(str(refusal.value)) <= 300


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_targets_that_are_no_labels_are_refused_by_name(name: str) -> None:
    targets, words = NO_NUMBERS[name]
    for method in ("dpsgd", "boosting"):
        data = pv.Dataset(X, targets, classes=2, low=-1.0, high=1.0)
        with pytest.raises(BadInput, match=words) as refusal:
            pv.train(data, epsilon=4.0, delta=1e-3, method=method)
        assert len(str(refusal.value)) <= 300


def test_numbers_as_targets_are_squeezed_and_never_quoted() -> None:
    values = X[:, :1].astype(np.float64)

    def slopes(y: Targets) -> Any:
        data = pv.Dataset(X, y, target_bounds=(-1, 1), low=-1.0, high=1.0)
        result = pv.train(data, epsilon=4.0, delta=1e-3, epochs=1, streams=pv.Streams.new(1))
        return [parameter.detach().numpy() for parameter in result.model.parameters()]

    for one, other in zip(slopes(values), slopes(values[:, 0]), strict=True):
        assert np.array_equal(one, other)
    secret = np.array(["hivpositive"] * 60, dtype=object)
    with pytest.raises(BadInput, match="texts") as refusal:
        slopes(secret)
    assert "hivpositive" not in str(refusal.value)
    with pytest.raises(BadInput, match="texts") as refusal:
        DPRegressor(4.0, 1e-3, target_bounds=(-1, 1), bounds=(-1, 1)).fit(X, secret)
    assert "hivpositive" not in str(refusal.value)
    with pytest.raises(BadInput, match=r"shape \(60, 2\)"):
        slopes(X[:, :2])


#: For a loss of the caller's own: targets, and the advice; with it followed they are taken.
ADVISED: dict[str, tuple[Targets, str, Callable[[Any], Any]]] = {
    "a column": (torch.tensor(LABELS)[:, None], "reshape", lambda y: y.reshape(-1)),
    "one-hot": (torch.eye(2).long()[torch.tensor(LABELS)], "argmax", lambda y: y.argmax(1)),
    "with a point": (torch.tensor(LABELS).float(), "long", lambda y: y.long()),
    "small": (torch.tensor(LABELS).to(torch.int8), "long", lambda y: y.long()),
}


def call_dpsgd(y: torch.Tensor) -> None:
    pv.dpsgd(PLAN, nn.Linear(3, 2), LOSS, (X, y), streams=pv.Streams.new(1))


def make_loop(y: torch.Tensor) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.from_numpy(X), y), batch_size=12)
    settings = {"epochs": 1, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    private = pv.make_private(model, optimizer, loader, **settings)
    for batch in private.batches():
        private.step(batch, lambda model, rows: LOSS(model(rows[0]), rows[1]))


@pytest.mark.parametrize("door", [call_dpsgd, make_loop])
@pytest.mark.parametrize("name", ADVISED)
def test_advice_on_targets_that_a_loss_fails_on_works(
    door: Callable[[torch.Tensor], None], name: str
) -> None:
    targets, words, follow = ADVISED[name]
    with pytest.raises(BadInput, match=words) as refusal:
        door(targets)
    assert len(str(refusal.value)) <= 300
    door(follow(targets))
