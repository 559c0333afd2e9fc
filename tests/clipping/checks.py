"""Named checks of the clipping engine, beside those of the spine in checks.py; mutations must make
them fail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.core import streams
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping import backends, gradients, kernels, row_norms
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.core.clipping.clips import Automatic, Clip, Flat, PerLayer, Quantile
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.model_check import made_up_batch
from privlearn.core.clipping.parameters.standardisation import (
    OuterSums,
    Standardisation,
    ThroughStandardisation,
)
from privlearn.core.clipping.per_example import (
    Dense,
    ExampleGradients,
    GramNorms,
    OuterProduct,
    RowBlocks,
    SparseRows,
    settle_all,
    together,
)
from privlearn.core.mechanisms import release as release_module
from tests.support.checks import check, compared_or_not
from tests.support.nets import (
    _moves,
    bounded,
    clipped,
    clipped_by_the_loop,
    cross_entropy,
    flat_norm,
    one_sample,
    require_standard_deviation,
    require_the_loops_sum,
    small_data,
    small_net,
)
from tests.support.registries import completed

EPS = torch.finfo(torch.float32).eps
#: What a missing value is marked by; no made-up row has it.
MISSING = -1.0


class Net(nn.Module):
    """Its parts, and how they are run."""

    def __init__(
        self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter
    ) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Gradients of one parameter


def require_gradients(found: ExampleGradients, gradients: Tensor) -> None:
    """What is found is these gradients: formed, in their norms, and in weighted sums on top of what
    was there.
    """
    rounding = 1e-12 if gradients.dtype == torch.float64 else 2e-5
    true = gradients.double()
    torch.testing.assert_close(found.form().double(), true, rtol=rounding, atol=rounding)
    torch.testing.assert_close(
        found.squares, true.flatten(1).square().sum(1), rtol=rounding, atol=0.0
    )
    weights, into = (
        torch.linspace(0.5, 2, len(true)).to(gradients),
        drawn(*true.shape[1:]).to(gradients),
    )
    expected = into.double() + torch.tensordot(weights.double(), true, 1)
    found.add_weighted(weights, into)
    torch.testing.assert_close(
        into.double(), expected, rtol=rounding, atol=rounding * float(expected.abs().max())
    )


def gram(g: Tensor, a: Tensor) -> GramNorms:
    def weighted(weights: Tensor, into: Tensor) -> None:
        into += torch.einsum("i,ito,ita->oa", weights, g, a)

    return GramNorms(g, a, (g.shape[2], a.shape[2]), weighted)


@check
def check_every_kind_of_gradient_is_what_it_stands_for() -> None:
    for dtype in (torch.float64, torch.float32):
        g, a = drawn(6, 3, 5, seed=1).to(dtype), drawn(6, 3, 4, seed=2).to(dtype)
        one = OuterProduct(g[:, 0], a[:, 0], row_norms.RowNorms(g[:, 0]), kernels.Kernels())
        require_gradients(one, torch.einsum("io,ia->ioa", g[:, 0], a[:, 0]))
        require_gradients(gram(g, a), torch.einsum("ito,ita->ioa", g, a))
        tokens = torch.tensor([[0, 0, 0], [1, 2, 1], [6, 5, 4], [6, 6, 5], [0, 3, 0], [2, 2, 2]])
        chosen = torch.nn.functional.one_hot(tokens, 7).to(dtype)
        require_gradients(SparseRows(tokens, g, (7, 5)), torch.einsum("itv,itw->ivw", chosen, g))
        require_gradients(Dense(g), g)

        whole = g.new_zeros(6, 9, 5)
        whole[:, 4:7], whole[:, 0:3] = g, 2 * g
        apart: list[tuple[slice | None, ExampleGradients]] = [
            (slice(4, 7), Dense(g)),
            (slice(0, 3), Dense(2 * g)),
        ]
        assert isinstance(together(apart, (9, 5)), RowBlocks)
        require_gradients(together(apart, (9, 5)), whole)
        whole[:, 2:5] += g
        require_gradients(together([*apart, (slice(2, 5), Dense(g))], (9, 5)), whole)
        require_gradients(together([(None, Dense(g)), (None, Dense(-g / 2))], (3, 5)), g / 2)


@check
def check_terms_that_cancel_keep_their_norm() -> None:
    """Two positions, nearly the same, with opposite gradients: down to nothing."""
    for apart in (1e-1, 1e-2, 1e-3, 1e-4):
        a = drawn(8, 1, 30, seed=1) + apart * drawn(8, 2, 30, seed=2)
        g = drawn(8, 1, 20, seed=3) * torch.tensor([1.0, -1.0])[:, None]
        g, a = g.float(), a.float()
        found = gram(g, a)
        true = (g.double().mT @ a.double()).square().sum((1, 2))
        assert (found.squares * (1 + 64 * EPS) >= true).all()
        torch.testing.assert_close(found.squares, true, rtol=1e-4, atol=0.0)
        into, weights = torch.zeros(20, 30), 1 / found.squares.sqrt().float()
        found.add_weighted(weights, into)
        exact = torch.einsum("i,ito,ita->oa", weights.double(), g.double(), a.double())
        torch.testing.assert_close(into.double(), exact, rtol=0.0, atol=1e-4)


@check
def check_what_is_not_reached_is_not_formed() -> None:
    """Gradients that are zero, as behind a gain that starts at zero; not those that are small, nor
    beside infinity.
    """
    a, g = drawn(4, 3, 30, seed=1).float(), drawn(4, 3, 20, seed=2).float()
    g[0], g[1], g[2], a[2, 0, 0] = 0.0, 1e-30 * g[1], 0.0, math.inf
    found = gram(g, a)
    assert found.squares[0] == 0
    assert found.squares[2] == math.inf
    true = (g[1].double().mT @ a[1].double()).square().sum()
    torch.testing.assert_close(found.squares[1], true, rtol=1e-4, atol=0.0)
    assert list(found._apart) == [1, 2]


@check
def check_layers_are_looked_at_together() -> None:
    """Each as by itself: one whose terms cancel, one that is not reached, in blocks of rows, of
    other widths.
    """
    batches = [
        (drawn(4, 3, wide, seed=wide).float(), drawn(4, 3, 30, seed=1).float())
        for wide in (20, 400, 20, 20)
    ]
    batches[1][0][0] = 0.0
    cancelled = batches[2]
    cancelled[0][1, 1], cancelled[1][1, 1] = -cancelled[0][1, 0], cancelled[1][1, 0]
    cancelled[0][1, 2] = 1e-4 * cancelled[0][1, 0]
    alone, layers = ([gram(g, a) for g, a in batches] for _ in range(2))
    blocks = RowBlocks([(slice(0, 20), layers[2]), (slice(20, 40), layers[3])], (40, 30))
    settle_all([layers[0], layers[1], blocks])
    for one, other in zip(alone, layers, strict=True):
        assert other._squares is not None
        assert torch.equal(one.squares, other.squares)
        assert torch.equal(one._apart, other._apart)
    assert [own._apart.tolist() for own in layers] == [[], [], [1], []]
    assert layers[1].squares[0] == 0
    assert torch.equal(blocks.squares, layers[2].squares + layers[3].squares)


@check
def check_norms_that_leave_single_precision() -> None:
    """Too small or too large to square, alone or beside other rows; one factor small and the other
    large; long rows.
    """
    for scales in ((1e-30, 1.0), (7e18, 1.0), (1e-21, 1e-25), (1e-30, 7e18)):
        rows = torch.stack([scale * drawn(50, seed=1).float() for scale in scales])
        torch.testing.assert_close(
            row_norms.row_norms(rows), rows.double().norm(dim=1), rtol=1e-5, atol=0.0
        )
    parts = [
        scale * drawn(2, 50, seed=seed).float() for seed, scale in enumerate((1.0, 1e-30, 7e18))
    ]
    # looked at as one, and computed apart
    together = torch.stack([part.double().norm(dim=1) for part in parts])
    torch.testing.assert_close(row_norms.norms_of(*parts), together, rtol=1e-5, atol=0.0)
    for small, large in ((1e-23, 1e8), (1e-22, 1e18), (1e-23, 1e18), (1e-12, 1e16), (1e-30, 1.0)):
        g, a = small * drawn(6, 4, 50, seed=2).float(), large * drawn(6, 4, 50, seed=3).float()
        for one, other in ((g, a), (a, g)):
            true = (one.double().mT @ other.double()).square().sum((1, 2))
            torch.testing.assert_close(gram(one, other).squares, true, rtol=1e-4, atol=0.0)
    behind = torch.full((1, 200_000), 2.0**-12.5)
    behind[:, 0] = 1
    assert float(row_norms.row_norms(behind)) >= float(behind.double().norm()) * (1 - 16 * EPS)
    for width in (1000, 4000):
        rows = behind[:, None, :width].expand(1, 2, width).contiguous()
        true = float((rows.double().mT @ rows.double()).square().sum())
        assert float(gram(rows, rows).squares) >= true * (1 - 16 * EPS)


# Standardised weights


def standardised(
    dtype: torch.dtype, gain: bool, channels: int = 4, width: int = 12
) -> Standardisation:
    x = drawn(1, channels, width, seed=4).to(dtype).requires_grad_()
    own = drawn(channels, seed=5).to(dtype).requires_grad_() if gain else None
    return Standardisation(x, own, own, 1e-2)


def outer_sums(g: Tensor, a: Tensor) -> OuterSums:
    return OuterSums(g, a, (g.shape[2], a.shape[2]), kernels.kernels(None))


def taken_back_in_double(through: Standardisation, g: Tensor, a: Tensor) -> Tensor:
    """Each example's gradient of the weights that are standardised, (examples, 1, channels, K)."""
    precise = Standardisation(through.x.double(), through.gain, through.shift, through.eps)
    *_, (_, true) = precise.backward((g.double().mT @ a.double())[:, None])
    return true


