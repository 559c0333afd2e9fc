"""Named checks of every task that has a name (ordinal and others); planted bugs must make them
fail.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import mean_poisson_deviance

import privlearn as pv
from privlearn.core.accounting.events import tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.rows import TensorRows
from privlearn.core.sampling import FullBatch
from privlearn.errors import BadInput
from privlearn.models.heads import HEADS, PoissonLoss
from privlearn.models.last_layers import CumulativeLogits
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.result import Result
from privlearn.training.choices import TrainRequest
from tests.support.checks import check, must_raise
from tests.support.steps import EachStep

Array = NDArray[Any]
_SLOPES = np.array([2.0, -1.5, 1.0, 0.0])


def _ranks(made_up: np.random.Generator, scores: Array) -> Array:
    return np.digitize(scores + made_up.logistic(size=len(scores)), [-2.5, -0.5, 1.0, 2.5])


def _several(made_up: np.random.Generator, scores: Array) -> Array:
    return np.stack(
        [scores + made_up.logistic(size=len(scores)) > at for at in (0.0, 2.0, -1.0)], 1
    ).astype(np.int64)


def _counts(made_up: np.random.Generator, scores: Array) -> Array:
    return made_up.poisson(np.exp(0.7 * scores)).clip(0, 20)


def _numbers(made_up: np.random.Generator, scores: Array) -> Array:
    noisy = scores[:, None] + made_up.normal(size=(len(scores), 2))
    return np.stack([noisy[:, 0], 100 - 20 * noisy[:, 1], np.zeros(len(scores))], 1)


#: For each task what targets follow from scores, and what is declared of them.
TASKS: dict[str, tuple[Callable[[np.random.Generator, Array], Array], dict[str, Any]]] = {
    "ordinal": (_ranks, {"classes": 5}),
    "multilabel": (_several, {"labels": ("pain", "fever", "cough")}),
    "counts": (_counts, {"target_bounds": (0, 20)}),
    "multioutput": (
        _numbers,
        {"target_ranges": (("a", -5.0, 5.0), ("b", 0.0, 200.0), ("c", -1.0, 1.0))},
    ),
}


def rows(task: str, number: int, seed: int) -> tuple[Array, Array]:
    """Rows of four numbers in [-1, 1] and their targets."""
    made_up = np.random.default_rng(seed)
    x = made_up.uniform(-1, 1, size=(number, 4)).astype(np.float32)
    return x, TASKS[task][0](made_up, x @ _SLOPES)


def dataset(task: str, number: int = 1200, **more: Any) -> pv.Dataset:
    x, y = rows(task, number, 0)
    x_test, y_test = rows(task, 1000, 1)
    return pv.Dataset(x, y, x_test, y_test, low=-1.0, high=1.0, **{**TASKS[task][1], **more})


@cache
def trained(task: str, model: str = "linear") -> Result:
    """At the defaults, at epsilon 1."""
    return pv.train(
        dataset(task), epsilon=1.0, task=task, model=model, epochs=20, streams=pv.Streams.new(0)
    )


def _loss_of_a_constant(task: str, y: Array, y_test: Array) -> tuple[str, float]:
    """The figure that a task is judged by, and what it is if the best constant is predicted."""
    if task == "counts":
        return "deviance", float(mean_poisson_deviance(y_test, np.full(len(y_test), y.mean())))
    if task == "multioutput":
        each = np.sqrt(((y_test - y.mean(0)) ** 2).mean(0))
        return "rmse", float(each.mean())
    if task == "multilabel":
        each = np.where(y_test == 1, y.mean(0), 1 - y.mean(0))
        return "log_loss", float(-np.log(each).mean())
    shares = np.bincount(y, minlength=5) / len(y)
    return "log_loss", float(-np.log(shares)[y_test].mean())


@check
def check_tasks_are_learned_better_than_by_a_constant() -> None:
    """At epsilon 1 and the defaults, on fresh rows, by the task's own figure."""
    for task in TASKS:
        data = dataset(task)
        for model in ("linear", "mlp:8"):
            name, constant = _loss_of_a_constant(task, data.y, data.y_test)
            figure = pv.evaluate(trained(task, model), data)[name]
            assert figure < 0.97 * constant, (task, model, figure, constant)


@check
def check_a_task_is_charged_for_its_plan_alone() -> None:
    """The ledger holds the plan, without a temperature, and meets the target."""
    for task in TASKS:
        result = trained(task)
        assert result.plan.temperature is None  # type: ignore[attr-defined]
        assert tally(result.ledger.event) == tally(result.plan.event())
        assert 0.97 < result.ledger.guarantee(1e-5).epsilon <= 1.0


