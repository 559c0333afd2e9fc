"""Named checks of the ledger: what runs that are chosen after earlier results may reach, and how
much it can hold.
"""

from __future__ import annotations

import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from privlearn.core.accounting import accountant, filters, zcdp
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, Repeated, compose, tally
from privlearn.core.accounting.filters import PrivacyFilter, fits
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.accounting.ledgers.fit import least_budget
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.core.accounting.ledgers.ledger_state import LISTED, RunEntry
from privlearn.core.accounting.mechanisms import Gaussian, Laplace, PoissonSampled, PureDP
from privlearn.core.accounting.trees import Filter, GaussianFilter
from privlearn.errors import BadInput, BudgetExceeded, UnsupportedEvent
from tests.accounting.adaptive_oracle import TOLERANCE, Game, Run, as_charges, as_run
from tests.support.checks import check, must_raise

ADD = Adjacency.ADD_REMOVE
EPSILON, DELTA = 2.0, 1e-5
BUDGET = Budget(EPSILON, DELTA)
STEP = PoissonSampled(0.01, Gaussian(1.0))
SAMPLED = Repeated(STEP, 600)
FAMILIES = (
    lambda s: Run(Gaussian(s)),
    lambda s: Run(Repeated(PoissonSampled(0.001, Gaussian(0.45 * s)), 200)),
    lambda s: Run(Repeated(PoissonSampled(0.01, Gaussian(s)), 500)),
    lambda s: Run(Laplace(s)),
)
GAUSSIANS = (lambda s: Run(Gaussian(s)), lambda s: Run(Repeated(Gaussian(3 * s), 4)))


@dataclass(frozen=True)
class Planned:
    """The least of a plan."""

    events: Event
    neighbours: Adjacency = ADD
    unit: PrivacyUnit = PrivacyUnit()  # noqa: RUF009 - a frozen value

    def event(self) -> Any:
        return compose([self.events])


def in_file() -> Ledger:
    path = Path(tempfile.mkdtemp()) / "ledger"
    return Ledger.open(path, BUDGET)


def with_plans() -> Ledger:
    ledger = Ledger(BUDGET)
    ledger.approve(*PLANS)
    return ledger


PLANS = (Planned(Repeated(STEP, 500)), Planned(Gaussian(6.0)))


def require_no_more_than_claimed(game: Game, claimed: float = DELTA) -> float:
    """The best that an adversary reaches at the epsilon that is claimed."""
    reached = game.delta(EPSILON)
    assert reached <= TOLERANCE * claimed, reached
    return reached


@check
def check_runs_chosen_after_results_stay_within_a_ledgers_claim() -> None:
    """The attack on pricing by privacy loss distributions or the best Renyi order: 2.5e-5 for a
    claim of 1e-5.
    """
    first = Run(SAMPLED)
    reached = require_no_more_than_claimed(Game(lambda: Ledger(BUDGET), as_run, [first], FAMILIES))
    assert reached > 1e-7  # it is a game that the adversary can play
    require_no_more_than_claimed(
        Game(lambda: Ledger(BUDGET), as_charges, [Run(STEP)], FAMILIES[1:3])
    )


@check
def check_runs_chosen_after_results_stay_within_a_file_ledgers_claim() -> None:
    require_no_more_than_claimed(Game(in_file, as_run, [Run(SAMPLED)], (FAMILIES[0], FAMILIES[2])))


@check
def check_what_an_early_stop_gives_back_is_spent_under_the_filter() -> None:
    """A run that nearly takes the budget as privacy loss distributions count, stopped after a first
    look.
    """
    whole = Repeated(PoissonSampled(0.01, Gaussian(1.0)), 1100)
    stopped = Run(whole, Repeated(PoissonSampled(0.01, Gaussian(1.0)), 600))
    assert EPSILON > accountant.guarantee(whole, ADD, DELTA).epsilon > 0.9 * EPSILON
    require_no_more_than_claimed(Game(lambda: Ledger(BUDGET), as_run, [stopped], FAMILIES))
    ledger = Ledger(BUDGET)
    as_run(ledger, stopped)
    assert ledger.guarantee(DELTA) == accountant.guarantee(
        whole, ADD, DELTA
    )  # never what was spent: that is an odometer
    assert ledger.spent(DELTA).kind == "estimate"
    assert ledger.spent(DELTA).epsilon < ledger.guarantee(DELTA).epsilon


