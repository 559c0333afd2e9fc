"""Clipping apart from layer kinds: what cannot be computed fast, empty batches, losses that are
refused, dropout.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.errors import NotPerExample
from tests.support.nets import cross_entropy, one_sample, small_data, small_net


def test_what_vmap_cannot_run_is_left_to_the_loop() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.ones(5)), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            if not x.isfinite().all().item():
                raise ValueError("no numbers")
            return self.layer(torch.outer(x[:, 0], self.scale) + x)

    torch.manual_seed(0)
    net, (x, y) = Asks().double(), small_data()
    clipper = ClippedGradients(net, cross_entropy, Flat(1e6), Adjacency.ADD_REMOVE)
    found = clipper(one_sample(examples=len(x)), x, y).values
    assert clipper.way == "loop"
    true = torch.autograd.grad(cross_entropy(net(x), y).sum(), list(net.parameters()))
    for one, other in zip(found, true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_an_empty_batch_gives_zeros() -> None:
    x, y = small_data()
    sample = one_sample()
    sample.indices = sample.indices[:0]
    found = ClippedGradients(small_net(), cross_entropy, Flat(1.0), Adjacency.ADD_REMOVE)(
        sample, x, y
    )
    assert all(float(value.abs().sum()) == 0 for value in found.values)
    assert found.sensitivity == 1.0


def test_a_mean_loss_is_refused() -> None:
    x, y = small_data()
    clipper = ClippedGradients(
        small_net(), lambda out, t: cross_entropy(out, t).mean(), Flat(1.0), Adjacency.ADD_REMOVE
    )
    with pytest.raises(NotPerExample, match="reduction='none'"):
        clipper(one_sample(examples=len(x)), x, y)


def test_dropout_draws_a_mask_for_each_example() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3)).double()
    x, y = torch.ones(64, 5, dtype=torch.float64), torch.zeros(64, dtype=torch.int64)
    clipper = ClippedGradients(net, cross_entropy, Flat(1e9), Adjacency.ADD_REMOVE)
    found = clipper(one_sample(examples=64), x, y).values[0]
    assert len(found.unique()) > 3
