"""Rules for a linear model of a table's rows, numbers with declared bounds, from these bounds
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privlearn.models.heads import head_of
from privlearn.transforms.specs import Centre

if TYPE_CHECKING:
    from privlearn.training.choices import Facts, TrainRequest

#: About the length of gradients, so that scores grow less than with a small one, and rare classes
#: count as they come.
CLIP_NORM = 1.0
WHY = "about the length of the gradients of a table's rows: scores are then nearer to probabilities"


def is_table(request: TrainRequest, facts: Facts) -> bool:
    """Whether a linear model learns from vectors with declared bounds, and nothing else was asked
    for before it.
    """
    plain = (
        request.model == "linear"
        and len(facts.shape) == 1
        and facts.low is not None
        and not facts.front
    )
    plain &= request.pca is None and request.select is None and request.config.augmentation is None
    return plain and request.normalise is None


def clip_norm(request: TrainRequest, facts: Facts, usual: float) -> float:
    """The clipping norm of a linear classifier of a table's rows, of counts, and where classes have
    weights.

    Gradients that are all clipped to one short length would be alike, whatever they weigh. Else it
    is the usual one.
    """
    head = head_of(request.task, facts)
    long = head.skewed or (is_table(request, facts) and head.long_clip)
    return CLIP_NORM if long or request.class_weights is not None else usual


def centred(request: TrainRequest, facts: Facts) -> tuple[Centre, ...]:
    """Numbers that are not below 0 have 0 brought to the middle of their bounds.

    Otherwise most values lie on one side of 0, and what the classes have in common outweighs their
    differences. Columns with a negative lower bound stay as they are. So do columns with bounds 0
    and 1: most of them say whether a row is of a category. They would be -1 nearly everywhere, and
    noise grows with the length of rows.
    """
    if not is_table(request, facts):
        return ()
    low, high = (
        np.broadcast_to(np.asarray(bound, np.float64), facts.shape)
        for bound in (facts.low, facts.high)
    )
    columns = np.flatnonzero((low >= 0) & ~((low == 0) & (high == 1))).tolist()
    return (Centre(tuple(columns)),) if columns else ()