@check
def check_a_gaussian_ledger_is_exact_and_takes_gaussians_alone() -> None:
    ledger = Ledger(BUDGET)
    reached = require_no_more_than_claimed(
        Game(lambda: Ledger(BUDGET), as_run, [Run(Gaussian(4.0))], GAUSSIANS, 3)
    )
    assert reached >= 0.98 * DELTA  # Gaussian filters cost nothing
    ledger.charge(Gaussian(4.0), ADD)
    must_raise(UnsupportedEvent, lambda: ledger.charge(Laplace(400.0), ADD))
    must_raise(UnsupportedEvent, lambda: ledger.begin(SAMPLED, ADD))
    room = math.sqrt(1 / (zcdp.gaussian_mu_for(EPSILON, DELTA) ** 2 - 1 / 16))
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(room * (1 - 1e-6)), ADD))
    ledger.charge(Gaussian(room * (1 + 1e-6)), ADD)
    assert math.isclose(ledger.guarantee(DELTA).epsilon, EPSILON, rel_tol=1e-9)


@check
def check_plans_that_were_approved_beforehand_are_fixed() -> None:
    """Both are priced by privacy loss distributions, whichever is run, and whatever the first one
    showed.
    """
    together = accountant.guarantee(compose([plan.events for plan in PLANS]), ADD, DELTA)
    ledger = with_plans()
    for plan in PLANS:
        ledger.begin(plan.event(), ADD)
        ledger.charge(plan.events, ADD)
        ledger.settle()
        assert ledger.guarantee(DELTA) == together
    assert not ledger.adaptive
    assert ledger.event == compose([plan.events for plan in PLANS])
    only = with_plans()
    as_run(only, Run(PLANS[0].events))
    # that the other was never run may follow from the first
    assert only.guarantee(DELTA) == together
    must_raise(
        BudgetExceeded, lambda: Ledger(Budget(together.epsilon * 0.999, DELTA)).approve(*PLANS)
    )
    refused = Ledger(Budget(together.epsilon * 0.999, DELTA))
    must_raise(BudgetExceeded, lambda: refused.approve(*PLANS))
    assert refused.event == compose([]) and refused.adjacency is None  # noqa: PT018 - all of them, or none
    must_raise(BadInput, lambda: refused.approve())


@check
def check_other_runs_after_approved_plans_are_adaptive() -> None:
    families = (FAMILIES[0], FAMILIES[2])
    require_no_more_than_claimed(Game(with_plans, as_run, [Run(PLANS[0].events)], families))
    ledger = with_plans()
    as_run(ledger, Run(PLANS[0].events))
    ledger.charge(Gaussian(300.0), ADD)
    assert ledger.adaptive
    assert math.isclose(ledger.guarantee(DELTA).epsilon, EPSILON, rel_tol=1e-9)
    assert tally(ledger.claim) == {ledger.limit: 1}


@check
def check_filters_hold_against_an_adversary() -> None:
    """Every other account that releases can be charged to."""
    rho = zcdp.rho_for(EPSILON, DELTA)
    mu = zcdp.gaussian_mu_for(EPSILON, DELTA)
    priced = FAMILIES[0], FAMILIES[3]
    games = [
        Game(
            lambda: PrivacyFilter(Ledger(), Filter(rho), ADD),
            as_charges,
            [Run(Gaussian(5.0)), Run(PureDP(0.1))],
            priced,
        ),
        Game(
            lambda: PrivacyFilter(Ledger(), GaussianFilter(mu**2 / 2), ADD),
            as_charges,
            [Run(Gaussian(5.0))],
            GAUSSIANS,
        ),
        Game(renyi, as_charges, [Run(SAMPLED)], FAMILIES[1:]),
    ]
    for game in games:
        assert require_no_more_than_claimed(game) > 1e-8


def renyi() -> PrivacyFilter:
    limit = filters.of_ledger(BUDGET, SAMPLED, ADD, None)
    assert isinstance(limit, Filter)
    return PrivacyFilter(Ledger(), limit, ADD)


