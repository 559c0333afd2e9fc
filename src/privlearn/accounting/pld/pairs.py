"""Dominating pairs on a grid: how one mechanism looks to the accountant of privacy loss distributions.

A mechanism is dominated by a pair of laws (P with the example, Q without). Everything follows from the law of the
likelihood ratio R = dP/dQ under Q, kept on the grid R = e^{k h}. Both hockey-stick curves are convex in R:

    remove  H_g(P||Q) = E_Q (R - g)_+        add  H_g(Q||P) = E_Q (1 - g R)_+

so moving mass from a point to the two ends of its cell *while keeping its mean* (a mean-preserving split) can only
raise both of them, at once, and the error is of second order in the cell width. Mass beyond the grid goes to R = 0
or R = infinity in the same way (Doroshenko et al. 2022 call the split "connect the dots").

The dominating pair of a Poisson-sampled Gaussian release for a person with k of the examples, on a grid.

    P = sum_j Binomial(k, q)(j) N(j, sigma^2)    against    Q = N(0, sigma^2)

The ratio R(x) = sum_j p_j e^{(j x - j^2 / 2) / sigma^2} rises with the observation x, so the law of R follows from the
masses of intervals of x. It is split, keeping its mean, twice: onto the values of R at chosen x, and from these onto
the grid (`pairs` says why that is safe in both directions). The x are chosen by interpolation so that R meets the
grid nearly; how well is a matter of tightness only, since the second split takes the values as they are.

Numerical pieces that privacy loss distributions share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from privlearn.accounting.budget import bisect
from privlearn.errors import UnsupportedEvent

Array = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Pair:
    """A dominating pair on the grid of losses k h, k = lo, lo + 1, ...

    Attributes:
        h: the grid step.
        lo: index of the first cell.
        q: Q-mass of the cells; the P-mass is q e^{k h}.
        q0: Q-mass where P has none (an infinite loss in the add direction).
        p_inf: P-mass where Q has none (an infinite loss in the remove direction).
    """

    h: float
    lo: int
    q: Array
    q0: float
    p_inf: float

    @property
    def losses(self) -> Array:
        """The losses of the cells."""
        return np.asarray(self.h * np.arange(self.lo, self.lo + len(self.q)), dtype=np.float64)


@final
@dataclass(frozen=True)
class PairBuilder:
    """How a mechanism gets onto a grid.

    Attributes:
        build: the pair, from the grid step and the mass that may be moved to 0 and to infinity, in all.
        spread: about the standard deviation of the loss; of losses that come in atoms, `ATOMS` times that.
        width: about the width of the losses.
    """

    build: Callable[[float, float], Pair]
    spread: float
    width: float


#: Losses that come in atoms need a finer grid for their spread than smooth ones.
ATOMS = 0.1


def poisson_pair(rate: float, sigma: float, h: float, tail: float) -> Pair:
    """The pair of one Poisson-sampled Gaussian release: Q = N(0, sigma^2), P = (1-rate) Q + rate N(1, sigma^2).

    With rate 1 it is the plain Gaussian release. Exact up to the mean-preserving split.
    """
    sd, centre = 1.0 / sigma, -0.5 / sigma**2
    # R = 1 - rate + rate e^{centre + sd u} with u standard normal under Q, and N(sd, 1) under N(1, sigma^2).
    # P-mass beyond top is at most tail by the union over both parts.
    top = max(-ndtri(tail / 2), sd - ndtri(min(0.5, tail / (2 * rate))))
    high = _log_mixture(rate, centre + sd * top)
    low = _log_mixture(rate, centre + sd * ndtri(tail))
    first, last = math.floor(low / h), math.ceil(high / h)
    x = np.exp(h * np.arange(first, last + 1))
    with np.errstate(divide="ignore"):
        u = (np.log(np.maximum(x - (1 - rate), 0.0) / rate) - centre) / sd
    q_below, q_above = ndtr(u), ndtr(-u)
    p_below = (1 - rate) * q_below + rate * ndtr(u - sd)
    p_above = (1 - rate) * q_above + rate * ndtr(sd - u)
    return _on_grid(h, first, x, q_below, q_above, p_below, p_above)


def _log_mixture(rate: float, loss: float) -> float:
    """ln(1 - rate + rate e^loss)."""
    return float(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + loss))


def ratio_range(rate: float, sigma: float) -> float:
    """Roughly the width of the losses of `poisson_pair`."""
    return _log_mixture(rate, 0.5 / sigma**2 + 8 / sigma) - _log_mixture(rate, -0.5 / sigma**2 - 8 / sigma)


def _mass_between(below: Array, above: Array) -> Array:
    """Mass in each cell, from whichever tail is smaller there: differences near 1 lose all digits."""
    return np.maximum(np.where(below[1:] < 0.5, np.diff(below), -np.diff(above)), 0.0)


def _on_grid(h: float, first: int, x: Array, q_below: Array, q_above: Array, p_below: Array, p_above: Array) -> Pair:
    """Split a law onto the points x = e^{k h}, from the Q- and P-mass below and above each point."""
    q, q0, p_inf = split(x, q_below, q_above, p_below, p_above)
    return Pair(h, first, q, q0, p_inf)


def split(x: Array, q_below: Array, q_above: Array, p_below: Array, p_above: Array) -> tuple[Array, float, float]:
    """Q-masses at the ratios `x`, at 0, and P-mass at infinity, from the Q- and P-mass below and above each ratio.

    Every cell's mass goes to its ends so that the mean of R = dP/dQ stays: the pessimistic discretisation.
    """
    dq, dp = _mass_between(q_below, q_above), _mass_between(p_below, p_above)
    right = np.clip((dp - x[:-1] * dq) / np.maximum(np.diff(x), 1e-300), 0.0, dq)
    q = np.zeros(len(x))
    q[:-1] += dq - right
    q[1:] += right
    # Below the points: onto 0 and x[0]. Above them: onto x[-1] and infinity.
    q[0] += p_below[0] / x[0]
    q0 = max(0.0, float(q_below[0] - p_below[0] / x[0]))
    q[-1] += q_above[-1]
    p_inf = max(0.0, float(p_above[-1] - x[-1] * q_above[-1]))
    return q, q0, p_inf


def spread_onto(losses: Array, q: Array, h: float) -> Pair:
    """Atoms of Q-mass `q` at the ratios e^losses, ascending, split onto the grid of step h."""
    cells = np.floor(losses / h).astype(int)
    shares = np.clip(np.expm1(losses - cells * h) / math.expm1(h), 0.0, 1.0)
    low, size = int(cells[0]), int(cells[-1] - cells[0]) + 2
    out = np.bincount(cells - low, q * (1 - shares), size) + np.bincount(cells - low + 1, q * shares, size)
    return Pair(h, low, np.asarray(out, dtype=np.float64), 0.0, 0.0)


def atoms(masses: dict[float, float], h: float) -> Pair:
    """The pair whose ratio R takes the values e^{loss} with the Q-masses of `masses` ({loss: mass})."""
    first = math.floor(min(masses) / h)
    q = np.zeros(math.floor(max(masses) / h) - first + 2)
    for loss, mass in masses.items():
        cell = math.floor(loss / h)
        share = math.expm1(loss - cell * h) / math.expm1(h)
        q[cell - first] += mass * (1 - share)
        q[cell - first + 1] += mass * share
    return Pair(h, first, q, 0.0, 0.0)


def pure_pair(epsilon: float, h: float) -> Pair:
    """The pair that dominates every pure epsilon-DP mechanism: binary randomised response."""
    low = 1 / (1 + math.exp(-epsilon))
    return atoms({-epsilon: low, epsilon: 1 - low}, h)


def randomised_response_pair(epsilon: float, categories: int, h: float) -> Pair:
    """k-ary randomised response: the true category e^epsilon times as likely as each other."""
    other = 1 / (math.exp(epsilon) + categories - 1)
    masses = {-epsilon: math.exp(epsilon) * other, epsilon: other}
    if categories > 2:
        masses[0.0] = (categories - 2) * other
    return atoms(masses, h)


def laplace_pair(noise_multiplier: float, h: float) -> Pair:
    """The Laplace mechanism with scale `noise_multiplier` x sensitivity: losses in [-1/b, 1/b], atoms at both ends."""
    b = noise_multiplier
    first, last = math.floor(-1 / b / h), math.ceil(1 / b / h)
    loss = h * np.arange(first, last + 1)
    inside = np.clip(loss, -1 / b, 1 / b)
    q_above = np.where(loss < -1 / b, 1.0, np.where(loss >= 1 / b, 0.0, 0.5 * np.exp(-(1 + inside * b) / (2 * b))))
    p_below = np.where(loss < -1 / b, 0.0, np.where(loss >= 1 / b, 1.0, 0.5 * np.exp((inside * b - 1) / (2 * b))))
    return _on_grid(h, first, np.exp(loss), 1 - q_above, q_above, p_below, 1 - p_below)


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
    ratios = np.maximum.accumulate(_log_ratio(x, sigma, counts, weights))
    below, above = _masses(x, sigma, counts, weights)
    q, q0, p_inf = split(np.exp(ratios), ndtr(x / sigma), ndtr(-x / sigma), below, above)
    pair = spread_onto(ratios, q, h)
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

    Leaving out part of P at all x and counting its mass as infinitely distinguishable is safe: R only falls, which the
    add direction counts against us, and what it loses is what the remove direction adds.
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
    return bisect(true_above, low, high, 0.0, most_steps=40)[1]


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


#: Orders beyond this one are not tried: where no variance is left, bounds fall for ever.
_HIGHEST = 1e100


def log_moment(points: NDArray[np.float64], mass: NDArray[np.float64], order: float) -> float:
    """ln of the sum of mass e^{order points}."""
    exponents = order * points
    top = float(exponents[mass > 0].max())
    return top + math.log(float(mass @ np.exp(np.minimum(exponents - top, 0.0))))


def least_bound(bound: Callable[[float], float], order: float) -> tuple[float, float]:
    """The least value of `bound` found around `order`, and where: for bounds that hold at every order (Chernoff)."""
    best = bound(order)
    for factor in (4.0, 0.25, 1.6, 0.6, 1.2, 0.85):
        while order * factor < _HIGHEST and (trial := bound(order * factor)) < best:
            order, best = order * factor, trial
    return best, order
