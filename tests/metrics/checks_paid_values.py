"""Named checks of paid test metrics of numbers, and of training and metrics at one target
together.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting.events import compose, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.sampling import FullBatch
from privlearn.errors import AdjacencyMismatch, BadInput, BudgetExceeded
from privlearn.methods.boosting import plan_for
from privlearn.methods.statistics import FisherPlan, MetricsPlan, ValueMetricsPlan
from privlearn.methods.statistics.sums import PredictedValues, error_sums
from privlearn.methods.tuning import Candidate, RandomStopping
from tests.support.checks import check, must_raise

RNG = np.random.default_rng(0)
X = RNG.random((80, 3)).astype(np.float32)
LOW, HIGH = -1.0, 3.0
VALUES = pv.Dataset(
    X[:60],
    X[:60].sum(1),
    low=0.0,
    high=1.0,
    target_bounds=(LOW, HIGH),
    x_test=X[60:],
    y_test=X[60:].sum(1),
)
TARGET: Any = {"epsilon": 1.0, "delta": 1e-5}


class First(nn.Module):
    """Predicts the first number of a row, times 100."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] * 100


def sums(rows: Tensor, y: Tensor, adjacency: Adjacency, most_error: float) -> tuple[Tensor, float]:
    """What is added up over the rows, and its sensitivity."""
    (sample,) = FullBatch().draw(len(y))
    answers = PredictedValues(First())(rows, y)
    made = error_sums(answers, y, sample, adjacency, bounds=(LOW, HIGH), most_error=most_error)
    return torch.cat([part.flatten() for part in made.values]), made.sensitivity


@check
def check_a_test_row_moves_paid_metrics_of_numbers_by_the_sensitivity_at_most() -> None:
    """Rows and targets far out and of no finite numbers, too; the worst pair comes close to the
    bound.
    """
    base, targets = torch.tensor([[0.01, 0.0], [0.02, 0.0]]), torch.tensor([0.5, 2.0])
    kinds = [
        (row, y)
        for row in (-1e30, -0.01, 0.01, 0.03, 1e30)
        for y in (-1e30, -1.0, 0.0, 1.0, 3.0, 1e30)
    ]
    kinds += [(math.nan, 0.0), (0.01, math.nan), (0.01, math.inf)]  # these are wrong, or absent
    for most_error in (0.25, 1.0):
        for own in Adjacency:
            bound = sums(base, targets, own, most_error)[1]
            each = [
                sums(
                    torch.cat([base, torch.tensor([[row, 0.0]])]),
                    torch.cat([targets, torch.tensor([y])]),
                    own,
                    most_error,
                )[0]
                for row, y in kinds
            ]
            assert all(bool(one.isfinite().all()) for one in each)
            others = (
                each if own is Adjacency.REPLACE_ONE else [sums(base, targets, own, most_error)[0]]
            )
            # the empty row may be one of no finite numbers
            others += each[-3:] if own is Adjacency.ZERO_OUT else []
            worst = max(float((one - other).norm()) for one in each for other in others)
            assert 0.9 * bound <= worst <= bound * (1 + 1e-9), (own, most_error, worst, bound)


@check
def check_paid_metrics_of_numbers_have_the_noise_of_their_plan() -> None:
    """Charged exactly the plan; on rows that are predicted exactly the errors are noise of the
    stated size alone.
    """
    plan = ValueMetricsPlan(LOW, HIGH).calibrate(**TARGET)
    ledger = pv.Ledger(pv.Budget(1.2, 1e-5))
    metrics = pv.evaluate(First(), torch.from_numpy(X), X.sum(1), paid=plan, ledger=ledger)
    assert tally(ledger.event) == {Gaussian(plan.noise): 1}
    assert metrics.plan == plan
    assert metrics.confusion_matrix is None
    streams = pv.Streams.new(0)
    again = lambda: pv.evaluate(  # noqa: E731
        First(), torch.from_numpy(X), X.sum(1), paid=plan, ledger=ledger, streams=streams
    )
    must_raise(BudgetExceeded, again)
    assert streams.noise.position == 0

    zeros = torch.zeros(2)
    plan = ValueMetricsPlan(LOW, HIGH, noise_multiplier=0.05)
    streams = pv.Streams.new(1)
    drawn = [
        pv.evaluate(First(), torch.zeros(2, 3), zeros, paid=plan, streams=streams)["mae"]
        for _ in range(200)
    ]
    noise = 0.05 * 2 / 2 * plan.most_error * (HIGH - LOW)
    size = math.sqrt(2 * np.mean(np.square(drawn))) / noise  # the half below 0 is put to 0
    assert 0.8 < size < 1.2, size


