"""Renyi DP by dp-accounting, for Gaussian releases and Poisson sampling (Mironov et al. 2019; Canonne et al. 2020)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from privlearn.accounting.events import Event, FixedBatches, Gaussian, Partitioned, PoissonSampled, tally
from privlearn.errors import UnsupportedEvent

#: Orders tried: fine below 11, whole up to 64, then sparse.
ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 65),
    *(72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024),
)


def epsilon(event: Event, delta: float) -> float:
    """epsilon of `event` at `delta`, the least over `ORDERS`.

    Raises:
        UnsupportedEvent: for a mechanism without a Renyi price here.
    """
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(list(ORDERS))
    # It logs each order that it leaves out; leaving some out is sound.
    with _quiet("absl"):
        for leaf, times in tally(event).items():
            accountant.compose(_translate(leaf), times)
        return max(0.0, float(accountant.get_epsilon(delta)))


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    found = logging.getLogger(logger)
    level = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(level)


def _translate(leaf: Event) -> object:
    from dp_accounting import dp_event

    match leaf:
        case Gaussian(noise_multiplier):
            return dp_event.GaussianDpEvent(noise_multiplier)
        case PoissonSampled(rate, step):
            return dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(step.noise_multiplier))
        case FixedBatches(step) | Partitioned(_, step):
            # One example meets one batch of the epoch (zcdp.rho says why): one release.
            return dp_event.GaussianDpEvent(step.noise_multiplier)
        case _:
            raise UnsupportedEvent(f"{type(leaf).__name__} has no Renyi price here", event=leaf)
