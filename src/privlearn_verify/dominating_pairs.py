"""Dominating pairs of mechanisms, as atoms of their privacy loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special, stats

from privlearn_verify.event_trees import Array, Mechanism
from privlearn_verify.renyi_prices import find_log_expm1, find_truncation
from privlearn_verify.verdicts import CLOCK

CELLS = 2**17


@dataclass(frozen=True)
class Pair:
    """A dominating pair as atoms of ascending loss ln R, with their masses under Q and P."""

    loss: Array
    q: Array
    p: Array
    v: float

    def find_ends(self, tail: float) -> tuple[float, float]:
        """Return the losses below which Q, and above which P, has a mass."""
        low = np.searchsorted(np.cumsum(self.q), tail, side="right")
        high = np.searchsorted(np.cumsum(self.p[::-1]), tail, side="right")
        finite = self.loss[np.isfinite(self.loss)]
        least = self.loss[min(int(low), len(self.q) - 1)]
        most = self.loss[::-1][min(int(high), len(self.q) - 1)]
        return max(least, finite[0]), min(most, finite[-1])


def sort_atoms(loss: Array, q: Array, p: Array, v: float) -> Pair:
    """Return a pair of atoms in any order."""
    order = np.argsort(loss, kind="stable")
    return Pair(loss[order], q[order], p[order], v)


def find_noise_level(m: Mechanism) -> float:
    """Return the noise level of a mechanism that has a pair."""
    if m.epsilon is not None:
        return 1 / m.epsilon
    return (2 * m.rho) ** -0.5 if m.kind == "gaussian_filter" else m.noise_multiplier


@lru_cache(64)
def make_pair(m: Mechanism, tail: float) -> Pair:
    """Return the dominating pair of a mechanism, with tails far below the given one."""
    CLOCK.check()
    s, q = find_noise_level(m), m.sampling_rate
    if m.epsilon is not None:
        return make_response_pair(m.epsilon, m.categories or 2)
    match m.kind:
        case "laplace":
            return make_laplace_pair(s)
        case "partitioned":
            return make_partition_pair(m.batches, s, tail)
        case "poisson_sampled":
            return make_sampled_pair(q, s, m.group)
        case "truncated_poisson_sampled":
            return make_truncated_pair(m)
    return make_sampled_pair(1.0, s, 1)


def make_response_pair(e: float, c: int) -> Pair:
    """Return the pair of randomised response."""
    r = 1 / (math.exp(e) + c - 1)
    p = r * math.exp(e)
    atoms = np.array([-e, 0, e]), np.array([p, (c - 2) * r, r]), np.array([r, (c - 2) * r, p])
    return Pair(*atoms, 0.01 * e * e)


def make_laplace_pair(b: float) -> Pair:
    """Return the pair of Laplace noise: constant ends, and fine cells between."""
    q = np.diff(-np.exp(-np.linspace(0, 1, 2**15 + 1) / b) / 2)
    q = np.array([0.5, *q, math.exp(-1 / b) / 2])
    return Pair(np.log(q[::-1] / q), q, q[::-1], 0.01 / b**2)


def find_cell_masses(edges: Array) -> Array:
    """Return the masses of a standard normal law between edges, in either tail."""
    upper = -np.diff(special.ndtr(-edges))
    return np.where(edges[1:] < 0, np.diff(special.ndtr(edges)), upper)


def make_sampled_pair(q: float, s: float, group: int) -> Pair:
    """Return sum_j Binomial(k, q)(j) N(j, s^2) against N(0, s^2) in fine cells."""
    j = np.arange(group + 1)
    weights = stats.binom.pmf(j, group, q)
    most = int(np.max(j[weights > 1e-60]))
    edges = np.linspace(-14 * s, most + 14 * s, min(CELLS, int(1000 * (28 + most / s))))
    mass, middle = find_cell_masses(edges / s), (edges[1:] + edges[:-1]) / 2
    other, ratio = np.zeros(len(mass)), np.full(len(mass), -np.inf)
    for i in np.flatnonzero(weights > 1e-60):
        CLOCK.check()
        other += weights[i] * find_cell_masses((edges - i) / s)
        ratio = np.logaddexp(ratio, np.log(weights[i]) + (2 * i * middle - i * i) / (2 * s * s))
    loss = np.where((mass > 1e-290) & (other > 1e-290), np.log(other / mass), ratio)
    v = float((mass + other) @ loss**2) / 2
    if group == 1:
        v = float(np.logaddexp(0, 2 * math.log(q) + find_log_expm1(s**-2)))
    return Pair(np.maximum.accumulate(loss), mass, other, v)


def make_truncated_pair(m: Mechanism) -> Pair:
    """Return the pair of a batch of which a part is kept."""
    usual = make_sampled_pair(m.sampling_rate, m.noise_multiplier, m.group)
    if m.maximum >= m.examples:
        return usual
    if m.group > 1:
        exposed = float(stats.binom.sf(m.maximum - m.group - 1, m.examples, m.sampling_rate))
        rest = 1 - exposed
        return Pair(
            np.array([-np.inf, *usual.loss, np.inf]),
            np.array([exposed, *(rest * usual.q), 0]),
            np.array([0, *(rest * usual.p), exposed]),
            rest * usual.v,
        )
    r, log_w = find_truncation(m)
    other, w = make_sampled_pair(r, m.noise_multiplier, 1), math.exp(log_w)
    loss = np.concatenate([usual.loss, other.loss])
    q = np.concatenate([(1 - w) * usual.q, w * other.q])
    p = np.concatenate([(1 - w) * usual.p, w * other.p])
    return sort_atoms(loss, q, p, (1 - w) * usual.v + w * other.v)


def average(first: Pair, weight: float, second: Pair, tail: float) -> Pair:
    """Return the law of a weighted mean of two independent ratios on a new grid of losses.

    Each sum goes to the three points next to it, so that mass, mean and mean square are kept.
    """
    CLOCK.check()
    sums = weight * np.exp(first.loss)[:, None] + (1 - weight) * np.exp(second.loss)
    mass = (first.q[:, None] * second.q).ravel()
    loss = np.log(sums).ravel()
    ends = [sums[1 if first.loss[0] == -np.inf else 0, 1], np.max(sums)]
    low, high = (math.log(x) for x in ends)
    place = np.clip((loss - low) / (high - low) * 4000, 0, 4000).astype(int)
    histogram = Pair(
        np.linspace(low, high, 4001),
        np.maximum(np.bincount(place, mass, 4001), 0),
        np.maximum(np.bincount(place, mass * sums.ravel(), 4001), 0),
        0,
    )
    low, high = histogram.find_ends(tail)
    points = np.linspace(low - 1e-12, high + 1e-12, POINTS)
    step = points[1] - points[0]
    k = np.clip(np.rint((loss - points[0]) / step), 1, POINTS - 2).astype(int)
    inside = (loss >= points[0]) & (loss <= points[-1])
    over = np.clip(loss - points[k], -step, step)
    both = math.exp(-step) * math.expm1(2 * step)
    below = np.expm1(over) * np.expm1(over - step) * math.exp(step) / (-math.expm1(-step) * both)
    above = np.expm1(over + step) * math.exp(-step) * np.expm1(over) / (both * math.expm1(step))
    q = np.zeros(POINTS)
    for shift, share in ((-1, below), (0, 1 - below - above), (1, above)):
        q += np.bincount((k + shift)[inside], (share * mass)[inside], POINTS)
    small = loss < points[0]
    raised = float(np.sum(mass[small] * np.exp(loss[small] - points[0])))
    q[0] += raised
    q[-1] += np.sum(mass[loss > points[-1]])
    zero = float(np.sum(mass[small])) - raised
    return scale_law(points, np.append(zero, q))


def scale_law(points: Array, q: Array) -> Pair:
    """Return masses at the ratio 0 and at some losses, which are made to add up to 1."""
    q = q / np.sum(q)
    return Pair(np.append(-np.inf, points), q, np.append(0, q[1:] * np.exp(points)), 0)


POINTS = 500


@lru_cache(64)
def make_partition_pair(batches: int, s: float, tail: float) -> Pair:
    """Return the pair of a partition, by doubling: R is the mean of as many ratios as batches."""
    wide = -special.ndtri(tail / 100)
    loss = np.linspace(-wide / s - 0.5 / s**2, wide / s + 0.5 / s**2, POINTS)
    q = stats.norm.pdf(loss, -0.5 / s**2, 1 / s) * (loss[1] - loss[0])
    leaf = law = scale_law(loss, np.append(special.ndtr(-wide), q))
    size = 1
    for bit in bin(batches)[3:]:
        law, size = average(law, 0.5, law, tail / 100), 2 * size
        if bit == "1":
            law, size = average(law, size / (size + 1), leaf, tail / 100), size + 1
    q = np.maximum(law.q, 0)
    p = np.where(law.loss > -np.inf, q * np.exp(law.loss), 0)
    v = float(np.logaddexp(0, find_log_expm1(s**-2) - math.log(batches)))
    rest = max(0.0, 1 - float(np.sum(p)))
    return Pair(np.append(law.loss, np.inf), np.append(q, 0), np.append(p, rest), v)
