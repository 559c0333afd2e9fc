"""This file computes the dominating pair of one epoch in which each example falls into one of t
batches at random (balls in bins).

Q = N(0, s^2 I_t) and P = (1/t) sum_i N(e_i, s^2 I_t) dominate the epoch in both directions (Chua et
al. 2024; Feldman and Shenfeld 2025), so R = dP/dQ is the mean of t independent log-normal variables
L_i with mean 1 under Q. A mean-preserving split of the L_i raises their mean in convex order, so
one discretised law bounds both directions at once (`pairs`). Two ways of adding up the t variables:

- by doubling on a geometric grid (`doubling`): positive arithmetic only, any s and t, nearby s
  together;
- by Fourier transform on a linear grid, much faster, where s >= 0.75 and t >= 16.

It covers a fresh, independent, secret partition every epoch, for add/remove and zero-out
neighbours. It does not cover shuffles with fixed batch sizes, nor a partition that is used twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from privlearn._scipy import ndtri
from privlearn.core.accounting.pld.fourier import Factor, convolve_beside, length, transform_error
from privlearn.core.accounting.pld.pairs import (
    Pair,
    least_bound,
    log_moment,
    log_moments,
    poisson_pair,
)
from privlearn.core.accounting.pld.rounding import (
    UNIT,
    Array,
    ratios_onto_grid,
    rounded_up,
    split,
    tails,
)
from privlearn.errors import UnsupportedEvent

Cells = NDArray[np.int64]

#: Cell width of intermediate grids over the spread of what is on them.
_GAMMA = 0.05
#: Noise multipliers that are doubled together: up to so many, and up to so many times the least
#: one.
_TOGETHER, _NEAR = 64, 1.1
#: Points of linear grids are no further apart than `_GAMMA`, or than this share of a cell of the
#: grid of losses.
_SPARSE = 0.05
#: Batches, and noise multiplier times the root of the batches, beyond which grids would be too
#: fine.
_MOST_BATCHES, _MOST_NOISE = 10**7, 4e5


def within_reach(batches: int, sigma: float) -> tuple[int, float]:
    """Batches and noise multiplier as they are, or fewer and less where there are more than 10^7
    batches, or hardly any loss: an upper bound.

    The mean of fewer independent ratios is larger in convex order, and less noise costs more.
    """
    batches = min(batches, _MOST_BATCHES)
    return batches, min(sigma, _MOST_NOISE / math.sqrt(batches))


@final
@dataclass(frozen=True)
class Epochs:
    """Epochs over `batches` random batches, which differ in their noise multipliers:
    `pairs.Kin`.
    """

    batches: int

    def pairs(self, levels: Sequence[float], h: float, tail: float) -> list[Pair]:
        """The pair of each noise multiplier; those that take doubling together with their
        neighbours.
        """
        pairs: list[Pair | None] = [_at_once(self.batches, sigma, h, tail) for sigma in levels]
        slow = [place for place, pair in enumerate(pairs) if pair is None]
        for group in _nearby([levels[place] for place in slow]):
            places = [slow[number] for number in group]
            doubled = _together_by_doubling(
                self.batches, [levels[place] for place in places], h, tail
            )
            for place, pair in zip(places, doubled, strict=True):
                pairs[place] = pair
        return [pair for pair in pairs if pair is not None]


def partition_pair(batches: int, sigma: float, h: float, tail: float) -> Pair:
    """The pair of one epoch over `batches` random batches, each released with noise multiplier
    `sigma`.

    Args:
        batches: t, 1 or more.
        sigma: the noise multiplier of the epoch.
        h: the grid step of losses.
        tail: the mass that may be moved to 0 and to infinity, in all.
    """
    return Epochs(batches).pairs([sigma], h, tail)[0]


def _at_once(batches: int, sigma: float, h: float, tail: float) -> Pair | None:
    """The pair, where it takes no doubling."""
    if batches == 1:
        return poisson_pair(1.0, sigma, h, tail)
    # About what rounding adds there, over all cells.
    if sigma >= 0.75 and batches >= 16 and 8 * batches * transform_error(1 << 14) <= 2 * tail:
        return _by_fourier(batches, sigma, h, tail)
    return None


def spread(batches: int, sigma: float) -> float:
    """Roughly the standard deviation of the loss: sqrt(ln(1 + Var R))."""
    return math.sqrt(math.log1p(_variance(sigma) / batches))


def _variance(sigma: float) -> float:
    """The variance of each L_i."""
    return math.expm1(min(sigma**-2, 700.0))


# Doubling on a geometric grid


def _by_doubling(batches: int, sigma: float, h: float, tail: float) -> Pair:
    return _together_by_doubling(batches, [sigma], h, tail)[0]


def _together_by_doubling(
    batches: int, sigmas: Sequence[float], h: float, tail: float
) -> list[Pair]:
    """The pairs of nearby noise multipliers, on grids that are fine enough for all of them."""
    # only where partitions are priced so
    from privlearn.core.accounting.pld.doubling import mean_of, refined, together

    largest = max(sigmas)

    def step(bins: int) -> float:
        """A power of two times h, fine against the spread of a mean over `bins`; grids are
        nested.
        """
        return float(h * 2 ** max(0, math.floor(math.log2(_GAMMA * spread(bins, largest) / h))))

    part = tail / (batches.bit_length() + batches.bit_count() + 1)
    one = together([poisson_pair(1.0, sigma, step(1), part / batches) for sigma in sigmas])
    return refined(mean_of(one, batches, step, part), h)


def _nearby(sigmas: Sequence[float]) -> list[list[int]]:
    """Places of noise multipliers that are computed together, none of them much below another."""
    groups: list[list[int]] = []
    for place in sorted(range(len(sigmas)), key=sigmas.__getitem__):
        if (
            not groups
            or len(groups[-1]) == _TOGETHER
            or sigmas[place] > _NEAR * sigmas[groups[-1][0]]
        ):
            groups.append([])
        groups[-1].append(place)
    return groups


# Fourier transform on a linear grid


def _by_fourier(batches: int, sigma: float, h: float, tail: float) -> Pair:
    width = _GAMMA * math.sqrt(_variance(sigma)) * min(1.0, math.sqrt(batches) / 8)
    cells = _cells(sigma, width, tail / 4, batches, _SPARSE * h)
    values, mass, beyond = _log_normal(sigma, cells, width)
    low, high = _sum_window(values, mass, batches, tail / 4)
    first, last = math.floor(low / width), math.ceil(high / width)
    size = length(max(last - first + 1, int(cells[-1]) + 2))
    q_one, p_one = (
        np.asarray(np.bincount(cells, law), dtype=np.float64) for law in (mass, mass * values)
    )
    # By exchangeability the P-law of the sum is E[L_1; sum]: one factor weighted by its own value.
    laws = convolve_beside(
        Factor(q_one, batches - 1, 0.0), [Factor(q_one, 1, 0.0), Factor(p_one, 1, 4 * UNIT)], size
    )
    places = np.arange(first, last + 1)
    (q_law, p_law), ratio = (law[places % size] for law in laws), places * width / batches
    # Each side of the window leaves out tail / 4 of one law, and less of the other: there is no 1
    # among those ratios.
    allowance = tail / 2
    zero = float(q_law[0]) if first == 0 else 0.0
    start = int(first == 0)
    low_cell, onto = ratios_onto_grid(ratio[start:], q_law[start:], p_law[start:], h)
    q0, p_inf = rounded_up(zero + allowance, 4), rounded_up(beyond + allowance, 4)
    return Pair(h, low_cell, onto, min(1.0, q0), min(1.0, p_inf))


def _cells(sigma: float, width: float, tail: float, batches: int, share: float) -> Cells:
    """Where L is put among the points 0, width, 2 width, ...: on all, and far up, where few batches
    are, on fewer.

    There, points are no further apart than `share` of what the sum of all batches is at the least.
    Beyond the last one there is P-mass of at most `tail`.
    """
    sd, centre = 1 / sigma, -0.5 / sigma**2
    top = math.ceil(math.exp(centre + sd * (sd - ndtri(tail))) / width) + 1
    usual = math.exp(centre - sd * ndtri(1 / (4 * batches)))
    dense = min(top, math.ceil(max(usual, 2 * width / share - batches) / width))
    least, growth = dense * width + batches, math.log1p(share)
    steps = math.ceil(math.log((top * width + batches) / least) / growth)
    sparse = (least * np.exp(growth * np.arange(1, steps)) - batches) / width
    cells = np.append(np.arange(dense + 1), np.floor(sparse).astype(np.int64))
    return np.append(cells[cells < top], top)


def _log_normal(sigma: float, cells: Cells, width: float) -> tuple[Array, Array, float]:
    """L on some of the points 0, width, 2 width, ... by mean-preserving splits: points, Q-masses,
    the mean cut off.
    """
    sd, centre = 1 / sigma, -0.5 / sigma**2
    x = np.asarray(width * cells, dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log(x)
    u = (logs - centre) / sd
    bounded = np.where(x > 0, u, 0.0)
    # Cells of u are as computed: what is rounded is where their sides are, as ratios, but for the
    # first.
    error = UNIT * x * (10 + 8 * np.abs(sd * bounded + centre) - 8 * centre)
    gaps = width * np.diff(cells)
    laws = tails(u), tails(u - sd, UNIT * (np.abs(bounded) + 4 * sd))
    mass, (_, above) = split(x, error, gaps, (error[1:] + error[:-1]) / gaps + UNIT, *laws)
    # Points that are off by that much: some of their mass belongs to the neighbours.
    slack = mass * np.minimum(2 * error / width, 1.0)
    mass[:-1] += slack[1:]
    mass[1:] += slack[:-1]
    return x, mass * (1 + 4 * UNIT), above + 2 * float(error[-1] * mass[-1])


def _sum_window(values: Array, mass: Array, batches: int, tail: float) -> tuple[float, float]:
    """A window with P-mass of the sum above it, and Q-mass below it, at most `tail`: Chernoff."""
    # Rounding moves the logarithms below by less than ln 2: `require_exact`.
    need = math.log(2) - math.log(tail)
    mean, variance = float(mass @ values), float(mass @ values**2) - float(mass @ values) ** 2
    guess = math.sqrt(2 * need / (batches * max(variance, 1e-300)))

    weighted = mass * values

    def above(order: float) -> float:
        log_weighted, other = log_moments(values, (weighted, mass), order)
        return (log_weighted + (batches - 1) * other + need) / order

    def below(order: float) -> float:
        return (batches * log_moment(values, mass, -order) + need) / order

    def require_exact(order: float, bound: float) -> None:
        exponents = 4 * order * (float(values[-1]) + abs(bound))
        if UNIT * batches * (exponents + len(mass) + 64) > 0.5:
            raise UnsupportedEvent("too many batches for their tails to be bounded by moments")

    (high, up), (low, down) = least_bound(above, guess), least_bound(below, guess)
    require_exact(up, high)
    require_exact(down, low)
    return max(0.0, min(-low, batches * mean)), max(high, batches * mean)
