"""A certificate states the plan of a run, which events happened, what they cost, and which files it
speaks of.

Plans are read back by a closed table, with every check of their class, and never with torch.

It proves arithmetic: that these events give this epsilon, and that these are the weights. That this
was the run is the publisher's word. Where the ledger also holds other runs on the same data, it
says what is claimed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privlearn._public import from_json, is_registered
from privlearn._storage import digest, loads
from privlearn._texts import for_html, for_yaml
from privlearn.core import transform as transforms
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Composed, Event, compose, tally, to_json
from privlearn.core.accounting.filters import Limit, fits
from privlearn.core.accounting.guarantee import Guarantee, PrivacyUnit
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.plan import AbstractPlan
from privlearn.errors import BadInput, PrivlearnError
from privlearn.methods import CHOICES, METHODS
from privlearn.publishing.folder import CERTIFICATE

if TYPE_CHECKING:
    from privlearn.core.accounting.ledger import Ledger

#: The parts of a certificate, each with a digest of its own.
PARTS = ("claim", "plan", "facts", "events", "randomness", "files")
#: The fact that test metrics were released with noise: its multiplier.
PAID = "paid_metrics"
#: The fact that holds the digest of the last row of the run's ledger when it was published.
HEAD = "ledger_head"
#: Of the whole form. It changes whenever the meaning of a certificate would.
VERSION = 2
FORMAT = "privlearn-certificate"
#: How the random numbers of a run began: with a seed that someone may know, or not.
RANDOMNESS = ("seeded", "operating system")
_FIELDS = {"format", "version", *PARTS, "digests"}


def make(
    event: Event,
    guarantee: Guarantee,
    plan: AbstractPlan,
    facts: dict[str, Any],
    seeded: bool,
    files: dict[str, bytes],
    others: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the certificate of a run as plain JSON values.

    Args:
        event: all that the claim is about.
        guarantee: the claim.
        plan: of the run.
        facts: public values that only the run could tell.
        seeded: whether anyone may know the seed.
        files: what else lies in the folder, by name.
        others: what is said of other runs on the ledger, if there are any.
    """
    claim = {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "adjacency": guarantee.adjacency.value,
        "method": guarantee.method,
        "rho": guarantee.rho,
        "unit": str(guarantee.unit),
        **guarantee.unit.figures(),
        **({"ledger": others} if others else {}),
    }
    body = {
        "claim": claim,
        "plan": plan.to_json(),
        "facts": facts,
        "events": to_json(event),
        "randomness": RANDOMNESS[0 if seeded else 1],
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    digests = {part: digest(value) for part, value in body.items()}
    return {"format": FORMAT, "version": VERSION, **body, "digests": digests}


def parse(content: bytes) -> dict[str, Any]:
    """Read a certificate; duplicate keys, numbers that are none and unknown fields are refused.

    Raises:
        BadInput: it is no certificate of this version.
    """
    try:
        data = loads(content)
    except ValueError as error:
        raise BadInput(
            f"{CERTIFICATE} is not readable JSON: {error}. Get an unchanged copy"
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadInput(
            f"{CERTIFICATE} is not a certificate of privlearn: its format is not {FORMAT!r}"
        )
    if type(data.get("version")) is not int or data["version"] != VERSION:
        raise BadInput(
            f"{CERTIFICATE} has version {str(data.get('version'))[:40]}: this privlearn reads "
            f"version {VERSION} alone, in which a certificate carries its plan. Use a matching "
            "privlearn, or publish again"
        )
    if not _FIELDS <= set(data) <= _FIELDS | {"signature"}:
        strange = sorted((set(data) - {"signature"}) ^ _FIELDS)
        raise BadInput(
            f"{CERTIFICATE} lacks or adds the fields {str(strange)[:200]}: expected "
            f"{', '.join(sorted(_FIELDS))}, and perhaps signature"
        )
    return data


def header(*claim: object) -> str:
    """The head of the card that belongs to a claim: what a reader sees first, and what `verify`
    compares.

    Args:
        claim: epsilon, delta, adjacency, unit, and the fingerprint of the key that signs it, or
            None.
    """
    lines = ["---", "library_name: privlearn", "tags: [differential-privacy]"]
    lines += [f"{name}: {for_yaml(value)}" for name, value in _in_front(*claim).items()]
    return "\n".join([*lines, "---", "", ""])


def page_head(*claim: object) -> str:
    """As `header`, of the page `card.html`: its first lines."""
    lines = ["<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">']
    figures = {name: for_html(value) for name, value in _in_front(*claim).items()}
    lines += [f'<meta name="{name}" content="{value}">' for name, value in figures.items()]
    title = (
        f"A model trained with differential privacy: epsilon {figures['epsilon']}, delta "
        f"{figures['delta']}"
    )
    return "\n".join([*lines, f"<title>{title}</title>", ""])


def _in_front(
    epsilon: object, delta: object, adjacency: object, unit: object, signed_by: object
) -> dict[str, object]:
    """What both cards begin with, by name."""
    figures = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    figures |= {"unit": unit} if str(unit) != str(PrivacyUnit()) else {}
    return figures | ({"signed_by": signed_by} if signed_by else {})


#: Epochs of all candidates together that are priced: more would take minutes.
_MOST_EPOCHS = 1_000_000


def read_plan(data: Any) -> AbstractPlan:
    """The plan that `AbstractPlan.to_json` wrote as `data`: what strangers wrote.

    Raises:
        BadInput: no such plan, or values that no plan has.
        UnsupportedEvent: it is not priced for its kind of neighbour.
    """
    transforms.kinds()  # which plans hold
    known = [*(kind for method in METHODS.values() for kind in method.plans), *CHOICES]
    if isinstance(data, dict) and data.get("kind") not in known:
        from privlearn.methods.installed import installed_methods  # seldom needed

        installed_methods()  # one of them may know the kind
    plan: AbstractPlan = from_json(data)
    known = [*(kind for method in METHODS.values() for kind in method.plans), *CHOICES]
    if not _is_plan(plan, known):
        raise BadInput(
            f"the plan is {repr(plan)[:40]}: expected one of the kinds {', '.join(known)}"
        )
    if not all(_is_plan(training, known) for training in plan.trainings):
        raise BadInput(
            "a candidate of the plan has a plan of no method: expected one of a method's run"
        )
    if (
        plan.trainings
        and sum(getattr(training, "epochs", 1) for training in plan.trainings) > _MOST_EPOCHS
    ):
        raise BadInput(
            f"the candidates of the plan have more than {_MOST_EPOCHS:,} epochs: expected fewer"
        )
    return plan


def _is_plan(value: object, known: Collection[str]) -> bool:
    """Whether a value is a plan of one of the kinds, of each of which there is one class."""
    return isinstance(value, AbstractPlan) and is_registered(value) and value.kind in known


#: What the claim is for, as certificates say it.
FIXED = "for all runs together, which were fixed before the first release"
ADAPTIVE = (
    "for all runs together, which may have been chosen after earlier results: the ledger's limit"
)
ALONE = (
    "for this run alone: other runs, which may have been chosen after earlier results, are not "
    "limited"
)


def stated(
    ledger: Ledger, described: Event, delta: float
) -> tuple[Composed, Guarantee, dict[str, Any] | None]:
    """The event that a certificate is about, its guarantee, and what it says of the other runs;
    None if there are none.

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
        raise BadInput(
            "the plan has releases that the ledger does not hold: publish what a method returned, "
            "as it is"
        )
    if not ledger.adaptive and tally(ledger.claim) == tally(described):
        return ledger.claim, ledger.guarantee(delta), None
    price = _price(described, ledger, delta)
    if ledger.adaptive and ledger.budget is None:
        return compose([described]), price, figures(ALONE, price)
    return (
        ledger.claim,
        ledger.guarantee(delta),
        figures(ADAPTIVE if ledger.adaptive else FIXED, price),
    )


def contradictions(
    claim: dict[str, Any], event: Event, described: Event, claimed: Guarantee
) -> list[str]:
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
        return [
            (
                "the certificate's events are not those of its plan, and it does not speak of "
                "other runs"
            )
        ]
    said = claim["ledger"]
    try:
        price = accountant.guarantee(
            described, claimed.adjacency, claimed.delta, claimed.group_size
        )
        same = _matches(said, price, margin_of_older_prices(described))
        problems = (
            [] if same else ["the certificate states another price of its run than its plan gives"]
        )
        match said["runs"]:
            case str(text) if text == ALONE:
                right = tally(event) == tally(described)
            case str(text) if text == FIXED:
                right = _among(described, event)
            case str(text) if text == ADAPTIVE:
                (limit,) = tally(event)
                right = (
                    tally(event)[limit] == 1 and isinstance(limit, Limit) and fits(limit, described)
                )
            case _:
                right = False
    except (PrivlearnError, KeyError, TypeError, ValueError):
        return ["what the certificate says of other runs on its ledger cannot be checked"]
    if not right:
        problems.append(
            "the plan has releases that are not among the certificate's events, or not within its "
            "limit"
        )
    return problems


def unpaid(facts: Any, event: Event, described: Event) -> list[str]:
    """What is wrong with test metrics that are said to be released with noise: the claim has to
    cover their release.

    Args:
        facts: of the run.
        event: what the certificate is about.
        described: the events of the run, by its plan.
    """
    if not isinstance(facts, dict) or PAID not in facts:
        return []
    problem = (
        "test metrics are said to be released with noise, and the claim does not cover their "
        "release"
    )
    try:
        both = compose([described, Gaussian(facts[PAID])])
        limits = [leaf for leaf in tally(event) if isinstance(leaf, Limit)]
        covered = _among(both, event) or any(
            fits(limit, both) for limit in limits if not _among(described, event)
        )
    except (PrivlearnError, TypeError, ValueError):
        covered = False
    return [] if covered else [problem]


def large_delta(facts: dict[str, Any], delta: float) -> str:
    """What is wrong with a delta of one over the number of examples or more, where that is public;
    else nothing.
    """
    tuning = facts.get("tuning")
    examples = (tuning if isinstance(tuning, dict) and "examples" in tuning else facts).get(
        "examples"
    )
    if not isinstance(examples, int) or delta * examples < 1:
        return ""
    return (
        f"delta {delta:g} is not below one over the {examples} examples: that allows giving "
        "away a whole example"
    )


def _price(event: Event, ledger: Ledger, delta: float) -> Guarantee:
    assert ledger.adjacency is not None
    unit = ledger.unit
    priced = accountant.guarantee(event, ledger.adjacency, delta, unit.group_size)
    return replace(priced, rows_per_person=unit.rows_per_person)


def figures(runs: str, price: Guarantee) -> dict[str, Any]:
    """What a certificate says of other runs: what the claim is for, and the price of its run."""
    return {
        "runs": runs,
        "run_epsilon": price.epsilon,
        "run_method": price.method,
        "run_rho": price.rho,
    }


def margin_of_older_prices(event: Event) -> float:
    """The relative margin by which a certificate may state more than the events cost: earlier
    versions computed larger prices, and these stay true.
    """
    more = [leaf.stated_before for leaf in tally(event) if leaf.stated_before]
    return max(more) if len(more) > 1 else 0.0


def _matches(said: dict[str, Any], price: Guarantee, more: float) -> bool:
    true = figures(said["runs"], price)
    claimed_epsilon = said.get("run_epsilon")
    if isinstance(claimed_epsilon, float) and price.epsilon <= claimed_epsilon <= price.epsilon * (
        1 + more
    ):
        said = said | {"run_epsilon": price.epsilon}
    return set(said) == set(true) and all(_close(said[name], value) for name, value in true.items())


def _close(claimed: Any, true: Any) -> bool:
    if isinstance(true, float) and isinstance(claimed, float):
        return math.isclose(claimed, true, rel_tol=1e-6, abs_tol=1e-12)
    return bool(type(claimed) is type(true) and claimed == true)


def _among(described: Event, event: Event) -> bool:
    counted = tally(event)
    return all(counted.get(leaf, 0) >= times for leaf, times in tally(described).items())
