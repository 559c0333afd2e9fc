"""Named checks of what one example adds to a sum at most; mutations must make them fail."""

from __future__ import annotations

import math
import sys
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping import gradients as clipping
from privlearn.core.clipping import model_check as models_check
from privlearn.core.clipping.clips import Flat, PerLayer
from privlearn.core.clipping.kernels import Kernels
from privlearn.core.clipping.operations.linear import Linear
from privlearn.core.clipping.row_sums import second_moment, symmetric
from privlearn.errors import (
    BadInput,
    NotPerExample,
)
from tests.support.cancelling_rows import cancelling_rows
from tests.support.checks import check, compared_or_not, must_raise
from tests.support.nets import (
    _moves,
    clipped,
    cross_entropy,
    flat_norm,
    one_sample,
    require_the_loops_sum,
    small_data,
    small_net,
)

# Clipping


@check
def check_sensitivity_follows_clip_and_adjacency() -> None:
    x, y = small_data()
    factor = {Adjacency.ADD_REMOVE: 1, Adjacency.ZERO_OUT: 1, Adjacency.REPLACE_ONE: 2}
    for adjacency in Adjacency:
        assert clipped(Flat(0.3), adjacency, x, y).sensitivity == 0.3 * factor[adjacency]
        per_layer = clipped(PerLayer(0.3), adjacency, x, y).sensitivity
        assert math.isclose(per_layer, 0.3 * math.sqrt(2) * factor[adjacency])


@check
def check_one_example_moves_the_sum_by_at_most_the_sensitivity() -> None:
    """Adversarial examples: opposite, huge, tiny; and the bound is attained within 1%."""
    x, y = small_data()
    for clip in (Flat(0.5), PerLayer(0.5)):
        for adjacency in Adjacency:
            worst = 0.0
            for scale in (1e-3, 1.0, 1e3, 1e6):
                for target in range(3):
                    worst = max(worst, *_moves(clip, adjacency, x, y, scale, target))
            bound = clipped(clip, adjacency, x, y).sensitivity
            assert worst <= bound * (1 + 1e-9), (clip, adjacency, worst, bound)
            reached = (
                0.9 if isinstance(clip, PerLayer) or adjacency is Adjacency.REPLACE_ONE else 0.99
            )
            assert worst >= bound * reached, (clip, adjacency, worst, bound)


@check
def check_examples_that_are_not_finite_contribute_zero() -> None:
    x, y = small_data()
    expected = clipped(Flat(0.5), Adjacency.ADD_REMOVE, x, y).values
    for bad in (math.nan, math.inf, -math.inf, 1e300):
        row = torch.full((1, 5), bad, dtype=torch.float64)
        row[0, 2:] = 0.5
        found = clipped(
            Flat(0.5), Adjacency.ADD_REMOVE, torch.cat([x, row]), torch.cat([y, y[:1]])
        ).values
        moved = flat_norm(tuple(a - b for a, b in zip(found, expected, strict=True)))
        assert moved <= 0.5 * (1 + 1e-9), f"an example of {bad} moved the sum by {moved}"
        if not math.isfinite(bad):
            assert moved <= 1e-12


@check
def check_microbatches_change_nothing() -> None:
    x, y = small_data(13)
    for clip in (Flat(0.2), PerLayer(0.2)):
        whole = clipped(clip, Adjacency.ADD_REMOVE, x, y).values
        for size in (1, 2, 5, 13, 100):
            parts = clipped(clip, Adjacency.ADD_REMOVE, x, y, microbatch=size).values
            for a, b in zip(whole, parts, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@check
def check_rules_agree_with_the_loop() -> None:
    """The rules are compared with the loop over single examples, and are then what is used."""
    torch.manual_seed(0)
    tokens = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 3)).double()
    images = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3)
    )
    rows = torch.randint(6, (9, 3)), torch.randn(9, 1, 4, 4, dtype=torch.float64)
    for net, x in zip((tokens, images.double()), rows, strict=True):
        require_the_loops_sum(net, 0.1, x, torch.arange(9) % 3, "layers")


@check
@compared_or_not
def check_norms_do_not_underflow() -> None:
    """A huge input and a tiny gradient, whose squares leave single precision."""
    net = nn.Linear(1000, 1000, bias=False)
    x, y = torch.full((1, 1000), 5e17), torch.zeros(1, 1000)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (2.6e-23 * output).sum(1)

    clipper = clipping.ClippedGradients(net, loss, Flat(1e-3), Adjacency.ADD_REMOVE)
    assert flat_norm(clipper(one_sample(examples=1), x, y).values) <= 1e-3 * 1.0001


