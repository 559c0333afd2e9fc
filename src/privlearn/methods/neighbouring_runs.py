"""What an audit of a plan needs: its run on made-up rows, with one example and without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn.core.accounting.ledger import Ledger
    from privlearn.core.streams import Streams

Rows = tuple[NDArray[Any], NDArray[Any]]


@final
@dataclass(frozen=True)
class NeighbouringRuns:
    """A plan's run on made-up rows, with one example and without it: what an audit attacks.

    Attributes:
        run: called with whether the example takes part, a ledger to charge and random streams; it
            runs the whole plan by the code that users run.
        text: what is run, for reports.
        is_adaptive: whether what is released may follow from what was released before. If it does
            not, an audit takes a third of the time.
    """

    run: Callable[[bool, Ledger, Streams], object]
    text: str
    is_adaptive: bool = True


@runtime_checkable
class Attackable(Protocol):
    """A plan that says how an audit runs it. Plans of other kinds can't be audited."""

    def neighbouring_runs(self) -> NeighbouringRuns:
        """Its run on made-up rows, by the worst example that is known.

        Raises:
            BadInput: not of this plan.
        """
        ...


def is_attackable(plan: AbstractPlan) -> bool:
    """Whether `privlearn audit` attacks a published plan: its card advises it then."""
    try:
        if isinstance(plan, Plan):
            require_run_here(plan)
        elif isinstance(plan, Attackable):
            plan.neighbouring_runs()
        else:
            return False
    except BadInput:
        return False
    return True


def require_run_here(plan: Plan) -> None:
    """Raise `BadInput` unless the plan's releases are made in one place, where they can be run on
    made-up rows.
    """
    if plan.persons:
        raise BadInput(
            "the plan's examples are clients of a federation, and an audit runs none: expected a "
            "plan without persons=True. Attack what is released: privlearn audit --code FILE.py, "
            "with run(took_part) and a plan"
        )


def neighbouring_rows(
    adjacency: Adjacency, others: Rows, example: Rows, opposite: Rows
) -> dict[bool, Rows]:
    """Rows and their targets, with the example and without it.

    Args:
        adjacency: the kind of neighbour.
        others: the rows that both data sets have, shape (rows, ...), and their targets, (rows,).
        example: the one row that takes part or does not, and its target.
        opposite: the row that takes its place for replace-one neighbours.

    Returns:
        By whether the example takes part.
    """
    empty = np.full_like(example[0], np.nan), example[1]
    instead = {Adjacency.ZERO_OUT: [empty], Adjacency.REPLACE_ONE: [opposite]}
    parts = {True: [others, example], False: [others, *instead.get(adjacency, [])]}
    return {
        took_part: (
            np.concatenate([x for x, _ in rows]),
            np.concatenate([y for _, y in rows]),
        )
        for took_part, rows in parts.items()
    }
