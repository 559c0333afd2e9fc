"""Named checks of the sizes that batches are computed in, and of the fillers that make these few;
mutations must make them fail.
"""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.agreement import BytesPerExample, physical_batch
from privlearn.core.clipping.clips import Clip, Flat, Quantile
from privlearn.core.clipping.gradients import ClippedGradients
from tests.support.checks import check
from tests.support.nets import clipped_by_the_loop, cross_entropy, one_sample, small_net

ROWS = 129  # to which three fillers are added


def drawn_rows(rows: int) -> tuple[Tensor, Tensor]:
    """Rows of which the first, which fills up, has by far the largest gradient."""
    made_up = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 5, generator=made_up, dtype=torch.float64)
    x[0] *= 5
    return x, torch.arange(rows) % 3


def noting_sizes(clip: Clip, **options: Any) -> tuple[ClippedGradients, list[int]]:
    """An engine, and the sizes of the batches that its model is given."""
    sizes: list[int] = []
    net = small_net()
    net[0].register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    clipper = ClippedGradients(net, cross_entropy, clip, Adjacency.ADD_REMOVE, **options)
    return clipper, sizes


@check
def check_fillers_add_nothing() -> None:
    """Sums and counts are those of a loop over the rows, whichever rows are not finite."""
    for bad in (None, 0, ROWS - 1):
        x, y = drawn_rows(ROWS)
        if bad is not None:
            x[bad] = math.nan
        finite = x.isfinite().all(1)
        true = clipped_by_the_loop(small_net(), 10.0, x[finite], y[finite])
        clipper, sizes = noting_sizes(Flat(10.0))
        clipped = clipper(one_sample(examples=ROWS), x, y).values
        assert max(sizes) == ROWS + 3
        for one, other in zip(clipped, true, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        counting, _ = noting_sizes(Quantile(1e-6))  # below which no gradient is
        count = float(counting(one_sample(examples=ROWS), x, y).values[-1])
        (one,) = Quantile(1e-6).count(torch.ones(1, dtype=torch.float64), 1e-6).tolist()
        assert round(count / one, 3) == int(finite.sum())


@check
def check_fillers_are_not_observed() -> None:
    """Private figures are those of the examples."""
    seen: list[int] = []

    def observe(losses: Tensor, norms: Tensor) -> None:
        seen.append(len(losses))
        assert len(norms) == len(losses)

    clipper, _ = noting_sizes(Flat(1.0), observe=observe)
    clipper(one_sample(examples=ROWS), *drawn_rows(ROWS))
    assert seen == [ROWS]


@check
def check_a_batch_whose_filler_is_not_finite_is_computed_in_halves() -> None:
    """As one whose examples are finite in one place and not in another: it could not be added."""
    clipper, sizes = noting_sizes(Flat(10.0))
    x, y = drawn_rows(ROWS)
    true = clipper(one_sample(examples=ROWS), x, y).values
    squares_of = clipper._squares

    def squares(gradients: Any, losses: Tensor, *assumed: Any) -> Tensor:
        squares = squares_of(gradients, losses, *assumed)
        if len(losses) == ROWS + 3:
            squares[:, -1] = math.inf
        return squares

    with mock.patch.object(clipper, "_squares", squares):
        sizes.clear()
        clipped = clipper(one_sample(examples=ROWS), x, y).values
    assert 64 in sizes
    for one, other in zip(clipped, true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@check
def check_random_batches_have_few_sizes() -> None:
    """Each at most 1 in 32 larger than the sample, and none larger than what is computed at
    once.
    """
    x, y = drawn_rows(660)
    for microbatch, most in ((None, 660), (601, 601)):
        clipper, sizes = noting_sizes(Flat(1.0), microbatch=microbatch)
        clipper.prepare(x, y)
        met = set[int]()
        for rows in range(540, most + 1):
            sizes.clear()
            clipper(one_sample(examples=rows), x[:rows], y[:rows])
            met.add(max(sizes))
            assert rows <= max(sizes) <= min(rows * 33 / 32, microbatch or rows * 2)
        assert len(met) < 10


@check
def check_persons_are_filled_up_whole() -> None:
    """Where an example has several rows, a filler has as many."""
    x, y = drawn_rows(2 * ROWS)
    persons = torch.arange(2 * ROWS).view(ROWS, 2)
    together, sizes = noting_sizes(Flat(0.5), rows=persons)
    clipped = together(one_sample(examples=ROWS), x, y).values
    assert max(sizes) == 2 * (ROWS + 3)
    apart, _ = noting_sizes(Flat(0.5), rows=persons, microbatch=1)
    for one, other in zip(clipped, apart(one_sample(examples=ROWS), x, y).values, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@check
def check_parts_of_a_batch_hold_about_what_a_plain_step_does() -> None:
    """Equal parts where gradients take more than activations, and these are large; whole batches
    where they are small, or what is expected is not known, which is private.
    """
    mib, processor = 1 << 20, torch.device("cpu")
    large, small = BytesPerExample(mib, 3 * mib), BytesPerExample(mib // 100, mib // 10)
    assert physical_batch(large, processor, 100.0) == 55  # two parts of 50, which differ by roots
    assert physical_batch(large, processor, 400.0) == 210
    assert physical_batch(large, processor, 20.0) == 256  # fewer than 32 examples
    assert physical_batch(large, processor, 0.0) == 256
    assert physical_batch(small, processor, 500.0) > 1024
    assert physical_batch(BytesPerExample(0, 4 * mib), processor, 100.0) == 256  # one by one
    assert physical_batch(BytesPerExample(3 * mib, mib), processor, 100.0) == 256
