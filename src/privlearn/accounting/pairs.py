"""Dominating pairs on a grid: how one mechanism looks to the accountant of privacy loss distributions.

A mechanism is dominated by a pair of laws (P with the example, Q without). Everything follows from the law of the
likelihood ratio R = dP/dQ under Q, kept on the grid R = e^{k h}. Both hockey-stick curves are convex in R:

    remove  H_g(P||Q) = E_Q (R - g)_+        add  H_g(Q||P) = E_Q (1 - g R)_+

so moving mass from a point to the two ends of its cell *while keeping its mean* (a mean-preserving split) can only
raise both of them, at once, and the error is of second order in the cell width. Mass beyond the grid goes to R = 0
or R = infinity in the same way (Doroshenko et al. 2022 call the split "connect the dots").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

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
