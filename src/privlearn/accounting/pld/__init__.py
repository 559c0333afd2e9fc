"""Privacy loss distributions: dominating pairs on one grid, composed by Fourier transform.

Convex order survives products of independent ratios, so composing dominating pairs cell by cell is safe in both
directions (`pairs` says how one mechanism gets onto the grid, `partition` how an epoch of balls in bins does; Zhu et
al. 2021 for composition by domination). Each direction is composed with itself, and the larger epsilon is the answer.

Errors of floating point in the transforms are not part of that proof; an allowance for them is added to the mass
at infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import lfilter

from privlearn._checks import delta as valid_delta
from privlearn.accounting.events import Event, Mechanism, coarsen, tally
from privlearn.accounting.pld.pairs import ROUNDING, Array, Pair, PairBuilder, fourier_power, least_bound, log_moment
from privlearn.errors import UnsupportedEvent

#: Share of delta that numerical allowances (tails, windows) may use together.
_NEGLIGIBLE = 1e-3
#: Grid step in units of the root mean square width of the losses.
_FINENESS = 0.03
#: Below this noise multiplier likelihood ratios overflow.
_LEAST_SIGMA = 0.05
#: Mass at infinity that a composition may have at most; with more, no delta of use is met, and windows have no bound.
_MOST_INFINITE = 0.5
#: Cells of the widest window.
_MOST_WINDOW = 1 << 24
#: Cells beyond which a coarser (still pessimistic) grid is taken.
_MOST_CELLS = 1 << 21
#: The allowance for rounding is larger than this, whatever is composed.
_LEAST_DELTA = 1e-18
#: A grid step below which neighbouring ratios are hardly different numbers. A coarser grid is an upper bound.
_FINEST = 1e-11
#: A grid step beyond which ratios would overflow; epsilon is then in the millions.
_COARSEST = 30.0


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

    def curve(self, epsilons: Array) -> Array:
        """The larger of both directions' delta at each of `epsilons`, in one pass over the cells."""
        remove = _deltas(self.losses, self.p, self.p_inf, self.h, epsilons)
        return np.maximum(remove, _deltas(-self.losses[::-1], self.q[::-1], self.q_inf, self.h, epsilons))


def _sums(mass: Array, h: float) -> tuple[Array, Array]:
    """For each cell i the sums over j >= i of mass[j] and of mass[j] e^{losses[i] - losses[j]}."""
    # The second by a recursion that cannot overflow.
    return np.cumsum(mass[::-1])[::-1], lfilter([1.0], [1.0, -math.exp(-h)], mass[::-1])[::-1]


def _deltas(losses: Array, mass: Array, infinite: float, h: float, epsilons: Array) -> Array:
    """infinite + E[(1 - e^{epsilon - loss})_+] at each epsilon; `losses` ascend by h."""
    above, discounted = (np.append(sums, 0.0) for sums in _sums(mass, h))
    first = np.searchsorted(losses, epsilons)
    gap = epsilons - np.append(losses, epsilons.max())[first]
    return np.asarray(np.minimum(1.0, infinite + above[first] - np.exp(np.minimum(gap, 0.0)) * discounted[first]))


def _epsilon(losses: Array, mass: Array, infinite: float, h: float, delta: float) -> float:
    """The least epsilon >= 0 with infinite + E[(1 - e^{epsilon - loss})_+] <= delta; `losses` ascend by h."""
    if infinite > delta:
        return math.inf
    above, discounted = _sums(mass, h)
    at = infinite + above - discounted
    first = int(np.argmax(at <= delta)) if at[-1] <= delta else len(at) - 1
    need = infinite + above[first] - delta
    if need <= 0 or discounted[first] <= 0:
        return max(0.0, float(losses[max(first - 1, 0)]) if first else 0.0)
    return max(0.0, float(losses[first] + math.log(need / discounted[first])))


def compose(pairs: Sequence[Pair], counts: Sequence[int], tail: float) -> Composition:
    """Compose independent dominating pairs on one grid, pair i `counts[i]` times (adaptively, by domination).

    `tail` is the mass that may fall outside the window, on either side.
    """
    h, total = pairs[0].h, sum(counts)
    p_inf = _ever((min(pair.p_inf, 0.9), n) for pair, n in zip(pairs, counts, strict=True))
    q_inf = _ever((min(pair.q0, 0.9), n) for pair, n in zip(pairs, counts, strict=True))
    if max(p_inf, q_inf) > _MOST_INFINITE:
        raise UnsupportedEvent(
            "likelihood ratios beyond double precision are too likely for a privacy loss distribution"
        )
    low, high = _window(pairs, counts, tail)
    if high - low > _MOST_WINDOW:
        raise UnsupportedEvent("the composed privacy loss needs too fine a grid over too wide a range")
    size = next_fast_len(high - low + 1, real=True)
    cells = np.arange(low, high + 1)
    rounding = ROUNDING * math.log2(max(size, 2)) * math.sqrt(total)
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
    return Composition(h, low, p, q, p_inf + tail + p_floor, q_inf + tail + q_floor)