@check
def check_standardised_weights_have_the_gradients_of_autograd() -> None:
    """Formed ones and sums of positions, with a gain and a shift and without; sums in the type that
    is asked for.
    """
    for dtype, gain in ((torch.float64, True), (torch.float64, False), (torch.float32, True)):
        through = standardised(dtype, gain)
        g, a = drawn(5, 3, 4, seed=1).to(dtype), drawn(5, 3, 12, seed=2).to(dtype)
        y = F.batch_norm(through.x, None, None, through.gain, through.shift, True, 0.0, through.eps)
        given = [through.x, *((through.gain,) if gain else ())]
        true = torch.autograd.grad(y, given, (g.mT @ a)[:, None], is_grads_batched=True)
        for start in (outer_sums(g, a), Dense(g.mT @ a)):
            found: dict[int, Any] = {}
            for tensor, own in through.taken_back_by_example(start):
                found[id(tensor)] = (
                    own if id(tensor) not in found else Dense(found[id(tensor)].form() + own.form())
                )
            for tensor, expected in zip(given, true, strict=True):
                require_gradients(found[id(tensor)], expected)
        into = torch.zeros(1, 4, 12, dtype=torch.float64)
        dict(through.taken_back_by_example(outer_sums(g, a)))[through.x].add_weighted(
            torch.ones(5, dtype=torch.float64), into
        )
        torch.testing.assert_close(into, true[0].double().sum(0), rtol=1e-5, atol=1e-5)


