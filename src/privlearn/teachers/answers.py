"""What a student learns from: public inputs, and the answers to some of them that were released.

The public inputs of a PATE run: which are asked about, and how a student gets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.accounting.ledger import Ledger
from privlearn.data.dataset import Dataset, as_tensor
from privlearn.errors import BadInput
from privlearn.runs.result import PrivateDiagnostics
from privlearn.teachers.plan import ConfidentVotes, PatePlan, Votes
from privlearn.teachers.reducers import Reducer
from privlearn.transforms.modules import Scale


@final
@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """What a student learns from: public inputs, and what was released for some of them; paid for once, for all students.

    Attributes:
        inputs: all public inputs as the student gets them (scaled, where bounds are declared), shape (pool, ...); the first
            ones were asked about.
        targets: what was recovered for each query, in order: targets of shape (queries, *shape) in float32, or classes
            (queries,) in int64.
        answered: which queries have an answer, bool, shape (queries,); the targets of the others mean nothing.
        scores: for votes the noisy counts that were released, float64, shape (queries, classes), 0 where there is no answer;
            None for other targets.
        expected: for votes the number of teachers over the noise's variance: what tells how far counts can be believed.
        plan: what was asked.
        pool: the public inputs as they were given.
        ledger: what was charged; None for answers that were made up.
        facts: public values of the asking, for certificates.
        seeded: whether somebody may know the seed of the noise.
        discrete: whether the noise was on a grid.
        private_diagnostics: not covered by the guarantee.
    """

    inputs: Tensor
    targets: Tensor
    answered: Tensor
    scores: Tensor | None = None
    expected: float = 1.0
    plan: PatePlan | None = None
    pool: Pool | None = None
    ledger: Ledger | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False
    discrete: bool = False
    private_diagnostics: PrivateDiagnostics = field(default_factory=lambda: PrivateDiagnostics({}))

    @classmethod
    def made_up(
        cls, plan: PatePlan, reducer: Reducer | None, inputs: Tensor, *, queries: int | None = None, seed: int = 0
    ) -> Answers:
        """Answers as the plan's will look, of noise alone: for trying a student before anything is spent.

        Args:
            plan: what is asked, with its noise.
            reducer: from codes to targets; None for votes.
            inputs: public inputs as the student gets them, shape (pool, ...).
            queries: how many have answers; by default the plan's.
            seed: of what is made up.
        """
        number = min(plan.queries if queries is None else queries, len(inputs))
        made_up = torch.Generator().manual_seed(seed)
        answered = torch.ones(number, dtype=torch.bool)
        if not isinstance(plan.aggregate, Votes | ConfidentVotes):
            if reducer is None:
                raise BadInput("codes need a reducer: give the one that answers are decoded by")
            codes = plan.noise_std * torch.randn(number, reducer.size, generator=made_up)
            return cls(inputs, reducer.decode(codes + reducer.code_centre), answered)
        classes = plan.aggregate.classes
        # The last class first: few rows, too, have a label that only a student for all classes has room for.
        scores = plan.noise_std * torch.randn(number, classes, generator=made_up, dtype=torch.float64)
        targets = (classes - 1 - torch.arange(number)) % classes
        scores[torch.arange(number), targets] = scores.amax(1) + 1
        return cls(inputs, targets, answered, scores, plan.teachers / plan.noise_std**2)

    @property
    def classes(self) -> int | None:
        """How many there are, for votes; None for other targets."""
        return None if self.scores is None else self.scores.shape[1]

    def learnable(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the queries that have an answer."""
        return self.inputs[: len(self.targets)][self.answered], self.targets[self.answered]

    def beliefs(self, agreement: float) -> Tensor:
        """The probability of each class, shape (queries, classes), if that share of the teachers vote for the right one.

        By Bayes' rule from the noisy counts, the other votes being spread evenly; 0 where there is no answer.

        Raises:
            BadInput: answers that are no classes.
        """
        if self.scores is None:
            raise BadInput("these answers are no classes: there are no counts to believe in")
        others = self.scores.shape[1] - 1
        apart = agreement - (1 - agreement) / others  # the right class's share less that of any other
        believed = (self.scores * (self.expected * apart)).softmax(1)
        return believed * self.answered[:, None]

    def __repr__(self) -> str:
        """Shapes only."""
        kind = "targets" if self.scores is None else f"one of {self.classes} classes"
        return (
            f"Answers({int(self.answered.sum())} of {len(self.targets)} queries, {kind} of shape "
            f"{tuple(self.targets.shape[1:])}, {len(self.inputs)} public inputs of shape {tuple(self.inputs.shape[1:])})"
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Public inputs.

    Attributes:
        raw: as they were given, shape (pool, ...).
        inputs: as a student gets them: scaled, where bounds are declared.
        transforms: what stands in front of the student for that.
    """

    raw: Tensor
    inputs: Tensor
    transforms: tuple[nn.Module, ...]

    @classmethod
    def of(cls, given: Dataset | Any, queries: int) -> Pool:
        """The pool of an array, a tensor or a data set that is declared public, of which the targets are not looked at.

        Raises:
            BadInput: a data set that is not declared public, inputs that are not finite, or fewer than `queries`.
        """
        if isinstance(given, Dataset) and not given.public:
            raise BadInput(
                "the inputs that teachers are asked about are not protected: give public ones, pv.Dataset(x, y, public=True), "
                "or an array of them"
            )
        bounded = isinstance(given, Dataset) and given.low is not None
        raw = as_tensor(given.x, whole_is_float=bounded) if isinstance(given, Dataset) else as_tensor(given)
        if raw.dim() < 2 or (raw.is_floating_point() and not bool(raw.isfinite().all())):
            raise BadInput(
                f"public inputs of shape {tuple(raw.shape)} can't be asked about: expected finite rows of numbers"
            )
        if len(raw) < queries:
            raise BadInput(
                f"there are {len(raw)} public inputs, and the plan asks {queries} queries: expected an input for each. "
                "Nothing was charged; use a plan of fewer queries"
            )
        if not bounded:
            return cls(raw, raw, ())
        scale = Scale(*given.bounds())
        with torch.no_grad():
            return cls(raw, scale(raw), (scale,))
