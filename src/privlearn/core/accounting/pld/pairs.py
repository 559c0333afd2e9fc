"""This file puts one mechanism on a grid as a dominating pair: so the accountant of privacy loss
distributions sees it.

A mechanism is dominated by a pair of laws (P with the example, Q without). Everything follows from
the law of the likelihood ratio R = dP/dQ under Q, kept on the grid R = e^{k h}. Both hockey-stick
curves are convex in R:

    remove  H_g(P||Q) = E_Q (R - g)_+        add  H_g(Q||P) = E_Q (1 - g R)_+

so moving mass from a point to the two ends of its cell *while keeping its mean* (a mean-preserving
split) can only raise both of them, at once, and the error is of second order in the cell width.
Mass beyond the grid goes to R = 0 or R = infinity in the same way (Doroshenko et al. 2022 call the
split "connect the dots").

The dominating pair of a Poisson-sampled Gaussian release for a person with k of the examples, on a
grid.

    P = sum_j Binomial(k, q)(j) N(j, sigma^2)    against    Q = N(0, sigma^2)

The ratio R(x) = sum_j p_j e^{(j x - j^2 / 2) / sigma^2} rises with the observation x, so the law of
R follows from the masses of intervals of x. It is split, keeping its mean, twice: onto the values
of R at chosen x, and from these onto the grid (`pairs` says why that is safe in both directions).
The x are chosen by interpolation so that R meets the grid nearly; how well is a matter of tightness
only, since the second split takes the values as they are.

Numerical pieces that privacy loss distributions share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, final

import numpy as np

from privlearn._scipy import ndtr, ndtri
from privlearn.core.accounting.pld.rounding import (
    UNIT,
    Array,
    Tails,
    onto_grid,
    rounded_up,
    share_error,
    split,
    tails,
)
from privlearn.core.accounting.searches import bisect
from privlearn.errors import UnsupportedEvent


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


class Kin(Protocol):
    """Mechanisms that differ in their noise level alone, and whose pairs are computed faster
    together. Hashable.
    """

    def pairs(self, levels: Sequence[float], h: float, tail: float) -> list[Pair]:
        """The pair of each level, as `PairBuilder.build` has it."""
        ...


@final
@dataclass(frozen=True)
class PairBuilder:
    """How a mechanism gets onto a grid.

    Attributes:
        build: the pair, from the grid step and the mass that may be moved to 0 and to infinity, in
            all.
        spread: about the standard deviation of the loss; of losses that come in atoms, `ATOMS`
            times that.
        width: about the width of the losses.
        kin: what it is computed together with, if anything, and its own noise level there.
    """

    build: Callable[[float, float], Pair]
    spread: float
    width: float
    kin: tuple[Kin, float] | None = None


def built(builders: Sequence[PairBuilder], h: float, tail: float) -> list[Pair]:
    """The pairs of all `builders` on one grid; those of kin together."""
    kin: dict[Kin | None, list[int]] = {}
    for place, builder in enumerate(builders):
        kin.setdefault(builder.kin and builder.kin[0], []).append(place)
    done: dict[int, Pair] = {}
    for family, places in kin.items():
        if family is None:
            pairs = [builders[place].build(h, tail) for place in places]
        else:
            pairs = family.pairs(
                [each[1] for place in places if (each := builders[place].kin)], h, tail
            )
        done |= zip(places, pairs, strict=True)
    return [done[place] for place in range(len(builders))]


#: What rounding may add to masses beyond the points, as a share.
_SIDES = 16_384 * UNIT
#: Losses that come in atoms need a finer grid for their spread than smooth ones.
ATOMS = 0.1


def poisson_pair(rate: float, sigma: float, h: float, tail: float) -> Pair:
    """The pair of one Poisson-sampled Gaussian release: Q = N(0, sigma^2), P = (1-rate) Q + rate
    N(1, sigma^2).

    With rate 1 it is the plain Gaussian release. Exact up to the mean-preserving split and to what
    rounding adds.
    """
    sd, centre = 1.0 / sigma, -0.5 / sigma**2
    # R = 1 - rate + rate y, y = e^{centre + sd u} with u standard normal under Q, and N(sd, 1)
    # under N(1, sigma^2). P-mass beyond top is at most tail by the union over both parts.
    top = max(-ndtri(tail / 2), sd - ndtri(min(0.5, tail / (2 * rate))))
    high = _log_mixture(rate, centre + sd * top)
    low = _log_mixture(rate, centre + sd * ndtri(tail))
    first, last = math.floor(low / h), math.ceil(high / h)
    exponents = h * np.arange(first, last + 1)
    x = np.exp(exponents)
    share = UNIT * (np.abs(exponents) + 6)
    if rate == 1:
        y, y_error = x, x * share
    else:
        more = np.expm1(exponents)
        y = 1 + more / rate
        y_error = 1.01 * UNIT * ((np.abs(exponents) * x + 4 * np.abs(more)) / rate + np.abs(y))
    # Cells of u are as computed, and so what is rounded is where their sides are, as ratios; below
    # 0 there are none.
    at = np.where(np.abs(y) <= y_error, 2 * y_error, np.maximum(y, 0.0))
    with np.errstate(divide="ignore"):
        logs = np.log(at)
    u = (logs - centre) / sd
    inside = at > 0
    bounded = np.where(inside, u, 0.0)
    y_error += np.where(
        inside, np.abs(at - y) + 10 * UNIT * at * (np.abs(sd * bounded + centre) + 1 - centre), 0.0
    )
    q, p = tails(u), tails(u - sd, UNIT * (np.abs(bounded) + 4 * sd))
    gaps = x[:-1] * (math.expm1(h) / rate)
    masses, rest = split(y, y_error, gaps, share[:-1] + (y_error[1:] + y_error[:-1]) / gaps, q, p)
    pair = _with_sides(h, first, masses, float(x[0]), rate, (q, p), rest)
    slack = pair.q * share_error(1.01 * rate * y_error / x, h)
    spread = np.zeros(len(x) + 2)
    spread[1:-1] = pair.q
    spread[:-2] += slack
    spread[2:] += slack
    return Pair(h, first - 1, spread * (1 + 4 * UNIT), pair.q0, pair.p_inf)


def _with_sides(
    h: float,
    first: int,
    masses: Array,
    least: float,
    rate: float,
    laws: tuple[Tails, Tails],
    rest: tuple[float, float],
) -> Pair:
    """The pair with the `rest` that lies beyond the points of `split` by y, where R is at most 1 -
    rate + rate y.

    Below the points: onto 0 and the first one, at the ratio `least`. Above them: onto the last one
    and infinity.
    """
    below, above = rest
    q_below, p_below = (float(law.below[0] + law.below_error[0]) for law in laws)
    masses[0] = (masses[0] + ((1 - rate) * q_below + rate * p_below) / least) * (1 + _SIDES)
    return Pair(h, first, masses, rate * below / least * (1 + _SIDES), rate * above * (1 + _SIDES))


def _log_mixture(rate: float, loss: float) -> float:
    """ln(1 - rate + rate e^loss)."""
    return float(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + loss))


def ratio_range(rate: float, sigma: float) -> float:
    """Roughly the width of the losses of `poisson_pair`."""
    return _log_mixture(rate, 0.5 / sigma**2 + 8 / sigma) - _log_mixture(
        rate, -0.5 / sigma**2 - 8 / sigma
    )


def spread_onto(losses: Array, q: Array, h: float, error: float | Array = 0.0) -> Pair:
    """Atoms of Q-mass `q` at the ratios e^losses, which may be off by `error`, split onto the grid
    of step h.
    """
    return Pair(h, *onto_grid(losses, q, h, error), 0.0, 0.0)


def atoms(masses: dict[float, float], h: float) -> Pair:
    """The pair whose ratio R takes the values e^{loss} with the Q-masses of `masses` ({loss:
    mass}).
    """
    return spread_onto(np.array([*masses]), np.array([*masses.values()]), h)


def pure_pair(epsilon: float, h: float) -> Pair:
    """The pair that dominates every pure epsilon-DP mechanism: binary randomised response."""
    return randomised_response_pair(epsilon, 2, h)


def randomised_response_pair(epsilon: float, categories: int, h: float) -> Pair:
    """k-ary randomised response: the true category e^epsilon times as likely as each other."""
    odds = math.exp(-epsilon)
    true_mass = rounded_up(1 / (1 + (categories - 1) * odds), 64)
    masses = {-epsilon: true_mass, epsilon: rounded_up(odds * true_mass, 32)}
    if categories > 2:
        masses[0.0] = rounded_up((categories - 2) * odds * true_mass, 32)
    return atoms(masses, h)


def laplace_pair(noise_multiplier: float, h: float) -> Pair:
    """The Laplace mechanism with scale `noise_multiplier` x sensitivity: losses in [-1/b, 1/b],
    atoms at both ends.

    Between two points of losses at distance w there is Q-mass (1 - e^{-w/2}) e^{-(loss + 1/b)/2} /
    2, of which a share goes to the upper one; in closed form nothing is lost in differences.
    """
    end = 1 / noise_multiplier
    cells = np.arange(math.floor(-end / h) + 1, math.ceil(end / h))
    inside = h * cells
    cells, inside = (each[np.abs(inside) < end * (1 - 8 * UNIT)] for each in (cells, inside))
    points = np.concatenate([[-end], inside, [end]])
    widths = np.full(len(points) - 1, h)
    widths[[0, -1]] = points[1] + end, end - points[-2]
    scale = 0.5 * np.exp(-(points[:-1] + end) / 2)
    right = scale * 4 * np.sinh(widths / 4) ** 2 / np.expm1(widths)
    left = np.maximum(scale * -np.expm1(-widths / 2) - right, 0.0)
    q = np.zeros(len(points))
    q[0], q[-1] = 0.5, 0.5 * math.exp(-end)
    q[:-1] += left
    q[1:] += right
    q *= 1 + UNIT * (64 + 8 * end)
    q[[0, 1, -2, -1]] += 8 * UNIT * end  # widths at the ends are differences
    first, out = onto_grid(points[[0, -1]], q[[0, -1]], h, 2 * UNIT * end)
    whole = np.zeros(max(first + len(out), int(cells[-1]) + 1 if len(cells) else first) - first)
    whole[: len(out)] = out
    whole[cells - first] += q[1:-1]
    return Pair(h, first, whole * (1 + 4 * UNIT), 0.0, 0.0)


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
        raise UnsupportedEvent(
            "with and without the group, what is released hardly overlaps: that has no useful price"
        )
    first, last = math.floor(losses[0] / h), math.ceil(losses[-1] / h)
    x = np.unique(np.interp(h * np.arange(first, last + 1), losses, table))
    # R = base + scale y (less what was dropped): where none may be drawn, y says more digits of R
    # than R.
    drawn = int(counts[0] == 0)
    drawn_weights, share = weights[drawn:], 2.1 * _weight_error(k)
    scale = float(drawn_weights.sum()) if drawn else 1.0
    y, y_share = _density(x, sigma, counts[drawn:], drawn_weights / scale)
    p = _laws(x, sigma, counts[drawn:], drawn_weights / scale)
    q = tails(x / sigma, UNIT * np.abs(x / sigma))
    gaps = np.diff(y)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap_error = (y_share[1:] * y[1:] + y_share[:-1] * y[:-1]) / gaps + UNIT
    masses, rest = split(y, y * y_share, gaps, gap_error, q, p)
    # What weights may be off moves the ratios: those of the law with the weights as they are were
    # split.
    ratios = np.log1p(scale * (y - 1) - dropped) if drawn else np.log(y)
    moved = scale * (y_share * y + share * (y + 1)) + share * dropped
    error = moved / np.exp(ratios) if drawn else y_share + share
    least = float(np.exp(ratios[0]) * (1 - 2 * error[0]))
    sides = _with_sides(h, 0, masses, least, scale, (q, p), rest)
    low, onto = onto_grid(ratios, sides.q, h, 1.01 * error + 4 * UNIT * np.abs(ratios))
    return Pair(h, low, onto, sides.q0, rounded_up(sides.p_inf + dropped, 256 + 64 * k))


def _weight_error(k: int) -> float:
    """The share by which each of the `components` may be off: products of at most k ratios, over
    their sum.
    """
    return UNIT * (16 * k + 64)


def _density(x: Array, sigma: float, counts: Array, weights: Array) -> tuple[Array, Array]:
    """sum_j weights e^{(x j - j^2 / 2) / sigma^2} at `x`, and the share by which it may be off."""

    def at(part: Array) -> Array:
        exponents = (np.multiply.outer(part, counts) - counts**2 / 2) / sigma**2
        return np.asarray(np.exp(np.minimum(exponents, 705.0)) @ weights, dtype=np.float64)

    top = float(counts[-1])
    return _in_parts(at, x, len(counts)), UNIT * (
        8 * top * (np.abs(x) + top) / sigma**2 + len(counts) + 16
    )


def _laws(x: Array, sigma: float, counts: Array, weights: Array) -> Tails:
    """The mixture's masses below and above each of `x`."""

    def at(part: Array) -> Array:
        u = np.subtract.outer(part, counts) / sigma
        each = tails(u, 3 * UNIT * np.abs(u))
        return np.stack(
            [
                table @ weights
                for table in (each.below, each.above, each.below_error, each.above_error)
            ],
            -1,
        )

    below, above, below_error, above_error = _in_parts(at, x, len(counts)).T
    off = UNIT * (len(counts) + 8)
    return Tails(below, above, 1.01 * below_error + off * below, 1.01 * above_error + off * above)


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
    """How many of the k are drawn, and with what probability; and the mass of rare numbers that
    were left out.

    Leaving out part of P at all x and counting its mass as infinitely distinguishable is safe: R
    only falls, which the add direction counts against us, and what it loses is what the remove
    direction adds.
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


def _table(
    sigma: float, counts: Array, weights: Array, tail: float, points: int
) -> tuple[Array, Array]:
    """Points x with Q-mass at most `tail` below them and P-mass at most `tail` above them, and the
    losses there.
    """

    def loss(x: float) -> float:
        return float(_log_ratio(np.array([x]), sigma, counts, weights)[0])

    def beyond(x: float) -> float:
        return float(_masses(np.array([x]), sigma, counts, weights)[1][0])

    reach = -sigma * float(ndtri(tail))
    top = float(counts[-1])
    high = _find_crossing(lambda x: beyond(x) <= tail, -reach, top + reach)
    if loss(high) > _FARTHEST:
        high = _find_crossing(lambda x: loss(x) > _FARTHEST, -reach, high)
    low = -reach
    if loss(low) < -_FARTHEST:
        low = _find_crossing(lambda x: loss(x) > -_FARTHEST, low, max(high, top + reach))
    high = max(high, low + 1e-6 * sigma)
    table = np.linspace(low, high, points)
    return table, np.maximum.accumulate(_log_ratio(table, sigma, counts, weights))


def _find_crossing(true_above: Callable[[float], bool], low: float, high: float) -> float:
    """A point of [low, high] where a condition holds that holds from some point on; close above
    that point.
    """
    return bisect(true_above, low, high, 0.0, most_steps=40)[1]


def _log_ratio(x: Array, sigma: float, counts: Array, weights: Array) -> Array:
    """ln R at `x`; infinite only far beyond `_FARTHEST`."""

    def at(part: Array) -> Array:
        terms = np.exp(
            (np.multiply.outer(part, counts) - counts**2 / 2) / sigma**2 + np.log(weights)
        )
        return np.asarray(terms.sum(axis=1), dtype=np.float64)

    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.log(_in_parts(at, x, len(counts))), dtype=np.float64)


def _masses(x: Array, sigma: float, counts: Array, weights: Array) -> tuple[Array, Array]:
    """P-mass below and above each of `x`."""

    def below(part: Array) -> Array:
        return np.asarray(ndtr(np.subtract.outer(part, counts) / sigma) @ weights, dtype=np.float64)

    def above(part: Array) -> Array:
        return np.asarray(
            ndtr(-np.subtract.outer(part, counts) / sigma) @ weights, dtype=np.float64
        )

    return _in_parts(below, x, len(counts)), _in_parts(above, x, len(counts))


def _in_parts(function: Callable[[Array], Array], x: Array, width: int) -> Array:
    """`function` of `x`, on parts whose tables of `width` columns stay small."""
    return np.concatenate(
        [function(part) for part in np.array_split(x, len(x) * width // _CHUNK + 1)]
    )


#: An exponent below which e to it is less than any number.
_NOTHING = -746.0
#: Orders beyond this one are not tried: where no variance is left, bounds fall for ever.
_HIGHEST = 1e100


def log_moment(points: Array, mass: Array, order: float) -> float:
    """ln of the sum of mass e^{order points}, over points that ascend."""
    return log_moments(points, [mass], order)[0]


def log_moments(points: Array, masses: Sequence[Array], order: float) -> list[float]:
    """`log_moment` of several masses on the same points: exponentials take most of the time, and
    are shared.
    """
    logs, factors, last = [], points, math.nan
    for mass in masses:
        used = mass > 0
        top = float(
            order * points[len(used) - 1 - np.argmax(used[::-1]) if order > 0 else np.argmax(used)]
        )
        if top != last:
            exponents, factors, last = order * points - top, np.zeros(len(points)), top
            # Exponentials that underflow are 0, and take fifty times as long as others.
            near = np.searchsorted(
                exponents if order > 0 else -exponents, _NOTHING if order > 0 else -_NOTHING
            )
            part = slice(near, None) if order > 0 else slice(near)
            factors[part] = np.exp(np.minimum(exponents[part], 0.0))
        logs.append(top + math.log(float(mass @ factors)))
    return logs


def least_bound(bound: Callable[[float], float], order: float) -> tuple[float, float]:
    """The least value of `bound` found around `order`, and where: for bounds that hold at every
    order (Chernoff).
    """
    best = bound(order)
    for factor in (4.0, 0.25, 1.6, 0.6, 1.2, 0.85):
        while order * factor < _HIGHEST and (trial := bound(order * factor)) < best:
            order, best = order * factor, trial
    return best, order
