"""Named checks that figures are of rows: none that is not finite is counted as one of some class,
or of no error.
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn import metrics
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import BadInput
from privlearn.methods.statistics import MetricsPlan, ValueMetricsPlan
from privlearn.models.heads import BOUNDS, CLASSES, HEADS, LABELS, RANGES
from tests.sklearn.checks_fits import DECLARED, fitted, targets
from tests.support.checks import check, must_raise

RNG = np.random.default_rng(0)
X = RNG.random((40, 3)).astype(np.float32)
NOT_FINITE = (math.nan, math.inf, -math.inf)
#: What is declared of the targets of a task, and targets.
TARGETS: dict[str, tuple[dict[str, Any], Any]] = {
    CLASSES: ({"classes": 2}, (X[:, 0] > 0.5).astype(np.int64)),
    BOUNDS: ({"target_bounds": (0.0, 4.0)}, np.round(4 * X[:, 0])),
    RANGES: ({"target_ranges": {"a": (0.0, 1.0), "b": (0.0, 1.0)}}, X[:, :2]),
    LABELS: ({"labels": ("a", "b")}, (X[:, :2] > 0.5).astype(np.int64)),
}


def spoilt(values: Any, value: float, row: int = 3) -> Any:
    """A copy with a number that is not finite in a row."""
    made = np.array(
        np.asarray(values), dtype=np.float64 if np.asarray(values).dtype.kind == "i" else None
    )
    made[row] = value
    return made


@check
def check_exact_figures_of_every_task_refuse_rows_that_are_not_finite() -> None:
    """Whatever of a row is not finite, its input, its target or its prediction, it is refused, and
    never counted.
    """
    for task, head in HEADS.items():
        declared, y = TARGETS[head.declared]
        data = pv.Dataset(X, y, low=0.0, high=1.0, **declared)
        result = pv.train(data, epsilon=8.0, epochs=1, task=task, features="raw")
        assert pv.evaluate(result, X, y).rows == len(X), task
        broken = copy.deepcopy(result.model)
        with torch.no_grad():
            for parameter in broken.parameters():
                parameter.fill_(math.nan)
        said = must_raise(BadInput, lambda: pv.evaluate(replace(result, model=broken), X, y))  # noqa: B023
        assert "40 of 40 rows have a prediction" in str(said), (task, said)
        for value in NOT_FINITE:
            said = must_raise(BadInput, lambda: pv.evaluate(result, spoilt(X, value), y))  # noqa: B023
            assert "1 of 40 rows have an input" in str(said), (task, said)
            must_raise(BadInput, lambda: pv.evaluate(result, X, spoilt(y, value)))  # noqa: B023


@check
def check_everything_that_makes_figures_looks_at_its_rows_first() -> None:
    """All that is in the registry refuses; and nothing that is not in it makes exact figures."""
    scores, classes = torch.from_numpy(RNG.random((6, 2))), torch.tensor([0, 1, 0, 1, 0, 1])
    assert len(metrics.FIGURES) >= len({head.declared for head in HEADS.values()})
    for name, make in metrics.FIGURES.items():
        for value in NOT_FINITE:
            for predicted, y, what in (
                (torch.as_tensor(spoilt(scores, value)), classes, "a prediction"),
                (scores, torch.as_tensor(spoilt(classes, value)), "a target"),
            ):
                for kind in (torch.as_tensor, np.asarray):
                    said = must_raise(BadInput, lambda: make(kind(predicted), kind(y)))  # type: ignore[operator]  # noqa: B023
                    assert f"1 of 6 rows have {what}" in str(said), (name, said)
    tree = ast.parse(inspect.getsource(metrics))
    for function in tree.body:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        made = [
            call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Metrics"
        ]
        if made and isinstance(function, ast.FunctionDef):
            assert function.name in {*metrics.FIGURES, "_release"}, function.name


@check
def check_nan_is_a_missing_value_where_a_model_says_so() -> None:
    """Of a boosted model rows that lack some numbers are judged, and rows that lack all of them are
    refused.
    """
    data = pv.Dataset(X, (X[:, 0] > 0.5).astype(np.int64), classes=2, low=0.0, high=1.0)
    plan = pv.boosting.plan_for(data).calibrate(epsilon=8.0, delta=1e-5)
    model = pv.boosting.boost(plan, data)
    some = X.copy()
    some[3, 1] = math.nan
    assert pv.evaluate(model, some, data.y).rows == 40
    some[3] = math.nan
    must_raise(BadInput, lambda: pv.evaluate(model, some, data.y))
    said = must_raise(BadInput, lambda: pv.evaluate(nn.Sequential(nn.Linear(3, 2)), some, data.y))
    assert "1 of 40 rows have an input" in str(said)


class Scores(nn.Module):
    """The class is whether the first number is above a half, and the value is that number."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, :1]
        return first if self.outputs == 1 else torch.cat([0 * first, 1e3 * (first - 0.5)], 1)


