"""Every layer kind, alone and composed, against the loop over single examples in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks import cross_entropy, one_sample
from torch import Tensor, nn

from privlearn.accounting.adjacency import Adjacency
from privlearn.clipping.bounded import Flat, PerLayer
from privlearn.clipping.gradients import ClippedGradients
from privlearn.clipping.layers import _RULES, rule_for
from privlearn.errors import NotPerExample


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embed(tokens).mean(1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class BesideItsModule(nn.Module):
    """Uses a layer's weight without calling the layer, and calls it too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.layer.weight


class SequenceFirst(nn.Module):
    """Puts the batch second, where a length equal to the batch could be mistaken for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).sum(0)


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


def frozen_first() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    net[0].weight.requires_grad_(False)
    return net


TOKENS = (7,)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "mlp, in-place relu": (lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), (5,)),
    "linear on sequences": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)), (6, 5)),
    "linear on grids": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Flatten(), nn.Linear(24, 3)), (2, 3, 5)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)), (2, 6, 6)),
    "conv2d, strided, padded, dilated, grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), nn.Flatten(), nn.LazyLinear(3)
        ),
        (4, 9, 7),
    ),
    "conv2d without a rule": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular"), nn.Flatten(), nn.Linear(75, 3)
        ),
        (2, 5, 5),
    ),
    "layer norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)), (5,)),
    "layer norm on grids": (lambda: nn.Sequential(nn.LayerNorm((3, 5)), nn.Flatten(), nn.Linear(30, 3)), (2, 3, 5)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)),
        (2, 6, 6),
    ),
    "group norm on rows": (lambda: nn.Sequential(nn.Linear(5, 6), nn.GroupNorm(3, 6), nn.Linear(6, 3)), (5,)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(28, 3)), TOKENS),
    "embedding with padding": (
        lambda: nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(28, 3)),
        TOKENS,
    ),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(18, 3)), (2, 8)),
    "multihead attention": (Attends, (4, 8)),
    "tied weights": (Tied, TOKENS),
    "a layer called twice": (Twice, (5,)),
    "a weight used beside its layer": (BesideItsModule, (5,)),
    "batch second": (SequenceFirst, (6, 5)),
    "batch second, as long as the batch": (SequenceFirst, (9, 5)),
    "a parameter of its own": (OwnParameter, (5,)),
    "a frozen weight": (frozen_first, (5,)),
}
WITH_RULES = {nn.Linear, nn.Conv2d, nn.LayerNorm, nn.GroupNorm, nn.Embedding}


def make(case: str, rows: int = 9) -> tuple[nn.Module, Tensor, Tensor]:
    factory, shape = CASES[case]
    torch.manual_seed(1)
    net = factory()
    made_up = torch.Generator().manual_seed(2)
    if shape is TOKENS:
        x = torch.randint(6, (rows, *shape), generator=made_up)
    else:
        x = torch.randn(rows, *shape, generator=made_up) * torch.linspace(0.01, 5, rows).view(-1, *[1] * len(shape))
    with torch.no_grad():
        net(x)
    net = net.double()
    return net, x.double() if x.is_floating_point() else x, torch.randint(3, (rows,), generator=made_up)


def by_the_loop(net: nn.Module, clip: Any, x: Tensor, y: Tensor) -> list[Tensor]:
    """Clip each example's gradient by itself, the plain way."""
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    layers = sorted({name.rpartition(".")[0] for name in trained})
    total = {name: torch.zeros_like(p) for name, p in trained.items()}
    for row in range(len(x)):
        loss = cross_entropy(net(x[row : row + 1]), y[row : row + 1]).sum()
        gradient = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
        groups = [list(trained)] if isinstance(clip, Flat) else [
            [name for name in trained if name.rpartition(".")[0] == layer] for layer in layers
        ]  # fmt: skip
        for group in groups:
            norm = math.sqrt(sum(float(gradient[name].square().sum()) for name in group))
            for name in group:
                total[name] += gradient[name] * min(1.0, clip.clip_norm / norm if norm else 1.0)
    return list(total.values())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("clip", [Flat(0.5), PerLayer(0.3), Flat(1e6)], ids=["flat", "layer", "unclipped"])
