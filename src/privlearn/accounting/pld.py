"""Privacy loss distributions: pessimistic, on one grid, composed by Fourier transform.

A mechanism is dominated by a pair of laws (P with the example, Q without). Everything follows from the law of the
likelihood ratio R = dP/dQ under Q, kept on the grid R = e^{k h}. Both hockey-stick curves are convex in R:

    remove  H_g(P||Q) = E_Q (R - g)_+        add  H_g(Q||P) = E_Q (1 - g R)_+

so moving mass from a point to the two ends of its cell *while keeping its mean* (a mean-preserving split) can only
raise both of them, at once, and the error is of second order in the cell width. Mass beyond the grid goes to R = 0
or R = infinity in the same way. Convex order survives products of independent ratios, so composition is safe too
(Doroshenko et al. 2022 call the split "connect the dots"; Zhu et al. 2021 for composing dominating pairs).

Errors of floating point in the transforms are not part of that proof; an allowance for them is added to the mass
at infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import lfilter
from scipy.special import ndtr, ndtri

from privlearn._validate import delta as valid_delta
from privlearn.accounting.events import Event, FixedBatches, Gaussian, Partitioned, PoissonSampled, tally
from privlearn.errors import UnsupportedEvent

Array = NDArray[np.float64]

#: Mass that all entries together may move to 0 and to infinity when they are put on the grid.
_TAIL = 1e-12
#: Mass outside the window of a composition, either side.
_WINDOW_TAIL = 5e-12
#: Allowance per cell for the rounding of a Fourier transform (measured errors stay 17 times below it).
_FLOOR = 2e-18
#: Grid step in units of the root mean square width of the entries.
_FINENESS = 0.03
#: Cells beyond which a coarser (still pessimistic) grid is taken.
_MOST_CELLS = 1 << 21


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
    return _split(h, first, x, _mass_between(q_below, q_above), _mass_between(p_below, p_above), q_below[0],
                  p_below[0], q_above[-1], p_above[-1])  # fmt: skip


def _log_mixture(rate: float, loss: float) -> float:
    """ln(1 - rate + rate e^loss)."""
    return float(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + loss))


def _mass_between(below: Array, above: Array) -> Array:
    """Mass in each cell, from whichever tail is smaller there: differences near 1 lose all digits."""
    return np.maximum(np.where(below[1:] < 0.5, np.diff(below), -np.diff(above)), 0.0)


def _split(h: float, first: int, x: Array, dq: Array, dp: Array, q_below: float, p_below: float, q_above: float,
           p_above: float) -> Pair:  # fmt: skip
    """Split every cell's mass onto its ends so that the mean of R = dP/dQ stays: the pessimistic discretisation."""
    right = np.clip((dp - x[:-1] * dq) / np.diff(x), 0.0, dq)
    q = np.zeros(len(x))
    q[:-1] += dq - right
    q[1:] += right
    # Below the grid: onto 0 and x[0]. Above it: onto x[-1] and infinity.
    q[0] += p_below / x[0]
    q0 = max(0.0, q_below - p_below / x[0])
    q[-1] += q_above
    p_inf = max(0.0, p_above - x[-1] * q_above)
    return Pair(h, first, q, q0, p_inf)


@final
@dataclass(frozen=True)
class Composition:
    """The composed pair on a window of losses, ready to be read in both directions.

    Attributes:
        h: the grid step.
        lo: index of the first cell.
        p: P-mass of the cells (remove direction).
        q: Q-mass of the cells (add direction).
        p_inf: P-mass with an infinite loss in the remove direction, allowances included.
        q_inf: Q-mass with an infinite loss in the add direction, allowances included.
    """

    h: float
    lo: int
    p: Array
    q: Array
    p_inf: float
    q_inf: float

    @property
    def losses(self) -> Array:
        """The losses of the cells."""
        return np.asarray(self.h * np.arange(self.lo, self.lo + len(self.p)), dtype=np.float64)

    def epsilon(self, delta: float) -> float:
        """The larger of both directions' epsilon at `delta`; infinite if the mass at infinity exceeds `delta`."""
        return max(self.epsilons(delta))

    def epsilons(self, delta: float) -> tuple[float, float]:
        """epsilon at `delta` in the directions (remove, add)."""
        remove = _epsilon(self.losses, self.p, self.p_inf, self.h, delta)
        return remove, _epsilon(-self.losses[::-1], self.q[::-1], self.q_inf, self.h, delta)

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """delta at `epsilon` in the directions (remove, add)."""
        losses = self.losses
        gain = -np.expm1(np.minimum(epsilon - losses, 0.0))
        back = -np.expm1(np.minimum(epsilon + losses, 0.0))
        return min(1.0, self.p_inf + float(self.p @ gain)), min(1.0, self.q_inf + float(self.q @ back))


