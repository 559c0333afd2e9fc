"""Random plans against other libraries' accountants, two-sided: inside their own lower and upper
bounds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from privlearn.core import accounting
from privlearn.core.accounting import pld, rdp
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.mechanisms import Gaussian, Laplace, PoissonSampled, PureDP
from privlearn.core.mechanisms.banded import Banded
from privlearn.core.plan import Plan
from privlearn.core.sampling import CyclicPoisson
from privlearn.core.schedules import Constant

#: A fifth of these tests run where nothing that prices releases changed.
pytestmark = pytest.mark.one_of(5, accounting)


DELTA = 1e-5
STEP = 2e-4


def random_plan(seed: int) -> list[tuple[float, float, int]]:
    """One to three laws (sampling rate, sigma, steps) whose epsilon is of order one."""
    made_up = np.random.default_rng(seed)
    plan = []
    for _ in range(made_up.integers(1, 4)):
        rate = float(made_up.choice([1.0, 10 ** made_up.uniform(-3, -0.3)], p=[0.15, 0.85]))
        sigma = float(10 ** made_up.uniform(-0.2, 1.2))
        plan.append(
            (rate, sigma, int(10 ** made_up.uniform(0, 3) * min(1.0, sigma / rate / 20) + 1))
        )
    return plan


def event_of(plan: list[tuple[float, float, int]]) -> Event:
    return compose(
        Repeated(PoissonSampled(rate, Gaussian(sigma)), steps) for rate, sigma, steps in plan
    )


def by_dp_accounting(plan: list[tuple[float, float, int]], pessimistic: bool) -> float:
    from dp_accounting.pld import privacy_loss_distribution as peer

    total = None
    for rate, sigma, steps in plan:
        one = peer.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            value_discretization_interval=STEP,
            pessimistic_estimate=pessimistic,
        ).self_compose(steps)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize("block", range(10))
def test_dp_accounting(block: int) -> None:
    """Two hundred plans in all, in blocks: between the peer's optimistic and pessimistic epsilon,
    to 1e-3.
    """
    for seed in range(20 * block, 20 * block + 20):
        plan = random_plan(seed)
        ours = pld.epsilon(event_of(plan), DELTA)
        low, high = (by_dp_accounting(plan, pessimistic) for pessimistic in (False, True))
        assert low * (1 - 1e-4) - 1e-6 <= ours <= high * (1 + 1e-3) + 1e-6, (plan, low, ours, high)


@pytest.mark.parametrize("bands", [1, 4, 16])
def test_bands_under_cyclic_poisson(bands: int) -> None:
    """Sampled at `bands` times the rate, once in so many steps (Choquette-Choo et al. 2023)."""
    sampler = CyclicPoisson(0.01).in_cycles(bands)
    plan = Plan(
        sampler,
        epochs=8,
        schedule=Constant(1.3 * bands**0.5),
        correlation=Banded(bands) if bands > 1 else None,
    )
    cycles = 8 * math.ceil(100 / bands)
    assert plan.sampling.steps() * plan.epochs == cycles * bands
    low, high = (
        by_dp_accounting([(0.01 * bands, 1.3 * bands**0.5, cycles)], pessimistic)
        for pessimistic in (False, True)
    )
    assert low * (1 - 1e-4) <= plan.guarantee(DELTA).epsilon <= high * (1 + 1e-3)


def test_dp_accounting_renyi() -> None:
    from dp_accounting import dp_event
    from dp_accounting import rdp as peer

    for seed in range(12):
        accountant = peer.RdpAccountant(list(range(2, 65)))
        plan = random_plan(seed)
        for rate, sigma, steps in plan:
            accountant.compose(
                dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), steps
            )
        theirs, ours = accountant.get_epsilon(DELTA), rdp.epsilon(event_of(plan), DELTA)
        assert ours <= theirs * (1 + 1e-6) + 1e-9  # more orders, hence never larger
        assert ours >= by_dp_accounting(plan, pessimistic=False) * (1 - 1e-4) - 1e-6


def test_other_mechanisms() -> None:
    """Laplace and pure DP, composed, against the peer's own distributions."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as peer

    for noise, times in ((1.0, 3), (4.0, 30), (20.0, 200)):
        found = peer.from_laplace_mechanism(noise, value_discretization_interval=1e-4).self_compose(
            times
        )
        assert pld.epsilon(Repeated(Laplace(noise), times), DELTA) == pytest.approx(
            found.get_epsilon_for_delta(DELTA), rel=3e-3
        )
    for epsilon, times in ((1.0, 2), (0.2, 40), (0.05, 400)):
        parameters = common.DifferentialPrivacyParameters(epsilon, 0.0)
        pure = peer.from_privacy_parameters(
            parameters, value_discretization_interval=1e-4
        ).self_compose(times)
        ours = pld.epsilon(Repeated(PureDP(epsilon), times), DELTA)
        assert ours == pytest.approx(pure.get_epsilon_for_delta(DELTA), rel=3e-3)


def test_prv_accountant() -> None:
    """Inside the rigorous lower and upper bounds of Gopi et al. 2021."""
    prv = pytest.importorskip("prv_accountant", reason="prv-accountant is not installed")
    checked = 0
    for seed in range(60):
        plan = [law for law in random_plan(seed) if law[0] < 1]
        if not plan or not 0.1 < pld.epsilon(event_of(plan), DELTA) < 8:
            continue
        mechanisms = [
            prv.PoissonSubsampledGaussianMechanism(
                sampling_probability=rate, noise_multiplier=sigma
            )
            for rate, sigma, _ in plan
        ]
        steps = [count for *_, count in plan]
        accountant = prv.PRVAccountant(
            prvs=mechanisms, max_self_compositions=steps, eps_error=0.02, delta_error=DELTA / 1000
        )
        low, _, high = accountant.compute_epsilon(delta=DELTA, num_self_compositions=steps)
        ours = pld.epsilon(event_of(plan), DELTA)
        assert low * (1 - 1e-3) <= ours <= high * (1 + 1e-3), (plan, low, ours, high)
        checked += 1
    assert checked >= 15


def test_opacus() -> None:
    """Its Renyi accountant uses fewer orders; its PRV accountant states an upper bound."""
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    for seed in range(25):
        plan = random_plan(seed)
        renyi = accountants.RDPAccountant()
        renyi.history = [(sigma, rate, steps) for rate, sigma, steps in plan]
        theirs = renyi.get_epsilon(delta=DELTA)
        ours = rdp.epsilon(event_of(plan), DELTA)
        assert ours <= theirs * (1 + 1e-3) + 1e-9
        assert pld.epsilon(event_of(plan), DELTA) <= theirs * (1 + 1e-3) + 1e-9
        assert not math.isnan(ours)