@check
def check_paid_figures_count_rows_that_are_not_finite_as_wrong_or_absent() -> None:
    """Nothing is raised of them. They are wrong where the number of rows is public, and absent
    where it is not.
    """
    half = X.copy()
    half[::2] = math.nan
    classes, values = (X[:, 0] > 0.5).astype(np.int64), 0.5 + 0.4 * (X[:, 0] > 0.5)
    near = np.where(X[:, :1] > 0.5, 0.9, 0.5).astype(np.float32) * np.ones((1, 3), np.float32)
    near[::2] = math.nan
    for adjacency, share in (("zero_out", 0.5), ("replace_one", 0.5), ("add_remove", 1.0)):
        kind = Adjacency.parse(adjacency)
        plan = MetricsPlan(2, kind, noise_multiplier=1e-5, most_loss=2.0)
        made = pv.evaluate(Scores(2), half, classes, paid=plan, streams=pv.Streams.new(0))
        assert made.rows == (20 if share == 1 else 40), adjacency
        assert math.isclose(made["accuracy"], share, abs_tol=1e-2), (adjacency, made)
        assert math.isclose(made["log_loss"], 2.0 * (1 - share), abs_tol=1e-2), (adjacency, made)
        of_values = ValueMetricsPlan(0.0, 1.0, kind, noise_multiplier=1e-5, most_error=0.5)
        got = pv.evaluate(Scores(1), near, values, paid=of_values, streams=pv.Streams.new(0))
        assert math.isclose(got["mae"], 0.5 * (1 - share), abs_tol=1e-2), (adjacency, got)
        spoilt_targets = spoilt(values, math.inf)
        got = pv.evaluate(
            Scores(1),
            np.float32(values)[:, None],
            spoilt_targets,
            paid=of_values,
            streams=pv.Streams.new(0),
        )
        assert math.isclose(got["mae"], 0.0 if share == 1 else 0.5 / 40, abs_tol=1e-3), (
            adjacency,
            got,
        )


@check
def check_candidates_are_not_better_by_rows_that_are_not_finite() -> None:
    """In a private choice a row without an answer counts the largest loss, by every metric."""
    from privlearn.methods.tuning.stopping import OF_CLASSES, OF_VALUES
    from privlearn.methods.tuning.sums import _losses

    half = X.copy()
    half[::2] = math.nan
    for metric in (*OF_CLASSES, *OF_VALUES):
        numbers = metric in OF_VALUES
        bounds: Any = {"target_bounds": (0.0, 1.0)} if numbers else {"classes": 2}
        y = X[:, 0] if numbers else (X[:, 0] > 0.5).astype(np.int64)
        losses = _losses(Scores(1 if numbers else 2), pv.Dataset(half, y, **bounds), metric)
        assert bool((losses[::2] == 1).all()), metric
        assert bool((losses[1::2] < 1).all()), metric


@check
def check_estimators_score_no_row_that_is_not_finite() -> None:
    """Every estimator that predicts refuses such inputs and targets, and outputs that are not
    finite.
    """
    for name, make in DECLARED.items():
        if not hasattr(make(), "score"):
            continue
        made = fitted(name)
        x = RNG.uniform(-1, 1, (20, 3))
        y = np.asarray(targets(made))[:20].astype(float)
        for value in NOT_FINITE:
            must_raise(ValueError, lambda: made.score(spoilt(x, value), y))  # noqa: B023
            with np.errstate(invalid="ignore"):
                must_raise(ValueError, lambda: made.score(x, spoilt(y, value)))  # noqa: B023
        if hasattr(made, "module_"):
            for parameter in (*made.module_.parameters(), *made.module_.buffers()):
                if parameter.is_floating_point():
                    parameter.detach().fill_(math.nan)
            said = must_raise(BadInput, lambda: made.score(x, y))  # noqa: B023
            assert "not finite" in str(said), name
