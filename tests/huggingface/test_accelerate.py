"""Accelerate's `prepare`, in one process, before and after `pv.make_private`: the run is the same
to the bit.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")


def trained(prepared: str) -> tuple[Any, pv.Result]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    x = torch.randn(40, 4)
    given: Any = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
    net: Any = model

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    accelerator = accelerate.Accelerator(cpu=True)
    if prepared == "before":
        net, optimizer, given, scheduler = accelerator.prepare(model, optimizer, given, scheduler)
    private = pv.make_private(
        net,
        optimizer,
        given,
        epsilon=4.0,
        delta=1e-3,
        epochs=2,
        max_grad_norm=0.5,
        streams=pv.Streams.new(1),
    )
    if prepared == "after":
        private, scheduler = accelerator.prepare(private, scheduler)
    for batch in private.batches():
        private.step(batch, loss)
        scheduler.step()
    return net, private.result()


def test_accelerate_prepares_before_or_after() -> None:
    never, result = trained("never")
    for when in ("before", "after"):
        model, own = trained(when)
        assert own.ledger.event == result.ledger.event
        for one, other in zip(model.parameters(), never.parameters(), strict=True):
            assert torch.equal(one, other), when