def _epsilon(losses: Array, mass: Array, infinite: float, h: float, delta: float) -> float:
    """The least epsilon >= 0 with infinite + E[(1 - e^{epsilon - loss})_+] <= delta; `losses` ascend by h."""
    if infinite > delta:
        return math.inf
    above = np.cumsum(mass[::-1])[::-1]
    # discounted[i] = sum_{j >= i} mass[j] e^{losses[i] - losses[j]}, by a recursion that cannot overflow.
    discounted = lfilter([1.0], [1.0, -math.exp(-h)], mass[::-1])[::-1]
    at = infinite + above - discounted
    first = int(np.argmax(at <= delta)) if at[-1] <= delta else len(at) - 1
    need = infinite + above[first] - delta
    if need <= 0 or discounted[first] <= 0:
        return max(0.0, float(losses[max(first - 1, 0)]) if first else 0.0)
    return max(0.0, float(losses[first] + math.log(need / discounted[first])))


def compose(pairs: Sequence[Pair], counts: Sequence[int]) -> Composition:
    """Compose independent dominating pairs on one grid, pair i `counts[i]` times (adaptively, by domination)."""
    h, total = pairs[0].h, sum(counts)
    low, high = _window(pairs, counts)
    size = next_fast_len(high - low + 1, real=True)
    cells = np.arange(low, high + 1)
    rounding = _FLOOR * math.log2(max(size, 2)) * math.sqrt(total)
    exponents = h * cells.astype(float)
    if max(abs(low), abs(high)) * h < 12:
        # One transform of sqrt(P Q) serves both directions while e^{|loss|/2} stays small.
        m = _power(pairs, counts, size, tilt=0.5)[cells % size]
        p, q = m * np.exp(exponents / 2), m * np.exp(-exponents / 2)
        p_floor = rounding * min(1.0, float(m.sum())) * float(np.exp(exponents[exponents > 0] / 2).sum())
        q_floor = rounding * min(1.0, float(m.sum())) * float(np.exp(-exponents[exponents < 0] / 2).sum())
    else:
        p = _power(pairs, counts, size, tilt=1.0)[cells % size]
        q = _power(pairs, counts, size, tilt=0.0)[cells % size]
        p_floor = q_floor = rounding * size
    p_inf = -math.expm1(sum(n * math.log1p(-pair.p_inf) for pair, n in zip(pairs, counts, strict=True)))
    q_inf = -math.expm1(sum(n * math.log1p(-pair.q0) for pair, n in zip(pairs, counts, strict=True)))
    return Composition(h, low, p, q, p_inf + _WINDOW_TAIL + p_floor, q_inf + _WINDOW_TAIL + q_floor)


def _power(pairs: Sequence[Pair], counts: Sequence[int], size: int, tilt: float) -> Array:
    """The composed law with density q e^{tilt loss}, cell k at index k mod `size`; wrapped mass only adds."""
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    for pair, n in zip(pairs, counts, strict=True):
        index = np.arange(pair.lo, pair.lo + len(pair.q)) % size
        folded = np.bincount(index, weights=pair.q * np.exp(tilt * pair.losses), minlength=size)
        product *= _integer_power(rfft(folded), n)
    return np.asarray(np.maximum(irfft(product, size), 0.0), dtype=np.float64)


def _integer_power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """base ** exponent by repeated squaring: complex powers through logarithms lose the phase."""
    out = np.ones_like(base)
    while exponent:
        if exponent & 1:
            out *= base
        exponent >>= 1
        if exponent:
            base = base * base
    return out


def _window(pairs: Sequence[Pair], counts: Sequence[int]) -> tuple[int, int]:
    """Cells outside which the composition has P-mass (above) and Q-mass (below) at most `_WINDOW_TAIL`: Chernoff."""
    h, need = pairs[0].h, -math.log(_WINDOW_TAIL)
    upper = [(_blocks(pair, tilt=1.0), n) for pair, n in zip(pairs, counts, strict=True)]
    lower = [(_blocks(pair, tilt=0.0), n) for pair, n in zip(pairs, counts, strict=True)]
    high = _chernoff(upper, need, sign=+1.0)
    low = _chernoff(lower, need, sign=-1.0)
    first, last = math.floor(-low / h), math.ceil(high / h)
    return min(first, last - 1, 0), max(last, first + 1, 0)


