"""What shuffling fixed-size batches costs at least: the other end of an honest interval.

No amplification by shuffling is claimed here: the sound upper bound of a shuffled epoch is one Gaussian release. This is the
lower bound of Chua et al. (2024): two data sets and an attack that tell how much an epoch gives away, whatever is proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import log_ndtr

from privlearn._validate import count
from privlearn._validate import delta as valid_delta
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import Event, FixedBatches, Gaussian, tally
from privlearn.accounting.zcdp import gaussian_epsilon
from privlearn.errors import UnsupportedEvent

_STEP = 1e-3
_LEAST_MASS = 1e-14


def lower_bound(event: Event, batches: int, adjacency: Adjacency, delta: float) -> float:
    """A lower bound on epsilon at `delta` of epochs over `batches` shuffled fixed-size batches.

    All examples but one pull every batch one way, and the attacker looks at the largest batch sum: the one with the
    example stands out by up to twice the clip norm. Earlier Gaussian releases are left out, which only lowers the bound.

    Raises:
        UnsupportedEvent: no shuffled epoch is among the events, or the adjacency is add/remove.
    """
    count("batches", batches)
    valid_delta(delta)
    if adjacency is Adjacency.ADD_REMOVE:
        raise UnsupportedEvent("the lower bound for shuffling is for neighbours of the same size")
    epochs = {leaf.event: times for leaf, times in tally(event).items() if isinstance(leaf, FixedBatches)}
    if not epochs:
        raise UnsupportedEvent("there is no shuffled epoch among the events")
    mu = math.sqrt(sum(times / mechanism.noise_multiplier**2 for mechanism, times in epochs.items()))
    return min(_compose(epochs, batches, adjacency, delta), gaussian_epsilon(mu, delta))


def _compose(epochs: Mapping[Gaussian, int], batches: int, adjacency: Adjacency, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as peer

    total = None
    for mechanism, times in epochs.items():
        with_example, without = _largest_of_batches(mechanism.noise_multiplier, batches, adjacency)
        one = peer.from_two_probability_mass_functions(
            without, with_example, pessimistic_estimate=False, value_discretization_interval=_STEP, symmetric=False
        )
        part = one.self_compose(times)
        total = part if total is None else total.compose(part)
    assert total is not None
    return max(0.0, float(total.get_epsilon_for_delta(delta)))


def _largest_of_batches(sigma: float, batches: int, adjacency: Adjacency) -> tuple[dict[int, float], dict[int, float]]:
    """The binned law of the largest batch sum, as log masses: with the example, and with its replacement.

    In units of the sensitivity and above the common pull: under zero-out the example's batch stands out by 2 and its
    null example's by 1; under replace-one (a sensitivity of twice the clip norm) by 1 and by 0.
    """
    high = 2.0 if adjacency is Adjacency.ZERO_OUT else 1.0
    edges = np.arange(0.0, high + 12 * sigma, 0.01 * max(sigma, 0.5))
    laws = []
    for shift in (high, high - 1.0):
        below = np.exp(log_ndtr((edges - shift) / sigma) + (batches - 1) * log_ndtr(edges / sigma))
        laws.append(np.diff(np.concatenate([[0.0], below, [1.0]])))
    # Bins that one law hardly reaches are put together with the next one inside: a ratio of rounding errors is no loss.
    kept = np.flatnonzero((laws[0] > _LEAST_MASS) & (laws[1] > _LEAST_MASS))
    if not len(kept):
        raise UnsupportedEvent(
            "at hardly any noise the two laws have nothing in common, and no lower bound is computed"
        )
    first, last = int(kept[0]), int(kept[-1])
    inside = []
    for mass in laws:
        middle = mass[first : last + 1].copy()
        middle[0] += mass[:first].sum()
        middle[-1] += mass[last + 1 :].sum()
        inside.append({i: math.log(m) for i, m in enumerate(middle.tolist()) if m > 0})
    return inside[0], inside[1]
