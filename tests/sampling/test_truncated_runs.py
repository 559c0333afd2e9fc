"""Runs on truncated Poisson batches, from training to `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.core.accounting import events
from privlearn.core.accounting.pld.truncation import TruncatedPoissonSampled
from privlearn.errors import UnsupportedEvent
from privlearn.publishing import certificate
from privlearn.training.choices import TrainRequest


def test_a_run_is_published_and_verified(tmp_path: Path) -> None:
    """Its certificate holds the event with the maximum, which prices it again; no batch is
    larger.
    """
    y = torch.arange(40) % 2
    x = nn.functional.one_hot(y, 3).float() + 0.1 * torch.randn(
        40, 3, generator=torch.manual_seed(0)
    )
    sampler = pv.sampling.TruncatedPoisson(0.2, 40, 12)
    plan = pv.Plan(sampler, epochs=2).calibrate(epsilon=4.0, delta=1e-5)
    assert certificate.read_plan(plan.to_json()) == plan
    make = lambda shape: pv.models.build("linear", shape, 2, np.random.default_rng(0))  # noqa: E731
    rows = pv.Dataset(x.numpy(), y.numpy(), classes=2)
    loss = nn.CrossEntropyLoss(reduction="none")
    result = pv.dpsgd(plan, make, loss, rows, streams=pv.Streams.new(0))
    assert result.ledger.event == plan.event()
    (leaf,) = events.tally(plan.event())
    assert leaf == TruncatedPoissonSampled(0.2, 40, 12, leaf.event)  # type: ignore[attr-defined]
    out = pv.publish(result, tmp_path / "model", model_spec="linear", classes=2)
    assert pv.verify(out).ok
    assert "maximum 12" in (out / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    "sampling", ["truncated-poisson:maximum=12", pv.sampling.TruncatedPoisson(0.2, 40, 12)], ids=str
)
def test_batches_of_a_loop_have_a_maximum(sampling: Any) -> None:
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), batch_size=8)
    optimizer, loss = (
        torch.optim.SGD(model.parameters(), 0.1),
        nn.CrossEntropyLoss(reduction="none"),
    )
    with pv.make_private(
        model,
        optimizer,
        loader,
        epsilon=4.0,
        delta=1e-3,
        epochs=4,
        max_grad_norm=1.0,
        sampling=sampling,
    ) as private:
        assert max(int(private.step(batch, loss)["examples"]) for batch in private.batches()) <= 12
        assert private.plan.sampling == pv.sampling.TruncatedPoisson(0.2, 40, 12)
        assert private.ledger.event == private.plan.event()


@pytest.mark.parametrize("examples", [None, 1797])
def test_neighbours_without_a_price_are_refused_before_all_else(examples: int | None) -> None:
    """No number of rows is asked for first, and no feature is computed."""
    with pytest.raises(UnsupportedEvent, match="no sound accounting for add_remove"):
        TrainRequest(
            epsilon=2.0,
            sampling="truncated-poisson:maximum=80",
            adjacency="add_remove",
            examples=examples,
        )
    with pytest.raises(UnsupportedEvent, match="no sound accounting for add_remove"):
        TrainRequest(
            epsilon=2.0,
            sampling=pv.sampling.CyclicPoisson(0.5, 2),
            adjacency="add_remove",
            examples=examples,
        )
