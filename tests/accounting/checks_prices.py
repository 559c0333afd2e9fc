"""Named checks of prices, ledgers and calibration; mutations must make them fail."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle

import torch

import privlearn as pv
from privlearn.core import sampling, solving
from privlearn.core.accounting import accountant, pld, zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Repeated, tally
from privlearn.core.accounting.filters import fits
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, Partitioned, PoissonSampled
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.mechanisms import release as release_module
from privlearn.core.plan import Plan
from privlearn.core.schedules import Exponential
from privlearn.errors import (
    AdjacencyMismatch,
    BudgetExceeded,
    UnsupportedEvent,
)
from tests.support.checks import check, must_raise
from tests.support.nets import NoDraws, one_sample, seen

# Accounting and ledger


@check
def check_counts_are_priced() -> None:
    for leaf in (Gaussian(3.0), FixedBatches(Gaussian(3.0)), Partitioned(7, Gaussian(3.0))):
        assert math.isclose(zcdp.rho(Repeated(leaf, 20)), 20 / 18)
        assert math.isclose(zcdp.rho(Repeated(Repeated(leaf, 4), 5)), 20 / 18)
    step = PoissonSampled(0.01, Gaussian(1.0))
    assert 1.82 < pld.epsilon(Repeated(step, 1000), 1e-5) < 1.835
    assert math.isclose(
        pld.epsilon(Repeated(Repeated(step, 10), 100), 1e-5),
        pld.epsilon(Repeated(step, 1000), 1e-5),
    )


@check
def check_epsilon_is_never_below_the_exact_gaussian() -> None:
    for sigma in (0.5, 1.0, 8.0, 60.0):
        for times in (1, 7, 400):
            exact = zcdp.gaussian_epsilon(math.sqrt(times) / sigma, 1e-5)
            found = pld.epsilon(Repeated(Gaussian(sigma), times), 1e-5)
            assert exact <= found * (1 + 1e-12)
            assert found <= exact * 1.001 + 1e-9


@check
def check_calibration_of_many_noise_levels_is_decided_by_their_own_price() -> None:
    """A price of few levels says where to look; what is returned meets the target by that of all of
    them.
    """
    for sampler in (sampling.Poisson(0.01), sampling.Partition(20)):
        plan = Plan(sampler, epochs=30, schedule=Exponential(k=0.03)).calibrate(
            epsilon=3.0, delta=1e-5
        )
        found = accountant.guarantee(plan.event(), Adjacency.ADD_REMOVE, 1e-5).epsilon
        assert 3.0 * (1 - 2e-3) < found <= 3.0
    plan = Plan(sampling.Poisson(0.01), epochs=30, schedule=Exponential(k=0.01, start=4.0))
    found = solving.with_rate(plan, Budget(1.0, 1e-5))
    assert 1 - 2e-3 < accountant.guarantee(found.event(), Adjacency.ADD_REMOVE, 1e-5).epsilon <= 1


@check
def check_shuffling_is_not_amplified() -> None:
    epoch = FixedBatches(Gaussian(6.0))
    found = accountant.guarantee(Repeated(epoch, 400), Adjacency.ZERO_OUT, 1e-5)
    assert found.epsilon >= 19.13
    must_raise(UnsupportedEvent, lambda: accountant.guarantee(epoch, Adjacency.ADD_REMOVE, 1e-5))
    must_raise(
        UnsupportedEvent,
        lambda: accountant.guarantee(
            PoissonSampled(0.1, Gaussian(1.0)), Adjacency.REPLACE_ONE, 1e-5
        ),
    )


@check
def check_adjacencies_never_mix() -> None:
    ledger = Ledger()
    ledger.charge(Gaussian(1.0), Adjacency.ADD_REMOVE)
    must_raise(AdjacencyMismatch, lambda: ledger.charge(Gaussian(1.0), Adjacency.ZERO_OUT))
    sample = one_sample()
    mixed = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    parts = [Bounded((torch.zeros(1),), 1.0, kind, sample, seen()) for kind in mixed]
    must_raise(
        AdjacencyMismatch,
        lambda: release_module.release(
            *parts,
            noise_multiplier=1.0,
            ledger=Ledger(),
            stream=NoDraws(),  # type: ignore[arg-type]
        ),
    )


@check
def check_the_ledger_holds_its_budget() -> None:
    ledger = Ledger(Budget(rho=1.0))
    for _ in range(4):
        ledger.charge(Gaussian(math.sqrt(2)), Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(1000.0), Adjacency.ADD_REMOVE))
    assert tally(ledger.event) == {Gaussian(math.sqrt(2)): 4}
    ledger = Ledger(Budget(epsilon=1.0, delta=1e-5))
    step = PoissonSampled(0.05, Gaussian(1.5))
    with contextlib.suppress(BudgetExceeded):
        for _ in range(500):
            ledger.charge(step, Adjacency.ADD_REMOVE)
    count = tally(ledger.event)[step]
    assert ledger.limit is not None
    assert fits(ledger.limit, Repeated(step, count))
    assert not fits(ledger.limit, Repeated(step, count + 1))
    assert 0.8 < pld.epsilon(Repeated(step, count), 1e-5) <= ledger.guarantee(1e-5).epsilon <= 1.0


@check
def check_approval_covers_only_what_was_approved() -> None:
    ledger = Ledger(Budget(rho=1.0))
    ledger.begin(Repeated(Gaussian(2.0), 8), Adjacency.ADD_REMOVE)
    for _ in range(8):
        ledger.charge(Gaussian(2.0), Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(2.0), Adjacency.ADD_REMOVE))
    ledger = Ledger(Budget(rho=1.0))
    ledger.begin(Repeated(Gaussian(2.0), 8), Adjacency.ADD_REMOVE)
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(0.5), Adjacency.ADD_REMOVE))


@check
def check_spending_is_never_forked() -> None:
    ledger = Ledger(Budget(rho=1.0))
    for other in (
        copy.copy(ledger),
        copy.deepcopy(ledger),
        copy.deepcopy({"inside": ledger})["inside"],
    ):
        other.charge(Gaussian(3.0), Adjacency.ADD_REMOVE)
    assert tally(ledger.event) == {Gaussian(3.0): 3}
    must_raise(TypeError, lambda: pickle.dumps(ledger))


@check
def check_calibration_stays_below_its_target() -> None:
    for sampler in (
        sampling.Poisson(0.05),
        sampling.Partition(20),
        sampling.Shuffle(10),
        sampling.FullBatch(),
    ):
        for schedule in (
            pv.schedules.Constant(),
            pv.schedules.Exponential(k=0.05),
            pv.schedules.Polynomial(k=3),
        ):
            plan = Plan(
                sampler, epochs=12, schedule=schedule, front=(pv.transforms.PrivatePCA(4, 16.0),)
            )
            plan = plan.calibrate(epsilon=2.0, delta=1e-5)
            assert 1.994 <= plan.guarantee(1e-5).epsilon <= 2.0


@check
def check_table_two_of_yu() -> None:
    """Yu et al. 2019, Table II: the epochs at which a budget of rho 0.78125 ends."""
    specs = {
        "constant:start=8": 100,
        "time:k=0.05": 38,
        "step:k=0.6,period=10": 31,
        "exp:k=0.01": 71,
    }
    specs["poly:k=3,end=2,period=100"] = 44
    for spec, epochs in specs.items():
        plan = Plan(sampling.Shuffle(600), schedule=pv.schedules.parse(spec)).within(
            Budget(rho=0.78125)
        )
        assert plan.epochs == epochs, (spec, plan.epochs)
