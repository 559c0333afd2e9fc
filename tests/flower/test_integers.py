"""Answers as bounded integers: within the bound exactly, near the answers, on a public step."""

from __future__ import annotations

import math
from fractions import Fraction
from unittest import mock

import pytest
import torch

import privlearn as pv
from privlearn.errors import BadInput, UnsoundExtension
from privlearn.methods.pate import integers as module
from privlearn.methods.pate.integers import LinearEncoder, integers_for
from tests.support.checks import must_raise

RADII = (1e-12, 0.37, 1.0, 3.0, 2.0**20 / 3, 1e12)
SIZES = (1, 2, 7, 100, 3000)


def _ball(radius, size, step=None):
    return integers_for(pv.teachers.Ball(radius), pv.teachers.Identity((size,)), step)


def _box(size, centre, step=None):
    return integers_for(pv.teachers.Box(size), pv.teachers.Identity((size,), centre), step)


def _hard_codes(radius, size):
    """Codes that rounding would move out of the ball: on it, beside it, along its diagonals."""
    drawn = torch.randn(20, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    on_it = drawn / drawn.norm(dim=1, keepdim=True)
    diagonal = torch.full((1, size), 1 / math.sqrt(size), dtype=torch.float64)
    axis = torch.eye(1, size, dtype=torch.float64)
    rows = torch.cat([on_it, on_it.sign(), diagonal, -diagonal, axis, 1e6 * on_it])
    lengths = [0.0, 0.5, 1 - 2.0**-13, 1 - 2.0**-30, 1.0, 1 + 1e-15, 1.01, 1e100]
    return torch.cat([radius * length * rows for length in lengths])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("radius", RADII)
def test_codes_are_in_the_ball_after_rounding(radius, size):
    integers, codes = _ball(radius, size), _hard_codes(radius, size)
    rounded = integers.of(codes, len(codes))
    assert rounded.dtype == torch.int64
    assert integers.size == size
    most = max(sum(number**2 for number in row) for row in rounded.tolist())
    assert most * Fraction(integers.step) ** 2 <= Fraction(radius) ** 2
    assert int(rounded.abs().max()) <= integers.bound
    # rounding and the smaller ball move a code by at most that
    inside = codes * (radius / codes.norm(dim=1, keepdim=True).clamp(min=radius))
    off = (rounded.double() * integers.step - inside).norm(dim=1)
    assert float(off.max()) <= math.sqrt(size) * integers.step * (1 + 1e-6)
    # the step is a small public share of the radius
    assert radius * 2**-13 <= math.sqrt(size) * integers.step <= radius * 2**-12


def test_a_code_above_the_ball_does_not_fit():
    for size in (1, 2, 5):
        integers = _ball(1.0, size)
        axis = torch.zeros(1, size, dtype=torch.int64)
        axis[0, 0] = int(1 / integers.step)
        assert integers.fits(axis)
        axis[0, 0] += 1
        assert not integers.fits(axis)
        assert not integers.fits(-axis)
        assert size == 1 or not integers.fits(torch.full((1, size), integers.bound))
    # squares that add up to more than 64 bits hold, and to 0 in 64 bits
    wide = integers_for(pv.teachers.Ball(1.0), LinearEncoder(torch.zeros(4096)), 2.0**-26)
    assert not wide.fits(torch.full((1, 4096), 2**26))
    assert not wide.fits(torch.full((1, 4096), -(2**63)))
    assert wide.fits(torch.full((1, 4096), 2**20))


@pytest.mark.parametrize("centre", [0.0, 1e-30, 0.3, 0.5, 1 - 2.0**-24, 1.0, -3.0, 7.0])
def test_numbers_of_a_box_are_in_it_after_rounding(centre):
    integers = _box(3, centre)
    values = [-1e300, -1.0, 0.0, 1e-9, 0.2, 0.5, 1 - 1e-9, 1.0, 1.5, 1e300, math.nan, math.inf]
    targets = torch.tensor(values, dtype=torch.float64)[:, None].expand(-1, 3)
    rounded = integers.of(targets, len(targets))
    spread = int(rounded.max()) - int(rounded.min())
    assert spread * Fraction(integers.step) <= 1
    assert int(rounded.min()) <= 0 <= int(rounded.max())
    inside = torch.tensor(centre).clamp(0, 1).double()
    expected = targets.clamp(0, 1).where(targets.isfinite(), inside) - inside
    assert float((rounded * integers.step - expected).abs().max()) <= integers.step
    assert not integers.fits(rounded + integers.bound + 1)
    assert not integers.fits(rounded - integers.bound - 1)


def test_votes_are_one_for_a_class_or_none():
    integers = integers_for(pv.teachers.Votes(3), None)
    assert integers.of([2, 0, 7, -1], 4).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert integers.of([2, 0], 4) is None
    assert not integers.fits(torch.tensor([[1, 1, 0]]))
    assert not integers.fits(torch.tensor([[0, 2, 0]]))
    assert not integers.fits(torch.tensor([[0, -1, 0]]))


def test_answers_above_their_bound_are_not_sent():
    with mock.patch.object(module, "clip_to_ball", lambda codes, radius: codes * 1.01):
        must_raise(UnsoundExtension, lambda: _ball(1.0, 3).of(torch.full((2, 3), 9.0), 2))


def test_steps_are_powers_of_two_within_range():
    for step in (0.3, 3 * 2.0**-20, 1.0, 2.0**-40):
        must_raise(BadInput, lambda s=step: _ball(1.0, 4, s))
        if step != 1.0:
            must_raise(BadInput, lambda s=step: _box(4, 0.0, s))
    for step in (2.0**-5, 2.0**-29):
        rounded = _ball(1.0, 4, step).of(torch.full((1, 4), 9.0), 1)
        assert abs(float((rounded * step).double().norm()) - 1) <= 4 * step


def test_sums_of_integers_are_those_of_answers_that_are_added_one_by_one():
    from privlearn.methods.pate.sums import CodeSums, VoteCounts

    said = [torch.tensor([0, 1, 2, 9]), torch.tensor([1, 1, 0, 2])]
    one_by_one, at_once = (VoteCounts(pv.teachers.Votes(3), 4) for _ in range(2))
    form = integers_for(pv.teachers.Votes(3), None)
    assert all(one_by_one.add(each) for each in said)
    at_once.add_sum(sum(form.of(each, 4) for each in said), len(said))
    assert torch.equal(one_by_one.counts, at_once.counts)
    drawn = [torch.randn(4, 5, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    projection = pv.teachers.RandomProjection((5,), 2)
    for aggregate in (pv.teachers.Ball(0.7), pv.teachers.Box(5)):
        one_by_one, at_once = (CodeSums(aggregate, projection, 4) for _ in range(2))
        form = integers_for(aggregate, projection)
        assert all(one_by_one.add(each) for each in drawn)
        at_once.add_sum(sum(form.of(each, 4) for each in drawn), len(drawn), form.step)
        off = float((one_by_one.sums - at_once.sums).norm(dim=1).max())
        assert 0 < off <= len(drawn) * math.sqrt(form.size) * form.step


def test_sums_that_so_many_bounded_answers_cannot_have_are_refused():
    from privlearn.methods.pate.sums import CodeSums, VoteCounts

    votes = VoteCounts(pv.teachers.Votes(2), 1)
    for counts in ([[2, 1]], [[-1, 1]], [[0, 3]]):
        must_raise(BadInput, lambda c=counts: votes.add_sum(torch.tensor(c), 2))
    identity = pv.teachers.Identity((2,))
    ball, box = (CodeSums(a, identity, 1) for a in (pv.teachers.Ball(1.0), pv.teachers.Box(2)))
    must_raise(BadInput, lambda: ball.add_sum(torch.tensor([[8, 8]]), 2, 0.25))
    must_raise(BadInput, lambda: box.add_sum(torch.tensor([[9, 0]]), 2, 0.25))
    ball.add_sum(torch.tensor([[8, 0]]), 2, 0.25)
    box.add_sum(torch.tensor([[8, -8]]), 2, 0.25)
    assert ball.sums.tolist() == [[2.0, 0.0]]
    assert box.sums.tolist() == [[2.0, -2.0]]
    assert not votes.counts.any()


def test_fingerprints_tell_reducers_apart_and_know_the_same_one():
    targets = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
    public = pv.Dataset(torch.zeros(20, 1), targets, public=True)

    def reducers():
        return [
            pv.teachers.Identity((4,)),
            pv.teachers.Identity((4,), 0.5),
            pv.teachers.Identity((2, 2)),
            pv.teachers.RandomProjection((4,), 2),
            pv.teachers.RandomProjection((4,), 2, seed=1),
            pv.teachers.PublicPCA.fit(public, 2),
            pv.teachers.PublicPCA.fit(public, 3),
            pv.teachers.Autoencoder.fit(public, 2, 0.1, epochs=1),
            pv.teachers.Autoencoder.fit(public, 2, 0.1, epochs=1, seed=1),
            pv.teachers.Autoencoder.fit(public, 2, 0.1, epochs=1, loss="binary_cross_entropy"),
        ]

    first, second = ([module.reducer_fingerprint(each) for each in reducers()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)
