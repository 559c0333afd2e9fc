"""Runs that depart from what they were approved for: whatever a ledger accepts stays within its
budget.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from privlearn.core.accounting import accountant
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, Event, Repeated, compose, tally, walk
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import (
    ZCDP,
    FixedBatches,
    Gaussian,
    Laplace,
    PoissonSampled,
)
from privlearn.errors import PrivlearnError

EMPTY, DELTA = Adjacency.ZERO_OUT, 1e-5
DEPARTURES = (
    "one more",
    "less noise",
    "two at once",
    "another order",
    "another mechanism",
    "from the end",
)


def approved(draw: random.Random) -> Composed:
    """A few runs of a few mechanisms, which are hardly ever all alike."""
    kinds = [
        lambda: Gaussian(draw.choice((4.0, 6.0, 9.0))),
        lambda: FixedBatches(Gaussian(draw.choice((5.0, 7.0)))),
        lambda: PoissonSampled(0.1, Gaussian(draw.choice((2.0, 3.0)))),
        lambda: ZCDP(0.01),
    ]
    few = draw.sample(kinds, 2) if draw.random() < 0.7 else [kinds[0]]
    return compose(
        [Repeated(draw.choice(few)(), draw.randint(1, 4)) for _ in range(draw.randint(1, 4))]
    )


def just_enough(event: Event) -> Budget:
    """What `event` costs, and a thousandth: less than any one charge."""
    return Budget(accountant.guarantee(event, EMPTY, DELTA).epsilon * 1.001, DELTA)


def departing(event: Composed, kind: str, draw: random.Random) -> Iterator[Event]:
    """Single charges that follow `event`, and depart from it somewhere."""
    charges = [leaf for leaf, times in walk(event) for _ in range(times)]
    at = draw.randrange(len(charges))
    match kind:
        case "one more":
            yield from [*charges, charges[-1]]
        case "less noise":
            yield from [*charges[:at], _louder(charges[at]), *charges[at + 1 :]]
        case "two at once":
            yield from [*charges[:at], Repeated(charges[at], 2), *charges[at + 1 :]]
        case "another order":
            draw.shuffle(charges)
            yield from [*charges, charges[-1]]
        case "another mechanism":
            yield from [*charges[:at], Laplace(0.5), *charges[at + 1 :]]
        case "from the end":
            yield from [*charges[::-1], charges[0]]


def _louder(leaf: Event) -> Event:
    match leaf:
        case Gaussian(sigma):
            return Gaussian(0.7 * sigma)
        case FixedBatches(Gaussian(sigma)):
            return FixedBatches(Gaussian(0.7 * sigma))
        case PoissonSampled(rate, Gaussian(sigma)):
            return PoissonSampled(rate, Gaussian(0.7 * sigma))
    return ZCDP(0.02)


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("kind", DEPARTURES)
def test_departures_from_an_approved_run_are_checked_against_the_budget(
    kind: str, where: str, tmp_path: Path
) -> None:
    """The budget is what the approved run costs: each of these departures has a charge too many."""
    draw = random.Random(f"{kind} {where}")
    for trial in range(6):
        event = approved(draw)
        budget = just_enough(event)
        ledger = (
            Ledger(budget) if where == "memory" else Ledger.open(tmp_path / f"{trial}.json", budget)
        )
        ledger.begin(event, EMPTY)
        accepted, refused = [], 0
        for charge in departing(event, kind, draw):
            try:
                ledger.charge(charge, EMPTY)
                accepted.append(charge)
            except PrivlearnError:  # whoever departs goes on all the same
                refused += 1
        assert refused > 0, (event, accepted)
        spent = accountant.guarantee(compose(accepted), EMPTY, DELTA).epsilon if accepted else 0.0
        assert spent <= budget.limit, (event, accepted, spent)
        booked = tally(ledger.event)
        assert all(booked.get(leaf, 0) >= times for leaf, times in tally(compose(accepted)).items())


def test_a_run_as_it_was_approved_is_charged_to_its_end(tmp_path: Path) -> None:
    draw = random.Random(0)
    for trial in range(8):
        event = approved(draw)
        budget = just_enough(event)
        ledger = Ledger(budget) if trial % 2 else Ledger.open(tmp_path / f"{trial}.json", budget)
        ledger.begin(event, EMPTY)
        for leaf, times in walk(event):
            for _ in range(times):
                ledger.charge(leaf, EMPTY)
        ledger.settle()
        assert ledger.event == event
