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
from privlearn.runs.result import Result
from tests.support.checks import check

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(650, 2)).astype(np.float32)
Y = 40 + 20 * X[:, 0] - 6 * X[:, 1]
BOUNDS = (30.0, 70.0)
DATA = pv.Dataset(
    X[:600], Y[:600], x_test=X[600:], y_test=Y[600:], low=0.0, high=1.0, target_bounds=BOUNDS
)


def trained(data: pv.Dataset = DATA, **choices: Any) -> Result:
    return pv.train(
        data, **{"epsilon": 20.0, "epochs": 20, "streams": pv.Streams.new(0), **choices}
    )


@check
def check_regression_predicts_in_the_units_of_the_target() -> None:
    """The trained model, the published one, and its metrics; predictions lie within the declared
    bounds.
    """
    for model in ("linear", "mlp:8"):
        result = trained(model=model)
        metrics = pv.evaluate(result, DATA)
        assert metrics["r2"] > 0.5, metrics
        with tempfile.TemporaryDirectory() as folder:
            out = pv.publish(result, Path(folder) / "model", test_metrics=metrics)
            assert pv.verify(out).ok
            published = pv.load_model(out)
            card = (out / "README.md").read_text("utf-8")
        predicted = published.predict(X[600:])
        assert torch.allclose(
            predicted, result.model(torch.from_numpy(X[600:]))[:, 0].clamp(*BOUNDS)
        )
        assert published.values(torch.tensor([[-1e4], [1e4]])).tolist() == list(BOUNDS)
        assert f"| rmse | {metrics['rmse']:.4f} on 50 rows |" in card
        assert "within its declared bounds" in card


@check
def check_targets_beyond_their_bounds_count_as_these() -> None:
    """The model is the same, bit for bit, whether a target is at its bound or far beyond."""
    y = DATA.y.copy()
    y[:3], y[3:6] = BOUNDS
    beyond = y.copy()
    beyond[:3], beyond[3:6] = -1e6, 1e9
    models = [trained(replace(DATA, y=targets)).model.state_dict() for targets in (y, beyond)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@check
def check_regression_pays_for_its_plan_alone() -> None:
    """No temperature is released, and the ledger holds the plan, which has the target's epsilon."""
    result = trained(epsilon=2.0, delta=1e-5)
    assert result.plan.temperature is None  # type: ignore[attr-defined]
    assert tally(result.ledger.event) == tally(result.plan.event())
    assert 1.98 < result.ledger.guarantee(1e-5).epsilon <= 2.0


@check
def check_bounds_of_predictions_are_the_declared_ones() -> None:
    """What is published of the targets is what was declared, whatever the rows hold."""
    with tempfile.TemporaryDirectory() as folder:
        for number, factor in enumerate((1.0, 0.5)):
            out = pv.publish(trained(replace(DATA, y=DATA.y * factor)), Path(folder) / str(number))
            assert json.loads((out / "config.json").read_text())["target_bounds"] == list(BOUNDS)
