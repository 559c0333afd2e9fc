"""Filters: adaptively chosen releases under a limit that is charged beforehand."""

from __future__ import annotations

import math

import pytest
import torch

from privlearn.core.accounting import accountant, rdp, zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.filters import PrivacyFilter
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import (
    FixedBatches,
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    Selection,
)
from privlearn.core.accounting.trees import Filter, GaussianFilter
from privlearn.core.mechanisms.release import release
from privlearn.core.streams import Streams
from privlearn.errors import AdjacencyMismatch, BadInput, BudgetExceeded, UnsupportedEvent
from tests.support.nets import NoDraws, bounded

ZERO_OUT, ADD_REMOVE = Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE


def test_the_limit_is_charged_at_once_and_is_the_claim() -> None:
    ledger = Ledger(Budget(rho=1.0))
    spent = PrivacyFilter(ledger, Filter(0.6), ZERO_OUT)
    assert ledger.event == compose([Filter(rho=0.6)])
    spent.charge(FixedBatches(Gaussian(3.0)), ZERO_OUT)
    assert ledger.event == compose([Filter(rho=0.6)])
    with pytest.raises(BudgetExceeded):
        PrivacyFilter(ledger, Filter(0.5), ZERO_OUT)


def test_a_gaussian_filter_lets_gaussians_alone_through() -> None:
    ledger = Ledger(Budget(rho=1.0))
    spent = PrivacyFilter(ledger, GaussianFilter(0.6), ADD_REMOVE)
    assert ledger.event == compose([GaussianFilter(0.6)])
    for event in (
        Partitioned(10, Gaussian(3.0)),
        Gaussian(4.0),
        compose([Gaussian(5.0), Partitioned(3, Gaussian(9.0))]),
    ):
        spent.charge(event, ADD_REMOVE)
    through = spent.spent()
    assert zcdp.rho(through) == pytest.approx(0.5 * (1 / 9 + 1 / 16 + 1 / 25 + 1 / 81))
    for refused in (
        Selection(0.1),
        Laplace(10.0),
        PureDP(0.1),
        PoissonSampled(0.01, Gaussian(9.0)),
        Filter(rho=0.01),
    ):
        with pytest.raises(UnsupportedEvent):
            spent.charge(refused, ADD_REMOVE)
    assert spent.spent() == through
    with pytest.raises(BudgetExceeded):
        spent.charge(Gaussian(1.0), ADD_REMOVE)


def test_noise_may_react_until_the_limit() -> None:
    """Halving the noise at will, as a schedule that watches validation accuracy does."""
    limit, sigma, total = PrivacyFilter(Ledger(), Filter(0.78125), ZERO_OUT), 10.0, 0.0
    for epoch in range(1000):
        if total + 0.5 / sigma**2 > 0.78125:
            break
        limit.charge(FixedBatches(Gaussian(sigma)), ZERO_OUT)
        total += 0.5 / sigma**2
        sigma *= 0.7 if epoch in (29, 49, 59) else 1.0
    assert total <= 0.78125 < total + 0.5 / sigma**2
    with pytest.raises(BudgetExceeded, match="past its limit"):
        limit.charge(FixedBatches(Gaussian(sigma)), ZERO_OUT)
    assert zcdp.rho(limit.spent()) == pytest.approx(total)


def test_yus_validation_schedule_lasts_64_epochs() -> None:
    """Yu et al. 2019, Table II: 29 epochs at 10, 20 at 7, 10 at 4.9, 5 at 3.43, and no sixth."""
    limit = PrivacyFilter(Ledger(), Filter(0.78125), ZERO_OUT)
    for sigma, epochs in ((10.0, 29), (7.0, 20), (4.9, 10), (3.43, 5)):
        limit.charge(Repeated(FixedBatches(Gaussian(sigma)), epochs), ZERO_OUT)
    assert zcdp.rho(limit.spent()) == pytest.approx(0.769825, abs=1e-6)
    with pytest.raises(BudgetExceeded):
        limit.charge(FixedBatches(Gaussian(3.43)), ZERO_OUT)


def test_a_release_takes_a_filter_in_a_ledgers_place() -> None:
    limit = PrivacyFilter(Ledger(), Filter(0.1), ADD_REMOVE)
    release(
        bounded(torch.zeros(2)), noise_multiplier=3.0, ledger=limit, stream=Streams.new(0).noise
    )
    with pytest.raises(BudgetExceeded):
        release(bounded(torch.zeros(2)), noise_multiplier=3.0, ledger=limit, stream=NoDraws())  # type: ignore[arg-type]


def test_sampling_has_no_zcdp_filter() -> None:
    with pytest.raises(UnsupportedEvent, match="no amplified zCDP"):
        PrivacyFilter(Ledger(), Filter(1.0), ADD_REMOVE).charge(
            PoissonSampled(0.1, Gaussian(1.0)), ADD_REMOVE
        )


def test_adjacencies_do_not_mix_in_a_filter() -> None:
    with pytest.raises(AdjacencyMismatch):
        PrivacyFilter(Ledger(), Filter(1.0), ADD_REMOVE).charge(Gaussian(5.0), ZERO_OUT)


def test_a_renyi_filter_stops_at_its_first_limit() -> None:
    ledger, step = Ledger(), PoissonSampled(0.01, Gaussian(1.0))
    orders = (4.0, 8.0)
    at = [rdp.curve(step)[list(rdp.ORDERS).index(order)] for order in orders]
    limit = PrivacyFilter(ledger, Filter(None, orders, (100.5 * at[0], 50.5 * at[1])), ADD_REMOVE)
    limit.charge(Repeated(step, 50), ADD_REMOVE)
    with pytest.raises(BudgetExceeded, match="past its limit, Renyi DP at order 4, at most"):
        limit.charge(step, ADD_REMOVE)
    claim = accountant.guarantee(ledger.event, ADD_REMOVE, 1e-5)
    assert claim.method == "rdp"
    best_at_4 = 100.5 * at[0] + math.log1p(-1 / 4) - (math.log(1e-5) + math.log(4)) / 3
    best_at_8 = 50.5 * at[1] + math.log1p(-1 / 8) - (math.log(1e-5) + math.log(8)) / 7
    assert claim.epsilon <= min(best_at_4, best_at_8) + 1e-9


def test_the_price_of_a_filter_is_never_a_privacy_loss_distribution() -> None:
    ledger = Ledger()
    PrivacyFilter(ledger, Filter(0.5), ADD_REMOVE)
    ledger.charge(Repeated(PoissonSampled(0.01, Gaussian(1.0)), 10), ADD_REMOVE)
    assert {g.method for g in accountant.guarantees(ledger.event, ADD_REMOVE, 1e-5)} == {
        "rdp",
        "moments-2016",
    }


@pytest.mark.parametrize(
    ("orders", "bounds"),
    [((), ()), ((2.0,), ()), ((1.0,), (0.1,)), ((2.0,), (0.0,)), ((3.14159,), (1.0,))],
)
def test_bad_renyi_filters(orders: tuple[float, ...], bounds: tuple[float, ...]) -> None:
    ledger = Ledger()
    with pytest.raises(BadInput):
        PrivacyFilter(ledger, Filter(None, orders, bounds), ADD_REMOVE)
    assert ledger.event.events == ()
