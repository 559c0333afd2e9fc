"""The public numbers of a run, as plain values for its certificate and card.

What a method returns.
"""

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
from privlearn.plan import Plan
from privlearn.schedules import Schedule, Validation, spec
from privlearn.transforms.base import Transform
from privlearn.transforms.modules import Keep
from privlearn.transforms.select import choice_json
from privlearn.transforms.specs import Rescale

if TYPE_CHECKING:
    from privlearn.runs.checkpoint import Checkpoint


def public_settings(
    plan: Plan,
    clip: dict[str, Any],
    examples: int,
    steps: int,
    descent: torch.optim.Optimizer,
    rates: Schedule,
    features: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What every method's certificate states.

    Args:
        plan: what will be spent, and how.
        clip: the numbers of the plan's way to clip.
        examples: the number of examples that sums are divided by, declared or not.
        steps: steps in an epoch.
        descent: the optimizer.
        rates: the schedule of its learning rates.
        features: what describes the public features, if there are any.
    """
    defaults = {k: v for k, v in descent.defaults.items() if isinstance(v, int | float | str | bool | tuple)}
    return {
        "sampling": plan.sampling.describe(),
        "epochs": plan.epochs,
        "steps": plan.epochs * steps,
        "noise_multipliers": None if isinstance(plan.schedule, Validation) else list(plan.noise_multipliers()),
        "schedule": spec(plan.schedule),
        "clip": {"kind": plan.clip.kind, **clip},
        "examples": examples,
        "examples_declared": plan.examples is not None,
        "before": plan.other_releases(),
        "optimizer": {"name": type(descent).__name__, **defaults},
        "learning_rate_schedule": spec(rates),
        **public_features(features),
    }


def public_features(descriptions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The setting that names public features, one or several after the other; empty without any."""
    if not descriptions:
        return {}
    return {"public_features": descriptions[0] if len(descriptions) == 1 else list(descriptions)}


def better_settings(augmentation: Augmentation | None, average: float | None, loss: Loss) -> dict[str, Any]:
    """What a certificate states of what was done for accuracy alone; what was not done is left out.

    Args:
        augmentation: copies of each example that are averaged before clipping.
        average: of which last share of the steps the published weights are the mean.
        loss: PyTorch's cross-entropy may smooth labels.
    """
    smoothing = loss.label_smoothing if isinstance(loss, nn.CrossEntropyLoss) else 0.0
    return {
        "augmentation_copies": augmentation.copies if augmentation else 1,
        **({"augmentation": augmentation.shown} if augmentation else {}),
        **({} if average is None else {"average": average}),
        **({"label_smoothing": smoothing} if smoothing else {}),
    }


def with_choices(
    before: list[dict[str, Any]], front: Sequence[Transform], transforms: Sequence[torch.nn.Module], data: Dataset
) -> list[dict[str, Any]]:
    """The releases before training, with the features that selections among them chose: released, and so free to tell.

    Args:
        before: the releases as plain values.
        front: of the plan, with these releases in their order.
        transforms: what was made of each transform of the front.
        data: whose features may have names, which stand for them until something else is made of them.
    """
    names, found = () if data.features else data.feature_names, []
    parts = iter(before)
    for own, transform in zip(front, transforms, strict=True):
        if own.event() is None:
            names = names if isinstance(own, Rescale) else ()  # they stand for other numbers
            continue
        part = next(parts)
        chosen = isinstance(transform, Keep)
        indices = transform.get_buffer("indices").tolist() if chosen else []
        found.append(part | ({"chosen": choice_json(indices, names)} if chosen else {}))
        names = tuple(names[index] for index in indices) if names else ()
    return found


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
        adjacency: the kind of neighbour.
        delta: where epsilon is stated.
        budget: the target that was set, if any.
        method: the name of the method.
        settings: public numbers of the run, for the certificate and the card.
        architecture: how to rebuild the model (`publish` fills in what it can).
        seeded: whether somebody may know the random streams' seed.
        private_diagnostics: not covered by the guarantee.
        checkpoint: the file that the run was kept in, which `publish` deletes.
        model_spec: what `models.build` makes the network of, where the method built it by a name; else None.
        classes: how many it has then.
    """

    model: nn.Module
    ledger: Ledger
    adjacency: Adjacency
    delta: float | None
    budget: Budget | None
    method: str
    settings: dict[str, Any]
    architecture: dict[str, Any]
    seeded: bool
    private_diagnostics: PrivateDiagnostics
    checkpoint: Checkpoint | None = None
    model_spec: str | None = None
    classes: int | None = None

    def stated_delta(self, delta: float | None = None) -> float:
        """The delta to state epsilon at: `delta`, else the plan's.

        Raises:
            BadInput: neither is there.
        """
        found = delta if delta is not None else self.delta
        if found is None:
            raise BadInput("the plan was not calibrated to a delta: give one, for example delta=1e-5")
        return found
