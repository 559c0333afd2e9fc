"""Named checks of regression of targets with declared bounds; planted bugs must make them fail."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import privlearn as pv
from privlearn.core.accounting.events import tally
from privlearn.methods import METHODS
from privlearn.runs.result import Result
from tests.support.checks import check

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(650, 2)).astype(np.float32)
Y = 40 + 20 * X[:, 0] - 6 * X[:, 1]
BOUNDS = (30.0, 70.0)
DATA = pv.Dataset(
    X[:600], Y[:600], x_test=X[600:], y_test=Y[600:], low=0.0, high=1.0, target_bounds=BOUNDS
)


POOL = pv.Dataset(RNG.uniform(size=(150, 2)).astype(np.float32), low=0.0, high=1.0, public=True)
#: The methods that learn numbers, with what they are given beside the target.
LEARNERS: dict[str, dict[str, Any]] = {
    name: {"public": POOL, "teachers": 40, "queries": 100}
    if "public" in row.takes
    else {"epochs": 40}
    if row.suits("epochs")
    else {}
    for name, row in METHODS.items()
    if "values" in row.targets
}


def trained(data: pv.Dataset = DATA, method: str = "dpsgd", **choices: Any) -> Result:
    shared = {"epsilon": 20.0, "streams": pv.Streams.new(0), **LEARNERS[method]}
    return pv.train(data, method=method, **{**shared, **choices})


@check
def check_regression_predicts_in_the_units_of_the_target() -> None:
    """By every method that learns numbers: the trained model, the published one, and its metrics;
    predictions lie within the declared bounds.
    """
    for method in LEARNERS:
        networks = ("linear", "mlp:8") if METHODS[method].suits("model") else (None,)
        for network in networks:
            require_units(trained(method=method, **({} if network is None else {"model": network})))


def require_units(result: Result) -> None:
    """A result that is good at the task, published, and loaded again."""
    metrics = pv.evaluate(result, DATA)
    assert metrics["r2"] > 0.5, (result.method, result.model_spec, metrics)
    with tempfile.TemporaryDirectory() as folder:
        out = pv.publish(result, Path(folder) / "model", test_metrics=metrics)
        assert pv.verify(out).ok
        published = pv.load_model(out)
        card = (out / "README.md").read_text("utf-8")
    predicted = published.predict(X[600:])
    assert torch.allclose(predicted, result.model(torch.from_numpy(X[600:]))[:, 0].clamp(*BOUNDS))
    assert published.values(torch.tensor([[-1e4], [1e4]])).tolist() == list(BOUNDS)
    assert f"| rmse | {metrics['rmse']:.4f} on 50 rows |" in card
    assert "within its declared bounds" in card


@check
def check_targets_beyond_their_bounds_count_as_these() -> None:
    """The model is the same, bit for bit, whether a target is at its bound or far beyond; also
    where no clipping of gradients or derivatives would make them the same.
    """
    y = DATA.y.copy()
    y[:3], y[3:6] = BOUNDS
    beyond = y.copy()
    beyond[:3], beyond[3:6] = -1e6, 1e9
    for method in LEARNERS:
        loose = {"clip_norm": 100.0} if METHODS[method].suits("clip_norm") else {}
        one, other = (
            trained(replace(DATA, y=targets), method, **loose).model.state_dict()
            for targets in (y, beyond)
        )
        assert all(torch.equal(one[name], other[name]) for name in one), method


@check
def check_regression_pays_for_its_plan_alone() -> None:
    """No temperature is released, and the ledger holds the plan, which has the target's epsilon."""
    for method in LEARNERS:
        result = trained(method=method, epsilon=2.0, delta=1e-5)
        assert getattr(result.plan, "temperature", None) is None, method
        assert tally(result.ledger.event) == tally(result.plan.event()), method
        assert 1.98 < result.ledger.guarantee(1e-5).epsilon <= 2.0, method


@check
def check_bounds_of_predictions_are_the_declared_ones() -> None:
    """What is published of the targets is what was declared, whatever the rows hold."""
    with tempfile.TemporaryDirectory() as folder:
        for method in LEARNERS:
            for factor in (1.0, 0.5):
                result = trained(replace(DATA, y=DATA.y * factor), method)
                out = pv.publish(result, Path(folder) / f"{method} {factor}")
                published = json.loads((out / "config.json").read_text())
                assert published["target_bounds"] == list(BOUNDS), method