@check
def check_gradients_along_standardised_weights_keep_their_norm() -> None:
    """What standardising takes out is nearly everything, down to rounding; an example of these in a
    sum of others.
    """
    through = standardised(torch.float32, False)
    z = through.statistics()[0]
    for left in (1e-1, 1e-2, 1e-3, 1e-4):
        g = drawn(8, 1, 4, seed=1).float()
        a = drawn(8, 1, 1, seed=2).float() * (1 + z[0]) + left * drawn(8, 1, 12, seed=3).float()
        g[:, :, 1:] = 0.0  # the first channel's weights are what `a` is made of
        a[7] = drawn(1, 12, seed=6).float()
        found = ThroughStandardisation(outer_sums(g, a), through)
        true = taken_back_in_double(through, g, a)
        squares = true.flatten(1).square().sum(1)
        assert (found.squares * (1 + 64 * EPS) >= squares).all()
        torch.testing.assert_close(found.squares, squares, rtol=1e-3, atol=0.0)
        into, weights = torch.zeros(1, 4, 12), 1 / found.squares.sqrt().float()
        found.add_weighted(weights, into)
        exact = torch.tensordot(weights.double(), true, 1)
        torch.testing.assert_close(into.double(), exact, rtol=0.0, atol=1e-4)
    g, a = drawn(4, 3, 4, seed=1).float(), drawn(4, 3, 12, seed=2).float()
    g[0], g[1], g[2], a[2, 0, 0] = 0.0, 1e-30 * g[1], 0.0, math.inf
    found = ThroughStandardisation(outer_sums(g, a), through)
    assert found.squares[0] == 0
    assert found.squares[2] == math.inf
    true = taken_back_in_double(through, g[1:2], a[1:2])
    torch.testing.assert_close(found.squares[1], true.square().sum(), rtol=1e-4, atol=0.0)
    # Two positions, nearly the same, with opposite gradients.
    for apart in (1e-1, 1e-2, 1e-3, 1e-4):
        a = (drawn(8, 1, 12, seed=1) + apart * drawn(8, 2, 12, seed=2)).float()
        g = (drawn(8, 1, 4, seed=3) * torch.tensor([1.0, -1.0])[:, None]).float()
        squares = taken_back_in_double(through, g, a).flatten(1).square().sum(1)
        found = ThroughStandardisation(outer_sums(g, a), through)
        torch.testing.assert_close(found.squares, squares, rtol=1e-3, atol=0.0)
    # One channel with inputs at an angle to z: from where z takes more than half, gradients are
    # formed.
    angles = torch.linspace(0.0, 1.5, 12)
    across = drawn(12, seed=7).float()
    across = across - across.mean() - z[0] * (across @ z[0]) / (z[0] @ z[0])
    a = (
        angles.cos()[:, None] * across / across.norm() + angles.sin()[:, None] * z[0] / z[0].norm()
    )[:, None]
    g = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(12, 1, 4)
    found = ThroughStandardisation(outer_sums(g, a), through)
    assert {*range(7, 12)} <= {*found._apart.tolist()} <= {*range(5, 12)}


@check
def check_norms_of_standardised_weights_are_never_below_the_true_ones() -> None:
    """Wide channels and many positions of one sign, where sums in single precision lose most."""
    for positions, width in ((2, 4608), (30, 1000)):
        through = standardised(torch.float32, False, 16, width)
        g, a = (
            drawn(3, positions, 16, seed=1).float().abs(),
            drawn(3, positions, width, seed=2).float().abs(),
        )
        found = ThroughStandardisation(outer_sums(g, a), through)
        true = taken_back_in_double(through, g, a)
        squares = true.flatten(1).square().sum(1)
        assert (found.squares * (1 + 16 * EPS) >= squares).all()
        torch.testing.assert_close(found.squares, squares, rtol=2e-2, atol=0.0)
    through = standardised(torch.float32, False, 16, 50)
    for small, large in ((1e-23, 1e8), (1e-22, 1e18), (1e-23, 1e18), (1e-12, 1e16), (1e-30, 1.0)):
        g, a = small * drawn(6, 4, 16, seed=2).float(), large * drawn(6, 4, 50, seed=3).float()
        for one, other in ((g, a), (g / small * large, a / large * small)):
            found = ThroughStandardisation(outer_sums(one, other), through)
            squares = taken_back_in_double(through, one, other).flatten(1).square().sum(1)
            torch.testing.assert_close(found.squares, squares, rtol=1e-4, atol=0.0)


