"""`train`: DP-SGD with settings that nobody has to choose, by rules that look at public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import nn

from privlearn import defaults, models
from privlearn.accounting import zcdp
from privlearn.accounting.ledger import Ledger
from privlearn.clipping.styles import Flat
from privlearn.data.dataset import Dataset
from privlearn.encoders import Normalised, row_norm, usual, with_features
from privlearn.errors import BadInput
from privlearn.mechanisms.moments import Moments
from privlearn.mechanisms.pca import PCA, components_of
from privlearn.methods.checkpoint import Checkpoint
from privlearn.methods.dpsgd import dpsgd
from privlearn.methods.result import Result
from privlearn.plan import Earlier, Plan
from privlearn.rng import Streams
from privlearn.sampling import Poisson
from privlearn.schedules import Polynomial


def train(
    dataset: Dataset,
    *,
    epsilon: float,
    delta: float = 1e-5,
    model: str = "linear",
    features: str | None = None,
    examples: int | None = None,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
    progress: Callable[[int, int], None] | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
) -> Result:
    """Train a classifier at a target, choosing everything else by rule: as `privlearn train` does.

    Guarantee: as that of `pv.dpsgd`, at most (epsilon, delta) for add/remove neighbours. The rules (docs/defaults.md) look at
    public numbers alone, so they cost nothing, where a search would.

    Args:
        dataset: with declared classes, and bounds if there are any.
        epsilon: the target.
        delta: its other half; below one over the number of examples.
        model: `linear`, `mlp:100`, `cnn`, or `package.module:function`.
        features: public features, `scatter:J=2`, `norm:power=0.5`, `raw`, `package.module:function` or a folder of them; or
            `pca:60`, private principal directions, which are paid for out of the target. None: what is usual in front of a
            linear model, unless the data set has its own (`pv.with_features`). Behind `norm` and in front of a linear model
            noisy moments standardise features, out of the target, where there are examples enough for it to pay.
        examples: the declared public number of examples; None: that of the data, which is then published.
        ledger: what to charge; by default a new one with the target as its budget.
        streams: the random streams.
        progress: called with (steps done, steps in all) after each step.
        checkpoint: a file to keep progress in, as for `pv.dpsgd`.

    Raises:
        BadInput: no classes, or anything that `pv.dpsgd` refuses.
    """
    classes = dataset.classes if isinstance(dataset, Dataset) else None
    if classes is None:
        raise BadInput("train needs classes: give pv.load(name), or pv.Dataset(x, y, classes=K, low=..., high=...)")
    components = None if features is None else components_of(features)
    number = examples or dataset.examples
    before: tuple[Earlier, ...] = () if components is None else (PCA(components, defaults.PCA_NOISE),)
    if components is None and features is not None:
        dataset = with_features(dataset, features)
    elif components is None and model == "linear" and dataset.features is None:
        found = usual(dataset.x.shape[1:], dataset.low, number * epsilon)
        dataset = dataset if found is None else with_features(dataset, found)
    normalised = dataset.features is not None and isinstance(dataset.features.encoder, Normalised)
    if normalised and model == "linear" and defaults.moments_pay(number, epsilon):
        before = (_moments(math.prod(dataset.x.shape[1:]), epsilon, delta),)
    plan = Plan(
        Poisson(defaults.batch_size(number) / number),
        epochs=defaults.epochs(epsilon),
        clip=Flat(defaults.CLIP_NORM),
        examples=examples,
        before=before,
    ).calibrate(epsilon=epsilon, delta=delta)
    streams = streams or Streams.new()

    def descent(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        found = list(parameters)
        return torch.optim.SGD(found, lr=usual_rate("SGD", plan, number, model, found, dataset))

    return dpsgd(
        plan,
        lambda shape: models.build(model, shape, classes, streams.initialisation),
        nn.CrossEntropyLoss(reduction="none"),
        dataset,
        optimizer=descent,
        learning_rate_schedule=Polynomial(k=1, end=0, period=plan.epochs),
        ledger=ledger,
        streams=streams,
        progress=progress,
        checkpoint=checkpoint,
    )


def _moments(numbers: int, epsilon: float, delta: float) -> Moments:
    """Those of rows of so many normalised numbers, for the usual share of the target."""
    noise = 1 / math.sqrt(2 * defaults.MOMENTS_SHARE * zcdp.rho_for(epsilon, delta))
    return Moments(numbers, noise, math.sqrt(numbers))


def usual_rate(
    optimizer: str, plan: Plan, examples: int, model: str, parameters: list[nn.Parameter], data: Dataset
) -> float:
    """The learning rate by the rule (`defaults.learning_rate`), for a network with these initial weights."""
    norm = math.sqrt(sum(float(weights.detach().square().sum()) for weights in parameters))
    # Where all rows have the same, public norm.
    public_norm = None
    if plan.before:
        last = plan.before[-1]
        public_norm = math.sqrt(last.features) if isinstance(last, Moments) else None
    elif data.features is not None:
        public_norm = row_norm(data.features.encoder, parameters[0][0].numel())
    return defaults.learning_rate(optimizer, plan, examples, model, norm, public_norm)
