"""A run of class sums."""

from __future__ import annotations

from typing import Any

from torch import nn, zeros

import privlearn as pv
from class_sums.plan import ClassSums
from privlearn.core.clipping.bounded import Bounded, Contributions
from privlearn.runs.front import scaled
from privlearn.runs.result import PrivateDiagnostics


def train(
    plan: ClassSums, data: pv.Dataset, options: Any, *, ledger: Any, streams: pv.Streams
) -> pv.Result:
    """Release the sums of clipped rows, class by class."""
    x, y = data.tensors()
    transforms, x = scaled(data, x)
    ledger = pv.Ledger(plan.budget) if ledger is None else ledger
    clipped = x * (plan.radius / x.norm(dim=1, keepdim=True)).clamp(max=1.0)
    (sample,) = pv.sampling.FullBatch().draw(len(x))
    sums = nn.functional.one_hot(y, plan.classes).to(x.dtype).T @ clipped
    added = Contributions.of(clipped.norm(dim=1), plan.radius, "class-sums")
    bounded = Bounded((sums,), plan.radius, plan.adjacency, sample, added)
    ledger.begin(plan.event(), plan.adjacency, plan.unit)
    ((weights,),) = pv.release(
        bounded, noise_multiplier=plan.noise_multiplier, ledger=ledger, stream=streams.noise
    )
    ledger.settle()
    linear = nn.Linear(plan.numbers, plan.classes)
    linear.weight.data, linear.bias.data = weights, zeros(plan.classes)
    return pv.Result(
        nn.Sequential(*transforms, nn.Sequential(nn.Flatten(), linear)),
        ledger,
        plan,
        "sums",
        {"bound": plan.radius},
        {"input_shape": [plan.numbers], "network_input_shape": [plan.numbers]},
        streams.seeded,
        PrivateDiagnostics({}),
        model_spec="linear",
        classes=plan.classes,
    )