@check
def check_a_ledgers_measure_is_fixed_by_its_first_run() -> None:
    """The limit follows from what was declared before the first release, and from nothing that
    comes later.
    """
    for first, kind in ((Gaussian(4.0), GaussianFilter), (SAMPLED, Filter), (Laplace(3.0), Filter)):
        ledger = Ledger(BUDGET)
        as_run(ledger, Run(first))
        limit = ledger.limit
        assert isinstance(limit, kind)
        assert limit == filters.of_ledger(BUDGET, compose([first]), ADD, None)
        for later in (Gaussian(50.0), Gaussian(20.0)):
            as_run(ledger, Run(later))
            assert ledger.limit == limit
        assert accountant.guarantee(limit, ADD, DELTA).epsilon <= EPSILON * (1 + 1e-12)
    for measure in ("renyi", 8):
        asked = Ledger(BUDGET, measure=measure)
        # by default, Gaussians alone
        for event in (Gaussian(6.0), Repeated(PoissonSampled(0.01, Gaussian(1.5)), 100)):
            as_run(asked, Run(event))
        assert isinstance(asked.limit, Filter)
        assert asked.limit.orders == ((8.0,) if measure == 8 else (10.2,))
    must_raise(UnsupportedEvent, lambda: Ledger(BUDGET, measure="gaussian").begin(SAMPLED, ADD))


@check
def check_ledgers_of_rho_are_zcdp_filters() -> None:
    ledger = Ledger(Budget(rho=0.2))
    for _ in range(40):
        ledger.charge(Gaussian(10.0), ADD)
    assert ledger.limit is not None and fits(ledger.limit, ledger.event)  # noqa: PT018
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(1e4), ADD))
    assert math.isclose(
        ledger.guarantee(DELTA).epsilon, zcdp.epsilon_of_rho(0.2, DELTA), rel_tol=1e-9
    )
    group = Ledger(Budget(rho=0.2, group_size=2))
    for _ in range(10):
        group.charge(Gaussian(10.0), ADD)
    must_raise(BudgetExceeded, lambda: group.charge(Gaussian(1e4), ADD))
    assert math.isclose(
        group.guarantee(DELTA).epsilon, zcdp.epsilon_of_rho(0.2, DELTA), rel_tol=1e-9
    )


@check
def check_groups_are_let_through_as_groups() -> None:
    """k examples together: a Gaussian costs k^2 as much, and a Renyi filter is priced in k
    steps.
    """
    single, group = (Ledger(Budget(EPSILON, DELTA, group_size=k)) for k in (1, 3))
    single.charge(Gaussian(8.0), ADD)
    group.charge(Gaussian(24.0), ADD)
    assert single.limit is not None and group.limit is not None  # noqa: PT018
    assert math.isclose(zcdp.rho(single.limit), 9 * zcdp.rho(group.limit), rel_tol=1e-9)
    sampled = Ledger(Budget(8.0, DELTA, group_size=2))
    for steps in (100, 10):
        sampled.begin(Repeated(STEP, steps), ADD, PrivacyUnit(2))
        sampled.charge(Repeated(STEP, steps), ADD)
        sampled.settle()
    assert sampled.guarantee(DELTA).epsilon <= 8.0 * (1 + 1e-12)


@check
def check_a_ledger_that_only_records_claims_nothing_for_runs_together() -> None:
    ledger = Ledger()
    ledger.charge(Gaussian(4.0), ADD)
    assert ledger.guarantee(DELTA) == accountant.guarantee(Gaussian(4.0), ADD, DELTA)
    ledger.charge(Gaussian(4.0), ADD)
    must_raise(UnsupportedEvent, lambda: ledger.guarantee(DELTA))
    assert (
        ledger.spent(DELTA).epsilon
        == accountant.guarantee(Repeated(Gaussian(4.0), 2), ADD, DELTA).epsilon
    )


@check
def check_a_release_beyond_the_approved_number_is_checked() -> None:
    for approved in (
        Repeated(Gaussian(2.0), 3),
        compose([Gaussian(2.0), Gaussian(3.0), Gaussian(2.0)]),
    ):
        ledger = Ledger(
            Budget(zcdp.gaussian_epsilon(zcdp.gaussian_mu(approved) or 0.0, DELTA), DELTA)
        )
        ledger.begin(approved, ADD)
        for leaf, times in [
            (leaf, n) for part in approved_parts(approved) for leaf, n in tally(part).items()
        ]:
            for _ in range(times):
                ledger.charge(leaf, ADD)
        must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(2.0), ADD))  # noqa: B023
        assert ledger.event == compose([approved])
    tight = Ledger(Budget(zcdp.gaussian_epsilon(math.sqrt(3) / 20, DELTA), DELTA))
    tight.begin(Repeated(Gaussian(20.0), 3), ADD)
    must_raise(BudgetExceeded, lambda: tight.charge(Repeated(Gaussian(20.0), 4), ADD))


def approved_parts(event: Event) -> list[Event]:
    return list(compose([event]).events)


