"""Events that nobody means, and that a certificate may hold all the same: a bound, or a refusal,
and soon.
"""

from __future__ import annotations

import itertools
import math
import re
import sys

import pytest

from privlearn.cli import main
from privlearn.core import accounting
from privlearn.core.accounting import accountant, comparisons, pld
from privlearn.core.accounting.comparisons import lower_bound
from privlearn.core.accounting.events import Composed, Event, Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import (
    FixedBatches,
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    Selection,
)
from privlearn.core.accounting.pld import partition
from privlearn.core.accounting.trees import Filter, GaussianFilter, OneOf, Parallel, RepeatAndSelect
from privlearn.errors import BadInput, PrivlearnError, UnsupportedEvent

#: A fifth of these tests run where nothing that prices releases changed.
pytestmark = pytest.mark.one_of(5, accounting)


SIGMAS = (1e-6, 0.05, 1.0, 1e6, 1e12)
EPSILONS = (1e-12, 1.0, 1e6)
LEAVES: list[Event] = [
    *(kind(sigma) for kind in (Gaussian, Laplace) for sigma in SIGMAS),
    *(FixedBatches(Gaussian(sigma)) for sigma in SIGMAS),
    *(
        PoissonSampled(rate, Gaussian(sigma))
        for rate in (1e-12, 0.5, 1 - 1e-12)
        for sigma in SIGMAS
    ),
    *(Partitioned(batches, Gaussian(sigma)) for batches in (500,) for sigma in (1e-6, 0.05, 1.0)),
    *(kind(epsilon) for kind in (PureDP, Selection) for epsilon in EPSILONS),
    *(RandomisedResponse(epsilon, k) for epsilon in EPSILONS for k in (2, 10**15)),
    *(Filter(None, (order,), (bound,)) for order in (1 + 1e-9, 1e12) for bound in (1e-300, 1e12)),
    *(GaussianFilter(rho) for rho in (1e-24, 1.0, 5e11)),
    RepeatAndSelect(Gaussian(1e12), 1.0, math.inf),
    RepeatAndSelect(Repeated(Gaussian(3.0), 10**15), 5.0, 1.0),
    RepeatAndSelect(PoissonSampled(1e-12, Gaussian(1.0)), 1e9, 1e300),
    RepeatAndSelect(Laplace(1e-6), 1 + 1e-15, 0.0),
    RepeatAndSelect(Filter(None, (1.5,), (0.1,)), 1e9, 1e-300),
    OneOf((PureDP(1e6), Repeated(Gaussian(1e-6), 10**15))),
]


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_a_figure_or_a_refusal(leaf: Event) -> None:
    for times, delta in itertools.product((1, 10**15), (5e-324, 1e-30, 1e-5, 1 - 1e-16)):
        try:
            found = accountant.guarantee(Repeated(leaf, times), Adjacency.ZERO_OUT, delta)
        except PrivlearnError:
            continue
        assert 0 <= found.epsilon < math.inf


@pytest.mark.parametrize("sigma", [0.3, 1e5])
def test_partitions_beyond_all_grids(sigma: float) -> None:
    """A thousand million batches, and noise for a thousand millions: priced as fewer and less."""
    assert (
        0
        <= pld.epsilon(Partitioned(10**15, Gaussian(sigma)), 1e-5)
        <= pld.epsilon(Gaussian(sigma), 1e-8) + 1e-4
    )