@check
def check_an_example_of_a_task_moves_the_sum_by_the_clipping_norm() -> None:
    """Whatever its row and its target are; and its loss is its own, whatever else is in the
    batch.
    """
    (sample,) = FullBatch().draw(1)
    for task, (_, declared) in TASKS.items():
        head = HEADS[task](declared)
        x, y = rows(task, 40, 2)
        targets = torch.as_tensor(head.prepared(y))
        torch.manual_seed(0)
        network = head.complete(torch.nn.Linear(4, head.outputs))
        loss = head.loss(TrainRequest())
        together = loss(network(torch.from_numpy(x)), targets)
        assert together.shape == (40,)
        gradients = ClippedGradients(network, loss, Flat(0.5), Adjacency.ZERO_OUT)
        for row in range(3):
            own = torch.from_numpy(x[[row]])
            torch.testing.assert_close(loss(network(own), targets[[row]])[0], together[row])
            gradients.prepare(TensorRows((own, targets[[row]])))
            total = gradients(sample, TensorRows((1000 * own, targets[[row]])))
            moved = torch.sqrt(sum(part.square().sum() for part in total.values))
            assert moved <= 0.5 * (1 + 1e-6) <= total.sensitivity * (1 + 1e-6), task


@check
def check_a_published_task_predicts_what_was_trained() -> None:
    """Certificate, card and configuration say the task; the loaded model gives the same numbers and
    metrics.
    """
    for task in TASKS:
        result, data = trained(task, "mlp:8"), dataset(task)
        metrics = pv.evaluate(result, data)
        with tempfile.TemporaryDirectory() as folder:
            out = pv.publish(result, Path(folder) / "model", test_metrics=metrics)
            assert pv.verify(out).ok
            assert json.loads((out / "config.json").read_text())["task"] == task
            card = (out / "README.md").read_text("utf-8")
            assert f"| task | {task} |" in card
            assert HEADS[task].reading in card
            published = pv.load_model(out)
        x = torch.from_numpy(data.x_test)
        assert torch.equal(published(x), result.model(x))
        again = pv.evaluate(published, data.x_test, data.y_test)
        assert dict(again.figures) == dict(metrics.figures)


@check
def check_thresholds_stay_in_order() -> None:
    """Whatever noise is in them: probabilities are those of the proportional-odds model, above 0,
    and add up to 1.
    """
    generator = torch.Generator().manual_seed(0)
    for classes in (2, 3, 6):
        layer = CumulativeLogits(classes)
        assert sum(own.numel() for own in layer.parameters()) == classes - 1
        start = layer(torch.zeros(1, 1)).exp()
        torch.testing.assert_close(start, torch.full((1, classes), 1 / classes))
        for scale in (1.0, 10.0, 1000.0):
            with torch.no_grad():
                for own in layer.parameters():
                    own.copy_(scale * torch.randn(own.shape, generator=generator))
                numbers = 3 * torch.randn(20, 1, generator=generator)
                scores = layer.double()(numbers.double())
                thresholds = layer.first + torch.cat(
                    [torch.zeros(1), (layer.gaps.exp() + 1).log() + 1e-3]
                ).cumsum(0)
            assert scores.isfinite().all(), scale
            torch.testing.assert_close(scores.exp().sum(1), torch.ones(20, dtype=torch.float64))
            if scale == 1.0:
                at_most = (thresholds - numbers.double()).sigmoid()
                torch.testing.assert_close(scores.exp().cumsum(1)[:, :-1], at_most)


@check
def check_targets_are_prepared_one_by_one() -> None:
    """What an example's loss is given of its target depends on no other target."""
    for task, (_, declared) in TASKS.items():
        head, (_, y) = HEADS[task](declared), rows(task, 30, 3)
        together = np.asarray(head.prepared(y))
        assert np.array_equal(
            together, np.concatenate([np.asarray(head.prepared(y[[row]])) for row in range(30)])
        )


@check
def check_labels_are_predicted_one_by_one() -> None:
    """A label's probability and prediction follow from its own score: several, or none, may
    hold.
    """
    result, data = trained("multilabel"), dataset("multilabel")
    with tempfile.TemporaryDirectory() as folder:
        published = pv.load_model(pv.publish(result, Path(folder) / "model"))
    scores = result.model(torch.from_numpy(data.x_test)).detach()
    predicted, probabilities = published.predict(data.x_test), published.predict_proba(data.x_test)
    torch.testing.assert_close(probabilities, 1 / (1 + (-scores).exp()))
    assert torch.equal(predicted == 1, probabilities > 0.5)
    assert {0, 1, 2, 3} == set(predicted.sum(1).tolist())


