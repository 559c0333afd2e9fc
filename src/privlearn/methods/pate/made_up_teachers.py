"""Made-up teachers for audits of PATE, of which one learned from the example or from something else
altogether.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.streams import Streams
from privlearn.errors import BadInput
from privlearn.methods.neighbouring_runs import NeighbouringRuns
from privlearn.methods.pate.ensemble import Progress, Teachers
from privlearn.methods.pate.pate import ask_teachers
from privlearn.methods.pate.plan import Ball, Box, ConfidentVotes, PatePlan
from privlearn.methods.pate.reducers import Identity
from privlearn.methods.pate.sums import Shapes

#: How far beyond its ball a teacher's code is.
_BEYOND = 16.0


@final
class _MadeUp(Teachers):
    """Teachers of which the first says the same to all queries, some agree with each other, and the
    others say nothing of use.
    """

    def __init__(self, number: int, answer: Tensor, agreed: Tensor, agreeing: int) -> None:
        self._number, self._answer, self._agreed = number, answer, agreed
        self._agreeing = agreeing

    @property
    def count(self) -> int:
        """How many there are."""
        return self._number

    def require_covered(self, adjacency: Adjacency, unit: PrivacyUnit) -> None:
        """One teacher changes, whatever the unit."""

    def answers(
        self,
        inputs: Tensor,
        streams: Streams,
        progress: Progress | None = None,
        shapes: Shapes | None = None,
    ) -> Iterator[Tensor | None]:
        """As the class says."""
        yield self._answer.expand(len(inputs), *self._answer.shape)
        for teacher in range(1, self._number):
            agrees = teacher <= self._agreeing
            yield self._agreed.expand(len(inputs), *self._agreed.shape) if agrees else None


def runs_of(plan: PatePlan) -> NeighbouringRuns:
    """A plan's questions to teachers of whom the first gives one of two answers that are as far
    apart as can be.

    Votes are counted where the others agree so far that a test of their largest count may go either
    way.

    Args:
        plan: with its noise.

    Raises:
        BadInput: the sites add the noise.
    """
    asked, agreeing = plan.aggregate, 0
    if plan.site_noise is not None:
        raise BadInput(
            "the sites add the noise by this plan, and an audit runs none: expected a plan without "
            "site_noise. Attack what a site sends: privlearn audit --code FILE.py, with "
            "run(took_part) and a plan"
        )
    bare = replace(plan, budget=None)
    reducer = None
    if isinstance(asked, Ball):
        reducer = Identity((2,))
        one = torch.tensor([_BEYOND * asked.radius, 0.0], device="cpu", dtype=torch.float64)
        answers = one, -one
    elif isinstance(asked, Box):
        reducer = Identity((asked.dimensions,))
        one = torch.full((asked.dimensions,), 1 + _BEYOND, device="cpu")
        answers = one, 1 - one
    else:
        answers = torch.tensor(0, device="cpu"), torch.tensor(1, device="cpu")
        if isinstance(asked, ConfidentVotes):
            agreeing = min(plan.teachers - 1, math.ceil(asked.threshold))
    inputs = np.zeros((plan.queries, 1), np.float32)

    def run(took_part: bool, ledger: Ledger, streams: Streams) -> object:
        answer = answers[0 if took_part else 1]
        teachers = _MadeUp(plan.teachers, answer, answers[0], agreeing)
        return ask_teachers(bare, teachers, reducer, inputs, ledger=ledger, streams=streams)

    text = (
        f"PATE, {plan.queries} queries, {asked.kind}, noise multiplier {plan.noise:.4g}, whole "
        "run, white box"
    )
    return NeighbouringRuns(run, text, isinstance(asked, ConfidentVotes))
