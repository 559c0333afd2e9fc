"""Plans for clients of a federation: what they can't have, and what a card says of their runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from privlearn.core.clipping.clips import Flat, Quantile
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn.core.plan import Plan


def require_federated(plan: Plan) -> None:
    """Refuse what updates of clients are not computed with.

    Raises:
        BadInput: it has something for rows in one place, or a clip by layers.
    """
    if plan.persons is not True:
        raise BadInput(f"persons is {plan.persons!r}: expected True or False")
    for_rows = {
        "front": plan.front,
        "temperature": plan.temperature,
        "rows_per_person": plan.rows_per_person,
        "group_size": plan.group_size > 1,
        "a schedule that follows accuracies": plan.reacts,
    }
    for name, value in for_rows.items():
        if value:
            raise BadInput(
                f"the plan has persons=True and {name}: a client has all rows of a person, which "
                f"nothing but the client looks at. Leave out {name}, expected for rows in one place"
            )
    if not isinstance(plan.clip, Flat | Quantile):
        raise BadInput(
            f"the plan has persons=True and the clip is {plan.clip.kind}: expected pv.Flat(norm) "
            "or pv.clipping.Quantile(norm), by which a client clips its whole update"
        )


def fact_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a card says of a federation."""
    return [
        ("what was clipped", "the update of each client, which has all rows of a person"),
        ("what the server read", facts["federation"]["server_read"]),
    ]


def card_words(facts: Mapping[str, Any]) -> Mapping[str, str]:
    """Who has to be trusted in a federation, and what is released of it."""
    return {
        "Releases": "Noisy sums of the updates of the clients that were drawn for a round",
        "Trust model": (
            "A trusted server: rows stayed with the clients, which sent updates of the model that "
            f"they had clipped. The server read {facts['federation']['server_read']} and added the "
            "noise. It has to be trusted with that, and to draw clients at random; those who get "
            "the model need not be."
        ),
        "Mechanisms": (
            "For each round clients were drawn, and each trained the model on its rows. Its update "
            "was clipped as a whole, and Gaussian noise was added to the sum. A client that did "
            "not answer counts as one whose update is zero. The releases are listed under “Where "
            "the privacy was spent”, and in privacy.json, from which the figures can be computed "
            "again."
        ),
    }
