"""What to tell of schedules whose noise reacts: how exact paid validations are, when the run may end, and how it did."""

from __future__ import annotations

import math
from typing import Any

from privlearn import schedules
from privlearn.accounting.events import Event, compose
from privlearn.accounting.filters import fits
from privlearn.accounting.guarantee import Adjacency
from privlearn.plan import Plan

#: Accuracies closer than this are hardly ever worth telling apart.
_FINE = 0.005


def noisy_validations(plan: Plan, examples: int) -> str | None:
    """What whoever pays for validations should know: how exact they are."""
    schedule = plan.schedule
    if not isinstance(schedule, schedules.Validation) or schedule.noise is None:
        return None
    deviation = _deviation(schedule, plan.neighbours, examples)
    mean = deviation / math.sqrt(schedule.m)
    told = f"each accuracy is released with standard deviation {deviation:.2g}, and the mean of {schedule.m} with {mean:.2g}"
    if mean <= max(schedule.threshold, _FINE):
        return told
    at_most = schedule.noise * max(schedule.threshold, _FINE) / mean
    return (
        f"{told}, which is more than the threshold of {schedule.threshold:g}: noise will fall by chance. Give "
        f"noise={at_most:.2g} or less, a larger m (and period), or a larger threshold"
    )


def _deviation(schedule: schedules.Validation, adjacency: Adjacency, examples: int) -> float:
    """The standard deviation of a released accuracy: noise x sensitivity of the halved count over the examples."""
    assert schedule.noise is not None
    return schedule.noise * adjacency.sum_sensitivity(0.5) / examples


def earliest_end(plan: Plan) -> int:
    """The epochs that a run under a filter has at least: its noise falls at every check."""
    schedule = plan.schedule
    assert isinstance(schedule, schedules.Validation)
    assert plan.filter is not None
    spent: list[Event] = []
    for epoch in range(plan.epochs):
        spent.append(plan.epoch_event(schedule.after([0.0] * epoch)))
        if not fits(plan.filter, compose(spent)):
            return epoch
    return plan.epochs


def how_it_ended(plan: Plan, facts: dict[str, Any]) -> str:
    """When a run lowered its noise, and why it ended; all of it follows from what is published."""
    noise, most = facts["noise_multipliers"], plan.epochs
    fell = [epoch for epoch in range(1, len(noise)) if noise[epoch] < noise[epoch - 1]]
    when = f"the noise fell after epochs {', '.join(map(str, fell))}" if fell else "the noise never fell"
    if len(noise) == most:
        return f"{when}; all {most} epochs ran"
    return f"{when}; the run ended after {len(noise)} of at most {most} epochs, because the next did not fit into the limit"
