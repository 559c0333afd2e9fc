"""Questions to sites that add the noise themselves: a teacher's question, and the public plan from
which the price and the noise follow.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from privlearn._public import from_json
from privlearn._storage import canonical, loads
from privlearn.errors import BadInput
from privlearn.flower.teacher_question import Question, pack_question, unpack_question
from privlearn.methods.pate.integers import IntegerAnswers
from privlearn.methods.pate.plan import PatePlan
from privlearn.methods.pate.reducers import Reducer
from privlearn.methods.pate.site_noise import NoiseGrid
from privlearn.methods.pate.sums import CodeSums, VoteCounts

#: What sites are asked for.
SHARES = "noisy_shares"
_TERMS, _PLAN, _NAME = "terms", "plan", "question"


@final
@dataclass(frozen=True, eq=False, repr=False)
class ShareQuestion:
    """What a server asks a site that adds its share of the noise; public.

    Attributes:
        plan: with `site_noise`.
        asked: the inputs, and the integers in which a teacher answers them.
        digest: of everything in it.
    """

    plan: PatePlan
    asked: Question
    digest: str

    @property
    def grid(self) -> NoiseGrid:
        """The grid of the noise, which holds all answers.

        Raises:
            BadInput: sites add no noise by the plan.
        """
        return self.plan.grid(self.asked.integers.step)

    @property
    def factor(self) -> int:
        """Steps of the grid in a step of the answers."""
        return round(self.asked.integers.step / self.grid.step)

    @property
    def size(self) -> int:
        """How many integers a site sends."""
        return self.plan.queries * self.asked.integers.size


def pack_share_question(
    inputs: Tensor, totals: CodeSums | VoteCounts, plan: PatePlan, name: str
) -> RecordDict:
    """A request. All of it is public.

    Args:
        inputs: a row for each query.
        totals: say what is asked for.
        plan: with `site_noise`.
        name: tells the question from others about the same.
    """
    content = pack_question(inputs, totals)
    content[_TERMS] = ConfigRecord({_PLAN: canonical(plan.to_json()).decode(), _NAME: name})
    return content


def unpack_share_question(content: RecordDict, reducer: Reducer | None) -> ShareQuestion:
    """The question of a request, at a site.

    Args:
        content: the request.
        reducer: as of `unpack_question`.

    Raises:
        BadInput: it asks for something else than its plan, or by another kind of plan.
        Exception: it is not a question. A server may send anything.
    """
    plan = from_json(loads(str(content.config_records[_TERMS][_PLAN]).encode()))
    asked = unpack_question(content, reducer)
    if not isinstance(plan, PatePlan) or len(asked.inputs) != plan.queries:
        raise BadInput(
            f"a server asks {len(asked.inputs)} inputs by a {type(plan).__name__}: expected a "
            "PatePlan, and an input for each of its queries. Nothing was charged or sent"
        )
    if asked.aggregate != plan.aggregate:
        raise BadInput(
            f"a server asks for {asked.aggregate} by a plan of {plan.aggregate}, from which the "
            "price follows: expected the plan's own. Nothing was charged or sent"
        )
    return ShareQuestion(plan, asked, _digest(content))


def bound_share(grid: NoiseGrid, integers: IntegerAnswers) -> int:
    """The largest absolute value of an integer that a site sends with its share."""
    return math.ceil(integers.bound * integers.step / grid.step) + grid.reach


def _digest(content: RecordDict) -> str:
    """SHA-256 of all records of a request."""
    whole = hashlib.sha256()
    for name, terms in sorted(content.config_records.items()):
        values: dict[str, Any] = {**terms}
        whole.update(canonical([name, values]))
    for name, record in sorted(content.array_records.items()):
        for array in record.to_numpy_ndarrays():
            whole.update(canonical([name, str(array.dtype), [*array.shape]]))
            whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()
