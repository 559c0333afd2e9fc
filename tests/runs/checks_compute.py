"""Named checks of how runs compute: what was said reaches the run, by its name and in a config
alike.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core.clipping.augmentation import Augmentation
from privlearn.errors import BadInput
from privlearn.runs.compute import ComputeConfig
from tests.support.checks import check, must_raise


def _moved(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows + torch.rand(rows.shape, generator=generator)


#: Other values than the usual ones, by the names that functions take, and the facts that show them.
OTHERS: dict[str, Any] = {
    "precision": "bf16",
    "augmentation": Augmentation(2, _moved),
    "average": 0.5,
}
FACTS = {"precision": "bf16", "augmentation_copies": 2, "average": 0.5}


def _trained(**named: Any) -> pv.Result:
    data = pv.Dataset(np.eye(12, 4, dtype=np.float32), np.arange(12) % 3, classes=3, low=0, high=1)
    with_noise = {"noise_multiplier": 9.0, "epochs": 1, "batch_size": 4, "features": "raw"}
    return pv.train(data, **with_noise, streams=pv.Streams.new(0), **named)


@check
def check_how_a_run_computes_is_what_was_said() -> None:
    """By names and in a config alike: the facts of the run show it, and its weights are the
    same.
    """
    usual, named = _trained(), _trained(**OTHERS)
    in_a_config = _trained(config=ComputeConfig.of(OTHERS))
    for name, fact in FACTS.items():
        assert usual.facts.get(name) != fact
        assert named.facts[name] == in_a_config.facts[name] == fact
    for one, other in zip(named.model.parameters(), in_a_config.model.parameters(), strict=True):
        assert torch.equal(one, other)


@check
def check_nothing_is_said_twice_of_how_a_run_computes() -> None:
    """A field beside a config is refused, and so is one that a method's runs have not, before
    anything is spent.
    """
    for name, value in OTHERS.items():
        said = str(must_raise(BadInput, partial(_trained, config=ComputeConfig(), **{name: value})))
        assert said.startswith(f"{name} is given beside config=")
    plan = pv.Plan(
        pv.Poisson(0.4),
        schedule=pv.schedules.Constant(3.0),
        examples=12,
        clip=pv.mac.Derivatives(0.3),
    )
    data = torch.eye(12, 4), torch.arange(12) % 3
    for config in (
        ComputeConfig(precision="bf16"),
        ComputeConfig(augmentation=OTHERS["augmentation"]),
    ):
        network = nn.Sequential(nn.Linear(4, 3))
        must_raise(BadInput, partial(pv.dpmac, plan, network, "cross_entropy", data, config=config))
