"""This file draws a plan by matplotlib: its noise by epoch, and what it spends by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privlearn._checks import one_of
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.clipping.derivative_bounds import Derivatives
from privlearn.core.transform import priced
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Places at which epsilon is computed, about.
_PLACES = 24


def draw(plan: Any, axes: Axes | None, of: str, delta: float | None) -> Axes:
    """Draw the noise or epsilon of a plan of DP-SGD or DP-MAC, on new axes by default.

    Args:
        plan: a `Plan`.
        axes: where to.
        of: "noise" or "epsilon".
        delta: where epsilon is stated; by default that of the plan's budget.

    Raises:
        BadInput: something else is asked for, or nothing says at which delta.
    """
    import matplotlib.pyplot as plt

    noise = one_of("of", of, ["noise", "epsilon"]) == "noise"
    if not noise:
        known = plan.budget.delta if plan.budget and delta is None else delta
        if known is None:
            raise BadInput(
                "the plan was not calibrated to a delta: give one, plan.plot(of='epsilon', "
                "delta=1e-5)"
            )
        unit, points = spending(plan, known)
    else:
        multipliers = plan.noise_multipliers()
    axes = plt.subplots(figsize=(5, 3), layout="constrained")[1] if axes is None else axes
    if noise:
        axes.stairs(multipliers, [epoch + 0.5 for epoch in range(plan.epochs + 1)], baseline=None)
        axes.set(xlabel="epoch", ylabel="noise multiplier", ylim=(0, None))
        return axes
    axes.plot(
        *zip(*points, strict=True), label="claimed as a whole" if plan.filter else "spent so far"
    )
    if plan.budget and plan.budget.epsilon is not None and plan.budget.delta == known:
        axes.axhline(plan.budget.epsilon, color="0.6", linestyle=":", label="target")
    axes.set(
        xlabel=unit, ylabel=f"epsilon at delta {known:g}", ylim=(0, None), xlim=(0, points[-1][0])
    )
    axes.legend(loc="lower right", fontsize=8)
    return axes


def spending(plan: Any, delta: float) -> tuple[str, list[tuple[float, float]]]:
    """Epsilon after so many steps, as corners of a line; after epochs, where steps depend on an
    undeclared number.

    What is sampled anew for each step is spent step by step; what is priced by the epoch, with its
    first step. Each is the price of the steps so far had their number been fixed beforehand. Under
    a filter it is the claim, throughout.
    """
    steps = plan.sampling.steps(plan.examples or 1)
    known = plan.examples is not None or steps == plan.sampling.steps(10**9)
    each = steps if known else 1
    before: list[Event] = [*priced(plan.front)]

    def epsilon(events: list[Event]) -> float:
        if not events:
            return 0.0
        return accountant.guarantee(
            compose(events), plan.neighbours, delta, plan.group_size
        ).epsilon

    whole = plan.guarantee(delta).epsilon
    if plan.filter:
        return ("step" if known else "epoch"), [(0.0, whole), (plan.epochs * each, whole)]
    learned = plan.clip.learned if isinstance(plan.clip, Derivatives) else None
    stops = {round(plan.epochs * place / _PLACES) for place in range(1, _PLACES + 1)} | {
        plan.epochs
    }
    parts = max(1, _PLACES // plan.epochs)
    points, spent = [(0.0, epsilon(before))], before
    for epoch, noise_multiplier in enumerate(plan.noise_multipliers()):
        if learned and epoch == learned.after:
            spent = [*spent, learned.event()]
        event = plan.epoch_event(noise_multiplier)
        if isinstance(event, Repeated) and known:
            counts = {round(event.count * part / parts) for part in range(1, parts)}
            # the first steps cost most
            counts |= {2**power for power in range(6)} if epoch == 0 else set()
            counts = {count for count in counts if 0 < count < event.count}
            inside = [
                (count / event.count, Repeated(event.event, count)) for count in sorted(counts)
            ]
            points += [((epoch + share) * each, epsilon([*spent, part])) for share, part in inside]
        spent = [*spent, event]
        if epoch + 1 in stops:
            value = epsilon(spent)
            # never below what is spent
            points += [] if isinstance(event, Repeated) else [(points[-1][0], value)]
            points.append(((epoch + 1) * each, value))
    return ("step" if known else "epoch"), [*points, (plan.epochs * each, whole)]
