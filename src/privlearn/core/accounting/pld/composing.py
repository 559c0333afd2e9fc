"""This file computes the law of many pairs' losses together, on a window of cells: none of its
masses is below the exact one.

The product of likelihood ratios is a convolution on the grid of losses. It is computed for laws
that are tilted, with density q e^{tilt loss}, since rounding errors are small, against the masses,
where the tilted law has its mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn.core.accounting.pld.fourier import Factor, convolve, length
from privlearn.core.accounting.pld.pairs import Pair, least_bound, log_moment
from privlearn.core.accounting.pld.rounding import UNIT, Array
from privlearn.errors import UnsupportedEvent

#: Cells of the widest window.
_MOST_WINDOW = 1 << 24
#: Losses of a window on which one transform, of sqrt(P Q), serves both directions.
_NARROW = 12.0
#: What rounding may add to the mass of losses, in units of the tail, before tilts are taken that
#: suit small deltas.
_MUCH = 4.0
#: Such tilts, over `_steep`, one after the other until one leaves little. Which one does is not
#: known beforehand: where few steps make most of a loss, the tilted law has its mass in two places.
_STEEPER = (1.0, 1.4, 2.0)
#: Mass beyond the losses that count, in units of the tail.
_READ = 4e4
#: By how much a bound may be above the least one.
_CLOSE = 0.05
#: The largest order of moments, in cells: where losses have bounds, higher ones would only be
#: rounded more.
_STEEPEST = 50.0

#: A law of the loss on some points, and how often it occurs.
Law = tuple[tuple[Array, Array], int]


@final
@dataclass(frozen=True)
class Tilted:
    """The composed law with density q e^{tilt loss}, divided by e^shift, on a cycle of cells.

    Attributes:
        tilt: the tilt.
        mass: of cell k at k mod len(mass); never too small, and what wraps around only adds.
        error: how much of each mass may be rounding.
        shift: the logarithm of what masses were divided by.
        uncertain: how far `shift` may be off.
    """

    tilt: float
    mass: Array
    error: float
    shift: float
    uncertain: float

    def on(self, cells: NDArray[np.int64], losses: Array, weight: float) -> tuple[Array, Array]:
        """The masses with density q e^{weight loss} at some cells, rounded up, and their share of
        rounding.
        """
        slack = self.uncertain + UNIT * (
            16 + 4 * (abs(self.tilt) + 2) * float(np.abs(losses).max())
        )
        with np.errstate(over="ignore"):
            factors = np.exp((weight - self.tilt) * losses + (self.shift + slack))
        return self.mass[cells % len(self.mass)] * factors, self.error * factors


def masses(
    pairs: Sequence[Pair], counts: Sequence[int], tail: float
) -> tuple[int, Array, Array, float, float]:
    """The first cell of a window, and upper bounds: on the P- and Q-mass of each of its cells, and
    outside of it.

    Of the latter, what counts is the P-mass above, and the Q-mass below: about `tail` each, or
    less.
    """
    if sum(counts) == 1:
        return _alone(pairs[list(counts).index(1)])
    h = pairs[0].h
    low, high, upper, lower, outside = _window(pairs, counts, tail)
    cells = np.arange(low, high + 1)
    losses = np.asarray(h * cells, dtype=np.float64)
    size = length(len(cells))
    p = q = np.full(len(cells), np.inf)

    def rounded(tilt: float) -> tuple[float, float]:
        """Take in a tilt; how much of the mass that counts is rounding."""
        nonlocal p, q
        law = _tilt(pairs, counts, size, tilt)
        (p_new, p_share), (q_new, q_share) = (
            law.on(cells, losses, weight) for weight in (1.0, 0.0)
        )
        p, q = np.minimum(p, p_new), np.minimum(q, q_new)
        return _sum_share_above(p, p_share, tail), _sum_share_above(q[::-1], q_share[::-1], tail)

    if max(abs(low), abs(high)) * h < _NARROW:
        p_share, q_share = rounded(0.5)
    else:
        p_share, q_share = rounded(1.0)[0], rounded(0.0)[1]
    for much in _STEEPER:
        if p_share > _MUCH * tail:
            p_share = rounded(1 + much * _steep(upper, tail, 1.0))[0]
        if q_share > _MUCH * tail:
            q_share = rounded(-much * _steep(lower, tail, -1.0))[1]
    return low, p, q, *outside


def _sum_share_above(mass: Array, share: Array, tail: float) -> float:
    """About how much of the `share` of rounding is above the loss at which a delta is read that
    goes with `tail`.
    """
    certain = np.maximum(mass - np.where(np.isfinite(share), share, 0.0), 0.0)
    return float(share[np.cumsum(certain[::-1])[::-1] <= _READ * tail].sum())


def _tilt(pairs: Sequence[Pair], counts: Sequence[int], size: int, tilt: float) -> Tilted:
    """The composed law with density q e^{tilt loss}."""
    shifts: list[tuple[int, float]] = []

    def factors() -> Iterator[Factor]:
        for pair, n in zip(pairs, counts, strict=True):
            losses = pair.losses
            exponents = tilt * losses
            top = float(exponents[pair.q > 0].max())
            weights = pair.q * np.exp(np.minimum(exponents - top, 0.0))
            scale = 1 / float(weights.sum())
            shifts.append((n, top - math.log(scale)))
            weights *= scale
            index = np.arange(pair.lo, pair.lo + len(weights)) % size
            cells = np.asarray(np.bincount(index, weights, size), dtype=np.float64)
            # Exponents are rounded, as shares of themselves; then the exponential, two products,
            # and the sums.
            spent = 3 * float(weights @ np.abs(exponents)) + abs(top) + 12 + len(weights) / size
            yield Factor(cells, n, spent * UNIT)

    mass, error = convolve(factors(), size)
    shift = math.fsum(n * each for n, each in shifts)
    uncertain = 4 * UNIT * sum(n * (1 + abs(each)) for n, each in shifts)
    return Tilted(tilt, mass, error, shift, uncertain)


def _alone(pair: Pair) -> tuple[int, Array, Array, float, float]:
    """One pair by itself: nothing is left out."""
    with np.errstate(over="ignore"):
        p = pair.q * np.exp(pair.losses * (1 + 4 * UNIT * np.sign(pair.losses))) * (1 + 8 * UNIT)
    return pair.lo, np.asarray(p, dtype=np.float64), pair.q, 0.0, 0.0


def _window(
    pairs: Sequence[Pair], counts: Sequence[int], tail: float
) -> tuple[int, int, list[Law], list[Law], tuple[float, float]]:
    """Cells outside which the composition has P-mass (above) and Q-mass (below) of about `tail` at
    most: Chernoff.

    Also the laws of the losses in blocks, under P and under Q, by which the cells are found; and
    the two masses, bounded without these blocks.
    """
    h = pairs[0].h
    upper = [(_blocks(pair, tilt=1.0), n) for pair, n in zip(pairs, counts, strict=True)]
    lower = [(_blocks(pair, tilt=0.0), n) for pair, n in zip(pairs, counts, strict=True)]
    (high, rising), (low, falling) = (
        _chernoff(upper, tail, sign=+1.0),
        _chernoff(lower, tail, sign=-1.0),
    )
    first, last = math.floor(-low / h), math.ceil(high / h)
    first, last = min(first, last - 1, 0), max(last, first + 1, 0)
    if last - first > _MOST_WINDOW:
        raise UnsupportedEvent(
            "the composed privacy loss needs too fine a grid over too wide a range"
        )
    above = _beyond(pairs, counts, h * (last + 1), 1.0, min(rising, _STEEPEST / h))
    below = _beyond(pairs, counts, h * (first - 1), 0.0, -min(falling, _STEEPEST / h))
    return first, last, upper, lower, (above, below)


def _beyond(
    pairs: Sequence[Pair], counts: Sequence[int], loss: float, tilt: float, order: float
) -> float:
    """A bound on the mass, with density q e^{tilt loss}, at losses from `loss` on: upward if
    `order` > 0, else down.
    """
    terms, units = [-order * loss], 4 * abs(order * loss)
    for pair, n in zip(pairs, counts, strict=True):
        losses = pair.losses
        moment = log_moment(losses, pair.q, tilt + order)
        exponents = (tilt + order) * losses[[0, -1]]
        terms.append(n * moment)
        units += n * (4 * float(np.abs(exponents).max()) + 2 * abs(moment) + len(losses) + 16)
    return min(1.0, math.exp(min(math.fsum(terms) + 2 * UNIT * units, 0.0)) * (1 + 8 * UNIT))


def _blocks(pair: Pair, tilt: float) -> tuple[Array, Array]:
    """The law of the loss on a few hundred points: a mean-preserving split, so its exponential
    moments bound ours.

    Cells stay single near the bulk; blocks grow geometrically away from it, so that no tail
    distorts the bulk.
    """
    mass, losses = pair.q * np.exp(tilt * pair.losses), pair.losses
    mean = float(mass @ losses) / float(mass.sum())
    width = max(pair.h, 0.05 * math.sqrt(float(mass @ (losses - mean) ** 2) / float(mass.sum())))
    reach = max(losses[-1] - mean, mean - losses[0]) + width
    steps = 60 + math.ceil(math.log(max(reach / (60 * width), 1.0)) / math.log(1.03)) + 1
    offsets = width * np.where(
        np.arange(steps) < 60, np.arange(steps), 60 * 1.03 ** (np.arange(steps) - 60)
    )
    edges = mean + np.concatenate([-offsets[:0:-1], offsets])
    block = np.clip(np.searchsorted(edges, losses, side="right") - 1, 0, len(edges) - 2)
    share = (losses - edges[block]) / (edges[block + 1] - edges[block])
    points = np.bincount(block, mass * (1 - share), len(edges)) + np.bincount(
        block + 1, mass * share, len(edges)
    )
    keep = points > 0
    return edges[keep], np.asarray(points[keep], dtype=np.float64)


def _bound(laws: Sequence[Law], tail: float, sign: float) -> Callable[[float], float]:
    """The Chernoff bound, by its order, on what the sum of sign x loss exceeds with probability at
    most `tail`.
    """

    # All laws in one row of points, since each alone would take longer to call for than to compute.
    laws = [law for law in laws if len(law[0][0])]
    sizes = [len(points) for (points, _), _ in laws]
    points, mass = (np.concatenate([law[part] for law, _ in laws]) for part in (0, 1))
    ends = np.cumsum(sizes, dtype=np.int64)
    starts, times = (
        ends - np.array(sizes, dtype=np.int64),
        np.array([n for _, n in laws], dtype=np.float64),
    )

    def bound(order: float) -> float:
        exponents = sign * order * points
        tops = exponents[ends - 1 if sign > 0 else starts]
        # Not below -700: exponentials that underflow take fifty times as long as others.
        factors = np.exp(np.maximum(exponents - np.repeat(tops, sizes), -700.0))
        sums = np.add.reduceat(mass * factors, starts)
        return (float(times @ (tops + np.log(sums))) - math.log(tail)) / order

    return bound


def _chernoff(laws: Sequence[Law], tail: float, sign: float) -> tuple[float, float]:
    """The least bound found, and its order."""
    variance = sum(
        n * float(mass @ (points - float(mass @ points)) ** 2)
        for (points, mass), n in laws
        if len(points)
    )
    return least_bound(
        _bound(laws, tail, sign), math.sqrt(-2 * math.log(tail) / max(variance, 1e-300))
    )


def _steep(laws: Sequence[Law], tail: float, sign: float) -> float:
    """An order by which to tilt: half of the least one whose bound is hardly looser. Losses have
    bounds, orders none.

    At the whole of it the tilted law has its mass at the window's end, and much of it beyond, which
    wraps around.
    """
    bound = _bound(laws, tail, sign)
    best, order = _chernoff(laws, tail, sign)
    while bound(order / 2) <= best + _CLOSE * abs(best):
        order /= 2
    return order / 2
