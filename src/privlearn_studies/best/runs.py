"""One run of `best`: a data set, a target, and the library's defaults or another library's example."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import nn

from privlearn._checks import one_of
from privlearn.accounting.guarantee import Adjacency
from privlearn.clipping.clips import Flat
from privlearn.data.catalogue import cache
from privlearn.data.dataset import Dataset
from privlearn.data.named import load
from privlearn.descent.dpsgd import dpsgd
from privlearn.descent.train import train
from privlearn.models import networks
from privlearn.plan import Plan
from privlearn.runs.result import Result
from privlearn.runs.front import front
from privlearn.sampling import Poisson
from privlearn.statistics.classifiers import fisher
from privlearn.statistics.plan import FeaturesPlan
from privlearn.streams import Streams
from privlearn.transforms import row_norm, usual, with_features

DELTA = 1e-5
DEFAULTS, EXAMPLE, STATISTICS = "defaults", "opacus's example", "class statistics"
#: Of the MNIST example of Opacus (examples/mnist.py): its network is `cnn`, of 26 thousand weights.
_BATCH, _EPOCHS, _RATE, _NORM = 64, 10, 0.1, 1.0


@final
@dataclass(frozen=True)
class BestSetting:
    """What distinguishes one run from another.

    Attributes:
        data: the data set's name.
        epsilon: the target, at delta 1e-5.
        way: the library's defaults; the settings of Opacus's MNIST example with noise for the target; or Fisher's classifier
            from noisy statistics of the classes, behind the same public features.
        first: how many training examples; None: all.
    """

    data: str
    epsilon: float
    way: str = DEFAULTS
    first: int | None = None

    def key(self, seed: int) -> dict[str, Any]:
        """The run's settings as plain values; what is at its default is left out."""
        found = {"study": "best", "data": self.data, "epsilon": self.epsilon, "seed": seed}
        others = {"way": None if self.way == DEFAULTS else self.way, "first": self.first}
        return found | {name: value for name, value in others.items() if value is not None}

    def run(self, seed: int) -> BestOutcome:
        """Train with `seed`."""
        return made(self, seed)

    def outcome(self, kept: dict[str, Any]) -> BestOutcome:
        """What a run reached, from its fields."""
        return BestOutcome(**kept)


@final
@dataclass(frozen=True)
class BestOutcome:
    """What a run reached.

    Attributes:
        accuracy: on the test rows.
        epsilon: what its ledger says was spent.
        seconds: of training, one thread, features not counted.
        weights: how many the network has.
    """

    accuracy: float
    epsilon: float
    seconds: float
    weights: int


def made(setting: BestSetting, seed: int) -> BestOutcome:
    """Run `setting` with `seed`, which fixes batches and noise."""
    data = load(setting.data)
    data = replace(data, x=data.x[: setting.first], y=data.y[: setting.first])
    if one_of("the way", setting.way, (DEFAULTS, EXAMPLE, STATISTICS)) != EXAMPLE:
        found = usual(data.x.shape[1:], data.low, data.examples * setting.epsilon)
        data = data if found is None else with_features(data, found, cache=cache() / "features")
    transforms, x = front(data, data.test_tensors()[0])  # and the encoder is ready
    if data.features is not None:
        front(data, data.tensors()[0])
    started = time.perf_counter()
    result = _trained(setting, data, seed)
    seconds = time.perf_counter() - started
    network = nn.Sequential(*list(result.model.children())[len(transforms) :])  # what was paid for stands in front
    with torch.no_grad():
        said = torch.cat([network(part).argmax(1) for part in x.split(2048)])  # type: ignore[no-untyped-call]
    right = float((said == torch.from_numpy(np.asarray(data.y_test).astype(np.int64))).double().mean())
    weights = sum(value.numel() for value in network.parameters())
    return BestOutcome(right, result.ledger.guarantee(DELTA).epsilon, seconds, weights)


def _trained(setting: BestSetting, data: Dataset, seed: int) -> Result:
    streams = Streams.new(seed)
    if setting.way == STATISTICS:
        return _statistics(setting, data, streams)
    if setting.way == DEFAULTS:
        return train(data, epsilon=setting.epsilon, delta=DELTA, examples=data.examples, streams=streams)
    plan = Plan(Poisson(_BATCH / data.examples), epochs=_EPOCHS, clip=Flat(_NORM), examples=data.examples)
    return dpsgd(
        plan.calibrate(epsilon=setting.epsilon, delta=DELTA),
        lambda shape: networks.build("cnn", shape, data.classes or 0, streams.initialisation),
        nn.CrossEntropyLoss(reduction="none"),
        data,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=_RATE),
        streams=streams,
    )


def _statistics(setting: BestSetting, data: Dataset, streams: Streams) -> Result:
    """Shen et al.'s way to a classifier, without selection."""
    _, row = front(data, data.test_tensors()[0][:1])
    known = None if data.features is None else row_norm(data.features.encoder, row.numel())
    plan = FeaturesPlan(
        classes=data.classes or 0,
        features=row.numel(),
        keep=row.numel(),
        row_norm=math.sqrt(row.numel()) / 2 if known is None else known,  # of numbers in [0, 1], as on the command line
        adjacency=Adjacency.ADD_REMOVE,
    )
    return fisher(plan.calibrate(epsilon=setting.epsilon, delta=DELTA), data, streams=streams)
