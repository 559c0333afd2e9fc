"""When a ledger refuses a run, this file says in the refusal what would still fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.calibration import solve_noise
from privlearn.core.accounting.events import Composed, Event, Mechanism, Repeated, tally
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import PrivlearnError

#: Different releases in a run at which it is still priced a few more times.
_MOST = 8


def still_fits(
    share: Callable[[Event], float],
    limit: float,
    event: Event,
    budget: Budget,
    adjacency: Adjacency,
) -> str:
    """A sentence on the noise at which `event` would fit, and what it then costs by itself; empty
    if none is known.

    No guarantee follows from it: what is asked for next is priced as everything else.

    Args:
        share: what the ledger comes to with an event in place of the refused one.
        limit: what it may come to.
        event: what was refused.
        budget: the ledger's, in whose measure the cost is stated.
        adjacency: the kind of neighbour.
    """
    if len(tally(event)) > _MOST:
        return ""
    try:
        factor = solve_noise(lambda factor: share(with_noise(event, factor)), limit)
        factor = math.ceil(100 * factor) / 100
        alone = budget.spent(with_noise(event, factor), adjacency)
    except PrivlearnError:  # other noise, or no factor
        return ""
    return f" With {factor:.2f} times its noise it fits: {budget.figure(alone)} by itself."


def with_noise(event: Event, factor: float) -> Event:
    """`event` with `factor` times the noise in each of its releases.

    Raises:
        PrivlearnError: it has releases whose noise is no multiple of a sensitivity.
    """
    if isinstance(event, Composed):
        return Composed(tuple(with_noise(part, factor) for part in event.events))
    if isinstance(event, Repeated):
        return Repeated(with_noise(event.event, factor), event.count)
    release: Any = event
    if hasattr(event, "noise_multiplier"):
        return replace(release, noise_multiplier=factor * release.noise_multiplier)  # type: ignore[no-any-return]
    if isinstance(getattr(event, "event", None), Mechanism):
        return replace(release, event=with_noise(release.event, factor))  # type: ignore[no-any-return]
    raise PrivlearnError(
        f"{type(event).__name__} has no noise to raise: expected releases with a noise_multiplier"
    )
