"""The closed table of plans: what a certificate may carry, read back with every check of its class, and never with torch."""

from __future__ import annotations

from typing import Any

from privlearn._public import from_json
from privlearn.boosting.plan import BoostingPlan
from privlearn.errors import BadInput
from privlearn.plan import AbstractPlan, Plan
from privlearn.statistics.plan import FisherPlan, LeastSquaresPlan, RowsPlan, SelectionPlan
from privlearn.teachers.plan import PatePlan
from privlearn.tuning.blocks import Blocks
from privlearn.tuning.stopping import RandomStopping

#: Every plan that there is.
PLANS: tuple[type[AbstractPlan], ...] = (
    Plan,
    PatePlan,
    FisherPlan,
    LeastSquaresPlan,
    RowsPlan,
    SelectionPlan,
    BoostingPlan,
    Blocks,
    RandomStopping,
)
#: Epochs of all candidates together that are priced: more would take minutes.
_MOST_EPOCHS = 1_000_000


def read(data: Any) -> AbstractPlan:
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