@check
def check_nothing_exact_is_said_beside_paid_metrics_of_numbers() -> None:
    """All figures move with the noise; for add/remove neighbours the number of rows, too."""

    def said(seed: int, adjacency: str) -> Any:
        plan = ValueMetricsPlan(LOW, HIGH, Adjacency.parse(adjacency), noise_multiplier=1.0)
        return pv.evaluate(
            First(), torch.from_numpy(X), X.sum(1), paid=plan, streams=pv.Streams.new(seed)
        )

    first, second = said(0, "zero_out"), said(1, "zero_out")
    assert first.rows == second.rows == 80  # public
    assert all(first[name] != second[name] for name in ("rmse", "mae"))
    assert len({said(seed, "add_remove").rows for seed in range(6)}) > 2


@check
def check_training_and_metrics_meet_one_target_together() -> None:
    """Of every method that has a plan: what both cost is the target; others, and other neighbours,
    are refused.
    """
    data = pv.Dataset(X, (X[:, 0] > 0.5).astype(int), classes=2, low=0.0, high=1.0)
    step = pv.Plan(pv.Poisson(0.1), epochs=2)
    plans: tuple[Any, ...] = (
        step,
        FisherPlan(2, 3, 3, row_norm=1.0, adjacency=Adjacency.ZERO_OUT),
        plan_for(data, adjacency=Adjacency.ZERO_OUT),
        RandomStopping((Candidate("a", step), Candidate("b", step)), mean=2.0),
    )
    paid = MetricsPlan(2).taking(0.2, pv.Budget(**TARGET))
    for plan in plans:
        own = plan.calibrate(**TARGET).with_room_for(paid)
        cost = own.budget.spent(compose([own.event(), paid.event()]), Adjacency.ZERO_OUT)
        assert 0.995 < cost <= 1.0, (plan.kind, cost)
        assert own.guarantee(1e-5).epsilon < 0.99, plan.kind
        ledger = pv.Ledger(own.budget)
        ledger.approve(own, paid)
    must_raise(BadInput, lambda: step.with_room_for(paid))
    settled = step.calibrate(**TARGET)
    must_raise(BadInput, lambda: settled.with_room_for(MetricsPlan(2, noise_multiplier=1.0)))
    must_raise(
        BadInput, lambda: settled.with_room_for(MetricsPlan(2, noise_multiplier=9.0, group_size=2))
    )
    replaced = MetricsPlan(2, Adjacency.REPLACE_ONE, noise_multiplier=9.0)
    said = str(must_raise(AdjacencyMismatch, lambda: settled.with_room_for(replaced)))
    assert "replace_one neighbours were given, and zero_out expected" in said
    assert "Give adjacency='zero_out'" in said
    assert len(said) <= 300


@check
def check_train_leaves_room_for_what_is_released_beside_it() -> None:
    """Both are approved before the first release, and charged to one ledger, which then has room
    for no more.
    """
    paid = ValueMetricsPlan(LOW, HIGH).taking(0.2, pv.Budget(**TARGET))
    result = pv.train(VALUES, **TARGET, epochs=1, beside=paid)
    assert result.ledger.guarantee(1e-5).epsilon <= 1.0
    metrics = pv.evaluate(result, VALUES, paid=paid, ledger=result.ledger)
    assert tally(result.ledger.event)[Gaussian(paid.noise)] == 1
    assert not result.ledger.adaptive
    assert 0.99 < result.ledger.guarantee(1e-5).epsilon <= 1.0
    must_raise(BudgetExceeded, lambda: pv.evaluate(result, VALUES, paid=paid, ledger=result.ledger))
    with tempfile.TemporaryDirectory() as folder:
        found = pv.verify(pv.publish(result, Path(folder) / "a", test_metrics=metrics))
    assert found.ok, found.problems
    assert found.epsilon is not None
    assert 0.99 < found.epsilon <= 1.0


@check
def check_the_command_line_trains_and_tests_at_one_epsilon() -> None:
    """With --metrics-share the certificate's epsilon is --epsilon, for training and figures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        x_test = X[60:]
        np.savez(
            Path(folder) / "a.npz", x=X[:60], y=X[:60].sum(1), x_test=x_test, y_test=x_test.sum(1)
        )
        given = ["train", "--data", f"{folder}/a.npz", "--range", "0,1", "--task", "regression"]
        given += [
            "--target-bounds",
            "-1,3",
            "--method",
            "boosting",
            "--epsilon",
            "1",
            "--metrics-share",
            "0.2",
        ]
        assert main([*given, "--out", f"{folder}/model", "--json"]) == 0
        said, found = json.loads(printed.getvalue()), pv.verify(Path(folder) / "model")
        assert found.ok, found.problems
        assert found.epsilon is not None
        assert 0.99 < found.epsilon <= 1.0
        assert said["epsilon"] < 0.95
        assert said["test_metrics"].keys() >= {"rmse", "mae"}