@check
def check_a_guard_is_for_one_kind_of_neighbour() -> None:
    guard = Ledger.allowing(Gaussian(2.0), ADD)
    must_raise(BudgetExceeded, lambda: guard.begin(Gaussian(2.0), Adjacency.ZERO_OUT))
    must_raise(BudgetExceeded, lambda: guard.charge(Gaussian(2.0), Adjacency.ZERO_OUT))
    guard.charge(Gaussian(2.0), ADD)
    must_raise(BudgetExceeded, lambda: guard.charge(Gaussian(2.0), ADD))


@check
def check_very_many_entries_are_summed_up() -> None:
    """Older closed entries become one, which counts equal events; the limit, and what was spent,
    stay as they were.
    """
    path = Path(tempfile.mkdtemp()) / "ledger"
    ledger = Ledger.open(path, Budget(rho=10.0))
    ledger.charge(Gaussian(30.0), ADD)
    book = LedgerFile(path)
    with book.editing() as pages:
        for n in range(2 * LISTED + 500):
            pages.charge(pages.add(RunEntry.new("one of many")), Gaussian(40.0 + n % 3))
    pages = book.read()
    assert LISTED <= len(pages.entries) <= 2 * LISTED + 2
    [summed] = [entry for entry in pages.entries if entry.id == "earlier"]
    assert int(summed.what.split()[0]) + len(pages.entries) - 1 == 2 * LISTED + 501
    assert len(summed.spent.events) == 3
    counts = tally(pages.event)
    assert counts[Gaussian(30.0)] == 1
    assert sum(counts.values()) == 2 * LISTED + 501
    with book.editing() as pages:
        for n in range(2 * LISTED):
            pages.charge(pages.add(RunEntry.new("one of many")), Gaussian(40.0 + n % 3))
    assert sum(tally(book.read().event).values()) == 4 * LISTED + 501
    assert Ledger.open(path).limit == ledger.limit


@check
def check_ledgers_of_the_first_version_are_read_as_adaptive() -> None:
    """Which runs were fixed beforehand is not known of them, so their later runs count as
    chosen.
    """
    from privlearn._storage import digest
    from privlearn.core.accounting.events import to_json

    def entry(name: str, event: Event) -> dict[str, Any]:
        texts = {"id": name, "what": "", "by": "somebody", "begun": "2026-01-01T00:00:00+00:00"}
        return {
            **texts,
            "open": False,
            "held": to_json(compose([])),
            "spent": to_json(compose([event])),
        }

    body = {
        "budget": {"epsilon": EPSILON, "delta": DELTA, "rho": None, "group_size": 1},
        "adjacency": "add_remove",
        "unit": {"group_size": 1, "rows_per_person": None},
        "entries": [entry("a", SAMPLED), entry("b", Gaussian(8.0))],
    }
    path = Path(tempfile.mkdtemp()) / "ledger"
    path.write_text(
        json.dumps({"format": "privlearn-ledger", "version": 1, **body, "digest": digest(body)})
    )
    ledger = Ledger.open(path)
    assert ledger.adaptive
    assert math.isclose(ledger.guarantee(DELTA).epsilon, EPSILON, rel_tol=1e-9)
    body["entries"].append(entry("c", Gaussian(2.83)))
    path.write_text(
        json.dumps({"format": "privlearn-ledger", "version": 1, **body, "digest": digest(body)})
    )
    full = Ledger.open(path)
    must_raise(UnsupportedEvent, lambda: full.guarantee(DELTA))
    must_raise(BudgetExceeded, lambda: full.charge(Gaussian(1e4), ADD))


@check
def check_a_run_that_departs_from_its_plan_ends() -> None:
    """What it had not spent is free, and its approval is no longer good for anything."""
    ledger = Ledger(Budget(rho=1.0))
    ledger.begin(Repeated(Gaussian(2.0), 8), ADD)
    ledger.charge(Gaussian(2.0), ADD)
    ledger.charge(Gaussian(1.0), ADD)
    assert ledger.event == compose([Gaussian(2.0), Gaussian(1.0)])
    for _ in range(3):
        ledger.charge(Gaussian(2.0), ADD)
    must_raise(BudgetExceeded, lambda: ledger.charge(Gaussian(100.0), ADD))


