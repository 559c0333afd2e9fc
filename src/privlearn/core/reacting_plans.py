"""Plans whose noise follows accuracies: what a card says of them, and what their runs may state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from privlearn.core.accounting.events import compose
from privlearn.core.accounting.filters import fits
from privlearn.core.schedules import ReactingSchedule

if TYPE_CHECKING:
    from privlearn.core.plan import Plan


def describe(plan: Plan) -> list[tuple[str, str]]:
    """What a card says of the epochs and their noise."""
    assert isinstance(plan.schedule, ReactingSchedule)
    paid = plan.schedule.noise
    on = "rows that the publisher declares public" if paid is None else "the training examples"
    counted = "not protected" if paid is None else f"counted with noise multiplier {paid:g}"
    return [
        ("epochs at most", str(plan.epochs)),
        ("noise multiplier at first", f"{plan.schedule.start:.4g}"),
        (
            "noise follows accuracy on",
            f"{on}, {counted}; epsilon is for the limit that was set beforehand",
        ),
    ]


def contradictions(plan: Plan, facts: Mapping[str, Any]) -> list[str]:
    """What contradicts the plan in what a run tells of its validations.

    The noise must follow from the accuracies, and all epochs together must have fitted into the
    filter.

    Raises:
        BadInput, KeyError, TypeError, ValueError, AttributeError: facts are missing or of other
            types.
    """
    assert isinstance(plan.schedule, ReactingSchedule)
    validation, sigmas = facts["validation"], facts["noise_multipliers"]
    accuracies = validation["accuracies"]
    if (
        set(validation) != {"rows", "public", "noise", "accuracies"}
        or len(accuracies) > plan.epochs
    ):
        return [
            (
                f"expected rows, public, noise and at most {plan.epochs} accuracies of the "
                "validations, one for each epoch"
            )
        ]
    if validation["noise"] != plan.schedule.noise or validation["public"] is not (
        plan.schedule.noise is None
    ):
        return [
            (
                "the validations are not what the schedule says: with noise= they are charged, "
                "else public"
            )
        ]
    follow = list(plan.schedule.noise_multipliers(accuracies))[:-1]
    assert plan.filter is not None  # or the plan would have no price
    if (
        sigmas == follow
        and facts["epochs"] == len(follow)
        and fits(plan.filter, compose(map(plan.epoch_event, follow)))
    ):
        return []
    return [
        "the noise multipliers do not follow from the plan's schedule and the accuracies, or are "
        "more than its filter lets through"
    ]