# Networks


def sequences() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))


def batch_second(n: Any, x: Tensor) -> Tensor:
    return n.b(n.a(x.transpose(0, 1)).tanh().sum(0))


def twice(n: Any, x: Tensor) -> Tensor:
    return n.b(n.a(n.a(x).tanh()).tanh())


def embedded_and_read(n: Any, x: Tensor) -> Tensor:
    return nn.functional.linear(n.a(x).sum(1).tanh(), n.a.weight)[:, :3]


def self_and_cross(n: Any, x: Tensor) -> Tensor:
    seen = n.a(x, x, x, need_weights=False)[0]
    return n.b(n.a(seen.tanh(), x, x, need_weights=False)[0].flatten(1))


def weight_normed(n: Any, x: Tensor) -> Tensor:
    """Weights that are computed from parameters, and a scale that is one more than a parameter."""
    hidden = nn.functional.linear(x, n.w / n.w.norm(dim=1, keepdim=True)) * (1 + n.s)
    return n.b(hidden.tanh())


def positions(n: Any, x: Tensor) -> Tensor:
    """The same positions in every example, by a table and by a slice of one, and one token shared
    by all examples.
    """
    places = torch.arange(3)[None]
    hidden = n.b(x + n.a(places) + n.t[:3]).tanh()
    return nn.functional.linear(torch.cat([n.c.expand(len(x), 2, -1), hidden], 1).sin().sum(1), n.w)


def relative_positions(n: Any, x: Tensor) -> Tensor:
    """A bias for attention, from a table that is looked up by places, alone and under a mask."""
    q = n.a(x).view(len(x), 3, 2, 2).transpose(1, 2)
    places = torch.arange(9).view(3, 3) % 5
    bias = n.t[places.flatten()].view(3, 3, 2).permute(2, 0, 1)[None]
    seen = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=bias)
    masked = (q @ q.mT + torch.where(x[:, None, :, :1] > 0, bias, -5.0)).softmax(-1) @ q
    return n.b((seen / bias.sigmoid().sum() - masked).flatten(1))


def transposed(n: Any, x: Tensor) -> Tensor:
    """A weight's transpose, a product plus a bias, sums by einsum (batch first and second), and a
    table by index.
    """
    hidden = torch.addmm(n.s, (x @ n.w.T).flatten(0, 1), n.t).view(len(x), -1, 4)
    hidden = torch.einsum("btd,dhk->bthk", hidden.tanh(), n.c).flatten(2)
    second = (
        torch.einsum("tbd,dhk->tbhk", hidden.tanh().transpose(0, 1), n.c).flatten(2).transpose(0, 1)
    )
    rows = n.t[(x.sum(2) > 0).long()]
    return n.b((second * rows + n.c.flatten(1).repeat(len(x), 1).view(len(x), 4, 4)[:, :1]).sum(1))


def reshaped(n: Any, x: Tensor) -> Tensor:
    """Weights that have other shapes as parameters than in operations; one of them standardised,
    with a gain.
    """
    h = F.conv2d(x, n.a.reshape(4, 2, 2, 2), dilation=2).tanh()
    w = F.batch_norm(
        (n.b * 1).reshape(1, 3, -1).mul_(2),
        None,
        None,
        (n.gain * 0.5).flatten(),
        None,
        True,
        0.0,
        1e-3,
    )
    return F.linear(F.conv2d(h, w.reshape(3, 4, 2, 2)).flatten(2).mT.tanh(), n.c.view(3, 3)).sum(1)


def convolved_twice(n: Any, x: Tensor) -> Tensor:
    """A convolution of one position, shared."""
    return n.b(n.a(n.a(x).tanh()).flatten(1))


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(drawn(*shape, seed=sum(shape)))


def layerwise() -> list[tuple[nn.Module, Tensor]]:
    """Networks of operations with rules, and rows for them: as many as the smaller made-up batch
    has.
    """
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    nn.init.normal_(attention.in_proj_bias)
    nets: list[tuple[nn.Module, Tensor]] = [
        (small_net(), drawn(5, 5)),
        (sequences(), drawn(5, 3, 5)),
        (Net(batch_second, a=nn.Linear(5, 4), b=nn.Linear(4, 3)), drawn(5, 10, 5)),
        (Net(twice, a=nn.Linear(5, 5), b=nn.Linear(5, 3)), drawn(5, 5)),
        (Net(embedded_and_read, a=nn.Embedding(7, 4)), torch.randint(7, (5, 6))),
        (Net(self_and_cross, a=attention, b=nn.Linear(12, 3)), drawn(5, 3, 4)),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)),
            drawn(5, 1, 4, 4),
        ),
        (Net(weight_normed, w=parameter(4, 5), s=parameter(4), b=nn.Linear(4, 3)), drawn(5, 5)),
        (
            Net(
                positions,
                a=nn.Embedding(4, 4, padding_idx=1),
                b=nn.Linear(4, 4),
                c=parameter(1, 1, 4),
                t=parameter(5, 4),
                w=parameter(3, 4),
            ),
            drawn(5, 3, 4),
        ),
        (
            Net(relative_positions, a=nn.Linear(4, 4), b=nn.Linear(12, 3), t=parameter(5, 2)),
            drawn(5, 3, 4),
        ),
        (
            Net(
                transposed,
                w=parameter(4, 4),
                s=parameter(4),
                t=parameter(4, 4),
                c=parameter(4, 2, 2),
                b=nn.Linear(4, 3),
            ),
            drawn(5, 5, 4),
        ),  # as many positions as examples
        (
            Net(
                reshaped,
                a=parameter(4, 8),
                b=parameter(48),
                c=parameter(3, 1, 3),
                gain=parameter(3),
            ),
            drawn(5, 2, 4, 4),
        ),
        (Net(convolved_twice, a=nn.Conv2d(4, 4, 1), b=nn.Linear(4, 3)), drawn(5, 4, 1, 1)),
    ]
    return [(net.double(), x) for net, x in nets]


