"""`train`: DP-SGD with settings that nobody has to choose, by rules that look at public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from privlearn._checks import between
from privlearn.accounting import zcdp
from privlearn.accounting.ledger import Ledger
from privlearn.clipping.augmentation import Augmentation
from privlearn.clipping.clips import Flat
from privlearn.data.dataset import Dataset
from privlearn.descent import rules
from privlearn.descent.dpsgd import dpsgd
from privlearn.errors import BadInput
from privlearn.models import networks
from privlearn.plan import Plan
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.optimizers import require_share
from privlearn.runs.refusals import require_no_features
from privlearn.runs.result import Result
from privlearn.sampling import Poisson
from privlearn.schedules import Polynomial
from privlearn.streams import Streams
from privlearn.transforms import Normalised, row_norm, usual, with_features
from privlearn.transforms.base import Transform
from privlearn.transforms.moments import Moments, share_of
from privlearn.transforms.pca import PrivatePCA, components_of

#: The largest share of a label that may be spread over all classes.
MOST_SMOOTHING = 0.99


def train(
    dataset: Dataset,
    *,
    epsilon: float,
    delta: float = 1e-5,
    model: str = "linear",
    features: str | None = None,
    normalise: str | None = None,
    average: float | None = None,
    label_smoothing: float | None = None,
    augmentation: Augmentation | None = None,
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
            linear model, unless the data set has its own (`pv.transforms.with_features`), or moments are asked for.
        normalise: `moments` or `moments:share=0.1`: noisy moments standardise what the network is given, out of the target;
            or `none`. None: moments behind `norm` and in front of a linear model, where examples are enough for it to pay.
        average: publish the mean of the weights over about this last share of the steps, as for `pv.dpsgd`.
        label_smoothing: the share of a label that is spread over all classes.
        augmentation: changed copies of each row, as for `pv.dpsgd`: not in front of public features, which `raw` leaves out.
        examples: the declared public number of examples; None: that of the data, which is then published.
        ledger: what to charge; by default a new one with the target as its budget.
        streams: the random streams.
        progress: called with (steps done, steps in all) after each step.
        checkpoint: a file to keep progress in, as for `pv.dpsgd`.

    Returns:
        what `pv.publish` takes as it is: it names the network and its classes.

    Raises:
        BadInput: no classes, moments of rows of which no bound is known, or anything that `pv.dpsgd` refuses.
    """
    classes = dataset.classes if isinstance(dataset, Dataset) else None
    if classes is None:
        raise BadInput("train needs classes: give pv.load(name), or pv.Dataset(x, y, classes=K, low=..., high=...)")
    if average is not None:
        require_share(average)
    smoothing = 0.0 if label_smoothing is None else between("label_smoothing", label_smoothing, 0.0, MOST_SMOOTHING)
    components = None if features is None else components_of(features)
    if components is not None and normalise not in (None, "none"):
        raise BadInput(f"normalise={normalise!r} does not go with features={features!r}: give one of them")
    number = examples or dataset.examples
    before: tuple[Transform, ...] = () if components is None else (PrivatePCA(components, rules.PCA_NOISE),)
    plain = model == "linear" and dataset.features is None and normalise in (None, "none")
    if components is None and features is None and plain:
        features = usual(dataset.x.shape[1:], dataset.low, number * epsilon)
    if components is None and features is not None:
        require_no_features(augmentation, None if features == "raw" else features)
        dataset = with_features(dataset, features)
    if components is None:
        before = _normalisation(
            dataset, normalise, model == "linear" and rules.moments_pay(number, epsilon), epsilon, delta
        )
    plan = Plan(
        Poisson(rules.batch_size(number) / number),
        epochs=rules.epochs(epsilon),
        clip=Flat(rules.CLIP_NORM),
        examples=examples,
        front=before,
    ).calibrate(epsilon=epsilon, delta=delta)
    streams = streams or Streams.new()

    def descent(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        found = list(parameters)
        return torch.optim.SGD(found, lr=usual_rate("SGD", plan, number, model, found, dataset))

    result = dpsgd(
        plan,
        lambda shape: networks.build(model, shape, classes, streams.initialisation),
        nn.CrossEntropyLoss(reduction="none", label_smoothing=smoothing),
        dataset,
        optimizer=descent,
        learning_rate_schedule=Polynomial(k=1, end=0, period=plan.epochs),
        ledger=ledger,
        streams=streams,
        progress=progress,
        checkpoint=checkpoint,
        augmentation=augmentation,
        average=average,
    )
    return replace(result, model_spec=model, classes=classes)


def _normalisation(data: Dataset, spec: str | None, pay: bool, epsilon: float, delta: float) -> tuple[Moments, ...]:
    """The moments that are asked for, or usual where they `pay` behind rows that are normalised one by one."""
    encoder = None if data.features is None else data.features.encoder
    usually = "moments" if pay and isinstance(encoder, Normalised) else "none"
    share = share_of(usually if spec is None else spec)
    if share is None:
        return ()
    row = torch.zeros(1, *data.x.shape[1:])
    numbers = (row if encoder is None else encoder(row)).numel()
    norm = rules.SCALED_NORM * math.sqrt(numbers) if encoder is None and data.low is not None else None
    norm = norm if encoder is None else row_norm(encoder, numbers)
    if norm is None:
        raise BadInput(
            f"normalise={spec!r} needs a public bound on the norm of rows, and these have no declared range, or features of "
            "which no norm is known: give pv.Plan(front=(pv.transforms.Moments(features, noise_multiplier, "
            "row_norm),)) to pv.dpsgd"
        )
    return (Moments(numbers, 1 / math.sqrt(2 * share * zcdp.rho_for(epsilon, delta)), norm),)


def usual_rate(
    optimizer: str, plan: Plan, examples: int, model: str, parameters: list[nn.Parameter], data: Dataset
) -> float:
    """The learning rate by the rule (`rules.learning_rate`), for a network with these initial weights."""
    norm = math.sqrt(sum(float(weights.detach().square().sum()) for weights in parameters))
    # Where all rows have the same, public norm.
    public_norm = None
    if model == "linear":
        numbers = parameters[0][0].numel()  # a weight for each number in a row
        if plan.front:
            public_norm = math.sqrt(numbers) if plan.front[-1].normalises else None
        elif data.features is not None:
            public_norm = row_norm(data.features.encoder, numbers)
    return rules.learning_rate(optimizer, plan, examples, model, norm, public_norm)