@check
def check_losses_that_couple_examples_are_harmless() -> None:
    """A loss over the batch is computed example by example, or refused: one example never moves
    more than its bound.
    """

    def centred(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output - output.mean(0), target)

    def weighted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, target) / (target > 0).sum().clamp(min=1)

    x, y = small_data(12)
    y[:-1] = 0
    y[-1] = 1
    for loss in (centred, weighted):
        found = []
        for rows in (11, 12):
            clipper = clipping.ClippedGradients(small_net(), loss, Flat(0.01), Adjacency.ADD_REMOVE)
            try:
                found.append(clipper(one_sample(examples=rows), x[:rows], y[:rows]).values)
            except NotPerExample:
                break
        if len(found) == 2:
            assert flat_norm(tuple(a - b for a, b in zip(*found, strict=True))) <= 0.01 * (1 + 1e-9)


class WrongLinear(Linear):
    """Keeps gradients that are twice as long."""

    def backward(self, call: Any, x: torch.Tensor, g: torch.Tensor, wanted: bool) -> Any:
        super().backward(call, x, 2 * g, wanted)
        return g @ self._weight if wanted else None


@check
def check_a_wrong_rule_is_not_chosen() -> None:
    """It is compared with single examples on made-up rows before any row of the data is
    computed.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3, bias=False)).double()
    x, y = torch.randn(9, 5, dtype=torch.float64), torch.arange(9) % 3
    with mock.patch.object(sys.modules[Linear.__module__], "Linear", WrongLinear):
        clipper = clipping.ClippedGradients(net, cross_entropy, Flat(0.1), Adjacency.ADD_REMOVE)
        clipper.prepare(x, y)
    assert clipper.way != "layers"


@check
@compared_or_not
def check_rules_that_disagree_are_not_used() -> None:
    """Positions before examples: shapes say that an example's rows are neighbours, and only its
    gradient that not.
    """

    class PositionsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(5, 4), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.layer(x.transpose(0, 1).reshape(-1, 5)).tanh()
            return self.head(rows.view(2, -1, 4).transpose(0, 1).flatten(1))

    torch.manual_seed(0)
    made_up = torch.Generator().manual_seed(0)
    x = torch.randn(9, 2, 5, generator=made_up, dtype=torch.float64)
    require_the_loops_sum(PositionsFirst().double(), 0.1, x, torch.arange(9) % 3)


@check
def check_repeated_tokens_are_merged_before_the_norm() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 3)).double()
    net[2].requires_grad_(False)
    tokens = torch.tensor([[1, 1, 1], [2, 3, 2]])
    found = clipped(Flat(1e-3), Adjacency.ADD_REMOVE, tokens, torch.tensor([0, 1]), net)
    for row in range(2):
        alone = clipped(
            Flat(1e-3), Adjacency.ADD_REMOVE, tokens[row : row + 1], torch.tensor([row]), net
        )
        assert math.isclose(flat_norm(alone.values), 1e-3, rel_tol=1e-9)
    assert flat_norm(found.values) <= 2e-3


@check
def check_pca_moment_is_bounded() -> None:
    made_up = torch.Generator().manual_seed(0)
    x = torch.randn(20, 6, generator=made_up, dtype=torch.float64)
    for adjacency, factor in ((Adjacency.ADD_REMOVE, 1.0), (Adjacency.REPLACE_ONE, math.sqrt(2))):
        worst = 0.0
        for scale in (0.1, 1.0, 50.0):
            other = x.clone()
            if adjacency is Adjacency.REPLACE_ONE:
                x = x.clone()
                x[0] = scale * torch.eye(6, dtype=torch.float64)[0]
                other[0] = scale * torch.eye(6, dtype=torch.float64)[1]
            else:
                other = torch.cat([x, scale * x[:1].sign()])
            one, two = (
                second_moment(rows, 1.0, one_sample(examples=len(rows)), adjacency)
                for rows in (x, other)
            )
            worst = max(worst, float((one.values[0] - two.values[0]).norm()))
        assert one.sensitivity == factor
        assert 0.999 * factor <= worst <= factor * (1 + 1e-12)
    rows = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(symmetric(one.values[0], 6), rows.T @ rows)
    for norm in (0.3, 7.0):  # long rows: all have this norm
        moment = second_moment(100 * x, norm, one_sample(examples=20), adjacency)
        assert math.isclose(moment.sensitivity, factor * norm**2)
        torch.testing.assert_close(
            symmetric(moment.values[0], 6).trace(), torch.tensor(20 * norm**2).double()
        )


@check
def check_pca_moment_of_many_rows_is_bounded() -> None:
    """In single precision, of many rows that point nearly the same way: one adds its own moment,
    and no rounding.
    """
    made_up = torch.Generator().manual_seed(0)
    x = 9 * torch.randn(6, generator=made_up) + torch.randn(100_000, 6, generator=made_up)
    whole, without, alone = (
        second_moment(rows, 1.0, one_sample(examples=len(rows)), Adjacency.ADD_REMOVE)
        .values[0]
        .double()
        for rows in (x, x[1:], x[:1])
    )
    assert float((whole - without).norm()) <= 1
    assert float((whole - without - alone).norm()) <= 1e-9


@check
def check_models_that_couple_examples_are_refused() -> None:
    class Centred(nn.Module):
        def __init__(self, weight: float) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x)
            return out - self.weight * out.mean(0)

    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.register_buffer("seen", torch.zeros(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.detach().mean(0)
            return self.layer(x)

    class InTraining(nn.Module):
        """Couples in training only, forward in time, for large batches, or at some values."""

        def __init__(self, how: str) -> None:
            super().__init__()
            self.layer, self.how = nn.Linear(5, 3), how
            self.kept = nn.Parameter(torch.zeros(5), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x)
            if self.how == "training" and self.training:
                return out - out.mean(0)
            if self.how == "causal":
                return out.cumsum(0)
            if self.how == "size":
                return out - out.mean(0) if len(x) > 16 else out
            if self.how == "value":
                return out / 255 if bool(x.max() > 10) else out
            if self.how == "divided":
                return out / len(x)
            if self.how == "frozen":
                self.kept.data.copy_(x[0].float())
            return out

    norm = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    ways = [
        InTraining(how).eval()
        for how in ("training", "causal", "size", "value", "divided", "frozen")
    ]
    for net in (norm, Centred(1.0), Centred(1e-4), Remembers(), *ways):
        must_raise(NotPerExample, lambda net=net: models_check.require_per_example(net, x))
    fine = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.LayerNorm(4), nn.Linear(4, 3))
    models_check.require_per_example(fine, x)

    class InSinglePrecision(nn.Module):
        """Has products in single precision alone, as routed experts do, and may couple examples."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.layer, self.share = nn.Linear(5, 3), share

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype != torch.float32:
                raise RuntimeError("expected Float32")
            out = self.layer(x)
            return out - self.share * out.mean(0)

    models_check.require_per_example(InSinglePrecision(0.0), x)
    must_raise(NotPerExample, lambda: models_check.require_per_example(InSinglePrecision(0.01), x))
    must_raise(BadInput, lambda: models_check.require_per_example(InSinglePrecision(0.0), x[:, :4]))
    # Of rows of many numbers fewer are made up.
    many = torch.zeros(1, 1 << 14)
    large = nn.Linear(1 << 14, 2)
    models_check.require_per_example(large, many)
    must_raise(
        NotPerExample,
        lambda: models_check.require_per_example(nn.Sequential(large, nn.BatchNorm1d(2)), many),
    )


