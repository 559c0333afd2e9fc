"""The clipping engine: its memory, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import per_example, row_norms
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from tests.support.nets import cross_entropy, one_sample, small_data


def engine(net: nn.Module, clip: Any = Flat(0.3), **options: Any) -> ClippedGradients:  # noqa: B008 - a frozen value
    return ClippedGradients(net, cross_entropy, clip, Adjacency.ADD_REMOVE, **options)


def test_sums_hold_on_to_no_activations() -> None:
    torch.manual_seed(0)
    images = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3)
    )
    dense = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    for net, x in ((images, torch.randn(6, 1, 6, 6)), (dense, torch.randn(6, 5))):
        clipper = engine(net, microbatch=2)
        found = clipper(one_sample(examples=6), x, torch.arange(6) % 3).values
        assert clipper.way == "layers"
        assert not any(value.requires_grad for value in found)


class Asks(nn.Module):
    """Has no rule for what it does with its scale."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.scale = nn.ModuleList(layers), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return torch.atan2(x, self.scale)[:, :3]


def test_a_layer_under_two_names_keeps_its_parameters() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(5, 5)
    net, (x, y) = Asks(shared, shared).double(), small_data()
    before = dict(net.named_parameters(remove_duplicate=False))
    clipper = engine(net, Flat(1e6))
    found = clipper(one_sample(examples=len(x)), x, y).values
    assert clipper.way == "vmap"
    after = dict(net.named_parameters(remove_duplicate=False))
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    true = torch.autograd.grad(cross_entropy(net(x), y).sum(), list(net.parameters()))
    for one, other in zip(found, true, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("length", [5, 1023, 1024, 1500, 200_000])
def test_norms_of_long_rows_are_not_below_the_truth(length: int) -> None:
    """Small numbers behind a large one, and equal ones, whose squares add up in single precision
    only in short runs.
    """
    made_up = torch.Generator().manual_seed(0)
    behind = torch.full((1, length), 2.0**-12.5)
    behind[:, 0] = 1
    spread = torch.randn(20, length, generator=made_up)
    rows = torch.cat([spread, spread.mul(2).exp(), behind, torch.full((1, length), 0.1)])
    found, true = row_norms.row_norms(rows), rows.double().norm(dim=1)
    assert found.dtype == torch.float64
    assert ((found - true).abs() <= 16 * torch.finfo(torch.float32).eps * true).all()


@pytest.mark.parametrize("small", [1e-20, 1e-22, 1e-23])
def test_gram_norms_of_small_and_large_factors(small: float) -> None:
    """Squares of the one leave single precision, those of the other make up for it."""
    made_up = torch.Generator().manual_seed(0)
    g, a = (torch.randn(6, 4, 50, generator=made_up) * scale for scale in (small, 1e18))
    found = per_example.GramNorms(g, a, (50, 50), lambda weights, into: None)
    true = (g.double().mT @ a.double()).square().sum((1, 2))
    torch.testing.assert_close(found.squares, true, rtol=1e-5, atol=0.0)


def test_tokens_whose_gradients_cancel_leave_nothing() -> None:
    g = torch.tensor([[[1e6], [-1e6]]])
    found = per_example.SparseRows(torch.tensor([[1, 1]]), g, (3, 1))
    into = torch.full((3, 1), 0.1)
    found.add_weighted(torch.ones(1), into)
    assert float(found.squares) == 0
    assert into.eq(0.1).all()


def test_gram_norms_of_terms_that_cancel_are_not_below_the_truth() -> None:
    """Down to where gradients are formed instead."""
    made_up = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made_up)

    for apart in (0.11, 0.13, 0.15, 0.17, 0.2):
        a = drawn(512, 1, 64) + apart * drawn(512, 2, 64)
        g = drawn(512, 1, 64) * torch.tensor([1.0, -1.0])[:, None] + apart * drawn(512, 2, 64)
        found = per_example.GramNorms(g, a, (64, 64), lambda weights, into: None)
        true = (g.double().mT @ a.double()).square().sum((1, 2)).sqrt()
        assert (found.squares.sqrt() * (1 + 32 * torch.finfo(torch.float32).eps) >= true).all()
