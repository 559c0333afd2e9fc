"""The accountants of privlearn beside those of dp-accounting, prv-accountant and Opacus, at delta
1e-5.

`python bench/accounting.py [--quick] [--json]`; the peers are in the optional group `test`.
Variants of one mechanism that are tight (privacy loss distributions, privacy random variables) must
agree within 2%. Opacus and prv-accountant answer with their estimate plus `eps_error`; that error
bar is taken off before answers are compared. Renyi DP answers another, looser question, and is
there for its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import common
from common import Case, Variant
from scipy.optimize import brentq

import privlearn as pv
from privlearn.core.accounting import pld, rdp
from privlearn.core.accounting.events import Composed, Repeated, compose
from privlearn.core.accounting.mechanisms import Gaussian, Partitioned, PoissonSampled

DELTA, RATE, BATCHES, GRID, TARGET = 1e-5, 0.01, 100, 1e-4, 2.0
START, DECAY = 3.862, 0.01
#: How far from each other tight answers may be.
WITHIN = 0.02
#: The search of the peers stops at this distance from the noise, which leaves them about as much
#: unspent as privlearn.
TOLERANCE = 0.004

#: A Poisson schedule: noise multipliers, each with its number of steps.
Steps = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class Size:
    """How large the cases are.

    Attributes:
        epochs: of the decaying schedules.
        calibrated: epochs of the schedule that is calibrated.
        bracket: the noise multipliers between which the peers are told to search.
        grids: the grids on which dp-accounting does.
        repeated: epochs at constant noise.
        rounds: for cases of seconds, of minutes and of milliseconds.
    """

    epochs: int
    calibrated: int
    bracket: tuple[float, float]
    grids: tuple[float, ...]
    repeated: int
    rounds: tuple[int, int, int]


FULL = Size(100, 100, (3.0, 5.0), (GRID, 1e-3), 400, (3, 2, 15))
QUICK = Size(20, 10, (0.95, 1.15), (1e-3,), 400, (3, 1, 9))
SMOKE = Size(3, 2, (0.7, 1.0), (1e-3,), 20, (1, 1, 1))


def decaying(epochs: int, start: float = START) -> list[float]:
    """The noise multiplier of each epoch: start e^{-0.01 e}."""
    return [start * math.exp(-DECAY * epoch) for epoch in range(epochs)]


def poisson(steps: Steps) -> Composed:
    """The schedule as an event."""
    return compose(Repeated(PoissonSampled(RATE, Gaussian(sigma)), count) for sigma, count in steps)


# Epsilon by each library


def by_privlearn(steps: Steps, grid: float = GRID) -> float:
    """privlearn, privacy loss distributions."""
    return pld.compose_event(poisson(steps), h=grid).epsilon(DELTA)


def by_privlearn_rdp(steps: Steps) -> float:
    """privlearn, Renyi DP, without the curves that it remembers from the last time."""
    rdp._poisson.cache_clear()
    return rdp.epsilon(poisson(steps), DELTA)


def by_dp_accounting(steps: Steps, grid: float = GRID) -> float:
    """dp-accounting, privacy loss distributions."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=grid)
    for sigma, count in steps:
        accountant.compose(PoissonSampledDpEvent(RATE, GaussianDpEvent(sigma)), count)
    return float(accountant.get_epsilon(DELTA))


def by_prv_accountant(steps: Steps, error: float) -> float:
    """prv-accountant, privacy random variables."""
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    laws = [
        PoissonSubsampledGaussianMechanism(sampling_probability=RATE, noise_multiplier=sigma)
        for sigma, _ in steps
    ]
    counts = [count for _, count in steps]
    accountant = PRVAccountant(
        laws, eps_error=error, delta_error=DELTA / 1000, max_self_compositions=counts
    )
    return float(accountant.compute_epsilon(DELTA, counts)[2])


def by_opacus(steps: Steps, error: float) -> float:
    """Opacus, privacy random variables."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(sigma, RATE, count) for sigma, count in steps]
    return float(accountant.get_epsilon(DELTA, eps_error=error))


def by_opacus_rdp(steps: Steps) -> float:
    """Opacus, Renyi DP."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(sigma, RATE, count) for sigma, count in steps]
    return float(accountant.get_epsilon(DELTA))


def _privlearn(steps: Steps) -> Variant:
    return Variant(f"privlearn, grid {GRID:g}", lambda: by_privlearn(steps))


def _dp_accounting(steps: Steps, grid: float = GRID, slow: bool = False) -> Variant:
    return Variant(
        f"dp-accounting, grid {grid:g}",
        lambda: by_dp_accounting(steps, grid),
        ("dp_accounting.pld",),
        WITHIN,
        slow=slow,
    )


def _prv_accountant(steps: Steps, error: float, slow: bool = False) -> Variant:
    return Variant(
        f"prv-accountant, eps_error {error:g}",
        lambda: by_prv_accountant(steps, error),
        ("prv_accountant",),
        WITHIN,
        error,
        slow,
    )


def _opacus(steps: Steps, error: float, slow: bool = False) -> Variant:
    return Variant(
        f"Opacus PRV, eps_error {error:g}",
        lambda: by_opacus(steps, error),
        ("opacus.accountants",),
        WITHIN,
        error,
        slow,
    )


def _opacus_rdp(steps: Steps) -> Variant:
    return Variant("Opacus RDP, looser", lambda: by_opacus_rdp(steps), ("opacus.accountants",))


# The cases


