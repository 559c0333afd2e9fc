"""Plans whose noise follows validations: a filter in place of known epochs, and what then contradicts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privlearn._public import is_registered
from privlearn.accounting.budget import Budget, solve_noise
from privlearn.accounting.events import Event, Repeated, compose
from privlearn.accounting.filters import Limit, fits, largest_filter, share
from privlearn.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput
from privlearn.schedules import ReactingSchedule

if TYPE_CHECKING:
    from privlearn.plan import Plan


def started(plan: Plan, shape: ReactingSchedule, budget: Budget) -> Plan:
    """`plan` with the widest filter in `budget`, and the start at which all epochs would fit if noise never fell.

    Raises:
        BadInput: its validations alone take more.
    """
    if shape.noise is not None:
        paid = Gaussian(shape.noise)
        if share(largest_filter(budget, plan.beside(), paid, plan.neighbours), Repeated(paid, plan.epochs)) >= 1:
            raise BadInput(
                f"{plan.epochs} validations at noise multiplier {shape.noise:g} alone take more than {budget}: give "
                "them more noise (noise= of the schedule), or use fewer epochs"
            )

    def at(factor: float) -> tuple[ReactingSchedule, Limit, Event]:
        schedule = shape.scaled(factor)
        epoch = replace(plan, schedule=schedule, filter=None).epoch_event(schedule.start)
        return schedule, largest_filter(budget, plan.beside(), epoch, plan.neighbours), Repeated(epoch, plan.epochs)

    def taken(factor: float) -> float:
        _, limit, all_epochs = at(factor)
        return share(limit, all_epochs)

    schedule, limit, _ = at(solve_noise(taken, 1.0, start=1.0 / shape.start))
    return replace(plan, schedule=schedule, budget=budget, filter=limit)


def require_filter(plan: Plan) -> None:
    """Refuse a filter where noise does not react, one that not even an epoch fits in, and what can't be published."""
    limit = plan.filter
    if plan.reacts and not is_registered(plan.schedule):
        raise BadInput(
            f"the schedule {repr(plan.schedule)[:80]} follows accuracies, which could not be checked: give its class a "
            "kind, and @privlearn.plan.registered"
        )
    if limit is None:
        return
    if not isinstance(limit, Limit) or not isinstance(plan.schedule, ReactingSchedule):
        raise BadInput(
            f"filter is {repr(limit)[:80]}, and the schedule {repr(plan.schedule)[:80]}: a filter is for "
            "a schedule that reacts alone, such as schedules.Validation, and within and calibrate set it. Leave it out"
        )
    if not fits(limit, plan.epoch_event(plan.schedule.start)):
        raise BadInput(
            f"not one epoch at noise multiplier {plan.schedule.start:g} fits into {limit}: use more noise, or settle "
            "the limit with within or calibrate"
        )


def rows(plan: Plan) -> list[tuple[str, str]]:
    """What a card says of the epochs and their noise."""
    assert isinstance(plan.schedule, ReactingSchedule)
    paid = plan.schedule.noise
    on = "rows that the publisher declares public" if paid is None else "the training examples"
    counted = "not protected" if paid is None else f"counted with noise multiplier {paid:g}"
    return [
        ("epochs at most", str(plan.epochs)),
        ("noise multiplier at first", f"{plan.schedule.start:.4g}"),
        ("noise follows accuracy on", f"{on}, {counted}; epsilon is for the limit that was set beforehand"),
    ]


def contradictions(plan: Plan, facts: Mapping[str, Any]) -> list[str]:
    """What contradicts the plan in what a run tells of its validations: where noise did not react there were none.

    Else the noise must follow from the accuracies, and all epochs together must have fitted into the filter.

    Raises:
        BadInput, KeyError, TypeError, ValueError, AttributeError: facts are missing or of other types.
    """
    if not isinstance(plan.schedule, ReactingSchedule):
        if {"validation", "noise_multipliers"} & set(facts):
            return ["validations are stated, and noise followed none: the plan's schedule is known beforehand"]
        return []
    stated, sigmas = facts["validation"], facts["noise_multipliers"]
    accuracies = stated["accuracies"]
    if set(stated) != {"rows", "public", "noise", "accuracies"} or len(accuracies) > plan.epochs:
        return [
            f"expected rows, public, noise and at most {plan.epochs} accuracies of the validations, one for each epoch"
        ]
    if stated["noise"] != plan.schedule.noise or stated["public"] is not (plan.schedule.noise is None):
        return ["the validations are not what the schedule says: with noise= they are charged, else public"]
    follow = list(plan.schedule.noise_multipliers(accuracies))[:-1]
    assert plan.filter is not None  # or the plan would have no price
    if (
        sigmas == follow
        and facts["epochs"] == len(follow)
        and fits(plan.filter, compose(map(plan.epoch_event, follow)))
    ):
        return []
    return [
        "the noise multipliers do not follow from the plan's schedule and the accuracies, or are more than its filter "
        "lets through"
    ]