def test_the_clipped_sum_is_the_loops(case: str, clip: Any) -> None:
    net, x, y = make(case)
    clipper = ClippedGradients(net, cross_entropy, clip, Adjacency.ADD_REMOVE)
    found = clipper(one_sample(examples=len(x)), x, y).values
    for one, other in zip(found, by_the_loop(net, clip, x, y), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_rules_serve_the_layers_they_are_for() -> None:
    fast = {case for case in CASES if way_of(case) == "_by_layers"}
    assert {"linear", "linear on sequences", "conv2d", "layer norm", "group norm", "embedding"} <= fast
    assert set(_RULES) == WITH_RULES
    assert rule_for(nn.Conv1d(1, 1, 1)) is None


def way_of(case: str) -> str:
    net, x, y = make(case)
    clipper = ClippedGradients(net, cross_entropy, Flat(1.0), Adjacency.ADD_REMOVE)
    clipper(one_sample(examples=len(x)), x, y)
    return clipper._compute.__name__  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "case", ["a layer called twice", "a weight used beside its layer", "batch second", "tied weights"]
)
def test_what_rules_would_get_wrong_is_left_to_the_reference(case: str) -> None:
    assert way_of(case) == "_by_vmap"


def test_what_vmap_cannot_run_is_left_to_the_loop() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.ones(5)), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            if not x.isfinite().all().item():
                raise ValueError("no numbers")
            return self.layer(x * self.scale)

    torch.manual_seed(0)
    net = Asks().double()
    _, x, y = make("linear")
    clipper = ClippedGradients(net, cross_entropy, Flat(0.5), Adjacency.ADD_REMOVE)
    found = clipper(one_sample(examples=len(x)), x, y).values
    assert clipper._compute.__name__ == "_by_loop"  # type: ignore[union-attr]
    for one, other in zip(found, by_the_loop(net, Flat(0.5), x, y), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_nothing_is_left_on_the_users_model() -> None:
    net, x, y = make("conv2d")
    before = {name: set(vars(module)) for name, module in net.named_modules()}
    clipper = ClippedGradients(net, cross_entropy, Flat(1.0), Adjacency.ADD_REMOVE)
    clipper(one_sample(examples=len(x)), x, y)
    for name, module in net.named_modules():
        assert set(vars(module)) == before[name]
        assert not module._forward_hooks
        assert module.training
    for parameter in net.parameters():
        assert parameter.grad is None


def test_float32_is_close_to_float64() -> None:
    net, x, y = make("conv2d", rows=32)
    exact = by_the_loop(net, Flat(0.5), x, y)
    clipper = ClippedGradients(net.float(), cross_entropy, Flat(0.5), Adjacency.ADD_REMOVE)
    found = clipper(one_sample(examples=32), x.float(), y).values
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_an_empty_batch_gives_zeros() -> None:
    net, x, y = make("linear")
    sample = one_sample()
    sample.indices = sample.indices[:0]
    found = ClippedGradients(net, cross_entropy, Flat(1.0), Adjacency.ADD_REMOVE)(sample, x, y)
    assert all(float(value.abs().sum()) == 0 for value in found.values)
    assert found.sensitivity == 1.0


def test_a_mean_loss_is_refused() -> None:
    net, x, y = make("linear")
    clipper = ClippedGradients(net, lambda out, t: cross_entropy(out, t).mean(), Flat(1.0), Adjacency.ADD_REMOVE)
    with pytest.raises(NotPerExample, match="reduction='none'"):
        clipper(one_sample(examples=len(x)), x, y)


def test_dropout_draws_a_mask_for_each_example() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3)).double()
    x, y = torch.ones(64, 5, dtype=torch.float64), torch.zeros(64, dtype=torch.int64)
    clipper = ClippedGradients(net, cross_entropy, Flat(1e9), Adjacency.ADD_REMOVE)
    found = clipper(one_sample(examples=64), x, y).values[0]
    assert len(found.unique()) > 3
