"""Named checks of weights of classes; planted bugs must make them fail."""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import privlearn as pv
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.rows import TensorRows
from privlearn.core.sampling import FullBatch
from privlearn.errors import BadInput
from privlearn.models.heads import ClassHead
from privlearn.runs.result import Result
from privlearn.training.choices import TrainRequest, weights_of
from tests.support.checks import check, must_raise


def rare(rows: int, seed: int) -> tuple[Any, Any]:
    """Rows of four numbers in [-1, 1], of which about one in ten is of class 1."""
    made_up = np.random.default_rng(seed)
    x = made_up.uniform(-1, 1, size=(rows, 4)).astype(np.float32)
    scores = x @ np.array([2.0, -1.5, 1.0, 0.0]) - 3
    return x, (made_up.uniform(size=rows) < 1 / (1 + np.exp(-scores))).astype(np.int64)


X, Y = rare(1200, 0)
DATA = pv.Dataset(X, Y, classes=2, low=-1.0, high=1.0)
NEW_X, NEW_Y = rare(4000, 1)


def trained(data: pv.Dataset = DATA, **choices: Any) -> Result:
    return pv.train(data, **{"epsilon": 1.0, "epochs": 10, "streams": pv.Streams.new(0), **choices})


def weights(result: Result) -> torch.Tensor:
    return torch.cat([own.detach().flatten() for own in result.model.parameters()])


@check
def check_a_weighted_example_is_clipped_as_any_other() -> None:
    """One example moves the sum of clipped gradients by the clipping norm at most, whatever its
    class weighs.
    """
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 2)
    (sample,) = FullBatch().draw(1)
    for norm, given in product((0.1, 1.0), ((1.0, 50.0), (1e6, 1e6))):
        loss = ClassHead({"classes": 2}).loss(TrainRequest(class_weights=given))
        gradients = ClippedGradients(network, loss, Flat(norm), Adjacency.ZERO_OUT)
        for row in range(3):
            x = 100 * torch.from_numpy(X[[row]])
            # which is wrong: its gradient is long
            rows = TensorRows((x, network(x.float()).argmin(1)))
            gradients.prepare(rows)
            total = gradients(sample, rows)
            moved = torch.sqrt(sum(part.square().sum() for part in total.values))
            assert 0 < moved <= norm * (1 + 1e-6) <= total.sensitivity * (1 + 1e-6), (norm, given)


@check
def check_weights_of_classes_are_not_read_off_the_rows() -> None:
    """`balanced` needs declared shares, follows from these alone, and is refused without."""
    must_raise(BadInput, lambda: trained(class_weights="balanced"))
    request = TrainRequest(class_weights="balanced", class_frequencies={0: 0.9, 1: 0.1})
    assert weights_of(request, 2) == (1 / 0.9, 1 / 0.1)
    declared = {"class_weights": "balanced", "class_frequencies": {0: 0.5, 1: 0.5}, "epochs": 1}
    for y in (Y, 1 - Y, np.zeros_like(Y)):
        result = trained(pv.Dataset(X, y, classes=2, low=-1.0, high=1.0), **declared)
        assert result.facts["class_weights"] == [1.0, 1.0]


@check
def check_an_examples_weighted_loss_is_its_own() -> None:
    """Its weight over the largest, times cross-entropy: no other example has a part in it."""
    loss = ClassHead({"classes": 3}).loss(TrainRequest(class_weights=(2.0, 8.0, 4.0)))
    scores, labels = (
        torch.randn(6, 3, generator=torch.Generator().manual_seed(0)),
        torch.arange(6) % 3,
    )
    own = (
        -scores.log_softmax(1).gather(1, labels[:, None])[:, 0]
        * torch.tensor([0.25, 1.0, 0.5])[labels]
    )
    torch.testing.assert_close(loss(scores, labels), own)
    for row in range(6):
        torch.testing.assert_close(loss(scores[[row]], labels[[row]])[0], own[row])


@check
def check_weights_of_classes_move_decisions() -> None:
    """Rare rows are seen, balanced accuracy is above that of a constant, and scores are of the
    weighted population.
    """
    plain, weighted = trained(temperature=0.0), trained(class_weights={0: 1, 1: 8})
    before, after = (pv.evaluate(result, NEW_X, NEW_Y) for result in (plain, weighted))
    assert after["balanced_accuracy"] > max(0.65, before["balanced_accuracy"] + 0.1), (
        before,
        after,
    )
    assert weighted.plan.temperature is None  # type: ignore[attr-defined]
    assert weighted.plan.clip.clip_norm == 1.0  # type: ignore[attr-defined]
    share = np.where(NEW_Y == 1, 8.0, 1.0)
    with torch.no_grad():
        scores = weighted.model(torch.from_numpy(NEW_X)).double().log_softmax(1).numpy()
    losses = -scores[np.arange(len(NEW_Y)), NEW_Y]
    base = share[NEW_Y == 1].sum() / share.sum()
    assert (share * losses).sum() / share.sum() < -(
        base * np.log(base) + (1 - base) * np.log(1 - base)
    )


@check
def check_weights_of_classes_cost_nothing_and_are_said() -> None:
    """The ledger holds what an unweighted run's does; certificate and card say the weights; the
    model loads.
    """
    plain, weighted = (trained(temperature=0.0, **more) for more in ({}, {"class_weights": (1, 4)}))
    assert weighted.ledger.event == plain.ledger.event
    assert not torch.equal(weights(weighted), weights(plain))
    with tempfile.TemporaryDirectory() as folder:
        out = pv.publish(weighted, Path(folder) / "model")
        assert pv.verify(out).ok
        card = (out / "README.md").read_text("utf-8")
        assert "| weights of the classes | 0.25, 1 |" in card
        assert "come as often as they weigh" in card
        published = pv.load_model(out)
        assert torch.equal(
            published.predict(X[:50]), weighted.model(torch.from_numpy(X[:50])).argmax(1)
        )
