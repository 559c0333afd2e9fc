"""Balls in bins: the dominating pair of one epoch in which each example falls into one of t batches at random.

Q = N(0, s^2 I_t) and P = (1/t) sum_i N(e_i, s^2 I_t) dominate the epoch in both directions (Chua et al. 2024; Feldman
and Shenfeld 2025), so R = dP/dQ is the mean of t independent log-normal variables L_i with mean 1 under Q. A
mean-preserving split of the L_i raises their mean in convex order, so one discretised law bounds both directions at
once (`pairs`). Two ways of adding up the t variables:

- by doubling on a geometric grid: positive arithmetic only, any s and t;
- by Fourier transform on a linear grid, much faster, where s >= 0.75 and t >= 16.

It covers a fresh, independent, secret partition every epoch, for add/remove and zero-out neighbours. It does not cover
shuffles with fixed batch sizes, nor a partition that is used twice.
"""

from __future__ import annotations

import math

import numpy as np

from privlearn._scipy import ndtri
from privlearn.accounting.pld.fourier import Factor, convolve, length, transform_error
from privlearn.accounting.pld.pairs import Pair, least_bound, log_moment, log_moments, poisson_pair
from privlearn.accounting.pld.rounding import UNIT, Array, onto_grid, rounded_up, share_error, split, tails
from privlearn.errors import UnsupportedEvent

#: Cell width of intermediate grids over the spread of what is on them.
_GAMMA = 0.05
#: More than products that underflow lose, under either law: ratios are below e^450.
_LOST = 1e-100
#: Batches, and noise multiplier times the root of the batches, beyond which grids would be too fine.
_MOST_BATCHES, _MOST_NOISE = 10**7, 4e5


def within_reach(batches: int, sigma: float) -> tuple[int, float]:
    """Batches and noise multiplier as they are, or fewer and less where epsilon is about 1e-5 or below: an upper bound.

    The mean of fewer independent ratios is larger in convex order, and less noise costs more.
    """
    batches = min(batches, _MOST_BATCHES)
    return batches, min(sigma, _MOST_NOISE / math.sqrt(batches))


def partition_pair(batches: int, sigma: float, h: float, tail: float) -> Pair:
    """The pair of one epoch over `batches` random batches, each released with noise multiplier `sigma`.

    Args:
        batches: t, 1 or more.
        sigma: the noise multiplier of the epoch.
        h: the grid step of losses.
        tail: the mass that may be moved to 0 and to infinity, in all.
    """
    if batches == 1:
        return poisson_pair(1.0, sigma, h, tail)
    # About what rounding adds there, over all cells.
    if sigma >= 0.75 and batches >= 16 and 8 * batches * transform_error(1 << 14) <= 2 * tail:
        return _by_fourier(batches, sigma, h, tail)
    return _by_doubling(batches, sigma, h, tail)


def spread(batches: int, sigma: float) -> float:
    """Roughly the standard deviation of the loss: sqrt(ln(1 + Var R))."""
    return math.sqrt(math.log1p(_variance(sigma) / batches))


def _variance(sigma: float) -> float:
    """The variance of each L_i."""
    return math.expm1(min(sigma**-2, 700.0))


# Doubling on a geometric grid


def _by_doubling(batches: int, sigma: float, h: float, tail: float) -> Pair:
    def step(bins: int) -> float:
        """A power of two times h, fine against the spread of a mean over `bins`; grids are nested."""
        return float(h * 2 ** max(0, math.floor(math.log2(_GAMMA * spread(bins, sigma) / h))))

    part = tail / (batches.bit_length() + batches.bit_count() + 1)
    current = poisson_pair(1.0, sigma, step(1), part / batches)
    total: Pair | None = None
    done = size = 0
    size = 1
    while True:
        if batches & size:
            total = current if total is None else _weighted(total, current, done, size, step(done + size), part)
            done += size
        if done == batches:
            break
        current = _double(current, round(current.h / min(current.h, step(2 * size))), part)
        size *= 2
    assert total is not None
    return _refine(total, h)