@check
def check_rules_give_each_examples_gradient() -> None:
    """The rules by themselves, without what would find out that they are wrong; and they are what
    is used.
    """
    for net, x in layerwise():
        y = torch.arange(5) % 3
        problem = backends.Problem(net, cross_entropy, dict(net.named_parameters()))
        batches = [made_up_batch(x, y, size) for size in (5, 7)]
        plain = kernels.Kernels()
        seen = backends.layouts(problem, plain, batches)
        found, losses = backends.PerOperation(problem, plain, seen)(x, y)
        truth, true_losses = backends.Loop(problem)(x, y)
        torch.testing.assert_close(losses, true_losses)
        assert found.keys() == truth.keys()
        for name, expected in truth.items():
            torch.testing.assert_close(found[name].squares, expected.squares, rtol=1e-9, atol=1e-20)
            sums = [torch.zeros_like(problem.parameters[name]) for _ in range(2)]
            with torch.no_grad():
                for each, into in zip((found[name], expected), sums, strict=True):
                    each.add_weighted(torch.linspace(0.5, 2, 5, dtype=torch.float64), into)
            torch.testing.assert_close(*sums, rtol=1e-9, atol=1e-12)
        require_the_loops_sum(net, 0.1, x, y, "layers")


def positions_first_if_marked(n: Any, x: Tensor) -> Tensor:
    if (x[:, 0] == MISSING).any():
        rows = n.a(x.view(-1, 2, 5).transpose(0, 1).reshape(-1, 5)).tanh()
        return n.b(rows.view(2, -1, 4).transpose(0, 1).flatten(1))
    return n.b(n.a(x.reshape(-1, 5)).tanh().view(-1, 8))


def marked_last(n: Any, x: Tensor) -> Tensor:
    order = (x[:, 0] == MISSING).long().argsort(stable=True)
    return n.b(n.a(x[order]).tanh()[order.argsort()])


def marked_beside(n: Any, x: Tensor) -> Tensor:
    return n.b(n.a(x).tanh() + (x[:, :1] == MISSING) * torch.atan2(n.a.bias, x[:, :4]))


BRANCHES: dict[Callable[[Any, Tensor], Tensor], tuple[int, int]] = {
    positions_first_if_marked: (5, 8),
    marked_last: (10, 4),
    marked_beside: (10, 4),
}


@check
@compared_or_not
def check_branches_that_only_real_data_take_change_nothing() -> None:
    for run, (inputs, hidden) in BRANCHES.items():
        torch.manual_seed(0)
        net = Net(run, a=nn.Linear(inputs, 4), b=nn.Linear(hidden, 3)).double()
        x, y = drawn(9, 10) * torch.linspace(0.1, 5, 9)[:, None], torch.arange(9) % 3
        x[[1, 4], 0] = MISSING
        require_the_loops_sum(net, 0.3, x, y)


@check
def check_memory_in_use_is_not_used_again() -> None:
    """Activations large enough for memory to be kept, and kept by the next layer, over several
    steps.
    """
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 700), nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 3)
    ).double()
    x, y = drawn(60, 5), torch.arange(60) % 3
    clipper = ClippedGradients(net, cross_entropy, Flat(0.1), Adjacency.ADD_REMOVE)
    expected = clipped_by_the_loop(net, 0.1, x, y)
    for _ in range(3):
        for one, other in zip(clipper(one_sample(examples=60), x, y).values, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert clipper.way == "layers"


# Bounds


def singles() -> list[tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    tokens = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 3))
    images = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    nets: list[tuple[nn.Module, Tensor]] = [
        (nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 3)), drawn(25, 5)),
        (sequences(), drawn(25, 3, 5)),
        (tokens, torch.randint(6, (25, 3))),
        (images, drawn(25, 1, 4, 4)),
    ]
    return [(net, x.float() if x.is_floating_point() else x) for net, x in nets]


def require_single_examples_within(bound: float, **options: Any) -> None:
    """Each example by itself: what it adds, in double precision, is at most the bound, and nearly
    attains it.
    """
    for net, x in singles():
        clipper = ClippedGradients(net, cross_entropy, Flat(1e-3), Adjacency.ADD_REMOVE, **options)
        for row in range(len(x)):
            found = clipper(one_sample(examples=1), x[row : row + 1], torch.tensor([row % 3]))
            assert all(value.dtype == torch.float32 for value in found.values)
            length = flat_norm(found.values)
            assert 0.999 * bound <= length <= bound, (
                f"row {row} adds {length / bound - 1} more than {bound}"
            )


