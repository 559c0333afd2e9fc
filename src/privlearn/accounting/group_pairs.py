"""The dominating pair of a Poisson-sampled Gaussian release for somebody with k of the examples, on a grid.

    P = sum_j Binomial(k, q)(j) N(j, sigma^2)    against    Q = N(0, sigma^2)

The ratio R(x) = sum_j p_j e^{(j x - j^2 / 2) / sigma^2} rises with the observation x, so the law of R follows from the
masses of intervals of x. It is split, keeping its mean, twice: onto the values of R at chosen x, and from these onto
the grid (`pairs` says why that is safe in both directions). The x are chosen by interpolation so that R meets the
grid nearly; how well is a matter of tightness only, since the second split takes the values as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from privlearn.accounting.pairs import Array, Pair, split, spread_onto
from privlearn.errors import UnsupportedEvent

#: Losses beyond these go to 0 and to infinity: likelihood ratios must stay numbers.
_FARTHEST = 600.0
#: Mass beyond from which a mechanism tells nearly all about the group.
_APART = 0.1
#: Points of the table that x is read from, and of the one that a mechanism is judged by.
_TABLE, _COARSE = 1 << 12, 1 << 9
#: The mass outside the latter.
_SKETCH = 1e-14
#: A spread beyond this asks for no coarser grid.
_WIDEST = 2.0
#: Numbers that are held at once.
_CHUNK = 1 << 18


def group_pair(rate: float, sigma: float, k: int, h: float, tail: float) -> Pair:
    """The pair on the grid of step `h`; exact up to the mean-preserving splits.

    Args:
        rate: the sampling rate, below 1.
        sigma: the noise multiplier.
        k: the examples of one person.
        h: the grid step of losses.
        tail: the mass that may be moved to 0 and to infinity, in all.

    Raises:
        UnsupportedEvent: the two laws are too far apart for likelihood ratios in double precision.
    """
    counts, weights, dropped = components(rate, k, tail / 4)
    table, losses = _table(sigma, counts, weights, tail / 4, _TABLE)
    _, (*_, beyond) = _masses(table[-1:], sigma, counts, weights)
    if max(beyond, float(ndtr(table[0] / sigma))) > _APART:
        raise UnsupportedEvent("with and without the group, what is released hardly overlaps: that has no useful price")
    first, last = math.floor(losses[0] / h), math.ceil(losses[-1] / h)
    x = np.unique(np.interp(h * np.arange(first, last + 1), losses, table))
    found = np.maximum.accumulate(_log_ratio(x, sigma, counts, weights))
    below, above = _masses(x, sigma, counts, weights)
    q, q0, p_inf = split(np.exp(found), ndtr(x / sigma), ndtr(-x / sigma), below, above)
    pair = spread_onto(found, q, h)
    return Pair(h, pair.lo, pair.q, q0, p_inf + dropped)


@lru_cache(maxsize=1024)
def sketch(rate: float, sigma: float, k: int) -> tuple[float, float]:
    """Roughly the root mean square of the loss, over both laws, and the width of its range."""
    counts, weights, _ = components(rate, k, _SKETCH)
    table, losses = _table(sigma, counts, weights, _SKETCH, _COARSE)
    below, _ = _masses(table, sigma, counts, weights)
    mass = (np.diff(ndtr(table / sigma)) + np.diff(below)) / 2
    middles = (losses[1:] + losses[:-1]) / 2
    return min(_WIDEST, math.sqrt(float(mass @ middles**2))), float(losses[-1] - losses[0])


def components(rate: float, k: int, tail: float) -> tuple[Array, Array, float]:
    """How many of the k are drawn, and with what probability; and the mass of rare numbers that were left out.

    Leaving out part of P at all x and counting its mass as infinitely distinguishable is safe: R only falls, which the add
    direction counts against us, and what it loses is what the remove direction adds.
    """
    mode = min(k, math.floor((k + 1) * rate))
    odds = rate / (1 - rate)
    # Ratios of neighbouring probabilities, from the mode outward: factorials would lose digits.
    up = np.arange(mode, k)
    down = np.arange(mode, 0, -1)
    rising = np.cumprod((k - up) / (up + 1) * odds)
    falling = np.cumprod(down / (k - down + 1) / odds)
    all_weights = np.concatenate([falling[::-1], [1.0], rising])
    all_weights /= all_weights.sum()
    low = int(np.searchsorted(np.cumsum(all_weights), tail / 2, side="right"))
    high = k + 1 - int(np.searchsorted(np.cumsum(all_weights[::-1]), tail / 2, side="right"))
    dropped = float(all_weights[:low].sum() + all_weights[high:].sum())
    return np.arange(low, high, dtype=np.float64), all_weights[low:high], dropped


def _table(sigma: float, counts: Array, weights: Array, tail: float, points: int) -> tuple[Array, Array]:
    """Points x with Q-mass at most `tail` below them and P-mass at most `tail` above them, and the losses there."""

    def loss(x: float) -> float:
        return float(_log_ratio(np.array([x]), sigma, counts, weights)[0])

    def beyond(x: float) -> float:
        return float(_masses(np.array([x]), sigma, counts, weights)[1][0])

    reach = -sigma * float(ndtri(tail))
    top = float(counts[-1])
    high = _crossing(lambda x: beyond(x) <= tail, -reach, top + reach)
    if loss(high) > _FARTHEST:
        high = _crossing(lambda x: loss(x) > _FARTHEST, -reach, high)
    low = -reach
    if loss(low) < -_FARTHEST:
        low = _crossing(lambda x: loss(x) > -_FARTHEST, low, max(high, top + reach))
    high = max(high, low + 1e-6 * sigma)
    table = np.linspace(low, high, points)
    return table, np.maximum.accumulate(_log_ratio(table, sigma, counts, weights))


def _crossing(true_above: Callable[[float], bool], low: float, high: float) -> float:
    """A point of [low, high] where a condition holds that holds from some point on; close above that point."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if true_above(middle) else (middle, high)
    return high


def _log_ratio(x: Array, sigma: float, counts: Array, weights: Array) -> Array:
    """ln R at `x`; infinite only far beyond `_FARTHEST`."""

    def at(part: Array) -> Array:
        terms = np.exp((np.multiply.outer(part, counts) - counts**2 / 2) / sigma**2 + np.log(weights))
        return np.asarray(terms.sum(axis=1), dtype=np.float64)

    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.log(_in_parts(at, x, len(counts))), dtype=np.float64)


def _masses(x: Array, sigma: float, counts: Array, weights: Array) -> tuple[Array, Array]:
    """P-mass below and above each of `x`."""

    def below(part: Array) -> Array:
        return np.asarray(ndtr(np.subtract.outer(part, counts) / sigma) @ weights, dtype=np.float64)

    def above(part: Array) -> Array:
        return np.asarray(ndtr(-np.subtract.outer(part, counts) / sigma) @ weights, dtype=np.float64)

    return _in_parts(below, x, len(counts)), _in_parts(above, x, len(counts))


def _in_parts(function: Callable[[Array], Array], x: Array, width: int) -> Array:
    """`function` of `x`, on parts whose tables of `width` columns stay small."""
    return np.concatenate([function(part) for part in np.array_split(x, len(x) * width // _CHUNK + 1)])
