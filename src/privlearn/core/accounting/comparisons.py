"""This file computes what shuffling fixed-size batches costs at least: the other end of an honest
interval.

No amplification by shuffling is claimed here: the sound upper bound of a shuffled epoch is one
Gaussian release. This is the lower bound of Chua et al. (2024): two data sets and an attack that
tell how much an epoch gives away, whatever is proven.

Yu et al.'s closed form for random sampling: an estimate, never a guarantee.

Theorem 3 of Yu et al. (2019) turns a Renyi bound D_a <= a rho for a <= U into (epsilon, delta). It
is right, but the paper feeds it with rho = q^2 / sigma^2 and U = sigma^2 ln(1/(q sigma)) + 1, which
was only observed numerically and is false below sigma = 1.107 (at sigma = 1 and q = 0.06 the
divergence at order 3.7 is 0.0150, the formula 0.0133).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np

from privlearn._checks import count
from privlearn._checks import delta as valid_delta
from privlearn._scipy import log_ndtr
from privlearn.core.accounting.events import Event, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, PoissonSampled
from privlearn.core.accounting.trees import of_kind
from privlearn.core.accounting.zcdp import gaussian_epsilon
from privlearn.errors import UnsupportedEvent

#: How to get the package that computes the lower bound.
MISSING = (
    "the lower bound for shuffling needs dp-accounting, which is not installed: pip install "
    "'privlearn[comparison]'"
)
_STEP = 1e-3
_LEAST_MASS = 1e-14


def lower_bound(event: Event, batches: int, adjacency: Adjacency, delta: float) -> float:
    """A lower bound on epsilon at `delta` of epochs over `batches` shuffled fixed-size batches.

    All examples but one pull every batch one way, and the attacker looks at the largest batch sum:
    the one with the example stands out by up to twice the clip norm. Earlier Gaussian releases are
    left out, which only lowers the bound.

    Raises:
        UnsupportedEvent: no shuffled epoch is among the events, the adjacency is add/remove, or
            dp-accounting is missing.
    """
    count("batches", batches)
    valid_delta(delta)
    if adjacency is Adjacency.ADD_REMOVE:
        raise UnsupportedEvent("the lower bound for shuffling is for neighbours of the same size")
    epochs = {leaf.event: times for leaf, times in of_kind(event, FixedBatches).items()}
    if not epochs:
        raise UnsupportedEvent("there is no shuffled epoch among the events")
    mu = math.sqrt(
        sum(times / mechanism.noise_multiplier**2 for mechanism, times in epochs.items())
    )
    return min(_compose(epochs, batches, adjacency, delta), gaussian_epsilon(mu, delta))


def installed() -> bool:
    """Whether `lower_bound` can be computed: dp-accounting is an extra, `comparison`."""
    return find_spec("dp_accounting") is not None


def _compose(
    epochs: Mapping[Gaussian, int], batches: int, adjacency: Adjacency, delta: float
) -> float:
    try:
        from dp_accounting.pld import privacy_loss_distribution as peer
    except ImportError as error:
        raise UnsupportedEvent(MISSING) from error

    total = None
    for mechanism, times in epochs.items():
        with_example, without = _largest_of_batches(mechanism.noise_multiplier, batches, adjacency)
        one = peer.from_two_probability_mass_functions(
            without,
            with_example,
            pessimistic_estimate=False,
            value_discretization_interval=_STEP,
            symmetric=False,
        )
        part = one.self_compose(times)
        total = part if total is None else total.compose(part)
    assert total is not None
    return max(0.0, float(total.get_epsilon_for_delta(delta)))


def _largest_of_batches(
    sigma: float, batches: int, adjacency: Adjacency
) -> tuple[dict[int, float], dict[int, float]]:
    """The binned law of the largest batch sum, as log masses: with the example, and with its
    replacement.

    In units of the sensitivity and above the common pull: under zero-out the example's batch stands
    out by 2 and its null example's by 1; under replace-one (a sensitivity of twice the clip norm)
    by 1 and by 0.
    """
    high = 2.0 if adjacency is Adjacency.ZERO_OUT else 1.0
    edges = np.arange(0.0, high + 12 * sigma, 0.01 * max(sigma, 0.5))
    laws = []
    for shift in (high, high - 1.0):
        below = np.exp(log_ndtr((edges - shift) / sigma) + (batches - 1) * log_ndtr(edges / sigma))
        laws.append(np.diff(np.concatenate([[0.0], below, [1.0]])))
    # Bins that one law hardly reaches are put together with the next one inside: a ratio of
    # rounding errors is no loss.
    common_bins = np.flatnonzero((laws[0] > _LEAST_MASS) & (laws[1] > _LEAST_MASS))
    if not len(common_bins):
        raise UnsupportedEvent(
            "at hardly any noise the two laws have nothing in common, and no lower bound is "
            "computed"
        )
    first, last = int(common_bins[0]), int(common_bins[-1])
    inside = []
    for mass in laws:
        middle = mass[first : last + 1].copy()
        middle[0] += mass[:first].sum()
        middle[-1] += mass[last + 1 :].sum()
        inside.append({i: math.log(m) for i, m in enumerate(middle.tolist()) if m > 0})
    return inside[0], inside[1]


#: No violation of the conjecture was found from here on.
LEAST_SIGMA = 1.15


def epsilon(event: Event, delta: float) -> float:
    """An estimate of epsilon for Poisson-sampled Gaussian releases, by Yu et al. 2019, Thm 3.

    Raises:
        UnsupportedEvent: noise below 1.15, a sampling rate above 1 / (16 sigma), or any other kind
            of mechanism.
    """
    sampled = of_kind(event, PoissonSampled)
    if len(sampled) < len(tally(event)):
        raise UnsupportedEvent(
            "the estimate of Yu et al. is for Poisson sampling alone", event=event
        )
    rho, top = 0.0, math.inf
    for leaf, times in sampled.items():
        rate, sigma = leaf.sampling_rate, leaf.event.noise_multiplier
        if sigma < LEAST_SIGMA or rate > 1 / (16 * sigma):
            raise UnsupportedEvent(
                f"the estimate of Yu et al. does not hold at sigma {sigma:g} and q {rate:g}: it "
                f"needs sigma of at least {LEAST_SIGMA} and q of at most 1 / (16 sigma) = "
                f"{1 / (16 * sigma):.4g}. Use pld or rdp",
                event=leaf,
            )
        rho += times * (rate / sigma) ** 2
        top = min(top, highest_order(rate, sigma))
    return theorem_three(rho, top, delta)


def highest_order(rate: float, sigma: float) -> float:
    """U = sigma^2 ln(1 / (q sigma)) + 1: the orders up to which the paper puts its bound (Yu et al.
    2019, IV-B).
    """
    return sigma**2 * math.log(1 / (rate * sigma)) + 1


def theorem_three(rho: float, top: float, delta: float) -> float:
    """epsilon at `delta` of a mechanism whose Renyi divergence is at most a rho for every order a
    in (1, top].

    Sound as it stands (Yu et al. 2019, Thm 3); whether its premise holds is the caller's affair.
    """
    need = -math.log(valid_delta(delta))
    if need <= rho * (top - 1) ** 2:
        return rho + 2 * math.sqrt(rho * need)
    return rho * top + need / (top - 1)
