"""This file bounds what rounding does to the masses of laws: values come with a bound on how far
they may be off.

docs/decisions/proofs-of-prices.md has the lemmas, and what is assumed of exp, log and ndtr.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn._scipy import ndtr
from privlearn.errors import UnsupportedEvent

Array = NDArray[np.float64]
_Number = TypeVar("_Number", float, Array)

#: The unit roundoff of double precision.
UNIT = 2.0**-53
#: More than all that underflow loses.
TINY = 1e-290
#: `ndtr(u)` may be off by a share of (_NORMAL + 2 u^2) units, and nothing of use lies beyond _FAR.
_NORMAL, _FAR = 8.0, 40.0
#: Atoms that are looked at together: what is computed of them stays in the processor's cache.
_IN_CACHE = 1 << 13


@final
@dataclass(frozen=True)
class Tails:
    """The masses of one law below and above some points, and how far each may be off."""

    below: Array
    above: Array
    below_error: Array
    above_error: Array

    def between(self) -> tuple[Array, Array]:
        """The mass in each cell, from whichever tail is smaller there, and how far it may be
        off.
        """
        turn = int(np.searchsorted(self.below[1:], 0.5))
        low, high = slice(None, turn + 1), slice(turn, None)
        mass = np.concatenate([np.diff(self.below[low]), -np.diff(self.above[high])])
        below, above = self.below_error[low], self.above_error[high]
        error = np.concatenate([below[1:] + below[:-1], above[1:] + above[:-1]])
        return np.maximum(mass, 0.0), error + UNIT * mass


def tails(u: Array, moved: Array | float = 0.0) -> Tails:
    """The standard normal law at points that are at most `moved` from `u`."""
    depth = np.minimum(np.abs(u), _FAR)
    smaller = ndtr(-depth)
    # The logarithm of the mass below v changes by at most 1 + max(-v, 0) a unit.
    error = 1.01 * (UNIT * (_NORMAL + 2 * depth**2) + moved * (1 + depth)) * smaller + TINY
    larger, more, low = 1 - smaller, error + UNIT, u < 0
    return Tails(
        np.where(low, smaller, larger),
        np.where(low, larger, smaller),
        np.where(low, error, more),
        np.where(low, more, error),
    )


def split(
    y: Array, y_error: Array, gaps: Array, gap_error: Array, q: Tails, p: Tails
) -> tuple[Array, tuple[float, float]]:
    """Q-masses at the points of a law, each at least its exact value, and what lies beyond on
    either side.

    Every cell's mass goes to its ends so that the mean of y stays, where y is an affine function of
    the likelihood ratio with a positive slope, and `p` is the law with density y dQ: the
    pessimistic discretisation.

    Args:
        y: y at the points, ascending.
        y_error: how far each may be off.
        gaps: their differences.
        gap_error: the share by which each of these may be off.
        q: the law under Q.
        p: the law with density y dQ.

    Returns:
        the masses, without the mass below the points; and y Q - P below the first point, P - y Q
        above the last.
    """
    (dq, q_off), (dp, p_off) = q.between(), p.between()
    at, at_off = y[:-1], y_error[:-1]
    # Where points are too close to be told apart, a cell's whole mass may be at either end.
    sure = (gaps > 0) & (gap_error < 0.01)
    widths = np.where(sure, gaps, np.inf)
    most, size, whole = dq + q_off, np.abs(at), at * dq
    right = np.minimum(np.maximum((dp - whole) / widths, 0.0), dq)
    off = (p_off + size * q_off + at_off * most + 4 * UNIT * (dp + np.abs(whole))) / widths
    off = np.where(sure, np.minimum((off + right * gap_error) * 1.01 + q_off, most), most)
    out = np.zeros(len(y))
    out[:-1] += np.minimum(dq - right + off, most)
    out[1:] += np.minimum(right + off, most)
    out[-1] += q.above[-1] + q.above_error[-1]
    sides = []
    for place, sign, q_mass, q_err, p_mass, p_err in (
        (0, 1.0, q.below, q.below_error, p.below, p.below_error),
        (-1, -1.0, q.above, q.above_error, p.above, p.above_error),
    ):
        all_q, all_p, err = float(q_mass[place]), float(p_mass[place]), float(y_error[place])
        value = sign * (float(y[place]) * all_q - all_p)
        loss = (
            (err + abs(float(y[place]))) * float(q_err[place]) + err * all_q + float(p_err[place])
        )
        sides.append(max(0.0, value) + loss + 4 * UNIT * (abs(float(y[place])) * all_q + all_p))
    return out * (1 + 8 * UNIT), (sides[0], sides[1])


def onto_grid(losses: Array, q: Array, h: float, error: float | Array = 0.0) -> tuple[int, Array]:
    """Atoms of Q-mass `q` at the ratios e^losses, split onto the grid of step h: its first cell,
    and its masses.

    Args:
        losses: the losses.
        q: the masses.
        h: the grid step.
        error: how far each loss may be off.

    Raises:
        UnsupportedEvent: losses are hardly known better than to a cell.
    """
    low = math.floor(float(losses.min()) / h) - 1
    size = math.floor(float(losses.max()) / h) - low + 3
    place = np.empty(len(losses), dtype=np.int64)
    lower, upper, slack = np.empty(len(losses)), np.empty(len(losses)), np.empty(len(losses))
    below, above = np.empty(len(losses), dtype=bool), np.empty(len(losses), dtype=bool)
    errors = np.broadcast_to(error, losses.shape)
    for start in range(0, len(losses), _IN_CACHE):
        part = slice(start, start + _IN_CACHE)
        loss, mass = losses[part], q[part]
        cells = np.floor(loss / h)
        shares = np.clip(np.expm1(loss - cells * h) / math.expm1(h), 0.0, 1.0)
        off = share_error(errors[part] + 4 * UNIT * np.abs(loss), h)
        place[part] = cells - low
        slack[part] = mass * off
        lower[part] = mass * (1 - shares) + slack[part]
        upper[part] = mass * shares + slack[part]
        # An atom near a side of its cell may belong to the next one.
        below[part], above[part] = shares <= off, shares >= 1 - off
    out = np.bincount(place, lower, size) + np.bincount(place + 1, upper, size)
    for near, step in ((below, -1), (above, 2)):
        if near.any():
            out += np.bincount(place[near] + step, slack[near], size)
    used = np.flatnonzero(out)
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
    return low + first, np.asarray(
        out[first : last + 1] * (1 + UNIT * (8 + len(q))), dtype=np.float64
    )


def ratios_onto_grid(ratio: Array, q: Array, p: Array, h: float) -> tuple[int, Array]:
    """Atoms at many ascending ratios, 3 units off, split onto the grid of step h: its first cell,
    and its masses.

    In a cell, shares are an affine function of the ratio, so two sums over its atoms say how they
    are split.

    Args:
        ratio: the ratios, above 0.
        q: upper bounds on the Q-masses; used up to the ratio 1.
        p: upper bounds on the P-masses; used from there on.
        h: the grid step.

    Raises:
        UnsupportedEvent: sums of so many atoms are not exact enough for the grid.
    """
    first = math.floor(math.log(ratio[0]) / h) - 1
    exponents = h * np.arange(first, math.floor(math.log(ratio[-1]) / h) + 3)
    sides = np.exp(exponents)
    counts = np.diff(np.searchsorted(ratio, sides))
    place, above = np.repeat(np.arange(len(counts)), counts), ratio > 1
    mass = np.bincount(place, np.where(above, p / ratio, q), len(counts))
    mean = np.bincount(place, np.where(above, p, q * ratio), len(counts))
    right = np.clip((mean - sides[:-1] * mass) / (sides[:-1] * math.expm1(h)), 0.0, mass)
    # Both products are at most the mass times the upper side; an atom beside a side may belong to
    # the next cell.
    slack = mass * share_error(UNIT * (2 * counts + 2 * np.abs(exponents[1:]) + 12), h)
    out = np.zeros(len(counts) + 3)
    for start, part in enumerate((slack, mass - right + slack, right + slack, slack)):
        out[start : start + len(part)] += part
    return first - 1, out * (1 + UNIT * (2 * int(counts.max()) + 32))


def share_error(error: Array | float, h: float) -> Array:
    """How much of a mass may go to the wrong end of a cell of the grid, if its loss may be off by
    `error`.
    """
    off = (np.asarray(error) / h + 16 * UNIT) * math.exp(min(h, 50.0)) * 1.01
    if float(off.max()) > 0.5:
        raise UnsupportedEvent(
            "the privacy loss is too small a part of what it is computed from: use a larger delta"
        )
    return np.asarray(off, dtype=np.float64)


def rounded_up(value: _Number, units: float) -> _Number:
    """`value` and so many units of its rounding."""
    return value * (1 + units * UNIT)
