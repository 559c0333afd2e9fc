"""The certificate: the plan of a run, which events happened, what they cost, and which files it speaks of.

Plans are read back by a closed table, with every check of their class, and never with torch.

It proves arithmetic: that these events give this epsilon, and that these are the weights. That this was the run is the
publisher's word.
"""

from __future__ import annotations

import hashlib
from typing import Any

from privlearn._public import from_json
from privlearn._storage import digest, loads
from privlearn.accounting.events import Event, to_json
from privlearn.accounting.guarantee import Guarantee, PrivacyUnit
from privlearn.errors import BadInput
from privlearn.plan import AbstractPlan, Plan
from privlearn.publishing.folder import CERTIFICATE
from privlearn.statistics.plan import FisherPlan, LeastSquaresPlan, RowsPlan, SelectionPlan
from privlearn.teachers.plan import PatePlan
from privlearn.tuning.blocks import Blocks
from privlearn.tuning.stopping import RandomStopping

#: The parts of a certificate, each with a digest of its own.
PARTS = ("claim", "plan", "facts", "events", "randomness", "files")
#: Of the whole form. It changes whenever the meaning of a certificate would.
VERSION = 2
_FORMAT = "privlearn-certificate"
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
        seeded: whether somebody may know the seed.
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
        "randomness": "seeded" if seeded else "operating system",
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    digests = {part: digest(value) for part, value in body.items()}
    return {"format": _FORMAT, "version": VERSION, **body, "digests": digests}


def parse(content: bytes) -> dict[str, Any]:
    """Read a certificate; duplicate keys, numbers that are none and fields that nobody knows are refused.

    Raises:
        BadInput: it is no certificate of this version.
    """
    try:
        data = loads(content)
    except ValueError as error:
        raise BadInput(f"{CERTIFICATE} is not readable JSON: {error}. Get an unchanged copy") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise BadInput(f"{CERTIFICATE} is no certificate of privlearn: its format is not {_FORMAT!r}")
    if type(data.get("version")) is not int or data["version"] != VERSION:
        raise BadInput(
            f"{CERTIFICATE} has version {str(data.get('version'))[:40]}: this privlearn reads version {VERSION} alone, "
            "in which a certificate carries its plan. Use a matching privlearn, or publish again"
        )
    if not _FIELDS <= set(data) <= _FIELDS | {"signature"}:
        strange = sorted((set(data) - {"signature"}) ^ _FIELDS)
        raise BadInput(
            f"{CERTIFICATE} lacks or adds the fields {str(strange)[:200]}: expected {', '.join(sorted(_FIELDS))}, and "
            "perhaps signature"
        )
    return data


def header(epsilon: object, delta: object, adjacency: object, unit: object, signed_by: str | None) -> str:
    """The head of the card that belongs to a claim: what a reader sees first, and what `verify` compares."""
    lines = ["---", "library_name: privlearn", "tags: [differential-privacy]"]
    lines += [f"epsilon: {epsilon}", f"delta: {delta}", f"adjacency: {adjacency}"]
    lines += [f"unit: {unit}"] if str(unit) != str(PrivacyUnit()) else []
    lines += [f"signed_by: {signed_by}"] if signed_by else []
    return "\n".join([*lines, "---", "", ""])


#: Every plan that there is.
PLANS: tuple[type[AbstractPlan], ...] = (
    Plan,
    PatePlan,
    FisherPlan,
    LeastSquaresPlan,
    RowsPlan,
    SelectionPlan,
    Blocks,
    RandomStopping,
)
#: Epochs of all candidates together that are priced: more would take minutes.
_MOST_EPOCHS = 1_000_000


def read_plan(data: Any) -> AbstractPlan:
    """The plan that `AbstractPlan.to_json` wrote as `data`: what strangers wrote.

    Raises:
        BadInput: no such plan, or values that no plan has.
        UnsupportedEvent: it is not priced for its kind of neighbour.
    """
    plan = from_json(data)
    if not isinstance(plan, PLANS):
        known = ", ".join(each.kind for each in PLANS)
        raise BadInput(f"the plan is {repr(plan)[:40]}: expected one of the kinds {known}")
    if isinstance(plan, Blocks | RandomStopping):
        trainings = [
            training for each in plan.candidates for training in (each.plan, each.again) if training is not None
        ]
        if sum(training.epochs for training in trainings) > _MOST_EPOCHS:
            raise BadInput(f"the candidates of the plan have more than {_MOST_EPOCHS:,} epochs: expected fewer")
    return plan
