"""Whether a ledger has room for a plan, as `privlearn budget` and `train --dry-run` say it."""

from __future__ import annotations

import math
from typing import Any

from privlearn.cli import in_options, screen
from privlearn.cli.request import Request
from privlearn.core.accounting import accountant
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.events import tally
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.addresses import database_at
from privlearn.core.accounting.ledgers.ledger_database import LedgerDatabase
from privlearn.core.accounting.ledgers.room import with_noise
from privlearn.core.accounting.ledgers.similar_names import words_on_similar
from privlearn.core.accounting.searches import bisect, bracket
from privlearn.errors import BadInput, PrivlearnError

#: How close to the largest run that fits its noise is searched for, as a share.
_TOLERANCE = 0.005
#: The least factor of the noise that is tried; its inverse is the largest.
_LEAST = 1e-3
#: Different releases in a plan from which on each try takes too long.
_MANY = 8


def open_ledger(request: Request, what: str = "") -> Ledger:
    """The ledger that `--ledger` names, for approvals of `what`.

    Raises:
        BadInput: it isn't there, or can't be read.
    """
    require_ledger(database_at(request.ledger))
    return Ledger.open(
        request.ledger, what=what, data_set=request.ledger_data, anchor=request.anchor
    )


def require_ledger(database: LedgerDatabase) -> None:
    """Raise `BadInput` where there is no ledger; it names one beside it that may be meant."""
    if database.exists():
        return
    near = words_on_similar(database.path)
    raise BadInput(
        f"there is no ledger {database.path}{near}: check the name, or begin one with `privlearn "
        f"ledger {database.path} --epsilon E --delta D`"
    )


def describe_room(ledger: Ledger, plan: Planned, delta: float, command: str) -> dict[str, Any]:
    """Whether a ledger has room for `plan`, for how many such runs, and for how
    large a run of its form, in plain values. Nothing is charged or set aside.

    Args:
        ledger: the ledger.
        plan: of one run.
        delta: at which its guarantee is stated.
        command: whose options the words name.
    """
    say_other_delta(ledger, delta)
    fit = ledger.fits(plan)
    largest = None if fit.runs is None else find_largest_epsilon(ledger, plan, delta)
    return {
        "room": {
            "ledger": str(ledger.path),
            "fits": bool(fit),
            "runs": fit.runs,
            "largest_epsilon": largest,
            "text": in_options(str(fit), command),
        }
    }


def say_other_delta(ledger: Ledger, delta: float) -> None:
    """Note that a run states its guarantee at another delta than the ledger's budget has."""
    budget = ledger.budget
    if budget is not None and budget.epsilon is not None and budget.delta != delta:
        screen.notes.print(
            f"the ledger {ledger.path} has a budget of {budget}, and this run states its guarantee "
            f"at delta {delta:g}, where epsilon may be larger than the budget's"
        )


def find_largest_epsilon(ledger: Ledger, plan: Planned, delta: float) -> float | None:
    """The epsilon of the largest run that has room: of the releases of `plan`, with as much noise
    as it takes; None if no noise does, or it isn't known.

    Nothing rests on it: a run of that size is priced as any other.
    """
    event = plan.event()
    if len(tally(event)) > _MANY:
        return None

    def fits(factor: float) -> bool:
        try:
            ledger.require_room(with_noise(event, factor), plan.neighbours, plan.unit)
        except PrivlearnError:
            return False
        return True

    try:
        with_noise(event, 1.0)
        low, high = bracket(fits, 1.0, most=1 / _LEAST)
        if math.isinf(high):
            return None
        while low == 0.0 and high > _LEAST and fits(high / 2):
            high /= 2
        _, factor = bisect(fits, low or high / 2, high, _TOLERANCE, geometric=True)
        return accountant.guarantee(
            with_noise(event, factor), plan.neighbours, delta, plan.unit.group_size
        ).epsilon
    except PrivlearnError:  # other noise, or no price
        return None
