"""Named checks of the rules for tables: nothing but declared facts, and no worse than the base
rate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from sklearn.metrics import log_loss

import privlearn as pv
from privlearn.training.train import settle_for
from privlearn.transforms import Centre
from tests.support.checks import check


@check
def check_rows_have_no_part_in_how_tables_are_prepared() -> None:
    """Whatever rows hold, the same declared bounds lead to the same plan and the same transform."""
    low, high = np.array([0.0, -2.0, 0.0, 1.0]), np.array([1.0, 2.0, 9.0, 10.0])
    draw = np.random.default_rng(0)
    data = [
        pv.Dataset(
            draw.normal(size=(300, 4)) * scale,
            draw.integers(0, 2, 300),
            classes=2,
            low=low,
            high=high,
        )
        for scale in (1.0, 1e3)
    ]
    one, other = (settle_for(each, epsilon=1.0, delta=1e-5)[0].plan for each in data)
    assert one == other
    # neither what may be a category, nor what is scaled around 0
    assert one.front == (Centre((2, 3)),)
    assert one.clip.clip_norm == 1.0
    made = one.front[0].module((4,))
    assert made(torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])).tolist() == [
        [0, 0, -1, -1],
        [1, 1, 1, 1],
    ]


@check
def check_small_tables_are_learned_better_than_their_base_rate() -> None:
    """The default's log loss at epsilon 0.1 on 455 rows, in the mean of three seeds; and accuracy
    beyond chance.
    """
    data = pv.load("breast-cancer")
    y, losses, right = np.asarray(data.y_test), [], []
    for seed in range(3):
        trained = pv.train(data, epsilon=0.1, examples=data.examples, streams=pv.Streams.new(seed))
        metrics = pv.evaluate(trained, data)
        losses.append(metrics["log_loss"])
        right.append(metrics["auc"])
    assert np.mean(losses) < 0.95 * log_loss(y, np.full(len(y), np.mean(data.y)))
    assert np.mean(right) > 0.8


@check
def check_what_was_asked_for_is_left_as_it_is() -> None:
    """Rows that are not to be normalised, another network, a given norm, or rows without bounds: no
    rule of tables.
    """
    data = pv.load("breast-cancer")
    bare = replace(data, low=None, high=None)
    for given, rows in (
        ({"normalise": "none"}, data),
        ({"model": "mlp:4"}, data),
        ({}, bare),
        ({"features": "norm:power=1"}, data),
    ):
        plan = settle_for(rows, epsilon=1.0, delta=1e-5, **given)[0].plan
        assert not any(isinstance(own, Centre) for own in plan.front)
        assert plan.clip.clip_norm == 0.1
    assert settle_for(data, epsilon=1.0, delta=1e-5, clip_norm=0.3)[0].plan.clip.clip_norm == 0.3
