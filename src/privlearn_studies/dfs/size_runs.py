"""One run of `dfs-width` or `dfs-depth`: a network of some size, trained on MNIST by DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
import torch
from torch import nn

from privlearn.accounting.ledger import Ledger
from privlearn.clipping.clips import Flat
from privlearn.descent.dpsgd import dpsgd
from privlearn.models.networks import build
from privlearn.plan import Plan
from privlearn.sampling import Poisson
from privlearn.streams import Streams
from privlearn_studies.tasks import TASKS, Rows
from privlearn_studies.yu.runs import accuracy

DELTA = 1e-5
_CLIP = 0.1
_SIDE = 28


@final
@dataclass(frozen=True)
class SizeSetting:
    """What distinguishes one network's run from another.

    Attributes:
        model: its spec; `cnn:16,32,32` is the network called `cnn` with these channels and hidden units.
        epsilon: at delta 1e-5.
        rate: of learning; constant.
        epochs: how many.
        sampling_rate: of each batch.
        first: private rows; None: 55,000.
    """

    model: str
    epsilon: float
    rate: float
    epochs: int = 5
    sampling_rate: float = 0.04
    first: int | None = None

    def key(self, seed: int) -> dict[str, Any]:
        """The run's settings as plain values."""
        return {**vars(self), "study": "dfs-size", "seed": seed}

    def run(self, seed: int) -> SizeOutcome:
        """Train with `seed`; see `trained`."""
        return trained(self, seed)

    def outcome(self, kept: dict[str, Any]) -> SizeOutcome:
        """What a run reached, from its fields."""
        return SizeOutcome(**kept)


@final
@dataclass(frozen=True)
class SizeOutcome:
    """What a run reached.

    Attributes:
        test: accuracy on the test images.
        held: on 5,000 training images that are held back, which learning rates are chosen by.
        epsilon: what the ledger says was spent.
        parameters: the network's.
    """

    test: float
    held: float
    epsilon: float
    parameters: int


def network(model: str, rng: np.random.Generator) -> nn.Module:
    """The network of a spec, for flat rows, with initial weights drawn from `rng`."""
    name, _, sizes = model.partition(":")
    if name != "cnn":
        return build(model, (_SIDE**2,), 10, rng)
    first, second, hidden = (int(size) for size in sizes.split(","))
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**63)))
        # As `models.build("cnn")`, of any width: 5 x 5 places are left, less one for the last pooling.
        return nn.Sequential(
            nn.Unflatten(1, (1, _SIDE, _SIDE)), nn.Conv2d(1, first, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
            nn.Conv2d(first, second, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
            nn.Linear(16 * second, hidden), nn.Tanh(), nn.Linear(hidden, 10),
        )  # fmt: skip


def trained(setting: SizeSetting, seed: int) -> SizeOutcome:
    """Train with `seed`, which fixes weights, batches and noise."""
    rows = _rows()
    x, y = rows.x[: setting.first], rows.y[: setting.first]
    plan = Plan(Poisson(sampling_rate=setting.sampling_rate), epochs=setting.epochs, clip=Flat(_CLIP), examples=len(x))
    plan = plan.calibrate(epsilon=setting.epsilon, delta=DELTA)
    streams = Streams.new(seed)
    net = network(setting.model, streams.initialisation)
    ledger = Ledger(plan.budget)
    dpsgd(plan, net, nn.CrossEntropyLoss(reduction="none"), (x, y),
          ledger=ledger, streams=streams, optimizer=lambda found: torch.optim.SGD(found, lr=setting.rate))  # fmt: skip
    parameters = sum(own.numel() for own in net.parameters())
    return SizeOutcome(
        accuracy(net, rows.x_test, rows.y_test), accuracy(net, rows.x_valid, rows.y_valid),
        ledger.guarantee(DELTA).epsilon, parameters,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _rows() -> Rows:
    """55,000 images to train on, 5,000 to choose by, 10,000 to test on; pixels from 0 to 1 in flat rows."""
    return TASKS["mnist"].rows(0, True)
