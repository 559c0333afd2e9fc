"""A run whose gradients are not computed layer by layer says so once: which layer, how much slower,
what to change.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.clipping.model_check import layer_of
from tests.support.nets import cross_entropy

PLAN = pv.Plan(pv.sampling.FullBatch(), 2, pv.schedules.Constant(1.0))


def said(model: nn.Module, rows: Tensor) -> list[str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pv.dpsgd(
            PLAN,
            copy.deepcopy(model),
            cross_entropy,
            (rows, torch.zeros(len(rows), dtype=torch.long)),
        )
    return [str(each.message) for each in heard]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.RNN(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(x)[0][:, -1])
        return outputs


@pytest.mark.parametrize(
    ("model", "rows", "expected"),
    [
        (
            nn.Sequential(nn.Linear(3, 2), nn.PReLU(2)),
            torch.ones(4, 3),
            ("vmap", "'1.weight'", "prelu", "55 times"),
        ),
        (
            Recurrent(),
            torch.ones(4, 5, 3),
            ("one example after another", "'body.weight_ih_l0'", "rnn_tanh", "passes"),
        ),
    ],
)
def test_a_slow_layer_is_named_once(
    model: nn.Module, rows: Tensor, expected: tuple[str, ...]
) -> None:
    (text,) = said(model, rows)
    assert all(part in text for part in (*expected, "training will be slow", "freeze its layer"))
    assert said(model, rows) == [text]  # it follows from the model: two runs do not differ in it


def test_nothing_is_said_of_layers_with_rules_or_frozen_ones() -> None:
    assert not said(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(4, 3))
    model = nn.Sequential(nn.Linear(3, 2), nn.PReLU(2))
    model[1].requires_grad_(False)
    assert not said(model, torch.ones(4, 3))


def test_the_layer_in_which_an_error_was_raised_is_named() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    model: Any = nn.Sequential(nn.Linear(1, 1), nn.Sequential(Fails()))
    with pytest.raises(RuntimeError) as raised:
        model(torch.ones(1, 1))
    assert layer_of(raised.value, model) == " (in layer '1.0', a Fails)"
    with pytest.raises(RuntimeError) as raised:
        Fails()(torch.ones(1, 1))
    assert layer_of(raised.value, model) == ""


def test_a_loss_that_is_not_finite_on_made_up_rows_is_computed_one_by_one() -> None:
    """No faster way is known then, and training goes on with rows on which it is finite."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        far = (1e-6 - targets.square()).sqrt() * 0  # nan but for the smallest
        return outputs.square().sum(1) + far

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    rows = (torch.randn(8, 3), torch.full((8,), 1e-4))
    with pytest.warns(UserWarning, match="its gradients on made-up rows are not finite"):
        result = pv.dpsgd(PLAN, model, loss, rows)
    assert list(result.private_diagnostics["left_out"]) == [0, 0]