def _double(pair: Pair, ratio: int, tail: float) -> Pair:
    """The mean of two independent copies of R, on a grid `ratio` times as fine."""
    h, n = pair.h / ratio, len(pair.q)
    # R_i and R_{i+k} have the mean e^{i h} (1 + e^{k h}) / 2; one shift serves all i.
    offsets = np.logaddexp(0.0, pair.h * np.arange(n)) - math.log(2)
    cells = np.floor(offsets / h).astype(int)
    cells[0] = 0
    shares = np.clip(np.expm1(offsets - cells * h) / math.expm1(h), 0.0, 1.0)
    shares[0] = 0.0
    # What rounding may move; near a side of its cell a mass may belong to the next one. The first offset is exact.
    off = share_error(np.asarray(UNIT * (8 + 4 * pair.h * np.arange(n))), h)
    off[0] = 0.0
    halved = math.floor(-math.log(2) / h)  # a copy at 0 halves the other
    out = np.zeros(ratio * (n - 1) + 4 - halved)
    q, twice = pair.q, 2 * pair.q
    product, scaled = np.empty(n), np.empty(n)  # most of the time would go into making new ones

    def add(mass: Array, cell: int, parts: tuple[float, ...]) -> None:
        own = scaled[: len(mass)]
        reach = ratio * (len(mass) - 1) + 1
        for place, part in enumerate(parts, cell - halved):
            if part:
                there = out[place : place + reach : ratio]
                np.add(there, np.multiply(mass, part, own), there)

    add(np.multiply(q, q, product), int(cells[0]), _parts(float(shares[0]), float(off[0])))
    for k, (cell, share, error) in enumerate(zip(cells.tolist(), shares.tolist(), off.tolist(), strict=True)):
        if k:
            add(np.multiply(twice[: n - k], q[k:], product[: n - k]), cell, _parts(share, error))
    if pair.q0:
        share = min(max(math.expm1(-math.log(2) - halved * h) / math.expm1(h), 0.0), 1.0)
        add(2 * pair.q0 * pair.q, halved, _parts(share, float(share_error(8 * UNIT, h))))
    raised = out * (1 + UNIT * (4 * n + 16))
    q0 = rounded_up(pair.q0**2, 2) + _LOST
    return _trim(Pair(h, ratio * pair.lo + halved - 1, raised, q0, pair.p_inf + _LOST), tail)


def _parts(share: float, off: float) -> tuple[float, ...]:
    """Upper bounds on the parts of a mass at the cells before, at, after its own, and the next one."""
    return (off * (share <= off), 1 - share + off, share + off, off * (share >= 1 - off))


