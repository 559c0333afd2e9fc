"""What a method returns: a model, the plan that it was trained by, and the facts that only the run could tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn

from privlearn.accounting.budget import Budget
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Ledger
from privlearn.clipping.augmentation import Augmentation
from privlearn.clipping.losses import Loss
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.plan import AbstractPlan
from privlearn.schedules import Schedule, spec
from privlearn.transforms.base import Transform
from privlearn.transforms.modules import Keep
from privlearn.transforms.select import choice_json
from privlearn.transforms.specs import Rescale

if TYPE_CHECKING:
    from privlearn.runs.checkpoint import Checkpoint


def training_facts(
    examples: int,
    steps: int,
    optimizer: torch.optim.Optimizer,
    rates: Schedule,
    features: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What every training tells beside its plan: public numbers, for the certificate.

    Args:
        examples: the number of examples that sums are divided by, declared or not.
        steps: in all epochs; a run that reacts tells its own afterwards.
        optimizer: what descends.
        rates: the schedule of its learning rates.
        features: what describes the public features, if there are any.
    """
    defaults = {k: v for k, v in optimizer.defaults.items() if isinstance(v, int | float | str | bool | tuple)}
    return {
        "examples": examples,
        "steps": steps,
        "optimizer": {"name": type(optimizer).__name__, **defaults},
        "learning_rate_schedule": spec(rates),
        **public_facts(features),
    }


def public_facts(descriptions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fact that names public features, one or several after the other; empty without any."""
    if not descriptions:
        return {}
    return {"public_features": descriptions[0] if len(descriptions) == 1 else list(descriptions)}


def accuracy_facts(augmentation: Augmentation | None, average: float | None, loss: Loss) -> dict[str, Any]:
    """What was done for accuracy alone; what was not done is left out.

    Args:
        augmentation: copies of each example that are averaged before clipping.
        average: of which last share of the steps the published weights are the mean.
        loss: PyTorch's cross-entropy may smooth labels.
    """
    smoothing = loss.label_smoothing if isinstance(loss, nn.CrossEntropyLoss) else 0.0
    return {
        "augmentation_copies": augmentation.copies if augmentation else 1,
        **({"augmentation": augmentation.summary} if augmentation else {}),
        **({} if average is None else {"average": average}),
        **({"label_smoothing": smoothing} if smoothing else {}),
    }


def choice_facts(front: Sequence[Transform], transforms: Sequence[nn.Module], data: Dataset) -> dict[str, Any]:
    """The features that selections before training chose: released, and so free to tell. Empty where there were none.

    Args:
        front: of the plan.
        transforms: what was made of each transform of it, in their order.
        data: whose features may have names, which stand for them until something else is made of them.
    """
    names, choices = data.feature_names, []
    for own, transform in zip(front, transforms, strict=True):
        if isinstance(own, Rescale):
            continue  # of the same numbers
        chosen = isinstance(transform, Keep)
        indices = transform.get_buffer("indices").tolist() if chosen else []
        choices += [choice_json(indices, names)] if chosen else []
        names = tuple(names[index] for index in indices) if names else ()
    return {"chosen": choices} if choices else {}


@final
class PrivateDiagnostics(Mapping[str, Any]):
    """Figures computed on private data without a release: for the curator's eyes. `publish` refuses them."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self._figures = dict(figures)

    def __getitem__(self, key: str) -> Any:
        return self._figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"PrivateDiagnostics with [{', '.join(map(repr, self._figures))}]: not covered by the guarantee"


@final
@dataclass(frozen=True)
class Result:
    """A trained model with everything needed to publish it.

    Attributes:
        model: takes raw inputs; its weights are covered by the guarantee.
        ledger: what was spent, this run included.
        plan: what was spent, and how.
        method: the name of the method.
        facts: public values that only the run could tell, for the certificate and the card: plain JSON values by name.
        architecture: how to rebuild the model (`publish` fills in what it can).
        seeded: whether somebody may know the random streams' seed.
        private_diagnostics: not covered by the guarantee.
        checkpoint: the file that the run was kept in, which `publish` deletes.
        model_spec: what `models.build` makes the network of, where the method built it by a name; else None.
        classes: how many it has then.
    """

    model: nn.Module
    ledger: Ledger
    plan: AbstractPlan
    method: str
    facts: dict[str, Any]
    architecture: dict[str, Any]
    seeded: bool
    private_diagnostics: PrivateDiagnostics
    checkpoint: Checkpoint | None = None
    model_spec: str | None = None
    classes: int | None = None

    @property
    def adjacency(self) -> Adjacency:
        """The kind of neighbour."""
        return self.plan.neighbours

    @property
    def budget(self) -> Budget | None:
        """The target that was set, if any."""
        return self.plan.budget

    @property
    def delta(self) -> float | None:
        """Where epsilon is stated; None if the plan says nothing of it."""
        return self.plan.budget.delta if self.plan.budget else None

    def stated_delta(self, delta: float | None = None) -> float:
        """The delta to state epsilon at: `delta`, else the plan's.

        Raises:
            BadInput: neither is there.
        """
        stated = delta if delta is not None else self.delta
        if stated is None:
            raise BadInput("the plan was not calibrated to a delta: give one, for example delta=1e-5")
        return stated