@check
def check_counts_are_learned_by_their_likelihood() -> None:
    """Up to the bound the loss is the Poisson one, over the root of the bound; beyond it the
    derivative is bounded.
    """
    high, counts = 20.0, torch.arange(8, dtype=torch.float64)
    outputs = torch.linspace(-6, 8, 8, dtype=torch.float64)[:, None].requires_grad_()
    losses = PoissonLoss(high)(outputs, counts)
    (slopes,) = torch.autograd.grad(losses.sum(), outputs)
    expected = (outputs.detach()[:, 0] + np.log(high) / 2).exp().clamp(max=high)
    torch.testing.assert_close(slopes[:, 0], (expected - counts) / high**0.5)
    assert float(slopes.abs().max()) <= high**0.5
    inside = expected < high
    exact = expected - counts * expected.log()
    torch.testing.assert_close(losses.detach()[inside], exact[inside] / high**0.5)


@check
def check_expected_counts_lie_within_the_declared_bounds() -> None:
    """Whatever the weights are, and whatever the rows hold; counts beyond the bound count as it."""
    head = HEADS["counts"]({"target_bounds": (0, 20)})
    network = head.published(torch.nn.Linear(4, 1))
    for scale in (1.0, 1e3, 1e30):
        counts = network(scale * torch.randn(50, 4, generator=torch.Generator().manual_seed(0)))
        assert bool(((counts >= 0) & (counts <= 20)).all()), scale
    assert head.prepared(np.array([0, 20, 21, 10**6])).tolist() == [0, 20, 20, 20]
    result = trained("counts")
    with tempfile.TemporaryDirectory() as folder:
        out = pv.publish(result, Path(folder) / "model")
        assert json.loads((out / "config.json").read_text())["target_bounds"] == [0, 20]


@check
def check_rare_counts_are_not_taken_for_none() -> None:
    """A mean that is far below 1 is met, not the median, which is 0: gradients are not clipped
    short.
    """
    x, _ = rows("counts", 1200, 0)
    y = np.random.default_rng(0).poisson(0.2 * np.exp(0.4 * (x @ _SLOPES)))
    data = pv.Dataset(x, y, low=-1.0, high=1.0, target_bounds=(0, 10))
    for model in ("linear", "mlp:8"):
        result = pv.train(
            data, epsilon=1.0, task="counts", model=model, epochs=20, streams=pv.Streams.new(0)
        )
        with torch.no_grad():
            expected = result.model(torch.from_numpy(x)).mean()
        assert 0.7 < float(expected) / y.mean() < 1.3, (model, expected)
        assert pv.evaluate(result, x, y)["deviance"] < mean_poisson_deviance(
            y, np.full(len(y), y.mean())
        )


@check
def check_a_run_goes_on_with_the_same_loss_only() -> None:
    """With other weights of classes or another bound of counts the same noise would be added to
    other sums.
    """
    x, y = rows("counts", 300, 0)
    usual: dict[str, Any] = {"epsilon": 1.0, "epochs": 3, "clip_norm": 1.0, "normalise": "none"}
    runs: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        ({"target_bounds": (0, 20)}, {"task": "counts"}, {"target_bounds": (0, 25)}),
        (
            {"classes": 21},
            {"class_weights": (1.0,) * 20 + (2.0,)},
            {"class_weights": (1.001,) * 20 + (2.0,)},
        ),
    ]
    for declared, chosen, other in runs:
        with tempfile.TemporaryDirectory() as folder:
            for number, changed in enumerate(({}, other, {})):
                own = {
                    **declared,
                    **{key: value for key, value in changed.items() if key in declared},
                }
                now = {**chosen, **{key: value for key, value in changed.items() if key in chosen}}
                data = pv.Dataset(x, y, low=-1.0, high=1.0, **own)

                def run(
                    data: pv.Dataset = data, now: dict[str, Any] = now, stop: bool = number == 0
                ) -> Result:
                    checkpoint = Checkpoint(Path(folder) / "run", every=1e-9)
                    return pv.train(
                        data,
                        **usual,
                        **now,
                        checkpoint=checkpoint,
                        callbacks=[EachStep(_stop)] * stop,
                    )

                if number == 0:
                    must_raise(KeyboardInterrupt, run)
                elif number == 1:
                    assert "is of another run" in str(must_raise(BadInput, run)), changed
                else:
                    assert tally(run().ledger.event)


def _stop(step: int, steps: int) -> None:
    if step == 2:
        raise KeyboardInterrupt
