"""The public numbers of a run, as plain values for its certificate and card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from privlearn.clipping.augmentation import Augmentation
from privlearn.clipping.ways import Loss
from privlearn.data.dataset import Dataset
from privlearn.encoders import Encoding
from privlearn.mechanisms.choice import told
from privlearn.models import Keep
from privlearn.plan import Plan
from privlearn.schedules import Schedule, Validation, spec


def public_settings(
    plan: Plan,
    clip: dict[str, Any],
    examples: int,
    steps: int,
    descent: torch.optim.Optimizer,
    rates: Schedule,
    features: Encoding | None,
) -> dict[str, Any]:
    """What every method's certificate states.

    Args:
        plan: what will be spent, and how.
        clip: the numbers of the plan's way to clip.
        examples: the number of examples that sums are divided by, declared or not.
        steps: steps in an epoch.
        descent: the optimizer.
        rates: the schedule of its learning rates.
        features: the public encoder, if there is one.
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
        **({} if features is None else {"public_features": features.encoder.describe()}),
    }


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
    before: list[dict[str, Any]], transforms: Sequence[torch.nn.Module], data: Dataset
) -> list[dict[str, Any]]:
    """The releases before training, with the features that selections among them chose: released, and so free to tell.

    Args:
        before: the releases as plain values.
        transforms: what was made of each of them, in their order.
        data: whose features may have names, which stand for them until something else is made of them.
    """
    names, found = () if data.features else data.feature_names, []
    for part, transform in zip(before, transforms, strict=True):
        chosen = isinstance(transform, Keep)
        indices = transform.get_buffer("indices").tolist() if chosen else []
        found.append(part | ({"chosen": told(indices, names)} if chosen else {}))
        names = tuple(names[index] for index in indices) if names else ()
    return found
