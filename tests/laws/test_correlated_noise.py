"""Every correlated mechanism with every sampler and option: it adds the noise that its price is
for, or is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn._public import kinds
from privlearn.core import sampling, schedules
from privlearn.core.accounting.events import tally
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping import clips
from privlearn.core.clipping.derivative_bounds import Derivatives
from privlearn.core.mechanisms.correlated import Correlation
from privlearn.core.sampling import Sampler
from privlearn.core.streams import Streams
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from tests.mechanisms.checks_correlated import matrix
from tests.support.nets import small_data

ROWS, NOISE, EPOCHS = 24, 1.5, 3
MECHANISMS: dict[str, Correlation] = {
    "banded": pv.mechanisms.Banded(3),
    "bisr": pv.mechanisms.BISR(3),
    "blt": pv.mechanisms.BLT(2),
}
SAMPLERS: dict[str, Sampler] = {
    "poisson": sampling.Poisson(0.25),
    "truncated-poisson": sampling.TruncatedPoisson(0.25, ROWS, 12),
    "cyclic-poisson": sampling.CyclicPoisson(0.5, 3),
    "partition": sampling.Partition(4),
    "cyclic-partition": sampling.CyclicPartition(2, 3),
    "shuffle": sampling.Shuffle(6),
    "fixed": sampling.FixedOrder(6),
    "full": sampling.FullBatch(),
}
#: What every mechanism is combined with, and whether a price is proved for it.
OPTIONS: dict[str, tuple[bool, dict[str, Any], dict[str, Any]]] = {
    "plain": (True, {}, {}),
    "norms by layer": (True, {"clip": clips.PerLayer(0.5)}, {}),
    "automatic clipping": (True, {"clip": clips.Automatic(0.5)}, {}),
    "persons": (True, {"rows_per_person": 1}, {}),
    "a norm that follows a quantile": (False, {"clip": clips.Quantile(0.5)}, {}),
    "bounds of derivatives": (False, {"clip": Derivatives(0.3)}, {}),
    "noise that falls": (True, {"schedule": schedules.Exponential(k=0.1, start=NOISE)}, {}),
    "noise that reacts": (
        False,
        {"schedule": schedules.Validation(0.7, start=9.0, noise=20.0)},
        {},
    ),
    "groups": (False, {"group_size": 2}, {}),
    "noise on a grid": (False, {}, {"streams": Streams.new(0, discrete=True)}),
}
#: Proved for some mechanisms alone.
ONLY = {"noise that falls": {"banded"}}
#: The samplers with which an example rests for as many steps as the mechanism's price needs.
SUITED = {
    "banded": {"cyclic-poisson", "cyclic-partition", "fixed"},
    "bisr": {"fixed", "full"},
    "blt": {"fixed", "full"},
}


def plan(mechanism: str, sampler: str, **changes: Any) -> pv.Plan:
    usual = {
        "epochs": EPOCHS,
        "schedule": schedules.Constant(NOISE),
        "clip": clips.Flat(0.5),
        "examples": ROWS,
    }
    own = {
        "sampling": SAMPLERS[sampler],
        "adjacency": "zero_out",
        "correlation": MECHANISMS[mechanism],
    }
    return pv.Plan(**usual | own | changes)


def absent(*, persons: bool) -> Dataset:
    """Rows that count as absent: weights move by the noise alone."""
    x, y = small_data(ROWS)
    groups = np.arange(ROWS) if persons else None
    return Dataset((x * torch.nan).float().numpy(), y.numpy(), classes=200, groups=groups)


def moved(own: pv.Plan, ledger: Ledger, **options: Any) -> torch.Tensor:
    """By how much a step moves the sum of gradients, of absent rows: shape (steps, weights)."""
    torch.manual_seed(0)
    net = nn.Linear(5, 200)
    data = absent(persons=own.rows_per_person is not None)
    run = pv.Run(
        own,
        net,
        nn.CrossEntropyLoss(reduction="none"),
        data,
        ledger=ledger,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0),
        **{"streams": Streams.new(1)} | options,
    )
    moves = []
    for epoch in run:
        for batch in epoch:
            before = [value.detach().clone() for value in net.parameters()]
            run.step(batch)
            after = zip(before, net.parameters(), strict=True)
            moves.append(torch.cat([(old - new.detach()).flatten() for old, new in after]))
    return torch.stack(moves) * own.sampling.expected_batch_size(ROWS)


def test_every_mechanism_and_sampler_is_here() -> None:
    assert MECHANISMS.keys() == kinds(Correlation).keys() == SUITED.keys()
    assert SAMPLERS.keys() == kinds(Sampler).keys()


@pytest.mark.filterwarnings("ignore:there are rows with NaN")
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_noise_is_what_its_price_is_for_or_refused(
    mechanism: str, sampler: str, option: str
) -> None:
    """C times what steps add is white, over their noise multipliers; else nothing is charged at
    all.
    """
    proved, changes, options = OPTIONS[option]
    proved = proved and mechanism in ONLY.get(option, MECHANISMS)
    ledger = Ledger()
    if not (proved and sampler in SUITED[mechanism]):
        with pytest.raises(BadInput):
            moved(plan(mechanism, sampler, **changes), ledger, **options)
        assert not tally(ledger.event)
        return
    own = plan(mechanism, sampler, **changes)
    moves = moved(own, ledger, **options)
    assert ledger.event == own.event()
    steps, weights = moves.shape
    c = MECHANISMS[mechanism].coefficients(steps, SAMPLERS[sampler].separation(ROWS))
    multipliers = np.repeat(own.noise_multipliers(), steps // EPOCHS)[:, None]
    white = matrix(c, steps) @ (moves.double().numpy() / multipliers) / own.clip.clip_norm
    covariance = white @ white.T / weights
    assert np.abs(covariance.diagonal() - 1).max() < 6 * math.sqrt(2 / weights)
    np.fill_diagonal(covariance, 0)
    assert np.abs(covariance).max() < 6 / math.sqrt(weights)
    raw = np.corrcoef(moves.double().numpy())
    # A buffer that is fitted to examples in every step is next to independent noise.
    assert sampler == "full" or np.abs(raw - np.eye(steps)).max() > 0.3, "steps are independent"
