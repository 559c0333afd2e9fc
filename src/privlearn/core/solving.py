"""This file solves for numbers of plans: noise beside other releases, epochs, the rate of a
schedule, the size of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from privlearn._checks import checked, count, require_fit
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.calibration import Spending, solve_noise, solve_rate
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.filters import Limit, fits, largest_filter, share
from privlearn.core.accounting.guarantee import require_same
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.searches import largest
from privlearn.core.mechanisms.banded import Banded
from privlearn.core.mechanisms.correlated import Correlation, deviation_of
from privlearn.core.sampling import Partition, Poisson, TruncatedPoisson
from privlearn.core.schedules import (
    LEAST_NOISE,
    MOST_EPOCHS,
    Constant,
    Polynomial,
    ReactingSchedule,
    Step,
)
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn.core.plan import AbstractPlan, Plan

_NOT_KNOWN = (
    "the {} can't be solved for under a validation schedule, whose costs are not known beforehand: "
    "solve for the noise or the epochs, or give another schedule=: {}"
)


def factor_beside(plan: AbstractPlan, others: Sequence[Planned]) -> float:
    """The factor on the noise of `plan` at which it and `others` together meet its target.

    Raises:
        BadInput, AdjacencyMismatch: as `AbstractPlan.with_room_for`.
    """
    if plan.budget is None or getattr(plan, "reacts", False):
        raise BadInput(
            "no noise is left to raise: the plan has no target, or noise that follows validations. "
            "Calibrate a plan with a fixed schedule first, plan.calibrate(epsilon=, delta=)"
        )
    for other in others:
        require_fit("what is released beside the plan", other, Planned)
    budget, beside = plan.budget, compose(other.event() for other in others)
    for other in others:
        require_same(plan.neighbours, other.neighbours, "what is released beside the plan")
        if other.unit != plan.unit:
            raise BadInput(
                f"the plan protects {plan.unit}, and what is released beside it {other.unit}: "
                "expected one"
            )
    spent = budget.spent(beside, plan.neighbours)
    if spent >= budget.limit:
        raise BadInput(
            f"what is released beside the plan costs {budget.figure(spent)} alone, and both "
            f"together may cost {budget}: give it more noise"
        )

    def together(factor: float) -> Event:
        return compose([plan.scaled(factor).event(), beside])

    return solve_noise(Spending(budget, together, plan.neighbours), budget.limit)


@checked
def with_rate(plan: Plan, budget: Budget) -> Plan:
    """`plan` with its start, epochs and batches, and the rate k of its schedule at which it meets
    `budget`.

    Raises:
        BadInput: a constant schedule, or no k meets the budget.
    """
    budget = budget.for_group(plan.group_size)
    require_room(plan, budget)
    schedule = plan.schedule
    if isinstance(schedule, Constant):
        raise BadInput(
            "a constant schedule has no rate to solve for: give another schedule=: time, exp, step "
            "or poly"
        )
    if plan.reacts:
        raise BadInput(_NOT_KNOWN.format("k", "time, exp, step or poly"))

    def at(k: float) -> Plan:
        return replace(plan, schedule=replace(schedule, k=k))  # type: ignore[type-var]

    step = isinstance(schedule, Step)
    k = solve_rate(
        Spending(budget, lambda k: at(k).event(), plan.neighbours),
        budget.limit,
        more_is_louder=not step,
        below_one=step,
        start=0.9 if step else 1.0 if isinstance(schedule, Polynomial) else 0.05,
    )
    return replace(at(k), budget=budget)


@checked
def with_batch_size(plan: Plan, budget: Budget, examples: int) -> Plan:
    """`plan` with its noise and epochs, and the largest batches of `examples` rows that `budget`
    allows.

    Truncated batches then have the usual maximum of their size.

    Raises:
        BadInput: batches are not sampled, so that their size costs nothing; or not even one example
            a batch fits.
    """
    if not isinstance(plan.sampling, Poisson | Partition | TruncatedPoisson):
        raise BadInput(
            f"with {plan.sampling.kind} batches the guarantee does not depend on their size: solve "
            "for the noise or the epochs, or use poisson or partition sampling"
        )
    if plan.reacts:
        raise BadInput(_NOT_KNOWN.format("batch size", "constant, time, exp, step or poly"))
    budget = budget.for_group(plan.group_size)
    require_room(plan, budget)

    def at(size: int) -> Plan:
        return replace(plan, sampling=type(plan.sampling).of_size(size, examples))

    size = largest(
        lambda size: budget.covers(budget.spent(at(size).event(), plan.neighbours)), examples
    )
    if size == 0:
        raise BadInput(
            f"not even one example a batch fits into {budget} at this noise: use more noise or "
            "fewer epochs"
        )
    return replace(at(size), budget=budget)


@checked
def within(plan: Plan, budget: Budget, most: int | None) -> Plan:
    """See `Plan.within`."""
    budget = budget.for_group(plan.group_size)
    require_room(plan, budget)
    schedule, limit = plan.schedule, None
    if isinstance(schedule, ReactingSchedule):
        epoch = plan.epoch_event(schedule.start)
        limit = largest_filter(budget, plan.beside(), epoch, plan.neighbours)

    def last(epochs: int) -> bool:
        if limit is not None:
            return fits(limit, Repeated(epoch, epochs))
        if not isinstance(schedule, ReactingSchedule) and schedule(epochs - 1) < LEAST_NOISE:
            return False
        return budget.covers(budget.spent(replace(plan, epochs=epochs).event(), plan.neighbours))

    epochs = largest(last, count("epochs", most) if most is not None else MOST_EPOCHS)
    if epochs == 0:
        first = schedule.start if isinstance(schedule, ReactingSchedule) else schedule(0)
        raise BadInput(
            (
                f"not one epoch at noise multiplier {first:g} fits into {budget}: use more noise "
                "or a larger budget"
            ),
            budget=budget,
        )
    if epochs == MOST_EPOCHS and most is None:
        raise BadInput(
            f"{budget} lasts more than {MOST_EPOCHS:,} epochs at this noise: say how many with "
            "epochs"
        )
    return replace(plan, epochs=epochs, budget=budget, filter=limit)


def require_room(plan: Plan, budget: Budget) -> None:
    """Refuse a budget in a measure that the sampler lacks, or that the earlier releases use up."""
    budget.spent(plan.sampling.event(Gaussian(1.0)), plan.neighbours)
    spent = budget.spent(plan.beside(), plan.neighbours)
    if spent >= budget.limit:
        raise BadInput(
            f"the releases before and after training alone cost {budget.figure(spent)}, and the "
            f"budget is {budget}: give them more noise (noise_multiplier=, or pca_noise=), leave "
            "them out, or raise the budget",
            budget=budget,
        )


def with_least_noise(
    plan: Plan,
    mechanisms: Sequence[Correlation | None],
    solved: Callable[[Plan], Plan],
    examples: int,
    *,
    adjust: bool = True,
) -> Plan:
    """The plan with that mechanism which leaves the least noise in the weights, once its noise is
    solved for.

    Batches keep their size.

    Args:
        plan: with its sampler.
        mechanisms: to try; None is independent noise.
        solved: solves for the noise.
        examples: how many there are.
        adjust: whether a cyclic sampler gets as many groups as the noise has bands; False: it stays
            as it is.

    Raises:
        BadInput: none of them goes with the plan.
    """
    candidates: list[Plan] = []
    refusals: list[BadInput] = []
    for correlation in mechanisms:
        try:
            drawn = plan.sampling
            if correlation is not None:
                drawn = drawn.in_cycles(correlation.rest) if adjust else drawn
                correlation.require_suited(drawn, examples)
            candidates.append(solved(replace(plan, sampling=drawn, correlation=correlation)))
        except BadInput as error:
            refusals.append(error)
    if not candidates:
        raise refusals[0]
    return (
        candidates[0]
        if len(candidates) == 1
        else min(candidates, key=lambda candidate: noise_in_weights(candidate, examples))
    )


def noise_in_weights(plan: Plan, examples: int, momentum: float = 0.0) -> float:
    """Root mean square, over steps, of the noise that SGD sums up: for learning rate and
    sensitivity 1.

    Independent noise is that of SGD with `momentum`; correlated noise says itself what it is made
    for.
    """
    epoch, multipliers = plan.sampling.steps(examples), plan.noise_multipliers()
    steps, rest = plan.epochs * epoch, plan.sampling.separation(examples)
    correlation = plan.correlation or Banded(1, momentum)
    if len(set(multipliers)) == 1:
        return multipliers[0] * correlation.deviation(steps, rest)
    return deviation_of(
        correlation.inverse(steps, rest), correlation.momentum, np.repeat(multipliers, epoch)
    )


def start_reacting(plan: Plan, shape: ReactingSchedule, budget: Budget) -> Plan:
    """`plan` with the widest filter in `budget`, and the start at which all epochs would fit if
    noise never fell.

    Raises:
        BadInput: its validations alone take more.
    """
    if shape.noise is not None:
        paid = Gaussian(shape.noise)
        if (
            share(
                largest_filter(budget, plan.beside(), paid, plan.neighbours),
                Repeated(paid, plan.epochs),
            )
            >= 1
        ):
            raise BadInput(
                f"{plan.epochs} validations at noise multiplier {shape.noise:g} alone take more "
                f"than {budget}: give them more noise (noise= of the schedule), or use fewer "
                "epochs"
            )

    def at(factor: float) -> tuple[ReactingSchedule, Limit, Event]:
        schedule = shape.scaled(factor)
        epoch = replace(plan, schedule=schedule, filter=None).epoch_event(schedule.start)
        return (
            schedule,
            largest_filter(budget, plan.beside(), epoch, plan.neighbours),
            Repeated(epoch, plan.epochs),
        )

    def share_of_filter(factor: float) -> float:
        _, limit, all_epochs = at(factor)
        return share(limit, all_epochs)

    schedule, limit, _ = at(solve_noise(share_of_filter, 1.0, start=1.0 / shape.start))
    return replace(plan, schedule=schedule, budget=budget, filter=limit)
