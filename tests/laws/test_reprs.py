"""The law of reprs: for an instance of each public class the repr is short, prices nothing and
prints no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.core import plan as plans
from privlearn.core.accounting.budget import Budget
from privlearn.methods.pate.plan import ConfidentVotes, PatePlan
from privlearn.runs.result import PrivateDiagnostics
from privlearn.transforms.select import SelectFeatures
from tests.runs.checks_reprs import require_short, settled, trained
from tests.support.nets import cross_entropy, small_data, small_net

TARGET = {"epsilon": 1.0, "delta": 1e-5}
CANDIDATES = tuple(
    pv.tuning.Candidate(name, settled(), settings={"rate": 0.1}) for name in ("small", "large")
)
#: One of each, by class.
MADE: dict[str, Callable[[], Any]] = {
    "Budget": lambda: Budget(**TARGET),
    "ComputeConfig": lambda: pv.ComputeConfig(microbatch=8),
    "PrivacyConfig": lambda: pv.PrivacyConfig(epsilon=1.0),
    "Dataset": lambda: pv.Dataset(*small_data(), classes=3, low=0.0, high=1.0),
    "Flat": lambda: pv.Flat(0.1),
    "Guarantee": lambda: settled().guarantee(1e-5),
    "Ledger": lambda: pv.Ledger(Budget(**TARGET)),
    "Partition": lambda: pv.Partition(10),
    "Plan": settled,
    "Poisson": lambda: pv.Poisson(0.01),
    "Result": trained,
    "Run": lambda: pv.Run(settled(), small_net(), cross_entropy, small_data()),
    "Shuffle": lambda: pv.Shuffle(10),
    "Streams": pv.Streams.new,
    "PrivateDiagnostics": lambda: PrivateDiagnostics({"loss": [0.25, 0.125]}),
    "FisherPlan": lambda: pv.statistics.FisherPlan(10, 64, 64, 4.0).calibrate(**TARGET),
    "LeastSquaresPlan": lambda: pv.statistics.LeastSquaresPlan(10, 64, 4.0).calibrate(**TARGET),
    "RidgePlan": lambda: pv.statistics.RidgePlan(64, 4.0, 0.0, 1.0).calibrate(**TARGET),
    "ValueMetricsPlan": lambda: pv.statistics.ValueMetricsPlan(0.0, 5.0).calibrate(**TARGET),
    "MetricsPlan": lambda: pv.statistics.MetricsPlan(10).calibrate(**TARGET),
    "RowsPlan": lambda: pv.statistics.RowsPlan(10, 64, 8, 4.0, labels="randomised").calibrate(
        **TARGET
    ),
    "SelectionPlan": lambda: pv.statistics.SelectionPlan(10, 64, 8, 4.0).calibrate(**TARGET),
    "BoostingPlan": lambda: pv.boosting.BoostingPlan(
        (pv.boosting.Levels(3),), pv.boosting.Labels(2)
    ).calibrate(**TARGET),
    "PatePlan": lambda: PatePlan(100, 250, ConfidentVotes(10, 200.0, 50)).calibrate(**TARGET),
    "Blocks": lambda: pv.tuning.Blocks(CANDIDATES),
    "RandomStopping": lambda: pv.tuning.RandomStopping(CANDIDATES, 4.0),
    "SelectFeatures": lambda: SelectFeatures(3, 4.0, 3, 1.0, 0.2),
}


def public_classes() -> set[str]:
    """The classes that stand in front, and plans of every kind."""

    def below(kind: type) -> set[type]:
        return {kind, *(own for each in kind.__subclasses__() for own in below(each))}

    front = {name for name in pv.__all__ if isinstance(getattr(pv, name), type)}
    own = (kind for kind in below(plans.AbstractPlan) if kind.__module__.startswith("privlearn."))
    return front | {kind.__name__ for kind in own if not kind.__subclasses__()}


def test_every_public_class_is_here() -> None:
    assert public_classes() <= set(MADE)


@pytest.mark.parametrize("name", MADE)
def test_the_repr_is_short(name: str) -> None:
    value = MADE[name]()
    assert type(value).__name__ == name
    text, _ = require_short(value)
    assert name in text.splitlines()[0]


def test_what_is_private_is_not_in_reprs() -> None:
    """Rows, sums before the noise, and what a checkpoint or a table holds."""
    from privlearn.data.tables import Table
    from privlearn.runs.checkpoint import Saved
    from tests.support.nets import bounded

    secret = torch.full((3,), 0.1234567)
    for value in (
        bounded(secret),
        pv.Dataset(secret[:, None], secret),
        Saved({"a": secret}, {"seed": 0.1234567}),
        Table("people.csv", {"age": ["0.1234567"]}),
    ):
        assert "0.1234" not in repr(value)
        assert len(repr(value)) < 200


def test_the_network_of_a_result_is_named_only() -> None:
    deep = nn.Sequential(*(nn.Linear(5, 5) for _ in range(200)), nn.Linear(5, 3)).double()
    x, y = small_data()
    result = pv.dpsgd(
        settled(1), deep, cross_entropy, (x, y), optimizer=lambda p: torch.optim.SGD(p, lr=1e-9)
    )
    require_short(result)