def _weighted(first: Pair, second: Pair, m: int, n: int, h: float, tail: float) -> Pair:
    """The law of (m R + n R') / (m + n) for independent R and R', on the grid of step h."""
    a, b = m / (m + n), n / (m + n)
    x, p = np.append(a * np.exp(first.losses), 0.0), np.append(first.q, first.q0)
    y, q = np.append(b * np.exp(second.losses), 0.0), np.append(second.q, second.q0)
    far = float(max(np.abs(first.losses).max(), np.abs(second.losses).max()))
    low = math.floor(math.log(min(x[0], y[0])) / h) - 3
    size = math.ceil(math.log(x[-2] + y[-2]) / h) - low + 5
    out = np.zeros(size)
    for chunk in np.array_split(np.arange(len(x)), max(1, len(x) * len(y) // 2_000_000)):
        values, mass = np.add.outer(x[chunk], y).ravel(), np.multiply.outer(p[chunk], q).ravel()
        used = (mass > 0) & (values > 0)
        if used.any():
            start, part = onto_grid(np.log(values[used]), mass[used], h, UNIT * (16 + 4 * far))
            out[start - low : start - low + len(part)] += part
    p_inf = rounded_up(a * first.p_inf + b * second.p_inf, 8)
    raised = out * (1 + UNIT * (len(x) + 8))
    return _trim(Pair(h, low, raised, rounded_up(first.q0 * second.q0, 2) + _LOST, p_inf + _LOST), tail)


def _refine(pair: Pair, h: float) -> Pair:
    """The same law on a finer, nested grid."""
    ratio = round(pair.h / h)
    q = np.zeros(ratio * (len(pair.q) - 1) + 1)
    q[::ratio] = pair.q
    return Pair(h, ratio * pair.lo, q, pair.q0, pair.p_inf)


def _trim(pair: Pair, tail: float) -> Pair:
    """Fold the cells of least mass at both ends inward, onto 0 and onto infinity, keeping the mean."""
    x, q = np.exp(pair.losses), pair.q
    low = int(np.searchsorted(np.cumsum(q), tail))
    high = len(q) - int(np.searchsorted(np.cumsum((q * x)[::-1]), tail))
    low, high = min(low, len(q) - 1), max(high, 1)
    if high <= low:
        return pair
    units = 2 * len(q) + 32 + 8 * float(np.abs(pair.losses[[0, -1]]).max())
    kept = q[low:high].copy()
    mass, mean = q[:low].sum(), (q * x)[:low].sum() / x[low]
    kept[0] = rounded_up(kept[0] + mean, units)
    q0 = pair.q0 + max(0.0, mass - mean) + units * UNIT * mass
    mass, mean = q[high:].sum(), (q * x)[high:].sum()
    kept[-1] = rounded_up(kept[-1] + mass, units)
    p_inf = pair.p_inf + max(0.0, mean - x[high - 1] * mass) + units * UNIT * mean
    return Pair(pair.h, pair.lo + low, kept, rounded_up(float(q0), 4), rounded_up(float(p_inf), 4))


# Fourier transform on a linear grid


def _by_fourier(batches: int, sigma: float, h: float, tail: float) -> Pair:
    width = _GAMMA * math.sqrt(_variance(sigma)) * min(1.0, math.sqrt(batches) / 8)
    values, mass, beyond = _log_normal(sigma, width, tail / 4)
    low, high = _sum_window(values, mass, batches, tail / 4)
    first, last = math.floor(low / width), math.ceil(high / width)
    size = length(max(last - first + 1, len(mass) + 1))
    others = Factor(mass, batches - 1, 0.0)
    cells = np.arange(first, last + 1)
    # By exchangeability the P-law of the sum is E[L_1; sum]: one factor weighted by its own value.
    q_law, _ = convolve([Factor(mass, 1, 0.0), others], size)
    p_law, _ = convolve([Factor(mass * values, 1, 4 * UNIT), others], size)
    ratio = cells * width / batches
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(ratio > 1, p_law[cells % size] / ratio, q_law[cells % size]) * (1 + 8 * UNIT)
    # Each side of the window leaves out tail / 4 of one law, and less of the other: there is no 1 among those ratios.
    allowance = tail / 2
    zero = float(q[0]) if first == 0 else 0.0
    positive = slice(1, None) if first == 0 else slice(None)
    losses = np.log(ratio[positive])
    low_cell, onto = onto_grid(losses, q[positive], h, UNIT * (8 + 2 * np.abs(losses)))
    q0, p_inf = rounded_up(zero + allowance, 4), rounded_up(beyond + allowance, 4)
    return Pair(h, low_cell, onto, min(1.0, q0), min(1.0, p_inf))


def _log_normal(sigma: float, width: float, tail: float) -> tuple[Array, Array, float]:
    """L on the points 0, width, 2 width, ... by mean-preserving splits: points, Q-masses, and the mean cut off."""
    sd, centre = 1 / sigma, -0.5 / sigma**2
    cells = math.ceil(math.exp(centre + sd * (sd - ndtri(tail))) / width) + 1
    x = np.asarray(width * np.arange(cells + 1), dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log(x)
    u = (logs - centre) / sd
    bounded = np.where(x > 0, u, 0.0)
    # Cells of u are as computed: what is rounded is where their sides are, as ratios, but for the first.
    error = UNIT * x * (10 + 8 * np.abs(sd * bounded + centre) - 8 * centre)
    gaps = np.full(cells, width)
    laws = tails(u), tails(u - sd, UNIT * (np.abs(bounded) + 4 * sd))
    mass, (_, above) = split(x, error, gaps, (error[1:] + error[:-1]) / width, *laws)
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
        own, other = log_moments(values, (weighted, mass), order)
        return (own + (batches - 1) * other + need) / order

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