def _ever(chances: Iterable[tuple[float, int]]) -> float:
    """The probability that something happens at all: each (probability, number of independent times)."""
    return -math.expm1(sum(n * math.log1p(-chance) for chance, n in chances))


def _power(pairs: Sequence[Pair], counts: Sequence[int], size: int, tilt: float) -> Array:
    """The composed law with density q e^{tilt loss}, cell k at index k mod `size`; wrapped mass only adds."""
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    for pair, n in zip(pairs, counts, strict=True):
        index = np.arange(pair.lo, pair.lo + len(pair.q)) % size
        folded = np.bincount(index, weights=pair.q * np.exp(tilt * pair.losses), minlength=size)
        product *= fourier_power(rfft(folded), n)
    return np.asarray(np.maximum(irfft(product, size), 0.0), dtype=np.float64)


def _window(pairs: Sequence[Pair], counts: Sequence[int], tail: float) -> tuple[int, int]:
    """Cells outside which the composition has P-mass (above) and Q-mass (below) at most `tail`: Chernoff."""
    h, need = pairs[0].h, -math.log(tail)
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
        moments = (n * log_moment(points, mass, sign * order) for (points, mass), n in laws)
        return (math.fsum(moments) + need) / order

    variance = sum(
        n * float(mass @ (points - float(mass @ points)) ** 2) for (points, mass), n in laws if len(points)
    )  # fmt: skip
    return least_bound(bound, math.sqrt(2 * need / max(variance, 1e-300)))


def compose_event(event: Event, h: float | None = None, negligible: float = 1e-9) -> Composition:
    """Compose all mechanisms of `event` on one grid.

    Args:
        event: a tree of mechanisms that have a dominating pair.
        h: the grid step; by default fine enough for an excess of about 0.03% of epsilon, and up to 0.3% for partitions
            at little noise.
        negligible: the mass that tails and windows may move to infinity, in all.

    Raises:
        UnsupportedEvent: for a mechanism without a dominating pair here.
    """
    counts = coarsen(_counts(event))
    if any(leaf.noise_level < _LEAST_SIGMA for leaf in counts):
        raise UnsupportedEvent(f"noise multipliers below {_LEAST_SIGMA} have no privacy loss distribution")
    if not counts:
        return Composition(1.0, 0, np.ones(1), np.ones(1), 0.0, 0.0)
    builders = [leaf.pair() for leaf in counts]
    total = sum(counts.values())
    step = h or _grid_step(builders, list(counts.values()))
    if step > _COARSEST:
        raise UnsupportedEvent("the composed privacy loss is too wide for any grid: use more noise or fewer steps")
    pairs = [builder.build(step, negligible / (2 * total)) for builder in builders]
    return compose(pairs, list(counts.values()), negligible / 4)


def epsilon(event: Event, delta: float) -> float:
    """epsilon of `event` at `delta`, an upper bound in both directions; infinite where allowances exceed delta."""
    return compose_event(event, negligible=_NEGLIGIBLE * within_reach(delta)).epsilon(delta)


def within_reach(delta: float) -> float:
    """Return `delta` unless the allowance for rounding alone would exceed it.

    Raises:
        UnsupportedEvent: it is below 1e-18.
    """
    if valid_delta(delta) < _LEAST_DELTA:
        raise UnsupportedEvent(f"deltas below {_LEAST_DELTA:g} are lost in the rounding of privacy loss distributions")
    return delta


def _counts(event: Event) -> dict[Mechanism, int]:
    """The tally of `event`, with mechanisms that have the same pair put together."""
    counts: dict[Mechanism, int] = {}
    for leaf, times in tally(event).items():
        stands = leaf.dominating()
        counts[stands] = counts.get(stands, 0) + times
    return counts


def _grid_step(builders: Sequence[PairBuilder], counts: Sequence[int]) -> float:
    """A step fine against the pairs' spread, unless that would need too many cells."""
    variance = sum(n * builder.spread**2 for builder, n in zip(builders, counts, strict=True))
    window = 16 * math.sqrt(variance) + variance
    widest = max(builder.width for builder in builders)
    return max(_FINENESS * math.sqrt(variance / sum(counts)), window / _MOST_CELLS, widest / _MOST_CELLS, _FINEST)