@pytest.mark.parametrize(("batches", "sigma"), [(4, 2.5e5), (1000, 1.4e4)])
def test_what_is_capped_is_an_upper_bound(
    batches: int, sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = Repeated(Partitioned(batches, Gaussian(sigma)), 10)
    capped = pld.epsilon(event, 1e-12)
    monkeypatch.setattr(partition, "within_reach", lambda batches, sigma: (batches, sigma))
    assert pld.epsilon(event, 1e-12) < capped < 1e-4


def test_what_is_in_reach_stays_as_it_is() -> None:
    for batches, sigma in ((2, 1e5), (100, 1e4), (1000, 1e4), (10**5, 1000.0), (10**7, 100.0)):
        assert partition.within_reach(batches, sigma) == (batches, sigma)


def test_gaussian_filters_are_worth_a_gaussian_or_are_refused() -> None:
    assert GaussianFilter(5e11).worth == Gaussian(1e-6)
    with pytest.raises(BadInput, match=r"rho is .*: expected a number from 1e-24 to 5e\+11"):
        GaussianFilter(5.1e11)
    # for the group it may be more than any Gaussian, and has a figure all the same
    for k in (1, 10, 10_000):
        found = accountant.guarantee(GaussianFilter(1e10), Adjacency.ZERO_OUT, 1e-5, group_size=k)
        assert 1e10 * k**2 < found.epsilon < 1.01e10 * k**2


def test_many_mechanisms_are_refused() -> None:
    many = tuple(PoissonSampled(1e-4 * (i + 1), Gaussian(2.0)) for i in range(1001))
    for event in (
        Composed(many),
        Parallel(many),
        Composed((Parallel(many[:501]), Parallel(many[500:]))),
    ):
        with pytest.raises(
            UnsupportedEvent,
            match=r"different mechanisms: at most 1000 .* Use fewer sampling rates",
        ):
            accountant.guarantee(event, Adjacency.ZERO_OUT, 1e-5)
    levels = Composed(tuple(PoissonSampled(0.1, Gaussian(2 + 1e-3 * i)) for i in range(5000)))
    assert accountant.guarantee(levels, Adjacency.ZERO_OUT, 1e-5).epsilon > 0


def test_deltas_below_all_rounding_have_no_pld() -> None:
    event = PoissonSampled(0.1, Gaussian(2.0))
    with pytest.raises(UnsupportedEvent, match="deltas below 1e-18"):
        pld.epsilon(event, 1e-19)
    with pytest.raises(UnsupportedEvent, match="deltas below 1e-18"):
        accountant.by_pld(event, 1e-19, 3)
    # The bound on rounding suits the delta that is asked for, so that there is a figure right
    # above.
    assert pld.epsilon(event, 2e-18) < accountant.by_rdp(event, 2e-18, 1)
    assert accountant.guarantee(event, Adjacency.ZERO_OUT, 1e-19).method == "rdp"


def test_groups_have_a_largest_size() -> None:
    with pytest.raises(BadInput, match="group_size is above 10,000"):
        accountant.guarantees(Gaussian(100.0), Adjacency.ZERO_OUT, 1e-5, group_size=10**6 + 1)


@pytest.mark.parametrize("mean", [0.5, 1e10, float("nan"), True])
def test_repetitions_that_cannot_be_are_refused(mean: float) -> None:
    with pytest.raises(BadInput, match=r"mean is .*: expected a number from 1 to 1e"):
        RepeatAndSelect(Gaussian(3.0), mean, 1.0)


def test_hardly_any_noise_has_no_lower_bound_for_shuffling(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UnsupportedEvent, match="hardly any noise"):
        lower_bound(FixedBatches(Gaussian(0.01)), 10, Adjacency.ZERO_OUT, 1e-5)
    plan = (
        "--batch-size",
        "600",
        "--noise-multiplier",
        "0.01",
        "--epochs",
        "4",
        "--sampling",
        "shuffle",
    )
    assert main(["budget", "--examples", "6000", *plan]) == 0
    assert "shuffle-2024" not in capsys.readouterr().out


def test_the_lower_bound_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """dp-accounting is an extra: without it there is no lower bound, and everything else is as it
    was.
    """
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)
    event = Repeated(FixedBatches(Gaussian(1.0)), 3)
    with pytest.raises(UnsupportedEvent, match=re.escape("pip install 'privlearn[comparison]'")):
        lower_bound(event, 50, Adjacency.ZERO_OUT, 1e-5)
    assert not comparisons.installed()
    assert accountant.guarantee(event, Adjacency.ZERO_OUT, 1e-5).epsilon > 0
