"""This package puts dominating pairs on one grid and composes their privacy loss distributions by
Fourier transform.

Convex order survives products of independent ratios, so composing dominating pairs cell by cell is
safe in both directions (`pairs` says how one mechanism gets onto the grid, `partition` how an epoch
of balls in bins does; Zhu et al. 2021 for composition by domination). Each direction is composed
with itself, and the larger epsilon is the answer.

What rounding does to the transforms is part of that proof (`fourier`,
docs/decisions/proofs-of-prices.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from privlearn._checks import delta as valid_delta
from privlearn.core.accounting.events import Event, Mechanism, coarsen, tally
from privlearn.core.accounting.pld.composing import masses
from privlearn.core.accounting.pld.pairs import Pair, PairBuilder, built
from privlearn.core.accounting.pld.rounding import UNIT, Array
from privlearn.errors import UnsupportedEvent

#: Share of delta that numerical allowances (tails, windows) may use together.
_NEGLIGIBLE = 1e-3
#: Grid step in units of the root mean square width of the losses.
_FINENESS = 0.03
#: Below this noise multiplier likelihood ratios overflow.
_LEAST_SIGMA = 0.05
#: Mass at infinity that a composition may have at most; with more, no delta of use is met, and
#: windows have no bound.
_MOST_INFINITE = 0.5
#: Cells beyond which a coarser (still pessimistic) grid is taken.
_MOST_CELLS = 1 << 21
#: The allowance for rounding is larger than this, whatever is composed.
_LEAST_DELTA = 1e-18
#: A grid step below which neighbouring ratios are hardly different numbers. A coarser grid is an
#: upper bound.
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
        """The larger of both directions' epsilon at `delta`; infinite if the mass at infinity
        exceeds `delta`.
        """
        return max(self.epsilons(delta))

    def epsilons(self, delta: float) -> tuple[float, float]:
        """epsilon at `delta` in the directions (remove, add)."""
        remove = _epsilon(self.losses, self.p, self.p_inf, self.h, delta)
        return remove, _epsilon(-self.losses[::-1], self.q[::-1], self.q_inf, self.h, delta)

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """delta at `epsilon` in the directions (remove, add)."""
        remove = _spent(self.losses, self.p, self.p_inf, epsilon)[0]
        return min(1.0, remove), min(
            1.0, _spent(-self.losses[::-1], self.q[::-1], self.q_inf, epsilon)[0]
        )

    def curve(self, epsilons: Array) -> Array:
        """The larger of both directions' delta at each of `epsilons`, in one pass over the
        cells.
        """
        remove = _deltas(self.losses, self.p, self.p_inf, self.h, epsilons)
        return np.maximum(
            remove, _deltas(-self.losses[::-1], self.q[::-1], self.q_inf, self.h, epsilons)
        )


def _sums(mass: Array, h: float) -> tuple[Array, Array]:
    """For each cell i the sums over j >= i of mass[j] and of mass[j] e^{losses[i] - losses[j]}."""
    # The second by doubling how many terms are added up: no power of e overflows (scipy.signal is
    # slow to import).
    discounted, reach = mass.copy(), 1
    while reach < len(mass) and (factor := math.exp(-reach * h)) > 0:
        discounted[:-reach] += factor * discounted[reach:]
        reach *= 2
    return np.cumsum(mass[::-1])[::-1], discounted


def _deltas(losses: Array, mass: Array, infinite: float, h: float, epsilons: Array) -> Array:
    """infinite + E[(1 - e^{epsilon - loss})_+] at each epsilon; `losses` ascend by h."""
    above, discounted = (np.append(sums, 0.0) for sums in _sums(mass, h))
    first = np.searchsorted(losses, epsilons)
    gap = epsilons - np.append(losses, epsilons.max())[first]
    spent = infinite + above[first] - np.exp(np.minimum(gap, 0.0)) * discounted[first]
    # Sums of n terms, and n powers of e^-h, are off by a few n units; losses and epsilons by one
    # each.
    units = 8 * (len(mass) - first) + 32 + 8 * (np.abs(epsilons) + float(np.abs(losses).max()))
    return np.asarray(
        np.minimum(1.0, spent * (1 + 4 * UNIT) + UNIT * units * 2 * above[first]), dtype=np.float64
    )


def _spent(losses: Array, mass: Array, infinite: float, epsilon: float) -> tuple[float, float]:
    """infinite + E[(1 - e^{epsilon - loss})_+], rounded up, and about how fast it falls; `losses`
    ascend.
    """
    first = max(int(np.searchsorted(losses, epsilon)) - 1, 0)  # a loss may round to below epsilon
    above, used = losses[first:], mass[first:]
    gap, slack = epsilon - above, 4 * UNIT * (1 + abs(epsilon) + np.abs(above))
    gain = np.where(gap < slack, slack - np.expm1(np.minimum(gap, 0.0)), 0.0)
    total = float(used @ gain) * (1 + (2 * len(losses) + 32) * UNIT)
    return _up(infinite + total) if total else infinite, float(used @ np.exp(np.minimum(gap, 0.0)))


def _epsilon(losses: Array, mass: Array, infinite: float, h: float, delta: float) -> float:
    """The least epsilon >= 0 with infinite + E[(1 - e^{epsilon - loss})_+] <= delta; `losses`
    ascend by h.
    """
    above, discounted = _sums(mass, h)
    at = infinite + above - discounted
    first = int(np.argmax(at <= delta)) if at[-1] <= delta else len(at) - 1
    need = infinite + above[first] - delta
    if need <= 0 or discounted[first] <= 0:
        guess = max(0.0, float(losses[max(first - 1, 0)]) if first else 0.0)
    else:
        guess = max(0.0, float(losses[first] + math.log(need / discounted[first])))
    return _above(guess, losses, mass, infinite, delta)


def _above(epsilon: float, losses: Array, mass: Array, infinite: float, delta: float) -> float:
    """`epsilon`, or the least number found above it at which what is spent, rounded up, is at most
    `delta`.
    """
    step = 0.0
    while (spent := _spent(losses, mass, infinite, epsilon))[0] > delta:
        if epsilon > 2 * abs(losses[-1]) + 1:
            return math.inf  # what is left is the mass at infinity
        wanted = (spent[0] - delta) / max(spent[1], 1e-300)
        step = max(
            2 * step,
            1.01 * min(wanted, 1e-3),
            4 * UNIT * (epsilon + abs(float(losses[0])) * UNIT + 1e-12),
        )
        epsilon += step
    return epsilon


def compose(pairs: Sequence[Pair], counts: Sequence[int], tail: float) -> Composition:
    """Compose independent dominating pairs on one grid, pair i `counts[i]` times (adaptively, by
    domination).

    `tail` is the mass that may fall outside the window, on either side.
    """
    p_inf = _ever((min(pair.p_inf, 0.9), n) for pair, n in zip(pairs, counts, strict=True))
    q_inf = _ever((min(pair.q0, 0.9), n) for pair, n in zip(pairs, counts, strict=True))
    if max(p_inf, q_inf) > _MOST_INFINITE:
        raise UnsupportedEvent(
            "likelihood ratios beyond double precision are too likely for a privacy loss "
            "distribution"
        )
    low, p, q, above, below = masses(pairs, counts, tail)
    return Composition(pairs[0].h, low, p, q, _up(p_inf + above), _up(q_inf + below))


def _up(value: float) -> float:
    """A little more, which covers two roundings."""
    return value * (1 + 4 * UNIT)


def _ever(chances: Iterable[tuple[float, int]]) -> float:
    """The probability that something happens at all: each (probability, number of independent
    times).
    """
    terms = [n * math.log1p(-chance) for chance, n in chances]
    return -math.expm1(sum(terms)) * (1 + (2 * len(terms) + 16) * UNIT)


def compose_event(event: Event, h: float | None = None, negligible: float = 1e-9) -> Composition:
    """Compose all mechanisms of `event` on one grid.

    Args:
        event: a tree of mechanisms that have a dominating pair.
        h: the grid step; by default fine enough for an excess of about 0.03% of epsilon, and up to
            0.7% for partitions at little noise.
        negligible: the mass that tails and windows may move to infinity, in all.

    Raises:
        UnsupportedEvent: for a mechanism without a dominating pair here.
    """
    counts = coarsen(_counts(event))
    if any(leaf.noise_level < _LEAST_SIGMA for leaf in counts):
        raise UnsupportedEvent(
            f"noise multipliers below {_LEAST_SIGMA} have no privacy loss distribution"
        )
    if not counts:
        return Composition(1.0, 0, np.ones(1), np.ones(1), 0.0, 0.0)
    builders = [leaf.pair() for leaf in counts]
    total = sum(counts.values())
    step = h or _grid_step(builders, list(counts.values()))
    if step > _COARSEST:
        raise UnsupportedEvent(
            "the composed privacy loss is too wide for any grid: use more noise or fewer steps"
        )
    pairs = built(builders, step, negligible / (2 * total))
    return compose(pairs, list(counts.values()), negligible / 4)


def epsilon(event: Event, delta: float) -> float:
    """epsilon of `event` at `delta`, an upper bound in both directions; infinite where allowances
    exceed delta.
    """
    return compose_event(event, negligible=_NEGLIGIBLE * within_reach(delta)).epsilon(delta)


def within_reach(delta: float) -> float:
    """Return `delta` unless the allowance for rounding alone would exceed it.

    Raises:
        UnsupportedEvent: it is below 1e-18.
    """
    if valid_delta(delta) < _LEAST_DELTA:
        raise UnsupportedEvent(
            f"deltas below {_LEAST_DELTA:g} are lost in the rounding of privacy loss distributions"
        )
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
    return max(
        _FINENESS * math.sqrt(variance / sum(counts)),
        window / _MOST_CELLS,
        widest / _MOST_CELLS,
        _FINEST,
    )
