"""Named checks of how near the defaults' log loss is to that of the best temperature; planted bugs
must make them fail.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

import privlearn as pv
from privlearn.core.clipping.evaluation import Gains
from privlearn.core.clipping.own_steps import OwnSteps
from privlearn.core.temperature import GRID, Temperature
from privlearn_studies.calibration import GOAL, best_temperature, log_loss
from tests.support.checks import check

_RATE, _STEPS = 1e-4, 50


@lru_cache(maxsize=2)
def _categories(columns: int = 6, levels: int = 60, rows: int = 1500) -> pv.Dataset:
    """Columns with many categories each: many weights, of few rows."""
    draw, parts, score = np.random.default_rng(5), [], np.full(2 * rows, -0.8)
    for _ in range(columns):
        own = draw.choice(levels, 2 * rows, p=draw.dirichlet(np.full(levels, 0.5)))
        score += 0.8 * draw.normal(size=levels)[own]
        parts.append(np.eye(levels, dtype=np.float32)[own])
    x = np.concatenate(parts, 1)
    y = (draw.random(2 * rows) < 1 / (1 + np.exp(-score))).astype(np.int64)
    return pv.Dataset(x[:rows], y[:rows], x[rows:], y[rows:], classes=2, low=0.0, high=1.0)


@lru_cache(maxsize=2)
def _many(classes: int = 8, numbers: int = 40, rows: int = 2000) -> pv.Dataset:
    """Vectors of eight classes that overlap."""
    draw = np.random.default_rng(6)
    centres = 0.9 * draw.normal(size=(classes, numbers)) / math.sqrt(numbers) * 2.5
    y = draw.integers(0, classes, 2 * rows)
    x = (centres[y] + draw.normal(size=(2 * rows, numbers))).clip(-4, 4).astype(np.float32)
    return pv.Dataset(x[:rows], y[:rows], x[rows:], y[rows:], classes=classes, low=-4.0, high=4.0)


def ratio(data: pv.Dataset, epsilon: float, **choices: Any) -> float:
    """The default's log loss on test rows over that at the best temperature, of two seeds."""
    mine, least = 0.0, 0.0
    for seed in (0, 1):
        result = pv.train(
            data,
            epsilon=epsilon,
            delta=1e-5,
            examples=len(data.x),
            streams=pv.Streams.new(seed),
            **choices,
        )
        with torch.no_grad():
            scores = result.model(data.test_tensors()[0]).double().numpy()
        labels = np.asarray(data.y_test)
        mine += log_loss(scores, labels)
        least += best_temperature(scores, labels)[1]
    return mine / least


_TASKS = ((_categories(), 8.0), (_categories(), 1.0), (_many(), 8.0))
#: Where own steps count for most: without taking them back the ratio is 1.055.
_NEARER = 1.03


@check
def check_log_loss_is_near_that_of_the_best_temperature() -> None:
    """Of many weights and few rows, with little noise and with more; of several classes."""
    for (data, epsilon), most in zip(_TASKS, (_NEARER, GOAL, GOAL), strict=True):
        assert ratio(data, epsilon) <= most, epsilon


@check
def check_own_steps_are_what_leaving_an_example_out_undoes() -> None:
    """With short steps, of rows whose gradients are clipped and of others, trained with and
    without.
    """
    draw = np.random.default_rng(3)
    x, y = torch.from_numpy(draw.normal(size=(30, 5))), torch.from_numpy(draw.integers(0, 3, 30))
    whole, clip_norm = _descended(x, y), 1.7
    own = OwnSteps(_RATE * _STEPS / 30, clip_norm, True, math.inf)
    moved = own.movement(whole(x).detach(), y, x)
    lengths = (x.square().sum(1) + 1).sqrt()
    clipped = lengths * (whole(x).softmax(1) - nn.functional.one_hot(y, 3)).norm(dim=1) > clip_norm
    assert 3 < int(clipped.sum()) < 27
    for row in range(30):
        others = torch.arange(30) != row
        without = _descended(x[others], y[others])
        change = (whole(x[row]) - without(x[row])).detach()
        assert torch.allclose(moved[:, row], -change.expand(len(GRID), -1), rtol=0.02)
    some = OwnSteps(own.rates, clip_norm, True, 1e-6).movement(whole(x).detach(), y, x)
    most = torch.from_numpy(GRID)[:, None] * 1e-6
    assert bool((some.norm(dim=2) <= most).all())
    assert bool((some.norm(dim=2) < moved.norm(dim=2)).all())


def _descended(x: torch.Tensor, y: torch.Tensor) -> nn.Linear:
    """Plain descent on clipped gradients, their sum over 30, from weights that are always the
    same.
    """
    torch.manual_seed(0)
    layer = nn.Linear(5, 3).double()
    rows = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    with torch.no_grad():
        for _ in range(_STEPS):
            errors = layer(x).softmax(1) - nn.functional.one_hot(y, 3)
            norms = errors.norm(dim=1) * rows.norm(dim=1)
            sums = (errors * (1.7 / norms).clamp(max=1)[:, None]).T @ rows / 30
            layer.weight -= _RATE * sums[:, :5]
            layer.bias -= _RATE * sums[:, 5]
    return layer


@check
def check_only_one_linear_layer_has_steps_of_its_own() -> None:
    """Elsewhere what an example's own steps did is not known."""
    seen: list[OwnSteps | None] = []
    real = Gains.__init__

    def noted(self: Gains, *arguments: Any, **named: Any) -> None:
        seen.append(named.get("own_steps"))
        real(self, *arguments, **named)

    data = _many(rows=200)
    Gains.__init__ = noted  # type: ignore[method-assign]
    try:
        for choices in (
            {},
            {"model": "mlp:8"},
            {"optimizer": "Adam"},
            {"clip": "automatic"},
        ):
            pv.train(data, epsilon=4.0, delta=1e-4, epochs=2, streams=pv.Streams.new(1), **choices)
    finally:
        Gains.__init__ = real  # type: ignore[method-assign]
    linear, *others = seen
    assert linear is not None
    assert others == [None] * 3
    assert math.isclose(linear.most, 30 * 41 / 200)


@check
def check_without_noise_the_temperature_is_the_best() -> None:
    """Of losses as they are of scores that are twice, or a fifth, of what they should be."""
    draw = np.random.default_rng(2)
    scores = 3 * draw.normal(size=(20_000, 4))
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    labels = (chances.cumsum(1) > draw.random((len(scores), 1))).argmax(1)
    for factor in (0.7, 2.0, 5.0):
        each = Gains(nn.Identity())(
            torch.from_numpy(scores * factor), torch.from_numpy(labels)
        ).numpy()
        fitted = Temperature(1e-6).best(each.sum(0), 4, len(each), 1.0)
        least = best_temperature(scores * factor, labels)[1]
        assert log_loss(scores * factor, labels, fitted) <= 1.001 * least, (factor, fitted)