def schedule(size: Size) -> Case:
    """epsilon of a Poisson schedule with another noise multiplier in each epoch."""
    steps = [(sigma, BATCHES) for sigma in decaying(size.epochs)]
    variants = (
        _privlearn(steps),
        _dp_accounting(steps, slow=True),
        _opacus(steps, 0.1, slow=True),
        _opacus(steps, 0.02, slow=True),
        _prv_accountant(steps, 0.1, slow=True),
        Variant("privlearn, grid 0.001", lambda: by_privlearn(steps, 1e-3), within=WITHIN),
        _dp_accounting(steps, 1e-3, slow=True),
        Variant(
            "privlearn, its own grid", lambda: pld.epsilon(poisson(steps), DELTA), within=WITHIN
        ),
        _opacus_rdp(steps),
        Variant("privlearn RDP, looser", lambda: by_privlearn_rdp(steps)),
    )
    name = f"epsilon of {size.epochs} noise multipliers x {BATCHES} Poisson steps"
    return Case(name, "epsilon", variants, size.rounds[0])


def calibration(size: Size) -> Case:
    """The scale of the same schedule that meets epsilon 2."""
    epochs = size.calibrated

    def at(start: float) -> list[tuple[float, int]]:
        return [(sigma, BATCHES) for sigma in decaying(epochs, start)]

    def by_plan() -> float:
        plan = pv.Plan(pv.Poisson(RATE), epochs=epochs, schedule=pv.schedules.Exponential(k=DECAY))
        return plan.calibrate(epsilon=TARGET, delta=DELTA).schedule.start

    def by_dp(grid: float) -> float:
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant

        def event(start: float) -> dp.DpEvent:
            sampled = (
                (dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(sigma)), count)
                for sigma, count in at(start)
            )
            return dp.ComposedDpEvent(
                [dp.SelfComposedDpEvent(release, count) for release, count in sampled]
            )

        return float(
            dp.calibrate_dp_mechanism(
                lambda: PLDAccountant(value_discretization_interval=grid),
                event,
                TARGET,
                DELTA,
                dp.ExplicitBracketInterval(*size.bracket),
                tol=TOLERANCE,
            )
        )

    def by_root(epsilon: Callable[[Steps], float]) -> float:
        return float(
            brentq(lambda start: epsilon(at(start)) - TARGET, *size.bracket, xtol=TOLERANCE)
        )

    def calibrated_dp(grid: float) -> Variant:
        return Variant(
            f"dp-accounting calibrate_dp_mechanism, grid {grid:g}",
            lambda: by_dp(grid),
            ("dp_accounting.pld",),
            WITHIN,
            slow=True,
        )

    variants = (
        Variant("privlearn, Plan.calibrate", by_plan),
        *(calibrated_dp(grid) for grid in size.grids),
        Variant(
            "Opacus PRV and brentq, eps_error 0.1 ignored",
            lambda: by_root(lambda steps: by_opacus(steps, 0.1) - 0.1),
            ("opacus.accountants",),
            WITHIN,
            slow=True,
        ),
        Variant(
            "Opacus RDP and brentq, looser",
            lambda: by_root(by_opacus_rdp),
            ("opacus.accountants",),
            slow=True,
        ),
    )
    name = f"noise of {epochs} epochs x {BATCHES} Poisson steps for epsilon {TARGET:g}"
    return Case(name, "first noise multiplier", variants, size.rounds[1])


def partition(size: Size, sigmas: Sequence[float], name: str, rounds: int, slow: bool) -> Case:
    """epsilon of epochs of balls in bins, which no peer prices: theirs are as many Poisson steps at
    q = 1 / t.
    """
    event = compose(Partitioned(BATCHES, Gaussian(sigma)) for sigma in sigmas)
    steps = [(sigma, BATCHES * sigmas.count(sigma)) for sigma in dict.fromkeys(sigmas)]
    variants = (
        Variant(
            f"privlearn, partition, grid {GRID:g}",
            lambda: pld.compose_event(event, h=GRID).epsilon(DELTA),
        ),
        Variant(
            "privlearn, partition, its own grid", lambda: pld.epsilon(event, DELTA), within=WITHIN
        ),
        Variant(
            f"dp-accounting, Poisson at q = 1/t instead, grid {GRID:g}",
            lambda: by_dp_accounting(steps),
            ("dp_accounting.pld",),
            slow=slow,
        ),
        Variant(
            "Opacus PRV, Poisson at q = 1/t instead, eps_error 0.1",
            lambda: by_opacus(steps, 0.1),
            ("opacus.accountants",),
            slow=slow,
        ),
    )
    return Case(name, "epsilon", variants, rounds)


def constant(size: Size) -> Case:
    """epsilon of a Poisson plan at one noise multiplier."""
    count = size.repeated * BATCHES
    steps = [(6.0, count)]
    variants = (
        _privlearn(steps),
        _dp_accounting(steps),
        _opacus(steps, 0.1),
        _opacus(steps, 0.01),
        _prv_accountant(steps, 0.1),
        _opacus_rdp(steps),
    )
    return Case(
        f"epsilon of {count:,} Poisson steps at noise 6", "epsilon", variants, size.rounds[2]
    )


def cases(size: Size) -> list[Case]:
    """All cases at `size`."""
    same, falling = [6.0] * size.repeated, decaying(size.epochs)
    return [
        schedule(size),
        calibration(size),
        partition(
            size,
            same,
            f"epsilon of {size.repeated} partition epochs at noise 6",
            size.rounds[2],
            slow=False,
        ),
        partition(
            size,
            falling,
            f"epsilon of {size.epochs} partition epochs, as many noises",
            size.rounds[0],
            slow=True,
        ),
        constant(size),
    ]


if __name__ == "__main__":
    options = common.parser(
        __file__, "Accountants side by side: time, memory and epsilon."
    ).parse_args()
    common.main(__file__, options, cases(QUICK if options.quick else FULL))
