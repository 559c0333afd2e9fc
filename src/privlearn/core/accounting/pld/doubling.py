"""This file computes the mean of independent likelihood ratios by doubling, for several laws at
once on one grid.

Positive arithmetic on a geometric grid, with what rounding may move
(docs/decisions/proofs-of-prices.md, lemma 13). Laws of nearby noise multipliers share cells,
offsets and windows: what is computed of one diagonal is a table with a column for each law, and
most of the time goes into its numbers and not into calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from privlearn.core.accounting.pld.pairs import Pair
from privlearn.core.accounting.pld.rounding import UNIT, Array, rounded_up, share_error

#: More than products that underflow lose, under either law: ratios are below e^450.
LOST = 1e-100


@final
@dataclass(frozen=True)
class Laws:
    """Dominating pairs on the same cells of one grid: as `Pair`, with a column of `q` for each."""

    h: float
    lo: int
    q: Array
    q0: Array
    p_inf: Array

    @property
    def losses(self) -> Array:
        """The losses of the cells."""
        return np.asarray(self.h * np.arange(self.lo, self.lo + len(self.q)), dtype=np.float64)


def together(pairs: Sequence[Pair]) -> Laws:
    """Pairs of one grid step as columns."""
    lo = min(pair.lo for pair in pairs)
    q = np.zeros((max(pair.lo + len(pair.q) for pair in pairs) - lo, len(pairs)))
    for column, pair in enumerate(pairs):
        q[pair.lo - lo : pair.lo - lo + len(pair.q), column] = pair.q
    q0, p_inf = (np.array([getattr(pair, name) for pair in pairs]) for name in ("q0", "p_inf"))
    return Laws(pairs[0].h, lo, q, q0, p_inf)


def refined(laws: Laws, h: float) -> list[Pair]:
    """The same laws on a finer, nested grid, one by one."""
    ratio = round(laws.h / h)
    q = np.zeros((laws.q.shape[1], ratio * (len(laws.q) - 1) + 1))
    q[:, ::ratio] = laws.q.T
    return [
        Pair(h, ratio * laws.lo, *each)
        for each in zip(q, laws.q0.tolist(), laws.p_inf.tolist(), strict=True)
    ]


def mean_of(one: Laws, times: int, step: Callable[[int], float], tail: float) -> Laws:
    """The mean of `times` independent copies, on the grid of step `step(times)`; steps fall and are
    nested.

    Args:
        one: the laws of one copy, on the grid of step `step(1)`.
        times: how many.
        step: the grid's step for the mean of so many.
        tail: the mass that each addition may move to 0 and to infinity.
    """
    current, total = one, None
    done, size = 0, 1
    while True:
        if times & size:
            total = (
                current
                if total is None
                else weighted(total, current, done, size, step(done + size), tail)
            )
            done += size
        if done == times:
            return total  # type: ignore[return-value]
        current = double(current, round(current.h / min(current.h, step(2 * size))), tail)
        size *= 2


def double(laws: Laws, ratio: int, tail: float) -> Laws:
    """The mean of two independent copies of R, on a grid `ratio` times as fine."""
    h, n = laws.h / ratio, len(laws.q)
    # R_i and R_{i+k} have the mean e^{i h} (1 + e^{k h}) / 2; one shift serves all i.
    gaps = np.asarray(laws.h * np.arange(1, n), dtype=np.float64)
    cells, parts = _places(np.logaddexp(0.0, gaps) - math.log(2), UNIT * (8 + 4 * gaps), h)
    halved = math.floor(-math.log(2) / h)  # a copy at 0 halves the other
    q, twice, sums = laws.q, 2 * laws.q, _Sums(ratio * (n - 1) + 4 - halved, ratio, laws.q.shape)
    sums.add(q * q, -halved, (0.0, 1.0, 0.0, 0.0))
    for k, (cell, shares) in enumerate(zip(cells, parts, strict=True), 1):
        sums.add_products(twice[: n - k], q[k:], cell - halved, shares)
    if laws.q0.any():
        _, parts = _places(np.array([-math.log(2)]), np.array([8 * UNIT]), h)
        sums.add(2 * laws.q0 * q, 0, parts[0])
    raised = sums.all() * (1 + UNIT * (4 * n + 16))
    q0 = rounded_up(laws.q0**2, 2) + LOST
    return trim(Laws(h, ratio * laws.lo + halved - 1, raised, q0, laws.p_inf + LOST), tail)


def weighted(first: Laws, second: Laws, m: int, n: int, h: float, tail: float) -> Laws:
    """The law of (m R + n R') / (m + n) for independent R and R', on the grid of step h; all grids
    are nested.
    """
    if first.h < second.h:
        return weighted(second, first, n, m, h, tail)
    a, b = math.log(m / (m + n)), math.log(n / (m + n))
    # In units of the finer step: where cells of `first` are, every `stride`-th, and how far those
    # of `second` are off.
    stride, ratio = round(first.h / second.h), round(second.h / h)
    start, last = stride * first.lo, stride * (first.lo + len(first.q) - 1)
    ahead = np.arange(second.lo - last, second.lo + len(second.q) - start)
    gaps = second.h * ahead
    cells, parts = _places(np.logaddexp(a, b + gaps), UNIT * (16 + 8 * (np.abs(gaps) - a - b)), h)
    low = ratio * min(start, second.lo) + math.floor(min(a, b) / h) - 2
    size = ratio * max(last, second.lo + len(second.q) - 1) - low + 4
    sums = _Sums(size, ratio * stride, first.q.shape)
    every = [np.ascontiguousarray(second.q[place::stride]) for place in range(stride)]
    for gap, cell, shares in zip(ahead.tolist(), cells, parts, strict=True):
        offset = start + gap - second.lo  # the cell of `second` beside the first one of `first`
        i, j = (
            max(0, -(offset // stride)),
            min(len(first.q), (len(second.q) - offset - 1) // stride + 1),
        )
        if i < j:
            beside = every[offset % stride][offset // stride + i : offset // stride + j]
            sums.add_products(
                first.q[i:j], beside, ratio * (start + stride * i) + cell - low - 1, shares
            )
    raised = sums.all()
    for law, other, share in ((first, second, a), (second, first, b)):
        if other.q0.any():
            (cell,), (shares,) = _places(np.array([share]), np.array([UNIT * (16 - 8 * share)]), h)
            fine = round(law.h / h)
            alone = _Sums(size, fine, law.q.shape)
            alone.add(other.q0 * law.q, fine * law.lo + cell - low - 1, shares)
            raised[:size] += alone.all()[:size]
    raised *= 1 + UNIT * (4 * len(ahead) + 16)
    p_inf = rounded_up(math.exp(a) * first.p_inf + math.exp(b) * second.p_inf, 16 - 4 * (a + b))
    return trim(
        Laws(h, low, raised, rounded_up(first.q0 * second.q0, 2) + LOST, p_inf + LOST), tail
    )


def _places(offsets: Array, errors: Array, h: float) -> tuple[list[int], list[tuple[float, ...]]]:
    """For masses that go `offsets` further, which may be off by `errors`: how many cells, and their
    `_parts`.
    """
    cells = np.floor(offsets / h)
    shares = np.clip(np.expm1(offsets - cells * h) / math.expm1(h), 0.0, 1.0)
    # Near a side of its cell a mass may belong to the next one.
    off = share_error(errors, h)
    return cells.astype(int).tolist(), [
        _parts(*each) for each in zip(shares.tolist(), off.tolist(), strict=True)
    ]


def _parts(share: float, off: float) -> tuple[float, ...]:
    """Upper bounds on the parts of a mass at the cells before, at, after its own, and the next
    one.
    """
    return (off * (share <= off), 1 - share + off, share + off, off * (share >= 1 - off))


@final
class _Sums:
    """Sums of masses at every `stride`-th of so many cells: kept by where they begin, so that each
    is in one run.
    """

    def __init__(self, cells: int, stride: int, shape: tuple[int, ...]) -> None:
        self._runs = np.zeros((stride, -(-cells // stride), shape[1]))
        # Most of the time would go into making new ones.
        self._product, self._scaled = np.empty(shape), np.empty(shape)

    def add(self, mass: Array, cell: int, parts: tuple[float, ...]) -> None:
        """Add `mass`, whose first one's parts belong to the cells from `cell` on."""
        scratch, stride = self._scaled[: len(mass)], len(self._runs)
        for place, part in enumerate(parts, cell):
            if part:
                there = self._runs[place % stride, place // stride : place // stride + len(mass)]
                np.add(there, np.multiply(mass, part, scratch), there)

    def add_products(self, one: Array, other: Array, cell: int, parts: tuple[float, ...]) -> None:
        """As `add`, for what two independent masses are together."""
        self.add(np.multiply(one, other, self._product[: len(one)]), cell, parts)

    def all(self) -> Array:
        """The sums of all cells, and of some more that are empty."""
        return self._runs.transpose(1, 0, 2).reshape(-1, self._runs.shape[2])


def trim(laws: Laws, tail: float) -> Laws:
    """Fold the cells of least mass at both ends inward, onto 0 and onto infinity, keeping the
    means.

    All laws keep the same cells: of each at most `tail` is moved.
    """
    x, q, n = np.exp(laws.losses)[:, None], laws.q, len(laws.q)
    low = int(np.count_nonzero(np.cumsum(q, 0) < tail, 0).min())
    high = n - int(np.count_nonzero(np.cumsum((q * x)[::-1], 0) < tail, 0).min())
    low, high = min(low, n - 1), max(high, 1)
    if high <= low:
        return laws
    units = 2 * n + 32 + 8 * float(np.abs(laws.losses[[0, -1]]).max())
    inner = q[low:high].copy()
    mass, mean = q[:low].sum(0), (q * x)[:low].sum(0) / x[low]
    inner[0] = rounded_up(inner[0] + mean, units)
    q0 = laws.q0 + np.maximum(0.0, mass - mean) + units * UNIT * mass
    mass, mean = q[high:].sum(0), (q * x)[high:].sum(0)
    inner[-1] = rounded_up(inner[-1] + mass, units)
    p_inf = laws.p_inf + np.maximum(0.0, mean - x[high - 1] * mass) + units * UNIT * mean
    return Laws(laws.h, laws.lo + low, inner, rounded_up(q0, 4), rounded_up(p_inf, 4))