@check
def check_single_charges_after_the_first_are_adaptive() -> None:
    """The first charge is declared by being asked for; the others come after a release."""
    ledger = Ledger(BUDGET)
    ledger.charge(Gaussian(8.0), ADD)
    assert not ledger.adaptive
    limit = ledger.limit
    for _ in range(3):
        ledger.charge(Gaussian(8.0), ADD)
    assert ledger.adaptive
    assert ledger.limit == limit
    assert math.isclose(ledger.guarantee(DELTA).epsilon, EPSILON, rel_tol=1e-9)


@check
def check_what_filters_cost() -> None:
    """The table of docs/accounting.md: what as many runs cost, fixed beforehand and chosen one
    after another.
    """
    for run, fixed, chosen in (
        (Repeated(PoissonSampled(1 / 15, Gaussian(5.397)), 450), (1.458, 2.420), (1.591, 2.628)),
        (Gaussian(3.732), (1.465, 2.441), (1.465, 2.441)),
    ):
        for times, if_fixed, if_chosen in zip((2, 5), fixed, chosen, strict=True):
            whole = compose([run] * times)
            price = accountant.guarantee(whole, ADD, DELTA).epsilon
            assert math.isclose(price, if_fixed, abs_tol=2e-3), price
            least = least_budget(Budget(price, DELTA), compose([run]), whole, ADD)
            assert math.isclose(least.epsilon or 0.0, if_chosen, abs_tol=2e-3), least
            ledger = Ledger(Budget((least.epsilon or 0.0) * (1 + 1e-6), DELTA))
            for _ in range(times):
                as_run(ledger, Run(run))
            must_raise(BudgetExceeded, lambda: as_run(ledger, Run(run)))  # noqa: B023


@check
def check_a_charge_takes_up_its_approval() -> None:
    """Releases that were approved ahead are charged once, and are fixed like plans."""
    ledger = Ledger(BUDGET)
    ledger.approve(Releases(Gaussian(6.0), ADD), PLANS[0])
    ledger.charge(Gaussian(6.0), ADD)
    as_run(ledger, Run(PLANS[0].events))
    assert not ledger.adaptive
    both = compose([Gaussian(6.0), PLANS[0].events])
    assert tally(ledger.event) == tally(both)
    assert ledger.guarantee(DELTA).epsilon == accountant.guarantee(both, ADD, DELTA).epsilon
    ledger.charge(Gaussian(300.0), ADD)
    assert ledger.adaptive


def _at_once(charge: Callable[[], None]) -> int:
    """How many of two charges in two threads are accepted."""
    accepted: list[bool] = []

    def work() -> None:
        with suppress(BudgetExceeded):
            charge()
            accepted.append(True)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(accepted)


def _wait_for(other: threading.Barrier) -> None:
    """Wait until the other thread is here, too, or for a moment if it does not come."""
    with suppress(threading.BrokenBarrierError):
        other.wait(0.2)


def _meeting(ledger: Ledger) -> Ledger:
    """The ledger, where two threads that change it at once would both see the same state."""
    both, editing = threading.Barrier(2), ledger._run.store.editing

    @contextmanager
    def slowly() -> Iterator[Any]:
        with editing() as state:
            _wait_for(both)
            yield state

    ledger._run.store.editing = slowly  # type: ignore[method-assign]
    return ledger


@check
def check_charges_of_two_threads_are_both_counted() -> None:
    """Of two charges at once, of which the budget has room for one, one is accepted; of two that
    fit, none gets lost. So it is for beginnings of runs, and for releases through a filter.
    """
    tenth = Gaussian(math.sqrt(5))  # of rho
    for rho, fitting in ((0.15, 1), (1.0, 2)):
        ledger = _meeting(Ledger(Budget(rho=rho)))
        assert _at_once(partial(ledger.charge, tenth, ADD)) == fitting
        assert math.isclose(zcdp.rho(ledger.event), 0.1 * fitting)
        opened, both = PrivacyFilter(Ledger(), Filter(rho=rho), ADD), threading.Barrier(2)
        has_room = opened.has_room

        def looking(
            event: Event,
            has_room: Callable[[Event], bool] = has_room,
            both: threading.Barrier = both,
        ) -> bool:
            room = has_room(event)
            _wait_for(both)
            return room

        opened.has_room = looking  # type: ignore[method-assign]
        assert _at_once(partial(opened.charge, tenth, ADD)) == fitting
        assert math.isclose(zcdp.rho(opened.spent()), 0.1 * fitting)
    ledger = _meeting(Ledger(Budget(rho=1.0)))
    assert _at_once(partial(ledger.begin, compose([tenth]), ADD)) == 2
    assert len(ledger._state().entries) == 2  # a run that another one follows is closed