@check
def check_a_row_less_moves_a_sum_by_its_own_gradient_alone() -> None:
    """Of rows whose scores cancel each other, so that last digits decide about their gradients."""
    torch.manual_seed(0)
    for model, loss in ((nn.Linear(41, 8), cross_entropy), (nn.Linear(33, 1), _surprise)):
        rows, y = cancelling_rows(model, 1e5, 3000), torch.zeros(3000, dtype=torch.long)
        clip = Flat(float(rows.norm(dim=1).mean()))
        compute = clipping.ClippedGradients(model, loss, clip, Adjacency.ADD_REMOVE, expected=3e3)
        whole, less, alone = (
            torch.cat([total.flatten() for total in released.values]).double()
            for released in (
                compute(one_sample(examples=len(part)), part, y[: len(part)])
                for part in (rows, rows[1:].clone(), rows[:1].clone())
            )
        )
        moved = float((whole - less - alone).norm()) / clip.clip_norm
        assert compute.reason is None  # layer by layer, as on other rows
        assert moved < 0.25, (model, moved)


@check
def check_rows_of_products_begin_at_multiples_of_64_bytes() -> None:
    places: list[tuple[int, int]] = []

    def multiply(rows: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
        places.append((rows.data_ptr() % 64, rows.stride(0) * rows.itemsize % 64))
        return real(rows, weight, out=out)

    real = torch.mm
    rows, weight = torch.randn(7, 41)[1:], torch.randn(41, 3)
    with mock.patch.object(torch, "mm", multiply):
        product = Kernels().back(rows, weight)
    assert places == [(0, 0)], places
    torch.testing.assert_close(product, rows @ weight)


def _surprise(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.softplus(-outputs[:, 0]) + 0 * y