@check
def check_clipped_examples_leave_room_for_rounding() -> None:
    """Not one of a hundred in single precision is above the bound, not even by its rounding."""
    require_single_examples_within(1e-3)


def sums_of(net: nn.Module, x: Tensor, rows: slice, clip: Clip, **options: Any) -> list[Tensor]:
    clipper = ClippedGradients(net, cross_entropy, clip, Adjacency.ADD_REMOVE, **options)
    own = x[rows]
    found = clipper(
        one_sample(examples=len(own)), own, torch.zeros(len(own), dtype=torch.int64)
    ).values
    return [value.double() for value in found]


@check
def check_sums_of_many_gradients_are_bounded() -> None:
    """Of many rows that point nearly the same way: the first adds its own gradient, and no rounding
    of the others'.

    In single precision a full batch of 65,536 of them would move by 1.1e-2 clip norms more than
    that, to 1.002 clip norms.
    """
    torch.manual_seed(0)
    nets = [
        nn.Linear(50, 2),
        nn.Sequential(nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 4)),
        nn.Sequential(
            nn.Unflatten(1, (2, 5, 5)),
            nn.Conv2d(2, 4, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
    ]
    made_up = torch.Generator().manual_seed(1)
    x = 20 * (torch.randn(50, generator=made_up) + 0.3 * torch.randn(20_000, 50, generator=made_up))
    for net in nets:
        for rows, expected, within in (
            (1024, 1e3, 2**-10),
            (16_385, 1e4, 1.5 * 2**-10),
            (20_000, 2e4, 2e-4),
        ):
            neighbours = slice(0, None), slice(1, None), slice(0, 1)
            sums = [sums_of(net, x[:rows], own, Flat(1.0), expected=expected) for own in neighbours]
            moved = [whole - without for whole, without in zip(*sums[:2], strict=True)]
            own = [move - alone for move, alone in zip(moved, sums[2], strict=True)]
            assert flat_norm(tuple(moved)) <= 1, (net, rows)
            assert flat_norm(tuple(own)) <= within, (net, rows, flat_norm(tuple(own)))


@check
def check_equal_rows_add_their_own_gradient_whatever_their_number() -> None:
    """Sums of equal rows all err in one direction: nothing may change how they are computed as
    their number grows.
    """
    torch.manual_seed(0)
    net = nn.Linear(50, 2)
    x = (20 * torch.randn(50)).expand(16_390, 50)
    (alone,) = [torch.cat([value.flatten() for value in sums_of(net, x, slice(0, 1), Flat(1.0))])]
    for rows in (2, 17, 100, 1024, 1025, 4096, 4097, 16_384, 16_385):
        more, less = (
            torch.cat(
                [
                    value.flatten()
                    for value in sums_of(net, x, slice(0, own), Flat(1.0), expected=1e4)
                ]
            )
            for own in (rows, rows - 1)
        )
        assert float((more - less - alone).norm()) <= 2**-10, rows


@check
def check_batches_computed_at_once_do_not_follow_the_sample() -> None:
    """One example more or less changes the size of the last batch alone: others are rounded as they
    were.
    """
    seen: list[int] = []
    net = small_net()
    net[0].register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
    clipper = ClippedGradients(net, cross_entropy, Flat(1.0), Adjacency.ADD_REMOVE, microbatch=4)
    x, y = small_data()
    clipper.prepare(x, y)
    for rows, sizes in ((12, [4, 4, 4]), (11, [4, 4, 3]), (9, [4, 4, 1])):
        # what is new is checked in passes of its own
        clipper(one_sample(examples=rows), x[:rows], y[:rows])
        seen.clear()
        clipper(one_sample(examples=rows), x[:rows], y[:rows])
        assert seen == sizes


@check
def check_the_type_of_sums_follows_from_public_numbers() -> None:
    """Noise is drawn in the type of the sums: that must not tell how many examples were drawn."""
    x, y = torch.randn(1030, 4, generator=torch.Generator().manual_seed(0)), torch.arange(1030) % 3
    for expected, kind in ((300.0, torch.float32), (600.0, torch.float64), (2e4, torch.float64)):
        for microbatch in (16, None):
            net = nn.Linear(4, 3)
            clipper = ClippedGradients(
                net,
                cross_entropy,
                Flat(1.0),
                Adjacency.ADD_REMOVE,
                microbatch=microbatch,
                expected=expected,
            )
            for rows in (0, 3, 40, 1030):
                out = clipper(one_sample(examples=rows), x[:rows], y[:rows])
                assert {value.dtype for value in out.values} == {kind}, (expected, rows)


@check
def check_every_kind_of_gradient_is_added_up_in_double_precision() -> None:
    """Where many examples are expected, by every rule, with every clip: the sums of a copy in
    double precision.
    """
    clips = itertools.cycle(
        completed("clips", [Flat(0.3), PerLayer(0.3), Automatic(0.3), Quantile(0.3)])
    )
    for (net, rows), clip in zip([*layerwise(), *layerwise()], clips, strict=False):
        whole = rows.repeat(1000, *[1] * (rows.dim() - 1))
        truth = sums_of(net, whole, slice(0, None), clip)
        whole = whole.float() if rows.is_floating_point() else whole
        found = sums_of(net.float(), whole, slice(0, None), clip, expected=1e6)
        for one, true in zip(found, truth, strict=True):
            room = 2**-10 * float(true.norm())
            torch.testing.assert_close(one, true, rtol=0.0, atol=room + 1e-9)


@check
def check_large_batches_train_like_small_ones() -> None:
    """Sums in double precision get noise and reach the weights; with almost no noise, as in single
    precision.
    """
    made_up = torch.Generator().manual_seed(1)
    x, y = torch.randn(4200, 5, generator=made_up), torch.randint(3, (4200,), generator=made_up)
    for clip in (Flat(1.0), Quantile(1.0)):
        ends = []
        for most, block in ((1 << 14, 1024), (1000, 1024), (1 << 14, 10**6)):
            with mock.patch.multiple(gradients, MOST_IN_BLOCKS=most, BLOCK=block):
                plan = pv.Plan(
                    pv.sampling.FullBatch(), 3, schedule=pv.schedules.Constant(1e-6), clip=clip
                )
                net = small_net().float()
                pv.dpsgd(
                    plan, net, cross_entropy, (x, y), optimizer=lambda p: torch.optim.SGD(p, lr=0.5)
                )
                ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
                assert all(p.dtype == torch.float32 for p in net.parameters())
        start = torch.cat([p.detach().flatten() for p in small_net().float().parameters()])
        assert float((ends[0] - start).norm()) > 0.1
        torch.testing.assert_close(ends[0], ends[2], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ends[1], ends[2], rtol=1e-4, atol=1e-5)


class Counting(nn.Module):
    """Writes into a large buffer of its own behind PyTorch's back, on marked rows only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros((1 << 18) + 1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.data.add_((x[:, 0] == MISSING).sum())
        return self.layer(x)


@check
def check_what_models_write_is_never_published() -> None:
    """Also into buffers above a mebibyte through `.data`, of which no version tells: at the end of
    each epoch.
    """
    x, y = small_data()
    x[3, 0] = MISSING
    plan = pv.Plan(pv.sampling.FullBatch(), 1, schedule=pv.schedules.Constant(1.0), clip=Flat(1.0))
    found = pv.dpsgd(plan, Counting(), cross_entropy, (x.float(), y))
    assert not any(bool(buffer.any()) for buffer in found.model.buffers())


@check
def check_low_precision_keeps_the_bound() -> None:
    """What runs in bfloat16 is clipped by norms of more digits."""
    require_single_examples_within(1e-3, autocast=torch.bfloat16)


@check
def check_one_example_moves_every_clip_by_at_most_its_sensitivity() -> None:
    """Each registered clip keeps its bound, and attains it within 1 % of where it is tight."""
    x, y = small_data()
    clips = completed("clips", [Automatic(0.5), Quantile(0.5, share=0.7)], of=Clip)
    for clip in clips:
        tight = isinstance(clip, Automatic | Quantile)
        for adjacency, factor in ((Adjacency.ADD_REMOVE, 1), (Adjacency.REPLACE_ONE, 2)):
            bound = clipped(clip, adjacency, x, y).sensitivity
            assert bound >= factor * clip.clip_norm * (1 - 1e-9)
            worst = max(
                move
                for scale in ((1e-3, 1.0, 1e3, 1e6) if tight else (1.0,))
                for target in range(3)
                for move in _moves(clip, adjacency, x, y, scale, target)
            )
            assert worst <= bound * (1 + 1e-9), (clip, adjacency, worst, bound)
            if tight and adjacency is Adjacency.ADD_REMOVE:
                assert worst >= 0.99 * bound
    for clip, norm in ((Automatic(0.5), 0.5), (Quantile(0.5, share=0.7), 0.5 * math.hypot(1, 0.7))):
        assert math.isclose(clipped(clip, Adjacency.ADD_REMOVE, x, y).sensitivity, norm)


@check
def check_the_clip_moves_only_by_what_was_released() -> None:
    x, y = small_data()
    clip = Quantile(0.5)
    moved = []
    for scale in (1e-3, 1e3):
        clipper = ClippedGradients(small_net(), cross_entropy, clip, Adjacency.ADD_REMOVE)
        found = clipper(one_sample(examples=12), scale * x, y)
        assert clipper.clip_norm == 0.5
        assert len(found.values) == len(clipper.parameters) + 1
        noisy = [torch.zeros_like(value) for value in found.values]
        noisy[-1] += 0.2
        assert len(clipper.released(noisy, 12.0)) == len(clipper.parameters)
        moved.append(clipper.clip_norm)
    assert moved[0] == moved[1]
    assert math.isclose(moved[0], 0.5 * math.exp(-0.2 * 0.2 / (2 * 0.1 * 0.5 * 12)), rel_tol=1e-9)


@check
def check_every_released_tensor_is_noisy() -> None:
    """Weights, biases and the count, each with noise of the scale that is stated for all of them
    together.
    """
    x, y = small_data()
    found = clipped(Quantile(0.5), Adjacency.ADD_REMOVE, x, y)
    noise: list[list[Tensor]] = [[] for _ in found.values]
    for seed in range(30):
        part = bounded(torch.zeros(0), found.sensitivity)
        part = type(part)(
            tuple(value.clone() for value in found.values),
            found.sensitivity,
            part.adjacency,
            part.sample,
            found.contributions,
        )
        (noisy,) = release_module.release(
            part, noise_multiplier=2.0, ledger=Ledger(), stream=streams.Streams.new(seed).noise
        )
        for kept, one, other in zip(noise, noisy, found.values, strict=True):
            kept.append((one - other).flatten())
    for kept in noise:
        require_standard_deviation(torch.cat(kept).numpy(), 2 * 0.5 * math.hypot(1, 0.1))


# The engine's other parts


def spread_copies(rows: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The copies of a row, three of them, are scaled apart."""
    return rows * torch.tensor([0.3, 1.0, 2.5], dtype=rows.dtype).repeat(len(rows) // 3)[:, None]


def unruled(n: Any, x: Tensor) -> Tensor:
    return torch.atan2(n.a(x), n.scale)


@check
def check_copies_of_an_example_are_one_example() -> None:
    """The mean of their gradients, clipped once, whichever way it is computed."""
    torch.manual_seed(0)
    other = Net(unruled, a=nn.Linear(5, 3), scale=nn.Parameter(torch.ones(3))).double()
    x, y = small_data()
    x *= torch.linspace(0.1, 2, 12)[:, None]
    for net, way in ((small_net(), "layers"), (other, "vmap")):
        clipper = ClippedGradients(
            net,
            cross_entropy,
            Flat(1.0),
            Adjacency.ADD_REMOVE,
            microbatch=5,
            augmentation=Augmentation(3, spread_copies),
        )
        found = clipper(one_sample(examples=12), x, y)
        assert found.sensitivity == 1.0
        assert clipper.way == way

        def mean_of_copies(output: Tensor, target: Tensor) -> Tensor:
            return cross_entropy(output[0], target.expand(3)).mean()[None]

        copies = spread_copies(x.repeat_interleave(3, 0)).view(12, 3, 5)
        expected = clipped_by_the_loop(net, 1.0, copies, y, mean_of_copies)
        for one, true in zip(found.values, expected, strict=True):
            torch.testing.assert_close(one, true, rtol=1e-9, atol=1e-12)
        alone = clipper(one_sample(examples=1), 1e3 * x[:1], y[:1])
        assert flat_norm(alone.values) <= 1.0 * (1 + 1e-9)


@check
def check_buffers_are_cleared_before_use() -> None:
    x, y = small_data()
    clipper = ClippedGradients(small_net(), cross_entropy, Flat(0.2), Adjacency.ADD_REMOVE)
    expected = clipper(one_sample(examples=12), x, y).values
    out = [
        torch.full_like(value, math.nan if number % 2 else 7.0)
        for number, value in enumerate(expected)
    ]
    for _ in range(2):
        found = clipper(one_sample(examples=12), x, y, out=out).values
        assert all(
            one.data_ptr() == other.data_ptr() for one, other in zip(found, out, strict=True)
        )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@check
def check_examples_beside_one_that_is_not_finite_stay() -> None:
    """Their gradients and their count: all that such an example may change is nothing."""
    x, y = small_data()
    for clip in (Automatic(0.5), Quantile(0.5)):
        expected = clipped(clip, Adjacency.ADD_REMOVE, x, y).values
        for bad in (math.nan, math.inf):
            row = torch.full((1, 5), bad, dtype=torch.float64)
            for microbatch in (None, 4):
                more = torch.cat([x, row]), torch.cat([y, y[:1]])
                found = clipped(clip, Adjacency.ADD_REMOVE, *more, microbatch=microbatch).values
                for one, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@check
def check_wrong_products_are_not_used() -> None:
    """A product that is fast and wrong, by much or by a little."""
    right = torch.nn.functional.linear
    for wrong in (
        lambda x, weight, bias: x.new_zeros(*x.shape[:-1], len(weight)),
        lambda x, weight, bias: right(x, weight, bias) * 1.01,
        lambda x, weight, bias: right(x, weight, bias).roll(1, 0),
    ):
        kernels._probe.cache_clear()
        try:
            with mock.patch.object(kernels, "_product", wrong):
                assert type(kernels.kernels()) is kernels.Kernels
        finally:
            kernels._probe.cache_clear()


@check
def check_micro_batches_take_every_row_once() -> None:
    """Sizes that divide the batch and that don't; every row's own gradient shows in the sum."""
    net = nn.Linear(13, 1, bias=False).double()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return output[:, 0]

    x, y = torch.eye(13, dtype=torch.float64), torch.zeros(13, dtype=torch.int64)
    for size in (1, 2, 3, 5, 12, 13, 100):
        clipper = ClippedGradients(net, loss, Flat(10.0), Adjacency.ADD_REMOVE, microbatch=size)
        sample = one_sample(examples=13)
        sample.indices = sample.indices[2:]
        assert clipper(sample, x, y).values[0][0].tolist() == [0.0] * 2 + [1.0] * 11
