"""Boosted models: accuracy on made-up rows, publishing, shapes, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.methods.boosting.plan import BoostingPlan, Interval, Levels
from privlearn.methods.boosting.shrinkage import ShapeFilter
from privlearn.methods.boosting.targets import Counts, Labels, Values
from privlearn.publishing import certificate
from tests.boosting import checks
from tests.support.checks import CHECKS


@pytest.mark.parametrize(
    "name", [name for name, own in CHECKS.items() if own.__module__ == checks.__name__]
)
def test_check(name: str) -> None:
    CHECKS[name]()


def made_up(kind: str, rows: int = 6000, seed: int = 0) -> tuple[pv.Dataset, Any]:
    """Two numbers and a category of four, and a target of that kind; half of the rows to test
    on.
    """
    draw = np.random.default_rng(seed)
    colour = draw.integers(4, size=rows)
    x = np.concatenate([draw.uniform(-2, 2, (rows, 2)), np.eye(4)[colour]], 1).astype(np.float32)
    score = 1.5 * np.sin(2 * x[:, 0]) + np.array([1.5, -1.5, 0.0, 0.5])[colour]
    if kind == "trees":
        score = 3.0 * np.sign(x[:, 0] * x[:, 1])
    y: Any = (draw.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
    target: Any = Labels(2)
    if kind == "classes":
        y, target = np.where(x[:, 1] > 0.5, 2, y), Labels(3)
    if kind == "values":
        y, target = (score + draw.normal(size=rows) / 2).astype(np.float32), Values(-5.0, 5.0)
    if kind == "counts":
        y, target = draw.poisson(np.exp(score / 2)), Counts(15.0)
    half, names = rows // 2, ("size", "weight", *(f"colour={name}" for name in "abcd"))
    low, high = np.array([-2.0, -2, 0, 0, 0, 0]), np.array([2.0, 2, 1, 1, 1, 1])
    return pv.Dataset(
        x[:half], y[:half], x[half:], y[half:], low=low, high=high, feature_names=names
    ), target


def fitted(kind: str, epsilon: float = 1.0, **choices: Any) -> tuple[Any, Any, Any]:
    data, target = made_up(kind)
    plan = pv.boosting.plan_for(data, target, **choices).calibrate(epsilon=epsilon, delta=1e-6)
    result = pv.boosting.boost(plan, data, streams=pv.Streams.new(1))
    return result, result.model(torch.from_numpy(data.x_test)), torch.as_tensor(data.y_test)


def test_two_classes() -> None:
    _, scores, y = fitted("labels")
    p = scores.softmax(1)[:, 1]
    assert roc_auc_score(y, p) > 0.81
    assert float(torch.nn.functional.cross_entropy(scores, y)) < 0.53


def test_classes() -> None:
    _, scores, y = fitted("classes")
    assert scores.shape == (3000, 3)
    assert float(torch.nn.functional.cross_entropy(scores, y)) < 0.55


def test_weights_of_classes_move_probabilities() -> None:
    """Rows of a class that weighs nine times as much count as nine times as many."""
    data, _ = made_up("labels")
    means = []
    for weights in ((), (1.0, 9.0)):
        plan = pv.boosting.plan_for(data, Labels(2, weights)).calibrate(epsilon=8.0, delta=1e-6)
        result = pv.boosting.boost(plan, data, streams=pv.Streams.new(1))
        scores = result.model(torch.from_numpy(data.x_test))
        means.append(float((scores[:, 1] - scores[:, 0]).mean()))
    assert abs(means[1] - means[0] - math.log(9)) < 0.4
    with pytest.raises(BadInput, match="one for each of 3 classes"):
        Labels(3, (1.0, 2.0))


def test_values_stay_between_their_bounds() -> None:
    result, scores, y = fitted("values")
    assert 1 - float((scores[:, 0] - y).square().mean() / y.var()) > 0.75
    far = result.model(torch.full((1, 6), 1e30))
    assert -5 <= float(far) <= 5


def test_counts() -> None:
    _, expected, y = fitted("counts")
    assert bool((expected > 0).all())
    assert 1 - float((expected[:, 0] - y).square().mean() / y.double().var()) > 0.2


def test_trees_learn_what_an_additive_model_cannot() -> None:
    areas = [
        roc_auc_score(y, scores[:, 1])
        for _, scores, y in (fitted("trees"), fitted("trees", trees=60, passes=2))
    ]
    assert areas[0] < 0.6 < 0.85 < areas[1]


def test_loud_noise_leaves_predictions_near_the_middle() -> None:
    """Where nothing can be learnt a model is not sure of anything."""
    _, scores, _ = fitted("labels", epsilon=0.001)
    p = scores.softmax(1)[:, 1]
    assert 0.1 < float(p.quantile(0.05)) < float(p.quantile(0.95)) < 0.9


def test_a_filter_is_the_posterior_of_what_it_took_in() -> None:
    """Without noise it follows the data; with noise alone it stays near 0; between, neighbours
    share what they know.
    """
    for ordered in (True, False):
        exact = ShapeFilter(9, 1, 0.5, ordered=ordered)
        weights, wanted = np.full((1, 9), 1e9), np.linspace(-1, 1, 9)[None]
        exact.update(wanted * weights, weights, (1e-9, 1e-9), 1.0)
        np.testing.assert_allclose(exact.scores, wanted, atol=1e-3)
        loud = ShapeFilter(9, 1, 0.5, ordered=ordered)
        loud.update(1e6 * wanted, weights / 1e6, (1e9, 1e9), 1.0)
        assert np.abs(loud.scores).max() < 0.1
    few = ShapeFilter(9, 1, 0.5, ordered=True)
    counts = np.array([[0.0, 50, 50, 50, 0, 50, 50, 50, 50]])
    few.update(counts * 0.8, counts, (1.0, 1.0), 1.0)
    assert few.scores[0, 4] > 0.5


@pytest.mark.parametrize("kind", ["labels", "classes", "values", "counts"])
def test_published_models_are_read_back(kind: str, tmp_path: Path) -> None:
    result, scores, _ = fitted(kind, trees=3)
    out = pv.publish(result, tmp_path / "model")
    assert pv.verify(out).ok
    loaded = pv.load_model(out)
    x = torch.from_numpy(made_up(kind)[0].x_test)
    assert torch.equal(loaded(x), scores)
    expected = scores[:, 0] if kind in ("values", "counts") else scores.argmax(1)
    assert torch.equal(loaded.predict(x), expected)
    assert "noise multiplier" in (out / "README.md").read_text()
    assert certificate.read_plan(result.plan.to_json()) == result.plan


def test_a_fresh_process_predicts_the_same(tmp_path: Path) -> None:
    result, scores, _ = fitted("labels", trees=2)
    pv.publish(result, tmp_path / "model")
    np.save(tmp_path / "x.npy", made_up("labels")[0].x_test)
    code = (
        "import numpy as np, torch, privlearn as pv; m = pv.load_model('model'); "
        "np.save('scores.npy', m(torch.from_numpy(np.load('x.npy'))).numpy())"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert np.array_equal(np.load(tmp_path / "scores.npy"), scores.numpy())


def test_shapes_are_the_additive_part() -> None:
    result, scores, _ = fitted("labels")
    x = made_up("labels")[0].x_test
    size, weight, colour = (pv.boosting.shape(result, name) for name in ("size", 1, "colour"))
    assert size.edges is not None
    assert colour.edges is None
    np.testing.assert_allclose(size.edges, np.linspace(-2, 2, 17))
    places = [np.searchsorted(size.edges[1:-1], x[:, at], side="right") for at in (0, 1)]
    total = size.scores[places[0]] + weight.scores[places[1]] + colour.scores[x[:, 2:].argmax(1)]
    np.testing.assert_allclose(total, scores.numpy(), atol=1e-5)
    assert size.scores[12, 1] - size.scores[4, 1] > 0.5
    with pytest.raises(BadInput, match="no column"):
        pv.boosting.shape(result, "length")


def test_the_same_seed_gives_the_same_model() -> None:
    a, b = (fitted("labels", trees=2)[1] for _ in range(2))
    assert torch.equal(a, b)


def test_noise_on_a_grid() -> None:
    data, target = made_up("labels")
    plan = pv.boosting.plan_for(data, target).calibrate(epsilon=1.0, delta=1e-6)
    result = pv.boosting.boost(plan, data, streams=pv.Streams.new(1, discrete=True))
    assert roc_auc_score(data.y_test, result.model(torch.from_numpy(data.x_test))[:, 1]) > 0.8
    assert result.facts["noise"] == "on a grid"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda d: pv.boosting.boost(pv.boosting.plan_for(d, Labels(2)), d), "no noise yet"),
        (lambda d: pv.boosting.boost("plan", d), "plan is 'plan'"),
        (lambda d: pv.boosting.plan_for(d), "declare no classes"),
        (lambda d: pv.boosting.plan_for(pv.Dataset(d.x, d.y), Labels(2)), "no declared bounds"),
        (
            lambda d: pv.boosting.boost(_settled(Labels(2)), (d.x[:, :3], d.y)),
            "the plan's 6 numbers",
        ),
        (
            lambda d: pv.boosting.boost(_settled(Labels(2)), (d.x, d.y + 1)),
            "whole numbers from 0 to 1",
        ),
        (
            lambda d: pv.boosting.boost(_settled(Values(0.0, 1.0)), (d.x, d.y.astype(str))),
            "one number for each row",
        ),
        (lambda d: BoostingPlan((), Labels(2)), "columns"),
        (lambda d: BoostingPlan((Interval(1.0, 1.0),), Labels(2)), "smaller one first"),
        (lambda d: BoostingPlan((Levels(2),), Labels(2), passes=10**6), "passes"),
        (lambda d: Interval(0.0, 1.0, []), "expected a text"),  # type: ignore[arg-type]
        (lambda d: Levels(2, 7), "expected a text"),  # type: ignore[arg-type]
    ],
)
def test_refusals(what: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        what(made_up("labels")[0])


def _settled(target: Any) -> BoostingPlan:
    return pv.boosting.plan_for(made_up("labels")[0], target, noise_multiplier=3.0)


def test_infinite_numbers_are_in_the_outer_bins() -> None:
    """Also of a column that has fewer bins than another one."""
    plan = BoostingPlan((Interval(0.0, 1.0), Levels(40)), Labels(2), bins=4, noise_multiplier=1.0)
    x = torch.zeros(4, 41)
    x[:, 0] = torch.tensor([math.inf, 1e30, -math.inf, math.nan])
    result = pv.boosting.boost(
        plan, (x, torch.zeros(4, dtype=torch.int64)), streams=pv.Streams.new(0)
    )
    (network,) = result.model.children()
    assert network.bins(x)[:, 0].tolist() == [4, 4, 1, 0]