def _blocks(pair: Pair, tilt: float) -> tuple[Array, Array]:
    """The law of the loss on a few hundred points: a mean-preserving split, so its exponential moments bound ours.

    Cells stay single near the bulk; blocks grow geometrically away from it, so that no tail distorts the bulk.
    """
    mass, losses = pair.q * np.exp(tilt * pair.losses), pair.losses
    mean = float(mass @ losses) / float(mass.sum())
    width = max(pair.h, 0.05 * math.sqrt(float(mass @ (losses - mean) ** 2) / float(mass.sum())))
    reach = max(losses[-1] - mean, mean - losses[0]) + width
    steps = 60 + math.ceil(math.log(max(reach / (60 * width), 1.0)) / math.log(1.03)) + 1
    offsets = width * np.where(np.arange(steps) < 60, np.arange(steps), 60 * 1.03 ** (np.arange(steps) - 60))
    edges = mean + np.concatenate([-offsets[:0:-1], offsets])
    block = np.clip(np.searchsorted(edges, losses, side="right") - 1, 0, len(edges) - 2)
    share = (losses - edges[block]) / (edges[block + 1] - edges[block])
    points = np.bincount(block, mass * (1 - share), len(edges)) + np.bincount(block + 1, mass * share, len(edges))
    keep = points > 0
    return edges[keep], np.asarray(points[keep], dtype=np.float64)


def _chernoff(laws: Sequence[tuple[tuple[Array, Array], int]], need: float, sign: float) -> float:
    """The least bound found on the (1 - e^-need) quantile of the sum of sign x loss."""

    def bound(order: float) -> float:
        moments = (n * _log_moment(points, mass, sign * order) for (points, mass), n in laws)
        return (math.fsum(moments) + need) / order

    variance = sum(
        n * float(mass @ (points - float(mass @ points)) ** 2) for (points, mass), n in laws if len(points)
    )  # fmt: skip
    order = math.sqrt(2 * need / max(variance, 1e-300))
    best = bound(order)
    for factor in (4.0, 0.25, 1.6, 0.6, 1.2, 0.85):
        while (trial := bound(order * factor)) < best:
            order, best = order * factor, trial
    return best


def _log_moment(points: Array, mass: Array, order: float) -> float:
    exponents = order * points
    top = float(exponents.max())
    return top + math.log(float(mass @ np.exp(exponents - top)))


def compose_event(event: Event, h: float | None = None) -> Composition:
    """Compose all mechanisms of `event` on one grid.

    Args:
        event: Gaussian releases, Poisson-sampled ones, and epochs over disjoint batches.
        h: the grid step; by default fine enough for a relative error of about 0.03% of epsilon.

    Raises:
        UnsupportedEvent: for a mechanism without a PLD here.
    """
    laws: dict[tuple[float, float], int] = {}
    for leaf, times in tally(event).items():
        law = _law(leaf)
        laws[law] = laws.get(law, 0) + times
    if not laws:
        return Composition(1.0, 0, np.ones(1), np.ones(1), 0.0, 0.0)
    step = h or _grid_step(laws)
    tail = _TAIL / sum(laws.values())
    return compose([poisson_pair(rate, sigma, step, tail) for rate, sigma in laws], list(laws.values()))


def epsilon(event: Event, delta: float) -> float:
    """epsilon of `event` at `delta`, an upper bound in both directions."""
    valid_delta(delta)
    return compose_event(event).epsilon(delta)


def _law(leaf: Event) -> tuple[float, float]:
    """(sampling rate, noise multiplier) of the pair that dominates `leaf`."""
    match leaf:
        case Gaussian(sigma):
            return 1.0, sigma
        case PoissonSampled(rate, step):
            return rate, step.noise_multiplier
        case FixedBatches(step) | Partitioned(_, step):
            # One example meets one batch of the epoch; averaging over the batches cannot raise the curve.
            return 1.0, step.noise_multiplier
        case _:
            raise UnsupportedEvent(f"{type(leaf).__name__} has no privacy loss distribution here", event=leaf)


def _grid_step(laws: Mapping[tuple[float, float], int]) -> float:
    """A step fine against the entries' spread, unless that would need too many cells."""
    total = sum(laws.values())
    variance = sum(n * _entry_variance(rate, sigma) for (rate, sigma), n in laws.items())
    spread = 16 * math.sqrt(variance) + variance
    widest = max(_reach(rate, sigma) for rate, sigma in laws)
    step = _FINENESS * math.sqrt(variance / total)
    return max(step, spread / _MOST_CELLS, widest / _MOST_CELLS)


def _entry_variance(rate: float, sigma: float) -> float:
    """Roughly the variance of the loss: ln(1 + Var R), which is exact for the plain Gaussian."""
    return math.log1p(rate**2 * math.expm1(min(sigma**-2, 700.0)))


def _reach(rate: float, sigma: float) -> float:
    """The width of the entry's grid."""
    high = _log_mixture(rate, 0.5 / sigma**2 + 8 / sigma)
    low = _log_mixture(rate, -0.5 / sigma**2 - 8 / sigma)
    return high - low
