"""Named checks of what candidates are judged by, and of the rules that they are settled by."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.cli import tune as options
from privlearn.cli.request import parse
from privlearn.core import sampling
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.data import Dataset
from privlearn.errors import BadInput
from privlearn.methods.tuning import Blocks, Candidate, RandomStopping, sums
from privlearn.training.train import facts_of
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy

ADD, EMPTY, REPLACE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
STEP = pv.Plan(pv.Poisson(0.4), epochs=2, examples=200)
RNG = np.random.default_rng(0)


class Scaled(nn.Module):
    """Outputs of which the differences grow with the first number of a row."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        return (
            x[:, :1] * torch.arange(self.outputs, dtype=x.dtype)[None]
            if self.outputs > 1
            else x[:, :1]
        )


def judged(
    metric: str, x: list[float], y: list[float], adjacency: Adjacency
) -> tuple[float, float, float, float]:
    """Loss and gain of a model over rows, each with its sensitivity."""
    values = metric in ("rmse", "mae")
    rows = torch.tensor(x, dtype=torch.float32)[:, None]
    targets = np.array(y) if values else np.array(y).astype(np.int64)
    data = Dataset(rows, targets, target_bounds=(-2.0, 2.0) if values else None)
    model = Scaled(1 if values else 3)
    (sample,) = sampling.FullBatch().draw(len(rows))
    lost = sums.total_losses([model], data, adjacency, metric)
    gain = sums.total_gain(model, data, sample, adjacency, metric)
    assert lost.one_way is (adjacency is not REPLACE)
    return float(lost.values[0]), lost.sensitivity, float(gain.values[0]), gain.sensitivity


@check
def check_an_example_moves_a_candidates_score_by_at_most_one() -> None:
    """By every metric: rows and targets far out and of no finite numbers, too; the worst comes
    close to the bound.
    """
    base_x, base_y = [0.1, -0.2, 0.3], [0.0, 1.0, 1.0]
    for metric in ("accuracy", "log_loss", "rmse", "mae"):
        kinds = [(row, y) for row in (-1e30, -500.0, 0.1, 3.0, 1e30) for y in (0.0, 1.0, 2.0)] + [
            (math.nan, 0.0)
        ]
        kinds += (
            [(0.1, math.nan), (0.1, 1e30)]
            if metric in ("rmse", "mae")
            else [(0.1, 7.0), (0.1, -1.0)]
        )
        for adjacency in (ADD, REPLACE):
            each = [judged(metric, [*base_x, row], [*base_y, y], adjacency) for row, y in kinds]
            without = each if adjacency is REPLACE else [judged(metric, base_x, base_y, adjacency)]
            for score, bound in ((0, 1), (2, 3)):
                moved = [one[score] - other[score] for one in each for other in without]
                assert 0.95 * each[0][bound] <= max(moved) <= each[0][bound] * (1 + 1e-9), (
                    metric,
                    score,
                )
                assert adjacency is REPLACE or min(moved) >= 0, (metric, score)


def trained(candidate: Candidate, rows: Dataset, ledger: Ledger, streams: Streams) -> Any:
    """A model of a row's sign, which is right in four of five rows: the candidate says how sure it
    is of that.
    """
    made = nn.Linear(1, 2)
    result = pv.dpsgd(candidate.plan, made, cross_entropy, rows, ledger=ledger, streams=streams)
    weight, bias = result.model.parameters()
    with torch.no_grad():
        weight.copy_(cast(Any, candidate.settings["sure"]) * torch.tensor([[-1.0], [1.0]]))
        bias.zero_()
    return result


@check
def check_candidates_are_judged_by_the_metric() -> None:
    """Of two with the same accuracy the log loss takes the one whose probabilities are true, by
    both ways.
    """
    x = np.tile([-1.0, 1.0], 75)[:, None].astype(np.float32)
    y = ((x[:, 0] > 0) ^ (np.arange(150) % 5 == 0)).astype(np.int64)
    data = Dataset(x, y, classes=2)
    step = pv.Plan(pv.Poisson(0.1), epochs=1, examples=150)
    each = tuple(Candidate(str(sure), step, settings={"sure": sure}) for sure in (50.0, 0.7))
    block = Blocks(each, selection_epsilon=50.0, metric="log_loss")
    free = RandomStopping(each, mean=6.0, shape=math.inf, score_noise=0.1, metric="log_loss")
    for plan, seeds in ((block, range(5)), (free, range(1, 6))):
        chosen = [
            pv.tune(plan, trained, data, streams=Streams.new(seed)).facts["tuning"]["chosen"]
            for seed in seeds
        ]
        assert set(chosen) == {1}, (plan.kind, chosen)
    assert "log losses" in free.summary
    assert "log losses" in block.summary


@check
def check_metrics_that_are_no_sums_are_refused() -> None:
    """AUC, for one: a row moves it through all others. So is a metric of other targets."""
    each = (Candidate("a", STEP), Candidate("b", STEP))
    for metric in ("auc", "balanced_accuracy", "expected_calibration_error", "r2", "f1"):
        must_raise(BadInput, lambda metric=metric: Blocks(each, metric=metric))
        must_raise(BadInput, lambda metric=metric: RandomStopping(each, 2.0, metric=metric))
    plan = RandomStopping(each, 2.0, score_noise=1.0, metric="rmse")
    data = Dataset(np.zeros((200, 1), np.float32), np.zeros(200, np.int64), classes=2)
    must_raise(BadInput, lambda: pv.tune(plan, trained, data))


@check
def check_candidates_train_by_the_rules_of_a_run() -> None:
    """What a candidate leaves open follows by the rules of `train`: clip, centring, and the
    temperature's share.
    """
    x = RNG.random((1000, 3)).astype(np.float32)
    data = Dataset(
        x, (x[:, 0] > 0.5).astype(np.int64), classes=2, low=0.0, high=np.array([2.0, 2.0, 1.0])
    )
    own = pv.train(data, epsilon=2.0, epochs=2, streams=Streams.new(0)).plan
    assert isinstance(own, pv.Plan)
    assert own.temperature is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tune.toml"
        file.write_text(
            'way = "random-stopping"\n[[candidate]]\nepochs = 2\n[[candidate]]\nname = '
            '"b"\nclip-norm = 3\n'
        )
        given = [
            "train",
            "--data",
            "a.npz",
            "--epsilon",
            "2",
            "--tune",
            str(file),
            "--out",
            "model",
        ]
        choice = options.make_choice(parse(given), facts_of(data, None))
    searched = pv.sklearn.DPSearchCV(
        pv.sklearn.DPClassifier(classes=[0, 1], bounds=(0.0, [2.0, 2.0, 1.0])),
        {"options": [{"epochs": 2}, {"epochs": 3}]},
        epsilon=2.0,
    ).fit(x, (x[:, 0] > 0.5).astype(int))
    for first in (choice.plan.candidates[0].plan, searched.result_.plan.candidates[0].plan):
        assert (first.clip, first.front, first.epochs) == (own.clip, own.front, 2)
        shares = [
            plan.temperature.noise_multiplier / plan.noise_multipliers()[0] for plan in (own, first)
        ]
        assert math.isclose(*shares, rel_tol=0.01), shares
    assert choice.plan.candidates[1].plan.clip == pv.Flat(3.0)
