"""What is claimed for a run whose ledger also holds other runs on the same data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from privlearn.accounting import accountant
from privlearn.accounting.events import Composed, Event, compose, tally
from privlearn.accounting.filters import Limit, fits
from privlearn.accounting.guarantee import Guarantee, rounded_up
from privlearn.accounting.ledger import Ledger
from privlearn.errors import BadInput, PrivlearnError

#: What the claim is for, as certificates say it.
FIXED = "for all runs together, which were fixed before the first release"
ADAPTIVE = "for all runs together, which may have been chosen after earlier results: the ledger's limit"
ALONE = "for this run alone: other runs, which may have been chosen after earlier results, are not limited"


def stated(ledger: Ledger, described: Event, delta: float) -> tuple[Composed, Guarantee, dict[str, Any] | None]:
    """The event that a certificate is about, its guarantee, and what it says of the other runs; None if there are none.

    Args:
        ledger: what the run was charged to.
        described: the events of the run, by its plan.
        delta: where epsilon is stated.

    Raises:
        UnsupportedEvent: there is no guarantee to state.
        BadInput: the ledger does not hold the run.
    """
    if not ledger.adaptive:
        ledger.guarantee(delta)  # what has no guarantee is refused as that
    # What a run that was left early did not release is claimed all the same: it was approved.
    if not _among(described, ledger.event if ledger.adaptive else ledger.claim):
        raise BadInput("the plan has releases that the ledger does not hold: publish what a method returned, as it is")
    if not ledger.adaptive and tally(ledger.claim) == tally(described):
        return ledger.claim, ledger.guarantee(delta), None
    own = _priced(described, ledger, delta)
    if ledger.adaptive and ledger.budget is None:
        return compose([described]), own, figures(ALONE, own)
    return ledger.claim, ledger.guarantee(delta), figures(ADAPTIVE if ledger.adaptive else FIXED, own)


def contradictions(claim: dict[str, Any], event: Event, described: Event, claimed: Guarantee) -> list[str]:
    """What is wrong with what a certificate says of other runs.

    Args:
        claim: as it stands in the certificate.
        event: what the certificate is about.
        described: the events of the run, by its plan.
        claimed: the guarantee of `event`, recomputed.
    """
    if "ledger" not in claim:
        if tally(event) == tally(described):
            return []
        if not _among(described, event):
            return ["the plan has releases that are not among the certificate's events"]
        return ["the certificate's events are not those of its plan, and it does not speak of other runs"]
    said = claim["ledger"]
    try:
        own = accountant.guarantee(described, claimed.adjacency, claimed.delta, claimed.group_size)
        problems = (
            [] if _matches(said, own) else ["the certificate states another price of its run than its plan gives"]
        )
        match said["runs"]:
            case str(text) if text == ALONE:
                right = tally(event) == tally(described)
            case str(text) if text == FIXED:
                right = _among(described, event)
            case str(text) if text == ADAPTIVE:
                (limit,) = tally(event)
                right = tally(event)[limit] == 1 and isinstance(limit, Limit) and fits(limit, described)
            case _:
                right = False
    except (PrivlearnError, KeyError, TypeError, ValueError):
        return ["what the certificate says of other runs on its ledger cannot be checked"]
    if not right:
        problems.append("the plan has releases that are not among the certificate's events, or not within its limit")
    return problems


def card_lines(said: dict[str, Any]) -> list[str]:
    """What the card says of other runs."""
    own = f"This run by itself costs epsilon {rounded_up(said['run_epsilon'])}."
    other = "The ledger behind this model also holds other runs on the same data"
    texts = {
        FIXED: f"{other}, all fixed before the first release: the guarantee is for all of them together. {own}",
        ADAPTIVE: f"{other}, and runs may have been chosen after earlier results. The guarantee is the limit that the ledger "
        f"was begun with, for all of them together, whatever was spent of it. {own}",
        ALONE: f"{other}, which may have been chosen after earlier results, and it has no budget. The guarantee is for this "
        "run alone; there is none for all of them together.",
    }
    return [texts[said["runs"]], ""]


def _priced(event: Event, ledger: Ledger, delta: float) -> Guarantee:
    assert ledger.adjacency is not None
    unit = ledger.unit
    priced = accountant.guarantee(event, ledger.adjacency, delta, unit.group_size)
    return replace(priced, rows_per_person=unit.rows_per_person)


def figures(runs: str, own: Guarantee) -> dict[str, Any]:
    """What a certificate says of other runs: what the claim is for, and the price `own` of its run alone."""
    return {"runs": runs, "run_epsilon": own.epsilon, "run_method": own.method, "run_rho": own.rho}


def _matches(said: dict[str, Any], own: Guarantee) -> bool:
    true = figures(said["runs"], own)
    return set(said) == set(true) and all(_close(said[name], value) for name, value in true.items())


def _close(stated: Any, true: Any) -> bool:
    if isinstance(true, float) and isinstance(stated, float):
        return math.isclose(stated, true, rel_tol=1e-6, abs_tol=1e-12)
    return bool(type(stated) is type(true) and stated == true)


def _among(described: Event, event: Event) -> bool:
    counted = tally(event)
    return all(counted.get(leaf, 0) >= times for leaf, times in tally(described).items())
